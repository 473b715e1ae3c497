"""Model files for the library's tests: true headers over data that is not there."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.support.gguf_header import Tensor, Value, build_header, data_end

WIDTH, VOCAB, BLOCKS = 256, 512, 2
TENSORS: tuple[Tensor, ...] = (
    ("token_embd.weight", (WIDTH, VOCAB), "Q8_0"),
    *((f"blk.{block}.attn_q.weight", (WIDTH, WIDTH), "Q8_0") for block in range(BLOCKS)),
    ("output.weight", (WIDTH, VOCAB), "Q8_0"),
)
CHAT: Mapping[str, Value] = {
    "general.architecture": "llama",
    "llama.block_count": BLOCKS,
    "llama.context_length": 16384,
    "llama.embedding_length": WIDTH,
    "llama.feed_forward_length": 512,
    "llama.attention.head_count": 4,
    "llama.attention.head_count_kv": 2,
    "tokenizer.ggml.tokens": [f"t{number}" for number in range(VOCAB)],
    "tokenizer.chat_template": "{{ messages }}",
}
EMBEDDER: Mapping[str, Value] = {
    "general.architecture": "bert",
    "bert.block_count": BLOCKS,
    "bert.context_length": 512,
    "bert.embedding_length": WIDTH,
    "bert.feed_forward_length": 512,
    "bert.attention.head_count": 4,
    "bert.pooling_type": 1,
}
RERANKER: Mapping[str, Value] = {**EMBEDDER, "bert.pooling_type": 4}
BASE: Mapping[str, Value] = {key: value for key, value in CHAT.items() if key != "tokenizer.chat_template"}
PROJECTOR_TENSORS: tuple[Tensor, ...] = (("mm.0.weight", (64, 64), "F16"),)
ADAPTER: tuple[Tensor, ...] = (
    ("blk.0.attn_q.weight.lora_a", (WIDTH, 8), "F16"),
    ("blk.0.attn_q.weight.lora_b", (8, WIDTH), "F16"),
)
PROJECTOR: Mapping[str, Value] = {
    "general.architecture": "clip",
    "general.type": "mmproj",
    "clip.has_vision_encoder": True,
    "clip.vision.projection_dim": WIDTH,
}


def write_model(
    path: Path, metadata: Mapping[str, Value] = CHAT, tensors: Sequence[Tensor] = TENSORS, *, age_seconds: int = 0
) -> Path:
    """A model file of the true size, sparse on disk. Its time is fixed: 2026-01-01 less `age_seconds`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    header = build_header(metadata, tensors)
    with path.open("wb") as file:
        file.write(header)
        file.truncate(data_end(header, tensors))
    modified = 1_767_225_600 - age_seconds
    os.utime(path, (modified, modified))
    return path


def write_split(folder: Path, stem: str, parts: int, metadata: Mapping[str, Value] = CHAT) -> list[Path]:
    """The same model over several files, its tensors dealt out in turn; only the first has the metadata."""
    paths = []
    for number in range(parts):
        own = {"split.no": number, "split.count": parts, "split.tensors.count": len(TENSORS)}
        path = folder / f"{stem}-{number + 1:05}-of-{parts:05}.gguf"
        paths.append(write_model(path, {**(metadata if number == 0 else {}), **own}, TENSORS[number::parts]))
    return paths
