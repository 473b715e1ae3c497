"""A model's tensors as placement sees them: the block that each belongs to, its bytes in each kind of memory.

Owns ggml's rounding of a tensor, the sums by block, and which tensors the processor's backend lays out anew. Knows no
device.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from gridsched.vram.header import TensorInfo
from gridsched.vram.quants import QUANT_TYPES, cuda_padding_bytes

DEVICE_TENSOR_ALIGNMENT = 128  # CUDA's buffer type rounds every tensor up to this
HOST_TENSOR_ALIGNMENT = 32  # and the CPU's to this
_REPACKED = frozenset(("Q2_K", "Q4_0", "Q4_K", "IQ4_NL", "MXFP4"))
"""Types that ggml lays out anew for x86 processors (ggml-cpu/repack), in memory beside the mapped file."""
_REPACK_ROWS = 8  # rows are interleaved by so many, or not at all
_BLOCK = re.compile(r"(?:(?:enc|dec)\.)?blk\.(\d{1,9})\.")
"""An encoder-decoder's two stacks share their numbers, and so the devices of their layers."""


@dataclass(frozen=True, slots=True)
class Weight:
    """A tensor as placement sees it: its block (None outside of blocks) and its bytes in each kind of memory.

    `repacked_bytes` is the second copy that the engine makes when it computes with this tensor on the CPU, 0 for none.
    """

    name: str
    block: int | None
    file_bytes: int
    host_bytes: int
    device_bytes: int
    repacked_bytes: int


class BlockBytes(NamedTuple):
    """All tensors of one block together: how many they are, and their bytes on the host and on a device."""

    tensors: int
    host_bytes: int
    device_bytes: int


@dataclass(frozen=True, slots=True, eq=False)
class Tensors:
    """The tensors of one file, those of a block added up: launches are estimated by the hundred, and move whole blocks.

    Each is equal to itself alone, so that what follows from one can be remembered by it.
    """

    named: Mapping[str, Weight]
    outside: tuple[Weight, ...]
    blocks: Mapping[int, BlockBytes]

    @classmethod
    def of(cls, weights: tuple[Weight, ...]) -> "Tensors":
        """The same, sorted."""
        blocks: dict[int, BlockBytes] = {}
        for one in weights:
            if one.block is not None:
                count, host, device = blocks.get(one.block, (0, 0, 0))
                blocks[one.block] = BlockBytes(count + 1, host + one.host_bytes, device + one.device_bytes)
        outside = tuple(one for one in weights if one.block is None)
        return cls({one.name: one for one in weights}, outside, blocks)


def weight(tensor: TensorInfo) -> Weight:
    """What a row of the tensor table takes."""
    block = _BLOCK.match(tensor.name)
    kind = QUANT_TYPES.get(tensor.type_id)
    padding = cuda_padding_bytes(kind, tensor.shape[0]) if kind else 0
    multiplied = len(tensor.shape) > 1 and (block is not None or tensor.name == "output.weight")
    repacked = multiplied and kind is not None and kind.name in _REPACKED and tensor.shape[1] % _REPACK_ROWS == 0
    return Weight(
        name=tensor.name,
        block=int(block.group(1)) if block else None,
        file_bytes=tensor.size_bytes,
        host_bytes=_rounded(tensor.size_bytes, HOST_TENSOR_ALIGNMENT),
        device_bytes=_rounded(tensor.size_bytes + padding, DEVICE_TENSOR_ALIGNMENT),
        repacked_bytes=tensor.size_bytes if repacked else 0,
    )


def _rounded(size: int, alignment: int) -> int:
    return -(-size // alignment) * alignment
