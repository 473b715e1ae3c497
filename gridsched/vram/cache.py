"""Bytes of the KV cache and of the recurrent state, layer by layer.

Owns the size of what the engine remembers between tokens; exact for CUDA. Takes a context and a placement as given.
"""

from gridsched.vram.context import Context
from gridsched.vram.flags import LaunchFlags
from gridsched.vram.geometry import Geometry, Layer
from gridsched.vram.placement import Placement
from gridsched.vram.quants import CACHE_TYPES, QuantType, cuda_padding_bytes, row_bytes

DEVICE_ALIGNMENT = 128


def cache_device(placement: Placement, flags: LaunchFlags, index: int) -> int | None:
    """Where a layer's cache lies: with its layer, or on the host after `--no-kv-offload`."""
    return placement.layers[index] if flags.kv_offload else None


def cache_bytes(
    geometry: Geometry, flags: LaunchFlags, context: Context, placement: Placement
) -> tuple[list[int], int]:
    """KV bytes on each device, and on the host: K and V of every layer with a cache of its own.

    MLA keeps K alone, an indexer keys of its own. Without flash attention from the start every V is as wide as the
    model's widest (the engine lays it out transposed).
    """
    on_devices, on_host = [0] * placement.devices, 0
    key_type, value_type = CACHE_TYPES[flags.cache_type_k], CACHE_TYPES[flags.cache_type_v]
    widest = max((layer.value_width for layer in geometry.layers), default=0)

    def layer_bytes(layer: Layer, *, on_device: bool) -> int:
        cells = context.cells(layer.window)
        size = _side_bytes(key_type, layer.key_width, cells, padded=on_device)
        if not geometry.mla:
            width = layer.value_width if context.flash_attn or context.flash_attn_refused else widest
            size += _side_bytes(value_type, width, cells, padded=on_device)
        for side in layer.side_caches:
            cells = context.side_cells(side.every)
            size += _side_bytes(key_type, side.key_width, cells, padded=on_device)
            size += _side_bytes(value_type, side.value_width, cells, padded=on_device)
        return size

    known: dict[tuple[object, ...], int] = {}  # most layers are alike
    for index, layer in enumerate(geometry.layers):
        if layer.cache_source != index:
            continue
        device = cache_device(placement, flags, index)
        kind = (layer.key_width, layer.value_width, layer.window, layer.side_caches, device is None)
        size = known.get(kind)
        if size is None:
            size = known[kind] = layer_bytes(layer, on_device=device is not None)
        if device is None:
            on_host += size
        else:
            on_devices[device] += size
    return on_devices, on_host


def _side_bytes(kind: QuantType, width: int, cells: int, *, padded: bool) -> int:
    """K's or V's bytes; a device pads the last quantized row."""
    size = row_bytes(kind, width) * cells
    padding = cuda_padding_bytes(kind, width) if padded else 0
    return -(-(size + padding) // DEVICE_ALIGNMENT) * DEVICE_ALIGNMENT if padding else size


def state_bytes(
    geometry: Geometry, flags: LaunchFlags, context: Context, placement: Placement
) -> tuple[list[int], int]:
    """Recurrent state on each device, and on the host: one for every slot, whatever the context; more
    where drafting may have to take tokens back."""
    on_devices, on_host = [0] * placement.devices, 0
    for index, layer in enumerate(geometry.layers):
        if not layer.state_bytes:
            continue
        device = cache_device(placement, flags, index)
        size = layer.state_bytes * context.states
        if device is None:
            on_host += size
        else:
            on_devices[device] += size
    return on_devices, on_host


def layer_cache_bytes(flags: LaunchFlags, context: Context, layer: Layer) -> int:
    """K and V of one layer in the cache's own types, without padding: what a copy of it takes."""
    return context.cells(layer.window) * (
        row_bytes(CACHE_TYPES[flags.cache_type_k], layer.key_width)
        + row_bytes(CACHE_TYPES[flags.cache_type_v], layer.value_width)
    )


def layer_f16_bytes(flags: LaunchFlags, context: Context, layer: Layer, *, with_value: bool = True) -> int:
    """K and V of one layer again in f16, for those of the two that are not: CUDA's kernels read no other."""
    width = layer.key_width if flags.cache_type_k != "f16" else 0
    if with_value and flags.cache_type_v != "f16":
        width += layer.value_width
    return context.cells(layer.window) * 2 * width
