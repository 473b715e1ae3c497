"""Projectors of 0.7 MB for the tiny chat model: llama-server then takes pictures, or sound, and answers with nonsense.

The same bytes every time. The ear is Whisper's encoder with Ultravox's projector, the eye SigLIP's with Gemma's, each
as small as it may be.
"""

import math
import struct
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path

import gguf
import numpy as np
from numpy.typing import NDArray

_WIDTH, _HEADS = 64, 2
_CHAT_WIDTH = 64  # of the model that it is loaded beside
_SIZES = {
    "projection_dim": _CHAT_WIDTH,
    "embedding_length": _WIDTH,
    "feed_forward_length": _WIDTH,
    "block_count": 1,
    "attention.head_count": _HEADS,
}
_MEL_BINS, _POSITIONS, _HIDDEN, _RATE = 80, 1500, 32, 16_000
_STACK = 20  # frames that become one token; divides the positions
_IMAGE, _PATCH = 56, 14  # pixels

Tensor = NDArray[np.float32] | NDArray[np.float16]
Weights = Callable[..., NDArray[np.float16]]


def make_tiny_ear(path: Path) -> Path:
    """Write a projector for sound to `path` and return it."""
    weights = _weights()
    tensors: dict[str, Tensor] = {
        "a.position_embd.weight": weights(_POSITIONS, _WIDTH).astype(np.float32),
        "a.conv1d.1.weight": weights(_WIDTH, _MEL_BINS, 3),
        "a.conv1d.1.bias": np.zeros((_WIDTH, 1), np.float32),
        "a.conv1d.2.weight": weights(_WIDTH, _WIDTH, 3),
        "a.conv1d.2.bias": np.zeros((_WIDTH, 1), np.float32),
        "mm.a.norm_pre.weight": np.ones(_WIDTH * _STACK, np.float32),
        "mm.a.mlp.1.weight": weights(2 * _HIDDEN, _WIDTH * _STACK),
        "mm.a.norm_mid.weight": np.ones(_HIDDEN, np.float32),
        "mm.a.mlp.2.weight": weights(_CHAT_WIDTH, _HIDDEN),
        **_block("a", weights),
    }
    del tensors["a.blk.0.attn_k.bias"]
    more = {"num_mel_bins": _MEL_BINS, "projector.stack_factor": _STACK}
    return _write(path, "audio", "ultravox", _SIZES | more, tensors)


def make_tiny_eye(path: Path) -> Path:
    """Write a projector for pictures to `path` and return it."""
    weights = _weights()
    tensors: dict[str, Tensor] = {
        "v.patch_embd.weight": weights(_WIDTH, 3, _PATCH, _PATCH),
        "v.patch_embd.bias": np.zeros(_WIDTH, np.float32),
        "v.position_embd.weight": weights((_IMAGE // _PATCH) ** 2, _WIDTH).astype(np.float32),
        "mm.input_projection.weight": weights(_WIDTH, _CHAT_WIDTH),
        "mm.soft_emb_norm.weight": np.ones(_WIDTH, np.float32),
        **_block("v", weights),
    }
    return _write(path, "vision", "gemma3", _SIZES | {"image_size": _IMAGE, "patch_size": _PATCH}, tensors)


def tone(seconds: float) -> bytes:
    """A WAV file: one note."""
    samples = (int(8000 * math.sin(number / 10)) for number in range(int(seconds * _RATE)))
    data = b"".join(struct.pack("<h", sample) for sample in samples)
    form = struct.pack("<HHIIHH", 1, 1, _RATE, 2 * _RATE, 2, 16)
    chunks = b"WAVEfmt " + struct.pack("<I", len(form)) + form + b"data" + struct.pack("<I", len(data)) + data
    return b"RIFF" + struct.pack("<I", len(chunks)) + chunks


def picture(pixels: int) -> bytes:
    """A PNG file: a square that goes from red to yellow."""
    rows = b"".join(b"\0" + bytes((255, row % 256, 0)) * pixels for row in range(pixels))
    head = struct.pack(">IIBBBBB", pixels, pixels, 8, 2, 0, 0, 0)
    chunks = ((b"IHDR", head), (b"IDAT", zlib.compress(rows)), (b"IEND", b""))
    told = (
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(told)


def _weights() -> Weights:
    source = np.random.default_rng(0)
    return lambda *shape: (source.standard_normal(shape) * 0.05).astype(np.float16)


def _block(prefix: str, weights: Weights) -> dict[str, Tensor]:
    """The one layer of an encoder, and the norm behind it."""
    tensors: dict[str, Tensor] = {}
    for name in ("attn_q", "attn_k", "attn_v", "attn_out", "ffn_up", "ffn_down"):
        tensors[f"{prefix}.blk.0.{name}.weight"] = weights(_WIDTH, _WIDTH)
        tensors[f"{prefix}.blk.0.{name}.bias"] = np.zeros(_WIDTH, np.float32)
    for name in ("blk.0.ln1", "blk.0.ln2", "post_ln"):
        tensors[f"{prefix}.{name}.weight"] = np.ones(_WIDTH, np.float32)
        tensors[f"{prefix}.{name}.bias"] = np.zeros(_WIDTH, np.float32)
    return tensors


def _write(path: Path, sense: str, projector: str, sizes: Mapping[str, int], tensors: Mapping[str, Tensor]) -> Path:
    writer = gguf.GGUFWriter(path, "clip")
    writer.add_type("mmproj")
    writer.add_bool("clip.has_vision_encoder", sense == "vision")
    writer.add_bool("clip.has_audio_encoder", sense == "audio")
    writer.add_bool("clip.use_gelu", True)
    writer.add_string("clip.projector_type", projector)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    for name, size in sizes.items():
        writer.add_uint32(f"clip.{sense}.{name}", size)
    writer.add_float32(f"clip.{sense}.attention.layer_norm_epsilon", 1e-5)
    if sense == "vision":
        writer.add_array("clip.vision.image_mean", [0.5] * 3)
        writer.add_array("clip.vision.image_std", [0.5] * 3)
    for name, tensor in tensors.items():
        writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
