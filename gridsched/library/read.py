"""Opens one GGUF file and reads its header, whatever lies at that path.

Owns the only place that opens model files. Must never read tensor data, never wait on a pipe, and never raise anything
but Unreadable, whose sentence is fit to be shown to a person beside the file's name (F11).

The calls block for as long as the disk does: whoever is on the event loop makes them in a thread.
"""

import errno
import hashlib
import io
import os
import stat
from dataclasses import dataclass
from pathlib import Path

from gridsched.vram.header import Header, HeaderError, NeedMore, scan

FIRST_READ_BYTES = 4 << 20
FURTHER_READ_BYTES = 12 << 20
"""Most headers are shorter than the first read, and those of the largest vocabularies (12 MB) than both. A header is
scanned from its start again after each read, so few long reads are faster than many short ones. Plain reads and no
memory map, because a mapped file that somebody shortens meanwhile would take the whole process down."""

PIECE_BYTES = 1 << 20
FINGERPRINT_BYTES = 64 << 10
"""How much of the beginning the fingerprint hashes: the metadata that tells one build of a model from another."""

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


def real_path(path: Path) -> Path:
    """Where a path leads, links followed. A link that leads back to itself is its own answer: `resolve` would raise."""
    return Path(os.path.realpath(path))


def read_file(path: Path) -> ReadFile:
    """Read the header of the file at `path`, links followed. Raises Unreadable."""
    try:
        _refuse_odd_kinds(path.stat())
        # Non-blocking, because what was a file a moment ago may be a pipe by now.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb", buffering=0) as file:
            found = os.fstat(descriptor)
            _refuse_odd_kinds(found)
            header, head = _read_header(file, found.st_size)
    except OSError as error:
        raise _explained(path, error) from error
    identity = hashlib.blake2b(f"{found.st_size}:{found.st_mtime_ns}:".encode() + head, digest_size=16)
    return ReadFile(path, found.st_size, found.st_mtime_ns, identity.hexdigest(), header)


def _refuse_odd_kinds(found: os.stat_result) -> None:
    for is_kind, sentence in _KINDS:
        if is_kind(found.st_mode):
            raise Unreadable(sentence)
    if found.st_size == 0:
        raise Unreadable("the file is empty")


def _read_header(file: io.FileIO, file_bytes: int) -> tuple[Header, bytes]:
    """The header, and the bytes that the fingerprint hashes. Reads no further than the header needs."""
    buffer = bytearray()
    wanted_bytes = min(FIRST_READ_BYTES, file_bytes)
    while True:
        while len(buffer) < wanted_bytes:
            piece = file.read(min(PIECE_BYTES, wanted_bytes - len(buffer)))
            if not piece:
                raise Unreadable("the file became shorter while it was read")
            buffer += piece
        try:
            return scan(buffer, file_bytes=file_bytes), bytes(buffer[:FINGERPRINT_BYTES])
        except HeaderError as error:
            raise Unreadable(str(error)) from error
        except NeedMore as more:
            if wanted_bytes == file_bytes:
                raise Unreadable("the file ends inside its header") from more
            wanted_bytes = min(max(more.bytes_needed, wanted_bytes + FURTHER_READ_BYTES), file_bytes)


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
