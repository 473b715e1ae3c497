"""An audio encoder of 0.7 MB for the tiny chat model: llama-server then takes sound, and transcribes it as nonsense.

The same bytes every time. Its shape is Whisper's, as small as it may be, with Ultravox's projector behind it.
"""

import math
import struct
from pathlib import Path

import gguf
import numpy as np
from numpy.typing import NDArray

_WIDTH, _HEADS, _MEL_BINS, _POSITIONS = 64, 2, 80, 1500
_STACK = 20  # frames that become one token; divides the positions
_HIDDEN = 32
_CHAT_WIDTH = 64  # of the model that it is loaded beside
_RATE = 16_000

Tensor = NDArray[np.float32] | NDArray[np.float16]


def make_tiny_ear(path: Path) -> Path:
    """Write the projector to `path` and return it."""
    writer = gguf.GGUFWriter(path, "clip")
    writer.add_type("mmproj")
    writer.add_bool("clip.has_audio_encoder", True)
    writer.add_bool("clip.has_vision_encoder", False)
    writer.add_bool("clip.use_gelu", True)
    writer.add_string("clip.projector_type", "ultravox")
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    sizes = {
        "projection_dim": _CHAT_WIDTH,
        "embedding_length": _WIDTH,
        "feed_forward_length": _WIDTH,
        "block_count": 1,
        "attention.head_count": _HEADS,
        "num_mel_bins": _MEL_BINS,
        "projector.stack_factor": _STACK,
    }
    for name, size in sizes.items():
        writer.add_uint32(f"clip.audio.{name}", size)
    writer.add_float32("clip.audio.attention.layer_norm_epsilon", 1e-5)
    for name, tensor in _tensors().items():
        writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def tone(seconds: float) -> bytes:
    """A WAV file: one note."""
    samples = (int(8000 * math.sin(number / 10)) for number in range(int(seconds * _RATE)))
    data = b"".join(struct.pack("<h", sample) for sample in samples)
    form = struct.pack("<HHIIHH", 1, 1, _RATE, 2 * _RATE, 2, 16)
    chunks = b"WAVEfmt " + struct.pack("<I", len(form)) + form + b"data" + struct.pack("<I", len(data)) + data
    return b"RIFF" + struct.pack("<I", len(chunks)) + chunks


def _tensors() -> dict[str, Tensor]:
    source = np.random.default_rng(0)

    def weights(*shape: int) -> NDArray[np.float16]:
        return (source.standard_normal(shape) * 0.05).astype(np.float16)

    zeros, ones = np.zeros(_WIDTH, np.float32), np.ones(_WIDTH, np.float32)
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
    }
    for name in ("attn_q", "attn_k", "attn_v", "attn_out", "ffn_up", "ffn_down"):
        tensors[f"a.blk.0.{name}.weight"] = weights(_WIDTH, _WIDTH)
        if name != "attn_k":
            tensors[f"a.blk.0.{name}.bias"] = zeros
    for name in ("a.blk.0.ln1", "a.blk.0.ln2", "a.post_ln"):
        tensors[f"{name}.weight"], tensors[f"{name}.bias"] = ones, zeros
    return tensors
