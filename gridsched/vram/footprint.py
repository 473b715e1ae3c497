"""The estimate: bytes of one launch on each device and on the host, by component.

Owns the sum, what of the host's part may be given back or may grow, and the notes that explain a surprise. Weights,
cache and recurrent state are exact for CUDA, the compute buffer is an upper bound, and what lies outside of the
engine's buffers is a stated constant (`overhead`) until a measurement replaces it (L2)."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from gridsched.core.ids import DeviceName
from gridsched.core.model import DeviceFootprint
from gridsched.vram.buffers import Buffers, buffers_on_devices, buffers_on_host, repacked_bytes
from gridsched.vram.context import Context, device_computes_flash_attn, plan_context
from gridsched.vram.drafting import MTP, draft_buffers
from gridsched.vram.flags import AUTO_PARALLEL, LaunchFlags
from gridsched.vram.geometry import Geometry
from gridsched.vram.host import growth_bytes
from gridsched.vram.overhead import HOST_OVERHEAD_BYTES, overhead
from gridsched.vram.projector import ASSUMED_BYTES
from gridsched.vram.quants import CACHE_TYPES
from gridsched.vram.refusals import check_launch

MIB = 1 << 20
HOST = DeviceName("host")


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
    host and `host` is empty. `ctx_size` is the pool as the engine allocates it, in tokens.

    Of host memory, `mapped_bytes` are weights mapped from the file, which the kernel may drop and read again, and
    `growth_bytes` is what the process may take in time beside all of this: saved prompts and states.
    """

    devices: tuple[DeviceFootprint, ...]
    host: DeviceFootprint
    ctx_size: int
    ctx_per_slot: int
    parallel: int
    ubatch: int
    flash_attn: bool
    layers: LayerCounts
    notes: tuple[str, ...]
    mapped_bytes: int = 0
    growth_bytes: int = 0

    @property
    def total_bytes(self) -> int:
        """The sum over the devices."""
        return sum(device.total_bytes for device in self.devices)

    @property
    def host_need_bytes(self) -> int:
        """Of what it takes beside its devices, all that the kernel cannot take back, grown as far as it may."""
        return self.host.total_bytes - self.mapped_bytes + self.growth_bytes


def footprint(
    geometry: Geometry,
    flags: LaunchFlags,
    devices: tuple[DeviceName, ...],
    *,
    on_host: bool = False,
    overhead_bytes: int | Mapping[DeviceName, int] | None = None,
    projector: Geometry | None = None,
    draft: Geometry | None = None,
    adapters: tuple[Geometry, ...] = (),
) -> Footprint:
    """Estimate a launch of `geometry` with `flags` on `devices`, in the engine's order. Raises FlagError.

    `on_host`: the one device is the host itself and everything lands there. `overhead_bytes` is charged once on each
    device, or by device; without it, what an unknown CUDA card may take. `projector`, `draft` and `adapters` are the
    geometries of the files that `--mmproj`, `--model-draft` and `--lora` name; the projector goes to the first device.
    """
    context = plan_context(geometry, flags, on_gpu=not on_host)
    check_launch(geometry, flags, context, devices=0 if on_host else len(devices))
    if on_host:
        parts, host = [buffers_on_host(geometry, flags, context, adapters)], Buffers()
    else:
        parts, host = buffers_on_devices(geometry, flags, context, len(devices), adapters)
    drafts, draft_host = draft_buffers(geometry, flags, context, draft, len(devices), on_host=on_host)
    outside = [_outside(overhead_bytes, name) for name in devices]
    sums = [
        _sum(name, part, drafted, overhead_here)
        for name, part, drafted, overhead_here in zip(devices, parts, drafts, outside, strict=True)
    ]
    beside = DeviceFootprint(HOST) if on_host else _sum(HOST, host, draft_host, HOST_OVERHEAD_BYTES)
    sums, beside = _with_projector(sums, beside, projector, flags, on_host=on_host)
    return Footprint(
        devices=tuple(sums),
        host=beside,
        ctx_size=context.ctx_size,
        ctx_per_slot=context.per_slot,
        parallel=context.slots,
        ubatch=context.ubatch,
        flash_attn=context.flash_attn,
        layers=_count_layers(geometry),
        notes=(
            *_notes(geometry, flags, context, projector, draft, adapters),
            *(_second_copies(geometry, flags) if on_host else _left_on_host(geometry, flags)),
        ),
        mapped_bytes=_mapped_bytes(flags, *(parts + drafts if on_host else (host, draft_host))),
        growth_bytes=growth_bytes(geometry, flags, context, on_host=on_host),
    )


def _mapped_bytes(flags: LaunchFlags, *in_host_memory: Buffers) -> int:
    return sum(buffers.mapped for buffers in in_host_memory) if flags.weights_may_be_dropped else 0


def _outside(overhead_bytes: int | Mapping[DeviceName, int] | None, name: DeviceName) -> int:
    if overhead_bytes is None:
        return overhead("cuda").bytes
    return overhead_bytes if isinstance(overhead_bytes, int) else overhead_bytes[name]


def _sum(name: DeviceName, own: Buffers, drafting: Buffers, outside: int) -> DeviceFootprint:
    return DeviceFootprint(
        name, own.weights, own.kv, own.state, own.compute, draft_bytes=drafting.total, overhead_bytes=outside
    )


def _with_projector(
    parts: list[DeviceFootprint],
    host: DeviceFootprint,
    projector: Geometry | None,
    flags: LaunchFlags,
    *,
    on_host: bool,
) -> tuple[list[DeviceFootprint], DeviceFootprint]:
    """The projector on the first device and its pictures in host memory; all of it there after
    `--no-mmproj-offload`."""
    if projector is None or not parts:
        return parts, host
    weights = sum(weight.device_bytes for weight in projector.weights)
    compute = ASSUMED_BYTES if not projector.towers else 0
    for tower in projector.towers:
        fast = flags.flash_attn != "off" and (on_host or device_computes_flash_attn(tower.head_length))
        compute = max(compute, tower.compute_bytes(flash_attn=fast))
    pictures = sum(tower.input_bytes for tower in projector.towers)
    if on_host:
        return [replace(parts[0], mmproj_bytes=weights + compute + pictures)], host
    if flags.mmproj_offload:
        return [replace(parts[0], mmproj_bytes=weights + compute), *parts[1:]], replace(host, mmproj_bytes=pictures)
    return parts, replace(host, mmproj_bytes=weights + compute + pictures)


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


# --- notes ------------------------------------------------------------------------------------------------------


def _notes(
    geometry: Geometry,
    flags: LaunchFlags,
    context: Context,
    projector: Geometry | None,
    draft: Geometry | None,
    adapters: tuple[Geometry, ...],
) -> tuple[str, ...]:
    notes = [*geometry.notes, *context.notes, *flags.uncounted, *_surprises(geometry, flags, context)]
    if context.flash_attn_refused:
        notes.append("flash attention is off: the device does not support it for this model's heads")
    if flags.split_mode == "tensor":
        notes.append("--split-mode tensor is estimated as a split by layers")
    if flags.mmproj and projector is None:
        notes.append("the memory of the --mmproj file is not counted")
    if projector is not None and not projector.towers:
        notes.append(
            f"the projector does not tell its sizes: {_mib(ASSUMED_BYTES)} are assumed for what it computes in"
        )
    if flags.draft is not None and flags.draft.model and draft is None:
        notes.append("the memory of the --model-draft file is not counted")
    if len(adapters) < len(flags.loras):
        notes.append("the memory of the --lora files is not counted")
    return tuple(notes)


def _second_copies(geometry: Geometry, flags: LaunchFlags) -> Iterator[str]:
    """Of a launch on the host alone."""
    if twice := repacked_bytes(geometry, flags):
        yield (
            f"{_mib(twice)} of the weights are held twice: as the file has them, and laid out anew for the processor "
            "(--no-repack: once, and slower)"
        )


def _left_on_host(geometry: Geometry, flags: LaunchFlags) -> Iterator[str]:
    """What a launch on cards holds in host memory although all layers may be on them."""
    if flags.gpu_layers == 0:
        return
    tables = {weight.name: weight.file_bytes for weight in geometry.tensors.outside}
    if per_layer := tables.get("per_layer_token_embd.weight"):
        yield f"{_mib(per_layer)} of per-layer embeddings stay in host memory"
    if geometry.tied_output and (table := tables.get("token_embd.weight")):
        yield f"the token table of {_mib(table)} is held twice: in host memory, and as the output layer"


def _surprises(geometry: Geometry, flags: LaunchFlags, context: Context) -> list[str]:
    """What makes the figures differ from the file's size, or from what a flag seems to promise."""
    notes = []
    caches = any(layer.cache_source is not None for layer in geometry.layers)
    if flags.parallel is None and not flags.one_output_per_token:
        sentence = f"without --parallel there are {AUTO_PARALLEL} slots"
        sentence += " over one cache" if caches else ""
        sentence += ", each with a state of its own" if geometry.state_bytes else ""
        if geometry.window and not flags.swa_full:
            sentence += f", and each window layer keeps {context.window_cells} cells for them"
        notes.append(sentence)
    converted = (flags.cache_type_k, flags.cache_type_v) != ("f16", "f16")
    if converted and context.flash_attn and caches:
        kind = "quantized" if _is_quantized(flags) else "bf16 or f32"
        notes.append(f"a {kind} cache reserves one layer's K and V in f16 beside it, as part of the compute buffer")
    if context.states > context.slots and geometry.state_bytes:
        notes.append(f"{MTP} keeps {context.states // context.slots} recurrent states a slot")
    return notes


def _is_quantized(flags: LaunchFlags) -> bool:
    return any(CACHE_TYPES[kind].is_quantized for kind in (flags.cache_type_k, flags.cache_type_v))


def _mib(size: int) -> str:
    return f"{size / MIB:,.0f} MiB"
