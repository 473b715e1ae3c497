"""A tiny BERT of random weights, in the files that MiniLM's package carries it in."""

import json
import struct
from collections.abc import Mapping
from pathlib import Path

import numpy as np

LAYERS, HEADS, WIDTH, INNER, CONTEXT = 2, 4, 32, 64, 64
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefgh", *(f"##{letter}" for letter in "abcdefgh"), "##"]
CONFIG: Mapping[str, object] = {
    "model_type": "bert",
    "hidden_act": "gelu",
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "hidden_size": WIDTH,
    "intermediate_size": INNER,
    "max_position_embeddings": CONTEXT,
    "vocab_size": len(WORDS),
    "type_vocab_size": 2,
    "layer_norm_eps": 1e-12,
}


def shapes() -> dict[str, tuple[int, ...]]:
    """Every tensor the converter needs, as the source names it, and one that it does not."""
    found: dict[str, tuple[int, ...]] = {
        "embeddings.position_ids": (1, CONTEXT),
        "embeddings.word_embeddings.weight": (len(WORDS), WIDTH),
        "embeddings.position_embeddings.weight": (CONTEXT, WIDTH),
        "embeddings.token_type_embeddings.weight": (2, WIDTH),
    }
    dense = {"embeddings.LayerNorm": (WIDTH,)}
    for layer in range(LAYERS):
        prefix = f"encoder.layer.{layer}"
        dense |= {f"{prefix}.attention.self.{part}": (WIDTH, WIDTH) for part in ("query", "key", "value")}
        dense |= {f"{prefix}.attention.output.dense": (WIDTH, WIDTH), f"{prefix}.attention.output.LayerNorm": (WIDTH,)}
        dense |= {f"{prefix}.intermediate.dense": (INNER, WIDTH), f"{prefix}.output.dense": (WIDTH, INNER)}
        dense |= {f"{prefix}.output.LayerNorm": (WIDTH,)}
    for name, shape in dense.items():
        found |= {f"{name}.weight": shape, f"{name}.bias": shape[:1]}
    return found


def write_tensors(path: Path, tensors: Mapping[str, np.ndarray]) -> None:
    """A safetensors file."""
    names = {"float32": "F32", "float16": "F16", "int64": "I64"}
    head: dict[str, object] = {"__metadata__": {"format": "pt"}}
    body = b""
    for name, values in tensors.items():
        raw = values.tobytes()
        head[name] = {
            "dtype": names[str(values.dtype)],
            "shape": list(values.shape),
            "data_offsets": [len(body), len(body) + len(raw)],
        }
        body += raw
    packed = json.dumps(head).encode()
    path.write_bytes(struct.pack("<Q", len(packed)) + packed + body)


def write_tiny_bert(folder: Path) -> dict[str, np.ndarray]:
    """All three files; gives the tensors, so that a test can look them up or write them anew."""
    random = np.random.default_rng(7)
    tensors = {name: random.normal(0.0, 0.3, shape).astype(np.float32) for name, shape in shapes().items()}
    tensors["embeddings.position_ids"] = np.arange(CONTEXT, dtype=np.int64).reshape(1, CONTEXT)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (folder / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    write_tensors(folder / "model.safetensors", tensors)
    return tensors
