"""Seeds for the header reader, and ways to damage them that know where a header's fields are.

Owns no judgement. All chance comes from the random numbers that are passed in, so that a seed gives the same damage
again.
"""

import gzip
import json
import struct
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from random import Random

from gridsched.vram.header import HeaderError, NeedMore, scan_file
from tests.support.gguf_header import build_header
from tests.support.hostile_gguf import BYTES
from tests.vram.models import DATA

KEPT_TENSORS = 12  # of a real model: one of each kind, so that a run takes a fraction of a millisecond
MOST_BYTES = 1 << 17
NUMBERS = sorted(
    {0, 1, 3, 9, 42, 99, 512, 513, 4096, 32_768, 65_535, 65_536, 2**21 + 1}
    | {2**power + step for power in (7, 8, 15, 16, 24, 31, 32, 48, 62, 63) for step in (-1, 0, 1)}
    | {2**64 - 1, 2**64 - 32}
)
"""Where counts, lengths, types and offsets change their meaning."""


@cache
def seeds() -> tuple[bytes, ...]:
    """Short headers of every real model, in both byte orders, and those that lie already."""
    made: list[bytes] = []
    with gzip.open(DATA / "models.jsonl.gz", "rt", encoding="utf-8") as lines:
        for line in lines:
            facts = json.loads(line)
            metadata = {key: value for key, value in facts["metadata"].items() if value != []}
            metadata |= {"tokenizer.ggml.tokens": [f"t{i}" for i in range(600)], "tokenizer.ggml.scores": [0.0] * 600}
            made += [build_header(metadata, facts["tensors"][:KEPT_TENSORS], order=order) for order in "<>"]
    return (*made, *(data for _, data, _ in BYTES.values()))


@cache
def fields(data: bytes) -> tuple[tuple[int, int], ...]:
    """Where the reader looks in these bytes: offset and length of each field, up to the first that it refuses."""
    found: list[tuple[int, int]] = []

    def read_at(offset: int, least: int) -> bytes:
        found.append((offset, least))
        return data[offset : offset + least]

    with suppress(HeaderError, NeedMore):
        scan_file(read_at, 1 << 50)
    return tuple(found)


def mutated(random: Random) -> bytes:
    """A seed with one to four faults."""
    seed = random.choice(seeds())
    data = bytearray(seed)
    for _ in range(random.randint(1, 4)):
        random.choice(_FAULTS)(random, data, seed)
    return bytes(data[:MOST_BYTES])


def _number(random: Random, data: bytearray, seed: bytes) -> None:
    """A field becomes a number at which things change, or one that is off by a little."""
    offset, length = random.choice(fields(seed))
    if length not in (4, 8) or offset + length > len(data):
        return
    order = random.choice("<<<>")
    code = order + ("I" if length == 4 else "Q")
    old = struct.unpack_from(code, data, offset)[0]
    new = random.choice([*NUMBERS, old + 1, old - 1, 2 * old, len(data), len(data) - offset])
    struct.pack_into(code, data, offset, new % (1 << 8 * length))


def _flip(random: Random, data: bytearray, _: bytes) -> None:
    """A bit turns."""
    if data:
        data[random.randrange(len(data))] ^= 1 << random.randrange(8)


def _byte(random: Random, data: bytearray, seed: bytes) -> None:
    """A byte of a field becomes another."""
    offset, length = random.choice(fields(seed))
    where = offset + random.randrange(max(length, 1))
    if where < len(data):
        data[where] = random.randrange(256)


def _cut(random: Random, data: bytearray, _: bytes) -> None:
    """The rest is not there."""
    del data[random.randrange(len(data) + 1) :]


def _drop(random: Random, data: bytearray, seed: bytes) -> None:
    """A field is missing, and everything moves up."""
    offset, length = random.choice(fields(seed))
    del data[offset : offset + length]


def _repeat(random: Random, data: bytearray, seed: bytes) -> None:
    """A stretch from one field to another comes twice."""
    (start, _), (end, _) = sorted(random.choices(fields(seed), k=2))
    data[end:end] = data[start : min(end, start + 4096)]


def _swap(random: Random, data: bytearray, seed: bytes) -> None:
    """A field has another one's bytes."""
    (start, length), (other, size) = random.choices(fields(seed), k=2)
    data[start : start + length] = data[other : other + size]


def _insert(random: Random, data: bytearray, seed: bytes) -> None:
    """Noise comes before a field."""
    offset, _ = random.choice(fields(seed))
    data[offset:offset] = random.randbytes(random.randrange(1, 40))


def _splice(random: Random, data: bytearray, seed: bytes) -> None:
    """From some field on it is another file."""
    other = random.choice(seeds())
    data[random.choice(fields(seed))[0] :] = other[random.choice(fields(other))[0] :]


_FAULTS: tuple[Callable[[Random, bytearray, bytes], None], ...] = (
    *(_number,) * 6,
    _flip,
    _byte,
    _cut,
    _drop,
    _repeat,
    _swap,
    _insert,
    _splice,
)
