"""The checkers: rules of behaviour judged from events and commands alone.

`Watch` is the door: it looks on at a run, keeps the book, lets every checker speak and keeps the digest of the run.
Nothing here imports the scheduler or its invariants.
"""

from hashlib import sha256

from gridsched.core.commands import Command
from gridsched.core.events import Event
from sim.checkers.book import Book
from sim.checkers.checker import Checker, Violation
from sim.checkers.jobs import Jobs
from sim.checkers.loads import Loads
from sim.checkers.memory import Memory
from sim.checkers.order import Order
from sim.checkers.relief import Relief
from sim.checkers.slots import Slots

__all__ = ["Book", "Violation", "Watch"]
FAMILIES: tuple[type[Checker], ...] = (Slots, Order, Relief, Memory, Loads)


class Watch:
    """Looks on at one run. `found` are the violations so far, in order."""

    def __init__(self) -> None:
        self.book = Book()
        self.found: list[Violation] = []
        self.steps = 0
        self._jobs = Jobs(self.book, self.found)
        self._checkers: tuple[Checker, ...] = (self._jobs, *(family(self.book, self.found) for family in FAMILIES))
        self._digest = sha256()

    def saw(self, event: Event, commands: tuple[Command, ...], now: float) -> None:
        """One step has been made."""
        self.steps += 1
        self._digest.update(repr((now, event, commands)).encode())
        self.book.hear(event, now)
        for checker in self._checkers:
            checker.step = self.steps
            checker.heard(event)
        for command in commands:
            for checker in self._checkers:
                checker.decided(command)
            self.book.note(command)
        for checker in self._checkers:
            checker.settled()

    def finish(self) -> None:
        """The world has been healed for long."""
        self._jobs.unfinished()

    @property
    def digest(self) -> str:
        """The same for the same events, commands and times."""
        return self._digest.hexdigest()[:16]
