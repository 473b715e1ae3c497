"""Headers of model files, kept on disk from one run to the next, so that a start reads only what has changed.

Owns the file. What is in it is believed of a file with the same path, device, number, size and times, where the same
reader has read it; all else is read again. A damaged file is dropped, and said. Must never keep a server from
starting, and never be written by two programs: only who owns the data directory writes.
"""

import hashlib
import os
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import msgspec

from gridsched.files import atomic_write
from gridsched.library.read import ReadFile, Stat
from gridsched.vram import foreign, header, quants
from gridsched.vram.header import Header, SkippedArray, TensorInfo

FILE: Final = "headers.cache"
"""In the data directory."""

MOST_BYTES: Final = 64 << 20
"""A library of a thousand models takes a quarter of that; a longer file is none of ours."""

_DIGEST_BYTES: Final = 16
_READERS: Final = (header, quants, foreign)

_Row = tuple[str, tuple[int, ...], int, int, int]


class _Kept(msgspec.Struct, array_like=True, frozen=True):
    """One file as it was read. `path` is in bytes: a name may be no text."""

    path: bytes
    stamp: Stat
    size_bytes: int
    modified_ns: int
    fingerprint: str
    version: int
    metadata: dict[str, Any]  # scalars and lists as they are, what was hopped over as an object
    tensors: list[_Row]
    data_offset: int
    notes: tuple[str, ...]
    big_endian: bool


class HeaderFile:
    """The file of one data directory."""

    def __init__(self, path: Path, say: Callable[[str], None], *, owned: bool) -> None:
        """`owned`: the directory is ours, and the file may be written."""
        self._path = path
        self._say = say
        self._owned = owned

    def load(self) -> dict[Path, tuple[Stat, ReadFile]]:
        """What is kept, by path; nothing where there is no such file. Never raises for what it is like."""
        try:
            with open(self._path, "rb", opener=_at_once) as file:
                data = file.read(MOST_BYTES + 1) or b""  # a pipe in its place has nothing to say
        except FileNotFoundError:
            return {}
        except OSError as error:
            self._say(f"{self._path} cannot be read: {error.strerror}; the models' headers are read again")
            return {}
        body = data[2 * _DIGEST_BYTES :]
        if data[:_DIGEST_BYTES] != _reader():
            return {}  # of another version, which may read more of a header, or less
        try:
            is_whole = data[_DIGEST_BYTES : 2 * _DIGEST_BYTES] == _digest(body)
            kept = _decoder.decode(body) if is_whole else None
        except (msgspec.DecodeError, RecursionError):
            kept = None
        if kept is None:
            self._say(f"{self._path} is damaged and is made anew: the models' headers are read again")
            return {}
        return {Path(os.fsdecode(one.path)): (one.stamp, _read_file(one)) for one in kept}

    def save(self, kept: Mapping[Path, tuple[Stat, ReadFile]]) -> None:
        """Replace it whole. Where it cannot be written, the next start reads the headers again."""
        if not self._owned:
            return
        body = _encoder.encode([_kept(path, stamp, file) for path, (stamp, file) in kept.items()])
        if len(body) > MOST_BYTES - 2 * _DIGEST_BYTES:
            return
        try:
            atomic_write(self._path, _reader() + _digest(body) + body)
        except OSError as error:
            self._say(f"{self._path} cannot be written: {error.strerror}; the next start takes longer")


def _kept(path: Path, stamp: Stat, file: ReadFile) -> _Kept:
    told = file.header
    rows = [(row.name, row.shape, row.type_id, row.offset, row.size_bytes) for row in told.tensors]
    return _Kept(
        os.fsencode(path),
        stamp,
        file.size_bytes,
        file.modified_ns,
        file.fingerprint,
        told.version,
        {name: _plain(value) for name, value in told.metadata.items()},
        rows,
        told.data_offset,
        told.notes,
        told.big_endian,
    )


def _plain(value: object) -> object:
    return {"kind": value.kind, "length": value.length} if isinstance(value, SkippedArray) else value


def _meant(value: Any) -> Any:
    if isinstance(value, dict):
        return SkippedArray(value["kind"], value["length"])
    return tuple(value) if isinstance(value, list) else value


def _read_file(one: _Kept) -> ReadFile:
    metadata = MappingProxyType({name: _meant(value) for name, value in one.metadata.items()})
    tensors = tuple(TensorInfo(*row) for row in one.tensors)
    told = Header(one.version, metadata, tensors, one.data_offset, one.notes, one.big_endian)
    return ReadFile(Path(os.fsdecode(one.path)), one.size_bytes, one.modified_ns, one.fingerprint, told)


_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(list[_Kept])


def _at_once(path: str, flags: int) -> int:
    """A pipe in its place holds no start up."""
    return os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=_DIGEST_BYTES).digest()


@cache
def _reader() -> bytes:
    """What tells one reader of headers from another: its text, so that nobody has to think of a number."""
    return _digest(b"".join(Path(str(module.__file__)).read_bytes() for module in _READERS))
