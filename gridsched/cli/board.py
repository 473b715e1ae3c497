"""What `gridsched top` knows of a server: its status, the last decisions, and which class ran when.

Owns what is remembered, all of it bounded. Must never print.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from gridsched.cli.watching import Came, Failed, Gone, Line, News, Status

CLASSES = ("interactive", "background", "batch")
STRIP_SECONDS = 180.0
"""How much of the past the strip shows."""

KEPT_LINES, KEPT_RUNS = 200, 10_000
"""Lines; steps of each class."""

_BEGINS, _ENDS = "dispatch", frozenset(("step", "complete", "cancel", "abort", "reject"))
_LOSES_TRACK = ("start", "gap")
"""After these nobody knows what goes on from before."""


@dataclass(slots=True)
class Run:
    """A granted step: from when to when, by the server's clock; `until` None while it goes on."""

    since: float
    until: float | None = None


@dataclass(slots=True)
class Board:
    """The server at `server`, as told by `hear`."""

    server: str
    wall_seconds: Callable[[], float] = time.time
    version: str = ""
    status: Mapping[str, Any] | None = None
    gone_since: float | None = None
    lines: deque[Mapping[str, Any]] = field(default_factory=lambda: deque(maxlen=KEPT_LINES))
    runs: Mapping[str, deque[Run]] = field(default_factory=lambda: {name: deque(maxlen=KEPT_RUNS) for name in CLASSES})
    _running: dict[str, Run] = field(default_factory=dict)
    _ahead: float = 0.0

    def hear(self, news: News) -> None:
        """Take what has come."""
        match news:
            case Came(version, ahead):
                self.version, self._ahead, self.gone_since = version, ahead, None
            case Gone():
                self.gone_since = self.gone_since or self.now()
                self._all_end(self.now())
            case Status(told):
                self.status = told
            case Line(told):
                self._line(told)
            case Failed():
                pass  # nothing is known by it

    def now(self) -> float:
        """By the server's clock."""
        return self.wall_seconds() + self._ahead

    def ran(self, job_class: str, cells: int) -> list[int]:
        """How many steps of a class ran at once, at most, in each part of the last while, oldest first."""
        now = self.now()
        width = STRIP_SECONDS / cells
        begin = now - STRIP_SECONDS
        changes = [[0, 0] for _ in range(cells)]  # begun, ended in each
        at_first = 0
        for run in self.runs[job_class]:
            until = run.until if run.until is not None else now + width
            if until < begin or run.since > now:
                continue
            first, last = int((run.since - begin) // width), int((until - begin) // width)
            if first < 0:
                at_first += 1
            elif first < cells:
                changes[first][0] += 1
            if last < cells:
                changes[last][1] += 1
        return list(_levels(at_first, changes))

    def _line(self, told: Mapping[str, Any]) -> None:
        at = datetime.fromisoformat(str(told["time"])).timestamp()
        event, job = str(told["event"]), str(told.get("job", ""))
        if event in _LOSES_TRACK:
            self._all_end(at)
        elif event == _BEGINS and job and (runs := self.runs.get(str(told.get("class", "")))) is not None:
            run = self._running[job] = Run(at)
            runs.append(run)
            while runs[0].until is not None and runs[0].until < at - STRIP_SECONDS:
                runs.popleft()
        elif event in _ENDS and (ended := self._running.pop(job, None)) is not None:
            ended.until = at
        self.lines.append(told)

    def _all_end(self, at: float) -> None:
        for run in self._running.values():
            run.until = at
        self._running.clear()


def _levels(level: int, changes: list[list[int]]) -> Iterator[int]:
    for begun, ended in changes:
        level += begun
        yield level
        level -= ended
