"""A file of JSON lines that only grows, rotated by size: written by a thread of its own, read newest first.

Owns the numbers of the rows (`seq`), which go on over a restart. Whoever writes never waits: rows lie in memory until
the disk has them. What the disk does not take is counted, said once, and told in the file where it goes on.
"""

import json
import os
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec

from gridsched.threads import begin

MAX_BYTES = 4 * 2**20
KEPT = 4
"""Files: the one that is written, and older ones."""

MOST_WAITING = 2000
RECENT = 1000
"""Rows that are also kept in memory: a reader sees what the disk has not got yet."""

CLOSE_SECONDS = 5.0

Row = dict[str, Any]  # Any: what JSON can hold


class Journal:
    """One such file. Nothing is opened before the first row."""

    def __init__(self, path: Path, say: Callable[[str], None], max_bytes: int = MAX_BYTES) -> None:
        """Blocks: the last number is read."""
        self.path = path
        self._say = say
        self._max_bytes = max_bytes
        self._waiting: queue.Queue[Row | None] = queue.Queue(MOST_WAITING)
        self._recent: deque[Row] = deque(maxlen=RECENT)
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._lost = 0
        self._refused = False
        self._seq = next((int(row["seq"]) for row in self._kept()), 0)

    def write(self, row: Mapping[str, object]) -> int:
        """Have a row written: its number. Never waits, and never raises."""
        with self._lock:
            self._seq += 1
            numbered: Row = {"seq": self._seq, **row}
            self._recent.append(numbered)
            try:
                if self._thread is None:
                    thread = threading.Thread(target=self._run, name="journal", daemon=True)
                    begin(thread)
                    self._thread = thread
                self._waiting.put_nowait(numbered)
            except (queue.Full, OSError):
                self._lost += 1
            return self._seq

    def read(self, before: int | None, limit: int) -> tuple[list[Row], int | None]:
        """Rows with numbers below `before`, newest first, and the number to go on with; None at the end. Blocks."""
        found: dict[int, Row] = {}
        for row in chain(reversed(tuple(self._recent)), self._kept()):
            if before is None or row["seq"] < before:
                found.setdefault(row["seq"], row)
            if len(found) > limit:
                break
        rows = [found[seq] for seq in sorted(found, reverse=True)[: limit + 1]]
        more = len(rows) > limit
        return rows[:limit], int(rows[limit - 1]["seq"]) if more and limit else None

    def close(self) -> None:
        """Have what waits written, for as long as that is reasonable. Blocks."""
        with self._lock:
            thread, self._thread = self._thread, None
        if thread is not None:
            with suppress(queue.Full):
                self._waiting.put(None, timeout=CLOSE_SECONDS)
            thread.join(CLOSE_SECONDS)

    # --- the thread ---

    def _run(self) -> None:
        while (row := self._waiting.get()) is not None:
            self._append(row)

    def _append(self, row: Row) -> None:
        with self._lock:
            lost, self._lost = self._lost, 0
        if lost:
            row = {**row, "lost_before": lost}
        line = msgspec.json.encode(row, enc_hook=str) + b"\n"
        try:
            with open(self.path, "ab", opener=_ours) as file:
                file.write(line)
                size = file.tell()
            if size >= self._max_bytes:
                self._rotate()
        except OSError as error:
            with self._lock:
                self._lost += lost + 1
            if not self._refused:
                self._say(f"{self.path} cannot be written ({error.strerror}): what it should hold is lost")
            self._refused = True
        else:
            self._refused = False

    def _rotate(self) -> None:
        files = list(self._files())
        for older, newer in zip(reversed(files), reversed(files[:-1]), strict=False):
            with suppress(FileNotFoundError):
                newer.replace(older)

    # --- what is kept ---

    def _files(self) -> Iterator[Path]:
        """Newest first."""
        yield self.path
        yield from (self.path.with_name(f"{self.path.name}.{number}") for number in range(1, KEPT))

    def _kept(self) -> Iterator[Row]:
        """Rows on the disk, newest first; a line that is none, such as one half written, is passed over."""
        for path in self._files():
            try:
                lines = path.read_bytes().split(b"\n")
            except OSError:
                continue
            for line in reversed(lines):
                with suppress(ValueError, RecursionError):
                    row = json.loads(line)
                    if isinstance(row, dict) and isinstance(row.get("seq"), int):
                        yield row


def _ours(path: str, flags: int) -> int:
    """Nobody else may read it; a link or a pipe in its place is not written through."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
