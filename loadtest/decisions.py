"""The server's decision log, seen from outside: followed while a load runs, then read for what happened to each job.

Owns the meaning that a line has for a load test. Must never ask the server for anything else: the log is the proof, so
the marks are read from it and from the clients' own clocks alone.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from types import MappingProxyType
from typing import Self

import httpx
import trio

from loadtest.clients import counted, parsed, readable
from loadtest.sse import SseReader

EVENTS_PATH = "/api/events"
LOW_CLASSES = ("background", "batch")
LOOK_SECONDS = 60.0
"""The lines that there are take a server no minute; one that never gets to their end is not waited for."""
ENDINGS = ("complete", "cancel", "reject")
MOVES = "R9"
"""The rule by which a model's successor starts on another device while it still serves."""


@dataclass(frozen=True, slots=True)
class Line:
    """One decision. `time` is in seconds since the epoch, to the millisecond; `job` is None where it concerns none."""

    seq: int
    time: float
    event: str
    job: int | None
    job_class: str
    kind: str
    model: str
    rule: str
    step: int
    steps: int
    raw: Mapping[str, object]

    @classmethod
    def of(cls, raw: object) -> Self:
        """From the JSON object of the log. Raises ValueError for none, or for one without number, time or event."""
        if not isinstance(raw, dict):
            raise ValueError(f"no decision: {str(raw)[:100]}")  # noqa: TRY004 - one kind of fault: a line that is none
        seq, time, job = raw.get("seq"), raw.get("time"), raw.get("job")
        if not isinstance(seq, int) or not isinstance(time, str) or not isinstance(raw.get("event"), str):
            raise ValueError(f"no decision: {str(raw)[:100]}")  # noqa: TRY004 - one kind of fault: a line that is none
        return cls(
            seq=seq,
            time=datetime.fromisoformat(time).timestamp(),
            event=readable(str(raw["event"])),
            job=counted(job) if isinstance(job, int) else None,
            job_class=_word(raw, "class"),
            kind=_word(raw, "kind"),
            model=_word(raw, "model"),
            rule=_word(raw, "rule"),
            step=_count(raw, "step"),
            steps=_count(raw, "steps"),
            raw=raw,
        )

    @property
    def device(self) -> str:
        """The device that it is about, empty for none."""
        return _word(self.raw, "device")

    @property
    def instance(self) -> int:
        """The number of the process that it is about; 0 for none."""
        return _count(self.raw, "instance")

    @property
    def is_relief(self) -> bool:
        """A step that starvation let through (rules S5, S5a, S5b)."""
        return self.event == "dispatch" and self.rule.startswith("S5")


@dataclass(slots=True)
class Followed:
    """The lines so far, oldest first. `fault` says why no more come, if something broke."""

    lines: list[Line] = field(default_factory=list)
    fault: str = ""
    _changed: trio.Event = field(default_factory=trio.Event)

    async def follow(self, http: httpx.AsyncClient, *, since: int | None = None, once: bool = False) -> None:
        """Take every line after that number, or from the first on that the server has in memory, until cancelled or
        the server ends; `once`: those that there are."""
        reader = SseReader()
        headers = {"Accept": "text/event-stream"}
        query = {"follow": "0" if once else "1"} | ({"since": str(since)} if since is not None else {})
        nothing_may_happen = httpx.Timeout(10.0, read=None)
        try:
            with trio.move_on_after(LOOK_SECONDS if once else math.inf) as looking:
                async with http.stream(
                    "GET", EVENTS_PATH, params=query, headers=headers, timeout=nothing_may_happen
                ) as answer:
                    answer.raise_for_status()
                    async for chunk in answer.aiter_bytes():
                        self._take(reader, chunk)
            if looking.cancelled_caught:
                raise httpx.ReadTimeout(f"no end of it within {LOOK_SECONDS:.0f} s")
            self.fault = self.fault or ("" if once else "the decision log ended")
        except httpx.HTTPError as fault:
            self.fault = self.fault or f"the decision log broke off: {fault or type(fault).__name__}"
        self._wake()

    async def catch_up(self, http: httpx.AsyncClient, since: int) -> None:
        """The lines that there are after the last one, or after that number, also where following broke off: their
        numbers go on over a restart of the server."""
        rest = Followed()
        await rest.follow(http, since=self.lines[-1].seq if self.lines else since, once=True)
        self.lines += rest.lines
        self.fault = rest.fault

    def _take(self, reader: SseReader, chunk: bytes) -> None:
        """Add the lines that these bytes finish; after one that cannot be read, none."""
        if self.fault:
            return  # read on all the same: a body that is left in the middle is not closed in good order
        try:
            self.lines += [Line.of(parsed(data)) for data in reader.feed(chunk)]
        except ValueError as fault:
            self.fault = f"the decision log cannot be read: {fault}"
        self._wake()

    async def wait_for(self, found: Callable[[Line], bool], *, at_most_seconds: float) -> bool:
        """Wait until a line is there; False if it did not come in time or no more will."""
        with trio.move_on_after(at_most_seconds):
            while not any(map(found, self.lines)):
                if self.fault:
                    return False
                await self._changed.wait()
            return True
        return False

    def _wake(self) -> None:
        self._changed.set()
        self._changed = trio.Event()


@dataclass(frozen=True, slots=True)
class Counts:
    """What the server did during a load. A load is needless when the model had a process already, which was not stopped
    (one that drains may yet stay) and is not moved."""

    loads: int
    needless_loads: int
    evictions: int
    relief_steps: int


def counts_of(lines: Iterable[Line], living: Mapping[int, str] = MappingProxyType({})) -> Counts:
    """Count over some lines of the log, which begin where these processes live: their numbers, with their models."""
    loads = needless = evictions = relief = 0
    lives = dict(living)
    for line in lines:
        match line.event:
            case "start":
                lives = {}
            case "load":
                loads += 1
                needless += line.model in lives.values() and line.rule != MOVES
                lives[line.instance] = line.model
            case "stop" | "exit":
                lives.pop(line.instance, None)
            case "evict":
                evictions += 1
                lives.pop(line.instance, None)
            case "dispatch":
                relief += line.is_relief
    return Counts(loads, needless, evictions, relief)


def _word(raw: Mapping[str, object], key: str) -> str:
    return readable(str(raw.get(key, "")))


def _count(raw: Mapping[str, object], key: str) -> int:
    return counted(raw.get(key))
