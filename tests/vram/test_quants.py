"""The table of tensor types, against the package that llama.cpp itself publishes."""

import pytest
from gguf.constants import GGML_QUANT_SIZES

from gridsched.vram.quants import CACHE_TYPES, QUANT_TYPES, cuda_padding_bytes, row_bytes


def test_the_table_is_the_gguf_packages() -> None:
    """Every type that the package knows is in ours, by the same name, with the same sizes."""
    theirs = {kind.value: (kind.name, *sizes) for kind, sizes in GGML_QUANT_SIZES.items()}
    assert {number: tuple(kind) for number, kind in QUANT_TYPES.items()} == theirs


@pytest.mark.parametrize(
    ("name", "bytes_for_32"),
    [("f16", 64), ("bf16", 64), ("f32", 128), ("q8_0", 34), ("q5_1", 24), ("q5_0", 22), ("q4_1", 20), ("q4_0", 18)],
)
def test_E20_cache_types_have_their_sizes(name: str, bytes_for_32: int) -> None:
    """Bytes of 32 values in each type that a cache can have."""
    assert row_bytes(CACHE_TYPES[name], 32) == bytes_for_32


def test_cuda_pads_quantized_rows_only() -> None:
    """A quantized row that is no multiple of 512 values gets the rest of 512; f16 gets nothing."""
    q4 = CACHE_TYPES["q4_0"]
    assert cuda_padding_bytes(q4, 1024) == 0
    assert cuda_padding_bytes(q4, 192) == row_bytes(q4, 320)
    assert cuda_padding_bytes(CACHE_TYPES["f16"], 192) == 0
