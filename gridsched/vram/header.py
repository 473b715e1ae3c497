"""Reads a GGUF header out of a file's first bytes: metadata, tensor table, where the data begins.

Owns the format's grammar and the refusal of whatever is damaged. Takes bytes and gives values: it never opens a file,
never reads tensor data and never builds what it does not keep: arrays over `KEPT_ARRAY_ENTRIES` entries, which is every
tokenizer list, are hopped over. Everything a header claims is checked against the bytes that can be there before it is
believed, so that a hostile header costs no more than an honest one.
"""

import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from types import MappingProxyType
from typing import TypeAlias

from gridsched.vram.quants import QUANT_TYPES, row_bytes

KEPT_ARRAY_ENTRIES = 512  # per-layer lists are shorter (the engine has 512 layers at most), vocabularies are longer
MAX_HEADER_BYTES = 256 << 20  # the largest known headers take about 30 MB; more is a damaged count
MAX_NAME_BYTES = 65_535  # the format's own limit for keys
MAX_METADATA_ENTRIES = 65_536  # real files have under 200
MAX_TENSORS = 131_072  # real files have a few thousand
MAX_DIMENSIONS = 4  # ggml's
MAX_TENSOR_VALUES = 2**63 - 1  # ggml counts in int64
DEFAULT_ALIGNMENT = 32

_U8, _I8, _U16, _I16, _U32, _I32, _F32, _BOOL, _STRING, _ARRAY, _U64, _I64, _F64 = range(13)
_SCALARS = {
    _U8: "B",
    _I8: "b",
    _U16: "H",
    _I16: "h",
    _U32: "I",
    _I32: "i",
    _F32: "f",
    _BOOL: "?",
    _U64: "Q",
    _I64: "q",
    _F64: "d",
}
_SCALAR_BYTES = {kind: struct.calcsize("<" + code) for kind, code in _SCALARS.items()}
_TYPE_NAMES = ("u8", "i8", "u16", "i16", "u32", "i32", "f32", "bool", "string", "array", "u64", "i64", "f64")
_FIXED_HEAD_BYTES = 24  # magic, version, tensor count, metadata count
_SMALLEST_ENTRY_BYTES = 8 + 4 + 1  # an empty key, a type, a one-byte value
_SMALLEST_TENSOR_BYTES = 8 + 4 + 8 + 4 + 8  # an empty name, one dimension, a type, an offset
_READ_U32 = struct.Struct("<I").unpack_from
_READ_U64 = struct.Struct("<Q").unpack_from

_HOP_STRINGS = 128
_HOP_LENGTHS = sorted(range(192), key=lambda length: abs(length - 8))  # the commonest first
_HOP_SHORT = re.compile(
    rb"(?s:(?:%s){%d}+)"
    % (b"|".join(re.escape(bytes([length])) + rb"\0{7}.{%d}" % length for length in _HOP_LENGTHS), _HOP_STRINGS)
)
"""Matches that many strings under 192 bytes, each its length and its text. The expression engine hops over a token in a
third of the time that a Python loop takes, which is what keeps a large vocabulary's header under its limit."""


class NeedMore(Exception):
    """The prefix ends inside the header: scan again with at least `bytes_needed` bytes of the file."""

    def __init__(self, bytes_needed: int) -> None:
        super().__init__(f"the header goes on to byte {bytes_needed} at least")
        self.bytes_needed = bytes_needed


class HeaderError(Exception):
    """The file is no GGUF that this reader takes. `offset` is where in the file, `field` what was being read."""

    def __init__(self, offset: int, field: str, message: str) -> None:
        super().__init__(f"{field} (byte {offset}): {message}")
        self.offset = offset
        self.field = field
        self.message = message


@dataclass(frozen=True, slots=True)
class SkippedArray:
    """An array that was hopped over: its entries' type (`string`, `f32`, …) and how many there are."""

    kind: str
    length: int


Scalar: TypeAlias = bool | int | float | str
MetadataValue: TypeAlias = Scalar | tuple[Scalar, ...] | SkippedArray


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One row of the tensor table. `offset` counts from the header's `data_offset`; `size_bytes` is the file's."""

    name: str
    shape: tuple[int, ...]
    type_id: int
    offset: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Header:
    """What the first bytes of a GGUF file say. `notes` are sentences about what had to be guessed."""

    version: int
    metadata: Mapping[str, MetadataValue]
    tensors: tuple[TensorInfo, ...]
    data_offset: int
    notes: tuple[str, ...] = field(default=())


def scan(data: bytes | bytearray | memoryview, *, file_bytes: int | None = None) -> Header:
    """The header at the start of `data`, which may be a prefix of the file of any length.

    `file_bytes` is the size of the whole file where it is known: nothing may then lie beyond it, tensor data included.
    Raises NeedMore when the prefix is too short to tell, HeaderError when the file is damaged or of another kind.
    """
    with memoryview(data) as view:
        reader = _Reader(view, file_bytes)
        version = _read_version(reader)
        tensor_count = reader.count("tensor count", MAX_TENSORS)
        entry_count = reader.count("metadata count", MAX_METADATA_ENTRIES)
        reader.field = "metadata count"
        reader.claim(entry_count * _SMALLEST_ENTRY_BYTES + tensor_count * _SMALLEST_TENSOR_BYTES)
        metadata = _read_metadata(reader, entry_count)
        alignment = _alignment(reader, metadata)
        rows = _read_tensor_table(reader, tensor_count, alignment)
        data_offset = _padded(reader.position, alignment)
        tensors, notes = _with_sizes(rows, data_offset, file_bytes)
    return Header(version, MappingProxyType(metadata), tensors, data_offset, notes)


class _Reader:
    """A position in the prefix, and the one check that every read passes."""

    def __init__(self, view: memoryview, file_bytes: int | None) -> None:
        self.view = view
        self.size = view.nbytes
        self.file_bytes = file_bytes
        self.limit = MAX_HEADER_BYTES if file_bytes is None else min(file_bytes, MAX_HEADER_BYTES)
        self.position = 0
        self.field = "magic"

    def fail(self, message: str) -> HeaderError:
        """The error for what is being read, where it is being read."""
        return HeaderError(self.position, self.field, message)

    def claim(self, length: int) -> None:
        """Check that `length` more bytes may exist, whether or not the prefix has them."""
        if self.position + length > self.limit:
            if self.file_bytes is not None and self.position + length > self.file_bytes:
                raise self.fail(f"needs {length} bytes, but the file ends {self.file_bytes - self.position} bytes on")
            raise self.fail(f"claims {length} bytes, more than a header can have ({MAX_HEADER_BYTES})")

    def take(self, length: int) -> int:
        """Move over `length` bytes and give where they begin."""
        start = self.position
        end = start + length
        if end > self.size:
            self.claim(length)
            raise NeedMore(end)
        self.position = end
        return start

    def u32(self) -> int:
        """An unsigned 32-bit number."""
        return int(_READ_U32(self.view, self.take(4))[0])

    def u64(self) -> int:
        """An unsigned 64-bit number."""
        return int(_READ_U64(self.view, self.take(8))[0])

    def count(self, name: str, most: int) -> int:
        """A 64-bit number of things, refused where it is implausible."""
        self.field = name
        value = self.u64()
        if value > most:
            self.position -= 8
            raise self.fail(f"{value} is implausible (at most {most})")
        return value

    def text(self) -> str:
        """A value's string. Bytes that are no UTF-8 are replaced: they harm nobody here."""
        length = self.u64()
        start = self.take(length)
        return str(self.view[start : start + length], "utf-8", "replace")

    def name(self) -> str:
        """A key or a tensor's name, which must be UTF-8 and short."""
        length = self.u64()
        if length > MAX_NAME_BYTES:
            self.position -= 8
            raise self.fail(f"its name claims {length} bytes (at most {MAX_NAME_BYTES})")
        start = self.take(length)
        try:
            return str(self.view[start : start + length], "utf-8")
        except UnicodeDecodeError:
            raise HeaderError(start, self.field, "its name is not UTF-8") from None


def _padded(position: int, alignment: int) -> int:
    return -(-position // alignment) * alignment


def _read_version(reader: _Reader) -> int:
    magic = bytes(reader.view[:4])
    if magic and not b"GGUF".startswith(magic):
        raise reader.fail(f"not a GGUF file (it begins with {magic!r})")
    if reader.size < _FIXED_HEAD_BYTES:
        reader.claim(_FIXED_HEAD_BYTES)
        raise NeedMore(_FIXED_HEAD_BYTES)
    reader.position, reader.field = 4, "version"
    version = reader.u32()
    if version in (2, 3):
        return version
    reader.position = 4
    if version & 0xFFFF == 0 and version:
        raise reader.fail("big-endian GGUF is not supported by this host")
    raise reader.fail(f"GGUF version {version} is not supported (2 and 3 are)")


def _read_metadata(reader: _Reader, count: int) -> dict[str, MetadataValue]:
    metadata: dict[str, MetadataValue] = {}
    for index in range(count):
        reader.field = f"metadata entry {index}"
        key = reader.name()
        reader.field = f"metadata {key!r}"
        if key in metadata:
            raise reader.fail("the key appears twice")
        metadata[key] = _read_value(reader, reader.u32())
    return metadata


def _read_value(reader: _Reader, kind: int) -> MetadataValue:
    if kind == _STRING:
        return reader.text()
    if kind == _ARRAY:
        return _read_array(reader)
    return _read_scalars(reader, kind, 1)[0]


def _read_scalars(reader: _Reader, kind: int, count: int) -> tuple[Scalar, ...]:
    if kind not in _SCALARS:
        raise reader.fail(f"unknown value type {kind}")
    start = reader.take(_SCALAR_BYTES[kind] * count)
    values: tuple[Scalar, ...] = struct.unpack_from(f"<{count}{_SCALARS[kind]}", reader.view, start)
    return values


def _read_array(reader: _Reader) -> MetadataValue:
    kind = reader.u32()
    length = reader.u64()
    if kind == _ARRAY:
        raise reader.fail("arrays of arrays are not supported")
    if kind != _STRING and kind not in _SCALARS:
        raise reader.fail(f"unknown array type {kind}")
    smallest = 8 if kind == _STRING else _SCALAR_BYTES[kind]
    reader.claim(length * smallest)
    if length <= KEPT_ARRAY_ENTRIES:
        if kind == _STRING:
            return tuple(reader.text() for _ in range(length))
        return _read_scalars(reader, kind, length)
    if kind == _STRING:
        _hop_strings(reader, length)
    else:
        reader.take(length * smallest)
    return SkippedArray(_TYPE_NAMES[kind], length)


def _hop_strings(reader: _Reader, count: int) -> None:
    """Move over `count` strings without looking at them."""
    remaining = count
    while remaining >= _HOP_STRINGS:
        match = _HOP_SHORT.match(reader.view, reader.position)
        if match:
            reader.position = match.end()
        else:
            _hop_one_by_one(reader, _HOP_STRINGS, remaining)
        remaining -= _HOP_STRINGS
    _hop_one_by_one(reader, remaining, remaining)


def _hop_one_by_one(reader: _Reader, count: int, remaining: int) -> None:
    """The same where a long string, or the end of the prefix, is in the way.

    `remaining` strings are still to come: each takes 8 bytes at least, which tells how much more is needed.
    """
    for done in range(count):
        if reader.position + 8 > reader.size:
            needed = 8 * (remaining - done)
            reader.claim(needed)
            raise NeedMore(reader.position + needed)
        reader.take(reader.u64())


def _alignment(reader: _Reader, metadata: Mapping[str, MetadataValue]) -> int:
    value = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    if isinstance(value, bool) or not isinstance(value, int) or value <= 0 or value & (value - 1):
        reader.field = "metadata 'general.alignment'"
        raise reader.fail(f"{value!r} is no power of two")
    return value


def _read_tensor_table(reader: _Reader, count: int, alignment: int) -> list[TensorInfo]:
    rows: list[TensorInfo] = []
    names: set[str] = set()
    for index in range(count):
        reader.field = f"tensor {index}"
        name = reader.name()
        reader.field = f"tensor {name!r}"
        if name in names:
            raise reader.fail("the name appears twice")
        names.add(name)
        rows.append(_read_tensor(reader, name, alignment))
    return rows


def _read_tensor(reader: _Reader, name: str, alignment: int) -> TensorInfo:
    """One row of the table. `size_bytes` is -1 for a type that the table of types does not know yet."""
    label = f"tensor {name!r}"
    reader.field = f"{label}, dimensions"
    dimensions = reader.u32()
    if not 1 <= dimensions <= MAX_DIMENSIONS:
        raise reader.fail(f"{dimensions} dimensions (1 to {MAX_DIMENSIONS} are possible)")
    reader.field = f"{label}, shape"
    start = reader.take(8 * dimensions)
    shape: tuple[int, ...] = struct.unpack_from(f"<{dimensions}Q", reader.view, start)
    values = 1
    for extent in shape:
        values *= extent
    if not 0 < values <= MAX_TENSOR_VALUES:
        raise reader.fail(f"{shape} has {'no' if values == 0 else 'too many'} values")
    type_id = reader.u32()
    size = -1
    if kind := QUANT_TYPES.get(type_id):
        if shape[0] % kind.block_values:
            raise reader.fail(f"rows of {shape[0]} values are no multiple of {kind.name}'s {kind.block_values}")
        size = row_bytes(kind, shape[0]) * (values // shape[0])
    reader.field = f"{label}, offset"
    offset = reader.u64()
    if offset % alignment:
        raise reader.fail(f"{offset} is no multiple of the alignment, {alignment}")
    return TensorInfo(name, shape, type_id, offset, size)


def _with_sizes(
    rows: list[TensorInfo], data_offset: int, file_bytes: int | None
) -> tuple[tuple[TensorInfo, ...], tuple[str, ...]]:
    """The rows with every size known, checked against each other and against the file's end.

    A type that is newer than the table of types is sized by where the next tensor begins.
    """
    data_bytes = None if file_bytes is None else file_bytes - data_offset
    order = sorted(range(len(rows)), key=lambda index: rows[index].offset)
    ends: dict[int, int | None] = {index: rows[following].offset for index, following in pairwise(order)}
    ends |= dict.fromkeys(order[-1:], data_bytes)
    notes: list[str] = []
    sized: list[TensorInfo] = []
    for index, row in enumerate(rows):
        end = ends[index]
        size = row.size_bytes
        if size < 0:
            size = _size_of_unknown(row, end)
            notes.append(f"tensor {row.name!r} has the unknown type {row.type_id}: taken as {size} bytes")
        if end is not None and row.offset + size > end:
            _refuse_overrun(row, size, data_offset, end == data_bytes and index == order[-1])
        sized.append(row if size == row.size_bytes else TensorInfo(row.name, row.shape, row.type_id, row.offset, size))
    return tuple(sized), tuple(notes)


def _size_of_unknown(row: TensorInfo, end: int | None) -> int:
    if end is not None:
        return max(end - row.offset, 0)
    values = 1
    for extent in row.shape:
        values *= extent
    return 2 * values  # the last tensor of a file of unknown length: no new type is wider than F16


def _refuse_overrun(row: TensorInfo, size: int, data_offset: int, at_file_end: bool) -> None:
    beyond = "the end of the file, which is damaged or not complete" if at_file_end else "the next tensor"
    raise HeaderError(data_offset + row.offset, f"tensor {row.name!r}, offset", f"its {size} bytes reach over {beyond}")
