"""From flags to cells: how llama.cpp divides a context between slots, and how large each cache becomes.

Owns the arithmetic of the context alone (llama-context, llama-kv-cache): counts of tokens and cells, no bytes.
"""

from dataclasses import dataclass

from gridsched.vram.flags import AUTO_PARALLEL, LaunchFlags
from gridsched.vram.geometry import Geometry
from gridsched.vram.quants import CACHE_TYPES

CELL_STEP = 256  # contexts and caches are padded to this (GGML_PAD in llama-context)
DEFAULT_CONTEXT = 4096  # llama.cpp's own, for a file that does not say what it was trained on


@dataclass(frozen=True, slots=True)
class Context:
    """A launch's context. `ctx_size` is the pool as allocated, `per_slot` what one request may use of it.

    Caches have `full_cells` (or `window_cells` on window layers) in each of `streams`. `ubatch` is the micro-batch that
    sizes the compute buffer. `flash_attn` False with `flash_attn_refused` True is the device's doing, not the flag's.
    """

    ctx_size: int
    per_slot: int
    slots: int
    streams: int
    full_cells: int
    window_cells: int
    ubatch: int
    flash_attn: bool
    flash_attn_refused: bool
    notes: tuple[str, ...] = ()

    def cells(self, window: bool) -> int:
        """Cells of one layer's cache over all streams."""
        return (self.window_cells if window else self.full_cells) * self.streams

    def side_cells(self, every: int) -> int:
        """Cells of a cache with one cell for so many tokens, over all streams."""
        return padded(-(-self.full_cells // every)) * self.streams


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
    unified = flags.kv_unified if flags.kv_unified is not None else flags.parallel is None
    pool = padded(asked)
    streams = 1 if unified else slots
    cells = pool if unified else padded(pool // slots)
    pool = cells * streams
    if geometry.slot_streams:
        streams, unified = slots, False  # the caches are divided even where the context is not
    batch = min(flags.batch, flags.ubatch) if flags.one_output_per_token else flags.batch
    ubatch = min(batch, flags.ubatch)
    if geometry.has_cache:
        ubatch = min(ubatch, pool)
    window_cells = cells
    if geometry.window and not flags.swa_full:
        window_cells = padded(min(cells, geometry.window * (slots if unified else 1) + ubatch))
    refused = on_gpu and flags.flash_attn == "auto" and _device_refuses_flash_attn(geometry, flags)
    notes = []
    if geometry.context_train and cells > padded(geometry.context_train):
        notes.append(f"{cells} tokens a slot are more than the {geometry.context_train} that the model was trained on")
    return Context(
        ctx_size=pool,
        per_slot=cells,
        slots=slots,
        streams=streams,
        full_cells=cells,
        window_cells=window_cells,
        ubatch=ubatch,
        flash_attn=flags.flash_attn != "off" and not refused,
        flash_attn_refused=refused,
        notes=tuple(notes),
    )


def _device_refuses_flash_attn(geometry: Geometry, flags: LaunchFlags) -> bool:
    """Where `auto` ends as off on CUDA: K and V of different lengths without grouping (DeepSeek before MLA), and
    hybrids whose attention cannot run beside a cache on the host. A quantized V cannot do without, and keeps it on."""
    if CACHE_TYPES[flags.cache_type_v].is_quantized or geometry.mla or flags.gpu_layers == 0:
        return False
    if geometry.architecture in ("falcon-h1", "granitehybrid") and not flags.kv_offload:
        return True
    return any(
        layer.cache_source is not None and layer.key_length != layer.value_length and layer.heads == layer.kv_heads
        for layer in geometry.layers
    )
