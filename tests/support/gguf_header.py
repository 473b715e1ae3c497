"""Writes GGUF headers for tests: true metadata and tensor tables over data that need not be there.

Owns a small writer that is independent of the reader it tests. It writes no tensor data: whoever wants a file of the
true size truncates it to `data_end(...)`, which costs no disk.
"""

import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

TYPES: dict[str, tuple[int, int, int]] = {
    "F32": (0, 1, 4),
    "F16": (1, 1, 2),
    "Q4_0": (2, 32, 18),
    "Q4_1": (3, 32, 20),
    "Q5_0": (6, 32, 22),
    "Q5_1": (7, 32, 24),
    "Q8_0": (8, 32, 34),
    "Q2_K": (10, 256, 84),
    "Q3_K": (11, 256, 110),
    "Q4_K": (12, 256, 144),
    "Q5_K": (13, 256, 176),
    "Q6_K": (14, 256, 210),
    "IQ4_NL": (20, 32, 18),
    "IQ3_S": (21, 256, 110),
    "IQ2_S": (22, 256, 82),
    "IQ4_XS": (23, 256, 136),
    "I32": (26, 1, 4),
    "BF16": (30, 1, 2),
    "MXFP4": (39, 32, 17),
}
"""Type name to id, values a block, bytes a block: what the tests' models are made of."""

Scalar: TypeAlias = bool | int | float | str
Value: TypeAlias = Scalar | Sequence[Scalar]
Tensor: TypeAlias = tuple[str, Sequence[int], str | int]
"""Name, shape (row length first), type by name; an id instead of a name stands as it is, 1 byte a value."""

_FORMATS = {"u32": (4, "I"), "i32": (5, "i"), "f32": (6, "f"), "bool": (7, "?"), "u64": (10, "Q"), "i64": (11, "q")}


def text(value: str, order: str = "<") -> bytes:
    """A string as the format writes it."""
    raw = value.encode()
    return struct.pack(order + "Q", len(raw)) + raw


def strings(values: Iterable[str], order: str = "<") -> bytes:
    """The body of an array of strings."""
    return b"".join(text(value, order) for value in values)


def entry(key: str, value: Value, order: str = "<") -> bytes:
    """One metadata entry: an int is a u32 where it can be, a float an f32."""
    return text(key, order) + _typed(value, order)


def _kind(value: Scalar) -> str:
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, float):
        return "f32"
    assert isinstance(value, int)
    return "u32" if 0 <= value < 2**32 else "i64"


def _typed(value: Value, order: str) -> bytes:
    if isinstance(value, str):
        return struct.pack(order + "I", 8) + text(value, order)
    if isinstance(value, bool | int | float):
        number, code = _FORMATS[_kind(value)]
        return struct.pack(order + "I" + code, number, value)
    if value and isinstance(value[0], str):
        return struct.pack(order + "IIQ", 9, 8, len(value)) + strings(map(str, value), order)
    kind = "i32" if value and isinstance(value[0], int) and not isinstance(value[0], bool) else ""
    number, code = _FORMATS[kind or _kind(value[0] if value else 0)]
    return struct.pack(order + "IIQ", 9, number, len(value)) + struct.pack(f"{order}{len(value)}{code}", *value)


def tensor_bytes(shape: Sequence[int], kind: str | int) -> int:
    """What a tensor's data takes in the file."""
    _, block, size = TYPES[kind] if isinstance(kind, str) else (kind, 1, 1)
    total = shape[0] // block * size
    for extent in shape[1:]:
        total *= extent
    return total


def tensor_row(name: str, shape: Sequence[int], type_id: int, offset: int, order: str = "<") -> bytes:
    """One row of the tensor table, exactly as told."""
    head = text(name, order) + struct.pack(order + "I", len(shape))
    return head + struct.pack(f"{order}{len(shape)}Q", *shape) + struct.pack(order + "IQ", type_id, offset)


def build_header(
    metadata: Mapping[str, Value] | Sequence[bytes],
    tensors: Iterable[Tensor] = (),
    *,
    version: int = 3,
    alignment: int = 32,
    order: str = "<",
) -> bytes:
    """A header up to its data, padded. `metadata` may be ready-made entries, for what `entry` cannot say. `order` is
    the byte order as `struct` writes it: `<` or `>`."""
    pairs = metadata.items() if isinstance(metadata, Mapping) else ()
    entries = [entry(key, value, order) for key, value in pairs] or list(metadata)
    rows: list[bytes] = []
    offset = 0
    for name, shape, kind in tensors:
        rows.append(tensor_row(name, shape, TYPES[kind][0] if isinstance(kind, str) else kind, offset, order))
        offset += -(-tensor_bytes(shape, kind) // alignment) * alignment
    counts = struct.pack(order + "IQQ", version, len(rows), len(entries))
    head = b"GGUF" + counts + b"".join(entries) + b"".join(rows)
    return head + b"\0" * (-len(head) % alignment)


def data_end(header: bytes, tensors: Iterable[Tensor], *, alignment: int = 32) -> int:
    """The size of the whole file that this header begins."""
    sizes = (tensor_bytes(shape, kind) for _, shape, kind in tensors)
    return len(header) + sum(-(-size // alignment) * alignment for size in sizes)
