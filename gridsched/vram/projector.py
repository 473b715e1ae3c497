"""Projectors (`mmproj` files): the encoders that turn a picture or sound into embeddings, and what they compute in.

Owns the reading of their sizes and the width of their graph. An encoder works on one picture at a time, so that its
buffer is set by the largest picture it takes: the engine makes it for a smaller one at start and enlarges it when a
larger one comes, which would then find no room. It is therefore charged for the largest from the start.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from gridsched.vram.header import MetadataValue, TensorInfo

MOST_POSITIONS = 1 << 18  # a picture of 8192 pixels in patches of 16; more is nonsense in a header
SOUND_POSITIONS = 3000  # frames of 30 seconds, the piece that sound is cut into
ASSUMED_BYTES = 512 << 20  # for a file that does not tell its sizes: four times what SigLIP at 896 pixels takes

_LARGEST_IMAGES: dict[str, tuple[int, int]] = {
    "qwen2vl_merger": (4096, 2),
    "qwen2.5vl_merger": (4096, 2),
    "qwen3vl_merger": (4096, 2),
    "ling3vl": (4096, 2),
    "glm4v": (4096, 2),
    "gemma4v": (1120, 3),
    "gemma4uv": (1120, 1),
    "pixtral": (1024, 1),
    "kimivl": (1024, 2),
    "kimik25": (4096, 2),
    "lfm2": (256, 2),
    "minimax_m3": (576, 2),
    "muse-glimmer": (4096, 2),
    "youtuvl": (62500, 2),
}
"""Projectors for pictures of any size, by their type: the most tokens of one picture, and how many patches to a side a
token is made of where the header does not say (tools/mtmd/clip.cpp). Others see every picture at one size, or in tiles
of it."""


@dataclass(frozen=True, slots=True)
class Tower:
    """One encoder. Lengths are in values; `positions` are the patches or frames that it looks at together, at most.

    `gated` is a feed-forward part with a gate. `input_bytes` is the picture as it enters, which is in host memory.
    """

    embedding_length: int
    feed_forward_length: int
    heads: int
    head_length: int
    positions: int
    gated: bool = False
    input_bytes: int = 0

    def compute_bytes(self, *, flash_attn: bool) -> int:
        """What its graph takes. Exact for SigLIP at 896 pixels: 121.25 MiB with flash attention, 1132 without."""
        embedding, forward = self.embedding_length, self.feed_forward_length
        width = 3 * forward + 4 * embedding if self.gated else forward + 3 * embedding
        if not flash_attn:
            width = max(width, self.heads * self.positions + 6 * embedding)
        return 4 * self.positions * width


def read_towers(metadata: Mapping[str, MetadataValue], tensors: list[TensorInfo]) -> tuple[Tower, ...]:
    """The encoders of a projector file; one that does not tell its sizes is left out."""
    names = {tensor.name for tensor in tensors}
    found = (_tower(metadata, kind, f"{kind[0]}.blk.0.ffn_gate.weight" in names) for kind in ("vision", "audio"))
    return tuple(tower for tower in found if tower is not None)


def _tower(metadata: Mapping[str, MetadataValue], kind: str, gated: bool) -> Tower | None:
    def number(key: str) -> int:
        value = metadata.get(f"clip.{kind}.{key}")
        return int(value) if isinstance(value, int) and 0 < value < 1 << 31 else 0

    embedding, heads = number("embedding_length"), number("attention.head_count")
    if not embedding or not heads:
        return None
    input_bytes, positions = 0, SOUND_POSITIONS
    if kind == "vision":
        patch = number("patch_size")
        if not patch:
            return None
        names = metadata.get("clip.vision.projector_type", metadata.get("clip.projector_type"))
        positions = min(_positions(str(names), patch, number), MOST_POSITIONS)
        input_bytes = 3 * 4 * positions * patch * patch
    return Tower(
        embedding_length=embedding,
        feed_forward_length=number("feed_forward_length"),
        heads=heads,
        head_length=number("attention.head_dim") or embedding // heads,
        positions=positions,
        gated=gated,
        input_bytes=input_bytes,
    )


def _positions(projector: str, patch: int, number: Callable[[str], int]) -> int:
    """Patches of the largest picture."""
    if pixels := number("image_max_pixels"):
        return -(-pixels // (patch * patch))
    if projector in _LARGEST_IMAGES:
        tokens, side = _LARGEST_IMAGES[projector]
        side = number("spatial_merge_size") or number("projector.scale_factor") or side
        return tokens * side * side
    return max(number("image_size") // patch, 1) ** 2
