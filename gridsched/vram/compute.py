"""An upper bound of the compute buffers: what the graph's intermediate values take while a micro-batch passes through.

Owns the bound and nothing exact: the real figure is what ggml's allocator packs. Widths are in values a token, turned
into bytes once (f32, times the micro-batch). The README has the formulas and how far above the truth they lie.
"""

from dataclasses import dataclass, replace

from gridsched.vram.cache import cache_device, layer_cache_bytes, layer_f16_bytes
from gridsched.vram.context import Context
from gridsched.vram.flags import LaunchFlags
from gridsched.vram.geometry import Geometry
from gridsched.vram.placement import Placement, hosted, place
from gridsched.vram.quants import CACHE_TYPES, row_bytes

SLACK_BYTES = 2 << 20  # small tensors and alignment that no formula below names
PIPELINE_COPIES = 4  # GGML_SCHED_MAX_COPIES: several devices work on several micro-batches at once
_GATED = ("qwen3next", "qwen35", "qwen35moe")  # gated delta nets: attention and mixer take turns in the same space
_OUTPUTS = ("output.weight", "token_embd.weight")
_ONE_A_LAYER = ("nemotron_h", "nemotron_h_moe")  # a mixer, attention or a feed-forward part, never two of them
_MIXER_FIRST = ("granitehybrid", "jamba")  # its values are free again when the feed-forward part begins
_ENCODERS_WITH_WINDOWS = ("gemma-embedding", "modern-bert")
_EVERY_TOKENS_LOGITS = ("cogvlm",)  # computed for the whole micro-batch, whoever asks
_EMBEDDINGS_KEPT = {
    "cohere2": 5,
    "falcon": 8,
    "gemma3n": 9,
    "gemma-embedding": 6,
    "granitehybrid": 5,
    "phi2": 6,
    "qwen3vlmoe": 7,
    "qwen3vl": 7,  # three of them pictures' features, which enter at the first three layers
}
"""How many embedding-wide values stay alive beside the feed-forward part, where it is not four (eight with per-layer
embeddings)."""
_SIDE_BY_SIDE = frozenset(("command-r", "falcon", "gptneox", "gptj", "phi2", "plamo", "stablelm"))
"""Attention and feed-forward part of one layer may be computed one inside the other's lifetime."""
_RWKV_EMBEDDINGS = 20  # of a time-mixing layer: its five mixtures, the key, value, gate and decay made of them
_SCAN_STATES = (16, 96, 128, 256)  # state sizes for which CUDA has a kernel; other scans run on the host
_BIASED_SCORES = 7  # T5 adds a bias as large as the scores, and both exist in several layouts
_REUSES_CACHES = ("gemma3n", "gemma4")


@dataclass(frozen=True, slots=True)
class _Widths:
    """Values a token at the widest moment of each part of the graph. `attention_plain` is without flash attention,
    `attention_alone` where nothing large is needed beside its own values."""

    feed_forward: int
    attention: int
    attention_plain: int
    attention_alone: int

    def wider(self, extra: int) -> "_Widths":
        """All of them, by the same amount."""
        widths = (self.feed_forward, self.attention, self.attention_plain, self.attention_alone)
        return _Widths(*(width + extra for width in widths))


@dataclass(frozen=True, slots=True)
class _Launch:
    """What every part of the bound looks at."""

    geometry: Geometry
    flags: LaunchFlags
    context: Context
    placement: Placement
    widths: _Widths
    query_width: int

    def values_bytes(self, width: int) -> int:
        """f32 bytes of `width` values for each token of a micro-batch."""
        return 4 * width * self.context.ubatch

    @property
    def pipeline(self) -> bool:
        """Whether devices work in a pipeline: several of them, and nothing left on the host."""
        untouched = not self.flags.overrides and self.flags.kv_offload
        return self.placement.devices > 1 and self.placement.fully_offloaded and untouched

    @property
    def converted_cache(self) -> bool:
        """Whether K or V must be turned into f16 before it is used."""
        return (self.flags.cache_type_k, self.flags.cache_type_v) != ("f16", "f16")

    @property
    def every_logit(self) -> bool:
        """Whether logits are made for every token of a batch, and not for those alone that are asked for."""
        every = self.flags.one_output_per_token or self.geometry.architecture in _EVERY_TOKENS_LOGITS
        return every and self.geometry.has_cache

    @property
    def per_layer_width(self) -> int:
        """Per-layer embeddings of all layers (Gemma 3n and 4's E-models)."""
        return self.geometry.per_layer_embedding_length * len(self.geometry.layers)

    @property
    def host_caches(self) -> list[int]:
        """The layers whose own cache is on the host."""
        if self.placement.fully_offloaded and self.flags.kv_offload:
            return []
        return [
            index
            for index, layer in enumerate(self.geometry.layers)
            if layer.cache_source == index and cache_device(self.placement, self.flags, index) is None
        ]

    def copies_host_cache(self, device: int) -> bool:
        """Whether a device computes with caches that are on the host, and fetches them."""
        on_it = not self.flags.kv_offload and device in self.placement.layers
        return on_it or (self.flags.op_offload and device == 0)


def compute_bytes(geometry: Geometry, flags: LaunchFlags, context: Context, placement: Placement) -> list[int]:
    """An upper bound of each device's compute buffer."""
    if flags.split_mode == "none" and placement.devices > 1:  # the other devices are not used at all
        alone = replace(flags, split_mode="layer", tensor_split=())
        size = compute_bytes(geometry, alone, context, place(geometry, alone, 1))[0]
        return [size if device == flags.main_gpu else 0 for device in range(placement.devices)]
    query = _query_width(geometry)
    launch = _Launch(geometry, flags, context, placement, _widths(geometry, context, query), query)
    if launch.pipeline:
        launch = replace(launch, widths=launch.widths.wider(_pipeline_width(launch)))
    return [_device_bytes(launch, device) for device in range(placement.devices)]


def adapters_bytes(geometry: Geometry, context: Context) -> int:
    """What adapters add to the bound: the widest product once more, as theirs is added to it."""
    experts = geometry.experts
    widths = (geometry.feed_forward_length, experts.feed_forward_length * experts.used, _query_width(geometry))
    return 4 * max(*widths, geometry.embedding_length) * context.ubatch


def _query_width(geometry: Geometry) -> int:
    return max((layer.heads * layer.key_length for layer in geometry.layers), default=0)


def compute_bytes_on_host(geometry: Geometry, flags: LaunchFlags, context: Context) -> int:
    """The same where the CPU does all the work: one device's bound, and in the same memory the graph's inputs (an
    encoder's pooling matrix among them) and the logits of one token a slot."""
    whole = place(geometry, LaunchFlags(), 1)
    inputs = 4 * geometry.embedding_length * context.ubatch
    pooling = 4 * context.ubatch * context.ubatch if geometry.is_encoder else 0
    logits = 4 * geometry.vocab_size * context.slots
    return compute_bytes(geometry, flags, context, whole)[0] + inputs + pooling + logits


def pinned_bytes(geometry: Geometry, flags: LaunchFlags, context: Context, placement: Placement) -> int:
    """Host memory beside the devices: the graph's inputs and masks, and the logits of one token a slot.

    An expectation, not a bound: attention that falls to the CPU takes more.
    """
    launch = _Launch(geometry, flags, context, placement, _Widths(0, 0, 0, 0), 0)
    inputs = launch.values_bytes(4 * geometry.embedding_length * geometry.altup_inputs + launch.per_layer_width)
    copies = PIPELINE_COPIES if launch.pipeline else 1
    return copies * (inputs + _mask_bytes(geometry, context)) + 4 * geometry.vocab_size * context.slots


# --- widths -----------------------------------------------------------------------------------------------------


def _widths(geometry: Geometry, context: Context, query: int) -> _Widths:
    embedding = geometry.embedding_length
    per_layer = geometry.per_layer_embedding_length * len(geometry.layers)
    mixer = 0
    if geometry.is_encoder:
        forward = _encoder_width(geometry)
    else:
        forward = max(_dense_width(geometry), _expert_width(geometry)) + per_layer
        mixer = _mixer_width(geometry)
    if "rwkv" in geometry.architecture or geometry.architecture == "arwkv7":
        forward = max(forward, _RWKV_EMBEDDINGS * embedding)
    if geometry.architecture in (*_GATED, *_ONE_A_LAYER):
        forward = max(forward, mixer)
    elif geometry.architecture in _MIXER_FIRST:
        forward = max(forward, mixer) + 2 * embedding
    elif mixer:
        bare = not geometry.feed_forward_length and not geometry.experts.count
        forward = mixer + embedding if bare else forward + mixer
    alone = _attention_width(geometry, query, per_layer)
    attention = max(alone, _attention_beside_width(geometry))
    if mixer and geometry.architecture not in _GATED:
        attention = max(attention, forward)
    if geometry.architecture == "cohere2":  # attention and feed-forward stand side by side
        attention = forward + query
    plain = (3 if geometry.mla else 5) * query + (8 if geometry.mla else 10) * embedding + per_layer
    plain = max(plain, attention)
    if geometry.architecture == "gemma3n" and not context.flash_attn:
        forward += 2 * embedding
    return _Widths(forward, attention, plain, alone)


def _encoder_width(geometry: Geometry) -> int:
    gate = geometry.feed_forward_gated
    kept = _embeddings_kept(geometry) if gate else 2
    dense = (3 if gate else 1) * geometry.feed_forward_length + kept * geometry.embedding_length
    return max(dense, _expert_width(geometry))


def _embeddings_kept(geometry: Geometry) -> int:
    usual = 8 if geometry.per_layer_embedding_length else 4
    return _EMBEDDINGS_KEPT.get(geometry.architecture, usual)


def _dense_width(geometry: Geometry) -> int:
    forward = (3 if geometry.feed_forward_gated else 1) * geometry.feed_forward_length
    return forward + _embeddings_kept(geometry) * geometry.embedding_length


def _expert_width(geometry: Geometry) -> int:
    experts, embedding = geometry.experts, geometry.embedding_length
    if not experts.count:
        return 0
    outputs = embedding * experts.used
    hidden = experts.feed_forward_length * experts.used
    if experts.shared_gated or geometry.architecture == "gemma4":
        return 2 * outputs + 3 * hidden + 8 * embedding + experts.count
    # Up and gate are free again when the outputs are made, which take their place if they fit.
    outputs = outputs if outputs > 2 * hidden else 0
    shared = 3 * experts.shared_feed_forward_length
    kept = _embeddings_kept(geometry) + bool(shared)
    return max(3 * hidden + outputs + kept * embedding, shared + 5 * embedding) + experts.count


def _attention_beside_width(geometry: Geometry) -> int:
    """Attention that needs much beside its own values finds the outputs of experts before it in the way, and latent
    attention one more of its queries."""
    if geometry.mla:
        return 3 * _query_width(geometry) + 8 * geometry.embedding_length
    if not geometry.experts.count or geometry.architecture in _GATED:
        return 0
    return 2 * geometry.embedding_length * geometry.experts.used + 8 * geometry.embedding_length


def _mixer_width(geometry: Geometry) -> int:
    space, embedding = geometry.state_space, geometry.embedding_length
    if not space.inner:
        return 0
    if geometry.architecture in _GATED:
        return 3 * space.conv_width + 4 * space.inner + 4 * embedding
    return 3 * space.inner + 3 * space.conv_width + space.heads + 2 * embedding


def _attention_width(geometry: Geometry, query: int, per_layer: int) -> int:
    embedding = geometry.embedding_length
    gated = geometry.architecture in _GATED
    queries = 5 if gated else 2
    kept = {"gemma3n": 9, "qwen3vl": 7}.get(geometry.architecture, 11 if geometry.mla else 8 if per_layer else 4)
    return queries * query + kept * embedding + per_layer


def _pipeline_width(launch: _Launch) -> int:
    """What each stage of a pipeline keeps beside: inputs of the stages before and after."""
    geometry = launch.geometry
    width = 12 * geometry.altup_inputs * geometry.embedding_length + 3 * launch.per_layer_width + 2 * launch.query_width
    if geometry.architecture in _ONE_A_LAYER or all(layer.recurrent for layer in geometry.layers):
        return width + 24 * geometry.embedding_length
    if geometry.architecture in _MIXER_FIRST:
        return width + 18 * geometry.embedding_length
    return width + (8 * geometry.embedding_length if any(layer.recurrent for layer in geometry.layers) else 0)


# --- one device -------------------------------------------------------------------------------------------------


def _device_bytes(launch: _Launch, device: int) -> int:
    geometry, placement = launch.geometry, launch.placement
    layers = placement.blocks_on(device, geometry)
    copies = PIPELINE_COPIES if launch.pipeline else 1
    dequantized = _dequantized_bytes(launch, layers)
    body = _body_bytes(launch, device, dequantized)
    body = _with_host_weights(launch, device, body, dequantized) + _host_cache_bytes(launch, device, dequantized)
    total = _mask_bytes(geometry, launch.context) * copies
    total += max(body, _host_cache_peak_bytes(launch, device))
    if geometry.state_space.inner:
        # The states that the scan reads and writes, and those that drafting may go back to.
        total += geometry.state_bytes * (launch.context.slots + launch.context.states)
        if not launch.flags.kv_offload:  # and those that come from the host
            total += geometry.state_bytes * launch.context.slots
    total += copies * _foreign_cache_bytes(launch, device, layers)
    total += copies * launch.values_bytes(_detour_width(launch, layers)) if launch.pipeline else 0
    used = device in placement.layers
    return total + SLACK_BYTES if used or placement.devices == 1 else total


def _detour_width(launch: _Launch, layers: list[int]) -> int:
    """What goes to the host and back for every layer that the device has no kernel for: attention, or a scan."""
    geometry, width = launch.geometry, 0
    if launch.context.attention_on_host:
        attending = (geometry.layers[index].cache_source is not None or not geometry.has_cache for index in layers)
        width += launch.query_width * sum(attending)
    space = geometry.state_space
    if space.inner and geometry.architecture not in _GATED and space.state not in _SCAN_STATES:
        width += 2 * space.inner * sum(geometry.layers[index].recurrent for index in layers)
    return width


def _mask_bytes(geometry: Geometry, context: Context) -> int:
    """The attention masks, one for each kind of cache: f16 with flash attention, else f32."""
    value = 2 if context.flash_attn else 4
    if not geometry.has_cache:
        masks = 2 if geometry.architecture in _ENCODERS_WITH_WINDOWS else 1
        return masks * context.ubatch * context.ubatch * value
    kinds = {layer.window for index, layer in enumerate(geometry.layers) if layer.cache_source == index}
    cells = sum(context.window_cells if window else context.full_cells for window in kinds)
    return cells * context.ubatch * value


def _dequantized_bytes(launch: _Launch, layers: list[int]) -> int:
    """One layer's cache in a form that attention can use: f16 of a quantized one, or V transposed where the device
    refused flash attention after the cache was laid out for it."""
    geometry, context = launch.geometry, launch.context
    if context.flash_attn_refused:
        sizes = [
            context.cells(geometry.layers[i].window) * 2 * geometry.layers[i].value_width
            for i in layers
            if geometry.layers[i].cache_source == i and not geometry.mla
        ]
        return max(sizes, default=0)
    if not launch.flags.kv_offload:
        return 0
    caching = [geometry.layers[i] for i in layers if geometry.layers[i].cache_source is not None]
    if not context.flash_attn:  # V is a part of K in latent attention, and is turned over for the product with scores
        sizes = [context.cells(layer.window) * 2 * layer.value_length for layer in caching if geometry.mla]
        return max(sizes, default=0)
    sizes = [layer_f16_bytes(launch.flags, context, layer, with_value=not geometry.mla) for layer in caching]
    return max(sizes, default=0)


def _body_bytes(launch: _Launch, device: int, dequantized: int) -> int:
    """The widest moment: feed-forward, or attention with whatever it needs beside."""
    geometry, context, widths = launch.geometry, launch.context, launch.widths
    scores = _scores_bytes(geometry, context)
    beside = dequantized or launch.pipeline or launch.placement.overridden or launch.host_caches
    attention = widths.attention if beside else widths.attention_alone
    if not context.flash_attn:
        attention = widths.attention_plain
    if dequantized and geometry.architecture in _SIDE_BY_SIDE:
        attention = max(attention, widths.feed_forward + launch.query_width)
    keys = max((layer.key_width for layer in geometry.layers if layer.cache_source is not None), default=0)
    if dequantized and keys >= geometry.embedding_length:
        attention += geometry.embedding_length  # keys of many heads are turned and kept beside
    if geometry.is_encoder and not launch.placement.fully_offloaded:
        widths = widths.wider(2 * geometry.embedding_length)
    body = max(launch.values_bytes(widths.feed_forward), dequantized + launch.values_bytes(attention) + scores)
    if launch.every_logit and launch.placement.output in (device, None):
        # A decoder that embeds makes logits for every token of the batch.
        logits = launch.values_bytes(geometry.vocab_size + 9 * geometry.embedding_length)
        body = max(body, logits) + (launch.values_bytes(8 * geometry.embedding_length) if launch.pipeline else 0)
    if device and not launch.flags.kv_offload:
        # New keys and values wait for the way to the host.
        body = max(body, launch.values_bytes(16 * keys))
    return body


def _scores_bytes(geometry: Geometry, context: Context) -> int:
    """One layer's scores of every key for every token, which flash attention does without."""
    biased = geometry.architecture == "t5"
    if context.flash_attn and not biased:
        return 0
    heads = max((layer.heads for layer in geometry.layers), default=0)
    scores = heads * (context.full_cells if geometry.has_cache else context.ubatch) * context.ubatch * 4
    return scores * (_BIASED_SCORES if biased else 1)


def _with_host_weights(launch: _Launch, device: int, body: int, dequantized: int) -> int:
    """Weights on the host are copied to the first device for prompt batches: the largest one of them at a time."""
    placement = launch.placement
    if device != 0 or not launch.flags.op_offload or (placement.fully_offloaded and not placement.overridden):
        return body
    geometry = launch.geometry
    sizes = {
        weight.file_bytes
        for weight in hosted(geometry, placement)
        if (weight.block is not None or (launch.every_logit and weight.name in _OUTPUTS))
        and (weight.block or 0) < geometry.blocks
    }
    largest = max(sizes, default=0)
    if geometry.experts.count and not geometry.experts.gated:
        # Without a gate between them the smaller of an expert layer's two leaves a hole that the larger does not fit.
        body += max(sizes - {largest}, default=0)
    if not largest or not launch.flags.overrides:
        return body + largest
    experts = geometry.experts
    fused = experts.shared_feed_forward_length == experts.feed_forward_length and experts.count
    # Of the next layer too, where that is on another device or a mixer stands between.
    between = fused or geometry.state_space.inner
    twice = between or placement.devices > 1
    beside = dequantized or (between and _scores_bytes(geometry, launch.context))
    embedding = launch.values_bytes(geometry.embedding_length)
    return max(
        body + (largest if beside else 0),
        largest * (2 if twice else 1) + 16 * embedding,
        largest + launch.values_bytes(launch.widths.feed_forward) + 5 * embedding,
    )


def _host_cache_bytes(launch: _Launch, device: int, dequantized: int) -> int:
    """Caches on the host: results go back and forth, and each layer's cache is copied, in f16 too if quantized."""
    geometry, flags, context = launch.geometry, launch.flags, launch.context
    hosted = launch.host_caches
    if not hosted:
        return 0
    width = 2 * launch.query_width + 4 * geometry.embedding_length + 4 * launch.per_layer_width
    total = launch.values_bytes(width)
    if not launch.copies_host_cache(device):
        return total
    raw = {index: layer_cache_bytes(flags, context, geometry.layers[index]) for index in hosted}
    again = {
        index: layer_f16_bytes(flags, context, geometry.layers[index]) if context.flash_attn else 0 for index in hosted
    }
    peak = max(raw[index] + again[index] for index in hosted)
    reused = [layer.cache_source for index, layer in enumerate(geometry.layers) if layer.cache_source != index]
    again_copied = sum(raw.get(source, 0) for source in reused if source is not None)
    if again_copied:  # every layer that reuses a cache has a copy of its own
        peak += max(2 * max(raw.values()), 0 if flags.kv_offload else again_copied)
    if launch.converted_cache:
        # f16 copies of host and device layers do not live at once.
        spare = launch.values_bytes(16 * geometry.embedding_length) if dequantized else 0
        return total + max(0, peak - dequantized) + spare
    return total + peak


def _host_cache_peak_bytes(launch: _Launch, device: int) -> int:
    """The moment at which a host layer's K and V are all there, and with them K of the next one, which is fetched
    ahead where the device has to wait for the host. Latent attention fetches its K for V as well."""
    geometry, flags, context = launch.geometry, launch.flags, launch.context
    hosted = launch.host_caches
    if not hosted or not launch.copies_host_cache(device):
        return 0
    ahead = len(hosted) > 1 and (device > 0 or geometry.mla or not launch.placement.fully_offloaded)
    peak = 0
    for layer in (geometry.layers[index] for index in hosted):
        cells = context.cells(layer.window)
        key = row_bytes(CACHE_TYPES[flags.cache_type_k], layer.key_width) * cells
        value = key if geometry.mla else row_bytes(CACHE_TYPES[flags.cache_type_v], layer.value_width) * cells
        uneven = key if key > value else 0
        fetched = key + value + (max(key, value) if ahead else uneven)
        again = layer_f16_bytes(flags, context, layer, with_value=not geometry.mla) * (2 if geometry.mla else 1)
        peak = max(peak, fetched + (again if context.flash_attn else 0))
    if context.flash_attn_refused and not geometry.mla:
        peak += max(context.cells(geometry.layers[i].window) * 2 * geometry.layers[i].value_width for i in hosted)
    width = 2 * launch.query_width + 6 * geometry.embedding_length
    return peak + launch.values_bytes(width) + _scores_bytes(geometry, context)


def _foreign_cache_bytes(launch: _Launch, device: int, layers: list[int]) -> int:
    """Layers that reuse the cache of a layer on another device copy it over, each for itself."""
    geometry = launch.geometry
    if geometry.architecture not in _REUSES_CACHES:
        return 0
    total = 0
    for index in layers:
        source = geometry.layers[index].cache_source
        if source is not None and source != index and launch.placement.layers[source] != device:
            total += layer_cache_bytes(launch.flags, launch.context, geometry.layers[index])
    return total
