"""JSON rows in a file that only grows, rotated by size: written by a thread of its own, so that whoever writes never
waits.

Owns the files, their bound, and what is lost: rows lie in memory until the disk has them, a bounded number; one more is
counted, and the next that there is room for says how many are missing before it. A disk that refuses is said once and
asked again. Must never know what a row means.
"""

import errno
import os
import stat
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from gridsched.threads import begin

PAUSE_SECONDS = 0.02
"""Between two writes: a burst goes in few, and a killed process loses no more than what came in this time."""

RETRY_SECONDS = 1.0
CLOSE_SECONDS = 5.0
AT_ONCE = 2000
BLOCK_BYTES = 256 * 1024


@dataclass(frozen=True, slots=True)
class Bounds:
    """How much is kept: so many files, the one that is written among them, of so many bytes (and a row) each; and so
    many rows in memory that the disk has not got yet."""

    max_bytes: int = 4 * 2**20
    files: int = 4
    most_waiting: int = 2000


USUAL = Bounds()

Row = Mapping[str, Any]  # Any: what JSON can hold


class Rotated:
    """One such file and its older ones. Nothing is opened before the first row."""

    def __init__(self, path: Path, say: Callable[[str], None], bounds: Bounds = USUAL) -> None:
        self.path = path
        self.lost = 0
        self._say = say
        self._bounds = bounds
        self._waiting: deque[Row] = deque()
        self._missing = 0
        self._lock = threading.Lock()
        self._news = threading.Event()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._refused = False

    def put(self, row: Row) -> None:
        """Have a row written, which nobody changes any more. Never waits for the disk, and never raises."""
        with self._lock:
            if not self._is_begun() or len(self._waiting) >= self._bounds.most_waiting:
                self.lost += 1
                self._missing += 1
                return
            if self._missing:
                row = {**row, "lost_before": self._missing}
                self._missing = 0
            self._waiting.append(row)
        if not self._news.is_set():
            self._news.set()

    def waiting(self) -> tuple[Row, ...]:
        """Rows that the disk may not have yet, oldest first. Whoever reads the files too asks for these before."""
        with self._lock:
            return tuple(self._waiting)

    def close(self) -> None:
        """Have what waits written, for as long as that is reasonable. Blocks."""
        with self._lock:
            thread, self._thread = self._thread, None
        if thread is not None:
            self._ended.set()
            self._news.set()
            thread.join(CLOSE_SECONDS)

    @contextmanager
    def opened(self) -> Iterator[list[BinaryIO]]:
        """The files, newest first. Opened together, so that a rotation meanwhile leaves none out and has none read
        twice. Blocks."""
        found: dict[int, BinaryIO] = {}
        with ExitStack() as files:
            for path in self._files():
                with suppress(OSError):
                    file = files.enter_context(open(path, "rb", opener=_ours))
                    found.setdefault(os.fstat(file.fileno()).st_ino, file)
            yield list(found.values())

    def _is_begun(self) -> bool:
        """Whether there is a thread that writes."""
        if self._thread is None:
            ended = self._ended = threading.Event()
            thread = threading.Thread(target=self._run, args=(ended,), name=f"rows of {self.path.name}", daemon=True)
            try:
                begin(thread)
            except OSError:
                return False
            self._thread = thread
        return True

    # --- the thread ---

    def _run(self, ended: threading.Event) -> None:
        took = True
        while not (ended.is_set() and (not took or not self._waiting)):
            self._news.wait()
            self._news.clear()
            took = self._write()
            ended.wait(PAUSE_SECONDS if took else RETRY_SECONDS)
            if self._waiting:
                self._news.set()

    def _write(self) -> bool:
        """Some of what waits. False where the disk does not take it."""
        with self._lock:
            some = list(islice(self._waiting, AT_ONCE))
        if not some:
            return True
        try:
            written = self._append(some)
        except OSError as error:
            if not self._refused:
                self._say(f"{self.path} cannot be written ({error.strerror}): what it should hold may be lost")
            self._refused = True
            return False
        self._refused = False
        with self._lock:
            for _ in range(written):
                self._waiting.popleft()
        return True

    def _append(self, some: list[Row]) -> int:
        """As many of them as the file has room for, one at least. All of that or nothing, where the disk lets us."""
        size = self.path.stat().st_size if self.path.exists() else 0
        if size >= self._bounds.max_bytes:
            self._rotate()
        with open(self.path, "a+b", buffering=0, opener=_ours) as file:
            size = file.seek(0, os.SEEK_END)
            lines = [] if not size or _last_byte(file, size) == b"\n" else [b"\n"]
            room, count = self._bounds.max_bytes - size, 0
            for row in some:
                lines.append(msgspec.json.encode(row, enc_hook=str) + b"\n")
                room, count = room - len(lines[-1]), count + 1
                if room <= 0:
                    break
            try:
                _write_all(file, b"".join(lines))
            except OSError:
                with suppress(OSError):
                    file.truncate(size)
                raise
        return count

    def _rotate(self) -> None:
        files = self._files()
        for older, newer in zip(reversed(files), reversed(files[:-1]), strict=False):
            with suppress(FileNotFoundError):
                newer.replace(older)

    def _files(self) -> list[Path]:
        """Newest first."""
        older = (self.path.with_name(f"{self.path.name}.{number}") for number in range(1, self._bounds.files))
        return [self.path, *older]


def blocks_of(file: BinaryIO) -> Iterator[bytes]:
    """A file's lines from its first on, many at a time; what is half written at its end is one of them. Blocks."""
    while block := file.read(BLOCK_BYTES):
        yield block if block.endswith(b"\n") else block + file.readline()


def lines_back(file: BinaryIO) -> Iterator[bytes]:
    """A file's lines, the last first. Blocks."""
    file.seek(0)
    yield from reversed(file.read().splitlines())


def _write_all(file: BinaryIO, data: bytes) -> None:
    done = 0
    while done < len(data):
        done += file.write(data[done:])


def _last_byte(file: BinaryIO, size: int) -> bytes:
    file.seek(size - 1)
    return file.read(1)


def _ours(path: str, flags: int) -> int:
    """Nobody else may read it; a link, a pipe or a device in its place is neither written nor read."""
    opened = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
    if stat.S_ISREG(os.fstat(opened).st_mode):
        return opened
    os.close(opened)
    raise OSError(errno.ENOTSUP, "it is no file", path)
