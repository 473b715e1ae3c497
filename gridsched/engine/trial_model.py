"""The smallest model that llama-server loads: what a new engine is tried with. Pure; owns the file's few bytes.

Written with the standard library, because the trial runs at every start and importing a GGUF writer takes longer than
the trial itself. Its weights are all the same: it says nothing of use, and loads and computes like any other model.
"""

import struct
from array import array

_WIDTH, _INNER, _CONTEXT = 32, 32, 256
_ALIGNMENT = 32
_UINT32, _FLOAT32, _STRING, _ARRAY, _INT32 = 4, 6, 8, 9, 5  # GGUF's value types
_F32 = 0  # its tensor type
_WEIGHT = 0.01
_NORMAL, _UNKNOWN, _CONTROL, _BYTE = 1, 2, 3, 6  # its token types
_TOKENS = (("<unk>", _UNKNOWN), ("<s>", _CONTROL), ("</s>", _CONTROL), *((f"<0x{n:02X}>", _BYTE) for n in range(256)))


def trial_model() -> bytes:
    """A GGUF file (version 3): one layer of the llama architecture over a vocabulary of bytes."""
    metadata = _metadata()
    infos, data = [], b""
    for name, shape in _shapes():
        infos.append(_text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, _F32, len(data)))
        count = shape[0] * (shape[1] if len(shape) > 1 else 1)
        data += array("f", [_WEIGHT]).tobytes() * count  # every shape is a multiple of the alignment
    head = b"GGUF" + struct.pack("<IQQ", 3, len(infos), len(metadata)) + b"".join(metadata) + b"".join(infos)
    return head + bytes(-len(head) % _ALIGNMENT) + data


def _shapes() -> list[tuple[str, tuple[int, ...]]]:
    square, vocabulary = (_WIDTH, _WIDTH), (_WIDTH, len(_TOKENS))
    layer = {
        **{f"attn_{part}": square for part in ("q", "k", "v", "output")},
        **dict.fromkeys(("attn_norm", "ffn_norm"), (_WIDTH,)),
        "ffn_gate": (_WIDTH, _INNER),
        "ffn_up": (_WIDTH, _INNER),
        "ffn_down": (_INNER, _WIDTH),
    }
    outer = {"token_embd": vocabulary, "output": vocabulary, "output_norm": (_WIDTH,)}
    return [
        (f"{name}.weight", shape) for name, shape in {**outer, **{f"blk.0.{n}": s for n, s in layer.items()}}.items()
    ]


def _metadata() -> list[bytes]:
    texts = [_text(text) for text, _ in _TOKENS]
    return [
        _value("general.architecture", _STRING, _text("llama")),
        *(_value(f"llama.{key}", _UINT32, struct.pack("<I", number)) for key, number in _SIZES.items()),
        _value("llama.attention.layer_norm_rms_epsilon", _FLOAT32, struct.pack("<f", 1e-5)),
        _value("tokenizer.ggml.model", _STRING, _text("llama")),
        _value("tokenizer.ggml.tokens", _ARRAY, _array(_STRING, texts)),
        _value("tokenizer.ggml.scores", _ARRAY, _array(_FLOAT32, [struct.pack("<f", 0.0)] * len(_TOKENS))),
        _value("tokenizer.ggml.token_type", _ARRAY, _array(_INT32, [struct.pack("<i", kind) for _, kind in _TOKENS])),
    ]


_SIZES = {
    "context_length": _CONTEXT,
    "embedding_length": _WIDTH,
    "block_count": 1,
    "feed_forward_length": _INNER,
    "attention.head_count": 1,
    "attention.head_count_kv": 1,
    "rope.dimension_count": _WIDTH,
}


def _text(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()


def _value(key: str, kind: int, value: bytes) -> bytes:
    return _text(key) + struct.pack("<I", kind) + value


def _array(kind: int, values: list[bytes]) -> bytes:
    return struct.pack("<IQ", kind, len(values)) + b"".join(values)
