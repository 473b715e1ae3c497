"""Brings one file of the hub to disk: from where an earlier try broke off, and checked before anybody reads it.

Owns the partial file: its bytes, its lock, what is thrown away. What came is kept when the hub breaks off, when
somebody stops it and when this process is killed; it is thrown away only when it is wrong. `huggingface_hub` 2.4 keeps
nothing of a download that broke off (each try has a file of its own), so that the ranges are asked for here, over its
session. Must never give a file its own name: that is done when all of a model's files are whole (`shelf`).

Blocks for as long as the hub does. Raises HubError, Stopped, and OSError where the disk refuses.
"""

import fcntl
import hashlib
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Protocol

from gridsched.library.hub import Hub, HubError, HubFile, Trouble

if TYPE_CHECKING:
    import httpx2

WINDOW_BYTES = 8 << 30
"""How much is asked for at once: the hub gives no more than 50 GB in one answer, and its addresses expire in time."""

PIECE_BYTES = 1 << 20
MOST_TRIES = 6
"""Tries in a row that bring not a byte, before it is given up: half a minute."""

LOCK_SECONDS = 0.1
_CONTENT_RANGE = re.compile(r"bytes (\d{1,18})-(\d{1,18})/(\d{1,18})")
_PASSING = (Trouble.UNREACHABLE, Trouble.BUSY)
LONGEST_PAUSE_SECONDS = 60.0

Told = Callable[[int], None]
"""How many bytes of the file are there. Called often."""


class Stopped(Exception):
    """Somebody stopped it; what came is kept."""


class _Hash(Protocol):
    def update(self, data: bytes, /) -> None: ...
    def hexdigest(self) -> str: ...


def fetch(
    hub: Hub, url: str, file: HubFile, partial: Path, told: Told, stop: Event, *, pause_seconds: float = 1.0
) -> None:
    """Have `partial` be the whole file, and right. One that is whole already is only checked."""
    if not (file.sha256 or file.blob_id):
        raise HubError(Trouble.WRONG, f"{hub.host} tells no checksum of {file.path}, and without one it is not taken")
    partial.parent.mkdir(parents=True, exist_ok=True)
    with _locked(partial, stop) as descriptor:
        fetching = _Fetching(hub, url, file, descriptor, told, stop)
        fetching.count_what_is_there()
        fruitless = 0
        while fetching.offset < file.size_bytes:
            before = fetching.offset
            try:
                fetching.next_window()
            except HubError as error:
                fruitless = fruitless + 1 if fetching.offset <= before else 1
                if error.trouble not in _PASSING or fruitless >= MOST_TRIES:
                    raise
                wait = error.retry_after_seconds or pause_seconds * 2 ** (fruitless - 1)
                if wait > LONGEST_PAUSE_SECONDS:
                    raise
                if stop.wait(wait):
                    raise Stopped from error
        fetching.check()
        os.fsync(descriptor)


class _Fetching:
    """One file under way: how much of it is there, and the checksum so far."""

    def __init__(self, hub: Hub, url: str, file: HubFile, descriptor: int, told: Told, stop: Event) -> None:
        self._hub = hub
        self._url = url
        self._file = file
        self._descriptor = descriptor
        self._told = told
        self._stop = stop
        self._begin()

    def _begin(self) -> None:
        self.offset = 0
        self._hash: _Hash
        if self._file.sha256:
            self._hash = hashlib.sha256()
        else:  # git's own checksum of a file that is no large one
            self._hash = hashlib.sha1(b"blob %d\0" % self._file.size_bytes, usedforsecurity=False)

    def count_what_is_there(self) -> None:
        """Take over what an earlier try brought."""
        if os.fstat(self._descriptor).st_size > self._file.size_bytes:
            os.ftruncate(self._descriptor, 0)
        while piece := os.pread(self._descriptor, PIECE_BYTES, self.offset):
            self._took(piece)

    def _took(self, piece: bytes) -> None:
        self._hash.update(piece)
        self.offset += len(piece)
        self._told(self.offset)
        if self._stop.is_set():
            raise Stopped

    def next_window(self) -> None:
        """Ask for what follows, and write it down as it comes."""
        end = min(self.offset + WINDOW_BYTES, self._file.size_bytes)
        headers = {"Range": f"bytes={self.offset}-{end - 1}", "Accept-Encoding": "identity"}
        with self._hub.stream(self._url, headers) as response:
            self._check_answer(response, end)
            for piece in response.iter_raw():
                if self.offset + len(piece) > self._file.size_bytes:
                    raise HubError(Trouble.WRONG, f"{self._hub.host} sends more of {self._file.path} than it has")
                _write(self._descriptor, piece, self.offset)
                self._took(piece)
        if self.offset < end:
            raise HubError(Trouble.UNREACHABLE, f"{self._hub.host} broke off {self._file.path}")

    def _check_answer(self, response: "httpx2.Response", end: int) -> None:
        """Whether these are the bytes that were asked for, of a file of the size that the hub told."""
        name = self._file.path
        if response.headers.get("content-encoding", "identity") != "identity":
            raise HubError(Trouble.WRONG, f"{self._hub.host} sends {name} encoded, not as it is")
        if response.status_code == HTTPStatus.PARTIAL_CONTENT:
            said = response.headers.get("content-range", "")
            found = _CONTENT_RANGE.fullmatch(said)
            if found is None or int(found[1]) != self.offset or int(found[2]) >= end:
                raise HubError(Trouble.WRONG, f"{self._hub.host} sends other bytes of {name} than asked for ({said!r})")
            self._check_size(int(found[3]))
        elif response.status_code == HTTPStatus.OK:
            length = response.headers.get("content-length", "")
            self._check_size(int(length) if length.isascii() and length.isdigit() else self._file.size_bytes)
            os.ftruncate(self._descriptor, 0)  # a host that gives no ranges gives it from the beginning
            self._begin()
        else:
            raise HubError(Trouble.WRONG, f"{self._hub.host} answered {response.status_code} for {name}")

    def _check_size(self, size_bytes: int) -> None:
        if size_bytes != self._file.size_bytes:
            raise HubError(
                Trouble.WRONG,
                f"{self._file.path} has {size_bytes} bytes where it is kept, and {self._file.size_bytes} as"
                f" {self._hub.host} lists it",
            )

    def check(self) -> None:
        """Whether it is what the hub named. What is not is thrown away: none of it can be trusted."""
        if self._hash.hexdigest() != (self._file.sha256 or self._file.blob_id):
            os.ftruncate(self._descriptor, 0)
            raise HubError(
                Trouble.WRONG, f"what came as {self._file.path} has another checksum than the hub tells; it is removed"
            )


def _write(descriptor: int, piece: bytes, offset: int) -> None:
    view = memoryview(piece)
    while view:
        written = os.pwrite(descriptor, view, offset)
        view, offset = view[written:], offset + written


@contextmanager
def _locked(partial: Path, stop: Event) -> Iterator[int]:
    """The partial file, which nobody else writes to meanwhile: a try that was stopped may need a moment to see it. One
    that nothing came of, or all of which was thrown away, is not left behind."""
    descriptor = _open_alone(partial, stop)
    try:
        yield descriptor
    except BaseException:
        if os.fstat(descriptor).st_size == 0:
            partial.unlink(missing_ok=True)
        raise
    finally:
        os.close(descriptor)


def _open_alone(partial: Path, stop: Event) -> int:
    """Open and locked, and still the file of that name: whoever had it before may have removed it."""
    while True:
        descriptor = os.open(partial, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        try:
            _lock(descriptor, stop)
            if os.fstat(descriptor).st_nlink:
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _lock(descriptor: int, stop: Event) -> None:
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if stop.wait(LOCK_SECONDS):
                raise Stopped from None
        else:
            return
