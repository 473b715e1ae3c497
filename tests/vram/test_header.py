"""Reading headers: whole, in part, newer than the reader, damaged and hostile."""

import struct
import tracemalloc
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gridsched.vram import header as reader
from gridsched.vram.header import Header, HeaderError, NeedMore, SkippedArray, scan, scan_file
from tests.fuzz.mutation import mutated
from tests.fuzz.property import check
from tests.support.gguf_header import Tensor, Value, build_header, data_end, entry, strings, tensor_row, text
from tests.vram.models import MIB

LLAMA: dict[str, Value] = {"general.architecture": "llama", "llama.block_count": 2, "llama.rope.freq_base": 10000.0}
TENSORS: list[Tensor] = [("token_embd.weight", [256, 64], "Q8_0"), ("blk.0.attn_q.weight", [256, 256], "Q4_K")]


def with_table(*rows: bytes, metadata: dict[str, str] | None = None) -> bytes:
    """A header whose tensor table holds exactly these rows."""
    entries = [entry(*item) for item in (metadata or {"general.architecture": "llama"}).items()]
    return b"GGUF" + struct.pack("<IQQ", 3, len(rows), len(entries)) + b"".join(entries) + b"".join(rows)


def outcome(data: bytes, file_bytes: int | None = None) -> Header | NeedMore | HeaderError:
    """What a scan ends in, as a value; any other exception goes through."""
    try:
        return scan(data, file_bytes=file_bytes)
    except (NeedMore, HeaderError) as end:
        return end


def refusal(data: bytes, file_bytes: int | None = None) -> HeaderError:
    """The error that these bytes end in."""
    with pytest.raises(HeaderError) as caught:
        scan(data, file_bytes=len(data) if file_bytes is None else file_bytes)
    return caught.value


@pytest.mark.parametrize("version", [2, 3])
def test_F1_versions_2_and_3_are_read(version: int) -> None:
    """Metadata, tensors with their sizes, and where the data begins."""
    data = build_header({**LLAMA, "x.list": [1, 2, 3], "x.names": ["a", "b"], "x.on": True}, TENSORS, version=version)
    header = scan(data, file_bytes=data_end(data, TENSORS))
    assert header.version == version
    assert header.metadata["llama.block_count"] == 2
    assert header.metadata["x.list"] == (1, 2, 3)
    assert header.metadata["x.names"] == ("a", "b")
    assert header.metadata["x.on"] is True
    assert [(tensor.name, tensor.shape, tensor.size_bytes) for tensor in header.tensors] == [
        ("token_embd.weight", (256, 64), 256 // 32 * 34 * 64),
        ("blk.0.attn_q.weight", (256, 256), 144 * 256),
    ]
    assert header.tensors[1].offset == header.tensors[0].size_bytes
    assert header.data_offset == len(data)
    assert header.notes == ()


@pytest.mark.parametrize("version", [2, 3])
def test_F1_big_endian_files_are_read_and_say_so(version: int) -> None:
    """All values as they were written, the tables alike; whoever loads the file finds it marked."""
    metadata: dict[str, Value] = {**LLAMA, "x.tokens": [f"t{i}" for i in range(2000)], "x.few": [1, 2], "x.to": "é"}
    little = scan(build_header(metadata, TENSORS, version=version))
    big = scan(build_header(metadata, TENSORS, version=version, order=">"))
    assert big.metadata == little.metadata
    assert big.tensors == little.tensors
    assert big.big_endian
    assert not little.big_endian
    assert "big-endian" in big.notes[0]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"GGUF" + struct.pack(">IQQ", 1, 1, 1), "GGUF version 1 is not supported"),
        (b"GGUF" + struct.pack(">IQQ", 99, 1, 1), "GGUF version 99 is not supported"),
        (b"GGUF" + struct.pack("<IQQ", 1, 1, 1), "GGUF version 1 is not supported"),
        (b"GGUF" + struct.pack("<IQQ", 99, 1, 1), "GGUF version 99 is not supported"),
        (b"GGUF" + struct.pack("<IQQ", 0, 1, 1), "GGUF version 0 is not supported"),
        (b"tjgg" + bytes(20), "it is a ggjt file, from before GGUF"),
        (b"ggjt" + bytes(20), "it is a ggjt file, from before GGUF"),
        (b"lmgg" + bytes(20), "it is a ggml file, from before GGUF"),
        (b"PK\3\4" + bytes(20), "it is a zip archive"),
        (struct.pack("<Q", 900) + b'{"__metadata__":{}}', "it is a safetensors file"),
        (b"\n<!DOCTYPE html><html>", "it is a web page"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:", "it is a Git LFS pointer"),
        (b'{"error":"gated"}' + bytes(20), "it is a JSON text"),
        (bytes(4096), "it begins with zeros"),
        (b"PK", "not a GGUF file"),
        (b"what is this file", "it begins with b'what'"),
    ],
)
def test_F1_other_versions_and_formats_are_refused_by_name(data: bytes, words: str) -> None:
    """The sentence says which of them it is."""
    assert words in str(refusal(data))


def test_a_prefix_asks_for_more_until_it_is_enough() -> None:
    """Reading what is asked for, and no more, ends at the header's end in a few steps."""
    data = build_header({**LLAMA, "tokenizer.ggml.tokens": [f"token {i}" for i in range(3000)]}, TENSORS) + bytes(4096)
    whole = scan(data)
    have, steps = 0, 0
    while isinstance(more := outcome(data[:have]), NeedMore):
        assert have < more.bytes_needed <= whole.data_offset
        have, steps = max(more.bytes_needed, 2 * have), steps + 1
    assert steps < 20
    assert more == whole


@pytest.mark.parametrize(
    ("row", "field", "words"),
    [
        (text("w") + struct.pack("<I", 0) + bytes(12), "tensor 'w', dimensions", "0 dimensions"),
        (text("w") + struct.pack("<I", 99) + bytes(99 * 8 + 12), "tensor 'w', dimensions", "99 dimensions"),
        (tensor_row("w", [0, 4], 0, 0), "tensor 'w', shape", "no values"),
        (tensor_row("w", [2**40, 2**40], 0, 0), "tensor 'w', shape", "too many values"),
        (tensor_row("w", [33], 8, 0), "tensor 'w', shape", "no multiple of Q8_0's 32"),
        (tensor_row("w", [32], 0, 7), "tensor 'w', offset", "no multiple of the alignment"),
        (tensor_row("w", [32], 0, 2**40), "tensor 'w', offset", "there is a gap before it"),
        (tensor_row("w", [2**30], 0, 0), "tensor 'w', offset", "reach over the end of the file"),
        (struct.pack("<Q", 2**63) + bytes(40), "tensor 0", "claims 9223372036854775808 bytes"),
        (struct.pack("<Q", 2) + b"\xff\xfe" + bytes(40), "tensor 0", "not UTF-8"),
        (struct.pack("<Q", 2**64 - 1) + bytes(40), "tensor 0", "claims 18446744073709551615 bytes"),
        (tensor_row("w" * 64, [32], 0, 0), "tensor 0", "claims 64 bytes (1 to 63 are possible)"),
        (tensor_row("", [32], 0, 0), "tensor 0", "claims 0 bytes"),
        (tensor_row("w", [2**63, 2**63, 2**63, 2**63], 0, 0), "tensor 'w', shape", "too many values"),
        (tensor_row("w", [2**64 - 1], 0, 0), "tensor 'w', shape", "too many values"),
        (tensor_row("w", [32], 0, 2**64 - 32), "tensor 'w', offset", "there is a gap before it"),
    ],
)
def test_F4_a_hostile_tensor_table_is_refused_by_tensor_and_field(row: bytes, field: str, words: str) -> None:
    """One fault in 200 bytes: the error names the tensor, the field and the place."""
    error = refusal(with_table(row))
    assert error.field == field
    assert words in error.message
    assert error.offset >= 24


def test_F4_tensors_that_overlap_or_share_a_name_are_refused() -> None:
    """No two tensors over the same bytes, no two of one name; each behind the other, as the engine wants them."""
    overlap = with_table(tensor_row("a", [64], 0, 0), tensor_row("b", [64], 0, 32)) + bytes(1024)
    assert "lies at 32 of the data instead of 256: it overlaps the one before" in str(refusal(overlap))
    gap = with_table(tensor_row("a", [64], 0, 0), tensor_row("b", [64], 0, 512)) + bytes(1024)
    assert "lies at 512 of the data instead of 256: there is a gap before it" in str(refusal(gap))
    unknown = with_table(tensor_row("a", [64], 99, 64), tensor_row("b", [64], 0, 0)) + bytes(1024)
    assert "tensor 'a', offset" in str(refusal(unknown))
    twins = with_table(tensor_row("a", [8], 0, 0), tensor_row("a", [8], 0, 32)) + bytes(1024)
    assert "tensor 'a'" in str(refusal(twins))
    assert "appears twice" in str(refusal(twins))


ARRAY = text("k") + struct.pack("<I", 9)
STRING = text("k") + struct.pack("<I", 8)


@pytest.mark.parametrize("file_bytes", [200, None], ids=["size known", "size unknown"])
@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 2**40), "1099511627776 is implausible"),
        (b"GGUF" + struct.pack("<IQQ", 3, 2**40, 1), "1099511627776 is implausible"),
        (STRING + struct.pack("<Q", 2**62), "4611686018427387904 bytes"),
        (ARRAY + struct.pack("<IQ", 5, 2**50), "4503599627370496 bytes"),
        (ARRAY + struct.pack("<IQ", 8, 2**50), "9007199254740992 bytes"),
        (ARRAY + struct.pack("<IQ", 8, 2**61), "18446744073709551616 bytes"),
        (ARRAY + struct.pack("<IQ", 0, 2**64 - 1), "18446744073709551615 bytes"),
        (ARRAY + struct.pack("<IQ", 8, 1000) + struct.pack("<Q", 2**62) + bytes(9000), "4611686018427387904 bytes"),
        (ARRAY + struct.pack("<IQ", 9, 1) * 1000, "arrays of arrays"),
        (ARRAY + struct.pack("<IQ", 77, 1), "unknown array type 77"),
        (text("k") + struct.pack("<I", 13) + bytes(8), "unknown value type 13"),
        (text("k") + struct.pack("<I", 2**31) + bytes(8), "unknown value type"),
    ],
)
def test_F5_huge_counts_are_refused_before_anything_is_made_of_them(
    data: bytes, words: str, file_bytes: int | None
) -> None:
    """Each length is checked against what can be there first: nothing is allocated, nothing loops."""
    if not data.startswith(b"GGUF"):
        data = b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + data
    tracemalloc.start()
    try:
        with pytest.raises(HeaderError) as caught:
            scan(data, file_bytes=None if file_bytes is None else max(len(data), file_bytes))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert words in str(caught.value)
    assert peak < MIB


def test_F15_a_key_that_appears_twice_is_refused() -> None:
    """What a second value would mean is anybody's guess."""
    data = build_header([entry("a", 1), entry("a", 2)])
    assert "metadata 'a'" in str(refusal(data))


def test_F5_a_key_must_have_a_name_and_a_plausible_one() -> None:
    """An empty key aborts the engine; a long one is no key."""
    assert "metadata entry 0" in str(refusal(build_header([entry("", 1)])))
    assert "claims 65536 bytes" in str(refusal(build_header([entry("k" * 65_536, 1)])))


def test_F5_what_is_kept_of_a_header_has_a_budget() -> None:
    """Texts and lists over it are hopped over and counted, as long vocabularies are; keys over it are refused."""
    lists: dict[str, Value] = {f"list{i}": [7] * 512 for i in range(200)}
    texts: dict[str, Value] = {"long": "x" * reader.KEPT_BYTES, "template": "y" * 1000, "words": ["a", "b"]}
    metadata = scan(build_header({**texts, **lists, "words again": ["a"] * 500, "behind": 9})).metadata
    assert metadata["long"] == SkippedArray("byte", reader.KEPT_BYTES)
    assert metadata["template"] == "y" * 1000
    assert metadata["list0"] == (7,) * 512
    assert metadata["list199"] == SkippedArray("i32", 512)
    assert metadata["words again"] == SkippedArray("string", 500)
    assert metadata["behind"] == 9
    keys = build_header([entry(f"{i:05}" + "k" * 60_000, i) for i in range(40)])
    assert "the keys before it are too long" in str(refusal(keys))


@pytest.mark.parametrize("alignment", [0, 3, "32", 2.0, True])
def test_F4_an_alignment_that_is_no_power_of_two_is_refused(alignment: object) -> None:
    """It would move every tensor."""
    assert isinstance(alignment, int | float | str)
    data = build_header({"general.alignment": alignment}, TENSORS)
    assert "general.alignment" in refusal(data, 10**6).field


def test_a_file_that_is_not_complete_is_said_to_be_so() -> None:
    """A download that stopped: the header is whole, the last tensor is not."""
    data = build_header(LLAMA, TENSORS)
    error = refusal(data, data_end(data, TENSORS) - 1024)
    assert error.field == "tensor 'blk.0.attn_q.weight', offset"
    assert "not complete" in error.message


def test_F13_new_types_are_sized_and_unknown_ones_taken_from_the_offsets() -> None:
    """MXFP4 is 17 bytes for 32 values; a type nobody knows yet ends where the next tensor begins."""
    rows: list[Tensor] = [("a", [64, 4], "MXFP4"), ("b", [64, 4], 42), ("c", [64, 4], 99)]
    data = build_header({"general.architecture": "llama"}, rows)
    header = scan(data, file_bytes=data_end(data, rows))
    assert [tensor.size_bytes for tensor in header.tensors] == [64 // 32 * 17 * 4, 256, 256]
    assert len(header.notes) == 2
    assert "'b' has the unknown type 42: taken as 256 bytes" in header.notes[0]
    assert "'c' has the unknown type 99" in header.notes[1]


def test_F13_an_unknown_type_at_the_end_of_a_file_of_unknown_length_is_taken_as_f16() -> None:
    """The dear guess, and said so."""
    data = build_header({"general.architecture": "llama"}, [("a", [64, 4], 42)])
    header = scan(data)
    assert header.tensors[0].size_bytes == 64 * 4 * 2
    assert header.notes


def vocabulary_header(entries: int) -> bytes:
    """A header with the four lists of a tokenizer."""
    tokens = [f"▁word{i}" for i in range(entries)]
    tokens[7::5000] = ["x" * 300] * len(tokens[7::5000])
    merges = [f"▁wo rd{i}" for i in range(entries)]
    lists = {
        "tokens": struct.pack("<IIQ", 9, 8, entries) + strings(tokens),
        "merges": struct.pack("<IIQ", 9, 8, entries) + strings(merges),
        "scores": struct.pack("<IIQ", 9, 6, entries) + bytes(4 * entries),
        "token_type": struct.pack("<IIQ", 9, 5, entries) + bytes(4 * entries),
    }
    metadata = [entry("general.architecture", "llama")]
    metadata += [text(f"tokenizer.ggml.{name}") + body for name, body in lists.items()]
    return build_header(metadata, TENSORS)


@pytest.mark.slow
def test_F15_a_large_vocabulary_is_hopped_over() -> None:
    """262,144 tokens with merges, scores and types: found, counted, and none of them built."""
    data = vocabulary_header(262_144)
    tracemalloc.start()
    try:
        header = scan(data)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < MIB  # the mark is 20 MiB
    assert header.metadata["tokenizer.ggml.tokens"] == SkippedArray("string", 262_144)
    assert header.metadata["tokenizer.ggml.merges"] == SkippedArray("string", 262_144)
    assert header.metadata["tokenizer.ggml.scores"] == SkippedArray("f32", 262_144)
    assert header.metadata["tokenizer.ggml.token_type"] == SkippedArray("i32", 262_144)
    assert header.data_offset == len(data)


def test_F15_short_and_long_entries_are_hopped_over_alike() -> None:
    """Entries of every length up to 400 bytes, in one list: the next key is found behind them."""
    entries = ["y" * length for length in range(400)] * 2
    data = build_header({"list": entries, "behind": 7})
    assert scan(data).metadata == {"list": SkippedArray("string", 800), "behind": 7}


@pytest.mark.parametrize("kind", [0, 4, 5, 10, 11, 12], ids=str)
def test_F15_a_short_file_that_claims_a_long_list_is_refused_at_once(kind: int) -> None:
    """A 100-byte file with ten million numbers: the claim is checked against the file."""
    data = b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + ARRAY + struct.pack("<IQ", kind, 10_000_000)
    assert "but the file ends" in str(refusal(data, 100))


class Windows:
    """A file that gives just so many bytes more than it is asked for, and counts what it gave."""

    def __init__(self, data: bytes, more: int) -> None:
        self.data, self.more, self.given = data, more, 0

    def __call__(self, offset: int, least: int) -> bytes:
        window = self.data[offset : offset + least + self.more]
        self.given += len(window)
        return window


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("more", [0, 1, 7, 100, 5000])
def test_windows_of_any_size_give_the_same_header(more: int, order: str) -> None:
    """Wherever a window ends: in a length, a text, a list, a row of the table."""
    metadata: dict[str, Value] = {
        **LLAMA,
        "tokens": [f"t{i}" for i in range(1500)],
        "mixed": ["z" * (i % 300) for i in range(700)],
        "scores": [0.5] * 3000,
        "few": [1, 2, 3],
        "text": "é" * 2000,
    }
    data = build_header(metadata, TENSORS, order=order)
    file_bytes = data_end(data, TENSORS)
    assert scan_file(Windows(data, more), file_bytes) == scan(data, file_bytes=file_bytes)


def test_what_nobody_looks_at_is_not_read() -> None:
    """Lists of numbers and texts beyond the budget are hopped over in the file, not only in memory."""
    data = build_header({"scores": [0.5] * 500_000, "text": "x" * (reader.KEPT_BYTES + 1), "behind": 1})
    file = Windows(data, 1000)
    assert scan_file(file, len(data)).metadata["behind"] == 1
    assert file.given < 10_000


def test_F15_a_file_that_ends_before_its_size_asks_for_more() -> None:
    """Whoever reads knows that the file has become shorter meanwhile."""
    data = build_header(LLAMA, TENSORS)
    with pytest.raises(NeedMore):
        scan_file(Windows(data[:100], 0), data_end(data, TENSORS))


def test_any_buffer_will_do() -> None:
    """bytes, bytearray and memoryview read alike, and the buffer is given back."""
    data = build_header(LLAMA, TENSORS)
    growing = bytearray(data)
    assert scan(growing) == scan(memoryview(data)) == scan(data)
    growing += b"more"  # would raise if the scan still held the buffer
    assert len(growing) == len(data) + 4


FUZZ = settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@pytest.mark.slow
@FUZZ
@given(st.randoms(use_true_random=False))
def test_damaged_headers_end_in_a_header_a_request_or_an_error(random: Random) -> None:
    """Fields replaced, moved, cut, repeated, in headers of every real model: never another exception, however they are
    read, and planning bears what comes out. `make fuzz` tries more of them."""
    check(mutated(random))


@pytest.mark.slow
@FUZZ
@given(st.binary(max_size=300))
def test_noise_after_the_magic_ends_the_same_way(noise: bytes) -> None:
    """Any bytes behind a valid start."""
    for data in (b"GGUF" + noise, b"GGUF\x03\0\0\0" + noise, b"GGUF" + struct.pack("<IQQ", 3, 2, 2) + noise):
        check(data)
