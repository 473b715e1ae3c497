"""Turns of API keys: whose job is next where jobs of several keys wait for the same thing (S2, S5).

Owns the order among keys, in three places, each with the smallest memory that will do. For a *slot* each waiting job
has a turn in its queue, given when it comes: the one after its key's last there, be that waiting or served, and never
before the turn that is due; but beside the one that was served last, which is over for its key. For a *load* and for
*relief* the key goes first whose last one is the longest ago. Where all jobs have one key nothing of this is kept or
asked, and arrival decides. Must never reorder the jobs of one key.
"""

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from itertools import takewhile
from math import inf
from operator import attrgetter
from typing import TYPE_CHECKING

from gridsched.core.ids import JobId
from gridsched.core.order import Order
from gridsched.core.transitions import JobState

if TYPE_CHECKING:  # queues keep lines
    from gridsched.core.queues import JobRecord, Rank


in_turn = attrgetter("turn", "place", "number")
"""Where a job stands in a queue in which keys take turns."""


class Lines:
    """The waiting jobs of one model and class, a line for each key, and all in the order of their turns. Coming, being
    next and leaving hardly depend on how many wait, nor of how many keys. The last turn that a key was served
    in is remembered: else two keys that always have a job there shared one turn for ever, before a third's next. So is
    the last of all: a key that comes back just after another was served goes before that one's next."""

    __slots__ = ("_last", "_order", "_served", "by_key")

    def __init__(self, records: "Iterable[JobRecord]" = ()) -> None:
        self.by_key: dict[str, OrderedDict[JobId, JobRecord]] = {}
        self._order = Order((), in_turn)
        self._served: dict[str, int] = {}
        self._last = 0
        for record in records:
            self.add(record)

    def add(self, record: "JobRecord") -> None:
        """Put a job last in its key's line."""
        self._append(record, self._served.get(record.job.key, -1) + 1)

    def _append(self, record: "JobRecord", turn: int) -> None:
        due = self.due()
        line = self.by_key.setdefault(record.job.key, OrderedDict())
        record.turn = turn if due is None else max(turn, min(due.turn, self._last))
        if line:
            record.turn = max(record.turn, next(reversed(line.values())).turn + 1)
        line[record.job.id] = record
        self._order.add(record)

    def put_back(self, record: "JobRecord") -> None:
        """Put a job at its old place: it shares the turn of the one behind it there, and goes before it. That it was
        served before came to nothing, and was no turn."""
        line = self.by_key.get(record.job.key)
        behind = next((other for other in line.values() if other.rank > record.rank), None) if line else None
        if line is None or behind is None:
            self._append(record, 0)
            return
        record.turn = behind.turn
        before = list(takewhile(lambda job_id: job_id != behind.job.id, line))
        line[record.job.id] = record
        for job_id in (record.job.id, *reversed(before)):
            line.move_to_end(job_id, last=False)
        self._order.add(record)

    def remove(self, record: "JobRecord") -> None:
        """Take a job out, wherever it stands: who is served has had its key's turn."""
        line = self.by_key[record.job.key]
        if record.state is JobState.RUNNING:
            self._served[record.job.key] = self._last = record.turn
        self._order.remove(record)
        del line[record.job.id]
        if not line:
            del self.by_key[record.job.key]

    def heads(self) -> "Iterator[JobRecord]":
        """The longest waiting job of each key."""
        return (next(iter(line.values())) for line in self.by_key.values())

    def due(self) -> "JobRecord | None":
        """The job whose turn it is: the lowest turn, then the oldest place."""
        return self._order.first()

    def in_turn(self) -> "list[JobRecord]":
        """All of them in the order of their turns."""
        return self._order.all()

    def before(self, record: "JobRecord") -> int:
        """How many are to be served before a job that waits here."""
        return self._order.before(record)


class KeyTurns:
    """What is remembered of keys beyond the queues: when a load was last begun for each, and the order of their last
    relief. `several` says whether loads of more than one key have to take turns, `stale` that one has been begun since
    the plans were made."""

    def __init__(self) -> None:
        self.several = False
        self.stale = False
        self._known: set[str] = set()
        self._loaded_at: dict[str, float] = {}
        self._relieved: dict[str, int] = {}
        self._reliefs = 0

    def meet(self, keys: Iterable[str]) -> None:
        """Plans are made: look at the keys whose jobs wait for a load."""
        self._known = set(keys).union(self._loaded_at)
        self.several = len(self._known) > 1
        self.stale = False

    def counts(self, record: "JobRecord") -> bool:
        """Whether keys have a say in where a job stands that comes to wait for a load."""
        return self.several or record.job.key not in self._known

    def load_begins(self, key: str, now: float) -> None:
        """A load is begun for a job of this key."""
        self._loaded_at[key] = now
        self.stale = self.several

    def load_rank(self, record: "JobRecord") -> "Rank":
        """Where a job stands among those that want models loaded, and those whose models they would have go."""
        if not self.several:
            return record.rank
        return (record.job.job_class, self._loaded_at.get(record.job.key, -inf), record.number)

    def ahead(self) -> "KeyTurns":
        """A copy of what is remembered of relief, for an estimate to play forward with (S9b)."""
        copy = KeyTurns()
        copy._relieved, copy._reliefs = dict(self._relieved), self._reliefs
        return copy

    def relieved(self, key: str) -> None:
        """A job of this key has been relieved."""
        self._reliefs += 1
        self._relieved[key] = self._reliefs

    def relief_rank(self, record: "JobRecord") -> tuple[int, float, int]:
        """Where a starved job stands among each key's longest starved."""
        return (self._relieved.get(record.job.key, 0), record.place, record.number)
