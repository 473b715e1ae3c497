"""The folder of files that clients handed in or get back, and the answers of a batch while it runs.

Owns their names on disk, and that each is whole: a file that is still coming has `.part` behind its name, a batch that
still runs `.output` and `.errors`. Every call blocks and may raise OSError. Must never remove what a record names.
"""

import errno
import os
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Final

import msgspec

COMING: Final = ".part"
RUNNING: Final = (".output", ".errors")
"""Behind a batch's id: lines that were answered well, and the others."""

FULL: Final = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EFBIG))
"""What a disk says that takes no byte more, or no more of this user's, or not in one file."""


class _Answered(msgspec.Struct):
    """What is read of a line of answers."""

    id: str


class Folder:
    """The folder. Nothing is done before it is opened."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def open(self, known: Collection[str]) -> int:
        """Make the folder. What was coming when a server was killed is kept where it is in `known`, for then it had
        come whole, and else removed. How many files there are that no name in `known` is: they stay, because the
        records may have been lost and not the files."""
        self._path.mkdir(mode=0o700, exist_ok=True)
        names = {path.name for path in self._path.iterdir()}
        for name in names:
            if name.endswith(COMING):
                file_id = name.removesuffix(COMING)
                if file_id in known:
                    self.keep(file_id)
                else:
                    self.path(name).unlink(missing_ok=True)
        return sum(not name.endswith(COMING) for name in names - set(known))

    def path(self, file_id: str) -> Path:
        """Where a file is. An id is one of ours: no path can be made of it."""
        return self._path / file_id

    def begin(self, file_id: str) -> BinaryIO:
        """A file that is coming."""
        return os.fdopen(
            os.open(self.path(file_id + COMING), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb", 0
        )

    def keep(self, file_id: str) -> None:
        """A file that has come."""
        self.path(file_id + COMING).replace(self.path(file_id))

    def drop(self, name: str) -> None:
        """Remove a file, if it is there, whether it has come or not."""
        for each in (name + COMING, name):
            self.path(each).unlink(missing_ok=True)

    def answers(self, batch_id: str) -> "Answers":
        """The answers of a batch so far."""
        return Answers(*(_Journal(self.path(batch_id + end)) for end in RUNNING))


@dataclass(slots=True)
class Answers:
    """The answers that a batch has. A line has been answered once its answer is in one of the files, whole: that is the
    only record of it, so a server that is killed leaves no line between two."""

    well: "_Journal"
    badly: "_Journal"

    def open(self) -> tuple[set[int], set[int]]:
        """The numbers of the lines that have been answered, well and badly. An answer that is not whole is none."""
        return self.well.open(), self.badly.open()

    def close(self) -> None:
        """Finish with the files."""
        self.well.close()
        self.badly.close()

    def remove(self) -> None:
        """They are not wanted."""
        self.close()
        for each in (self.well, self.badly):
            each.path.unlink(missing_ok=True)


@dataclass(slots=True)
class _Journal:
    """A file that grows by whole lines."""

    path: Path
    _fd: int = field(default=-1, init=False)
    _length: int = field(default=0, init=False)

    def open(self) -> set[int]:
        """The numbers in its lines. What is behind the last whole one is cut off."""
        self.close()
        self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        numbers, self._length = set(), 0
        with os.fdopen(os.dup(self._fd), "rb") as file:
            for number, length in _whole_lines(file):
                numbers.add(number)
                self._length += length
        self._cut()
        return numbers

    def append(self, lines: bytes) -> None:
        """Add whole lines: all of them or none. Where that fails the rest of them is cut off."""
        try:
            view = memoryview(lines)
            while view:
                view = view[os.pwrite(self._fd, view, self._length + len(lines) - len(view)) :]
        except OSError:
            with suppress(OSError):
                self._cut()
            raise
        self._length += len(lines)

    def finish(self, to: Path) -> int:
        """Make it a file of its own, on the disk; how long it is. One that is empty is removed. What a server that was
        killed meanwhile had done of it is not done again."""
        self.close()
        if self.path.exists():
            if self.path.stat().st_size:
                with self.path.open("rb") as file:
                    os.fsync(file.fileno())
                self.path.replace(to)
            else:
                self.path.unlink()
        return to.stat().st_size if to.exists() else 0

    def close(self) -> None:
        """Finish with the file."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _cut(self) -> None:
        os.ftruncate(self._fd, self._length)


def _whole_lines(file: BinaryIO) -> Iterator[tuple[int, int]]:
    """The number of each line's request, and its length, up to the first that is not whole."""
    for line in file:
        try:
            number = int(msgspec.json.decode(line, type=_Answered).id.rpartition("_")[2])
        except (msgspec.MsgspecError, ValueError):
            return
        if not line.endswith(b"\n"):
            return
        yield number, len(line)
