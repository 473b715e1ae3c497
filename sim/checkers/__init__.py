"""The checkers: rules of behaviour judged from events and commands alone.

`Watch` is the door: it looks on at a run, keeps the book, lets every checker speak and keeps the digest of the run.
Nothing here imports the scheduler or its invariants.
"""

from collections.abc import Callable, Iterable, Mapping

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
from sim.checkers.standing import Standing
from sim.checkers.starts import Starts
from sim.checkers.stops import Stops
from sim.checkers.wishes import Wishes
from sim.digest import Digest

__all__ = ["Book", "Violation", "Watch"]
FAMILIES: tuple[type[Checker], ...] = (Jobs, Slots, Order, Relief, Memory, Loads, Starts, Stops, Standing, Wishes)
Calls = dict[type, tuple[Callable[..., None], ...]]


class Watch:
    """Looks on at one run. `found` are the violations so far, in order."""

    def __init__(self) -> None:
        self.book = Book()
        self.found: list[Violation] = []
        self._checkers = [family(self.book, self.found) for family in FAMILIES]
        # The book knows an event before it is judged.
        self._hears = _by_type((self.book.hearing, *(one.hears() for one in self._checkers)))
        # Each command is judged before the book notes it.
        self._takes = _by_type((*(one.judges() for one in self._checkers), self.book.noting))
        self._settled = [one.settled for one in self._checkers if type(one).settled is not Checker.settled]
        self._digest = Digest()

    def saw(self, event: Event, commands: tuple[Command, ...], now: float) -> None:
        """One step has been made."""
        book, takes = self.book, self._takes
        self._digest.add(event, commands, now)
        book.turn_to(now)
        for hear in self._hears.get(type(event), ()):
            hear(event)
        for command in commands:
            for take in takes.get(type(command), ()):
                take(command)
        waits = [(name, line, book.open_instance(name)) for name, line in book.lines.items()] if book.lines else []
        for settle in self._settled:
            settle(waits)

    def finish(self) -> None:
        """The world has been healed for long."""
        for one in self._checkers:
            one.unfinished()

    @property
    def steps(self) -> int:
        """How many steps were seen."""
        return self.book.step

    @property
    def digest(self) -> str:
        """The same for the same events, commands and times."""
        return self._digest.text()


def _by_type(tables: Iterable[Mapping[type, Callable[..., None]]]) -> Calls:
    """All that is to be called for a type, in the order of the checkers."""
    calls: Calls = {}
    for table in tables:
        for kind, call in table.items():
            calls[kind] = (*calls.get(kind, ()), call)
    return calls
