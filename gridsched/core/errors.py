"""Bugs of our own, as exceptions. Ordinary refusals are values (`commands.Rejection`) and never appear here.

CoreError
├── InvariantViolation   an INV-n does not hold after a step
└── IllegalMove          an event that the transition tables do not allow in that state
"""


class CoreError(Exception):
    """A bug in the scheduler or in what feeds it; carries the story of what it concerns."""

    def __init__(self, message: str, story: tuple[str, ...] = ()) -> None:
        super().__init__("\n".join((message, *story)))
        self.story = story


class InvariantViolation(CoreError):
    """An invariant does not hold."""


class IllegalMove(CoreError):
    """An event that makes no sense in the state it met."""
