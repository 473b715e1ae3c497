"""The estimate: bytes of one launch on each device and on the host, by component.

Owns the sum and its constants. Weights, cache and recurrent state are exact for CUDA, the compute buffer is an upper
bound, and what lies outside of the engine's buffers is a stated constant until a measurement replaces it (L2).
"""

from collections.abc import Mapping
from dataclasses import dataclass

from gridsched.core.ids import DeviceName
from gridsched.core.model import DeviceFootprint
from gridsched.vram.cache import cache_bytes, state_bytes
from gridsched.vram.compute import compute_bytes, compute_bytes_on_host, pinned_bytes
from gridsched.vram.context import Context, plan_context
from gridsched.vram.flags import LaunchFlags
from gridsched.vram.geometry import Geometry
from gridsched.vram.placement import place, weight_bytes

MIB = 1 << 20
HOST = DeviceName("host")

OVERHEAD_BYTES: Mapping[str, int] = {
    "cuda": 512 * MIB,
    "vulkan": 256 * MIB,
    "cpu": 128 * MIB,
    "simulated": 512 * MIB,
}
"""Memory of a process outside of the engine's buffers, on each device, by the name of the backend. CUDA: context,
kernels and workspaces, 135 to 456 MiB on public logs of consumer cards and 20 to 125 more after the first prompt.
Vulkan: a guess. CPU: program, libraries, threads and buffers of a server without a model."""

PROJECTOR_COMPUTE_BYTES = 128 * MIB  # SigLIP at 896 pixels with flash attention: 121.25 MiB
PROJECTOR_COMPUTE_PLAIN_BYTES = 1140 * MIB  # the same without: 1132 MiB


@dataclass(frozen=True, slots=True)
class LayerCounts:
    """How many layers keep a full cache, a window's, another layer's, a recurrent state, nothing.

    A layer with both a cache and a state (Falcon-H1) counts as both.
    """

    full: int
    window: int
    shared: int
    recurrent: int
    none: int


@dataclass(frozen=True, slots=True)
class Footprint:
    """What a launch takes. `host` is what it takes beside its devices; on a machine without a GPU the one device is the
    host and `host` is empty. `ctx_size` is the pool as the engine allocates it, in tokens."""

    devices: tuple[DeviceFootprint, ...]
    host: DeviceFootprint
    ctx_size: int
    ctx_per_slot: int
    parallel: int
    ubatch: int
    flash_attn: bool
    layers: LayerCounts
    notes: tuple[str, ...]

    @property
    def total_bytes(self) -> int:
        """The sum over the devices."""
        return sum(device.total_bytes for device in self.devices)


def footprint(
    geometry: Geometry,
    flags: LaunchFlags,
    devices: tuple[DeviceName, ...],
    *,
    on_host: bool = False,
    overhead_bytes: int = OVERHEAD_BYTES["cuda"],
    projector: Geometry | None = None,
) -> Footprint:
    """Estimate a launch of `geometry` with `flags` on `devices`, in the engine's order.

    `on_host`: the one device is the host itself and everything lands there. `overhead_bytes` is charged once on each
    device (see `OVERHEAD_BYTES`). `projector` is the `--mmproj` file's geometry; it goes to the first device.
    """
    context = plan_context(geometry, flags, on_gpu=not on_host)
    if on_host:
        parts, host = _on_host(geometry, flags, context, devices[0], overhead_bytes)
    else:
        parts, host = _on_devices(geometry, flags, context, devices, overhead_bytes)
    parts, host = _with_projector(parts, host, projector, flags, context)
    return Footprint(
        devices=tuple(parts),
        host=host,
        ctx_size=context.ctx_size,
        ctx_per_slot=context.per_slot,
        parallel=context.slots,
        ubatch=context.ubatch,
        flash_attn=context.flash_attn,
        layers=_count_layers(geometry),
        notes=_notes(geometry, flags, context, projector),
    )


def _on_devices(
    geometry: Geometry, flags: LaunchFlags, context: Context, devices: tuple[DeviceName, ...], overhead: int
) -> tuple[list[DeviceFootprint], DeviceFootprint]:
    placement = place(geometry, flags, len(devices))
    weights, host_weights = weight_bytes(geometry, placement)
    kv, host_kv = cache_bytes(geometry, flags, context, placement)
    state, host_state = state_bytes(geometry, flags, context, placement)
    compute = compute_bytes(geometry, flags, context, placement)
    parts = [
        DeviceFootprint(name, weights[i], kv[i], state[i], compute[i], overhead_bytes=overhead)
        for i, name in enumerate(devices)
    ]
    pinned = pinned_bytes(geometry, flags, context, placement)
    return parts, DeviceFootprint(HOST, host_weights, host_kv, host_state, pinned, overhead_bytes=OVERHEAD_BYTES["cpu"])


def _on_host(
    geometry: Geometry, flags: LaunchFlags, context: Context, device: DeviceName, overhead: int
) -> tuple[list[DeviceFootprint], DeviceFootprint]:
    """Everything in one memory: the mapped file, and a second copy of what the processor wants laid out differently."""
    alone = place(geometry, flags, 0)
    _, weights = weight_bytes(geometry, alone)
    if flags.repack:
        weights += sum(weight.repacked_bytes for weight in geometry.weights)
    _, kv = cache_bytes(geometry, flags, context, alone)
    _, state = state_bytes(geometry, flags, context, alone)
    compute = compute_bytes_on_host(geometry, flags, context)
    return [DeviceFootprint(device, weights, kv, state, compute, overhead_bytes=overhead)], DeviceFootprint(HOST)


def _with_projector(
    parts: list[DeviceFootprint],
    host: DeviceFootprint,
    projector: Geometry | None,
    flags: LaunchFlags,
    context: Context,
) -> tuple[list[DeviceFootprint], DeviceFootprint]:
    """The multimodal projector on the first device, or on the host after `--no-mmproj-offload`."""
    if projector is None or not parts:
        return parts, host
    weights = sum(weight.device_bytes for weight in projector.weights)
    size = weights + (PROJECTOR_COMPUTE_BYTES if context.flash_attn else PROJECTOR_COMPUTE_PLAIN_BYTES)
    if flags.mmproj_offload:
        return [_with_mmproj(parts[0], size), *parts[1:]], host
    return parts, _with_mmproj(host, size)


def _with_mmproj(part: DeviceFootprint, size: int) -> DeviceFootprint:
    return DeviceFootprint(
        part.device,
        part.weights_bytes,
        part.kv_bytes,
        part.recurrent_bytes,
        part.compute_bytes,
        size,
        part.draft_bytes,
        part.overhead_bytes,
    )


def _count_layers(geometry: Geometry) -> LayerCounts:
    layers = list(enumerate(geometry.layers[: geometry.blocks]))
    own = [layer for index, layer in layers if layer.cache_source == index]
    return LayerCounts(
        full=sum(not layer.window for layer in own),
        window=sum(layer.window for layer in own),
        shared=sum(layer.cache_source not in (None, index) for index, layer in layers),
        recurrent=sum(layer.recurrent for _, layer in layers),
        none=sum(layer.cache_source is None and not layer.recurrent for _, layer in layers),
    )


def _notes(geometry: Geometry, flags: LaunchFlags, context: Context, projector: Geometry | None) -> tuple[str, ...]:
    notes = [*geometry.notes, *context.notes, *flags.uncounted]
    if context.flash_attn_refused:
        notes.append("flash attention is off: the device does not support it for this model's heads")
    if flags.split_mode in ("row", "tensor"):
        notes.append(f"--split-mode {flags.split_mode} is estimated as a split by layers")
    if flags.mmproj and projector is None:
        notes.append("the memory of the --mmproj file is not counted")
    if any(kind.startswith("draft") for kind in flags.spec_types):
        notes.append("the memory that speculative decoding takes is not counted")
    return tuple(notes)
