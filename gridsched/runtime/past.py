"""The decision log on the disk: what is older than the lines that are kept in memory, and what runs before have said.

Owns how the files are read: in which order, from where on, and how much at once. Everything here but `keep` blocks: it
is done before the server serves, or in a thread. Must never be what the log itself waits for.
"""

import re
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from itertools import chain, islice
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from gridsched.store.rotated import Bounds, Rotated, blocks_of, lines_back

FILE = "decisions.jsonl"
BOUNDS = Bounds(max_bytes=8 * 2**20, files=8, most_waiting=10_000)
"""64 MiB: a quarter of a million lines, some days of a desk, half an hour of a busy machine. In memory a second of the
heaviest burst, while the disk stands."""

ANSWERED_BYTES = 4 * 2**20
"""A thread comes back with what it has found after it has looked through so much."""

MOST_ABOUT = 10_000
"""Lines about one job: of the longest there is every one."""

FIRST = frozenset(("enqueue", "reject"))
"""With one of these begins what is said of a job."""

Row = Mapping[str, Any]  # Any: what JSON can hold
Numbered = tuple[int, Row]

HIGHEST = 2**63 - 1
"""Of a line or a job: a number above it is none of ours."""

_JOB = re.compile(rb'"job":(\d{1,18})(?!\d)')
_TEXTS = ("class", "kind", "model", "device", "rule", "held", "why")
_COUNTS = ("job", "step", "steps", "after")
_FIGURES = ("ms", "queue_ms")
"""What is read in a line later on, each of one type: a line that has it otherwise is damaged."""


@dataclass(frozen=True, slots=True)
class Which:
    """Which lines somebody wants to read: all that have each of these. `model` is a model's own name."""

    events: frozenset[str] = frozenset()
    job_class: str | None = None
    model: str | None = None
    job: int | None = None

    def has(self, line: Row) -> bool:
        """Whether a line is one of them."""
        return (
            (not self.events or line["event"] in self.events)
            and (self.job_class is None or line.get("class") == self.job_class)
            and (self.model is None or line.get("model") == self.model)
            and (self.job is None or line.get("job") == self.job)
        )

    def marks(self) -> tuple[bytes, ...]:
        """What is in the text of each of them: looked for before a line is taken to pieces."""
        asked = {"class": self.job_class, "model": self.model, "job": self.job}
        return tuple(msgspec.json.encode({key: value})[1:-1] for key, value in asked.items() if value is not None)


ALL = Which()


@dataclass(frozen=True, slots=True)
class Read:
    """Lines that were looked for, and the number of the last that was looked at."""

    last: int
    found: list[Numbered]


class Past:
    """The files of one data directory."""

    def __init__(self, path: Path, say: Callable[[str], None], bounds: Bounds = BOUNDS) -> None:
        self._rows = Rotated(path, say, bounds)

    @property
    def lost(self) -> int:
        """How many lines the disk did not take in this run."""
        return self._rows.lost

    def keep(self, line: Row) -> None:
        """Have a line written. Never waits."""
        self._rows.put(line)

    def close(self) -> None:
        """Have what waits written, for as long as that is reasonable."""
        self._rows.close()

    def newest(self, most: int) -> list[Numbered]:
        """The last lines, oldest first."""
        return list(islice(self._back(), most))[::-1]

    def last_job(self, newest: list[Numbered]) -> int:
        """The highest number of a job; these are the last lines, which tell it where one begins in them."""
        if any(line["event"] in FIRST and "job" in line for _, line in newest):
            return max(int(line.get("job", 0)) for _, line in newest)
        with self._rows.opened() as files:
            blocks = chain.from_iterable(map(blocks_of, files))
            return max((int(job) for block in blocks for job in _JOB.findall(block)), default=0)

    def oldest(self) -> Numbered | None:
        """The first line that is kept."""
        waiting = self._rows.waiting()
        with self._rows.opened() as files:
            written = next(filter(None, map(_head, reversed(files))), None)
        return written or next(((row["seq"], row) for row in waiting), None)

    def number_at(self, time: str) -> int:
        """The number of the last line that is older than a time, as the lines have it; 0 where none is. Where the clock
        was set back the lines before that look younger: they are among those after it."""
        for row in reversed(self._rows.waiting()):
            if row["time"] < time:
                return int(row["seq"])
        with self._rows.opened() as files:
            for file in files:
                head = _head(file)
                if head is not None and head[1]["time"] < time:
                    lines = filter(None, map(numbered, lines_back(file)))
                    return next((seq for seq, line in lines if line["time"] < time), head[0])
        return 0

    def after(self, seq: int, which: Which) -> Iterator[Read]:
        """The lines after a number, oldest first, some at a time; few where few are wanted."""
        waiting: list[Numbered] = [(row["seq"], row) for row in self._rows.waiting()]
        marks, last, size, found = which.marks(), seq, 0, list[Numbered]()
        with self._rows.opened() as files:
            for block in chain.from_iterable(map(blocks_of, reversed(_from(files, seq)))):
                ends = _end_of(block)
                if ends > last:
                    found += [line for line in _marked(block, marks) if line[0] > last and which.has(line[1])]
                    last = ends
                size += len(block)
                if found or size >= ANSWERED_BYTES:
                    yield Read(last, found)
                    size, found = 0, []
        rest = [each for each in waiting if each[0] > last]
        found += [line for line in rest if which.has(line[1])]
        yield Read(rest[-1][0] if rest else last, found)

    def about(self, job: int) -> list[Numbered]:
        """All lines about one job, oldest first; the last ones of too many."""
        found = deque[Numbered](maxlen=MOST_ABOUT)
        for read in self.after(0, Which(job=job)):
            found += read.found
        return list(found)

    def _back(self) -> Iterator[Numbered]:
        with self._rows.opened() as files:
            yield from filter(None, map(numbered, chain.from_iterable(map(lines_back, files))))


def _from(files: list[BinaryIO], seq: int) -> list[BinaryIO]:
    """Those files, newest first, in which there can be lines after a number."""
    chosen: list[BinaryIO] = []
    for file in files:
        chosen.append(file)
        head = _head(file)
        if head is not None and head[0] <= seq + 1:
            break
    return chosen


def _end_of(block: bytes) -> int:
    """The number of a block's last line; 0 where it has none."""
    end = len(block)
    while end > 0:
        begin = block.rfind(b"\n", 0, end - 1) + 1
        if (line := numbered(block[begin:end])) is not None:
            return line[0]
        end = begin
    return 0


def _marked(block: bytes, marks: tuple[bytes, ...]) -> Iterator[Numbered]:
    """The lines of a block that have these marks. Most blocks have none, and are not taken apart."""
    if all(mark in block for mark in marks):
        wanted = (line for line in block.splitlines() if all(mark in line for mark in marks))
        yield from filter(None, map(numbered, wanted))


def _head(file: BinaryIO) -> Numbered | None:
    """The first line of a file, which is then to be read from its beginning."""
    lines = chain.from_iterable(block.splitlines() for block in blocks_of(file))
    head = next(filter(None, map(numbered, lines)), None)
    file.seek(0)
    return head


def numbered(text: bytes) -> Numbered | None:
    """A line with its number; None for what is none, such as one half written, or one that a disk has changed."""
    try:
        line = msgspec.json.decode(text)
        seq, at, event = line["seq"], datetime.fromisoformat(line["time"]), line["event"]
    except (msgspec.MsgspecError, ValueError, RecursionError, LookupError, TypeError):
        return None
    is_ours = (
        _is_count(seq)
        and at.tzinfo is not None
        and isinstance(event, str)
        and all(isinstance(line[name], str) for name in _TEXTS if name in line)
        and all(_is_count(line[name]) for name in _COUNTS if name in line)
        and all(isinstance(line[name], float | int) for name in _FIGURES if name in line)
    )
    return (seq, line) if is_ours else None


def _is_count(value: object) -> bool:
    return isinstance(value, int) and 0 <= value <= HIGHEST
