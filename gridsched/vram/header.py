"""Reads a GGUF header out of a file's first bytes: metadata, tensor table, where the data begins.

Owns the format's grammar and the refusal of whatever is damaged. Takes bytes, or a function that gives them a window at
a time, and gives values: it never opens a file, never reads tensor data and never builds what it does not keep. Arrays
over `KEPT_ARRAY_ENTRIES` entries, which is every tokenizer list, are hopped over, numbers without reading them.
Everything a header claims is checked against the bytes that can be there before it is believed, and what is kept has a
budget, so that a hostile header costs no more than an honest one.
"""

import re
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from types import MappingProxyType
from typing import Final, TypeAlias

from gridsched.vram.foreign import LOOKED_AT_BYTES, described
from gridsched.vram.quants import QUANT_TYPES, row_bytes

KEPT_ARRAY_ENTRIES = 512  # per-layer lists are shorter (the engine has 512 layers at most), vocabularies are longer
KEPT_BYTES = 2 << 20  # of texts, names of keys and lists in sum; real files need a tenth, mostly for chat templates
KEPT_ENTRY_BYTES = 32  # what an entry of a kept list counts for: about what it takes
MAX_HEADER_BYTES = 128 << 20  # the largest known headers take about 30 MB; more is a damaged count
MAX_KEY_BYTES = 65_535  # the format's own limit
MAX_TENSOR_NAME_BYTES = 63  # the engine's: 64 with the byte that ends it
MAX_METADATA_ENTRIES = 4_096  # real files have under 200
MAX_STRINGS = 1 << 21  # the longest known list, of merges, has 0.6 million
MAX_TENSORS = 32_768  # the most known, of unmerged experts, is some 18,000
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
_SMALLEST_ENTRY_BYTES = 8 + 1 + 4 + 1  # a key of one letter, a type, a one-byte value
_SMALLEST_TENSOR_BYTES = 8 + 4 + 8 + 4 + 8  # an empty name, one dimension, a type, an offset

_HOP_STRINGS = 128
_HOP_LENGTHS = sorted(range(192), key=lambda length: abs(length - 8))  # the commonest first


@cache
def _hop_pattern(order: str) -> re.Pattern[bytes]:
    """Matches so many strings under 192 bytes, each its length and its text. The expression engine hops over a token in
    a third of the time that a Python loop takes, which is what keeps a large vocabulary's header under its limit."""
    lengths = (re.escape(struct.pack(order + "Q", length)) + rb".{%d}" % length for length in _HOP_LENGTHS)
    return re.compile(rb"(?s:(?:%s){%d}+)" % (b"|".join(lengths), _HOP_STRINGS))


ReadAt: TypeAlias = Callable[[int, int], bytes]
"""`read_at(offset, least)` gives at least `least` bytes of the file from `offset` on, and more if it likes to;
fewer only where the file ends. What it raises goes through to whoever scans."""


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
    """An array that was hopped over: its entries' type (`string`, `f32`, …) and how many there are. A text that was too
    long to keep is an array of `byte`."""

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
    """What the first bytes of a GGUF file say. `notes` are sentences about what had to be guessed, or is unusual.

    `big_endian` files are read like others; whoever loads one asks first whether the host is big-endian too.
    """

    version: int
    metadata: Mapping[str, MetadataValue]
    tensors: tuple[TensorInfo, ...]
    data_offset: int
    notes: tuple[str, ...] = field(default=())
    big_endian: bool = False


def scan(data: bytes | bytearray | memoryview, *, file_bytes: int | None = None) -> Header:
    """The header at the start of `data`, which may be a prefix of the file of any length.

    `file_bytes` is the size of the whole file where it is known: nothing may then lie beyond it, tensor data included.
    Raises NeedMore when the prefix is too short to tell, HeaderError when the file is damaged or of another kind.
    """
    with memoryview(data) as view:
        return _scan(_Reader(view, lambda _offset, _least: b"", file_bytes))


def scan_file(read_at: ReadAt, file_bytes: int) -> Header:
    """The header of a file of `file_bytes` bytes, read from its start on in windows that `read_at` gives.

    Raises HeaderError like `scan`, and NeedMore where `read_at` gave less than the file's size had promised.
    """
    first = read_at(0, min(_FIXED_HEAD_BYTES, file_bytes))
    return _scan(_Reader(memoryview(first), read_at, file_bytes))


def _scan(reader: "_Reader") -> Header:
    version = _read_version(reader)
    tensor_count = reader.count("tensor count", MAX_TENSORS)
    entry_count = reader.count("metadata count", MAX_METADATA_ENTRIES)
    reader.field = "metadata count"
    reader.claim(entry_count * _SMALLEST_ENTRY_BYTES + tensor_count * _SMALLEST_TENSOR_BYTES)
    metadata = _read_metadata(reader, entry_count)
    alignment = _alignment(reader, metadata)
    rows = _read_tensor_table(reader, tensor_count, alignment)
    data_offset = _padded(reader.position, alignment)
    tensors, notes = _with_sizes(rows, data_offset, alignment, reader.file_bytes)
    big_endian = reader.order == _BIG_ENDIAN
    if big_endian:
        notes.append("the file is big-endian: only a host that is can load it")
    return Header(version, MappingProxyType(metadata), tuple(tensors), data_offset, tuple(notes), big_endian)


_LITTLE_ENDIAN: Final = "<"
_BIG_ENDIAN: Final = ">"


class _Reader:
    """A position in the file, the window of bytes around it, and the one check that every read passes."""

    def __init__(self, window: memoryview, read_at: ReadAt, file_bytes: int | None) -> None:
        self.window = window
        self.window_start = 0
        self.file_bytes = file_bytes
        self.limit = MAX_HEADER_BYTES if file_bytes is None else min(file_bytes, MAX_HEADER_BYTES)
        self.position = 0
        self.field = "magic"
        self.order = _LITTLE_ENDIAN
        self._read_at = read_at
        self._kept_bytes = 0

    def fail(self, message: str) -> HeaderError:
        """The error for what is being read, where it is being read."""
        return HeaderError(self.position, self.field, message)

    def claim(self, length: int) -> None:
        """Check that `length` more bytes may exist, whether or not they are at hand."""
        if self.position + length > self.limit:
            if self.file_bytes is not None and self.position + length > self.file_bytes:
                raise self.fail(f"needs {length} bytes, but the file ends {self.file_bytes - self.position} bytes on")
            raise self.fail(f"claims {length} bytes, more than a header can have ({MAX_HEADER_BYTES})")

    def take(self, length: int) -> int:
        """Move over `length` bytes that are needed, and give where in the window they begin."""
        start = self.position - self.window_start
        if start + length > self.window.nbytes:
            self.claim(length)
            window = self._read_at(self.position, length)
            if len(window) < length:
                raise NeedMore(self.position + length)
            self.window, self.window_start, start = memoryview(window), self.position, 0
        self.position += length
        return start

    def skip(self, length: int) -> None:
        """Move over `length` bytes that nobody looks at: they are not even read."""
        self.claim(length)
        self.position += length

    def keep(self, cost_bytes: int) -> bool:
        """Whether so much more may be kept of the file; counted if it may."""
        if self._kept_bytes + cost_bytes > KEPT_BYTES:
            return False
        self._kept_bytes += cost_bytes
        return True

    def u32(self) -> int:
        """An unsigned 32-bit number."""
        start = self.take(4)  # before the window is looked at, which it may change
        return int(struct.unpack_from(self.order + "I", self.window, start)[0])

    def u64(self) -> int:
        """An unsigned 64-bit number."""
        start = self.take(8)
        return int(struct.unpack_from(self.order + "Q", self.window, start)[0])

    def count(self, name: str, most: int) -> int:
        """A 64-bit number of things, refused where it is implausible."""
        self.field = name
        value = self.u64()
        if value > most:
            self.position -= 8
            raise self.fail(f"{value} is implausible (at most {most})")
        return value

    def text(self) -> str | SkippedArray:
        """A value's string, hopped over if it is too long. Bytes that are no UTF-8 are replaced: they harm nobody."""
        length = self.u64()
        if not self.keep(length + KEPT_ENTRY_BYTES):
            self.skip(length)
            return SkippedArray("byte", length)
        start = self.take(length)
        return str(self.window[start : start + length], "utf-8", "replace")

    def name(self, most: int) -> str:
        """A key or a tensor's name, which must be UTF-8 and of one byte to `most`."""
        length = self.u64()
        if not 1 <= length <= most:
            self.position -= 8
            raise self.fail(f"its name claims {length} bytes (1 to {most} are possible)")
        start = self.take(length)
        try:
            return str(self.window[start : start + length], "utf-8")
        except UnicodeDecodeError:
            raise HeaderError(self.position - length, self.field, "its name is not UTF-8") from None


def _padded(position: int, alignment: int) -> int:
    return -(-position // alignment) * alignment


def _read_version(reader: _Reader) -> int:
    head = bytes(reader.window[:LOOKED_AT_BYTES])
    if head and not b"GGUF".startswith(head[:4]):
        raise reader.fail(f"not a GGUF file: {described(head)}")
    reader.take(4)
    reader.field = "version"
    version = reader.u32()
    if version and version & 0xFFFF == 0:
        reader.order = _BIG_ENDIAN
        reader.position = 4
        version = reader.u32()
    if version in (2, 3):
        return version
    reader.position = 4
    raise reader.fail(f"GGUF version {version} is not supported (2 and 3 are)")


def _read_metadata(reader: _Reader, count: int) -> dict[str, MetadataValue]:
    metadata: dict[str, MetadataValue] = {}
    for index in range(count):
        reader.field = f"metadata entry {index}"
        key = reader.name(MAX_KEY_BYTES)
        reader.field = f"metadata {key!r}"
        if key in metadata:
            raise reader.fail("the key appears twice")
        if not reader.keep(len(key)):
            raise reader.fail(f"the keys before it are too long (all may take {KEPT_BYTES} bytes)")
        metadata[key] = _read_value(reader, reader.u32())
    return metadata


def _read_value(reader: _Reader, kind: int) -> MetadataValue:
    if kind == _STRING:
        return reader.text()
    if kind == _ARRAY:
        return _read_array(reader)
    if kind not in _SCALARS:
        raise reader.fail(f"unknown value type {kind}")
    return _read_scalars(reader, kind, 1)[0]


def _read_scalars(reader: _Reader, kind: int, count: int) -> tuple[Scalar, ...]:
    start = reader.take(_SCALAR_BYTES[kind] * count)
    values: tuple[Scalar, ...] = struct.unpack_from(f"{reader.order}{count}{_SCALARS[kind]}", reader.window, start)
    return values


def _read_array(reader: _Reader) -> MetadataValue:
    kind = reader.u32()
    length = reader.u64()
    if kind == _ARRAY:
        raise reader.fail("arrays of arrays are not supported")
    if kind != _STRING and kind not in _SCALARS:
        raise reader.fail(f"unknown array type {kind}")
    reader.claim(length * (8 if kind == _STRING else _SCALAR_BYTES[kind]))
    if kind == _STRING:
        return _read_strings(reader, length)
    if length <= KEPT_ARRAY_ENTRIES and reader.keep(length * KEPT_ENTRY_BYTES):
        return _read_scalars(reader, kind, length)
    reader.skip(length * _SCALAR_BYTES[kind])
    return SkippedArray(_TYPE_NAMES[kind], length)


def _read_strings(reader: _Reader, count: int) -> MetadataValue:
    if count > MAX_STRINGS:
        raise reader.fail(f"{count} strings are implausible (at most {MAX_STRINGS})")
    if count > KEPT_ARRAY_ENTRIES:
        _hop_strings(reader, count)
        return SkippedArray("string", count)
    texts = [reader.text() for _ in range(count)]
    kept = tuple(text for text in texts if isinstance(text, str))
    return kept if len(kept) == count else SkippedArray("string", count)


def _hop_strings(reader: _Reader, count: int) -> None:
    """Move over `count` strings without looking at them."""
    hop = _hop_pattern(reader.order)
    remaining = count
    while remaining >= _HOP_STRINGS:
        match = hop.match(reader.window, reader.position - reader.window_start)
        if match:
            reader.position = reader.window_start + match.end()
        else:
            _hop_one_by_one(reader, _HOP_STRINGS, remaining)
        remaining -= _HOP_STRINGS
    _hop_one_by_one(reader, remaining, remaining)


def _hop_one_by_one(reader: _Reader, count: int, remaining: int) -> None:
    """The same where a long string, or the end of the window, is in the way. `remaining` strings are still to come:
    each takes 8 bytes at least, so that many that cannot be there are refused at the first."""
    reader.claim(8 * remaining)
    for _ in range(count):
        reader.skip(reader.u64())


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
        name = reader.name(MAX_TENSOR_NAME_BYTES)
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
    shape: tuple[int, ...] = struct.unpack_from(f"{reader.order}{dimensions}Q", reader.window, start)
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
    rows: list[TensorInfo], data_offset: int, alignment: int, file_bytes: int | None
) -> tuple[list[TensorInfo], list[str]]:
    """The rows with every size known, each behind the other as the engine wants them, none beyond the file's end.

    A type that is newer than the table of types is sized by where the next tensor begins.
    """
    data_bytes = None if file_bytes is None else file_bytes - data_offset
    notes: list[str] = []
    sized: list[TensorInfo] = []
    expected = 0
    for index, row in enumerate(rows):
        if row.offset != expected:
            what = "it overlaps the one before" if row.offset < expected else "there is a gap before it"
            raise _misplaced(row, data_offset, f"it lies at {row.offset} of the data instead of {expected}: {what}")
        following = rows[index + 1].offset if index + 1 < len(rows) else data_bytes
        size = row.size_bytes
        if size < 0:
            size = _size_of_unknown(row, following)
            notes.append(f"tensor {row.name!r} has the unknown type {row.type_id}: taken as {size} bytes")
        if data_bytes is not None and row.offset + size > data_bytes:
            beyond = "the end of the file, which is damaged or not complete"
            raise _misplaced(row, data_offset, f"its {size} bytes reach over {beyond}")
        expected = _padded(row.offset + size, alignment)
        sized.append(row if size == row.size_bytes else TensorInfo(row.name, row.shape, row.type_id, row.offset, size))
    return sized, notes


def _size_of_unknown(row: TensorInfo, end: int | None) -> int:
    if end is not None:
        return max(end - row.offset, 0)
    values = 1
    for extent in row.shape:
        values *= extent
    return 2 * values  # the last tensor of a file of unknown length: no new type is wider than F16


def _misplaced(row: TensorInfo, data_offset: int, message: str) -> HeaderError:
    return HeaderError(data_offset + row.offset, f"tensor {row.name!r}, offset", message)
