"""What a header means for memory: the shape of every layer, and what kind of model it is.

Owns the reading of the metadata: which layers keep a cache, which slide over a window, which carry a recurrent state,
which reuse another's cache. Knows no flags and no devices. What differs by architecture is data, in the tables below;
an architecture that is not in them is charged the dearer way (every layer at full context), never the cheaper.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from gridsched.vram.header import Header, MetadataValue, SkippedArray, TensorInfo
from gridsched.vram.quants import QUANT_TYPES, cuda_padding_bytes

MAX_BLOCKS = 4096  # the deepest real models have a few hundred
DEVICE_TENSOR_ALIGNMENT = 128  # CUDA's buffer type rounds every tensor up to this
HOST_TENSOR_ALIGNMENT = 32  # and the CPU's to this

ENCODERS = frozenset(
    (
        *("bert", "nomic-bert", "nomic-bert-moe", "jina-bert-v2", "jina-bert-v3"),
        *("modern-bert", "neo-bert", "eurobert", "gemma-embedding", "t5encoder"),
    )
)
"""Architectures that turn a text into vectors: no cache, no logits, all of an input in one micro-batch."""
_WITHOUT_CACHE = ENCODERS | {"dream", "llada", "llada-moe", "rnd1", "clef", "wavtokenizer-dec"}  # llama_model's list
_ALL_RECURRENT = frozenset(("mamba", "mamba2", "rwkv6", "rwkv6qwen2", "rwkv7", "arwkv7"))
_INTERVAL_HYBRIDS = frozenset(("qwen3next", "qwen35", "qwen35moe"))  # full attention on every n-th layer only
_NO_KV_HEADS_HYBRIDS = frozenset(
    ("granitehybrid", "jamba", "lfm2", "lfm2moe", "plamo2", "kimi-linear", "kimi-k3", "bailingmoe3", "glm5-next")
)
_WINDOW_PERIODS = {
    name: period
    for period, names in {
        2: "gemma2 gpt-oss",
        4: "cohere2 cohere2moe olmo2 exaone-moe afmoe mellum laguna muse-glimmer",
        5: "gemma3n",
        6: "gemma3",
        8: "plamo3",
        1: "gemma4 mimo2 step35",
    }.items()
    for name in names.split()
}
"""Architectures whose window the engine honours: one layer in so many is full, unless the header has a pattern (as it
must where all of them would be)."""
_FULL_LAYER_FIRST = frozenset(("cohere2moe", "laguna"))  # of each period; elsewhere it is the last
_DEFAULT_WINDOWS = {"gemma2": 4096}  # where the header does not say
_GEMMA3N_OWN_CACHES = 20  # llama.cpp's loader has it as a constant: layers 0 to 19 keep caches, the rest reuse them
_REPACKED = frozenset(("Q2_K", "Q4_0", "Q4_K", "IQ4_NL", "MXFP4"))
"""Types that ggml lays out anew for x86 processors (ggml-cpu/repack), in memory beside the mapped file."""
_REPACK_ROWS = 8  # rows are interleaved by so many, or not at all
_POOLING = ("none", "mean", "cls", "last", "rank")
_BLOCK = re.compile(r"blk\.(\d+)\.")

PerLayer: TypeAlias = int | tuple[int, ...]


class GeometryError(Exception):
    """A header without what planning needs, or with nonsense there. `field` is the metadata key."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field
        self.message = message


@dataclass(frozen=True, slots=True)
class Layer:
    """One block. Lengths are in values. `cache_source` is the layer whose cache it uses: itself, another, none."""

    heads: int
    kv_heads: int
    key_length: int
    value_length: int
    window: bool
    recurrent: bool
    cache_source: int | None

    @property
    def key_width(self) -> int:
        """Values of K a token."""
        return self.key_length * self.kv_heads

    @property
    def value_width(self) -> int:
        """Values of V a token."""
        return self.value_length * self.kv_heads


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


@dataclass(frozen=True, slots=True)
class Experts:
    """Mixture of experts; all 0 for a dense model."""

    count: int = 0
    used: int = 0
    feed_forward_length: int = 0
    shared_feed_forward_length: int = 0


@dataclass(frozen=True, slots=True)
class StateSpace:
    """The recurrent part's sizes, in values; all 0 where there is none."""

    inner: int = 0
    state: int = 0
    conv: int = 0
    groups: int = 0
    heads: int = 0

    @property
    def conv_width(self) -> int:
        """Values a token that pass through the convolution."""
        return self.inner + 2 * self.groups * self.state


@dataclass(frozen=True, slots=True)
class Geometry:
    """Everything the formulas need to know of one model. `weights` are all its tensors, drafting blocks included.

    `blocks` counts the ordinary layers, `draft_blocks` those that only speculative decoding uses. `window` is in
    tokens, 0 for none. `state_bytes` is one recurrent layer's state for one sequence. `pooling` is one of none, mean,
    cls, last, rank, or None where the header does not say.
    """

    architecture: str
    blocks: int = 0
    draft_blocks: int = 0
    embedding_length: int = 0
    feed_forward_length: int = 0
    layers: tuple[Layer, ...] = ()
    window: int = 0
    mla: bool = False
    experts: Experts = Experts()
    state_space: StateSpace = StateSpace()
    state_bytes: int = 0
    altup_inputs: int = 1
    per_layer_embedding_length: int = 0
    vocab_size: int = 0
    context_train: int = 0
    tied_output: bool = False
    pooling: str | None = None
    causal: bool = False
    has_chat_template: bool = False
    is_encoder: bool = False
    is_reranker: bool = False
    is_projector: bool = False
    has_cache: bool = False
    weights: tuple[Weight, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def is_embedding(self) -> bool:
        """Whether the model is made to turn texts into vectors (or, for a reranker, into scores)."""
        return self.is_encoder or self.pooling not in (None, "none")

    @property
    def file_bytes(self) -> int:
        """The tensors' bytes in the file."""
        return sum(weight.file_bytes for weight in self.weights)

    @classmethod
    def from_header(cls, header: Header, shards: tuple[Header, ...] = ()) -> "Geometry":
        """The geometry of a model whose metadata are in `header`; the other files of a split set come as `shards`.

        Raises GeometryError.
        """
        keys = _Keys(header.metadata)
        tensors = [tensor for part in (header, *shards) for tensor in part.tensors]
        notes = [note for part in (header, *shards) for note in part.notes]
        _check_split(keys, len(tensors), 1 + len(shards))
        projector = keys.architecture == "clip" or keys.text("general.type") == "mmproj"
        if projector:
            # What it needs beside its weights is a constant of `footprint`.
            weights = tuple(map(_weight, tensors))
            return cls(keys.architecture, is_projector=True, weights=weights, notes=tuple(notes))
        return _model(cls, keys, tensors, notes)


class _Keys:
    """Metadata by the architecture's own short names, with the type checked where a value is used."""

    def __init__(self, metadata: Mapping[str, MetadataValue]) -> None:
        self.metadata = metadata
        architecture = metadata.get("general.architecture")
        if not isinstance(architecture, str) or not architecture:
            raise GeometryError("general.architecture", "the header does not name the model's architecture")
        self.architecture = architecture

    def raw(self, key: str) -> MetadataValue | None:
        return self.metadata.get(f"{self.architecture}.{key}")

    def text(self, full_key: str) -> str | None:
        value = self.metadata.get(full_key)
        return value if isinstance(value, str) else None

    def number(self, key: str, default: int | None = None) -> int:
        """A count; a list counts as its largest. A missing one raises unless there is a default."""
        value = self.raw(key)
        if value is None:
            if default is None:
                raise GeometryError(f"{self.architecture}.{key}", "is missing from the header")
            return default
        if isinstance(value, tuple):
            return max((self._whole(key, item) for item in value), default=0)
        return self._whole(key, value)

    def per_layer(self, key: str, blocks: int, default: int) -> tuple[int, ...]:
        """A count for each layer, from a list or from one number."""
        value = self.raw(key)
        if not isinstance(value, tuple):
            return (default if value is None else self._whole(key, value),) * blocks
        if len(value) < blocks:
            raise GeometryError(f"{self.architecture}.{key}", f"has {len(value)} entries for {blocks} layers")
        return tuple(self._whole(key, item) for item in value[:blocks])

    def _whole(self, key: str, value: MetadataValue) -> int:
        if isinstance(value, int) and 0 <= value < 2**40:
            return int(value)
        raise GeometryError(f"{self.architecture}.{key}", f"{value!r} is not a count")


def _check_split(keys: _Keys, tensors: int, parts: int) -> None:
    """A split set is whole, or refused: half of a model's tensors would be planned as all of them."""
    declared, total = keys.metadata.get("split.count"), keys.metadata.get("split.tensors.count")
    if isinstance(declared, int) and declared > 1 and declared != parts:
        raise GeometryError("split.count", f"the model is split over {declared} files, {parts} of them were read")
    if isinstance(total, int) and total != tensors:
        raise GeometryError("split.tensors.count", f"says {total} tensors, the files have {tensors}")


def _model(cls: type[Geometry], keys: _Keys, tensors: list[TensorInfo], notes: list[str]) -> Geometry:
    total = keys.number("block_count")
    if not 1 <= total <= MAX_BLOCKS:
        raise GeometryError(f"{keys.architecture}.block_count", f"{total} is implausible")
    drafting = min(keys.number("nextn_predict_layers", 0), total - 1)
    blocks = total - drafting
    names = {tensor.name for tensor in tensors}
    architecture = keys.architecture
    pooling = _pooling(keys)
    encoder = architecture in ENCODERS
    has_cache = architecture not in _WITHOUT_CACHE
    layers = _layers(keys, total, blocks, has_cache)
    if has_cache and not any(layer.recurrent or layer.cache_source is not None for layer in layers):
        raise GeometryError(f"{architecture}.attention.head_count", "no layer has heads: its cache cannot be planned")
    return cls(
        architecture=architecture,
        blocks=blocks,
        draft_blocks=drafting,
        embedding_length=keys.number("embedding_length"),
        feed_forward_length=keys.number("feed_forward_length", 0),
        layers=layers,
        window=_window(keys) if any(layer.window for layer in layers) else 0,
        mla=bool(keys.number("attention.key_length_mla", 0)),
        experts=_experts(keys),
        state_space=_state_space(keys),
        state_bytes=_state_bytes(keys),
        altup_inputs=keys.number("altup.num_inputs", 1),
        per_layer_embedding_length=keys.number("embedding_length_per_layer_input", 0),
        vocab_size=_vocab_size(keys, tensors),
        context_train=keys.number("context_length", 0),
        tied_output="output.weight" not in names and "token_embd.weight" in names and not encoder,
        pooling=pooling,
        causal=keys.raw("attention.causal") is not False and not encoder,
        has_chat_template="tokenizer.chat_template" in keys.metadata,
        is_encoder=encoder,
        is_reranker=pooling == "rank" or "cls.output.weight" in names,
        has_cache=has_cache,
        weights=tuple(map(_weight, tensors)),
        notes=(*notes, *_doubts(keys)),
    )


def _doubts(keys: _Keys) -> tuple[str, ...]:
    """What the tables do not know about this architecture, as notes: the estimate is then the dearer one."""
    window = _window(keys)
    if window and keys.architecture not in _WINDOW_PERIODS and keys.architecture not in _WITHOUT_CACHE:
        return (f"the window of {window} tokens is not counted on for {keys.architecture}: full cache on every layer",)
    return ()


def _layers(keys: _Keys, total: int, blocks: int, has_cache: bool) -> tuple[Layer, ...]:
    heads = keys.per_layer("attention.head_count", total, 0)
    kv_heads = keys.per_layer("attention.head_count_kv", total, 0)
    if keys.raw("attention.head_count_kv") is None:
        kv_heads = heads  # without the key every head has its own K and V
    widest = max(heads, default=0)
    natural = keys.number("embedding_length") // widest if widest else 0
    key = keys.number("attention.key_length", 0) or natural
    value = keys.number("attention.value_length", 0) or (keys.number("attention.key_length", 0) or natural)
    window_key = keys.number("attention.key_length_swa", key)
    window_value = keys.number("attention.value_length_swa", value)
    windows = _window_layers(keys, total, blocks)
    recurrent = _recurrent_layers(keys, kv_heads, total, blocks)
    sources = _cache_sources(keys, windows, blocks)
    layers = []
    for index in range(total):
        caches = has_cache and index < blocks and kv_heads[index] > 0 and _keeps_cache(keys, recurrent[index])
        layers.append(
            Layer(
                heads=heads[index],
                kv_heads=kv_heads[index],
                key_length=window_key if windows[index] else key,
                value_length=window_value if windows[index] else value,
                window=windows[index],
                recurrent=recurrent[index],
                cache_source=sources[index] if caches else None,
            )
        )
    return tuple(layers)


def _keeps_cache(keys: _Keys, recurrent: bool) -> bool:
    """Falcon-H1 has a cache and a state on the same layer, and so may what is not known; else it is one of the two."""
    return not recurrent or keys.architecture == "falcon-h1" or _is_unknown_hybrid(keys)


def _is_unknown_hybrid(keys: _Keys) -> bool:
    """An architecture that has a recurrent state by its header, and is in none of the tables."""
    known = _ALL_RECURRENT | _INTERVAL_HYBRIDS | _NO_KV_HEADS_HYBRIDS
    is_known = keys.architecture in known or keys.architecture.startswith(("falcon-h1", "nemotron_h"))
    return not is_known and _state_bytes(keys) > 0


def _window(keys: _Keys) -> int:
    return keys.number("attention.sliding_window", _DEFAULT_WINDOWS.get(keys.architecture, 0))


def _window_layers(keys: _Keys, total: int, blocks: int) -> tuple[bool, ...]:
    period = _WINDOW_PERIODS.get(keys.architecture)
    if period is None or not _window(keys):
        return (False,) * total
    pattern = keys.raw("attention.sliding_window_pattern")
    if isinstance(pattern, tuple):
        if len(pattern) < blocks:
            raise GeometryError(
                f"{keys.architecture}.attention.sliding_window_pattern",
                f"has {len(pattern)} entries for {blocks} layers",
            )
        return tuple(index < blocks and bool(pattern[index]) for index in range(total))
    if isinstance(pattern, int) and pattern > 0:
        period = int(pattern)
    full = 0 if keys.architecture in _FULL_LAYER_FIRST else period - 1
    return tuple(index < blocks and index % period != full for index in range(total))


def _recurrent_layers(keys: _Keys, kv_heads: tuple[int, ...], total: int, blocks: int) -> tuple[bool, ...]:
    architecture = keys.architecture
    if architecture in _ALL_RECURRENT or architecture == "falcon-h1" or _is_unknown_hybrid(keys):
        return (True,) * blocks + (False,) * (total - blocks)
    if architecture in _INTERVAL_HYBRIDS:
        listed = keys.raw("attention.recurrent_layers")
        if isinstance(listed, tuple) and len(listed) >= blocks:
            return tuple(index < blocks and bool(listed[index]) for index in range(total))
        interval = max(keys.number("full_attention_interval", 4), 1)
        return tuple(index < blocks and (index + 1) % interval != 0 for index in range(total))
    if architecture in _NO_KV_HEADS_HYBRIDS:
        return tuple(index < blocks and not kv_heads[index] for index in range(total))
    if architecture.startswith("nemotron_h"):  # a layer without KV heads is a mixer, or a plain feed-forward layer
        widths = keys.per_layer("feed_forward_length", total, 0)
        return tuple(index < blocks and not kv_heads[index] and not widths[index] for index in range(total))
    return (False,) * total


def _cache_sources(keys: _Keys, windows: tuple[bool, ...], blocks: int) -> tuple[int, ...]:
    """The layer whose cache each layer uses. Gemma's last layers reuse the last one of their own kind before them."""
    own = len(windows)
    if keys.architecture == "gemma3n":
        own = _GEMMA3N_OWN_CACHES
    elif keys.architecture == "gemma4":
        own = blocks - min(keys.number("attention.shared_kv_layers", 0), blocks)
    return tuple(index if index < own else max(own - (2 if window else 1), 0) for index, window in enumerate(windows))


def _experts(keys: _Keys) -> Experts:
    count = keys.number("expert_count", 0)
    if not count:
        return Experts()
    return Experts(
        count=count,
        used=keys.number("expert_used_count", 0),
        # Granite writes the experts' width where dense models write theirs.
        feed_forward_length=keys.number("expert_feed_forward_length", 0) or keys.number("feed_forward_length", 0),
        shared_feed_forward_length=keys.number("expert_shared_feed_forward_length", 0),
    )


def _state_space(keys: _Keys) -> StateSpace:
    return StateSpace(
        inner=keys.number("ssm.inner_size", 0),
        state=keys.number("ssm.state_size", 0),
        conv=keys.number("ssm.conv_kernel", 0),
        groups=keys.number("ssm.group_count", 0),
        heads=keys.number("ssm.time_step_rank", 0),
    )


def _state_bytes(keys: _Keys) -> int:
    """One recurrent layer's state for one sequence, always f32: what its convolution remembers and its state proper."""
    width = keys.number("embedding_length")
    if head := keys.number("wkv.head_size", 0):
        return 4 * (keys.number("token_shift_count", 2) * width + width * head)
    if short := keys.number("shortconv.l_cache", 0):
        return 4 * (short - 1) * width
    space = _state_space(keys)
    if head := keys.number("kda.head_dim", 0):
        heads = keys.number("attention.head_count")
        return 4 * heads * head * (3 * ((space.conv or 4) - 1) + head)
    return 4 * (max(space.conv - 1, 0) * space.conv_width + space.state * space.inner)


def _vocab_size(keys: _Keys, tensors: list[TensorInfo]) -> int:
    tokens = keys.metadata.get("tokenizer.ggml.tokens")
    if isinstance(tokens, SkippedArray):
        return tokens.length
    if isinstance(tokens, tuple):
        return len(tokens)
    if size := keys.number("vocab_size", 0):
        return size
    return next((tensor.shape[-1] for tensor in tensors if tensor.name == "token_embd.weight"), 0)


def _pooling(keys: _Keys) -> str | None:
    value = keys.raw("pooling_type")
    return _POOLING[value] if isinstance(value, int) and 0 <= value < len(_POOLING) else None


def _weight(tensor: TensorInfo) -> Weight:
    block = _BLOCK.match(tensor.name)
    kind = QUANT_TYPES.get(tensor.type_id)
    padding = cuda_padding_bytes(kind, tensor.shape[0]) if kind else 0
    multiplied = len(tensor.shape) > 1 and (block is not None or tensor.name == "output.weight")
    repacked = multiplied and kind is not None and kind.name in _REPACKED and tensor.shape[1] % _REPACK_ROWS == 0
    return Weight(
        name=tensor.name,
        block=int(block.group(1)) if block else None,
        file_bytes=tensor.size_bytes,
        host_bytes=-(-tensor.size_bytes // HOST_TENSOR_ALIGNMENT) * HOST_TENSOR_ALIGNMENT,
        device_bytes=-(-(tensor.size_bytes + padding) // DEVICE_TENSOR_ALIGNMENT) * DEVICE_TENSOR_ALIGNMENT,
        repacked_bytes=tensor.size_bytes if repacked else 0,
    )
