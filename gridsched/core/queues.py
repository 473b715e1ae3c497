"""Who waits, in which order, and until when.

Owns the scheduler's mutable notes about a job (`JobRecord`), the queues of one model, and the heap of deadlines.
Must never decide who goes next across models, and never walks all waiting jobs: adding, taking the head and
cancelling cost the same with one job waiting as with ten thousand.

The order inside a queue is the *place*: the time of arrival, or of the end of the job's last step (S2, S3). A job that
has just made progress is therefore last in its queue without anybody sorting it there. Where jobs of several API keys
wait in a queue it keeps a line for each key beside that order (`keys`), from when the second key comes until the queue
is empty.
"""

import heapq
from collections import Counter, OrderedDict, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import takewhile
from math import inf
from operator import attrgetter
from typing import TYPE_CHECKING

from gridsched.core.ids import GrantId, JobId, ModelName
from gridsched.core.job import Job, JobClass
from gridsched.core.keys import Lines
from gridsched.core.order import Order
from gridsched.core.transitions import JobState

if TYPE_CHECKING:  # a group stands at a model, and a model has queues
    from gridsched.core.families import Group

CLASSES = tuple(JobClass)
"""The classes in their order, S1."""

_, BACKGROUND, BATCH = CLASSES

Rank = tuple[int, float, int]
"""(class, place, number): the smaller goes first, S1 and S2."""

_in_place = attrgetter("place", "number")


@dataclass(slots=True, eq=False)
class JobRecord:
    """A living job. `place` is where it stands (seconds); `number` orders equal places. `turn` is its key's turn in the
    queue where it waits, where that has lines.

    `step` is the one it waits for or runs, from 1. `deadline` is when its wait is over (S9), inf for never.
    `aborted_loads` counts the loads begun for it that a chat took away (L6c), `aborts` the steps of it (S11).
    `held` is the rule that held it when it came to wait, and why in words, until it does no longer.
    `hot_told_at` is when it was said that it waits only for something hot (B1).
    `lost_seconds` is how long steps ran that came to nothing (P5, S11): that was no waiting.
    `model` is the one that it waits for or
    runs on: the job's own, or a variant of the family that the job names; `group` are the waiting jobs of that family
    that are aimed together, None for a job that names a model (R10).
    """

    job: Job
    place: float
    number: int
    chat: bool
    model: ModelName
    state: JobState = JobState.WAITING
    step: int = 1
    grant_id: GrantId | None = None
    ran_again: bool = False
    aborted_loads: int = 0
    aborts: int = 0
    hot_told_at: float = -inf
    lost_seconds: float = 0.0
    turn: int = 0
    deadline: float = inf
    group: "Group | None" = None
    held: tuple[str, str] | None = None

    @property
    def rank(self) -> Rank:
        """Where the job stands among all jobs."""
        return (self.job.job_class, self.place, self.number)


class ModelQueue:
    """The waiting jobs of one model, one ordered queue for each class; `lines` are the same by key, None while all have
    one.

    `count` is how many wait in all, `low` how many of them are background or batch. `warm_only` and `no_evict` count
    those with less than the full permission to load (S9), `gentle` the low jobs of families among the others (R10).
    `orders` tell where a job stands in its class, None until somebody asks.
    """

    __slots__ = (
        "background",
        "batch",
        "by_class",
        "chats",
        "count",
        "gentle",
        "key",
        "lines",
        "low",
        "no_evict",
        "orders",
        "warm_only",
    )

    def __init__(self) -> None:
        self.chats: OrderedDict[JobId, JobRecord] = OrderedDict()
        self.background: OrderedDict[JobId, JobRecord] = OrderedDict()
        self.batch: OrderedDict[JobId, JobRecord] = OrderedDict()
        self.by_class = (self.chats, self.background, self.batch)
        self.count = 0
        self.low = 0
        self.warm_only = 0
        self.no_evict = 0
        self.gentle = 0
        self.key = ""
        self.lines: tuple[Lines, ...] | None = None
        self.orders: tuple[Order, ...] | None = None

    def add(self, record: JobRecord) -> None:
        """Put a job last in its queue; its place must not be before anybody's there."""
        job = record.job
        if job.key != self.key:
            self._meet(job.key)
        if self.lines is not None:
            self.lines[job.job_class].add(record)
        if self.orders is not None:
            self.orders[job.job_class].add(record)
        self.by_class[job.job_class][job.id] = record
        self._counted(record, 1)

    def _meet(self, key: str) -> None:
        """A job of another key than the last comes: if any waits, the keys take turns from now on."""
        if self.count and self.lines is None:
            self.lines = tuple(Lines(queue.values()) for queue in self.by_class)
        self.key = key

    def put_back(self, *records: JobRecord) -> None:
        """Put jobs of one class at their old places (P5, S11, R10), one after the other. One that has been served
        stands behind few, and only these are walked; of many the queue is put in order once."""
        queue = self.by_class[records[0].job.job_class]
        last = next(reversed(queue.values())).rank if queue else None
        between: list[JobRecord] = []
        for record in records:
            job = record.job
            if job.key != self.key:
                if self.lines is None:  # they would be made of those who are there
                    _insert(queue, between)
                    between = []
                self._meet(job.key)
            if last is None or last < record.rank:
                self.add(record)
                last = record.rank
                continue
            if self.lines is not None:
                self.lines[job.job_class].put_back(record)
            if self.orders is not None:
                self.orders[job.job_class].add(record)
            self._counted(record, 1)
            between.append(record)
        _insert(queue, between)

    def remove(self, record: JobRecord) -> None:
        """Take a job out, wherever it stands. Raises KeyError for one that does not wait here."""
        job = record.job
        del self.by_class[job.job_class][job.id]
        self._counted(record, -1)
        if self.lines is not None:
            self.lines[job.job_class].remove(record)
            if not self.count:
                self.lines = None
        if self.orders is not None:
            self.orders[job.job_class].remove(record)
            if not self.count:
                self.orders = None

    def _counted(self, record: JobRecord, change: int) -> None:
        self.count += change
        if not record.chat:
            self.low += change
        job = record.job
        if job.warm_only:
            self.warm_only += change
        elif job.no_evict:
            self.no_evict += change
        elif record.group is not None and not record.chat:
            self.gentle += change

    def head(self, job_class: int) -> JobRecord | None:
        """The first of a class by its place."""
        for record in self.by_class[job_class].values():
            return record
        return None

    def due(self, job_class: int) -> JobRecord | None:
        """Whose turn it is in a class, for a slot."""
        if self.lines is not None:
            return self.lines[job_class].due()
        for record in self.by_class[job_class].values():
            return record
        return None

    def in_turn(self, job_class: int) -> list[JobRecord]:
        """A class in the order in which it would be given slots. Walks the queue: for those who only look."""
        return list(self.by_class[job_class].values()) if self.lines is None else self.lines[job_class].in_turn()

    def stands_at(self, record: JobRecord) -> JobRecord:
        """Whose place a job has that waits here. Where keys take turns the first to be served stands where the oldest
        would."""
        if self.lines is None:
            return record
        job_class = record.job.job_class
        return self._orders()[job_class].at(self.lines[job_class].before(record))

    def before(self, job_class: JobClass, record: JobRecord) -> int:
        """How many of a class have a place here before a job's, which may wait elsewhere."""
        return self._orders()[job_class].before(record) if self.by_class[job_class] else 0

    def _orders(self) -> tuple[Order, ...]:
        if self.orders is None:
            self.orders = tuple(Order(queue.values(), _in_place) for queue in self.by_class)
        return self.orders

    def waiting_keys(self) -> Iterable[str]:
        """The keys whose jobs wait here."""
        if self.lines is None:
            return (self.key,) if self.count else ()
        return (key for lines in self.lines for key in lines.by_key)

    def longest_starved(self) -> list[JobRecord]:
        """The low job with the oldest place of each key that has a line, whatever its class (S5)."""
        found: dict[str, JobRecord] = {}
        for lines in (self.lines or ())[JobClass.BACKGROUND :]:
            for record in lines.heads():
                other = found.get(record.job.key, record)
                found[record.job.key] = min(record, other, key=lambda each: (each.place, each.number))
        return list(found.values())

    def oldest_low(self) -> JobRecord | None:
        """The low job with the oldest place, whatever its class: the longest starved one (S5)."""
        first, second = self.head(BACKGROUND), self.head(BATCH)
        if first is None or second is None:
            return first or second
        if first.place == second.place:
            return first if first.number < second.number else second
        return first if first.place < second.place else second

    def holder(self, *, may_evict: bool) -> JobRecord | None:
        """The first job for whom a load may be begun; with `may_evict`, for whom others may go (S6c, S9)."""
        lesser = self.warm_only + (self.no_evict if may_evict else 0)
        if self.count == lesser:
            return None
        if not lesser:
            return next(iter((self.chats or self.background or self.batch).values()))
        for record in self:
            if not record.job.warm_only and not (may_evict and record.job.no_evict):
                return record
        return None

    def evictor(self) -> tuple[JobRecord | None, bool]:
        """For whom others may go: the first who may disturb as its class may, else the first of a family's low work,
        for whom only what nobody uses goes. The second says whether it is one of those (R10)."""
        if not self.gentle:
            return self.holder(may_evict=True), False
        for record in self if self.count > self.warm_only + self.no_evict + self.gentle else ():
            if not record.job.warm_only and not record.job.no_evict and (record.chat or record.group is None):
                return record, False
        return self.holder(may_evict=True), True

    def __iter__(self) -> Iterator[JobRecord]:
        """All waiting jobs, by class and place."""
        for queue in self.by_class:
            yield from queue.values()


def _insert(queue: OrderedDict[JobId, JobRecord], records: list[JobRecord]) -> None:
    """Put jobs where others of their class stand behind them."""
    if len(records) > 1:
        ordered = sorted((*queue.values(), *records), key=_in_place)
        queue.clear()
        queue.update((record.job.id, record) for record in ordered)
        return
    if records:
        (record,) = records
        before = [job_id for job_id, _ in takewhile(lambda item: item[1].rank < record.rank, queue.items())]
        queue[record.job.id] = record
        for job_id in (record.job.id, *reversed(before)):
            queue.move_to_end(job_id, last=False)


@dataclass(slots=True)
class Deadlines:
    """When waits are over (S9), as a heap. Jobs that stopped waiting are dropped when they come up, or when the heap
    is mostly them, so that a day's deadlines of jobs long served do not pile up."""

    heap: list[tuple[float, int, JobRecord]] = field(default_factory=list)

    def push(self, record: JobRecord, waiting: int) -> None:
        """Remember the deadline of a job, one of `waiting` that wait."""
        if record.deadline == inf:
            return
        heapq.heappush(self.heap, (record.deadline, record.number, record))
        if len(self.heap) > 64 + 4 * waiting:
            self.rebuild(entry[2] for entry in list(self.heap) if _holds(entry))

    def rebuild(self, records: Iterable[JobRecord]) -> None:
        """Start anew with these."""
        self.heap = [(record.deadline, record.number, record) for record in records if record.deadline < inf]
        heapq.heapify(self.heap)

    def next_at(self) -> float:
        """The earliest deadline, inf for none."""
        heap = self.heap
        while heap and not _holds(heap[0]):
            heapq.heappop(heap)
        return heap[0][0] if heap else inf

    def due(self, now: float) -> list[JobRecord]:
        """Take out the waiting jobs whose deadline has come."""
        late = []
        while self.next_at() <= now:
            record = heapq.heappop(self.heap)[2]
            record.deadline = inf  # a job that was run again (P5) has come with the same deadline twice
            late.append(record)
        return late


def _holds(entry: tuple[float, int, JobRecord]) -> bool:
    return entry[2].state is JobState.WAITING and entry[2].deadline == entry[0]


@dataclass(slots=True)
class ClassCounts:
    """How many of a class wait and run, and when the last ones left the queue, for an honest `Retry-After`. `of_key`
    counts those that wait by API key; without keys it stays empty."""

    waiting: int = 0
    running: int = 0
    of_key: Counter[str] = field(default_factory=Counter)
    departures: deque[float] = field(default_factory=lambda: deque(maxlen=16))

    def entered(self, key: str) -> None:
        """A job of a key has come to wait."""
        self.waiting += 1
        if key:
            self.of_key[key] += 1

    def left(self, key: str) -> None:
        """It waits no longer."""
        self.waiting -= 1
        if key:
            self.of_key[key] -= 1
            if not self.of_key[key]:
                del self.of_key[key]

    def retry_after_seconds(self, now: float, fallback_seconds: float) -> float:
        """The mean time between departures, the one that is still awaited included; at least a second, at most an
        hour. Before anything has left: `fallback_seconds`."""
        if not self.departures:
            return fallback_seconds
        return min(3600.0, max(1.0, (now - self.departures[0]) / len(self.departures)))
