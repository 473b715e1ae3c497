"""What every checker is: a reader of the book who speaks when a rule is broken.

Owns the shape of a violation and of a checker. A checker must never look into the scheduler.
"""

from dataclasses import dataclass

from gridsched.core.commands import Command
from gridsched.core.events import Event
from sim.checkers.book import Book


@dataclass(frozen=True, slots=True)
class Violation:
    """A broken rule: at which step of the run, at what time in seconds, and what was seen."""

    rule: str
    step: int
    at: float
    what: str

    def __str__(self) -> str:
        return f"{self.rule} at {self.at:.3f}s (step {self.step}): {self.what}"


class Checker:
    """One family of rules. `heard` is called when the book knows the event, `decided` for each command before the book
    notes it, `settled` when the step is over."""

    def __init__(self, book: Book, found: list[Violation]) -> None:
        self.book = book
        self.step = 0
        self._found = found

    def heard(self, event: Event) -> None:
        """An event has come."""

    def decided(self, command: Command) -> None:
        """A command is about to be noted."""

    def settled(self) -> None:
        """The step is over."""

    def broken(self, rule: str, what: str) -> None:
        """Report a violation."""
        self._found.append(Violation(rule, self.step, self.book.now, what))
