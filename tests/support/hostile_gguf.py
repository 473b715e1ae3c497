"""Model files that lie: each small, or with holes instead of data, and wrong in one place.

Owns the list that the reader is held to, for tests of its errors, of its cost, and as seeds of the fuzzer.
"""

import os
import struct
from collections.abc import Callable, Mapping
from pathlib import Path

from tests.support.gguf_header import build_header, entry, tensor_row, text

GIB = 1 << 30


def counted(tensors: int, entries: int, body: bytes = b"", order: str = "<") -> bytes:
    """A beginning that claims so much, and what follows it."""
    return b"GGUF" + struct.pack(order + "IQQ", 3, tensors, entries) + body


def value(kind: int, body: bytes, entries: int = 1) -> bytes:
    """A header whose first metadata entry is this."""
    return counted(0, entries, text("k") + struct.pack("<I", kind) + body)


def array(kind: int, length: int, body: bytes = b"", entries: int = 1) -> bytes:
    """A header whose first metadata entry is an array."""
    return value(9, struct.pack("<IQ", kind, length) + body, entries)


def table(*rows: bytes) -> bytes:
    """A header whose tensor table holds exactly these rows."""
    return counted(len(rows), 1, entry("general.architecture", "llama") + b"".join(rows))


BYTES: Mapping[str, tuple[str, bytes, str]] = {
    "zip": ("F1", b"PK\3\4" + bytes(200), "zip archive"),
    "ggjt": ("F1", b"tjgg" + bytes(200), "ggjt"),
    "page": ("F1", b"<!DOCTYPE html><html><body>Sign in</body></html>", "web page"),
    "version-1": ("F1", b"GGUF" + struct.pack("<III", 1, 3, 3), "version 1"),
    "version-99": ("F1", b"GGUF" + struct.pack("<IQQ", 99, 1, 1), "version 99"),
    "big-endian": ("F1", build_header({"general.architecture": "llama"}, order=">"), "big-endian"),
    "no-dimensions": ("F4", table(text("w") + struct.pack("<I", 0) + bytes(12)), "tensor 'w', dimensions"),
    "99-dimensions": ("F4", table(text("w") + struct.pack("<I", 99) + bytes(804)), "tensor 'w', dimensions"),
    "product": ("F4", table(tensor_row("w", [2**32, 2**32, 2**32], 0, 0)), "tensor 'w', shape"),
    "empty-shape": ("F4", table(tensor_row("w", [0, 4], 0, 0)), "tensor 'w', shape"),
    "negative-shape": ("F4", table(tensor_row("w", [2**64 - 4], 0, 0)), "tensor 'w', shape"),
    "beyond": ("F4", table(tensor_row("w", [2**40], 0, 0)), "tensor 'w', offset"),
    "negative-offset": ("F4", table(tensor_row("w", [32], 0, 2**64 - 32)), "tensor 'w', offset"),
    "overlap": (
        "F4",
        table(tensor_row("a", [64], 0, 0), tensor_row("b", [64], 0, 32)) + bytes(2048),
        "overlaps the one before",
    ),
    "twins": ("F4", table(tensor_row("a", [8], 0, 0), tensor_row("a", [8], 0, 32)) + bytes(1024), "appears twice"),
    "long-name": ("F4", table(tensor_row("w" * 64, [32], 0, 0)), "claims 64 bytes"),
    "latin-name": ("F4", table(struct.pack("<Q", 2) + b"\xff\xfe" + bytes(40)), "not UTF-8"),
    "alignment-0": ("F4", build_header({"general.alignment": 0}), "general.alignment"),
    "alignment-48": ("F4", build_header({"general.alignment": 48}), "general.alignment"),
    "entries": ("F5", counted(0, 2**40), "metadata count"),
    "tensors": ("F5", counted(2**63, 1), "tensor count"),
    "text": ("F5", value(8, struct.pack("<Q", 2**62) + bytes(100)), "metadata 'k'"),
    "negative-text": ("F5", value(8, struct.pack("<q", -1) + bytes(100)), "metadata 'k'"),
    "list": ("F5", array(4, 2**50, bytes(100)), "metadata 'k'"),
    "list-of-texts": ("F5", array(8, 2**50, bytes(100)), "metadata 'k'"),
    "text-in-list": ("F5", array(8, 600, struct.pack("<Q", 2**62) + bytes(9000)), "metadata 'k'"),
    "nested": ("F5", value(9, struct.pack("<IQ", 9, 1) * 1000), "arrays of arrays"),
    "unknown-value": ("F5", value(77, bytes(100)), "unknown value type 77"),
    "long-key": ("F5", counted(0, 1, struct.pack("<Q", 2**40) + bytes(100)), "metadata entry 0"),
    "ten-million-numbers": ("F15", array(5, 10_000_000), "but the file ends"),
    "twice": ("F15", build_header([entry("a", 1), entry("a", 2)]), "appears twice"),
    "head-only": ("F15", b"GGUF\x03\0\0", "needs 4 bytes"),
    "cut-in-key": ("F15", counted(0, 1, struct.pack("<Q", 20) + b"general."), "file ends"),
    "cut-in-table": ("F15", table(tensor_row("w", [32], 0, 0))[:-3], "file ends"),
}
"""By name: the fault's kind, the file, and what its error says."""

HOLED: Mapping[str, tuple[str, bytes, int, str]] = {
    "text-of-100-MB": ("F5", value(8, struct.pack("<Q", 100 << 20), 2), 20 * GIB, "metadata entry 1"),
    "text-of-a-GiB": ("F5", value(8, struct.pack("<Q", GIB)), 20 * GIB, "more than a header can have"),
    "numbers-of-100-MB": ("F5", array(5, 25 << 20, b"", 2), 20 * GIB, "metadata entry 1"),
    "a-billion-texts": ("F5", array(8, 1 << 30), 20 * GIB, "more than a header can have"),
    "ten-million-texts": ("F5", array(8, 10_000_000), 20 * GIB, "implausible"),
    "never-written": ("F1", b"", 20 * GIB, "begins with zeros"),
    "table-never-written": ("F4", counted(30_000, 1, entry("general.architecture", "llama")), 20 * GIB, "tensor 0"),
}
"""The same in files of a model's size whose rest was never written: what they claim could be there."""


ODD: Mapping[str, tuple[Callable[[Path], object], str]] = {
    "empty": (Path.touch, "the file is empty"),
    "folder": (Path.mkdir, "it is a folder"),
    "pipe": (os.mkfifo, "it is a pipe"),
    "dangling": (lambda path: path.symlink_to("nowhere"), "a link to a file that is not there"),
    "circle": (lambda path: path.symlink_to(path.name), "leads back to itself"),
    "absent": (str, "the file is not there"),
}
"""What may lie at a path besides a file (F11)."""


def write_all(folder: Path) -> dict[str, str]:
    """Make one of each below this folder: the name of each, and what its error says."""
    said: dict[str, str] = {}
    for name, (_, data, words) in BYTES.items():
        (folder / f"{name}.gguf").write_bytes(data)
        said[name] = words
    for name, (_, data, size, words) in HOLED.items():
        with (folder / f"{name}.gguf").open("wb") as file:
            file.write(data)
            file.truncate(size)
        said[name] = words
    for name, (make, words) in ODD.items():
        make(folder / f"{name}.gguf")
        said[name] = words
    return said
