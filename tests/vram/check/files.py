"""Model files that load and mean nothing: true headers, a vocabulary without words, holes where the weights would be.

Owns the making of such files from the facts of real models, whole or with fewer layers. A hole takes no disk and reads
as zeros: an engine loads it, allocates and computes as with the real one, and answers nonsense.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gridsched.vram.geometry import Geometry
from gridsched.vram.header import scan
from tests.support.gguf_header import Tensor, Value, build_header, data_end, tensor_bytes
from tests.vram.models import real_facts

ROPE_FACTORS = "rope_freqs.weight"
ONE = b"\x00\x00\x80\x3f"
"""1.0 as an F32: frequencies are divided by these factors, and nothing bears a division by a hole."""

SPECIAL = ("<unk>", "<s>", "</s>")
NORMAL, UNKNOWN, CONTROL, BYTE = 1, 2, 3, 6
"""Kinds of tokens, as the format numbers them."""


@dataclass(frozen=True, slots=True)
class Description:
    """What a file would say: a name, metadata without a tokenizer, the tensors."""

    name: str
    metadata: dict[str, Value]
    tensors: tuple[Tensor, ...]

    @property
    def architecture(self) -> str:
        """The header's own word."""
        return str(self.metadata["general.architecture"])

    @property
    def vocabulary(self) -> int:
        """How many tokens the token table has."""
        return next(int(shape[1]) for name, shape, _ in self.tensors if name == "token_embd.weight")


def whole(name: str) -> Description:
    """A real model as it is."""
    metadata, tensors = real_facts()[name]
    return Description(name, metadata, tuple(tensors))


def cut(name: str, blocks: int, vocabulary: int) -> Description:
    """A real model's first blocks with a smaller vocabulary: every width as it is, and a fraction of the bytes."""
    full = whole(name)
    prefix = f"{full.architecture}."
    had = full.metadata[f"{prefix}block_count"]
    metadata = dict(full.metadata)
    for key, value in full.metadata.items():
        if key.startswith(prefix) and isinstance(value, Sequence) and not isinstance(value, str) and len(value) == had:
            metadata[key] = value[:blocks]
    metadata |= {f"{prefix}block_count": blocks, f"{prefix}vocab_size": vocabulary}
    metadata.pop(f"{prefix}nextn_predict_layers", None)
    tensors = []
    for tensor, shape, kind in full.tensors:
        if tensor.startswith("blk.") and int(tensor.split(".")[1]) >= blocks:
            continue
        tables = ("token_embd.weight", "output.weight")
        tensors.append((tensor, [shape[0], vocabulary] if tensor in tables else shape, kind))
    return Description(f"{name}-{blocks}-blocks", metadata, tuple(tensors))


def write(description: Description, path: Path) -> Geometry:
    """Make the file, and say what planning makes of it."""
    tensors = description.tensors
    header = build_header(description.metadata | _tokenizer(description.vocabulary), tensors)
    with path.open("wb") as file:
        file.write(header)
        file.truncate(data_end(header, tensors))
        for place, (name, shape, kind) in enumerate(tensors):
            if name == ROPE_FACTORS:
                file.seek(data_end(header, tensors[:place]))
                file.write(ONE * (tensor_bytes(shape, kind) // len(ONE)))
    return Geometry.from_header(scan(header))


def _tokenizer(count: int) -> dict[str, Value]:
    """Three special tokens, all bytes, and words that nothing is made of."""
    tokens = [*SPECIAL, *(f"<0x{byte:02X}>" for byte in range(256))]
    kinds = [UNKNOWN, CONTROL, CONTROL, *[BYTE] * 256]
    tokens += [f"<nothing {number}>" for number in range(count - len(tokens))]
    kinds += [NORMAL] * (count - len(kinds))
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": [0.0] * count,
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.add_bos_token": False,
    }
