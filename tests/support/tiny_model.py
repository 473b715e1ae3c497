"""A chat model of 0.3 MB that llama-server loads in a moment: for tests that need a real engine and no real answers.

The same bytes every time. What it writes is nonsense, but printable, and it never ends by itself: an answer is exactly
as long as `max_tokens` says.
"""

from pathlib import Path

import gguf
import numpy as np
from numpy.typing import NDArray

CONTEXT_TOKENS = 4096
_WIDTH, _HEADS, _INNER, _LAYERS = 64, 4, 128, 1
_SPECIALS = ((b"<unk>", gguf.TokenType.UNKNOWN), (b"<s>", gguf.TokenType.CONTROL), (b"</s>", gguf.TokenType.CONTROL))
_LETTERS = "\u2581abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.,!?"
_TEMPLATE = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}assistant: "

Tensor = NDArray[np.float32]


def make_tiny_chat(path: Path, *, fills_in: bool = False) -> Path:
    """Write the model to `path` and return it. `fills_in`: it has the tokens that infilling is told with."""
    tokens = [*_SPECIALS, *((b"<0x%02X>" % byte, gguf.TokenType.BYTE) for byte in range(256))]
    unprintable = len(tokens)
    tokens += [(letter.encode(), gguf.TokenType.NORMAL) for letter in _LETTERS]
    writer = gguf.GGUFWriter(path, "llama")
    _add_shape(writer, len(tokens))
    writer.add_tokenizer_model("llama")
    writer.add_token_list([text for text, _ in tokens])
    writer.add_token_scores([-float(number) for number in range(len(tokens))])
    writer.add_token_types([int(kind) for _, kind in tokens])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_chat_template(_TEMPLATE)
    if fills_in:
        for token, place in enumerate(("pre", "suf", "mid"), start=3):  # any will do here
            writer.add_uint32(f"tokenizer.ggml.fim_{place}_token_id", token)
    for name, tensor in _tensors(len(tokens), unprintable).items():
        writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add_shape(writer: gguf.GGUFWriter, vocabulary: int) -> None:
    writer.add_name("tiny")
    writer.add_context_length(CONTEXT_TOKENS)
    writer.add_embedding_length(_WIDTH)
    writer.add_block_count(_LAYERS)
    writer.add_feed_forward_length(_INNER)
    writer.add_head_count(_HEADS)
    writer.add_head_count_kv(_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(_WIDTH // _HEADS)
    writer.add_vocab_size(vocabulary)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)


def _tensors(vocabulary: int, unprintable: int) -> dict[str, Tensor]:
    """Small random weights, with one direction that every token shares.

    It survives the layers' norms, so the output layer can push the special and byte tokens far below the letters.
    """
    source = np.random.default_rng(0)

    def weights(*shape: int) -> Tensor:
        return (source.standard_normal(shape) * 0.05).astype(np.float32)

    embedding, output = weights(vocabulary, _WIDTH), weights(vocabulary, _WIDTH)
    embedding[:, 0] = 1.0
    output[:, 0] = 0.0
    output[:unprintable, 0] = -5.0
    ones = np.ones(_WIDTH, np.float32)
    tensors = {"token_embd.weight": embedding, "output_norm.weight": ones, "output.weight": output}
    for layer in range(_LAYERS):
        block = f"blk.{layer}"
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            tensors[f"{block}.{name}.weight"] = weights(_WIDTH, _WIDTH)
        tensors[f"{block}.attn_norm.weight"] = ones
        tensors[f"{block}.ffn_norm.weight"] = ones
        tensors[f"{block}.ffn_gate.weight"] = weights(_INNER, _WIDTH)
        tensors[f"{block}.ffn_up.weight"] = weights(_INNER, _WIDTH)
        tensors[f"{block}.ffn_down.weight"] = weights(_WIDTH, _INNER)
    return tensors
