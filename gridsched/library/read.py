"""Opens one GGUF file and reads its header, whatever lies at that path.

Owns the only place that opens model files. Must never read tensor data, never wait on a pipe, and never raise anything
but Unreadable, whose sentence is fit to be shown to a person beside the file's name (F11).

The calls block for as long as the disk does: whoever is on the event loop makes them in a thread.
"""

import errno
import hashlib
import os
import stat
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from gridsched.vram.header import Header, HeaderError, NeedMore, scan_file

WINDOW_BYTES = 512 << 10
"""How much is read at a time. A header is walked once, window by window, so that reading one takes no more memory than
this whatever it claims. Plain reads and no memory map, because a mapped file that somebody shortens meanwhile would
take the whole process down."""

FINGERPRINT_BYTES = 64 << 10
"""How much of the beginning the fingerprint hashes: the metadata that tells one build of a model from another."""

SURE_NS = 2_000_000_000
"""Clocks of file systems are coarse: a file that changed this recently may change again without another stamp."""

_KINDS = (
    (stat.S_ISDIR, "it is a folder, not a file"),
    (stat.S_ISFIFO, "it is a pipe, not a file"),
    (stat.S_ISSOCK, "it is a socket, not a file"),
    (stat.S_ISCHR, "it is a device, not a file"),
    (stat.S_ISBLK, "it is a device, not a file"),
)


class Unreadable(Exception):
    """No header came out of the file: the sentence says what is wrong with it. `missing`: there is no file at all."""

    def __init__(self, message: str, *, missing: bool = False) -> None:
        super().__init__(message)
        self.missing = missing


@dataclass(frozen=True, slots=True)
class ReadFile:
    """One file's header with its identity. `modified_ns` is in nanoseconds since the epoch. `fingerprint` is made of
    size, time and a hash of the beginning, and changes when the file does (L2)."""

    path: Path
    size_bytes: int
    modified_ns: int
    fingerprint: str
    header: Header


@dataclass(frozen=True, slots=True)
class Stamp:
    """One file as it was read, `modified_ns` in nanoseconds since the epoch."""

    path: Path
    size_bytes: int
    modified_ns: int

    def is_another(self) -> bool:
        """Whether another file is there now; not where there is none. Blocks."""
        try:
            found = self.path.stat()
        except OSError:
            return False
        return (found.st_size, found.st_mtime_ns) != (self.size_bytes, self.modified_ns)


Stat = tuple[int, int, int, int, int]
"""What tells a file from what it was: device, number on it, size, times of change in nanoseconds."""


class Disk(Protocol):
    """Keeps headers from one run to the next."""

    def load(self) -> dict[Path, tuple[Stat, ReadFile]]:
        """What is kept, by path."""

    def save(self, kept: Mapping[Path, tuple[Stat, ReadFile]]) -> None:
        """Keep this, and nothing else."""


class Headers:
    """Headers that were read, so that a library is read again in a fraction of the time: of each file that is the same
    by its stamp. Whatever nobody asked for while it was remembering is forgotten."""

    def __init__(self, disk: Disk | None = None) -> None:
        """`disk` has what an earlier run has read."""
        self._disk = disk
        self._on_disk = {} if disk is None else disk.load()
        self._kept = {(path, False): known for path, known in self._on_disk.items()}
        self._asked: dict[tuple[Path, bool], tuple[Stat, ReadFile]] = {}

    @contextmanager
    def remembering(self) -> Iterator[None]:
        """What this thread reads within the block is remembered, and not read again that was before."""
        self._asked = {}
        token = _REMEMBERED.set(self)
        try:
            yield
        finally:
            _REMEMBERED.reset(token)
            self._kept, self._asked = self._asked, {}
        self._save()

    def _save(self) -> None:
        """On the disk too, where that has something else."""
        if self._disk is None:
            return
        found = {path: known for (path, any_byte_order), known in self._kept.items() if not any_byte_order}
        if {path: stamp for path, (stamp, _) in found.items()} != {p: stamp for p, (stamp, _) in self._on_disk.items()}:
            self._disk.save(found)
            self._on_disk = found

    def find(self, path: Path, *, any_byte_order: bool) -> ReadFile | None:
        """The file, where it is as it was. Raises OSError."""
        key = (path, any_byte_order)
        kept = self._asked.get(key) or self._kept.get(key)
        if kept is None or kept[0] != _stamp(path.stat()):
            return None
        self._asked[key] = kept
        return kept[1]

    def keep(self, file: ReadFile, found: os.stat_result, *, any_byte_order: bool) -> None:
        """Remember it, unless it changed so lately that it might change again and look the same."""
        if time.time_ns() - max(found.st_mtime_ns, found.st_ctime_ns) > SURE_NS:
            self._asked[file.path, any_byte_order] = (_stamp(found), file)


_REMEMBERED: ContextVar[Headers | None] = ContextVar("headers", default=None)


def _stamp(found: os.stat_result) -> Stat:
    return (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


def real_path(path: Path) -> Path:
    """Where a path leads, links followed. A link that leads back to itself is its own answer: `resolve` would raise."""
    try:
        return Path(os.path.realpath(path))
    except OSError:  # a link that went while it was followed, as those of processes do
        return Path(os.path.abspath(path))  # noqa: PTH100 - `absolute` leaves the dots in it


def read_file(path: Path, *, any_byte_order: bool = False) -> ReadFile:
    """Read the header of the file at `path`, links followed. Raises Unreadable.

    A file in another byte order than this host's is Unreadable, because no engine here could load it, unless the caller
    says that it wants the header alone.
    """
    headers = _REMEMBERED.get()
    try:
        if headers is not None and (known := headers.find(path, any_byte_order=any_byte_order)) is not None:
            return known
        _refuse_odd_kinds(path.stat())
        # Non-blocking, because what was a file a moment ago may be a pipe by now.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb", buffering=0):
            found = os.fstat(descriptor)
            _refuse_odd_kinds(found)
            header = read_header(descriptor, found.st_size)
            head = os.pread(descriptor, FINGERPRINT_BYTES, 0)
    except OSError as error:
        raise _explained(path, error) from error
    if not any_byte_order and header.big_endian != (sys.byteorder == "big"):
        raise Unreadable(f"{'big' if header.big_endian else 'little'}-endian GGUF is not supported by this host")
    identity = hashlib.blake2b(f"{found.st_size}:{found.st_mtime_ns}:".encode() + head, digest_size=16)
    file = ReadFile(path, found.st_size, found.st_mtime_ns, identity.hexdigest(), header)
    if headers is not None:
        headers.keep(file, found, any_byte_order=any_byte_order)
    return file


def _refuse_odd_kinds(found: os.stat_result) -> None:
    for is_kind, sentence in _KINDS:
        if is_kind(found.st_mode):
            raise Unreadable(sentence)
    if found.st_size == 0:
        raise Unreadable("the file is empty")


def read_header(descriptor: int, file_bytes: int) -> Header:
    """The header of an open file that is said to have so many bytes. Raises Unreadable, and OSError as reading does."""

    def read_at(offset: int, least: int) -> bytes:
        window = os.pread(descriptor, max(least, WINDOW_BYTES), offset)
        while len(window) < least:  # a signal or a file server may cut a read short
            piece = os.pread(descriptor, least - len(window), offset + len(window))
            if not piece:
                break
            window += piece
        return window

    try:
        return scan_file(read_at, file_bytes)
    except HeaderError as error:
        raise Unreadable(str(error)) from error
    except NeedMore as more:
        raise Unreadable("the file became shorter while it was read") from more


def _explained(path: Path, error: OSError) -> Unreadable:
    match error.errno:
        case errno.ENOENT | errno.ENOTDIR if path.is_symlink():
            return Unreadable("it is a link to a file that is not there", missing=True)
        case errno.ENOENT | errno.ENOTDIR:
            return Unreadable("the file is not there", missing=True)
        case errno.ELOOP:
            return Unreadable("it is a link that leads back to itself")
        case errno.EACCES | errno.EPERM:
            return Unreadable("this user may not read the file")
        case _:
            return Unreadable(f"the file cannot be read: {error.strerror}")
