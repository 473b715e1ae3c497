"""What every checker is: a reader of the book who speaks when a rule is broken.

Owns the shape of a violation and of a checker. A checker must never look into the scheduler.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from gridsched.core.ids import ModelName
from sim.checkers.facts import Facts
from sim.checkers.notes import InstanceNote, Line


@dataclass(frozen=True, slots=True)
class Violation:
    """A broken rule: at which step of the run, at what time in seconds, and what was seen."""

    rule: str
    step: int
    at: float
    what: str

    def __str__(self) -> str:
        return f"{self.rule} at {self.at:.3f}s (step {self.step}): {self.what}"


Waits = list[tuple[ModelName, Line, InstanceNote | None]]
"""Who waits at the end of a step: the name, its line, and the process that could serve it."""


class Checker:
    """One family of rules. What `hears` names is called when the book knows the event, what `judges` names for each
    command before the book notes it, `settled` when the step is over and `unfinished` when the run is."""

    def __init__(self, book: Facts, found: list[Violation]) -> None:
        self.book = book
        self._found = found

    def hears(self) -> Mapping[type, Callable[..., None]]:
        """What is called for which event."""
        return {}

    def judges(self) -> Mapping[type, Callable[..., None]]:
        """What is called for which command."""
        return {}

    def settled(self, waits: Waits) -> None:
        """The step is over."""

    def unfinished(self) -> None:
        """The world has been healed for long, and everything must have come to its end."""

    def broken(self, rule: str, what: str) -> None:
        """Report a violation."""
        self._found.append(Violation(rule, self.book.step, self.book.now, what))
