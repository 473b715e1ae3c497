"""Turns a MiniLM sentence embedder, as its Python package carries it, into a `bert` GGUF that llama-server serves.

Owns the reading of `config.json`, `vocab.txt` and `model.safetensors` in one folder. Must never guess: whatever is
missing or of another shape is named and nothing is written. The model is taken to be mean-pooled, as every MiniLM
sentence embedder is.

Sources: the safetensors layout (an 8-byte little-endian header length, a JSON header, then the tensors), and the names
that llama.cpp gives the tensors and keys of its `bert` architecture.
"""

import json
import os
import struct
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import gguf
import numpy as np
import numpy.typing as npt

CONFIG_FILE, VOCABULARY_FILE, TENSORS_FILE = "config.json", "vocab.txt", "model.safetensors"
SOURCE_FILES = (CONFIG_FILE, VOCABULARY_FILE, TENSORS_FILE)

LARGEST_HEADER_BYTES = 16 * 1024 * 1024
"""A safetensors header of a MiniLM takes 12 kB; more than this is a damaged length."""

WORD_START = "\u2581"
"""How llama.cpp's WordPiece marks a token that begins a word; the source marks those that do not, with `##`."""

CONTROL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
DTYPES = {"F32": "<f4", "F16": "<f2"}


class ConversionError(Exception):
    """The source cannot be converted; the sentence names the file and what is wrong in it."""


@dataclass(frozen=True, slots=True)
class Shape:
    """The sizes of a BERT: `layers` blocks, `width` numbers a token, `inner` in the feed-forward part."""

    layers: int
    heads: int
    width: int
    inner: int
    context: int
    vocabulary: int
    token_types: int
    norm_epsilon: float


@dataclass(frozen=True, slots=True)
class Plan:
    """One tensor: what the source calls it, what it must look like, what it becomes."""

    source: str
    target: str
    shape: tuple[int, ...]
    half: bool


def convert(source_dir: Path, out_path: Path) -> None:
    """Write the GGUF; it appears whole or not at all. Raises ConversionError, OSError."""
    shape = read_shape(source_dir / CONFIG_FILE)
    words = read_vocabulary(source_dir / VOCABULARY_FILE, shape)
    out_path.parent.mkdir(parents=True, exist_ok=True)
    with (
        Tensors(source_dir / TENSORS_FILE) as tensors,
        tempfile.TemporaryDirectory(dir=out_path.parent, prefix=".convert-") as scratch,
    ):
        unfinished = Path(scratch) / out_path.name
        writer = gguf.GGUFWriter(unfinished, "bert")
        _add_header(writer, shape)
        _add_vocabulary(writer, words, shape)
        for plan in tensor_plans(shape):
            values = tensors.read(plan.source, plan.shape)
            writer.add_tensor(plan.target, values.astype(np.float16 if plan.half else np.float32))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        unfinished.replace(out_path)


# --- reading ----------------------------------------------------------------------------------------------------


def read_shape(path: Path) -> Shape:
    """The sizes in `config.json`. Raises ConversionError for a field that is missing, or an architecture that the
    target format could only get wrong."""
    fields = _read_object(path, path.read_bytes())
    for key, wanted in (("model_type", "bert"), ("hidden_act", "gelu"), ("position_embedding_type", "absolute")):
        if fields.get(key, wanted) != wanted:
            raise ConversionError(f"{path}: {key} is {fields[key]!r}, only {wanted!r} can be converted")
    shape = Shape(
        layers=_count(path, fields, "num_hidden_layers"),
        heads=_count(path, fields, "num_attention_heads"),
        width=_count(path, fields, "hidden_size"),
        inner=_count(path, fields, "intermediate_size"),
        context=_count(path, fields, "max_position_embeddings"),
        vocabulary=_count(path, fields, "vocab_size"),
        token_types=_count(path, fields, "type_vocab_size"),
        norm_epsilon=_positive(path, fields, "layer_norm_eps"),
    )
    if shape.width % shape.heads:
        raise ConversionError(f"{path}: hidden_size {shape.width} is no multiple of {shape.heads} attention heads")
    return shape


def read_vocabulary(path: Path, shape: Shape) -> list[str]:
    """The words, one a line, in the order of their numbers. Raises ConversionError."""
    try:
        words = path.read_bytes().decode().removesuffix("\n").split("\n")
    except UnicodeDecodeError as fault:
        raise ConversionError(f"{path}: not UTF-8 at offset {fault.start}") from None
    words = [word.removesuffix("\r") for word in words]
    if len(words) != shape.vocabulary:
        raise ConversionError(f"{path}: {len(words)} lines, but vocab_size is {shape.vocabulary}")
    missing = [token for token in CONTROL_TOKENS if token not in words]
    if missing:
        raise ConversionError(f"{path}: the token {missing[0]} is missing")
    return words


def tensor_plans(shape: Shape) -> Iterator[Plan]:
    """Every tensor of the target, in the order it is written."""
    width, inner = shape.width, shape.inner
    yield Plan("embeddings.word_embeddings.weight", "token_embd.weight", (shape.vocabulary, width), half=True)
    # llama.cpp adds these two to activations without converting them, so they stay at full precision.
    yield Plan("embeddings.position_embeddings.weight", "position_embd.weight", (shape.context, width), half=False)
    yield Plan("embeddings.token_type_embeddings.weight", "token_types.weight", (shape.token_types, width), half=False)
    yield from _pair("embeddings.LayerNorm", "token_embd_norm", (width,))
    for layer in range(shape.layers):
        source, target = f"encoder.layer.{layer}", f"blk.{layer}"
        for part, short in (("query", "q"), ("key", "k"), ("value", "v")):
            yield from _pair(f"{source}.attention.self.{part}", f"{target}.attn_{short}", (width, width))
        yield from _pair(f"{source}.attention.output.dense", f"{target}.attn_output", (width, width))
        yield from _pair(f"{source}.attention.output.LayerNorm", f"{target}.attn_output_norm", (width,))
        yield from _pair(f"{source}.intermediate.dense", f"{target}.ffn_up", (inner, width))
        yield from _pair(f"{source}.output.dense", f"{target}.ffn_down", (width, inner))
        yield from _pair(f"{source}.output.LayerNorm", f"{target}.layer_output_norm", (width,))


class Tensors:
    """A safetensors file, read one tensor at a time. A context manager; raises ConversionError for what is wrong."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> Self:
        self._file = self._path.open("rb")
        try:
            self._size = os.fstat(self._file.fileno()).st_size
            self._index = self._read_index()
        except BaseException:
            self._file.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def read(self, name: str, shape: tuple[int, ...]) -> npt.NDArray[np.floating]:
        """The tensor's values. Raises ConversionError when it is missing, of another shape, or cut off."""
        entry = self._index.get(name)
        if not isinstance(entry, dict):
            raise ConversionError(f"{self._path}: the tensor {name} is missing")
        dtype = DTYPES.get(entry.get("dtype", ""))
        if dtype is None:
            raise ConversionError(f"{self._path}: {name} has dtype {entry.get('dtype')!r}, expected F32 or F16")
        if tuple(entry.get("shape", ())) != shape:
            raise ConversionError(f"{self._path}: {name} has shape {entry.get('shape')}, expected {list(shape)}")
        begin, end = self._offsets(name, entry)
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        if end - begin != size or self._data_start + end > self._size:
            raise ConversionError(f"{self._path}: {name} should take {size} bytes at offset {begin}, and does not")
        self._file.seek(self._data_start + begin)
        return np.frombuffer(self._file.read(size), dtype).reshape(shape)

    def _read_index(self) -> Mapping[str, object]:
        head = self._file.read(8)
        length = struct.unpack("<Q", head)[0] if len(head) == 8 else -1  # noqa: PLR2004 - the length field's own size
        if not 0 < length <= min(LARGEST_HEADER_BYTES, self._size - 8):
            raise ConversionError(f"{self._path}: no safetensors header in its first {self._size} bytes")
        self._data_start = 8 + length
        return _read_object(self._path, self._file.read(length))

    def _offsets(self, name: str, entry: Mapping[str, object]) -> tuple[int, int]:
        match entry.get("data_offsets"):
            case [int(begin), int(end)] if begin >= 0:
                return begin, end
        raise ConversionError(f"{self._path}: {name} has no usable data_offsets")


def _pair(source: str, target: str, shape: tuple[int, ...]) -> Iterator[Plan]:
    yield Plan(f"{source}.weight", f"{target}.weight", shape, half=len(shape) > 1)
    yield Plan(f"{source}.bias", f"{target}.bias", shape[:1], half=False)


def _read_object(path: Path, raw: bytes) -> dict[str, object]:
    try:
        value = json.loads(raw)
    except ValueError as fault:
        raise ConversionError(f"{path}: not readable as JSON: {fault}") from None
    if not isinstance(value, dict):
        raise ConversionError(f"{path}: holds no JSON object")
    return value


def _positive(path: Path, fields: Mapping[str, object], key: str) -> float:
    value = fields.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
        raise ConversionError(f"{path}: {key} is {'missing' if value is None else repr(value)}, expected a number")
    return float(value)


def _count(path: Path, fields: Mapping[str, object], key: str) -> int:
    return int(_positive(path, fields, key))


# --- writing ----------------------------------------------------------------------------------------------------


def _add_header(writer: gguf.GGUFWriter, shape: Shape) -> None:
    writer.add_name("all-MiniLM-L6-v2")
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    writer.add_block_count(shape.layers)
    writer.add_context_length(shape.context)
    writer.add_embedding_length(shape.width)
    writer.add_feed_forward_length(shape.inner)
    writer.add_head_count(shape.heads)
    writer.add_layer_norm_eps(shape.norm_epsilon)
    writer.add_causal_attention(False)
    writer.add_pooling_type(gguf.PoolingType.MEAN)


def _add_vocabulary(writer: gguf.GGUFWriter, words: list[str], shape: Shape) -> None:
    writer.add_tokenizer_model("bert")
    writer.add_tokenizer_pre("default")
    writer.add_token_list([_as_token(word) for word in words])
    writer.add_token_types(
        [gguf.TokenType.CONTROL if word in CONTROL_TOKENS else gguf.TokenType.NORMAL for word in words]
    )
    writer.add_token_type_count(shape.token_types)
    writer.add_bos_token_id(words.index("[CLS]"))
    writer.add_eos_token_id(words.index("[SEP]"))
    writer.add_sep_token_id(words.index("[SEP]"))
    writer.add_pad_token_id(words.index("[PAD]"))
    writer.add_unk_token_id(words.index("[UNK]"))
    writer.add_mask_token_id(words.index("[MASK]"))


def _as_token(word: str) -> str:
    if word.startswith("[") and word.endswith("]"):
        return word
    if word.startswith("##") and len(word) > len("##"):
        return word[2:]
    return WORD_START + word
