"""From flags to cells: how llama.cpp divides a context between slots, and how large each cache becomes.

Owns the arithmetic of the context alone (llama-context, llama-kv-cache): counts of tokens and cells, no bytes.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from gridsched.vram.flags import AUTO_PARALLEL, LaunchFlags
from gridsched.vram.geometry import Geometry, Layer
from gridsched.vram.quants import CACHE_TYPES

CELL_STEP = 256  # contexts and caches are padded to this (GGML_PAD in llama-context)
DEFAULT_CONTEXT = 4096  # llama.cpp's own, for a file that does not say what it was trained on


@dataclass(frozen=True, slots=True)
class Context:
    """A launch's context. `ctx_size` is the pool as allocated, `per_slot` what one request may use of it.

    Caches have `full_cells` (or `window_cells` on window layers) in each of `streams`. `ubatch` is the micro-batch that
    sizes the compute buffer. `states` are a recurrent layer's states: one for each slot, and as many again for each
    token that drafting may have to take back. `flash_attn` False with `flash_attn_refused` True is the device's doing,
    not the flag's; `attention_on_host` is where flash attention is on though the device has no kernel for it.
    """

    ctx_size: int
    per_slot: int
    slots: int
    states: int
    streams: int
    full_cells: int
    window_cells: int
    ubatch: int
    flash_attn: bool
    flash_attn_refused: bool
    attention_on_host: bool = False
    notes: tuple[str, ...] = ()

    def cells(self, window: bool) -> int:
        """Cells of one layer's cache over all streams."""
        return (self.window_cells if window else self.full_cells) * self.streams

    def side_cells(self, every: int) -> int:
        """Cells of a cache with one cell for so many tokens, over all streams."""
        return padded(-(-self.full_cells // every)) * self.streams


_KEEP_STATES = frozenset(("draft-mtp", "draft-eagle3", "draft-dflash", "draft-dspark"))
_CAN_TAKE_BACK = frozenset(
    (
        *("qwen35", "qwen35moe", "qwen4exp", "nemotron_h", "nemotron_h_moe", "lfm2", "lfm2moe"),
        *("kimi-k3", "deepseek4", "glm5-next", "bailingmoe3"),
    )
)
"""Architectures whose engine code keeps earlier states (llama-arch's list for roll-back); the others keep one."""


def _takes_states_back(geometry: Geometry, flags: LaunchFlags) -> bool:
    return geometry.architecture in _CAN_TAKE_BACK and not _KEEP_STATES.isdisjoint(flags.spec_types)


def padded(count: int) -> int:
    """The next multiple of the cell step."""
    return -(-count // CELL_STEP) * CELL_STEP


def plan_context(geometry: Geometry, flags: LaunchFlags, *, on_gpu: bool = True) -> Context:
    """What the engine makes of these flags for this model.

    Without `-np` there are four slots over one unified cache; `-c` 0 or none is the trained length. A window layer
    keeps its window for every slot that shares a stream, and one micro-batch.
    """
    asked = flags.ctx_size or geometry.context_train or DEFAULT_CONTEXT
    slots = flags.parallel or AUTO_PARALLEL
    unified = flags.unified
    pool = padded(asked)
    streams = 1 if unified else slots
    cells = pool if unified else padded(pool // slots)
    pool = cells * streams
    if geometry.slot_streams:
        streams, unified = slots, False  # the caches are divided even where the context is not
    batch = min(flags.batch, flags.ubatch) if flags.one_output_per_token else flags.batch
    ubatch = min(batch, flags.ubatch)
    if geometry.has_cache:
        ubatch = min(ubatch, asked)  # before the pool is padded
    window_cells = cells
    if geometry.window and not flags.swa_full:
        window_cells = padded(min(cells, geometry.window * (slots if unified else 1) + ubatch))
    wanted = flags.flash_attn != "off" and geometry.architecture not in _NEVER_FLASH_ATTN
    refused = on_gpu and wanted and flags.flash_attn == "auto" and _device_refuses_flash_attn(geometry, flags)
    notes = []
    if geometry.context_train and cells > padded(geometry.context_train):
        notes.append(f"{cells} tokens a slot are more than the {geometry.context_train} that the model was trained on")
    return Context(
        ctx_size=pool,
        per_slot=cells,
        slots=slots,
        states=slots * (1 + (flags.draft_max if _takes_states_back(geometry, flags) else 0)),
        streams=streams,
        full_cells=cells,
        window_cells=window_cells,
        ubatch=ubatch,
        flash_attn=wanted and not refused,
        flash_attn_refused=refused,
        attention_on_host=on_gpu and wanted and not refused and _lacks_kernel(geometry, flags, geometry.layers),
        notes=tuple(notes),
    )


_NEVER_FLASH_ATTN = ("grok",)  # the engine turns it off before anything is laid out
_NOT_BESIDE_A_HOST_CACHE = frozenset(
    ("falcon-h1", "granitehybrid", "plamo2", "lfm2", "jamba", "nemotron_h", "nemotron_h_moe")
)
"""Hybrids whose attention ends on another device than its layer where the cache is on the host: `auto` is off there."""
_BORDER = ("lfm2", "granitehybrid", "nemotron_h")
"""Of those, whose last layer on the host is computed by the first card all the same if it attends."""
_QUERIES = re.compile(r"\.attn_(q|qkv)\.weight$")
_OFFLOADED_ROWS = 32  # from so many on, work on a host tensor is done by a card
FLASH_ATTN_HEADS = frozenset((40, 64, 72, 80, 96, 112, 128, 256))
"""Lengths of a head for which CUDA has a kernel where K and V are equally long (ggml-cuda/fattn)."""


def device_computes_flash_attn(head_length: int, value_length: int | None = None, queries_per_head: int = 1) -> bool:
    """Whether CUDA has a kernel for heads of that length. `queries_per_head`: how many query heads share one of K."""
    value = head_length if value_length is None else value_length
    match head_length, value:
        case 192, 128:
            return queries_per_head % 8 == 0
        case 320, 256:
            return queries_per_head % 32 == 0
        case (512, 512) | (576, 512):
            return queries_per_head > 1
    return head_length == value and head_length in FLASH_ATTN_HEADS


def _device_refuses_flash_attn(geometry: Geometry, flags: LaunchFlags) -> bool:
    """Where `auto` ends as off on CUDA: a layer on a device whose heads no kernel is for, and hybrids whose attention
    cannot run beside a cache on the host. A quantized V cannot do without, and keeps it on."""
    if CACHE_TYPES[flags.cache_type_v].is_quantized:
        return False
    total = len(geometry.layers)
    on_host = 0 if flags.gpu_layers is None else total + 1 - min(flags.gpu_layers, total + 1)
    layers = geometry.layers[on_host : geometry.blocks]
    if _attends_elsewhere(geometry, flags, on_host):
        return True
    with_experts = geometry.architecture in ("granitehybrid", "jamba") and geometry.experts.count
    apart = geometry.architecture in _NOT_BESIDE_A_HOST_CACHE and not with_experts
    if layers and apart and not flags.kv_offload:
        return True
    if geometry.architecture == "t5":  # its scores have a bias, and no kernel is asked for
        return on_host > 0
    border = geometry.layers[on_host - 1 : on_host] if on_host else ()
    if apart and geometry.architecture in _BORDER and any(layer.cache_source is not None for layer in border):
        return True
    return _lacks_kernel(geometry, flags, layers)


def _attends_elsewhere(geometry: Geometry, flags: LaunchFlags, on_host: int) -> bool:
    """Whether a layer without a cache of its own, which would hold its attention in place, attends where its queries
    are made: on a card though it is one of the host's, as the norm of many queries goes to a card; on the host though
    it is a card's, where an override keeps the queries' weights there."""
    reuses = {index for index, layer in enumerate(geometry.layers) if layer.heads and layer.cache_source != index}
    reuses -= {index for index in reuses if geometry.has_cache and geometry.layers[index].cache_source is None}
    tokens = flags.parallel or AUTO_PARALLEL

    def offloaded(index: int) -> bool:
        return flags.op_offload and geometry.has_cache and geometry.layers[index].heads * tokens >= _OFFLOADED_ROWS

    if geometry.has_cache and any(index < on_host and offloaded(index) for index in reuses):
        return True
    for weight in geometry.weights if flags.overrides and reuses else ():
        block = weight.block
        if block not in reuses or block < on_host or offloaded(block) or not _QUERIES.search(weight.name):
            continue
        first = next((override for override in flags.overrides if override.pattern.search(weight.name)), None)
        if first is not None and first.device is None:
            return True
    return False


def _lacks_kernel(geometry: Geometry, flags: LaunchFlags, layers: Sequence[Layer]) -> bool:
    """Whether CUDA has no flash attention for one of these layers: the length of its heads, or the cache's type."""
    attending = [
        layer for layer in layers if layer.heads and (layer.cache_source is not None or not geometry.has_cache)
    ]
    if attending and "iq4_nl" in (flags.cache_type_k, flags.cache_type_v):
        return True
    heads = {(layer.key_length, layer.value_length, layer.heads // max(layer.kv_heads, 1)) for layer in attending}
    return any(not device_computes_flash_attn(*lengths) for lengths in heads)
