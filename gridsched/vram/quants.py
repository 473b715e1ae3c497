"""The tensor types of ggml, by the id that a header writes: how many bytes a row of values takes.

Owns the table and the arithmetic on one row; knows no tensor, no device. The figures are those of the `gguf` package's
`GGML_QUANT_SIZES`, kept here because importing any part of that package runs all of it (numpy, yaml, about 0.3 s and
200 modules), which the pure floor must not cost; a test holds the two tables equal.
"""

from typing import NamedTuple


class QuantType(NamedTuple):
    """A storage type: `block_values` values take `block_bytes` bytes."""

    name: str
    block_values: int
    block_bytes: int

    @property
    def is_quantized(self) -> bool:
        """Whether values are packed in blocks rather than stored one by one."""
        return self.block_values > 1


QUANT_TYPES: dict[int, QuantType] = {
    0: QuantType("F32", 1, 4),
    1: QuantType("F16", 1, 2),
    2: QuantType("Q4_0", 32, 18),
    3: QuantType("Q4_1", 32, 20),
    6: QuantType("Q5_0", 32, 22),
    7: QuantType("Q5_1", 32, 24),
    8: QuantType("Q8_0", 32, 34),
    9: QuantType("Q8_1", 32, 40),
    10: QuantType("Q2_K", 256, 84),
    11: QuantType("Q3_K", 256, 110),
    12: QuantType("Q4_K", 256, 144),
    13: QuantType("Q5_K", 256, 176),
    14: QuantType("Q6_K", 256, 210),
    15: QuantType("Q8_K", 256, 292),
    16: QuantType("IQ2_XXS", 256, 66),
    17: QuantType("IQ2_XS", 256, 74),
    18: QuantType("IQ3_XXS", 256, 98),
    19: QuantType("IQ1_S", 256, 50),
    20: QuantType("IQ4_NL", 32, 18),
    21: QuantType("IQ3_S", 256, 110),
    22: QuantType("IQ2_S", 256, 82),
    23: QuantType("IQ4_XS", 256, 136),
    24: QuantType("I8", 1, 1),
    25: QuantType("I16", 1, 2),
    26: QuantType("I32", 1, 4),
    27: QuantType("I64", 1, 8),
    28: QuantType("F64", 1, 8),
    29: QuantType("IQ1_M", 256, 56),
    30: QuantType("BF16", 1, 2),
    34: QuantType("TQ1_0", 256, 54),
    35: QuantType("TQ2_0", 256, 66),
    39: QuantType("MXFP4", 32, 17),
    40: QuantType("NVFP4", 64, 36),
    41: QuantType("Q1_0", 128, 18),
}
"""The package's types, no more: from 42 on several forks number types of their own, so that an id says nothing. Such a
tensor is sized by where the next one begins (`header`)."""

CACHE_TYPES: dict[str, QuantType] = {
    name: next(kind for kind in QUANT_TYPES.values() if kind.name == name.upper())
    for name in ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1")
}
"""What `--cache-type-k` and `--cache-type-v` take, by llama-server's spelling."""

CUDA_ROW_VALUES = 512
"""CUDA reads quantized rows 512 values at a time: the last row of a tensor is padded to that (ggml-cuda)."""


def row_bytes(kind: QuantType, values: int) -> int:
    """Bytes of one row; a row that does not fill its last block is charged the whole block."""
    return -(-values // kind.block_values) * kind.block_bytes


def cuda_padding_bytes(kind: QuantType, row_values: int) -> int:
    """What CUDA adds behind a tensor whose quantized rows are no multiple of 512 values."""
    if not kind.is_quantized or row_values % CUDA_ROW_VALUES == 0:
        return 0
    return row_bytes(kind, CUDA_ROW_VALUES - row_values % CUDA_ROW_VALUES)
