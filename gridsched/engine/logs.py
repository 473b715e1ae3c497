"""What a process prints: read as bytes for its whole life, kept in a rotated file and, the last lines, in memory (P7).

A plain thread for each process does all of it, so that neither a slow disk nor a flood of output can hold up the loop,
and a process can never block because nobody reads (its pipe holds 64 KiB). Must never parse lines for meaning: ready is
what the engine answers, not what it prints. Lines that `accounting` is interested in are set aside for it; secrets are
hidden before anything is kept.
"""

import contextlib
import fcntl
import hashlib
import logging
import os
import re
import select
import struct
import termios
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

from gridsched.engine.accounting import MOST_LINES, is_of_interest
from gridsched.engine.redact import redacted
from gridsched.threads import begin

MAX_LINE_BYTES = 8 * 1024
TAIL_LINES = 100
TAIL_LINE_CHARS = 2_000
READ_BYTES = 64 * 1024
LONGEST_NAME = 180  # of a file, in characters; what is added to it has to go into 255 bytes too
MOST_TOLD_BYTES = 1024 * 1024
LONGEST_ROW = 10
"""Files that a log is kept in, at most."""
REFILL_BYTES_A_SECOND = 1024 * 1024
"""What a log may grow by for good; a whole set of files may come at once. More only writes over what is new."""

_log = logging.getLogger(__name__)

DRAIN_READS = 64  # after the exit: at most 4 MiB more; a grandchild may hold the pipe open and print for ever


class LineSplitter:
    """Cuts bytes into lines of at most `MAX_LINE_BYTES`, the same ones however the bytes were segmented."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """The lines that are now complete, without their ends."""
        *whole, rest = (self._rest + data).split(b"\n")
        lines: list[bytes] = []
        for line in whole:
            lines.extend(_cut(line) or [b""])
        *full, self._rest = _cut(rest) or [b""]
        return lines + full

    def end(self) -> list[bytes]:
        """The last line, if it was never ended."""
        rest, self._rest = self._rest, b""
        return [rest] if rest else []


def _cut(line: bytes) -> list[bytes]:
    return [line[start : start + MAX_LINE_BYTES] for start in range(0, len(line), MAX_LINE_BYTES)]


def file_name(name: str) -> str:
    """The log file of a name: the name itself where a file may be called so; else, so that no two names share a file,
    with a mark of what it was."""
    plain = re.sub(r"[^\w.@+-]", "_", name, flags=re.ASCII).lstrip(".")[:LONGEST_NAME]
    mark = (
        "" if plain == name != "" else "-" + hashlib.blake2s(name.encode("utf-8", "replace"), digest_size=4).hexdigest()
    )
    return f"{plain}{mark}.log"


class RotatedLog:
    """A log file with a limit: at `max_bytes` it becomes `.1`, `.1` becomes `.2`, and the one after `keep` is dropped.

    It is opened for each block and closed again: no descriptor is held for a model that is not loaded, several
    processes of one model may write in turn, and a file removed by a person simply begins anew. Neither a disk that
    refuses nor a flood hurts the process: lines that the disk does not take, or that come faster than the files can
    hold (M3), are counted in `lost_lines`, and the file says how many are missing where it goes on.
    """

    def __init__(
        self,
        path: Path,
        max_bytes: int = 4 * 1024 * 1024,
        keep: int = 3,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.path = path
        self.lost_lines = 0
        self._max_bytes = max_bytes
        self._keep = keep
        self._clock = clock
        self._allowed = self._most_bytes = float(max_bytes * (keep + 1))
        self._allowed_at = clock()
        self._unsaid = 0
        self._refused = False
        self._lock = threading.Lock()

    def append(self, block: str) -> None:
        """Write a block of whole lines; rotate afterwards if the limit is reached."""
        with self._lock:
            if not (self._may(len(block)) and self._write(self._gap() + block)):
                lines = block.count("\n")
                self.lost_lines += lines
                self._unsaid += lines
            else:
                self._unsaid = 0

    def end(self) -> None:
        """Nothing more is coming for now: say what is missing."""
        with self._lock:
            if self._unsaid and self._write(self._gap()):
                self._unsaid = 0

    def _may(self, size: int) -> bool:
        now = self._clock()
        refilled = self._allowed + (now - self._allowed_at) * REFILL_BYTES_A_SECOND
        self._allowed, self._allowed_at = min(self._most_bytes, refilled), now
        if self._allowed < size:
            return False
        self._allowed -= size
        return True

    def _gap(self) -> str:
        return f"[gridsched: lines are missing here: {self._unsaid}]\n" if self._unsaid else ""

    def _write(self, text: str) -> bool:
        """Whether it is in the file now."""
        try:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(text)
                size = file.tell()
            if size >= self._max_bytes:
                self._rotate()
        except OSError as error:
            if not self._refused:
                _log.warning("%s cannot be written (%s): what the engine prints is lost", self.path, error.strerror)
            self._refused = True
            return False
        self._refused = False
        return True

    def _rotate(self) -> None:
        for number in range(self._keep - 1, 0, -1):
            with contextlib.suppress(FileNotFoundError):
                self._older(number).replace(self._older(number + 1))
        self.path.replace(self._older(1))

    def _older(self, number: int) -> Path:
        return self.path.with_name(f"{self.path.name}.{number}")


def last_lines(path: Path, count: int) -> list[str]:
    """The last lines of a log and of the files that it was before, oldest first; none where there is no log. Bounded in
    bytes as well. Blocks for as long as the disk does. Raises OSError."""
    found: list[str] = []
    left = MOST_TOLD_BYTES
    older = (path.with_name(f"{path.name}.{number}") for number in range(1, LONGEST_ROW))
    for file in (path, *older):
        if len(found) >= count or left <= 0:
            break
        if not file.exists():
            continue  # the newest has just become the one before
        text, whole = _end_of(file, left)
        lines = text.split("\n")
        if not whole:
            lines = lines[1:]  # it was cut
        found = [*lines[-(count - len(found)) :], *found]
        left -= len(text)
    return [redacted(line) for line in found]


def _end_of(file: Path, most_bytes: int) -> tuple[str, bool]:
    """The end of a file, without its last line's, and whether that is all of it."""
    with file.open("rb") as opened:
        size = opened.seek(0, os.SEEK_END)
        opened.seek(max(0, size - most_bytes))
        return opened.read(most_bytes).decode("utf-8", "replace").removesuffix("\n"), size <= most_bytes


class OutputReader:
    """The thread that reads one process's pipe. Owns the pipe's read end, also where there is no thread (OSError)."""

    def __init__(self, pipe_fd: int, log: RotatedLog) -> None:
        self._pipe_fd = pipe_fd
        self._log = log
        self._tail: deque[str] = deque(maxlen=TAIL_LINES)
        self._accounts: list[str] = []
        self._reading = False
        self._splitter = LineSplitter()
        self._thread = threading.Thread(target=self._run, name="engine-output", daemon=True)
        with contextlib.ExitStack() as undo:
            undo.callback(os.close, pipe_fd)
            self._exited_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
            undo.callback(os.close, self._exited_fd)
            os.set_blocking(pipe_fd, False)
            begin(self._thread)
            undo.pop_all()

    def tail(self) -> tuple[str, ...]:
        """The last lines, oldest first."""
        return tuple(self._tail.copy())

    def accounts(self) -> tuple[str, ...]:
        """The first lines about memory, oldest first."""
        return tuple(self._accounts)

    def caught_up(self) -> bool:
        """Whether everything printed until now has been taken in."""
        if not self._thread.is_alive():
            return True
        try:
            # The pipe is asked first: the thread says that it reads before it does.
            unread = fcntl.ioctl(self._pipe_fd, termios.FIONREAD, bytes(4))
        except OSError:
            return True  # the thread has just ended
        return struct.unpack("i", unread) == (0,) and not self._reading

    def finish(self) -> None:
        """The process is gone: read what still lies in the pipe, then end. Blocks for a moment; returns when done.

        The pipe's own end is not waited for: a grandchild may hold it open.
        """
        os.eventfd_write(self._exited_fd, 1)
        self._thread.join()
        os.close(self._exited_fd)

    def _run(self) -> None:
        poll = select.poll()
        poll.register(self._pipe_fd, select.POLLIN)
        poll.register(self._exited_fd, select.POLLIN)
        while self._exited_fd not in {fd for fd, _ in poll.poll()}:
            if self._read() == b"":
                break
        for _ in range(DRAIN_READS):
            if not self._read():
                break
        self._keep(self._splitter.end())
        self._log.end()
        os.close(self._pipe_fd)

    def _read(self) -> bytes | None:
        """What was read and kept: None when there is nothing now, b"" at the pipe's end."""
        self._reading = True
        try:
            data = os.read(self._pipe_fd, READ_BYTES)
            self._keep(self._splitter.feed(data))
        except BlockingIOError:
            return None
        finally:
            self._reading = False
        return data

    def _keep(self, lines: list[bytes]) -> None:
        if not lines:
            return
        text = redacted(b"\n".join(lines).decode("utf-8", "replace").replace("\r", ""))
        self._tail.extend(line[:TAIL_LINE_CHARS] for line in text.rsplit("\n", TAIL_LINES)[-TAIL_LINES:])
        if len(self._accounts) < MOST_LINES and is_of_interest(text):
            self._accounts += filter(is_of_interest, text.split("\n"))
            del self._accounts[MOST_LINES:]
        self._log.append(text + "\n")
