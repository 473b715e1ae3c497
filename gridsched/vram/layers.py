"""The shape of every layer: its heads, whether it slides, what it remembers, whose cache it uses.

Owns the reading of what differs from layer to layer, by the rules of the architecture's row. What no rule covers is
charged the dearer way: full cache on every layer, and a state wherever the header speaks of one.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from gridsched.vram.architectures import Architecture, Indexer, Recurrence, WindowRule
from gridsched.vram.keys import MAX_COUNT, Keys
from gridsched.vram.state import ngram_bytes, state_bytes

_STATE_TENSORS = ("ssm_", "time_mix_", "shortconv.", "linear_attn")
_BLOCK_TENSOR = re.compile(r"blk\.(\d{1,9})\.(.+)", re.DOTALL)
_CACHE_TENSORS = ("attn_k.", "attn_v.", "attn_kv")
_GLM_SHARED_INDEXERS_FROM = 2**20  # GLM 5.2's trained length; older ones have an indexer on every layer
_GLM_INDEXED = 2  # 0, 1, 2, 6, 10, ... have one: the loader's list for files that do not mark them
_COMPRESSION_RATIOS = (4, 128)  # what DeepSeek 4's `attention.compress_ratios` may be, beside 0
_LEAST_OWN_CACHES = 2  # the engine refuses fewer where others share them
_MAX_CACHE_WIDTH = 2**22  # values a token of one layer; the widest real one has 24,576


@dataclass(frozen=True, slots=True)
class SideCache:
    """A cache that a layer keeps beside K and V: widths in values a cell, one cell for `every` tokens."""

    key_width: int
    value_width: int = 0
    every: int = 1


@dataclass(frozen=True, slots=True)
class Layer:
    """One block. Lengths are in values. `cache_source` is the layer whose cache it uses: itself, another, none.

    `state_bytes` is what it remembers of each sequence whatever the context, in bytes; `recurrent` whether that takes
    the place of attention (or stands beside it).
    """

    heads: int
    kv_heads: int
    key_length: int
    value_length: int
    window: bool
    recurrent: bool
    cache_source: int | None
    state_bytes: int = 0
    side_caches: tuple[SideCache, ...] = ()

    @property
    def key_width(self) -> int:
        """Values of K a token."""
        return self.key_length * self.kv_heads

    @property
    def value_width(self) -> int:
        """Values of V a token."""
        return self.value_length * self.kv_heads


@dataclass(frozen=True, slots=True)
class Depth:
    """How many layers: `total` with the blocks that only drafting uses, `blocks` without."""

    total: int
    blocks: int


def window_tokens(keys: Keys, rule: WindowRule | None, depth: Depth) -> int:
    """The window in tokens, 0 for none. Raises GeometryError."""
    if rule is None or rule.only_blocks not in (None, depth.total):
        return 0
    size = keys.number("attention.sliding_window", rule.default, most=MAX_COUNT, may_be_list=True)
    return rule.fixed or size if size else 0


def keeps_keys_alone(keys: Keys, row: Architecture) -> bool:
    """Whether the caches have K and no V: latent attention. Raises GeometryError."""
    lengths = (keys.number("attention.key_length_mla", 0), keys.number("attention.value_length_mla", 0))
    return row.mla and (all(lengths) or row.indexer is Indexer.COMPRESSED)


def build_layers(keys: Keys, row: Architecture, depth: Depth, tensor_names: Iterable[str]) -> tuple[Layer, ...]:
    """Every layer, those for drafting last. Raises GeometryError."""
    heads = keys.per_layer("attention.head_count", depth.total, depth.blocks, 0)
    kv_heads = heads  # without the key every head has its own K and V
    if keys.raw("attention.head_count_kv") is not None:
        kv_heads = keys.per_layer("attention.head_count_kv", depth.total, depth.blocks, 0)
    if row.router:
        heads, kv_heads = (*heads[:-1], 1), (*kv_heads[:-1], 1)
    lengths = _head_lengths(keys, heads)
    windows = _window_layers(keys, row, depth)
    state = state_bytes(keys, row.state, heads[0], lengths[False][0])
    shapes = _block_tensors(tensor_names) if row.recurrence is Recurrence.BY_TENSORS and state else {}
    recurrent, caching = _memories(keys, row, depth, kv_heads, shapes, state > 0)
    sources = _cache_sources(keys, row, windows, depth)
    layers = []
    for index in range(depth.total):
        key, value = lengths[windows[index]]
        if max(key, value) * kv_heads[index] > _MAX_CACHE_WIDTH:
            raise keys.error("attention.head_count_kv", f"{kv_heads[index]} heads of {max(key, value)} are implausible")
        layers.append(
            Layer(
                heads=heads[index],
                kv_heads=kv_heads[index],
                key_length=key,
                value_length=value,
                window=windows[index],
                recurrent=recurrent[index],
                cache_source=sources[index] if caching[index] else None,
                state_bytes=state if recurrent[index] else 0,
            )
        )
    if row.ngrams and isinstance(marked := keys.raw("ple.layers"), tuple):
        history = ngram_bytes(keys)
        for index in {int(item) for item in marked if isinstance(item, int)} & set(range(depth.blocks)):
            layers[index] = replace(layers[index], state_bytes=layers[index].state_bytes + history)
    return _with_side_caches(keys, row, depth, layers) if row.indexer else tuple(layers)


def _head_lengths(keys: Keys, heads: tuple[int, ...]) -> dict[bool, tuple[int, int]]:
    """K's and V's length of a head, by whether the layer slides. The engine divides by the first layer's heads."""
    divisor = heads[0] or max(heads)
    natural = keys.number("embedding_length") // divisor if divisor else 0
    key = keys.number("attention.key_length", natural, may_be_list=True)
    value = keys.number("attention.value_length", natural, may_be_list=True)
    sliding_key = keys.number("attention.key_length_swa", key, may_be_list=True)
    sliding_value = keys.number("attention.value_length_swa", value, may_be_list=True)
    return {False: (key, value), True: (sliding_key, sliding_value)}


def _window_layers(keys: Keys, row: Architecture, depth: Depth) -> tuple[bool, ...]:
    rule, key = row.window, "attention.sliding_window_pattern"
    if rule is None or not window_tokens(keys, rule, depth):
        return (False,) * depth.total
    period = rule.period
    if rule.by_header and keys.raw(key) is not None:
        if keys.is_list(key):
            return keys.marks(key, depth.total, depth.blocks)
        if period is None:
            raise keys.error(key, "is one number where a list for each layer is expected")
        period = keys.number(key)
    if period is None:
        raise keys.error(key, "is missing from the header")
    sliding = depth.total if row.slot_streams else depth.blocks
    full = None if not period else 0 if rule.full_first else period - 1
    return tuple(index < sliding and (not period or index % period != full) for index in range(depth.total))


def _block_tensors(names: Iterable[str]) -> dict[int, set[str]]:
    """The tensors of each block, without the block's own prefix."""
    blocks: dict[int, set[str]] = {}
    for name in names:
        if match := _BLOCK_TENSOR.fullmatch(name):
            blocks.setdefault(int(match.group(1)), set()).add(match.group(2))
    return blocks


def _memories(
    keys: Keys,
    row: Architecture,
    depth: Depth,
    kv_heads: tuple[int, ...],
    shapes: Mapping[int, set[str]],
    has_state: bool,
) -> tuple[tuple[bool, ...], tuple[bool, ...]]:
    """Which layers have a recurrent state, and which have (or use) a cache."""
    ordinary = [index < depth.blocks for index in range(depth.total)]
    cached = [heads > 0 for heads in kv_heads]
    recurrent = [False] * depth.total
    if row.recurrence is Recurrence.ALL:
        recurrent, cached = ordinary, recurrent
    elif row.recurrence is Recurrence.BESIDE_CACHE:
        recurrent = ordinary
    elif row.recurrence is Recurrence.NO_KV_HEADS:
        recurrent = [mine and not heads for mine, heads in zip(ordinary, kv_heads, strict=True)]
    elif row.recurrence is Recurrence.NO_KV_HEADS_NOR_FEED_FORWARD:
        widths = keys.per_layer("feed_forward_length", depth.total, depth.blocks, 0)
        recurrent = [not (heads or width) for heads, width in zip(kv_heads, widths, strict=True)]
        recurrent = [mine and it for mine, it in zip(ordinary, recurrent, strict=True)]
        cached = [heads > 0 and not width for heads, width in zip(kv_heads, widths, strict=True)]
    elif row.recurrence is Recurrence.INTERVAL:
        recurrent = [mine and it for mine, it in zip(ordinary, _mixers(keys, row, depth), strict=True)]
        cached = [heads and not it for heads, it in zip(cached, recurrent, strict=True)]
    elif row.recurrence is Recurrence.BY_TENSORS and has_state:
        mixing = [_begins(shapes.get(index), _STATE_TENSORS) for index in range(depth.total)]
        recurrent = [index not in shapes or it for index, it in enumerate(mixing)]
        # A mixer that has K and V of its own may have a cache beside its state.
        caches = [index not in shapes or _begins(shapes[index], _CACHE_TENSORS) for index in range(depth.total)]
        cached = [heads and (own or not it) for heads, own, it in zip(cached, caches, mixing, strict=True)]
    may = row.cache and not row.borrows_cache
    return tuple(recurrent), tuple(
        may and it and (mine or row.caches_drafting) for it, mine in zip(cached, ordinary, strict=True)
    )


def _begins(names: set[str] | None, prefixes: tuple[str, ...]) -> bool:
    return any(name.startswith(prefixes) for name in names or ())


def _mixers(keys: Keys, row: Architecture, depth: Depth) -> tuple[bool, ...]:
    """The layers that mix by a state: as listed, else all but every n-th."""
    if keys.raw("attention.recurrent_layers") is not None:
        return keys.marks("attention.recurrent_layers", depth.total, depth.blocks)
    interval = keys.number("full_attention_interval", row.interval)
    if not interval:
        raise keys.error("full_attention_interval", "is 0")
    return tuple((index + 1) % interval != 0 for index in range(depth.total))


def _cache_sources(keys: Keys, row: Architecture, windows: tuple[bool, ...], depth: Depth) -> tuple[int, ...]:
    """The layer whose cache each layer uses. Gemma's last layers reuse the last one of their own kind before them."""
    own = depth.total if row.own_caches is None else row.own_caches
    if own < 0:
        shared = keys.number("attention.shared_kv_layers", 0)
        own = depth.total - shared
        if shared and own < _LEAST_OWN_CACHES:
            raise keys.error("attention.shared_kv_layers", f"{shared} of {depth.total} layers leave none to share")
    return tuple(index if index < own else max(own - (2 if window else 1), 0) for index, window in enumerate(windows))


# --- sparse attention -------------------------------------------------------------------------------------------


def _with_side_caches(keys: Keys, row: Architecture, depth: Depth, layers: list[Layer]) -> tuple[Layer, ...]:
    # A pooling indexer keeps a key, a gate and a pooled key.
    width = keys.number("attention.indexer.key_length", 0) * (3 if keys.number("attention.indexer.kpool", 0) else 1)
    if row.indexer is Indexer.COMPRESSED:
        ratios = _compression_ratios(keys, depth)
        layers = [_compressed(layer, ratio, width) for layer, ratio in zip(layers, ratios, strict=True)]
        # What compresses the keys of drafting blocks is not part of the model's own context.
        return tuple(layer if i < depth.blocks else replace(layer, state_bytes=0) for i, layer in enumerate(layers))
    if not width:  # a conversion from before the indexer: no engine that has one loads it
        return tuple(layers)
    indexed = _indexed_layers(keys, row, depth)
    return tuple(
        replace(layer, side_caches=(SideCache(width, layer.value_length if row.indexer is Indexer.AFTER_DENSE else 0),))
        if indexed[index] and layer.cache_source is not None
        else layer
        for index, layer in enumerate(layers)
    )


def _indexed_layers(keys: Keys, row: Architecture, depth: Depth) -> tuple[bool, ...]:
    if row.indexer is Indexer.AFTER_DENSE:
        dense = keys.number("leading_dense_block_count", 0)
        return tuple(index >= dense for index in range(depth.total))
    marks = (True,) * depth.blocks
    if row.indexer in (Indexer.BY_TYPES, Indexer.GLM):
        if keys.raw("attention.indexer.types") is not None:
            marks = keys.marks("attention.indexer.types", depth.total, depth.blocks)[: depth.blocks]
        elif (
            row.indexer is Indexer.GLM and keys.number("context_length", 0, most=MAX_COUNT) >= _GLM_SHARED_INDEXERS_FROM
        ):
            marks = tuple(index in (0, 1) or index % 4 == _GLM_INDEXED for index in range(depth.blocks))
    return marks + (False,) * (depth.total - depth.blocks)


def _compression_ratios(keys: Keys, depth: Depth) -> tuple[int, ...]:
    value = keys.raw("attention.compress_ratios")
    if not isinstance(value, tuple) or len(value) < depth.total:
        length = len(value) if isinstance(value, tuple) else 0
        raise keys.error("attention.compress_ratios", f"has {length} entries for {depth.total} layers")
    ratios = value[: depth.total]
    for ratio in ratios:
        if ratio not in (0, *_COMPRESSION_RATIOS) or isinstance(ratio, bool):
            raise keys.error("attention.compress_ratios", f"{ratio!r} is none of 0, 4, 128")
    return tuple(int(ratio) for ratio in ratios)


def _compressed(layer: Layer, ratio: int, indexer: int) -> Layer:
    """DeepSeek 4: keys once more, one for every four or 128 tokens; an indexer beside the denser of the two; and what
    the compressors remember of each sequence: K and scores of the last tokens, in f32."""
    if not ratio or layer.cache_source is None:
        return layer
    dense = ratio == _COMPRESSION_RATIOS[0]
    sides = [SideCache(layer.key_width, 0, ratio)] + [SideCache(indexer, 0, ratio)] * dense
    # The denser compressor looks back over two groups, in two halves.
    remembered = 2 * ratio * 2 * (layer.key_length + indexer) if dense else ratio * layer.key_length
    return replace(layer, side_caches=tuple(sides), state_bytes=4 * 2 * remembered)
