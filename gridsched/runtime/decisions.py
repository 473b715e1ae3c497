"""The decision log: every `Log` command as one JSON-shaped line, in order, with a number and the wall time.

Owns the lines that are kept (a bounded number; older ones are dropped) and wakes those who follow. Must never block
the actor: a follower that is slow misses nothing that is still kept, and nobody waits for it.
"""

from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from datetime import UTC, datetime
from itertools import islice

import trio

from gridsched.core.commands import Log

KEPT_LINES = 10_000
"""About an hour of a busy machine, 5 MB. A guess: the newest line matters most."""

Line = Mapping[str, object]


def rfc3339(wall_seconds: float) -> str:
    """A UTC time to the millisecond."""
    moment = datetime.fromtimestamp(wall_seconds, UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{moment.microsecond // 1000:03d}Z"


def line_of(log: Log, wall_seconds: float, seq: int | None = None) -> Line:
    """The contract's JSON object: `seq` in the log itself, `time`, `event`, then what the decision concerns, empty
    fields left out."""
    named: dict[str, object | None] = {
        "class": log.job_class.label if log.job_class is not None else None,
        "job": log.job_id,
        "kind": log.kind.value if log.kind is not None else None,
        "model": log.model,
        "device": log.device,
        "step": log.step,
        "steps": log.steps,
        "rule": log.rule,
    }
    line: dict[str, object] = {} if seq is None else {"seq": seq}
    line |= {"time": rfc3339(wall_seconds), "event": log.event.value}
    line.update((key, value) for key, value in named.items() if value is not None)
    line.update(log.figures)
    return line


class DecisionLog:
    """The kept lines and those who follow them. `sink` sees every line as it is made."""

    def __init__(self, sink: Callable[[Line], None] | None = None) -> None:
        self._sink = sink
        self._lines: deque[tuple[int, Line]] = deque(maxlen=KEPT_LINES)
        self._changed = trio.Event()
        self._closed = False
        self.last_seq = 0

    def add(self, log: Log, wall_seconds: float) -> None:
        """Number and keep one decision, made at this time: all of one step's have the same."""
        self.last_seq += 1
        line = line_of(log, wall_seconds, self.last_seq)
        self._lines.append((self.last_seq, line))
        if self._sink is not None:
            self._sink(line)
        self._wake()

    def close(self) -> None:
        """End every follower."""
        self._closed = True
        self._wake()

    def since(self, seq: int, most: int = KEPT_LINES) -> list[tuple[int, Line]]:
        """The kept lines after number `seq` with their numbers, oldest first, and no more than `most`."""
        newest = list(islice(reversed(self._lines), max(0, self.last_seq - seq)))
        newest.reverse()
        return newest[:most]

    async def news(self, seq: int) -> bool:
        """Wait for a line after number `seq`. False: the log is closed, and there is none."""
        while self.last_seq <= seq:
            if self._closed:
                return False
            await self._changed.wait()
        return True

    async def follow(self, seq: int) -> AsyncIterator[tuple[int, Line]]:
        """Every line after number `seq` with its number, for ever, or until the log is closed."""
        while await self.news(seq):
            for number, line in self.since(seq):
                seq = number
                yield number, line

    def _wake(self) -> None:
        self._changed.set()
        self._changed = trio.Event()
