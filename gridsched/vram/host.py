"""Host memory that a process takes in time: saved prompts, and saved states of a slot.

Owns what gridsched lets the engine keep there, and how much that can become. It is no part of the estimate, because it
grows with use and has a cap; whoever plans host memory adds it.
"""

from gridsched.vram.cache import layer_cache_bytes
from gridsched.vram.context import Context
from gridsched.vram.flags import LaunchFlags
from gridsched.vram.geometry import Geometry

MIB = 1 << 20

CACHE_RAM_MIB = 512
"""Prompts that are kept beside a card: half a GiB keeps some conversations warm, where the engine's own default is 8
GiB a process. On a host-memory budget, where every byte is planned, nothing is kept (L6b)."""

CTX_CHECKPOINTS = 4
"""Saved states a slot, for models whose cache cannot be rolled back. The engine's default is 32; 4 is a guess."""

UNCAPPED_BYTES = 8192 * MIB  # what `--cache-ram -1` is counted as: the engine's own default cap


def growth_bytes(geometry: Geometry, flags: LaunchFlags, context: Context, *, on_host: bool = False) -> int:
    """What the process may take beside its estimate, at most: the prompt cache's cap, and every slot's saved states.

    A saved state holds a slot's recurrent states and its part of the window layers' caches.
    """
    if flags.cache_ram_mib is None:
        prompts = 0 if on_host else CACHE_RAM_MIB * MIB
    else:
        prompts = flags.cache_ram_mib * MIB if flags.cache_ram_mib >= 0 else UNCAPPED_BYTES
    count = CTX_CHECKPOINTS if flags.ctx_checkpoints is None else flags.ctx_checkpoints
    state = sum(layer.state_bytes for layer in geometry.layers)
    windows = [layer for index, layer in enumerate(geometry.layers) if layer.window and layer.cache_source == index]
    slot_cells = min(context.window_cells, geometry.window + context.ubatch)
    all_cells = max(context.cells(True), 1)
    state += sum(layer_cache_bytes(flags, context, layer) for layer in windows) * slot_cells // all_cells
    return prompts + count * context.slots * state
