"""The decision log: every `Log` command as one JSON-shaped line, in order, with a number and the wall time.

Owns the lines in memory (a bounded number; older ones are on the disk, in `past`) and wakes those who follow. Numbers
go on over a restart, of lines and of jobs. Must never block the actor: a follower that is slow misses nothing that is
still kept, and nobody waits for it, nor for the disk.
"""

from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from datetime import UTC, datetime
from functools import lru_cache
from itertools import takewhile
from operator import itemgetter

import trio

from gridsched.core.commands import Log, LogEvent
from gridsched.runtime.past import FIRST, Numbered, Past, Read, Row, Which
from gridsched.threads import in_thread

Line = Row

KEPT_LINES = 10_000
"""About an hour of a busy machine, 5 MB. A guess: the newest line matters most."""

NUMBERS = 1_000_000
"""How its last lines were numbered nobody knows of a run that did not end in order: they may not be on the disk, and a
follower may have seen them. The next run begins above the next whole million."""


@lru_cache(maxsize=2)
def rfc3339(wall_seconds: float) -> str:
    """A UTC time to the millisecond; made once for all lines of a step."""
    whole, micros = divmod(round(wall_seconds * 1_000_000), 1_000_000)
    return f"{_to_the_second(whole)}.{micros // 1000:03d}Z"


@lru_cache(maxsize=2)
def _to_the_second(wall_seconds: int) -> str:
    """Found once for all lines of a second."""
    return datetime.fromtimestamp(wall_seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")


def line_of(log: Log, wall_seconds: float, seq: int | None = None) -> Line:
    """The contract's JSON object: `seq` in the log itself, `time`, `event`, then what the decision concerns, empty
    fields left out."""
    line: dict[str, object] = {} if seq is None else {"seq": seq}
    line["time"] = rfc3339(wall_seconds)
    line["event"] = log.event.value
    if log.job_class is not None:
        line["class"] = log.job_class.label
    if log.job_id is not None:
        line["job"] = log.job_id
    if log.kind is not None:
        line["kind"] = log.kind.value
    rest = (("model", log.model), ("device", log.device), ("step", log.step), ("steps", log.steps), ("rule", log.rule))
    line.update([named for named in rest if named[1] is not None])
    line.update(log.figures)
    return line


class DecisionLog:
    """The kept lines and those who follow them. `sink` sees every line of this run as it is made, and `past` what it
    and the runs before have said."""

    def __init__(self, sink: Callable[[Line], None] | None = None, past: Past | None = None) -> None:
        """Blocks where there is a past: the last lines are read."""
        self._sink = sink
        self._past = past
        self._lines: deque[Numbered] = deque(past.newest(KEPT_LINES) if past is not None else (), maxlen=KEPT_LINES)
        self._changed = trio.Event()
        self._is_awaited = False
        self._closed = False
        self._before = self._lines[-1] if self._lines else None
        self.last_seq = self._before[0] if self._before is not None else 0
        self.last_job = past.last_job(list(self._lines)) if past is not None else 0
        if self._before is not None and self._before[1]["event"] != LogEvent.END.value:
            self.last_seq = (self.last_seq // NUMBERS + 1) * NUMBERS
        self.began_after = self.last_seq

    @property
    def lost(self) -> int:
        """How many lines of this run the disk did not take."""
        return self._past.lost if self._past is not None else 0

    def begin(self, version: str, pid: int, wall_seconds: float) -> None:
        """Say where a run begins; and of the one before, if it did not end in order, its last line that there is."""
        figures: dict[str, object] = {"version": version, "pid": pid}
        if self._before is not None and self.last_seq > self._before[0]:
            figures["after"] = self._before[0]
        self.add(Log(LogEvent.START, figures=figures), wall_seconds)

    def add(self, log: Log, wall_seconds: float) -> None:
        """Number and keep one decision, made at this time: all of one step's have the same."""
        self.last_seq += 1
        line = line_of(log, wall_seconds, self.last_seq)
        self._lines.append((self.last_seq, line))
        if self._past is not None:
            self._past.keep(line)
        if self._sink is not None:
            self._sink(line)
        self._wake()

    def close(self) -> None:
        """End every follower."""
        self._closed = True
        self._wake()

    def since(self, seq: int, most: int = KEPT_LINES) -> list[Numbered]:
        """The lines in memory after number `seq` with their numbers, oldest first, and no more than `most`."""
        newest = list(takewhile(lambda numbered: numbered[0] > seq, reversed(self._lines)))
        newest.reverse()
        return newest[:most]

    async def older(self, seq: int, which: Which) -> AsyncGenerator[Read, None]:
        """The lines after number `seq` that are no longer in memory, and at the end some that are: nothing where all
        are there, or none is kept elsewhere."""
        if self._past is None or (self._lines and self._lines[0][0] <= seq + 1):
            return
        reads = self._past.after(seq, which)
        while (read := await in_thread(lambda: next(reads, None), abandon_on_cancel=True)) is not None:
            yield read

    async def oldest(self) -> Numbered | None:
        """The first line that is kept anywhere."""
        here = self._lines[0] if self._lines else None
        there = await in_thread(self._past.oldest, abandon_on_cancel=True) if self._past is not None else None
        return min(filter(None, (here, there)), key=itemgetter(0), default=None)

    async def number_at(self, wall_seconds: float) -> int:
        """The number of the last line before a time: the lines after it are those since then. A clock that was set back
        in between makes them more, never less."""
        time = rfc3339(wall_seconds)
        for seq, line in reversed(self._lines):
            if line["time"] < time:
                return seq
        past = self._past
        return await in_thread(lambda: past.number_at(time), abandon_on_cancel=True) if past is not None else 0

    async def about(self, job: int) -> list[Numbered]:
        """All that was decided about a job, oldest first."""
        which, past, before = Which(job=job), self._past, list[Numbered]()
        here = [numbered for numbered in self._lines if which.has(numbered[1])]
        if past is not None and not (here and here[0][1]["event"] in FIRST):
            before = await in_thread(lambda: past.about(job), abandon_on_cancel=True)
            here = [numbered for numbered in self._lines if which.has(numbered[1])]
        last = before[-1][0] if before else 0
        return before + [numbered for numbered in here if numbered[0] > last]

    async def news(self, seq: int) -> bool:
        """Wait for a line after number `seq`. False: the log is closed, and there is none."""
        while self.last_seq <= seq:
            if self._closed:
                return False
            self._is_awaited = True
            await self._changed.wait()
        return True

    async def follow(self, seq: int) -> AsyncIterator[Numbered]:
        """Every line after number `seq` with its number, for ever, or until the log is closed."""
        while await self.news(seq):
            for number, line in self.since(seq):
                seq = number
                yield number, line

    def _wake(self) -> None:
        if self._is_awaited:
            self._is_awaited = False
            self._changed.set()
            self._changed = trio.Event()
