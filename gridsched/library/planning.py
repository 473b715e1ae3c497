"""One model's plan: its header, its settings and the devices put to `vram`, which answers with the ladder (L7).

Owns what a model can be asked for, what identifies a launch beside its flags (L2), and the sentences for a model that
cannot be planned. Pure: the file has been read before, and nothing is measured here.
"""

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from gridsched.core.ids import DeviceName, ModelName
from gridsched.core.model import DeviceSpec, LaunchOption
from gridsched.library.measured import card
from gridsched.library.projectors import projector_capabilities
from gridsched.library.shards import ModelFile
from gridsched.library.sources import Source
from gridsched.ports import Backend, Capability, DeviceInfo, LaunchFacts, Measurement, ModelEntry
from gridsched.vram.advice import Advice, Suggestion
from gridsched.vram.calibrate import believed
from gridsched.vram.flags import FlagError, LaunchFlags, parse_flags
from gridsched.vram.geometry import Geometry, GeometryError
from gridsched.vram.ladder import ladder, takes_cache
from gridsched.vram.launches import CTX_FLOOR, CTX_TARGET, CacheTypes, LadderRequest
from gridsched.vram.overhead import Overhead, overhead

NOTHING_MEASURED: Mapping[str, int] = {}


@dataclass(frozen=True, slots=True)
class Defaults:
    """For models without their own. Contexts are tokens for each slot; no `parallel` and no `cache_types` are
    automatic, and cache types that a model cannot do with are passed over; `reasoning_format` is the engine's word; an
    infinite `idle_ttl_seconds` is never (R6)."""

    ctx_target: int = CTX_TARGET
    ctx_floor: int = CTX_FLOOR
    parallel: int | None = None
    idle_ttl_seconds: float = 1800.0
    cache_types: CacheTypes | None = None
    reasoning_format: str = "auto"


class Unservable(Exception):
    """A model that cannot be planned; the sentence says what is wrong, and with which setting."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that a model's launches follow from. `options` is its ladder without measurements."""

    geometry: Geometry
    capabilities: frozenset[Capability]
    request: LadderRequest
    devices: tuple[DeviceName, ...]
    options: tuple[LaunchOption, ...]

    def measured(
        self, measurements: Mapping[str, Measurement], usable_bytes: Mapping[DeviceName, int]
    ) -> tuple[tuple[LaunchOption, ...], tuple[str, ...]]:
        """The ladder with what earlier runs measured, and why some of that is not believed (L2)."""
        found, refusals = [], []
        for option in self.options:
            kept = measurements.get(option.key, Measurement())
            with_it, refusal = believed(option, kept.measured_bytes, usable_bytes)
            found.append(with_it)
            refusals += [refusal] if refusal else []
        return tuple(found), tuple(refusals)

    def with_overhead(self, overheads: Mapping[str, int], devices: Sequence[DeviceInfo]) -> "Plan":
        """The same launches under the same keys with another charge beside their buffers. How a split shares the model
        out stays as it was: it hardly depends on that."""
        charged = _charges(devices, overheads)
        options = tuple(
            replace(
                option,
                footprint=tuple(replace(part, overhead_bytes=charged[part.device]) for part in option.footprint),
            )
            for option in self.options
        )
        request = replace(self.request, overhead_bytes=max(charged.values()), device_overhead_bytes=charged)
        return replace(self, request=request, options=options)

    def facts(self, source: Source, option: LaunchOption, devices: Sequence[DeviceInfo]) -> LaunchFacts:
        """What a measurement of an option is of."""
        words = ("--ctx-size", str(option.ctx_size), "--parallel", str(option.parallel), *option.flags)
        known = {info.spec.name: info for info in devices}
        infos = [known[name] for name in option.devices]
        return LaunchFacts(
            model=source.entry.name,
            architecture=self.geometry.architecture,
            path=str((source.file.path if source.file is not None else source.entry.path).absolute()),
            fingerprint=_files(source),
            flags=shlex.join((*words, *source.entry.flags)),
            engine_build=self.request.engine_build,
            devices=tuple(info.identity for info in infos),
            drivers=tuple(info.driver for info in infos),
        )

    def at(self, ctx_size: int, parallel: int | None = None) -> "Plan":
        """The same with a pool of so many tokens, shared by so many slots where that is said, whatever was asked for.
        Raises FlagError."""
        asked = replace(self.request, ctx_size=ctx_size, ctx_per_slot=None, parallel=parallel or self.request.parallel)
        asked = replace(asked, flags=(*asked.flags, *overriding(asked.flags, ctx_size, parallel)))
        return replace(self, request=asked, options=ladder(self.geometry, asked, self.devices))

    def advice(self, usable_bytes: Mapping[DeviceName, int]) -> Advice:
        """What those bytes would carry, and host memory beside them as far as the machine has it."""
        beside = {name: size for name, size in (self.request.device_bytes or {}).items() if name not in self.devices}
        return Advice(self.geometry, self.request, self.devices, {**beside, **usable_bytes})


def plan(
    source: Source,
    devices: Sequence[DeviceInfo],
    defaults: Defaults,
    engine_build: str,
    overheads: Mapping[str, int] = NOTHING_MEASURED,
    host: DeviceSpec | None = None,
) -> Plan:
    """Plan one model on these devices, which share one backend. Raises Unservable.

    `overheads`: what was measured outside of the engine's buffers, by device and driver (`vram.calibrate.overheads`).
    `host`: host memory beside the devices; a launch that takes more of it is not offered, unless all do.
    """
    file, entry = source.file, source.entry
    if file is None or source.problem is not None:
        raise Unservable(source.problem or "there is no file")
    try:
        geometry = _geometry(file)
        flags = parse_flags(entry.flags)
        capabilities = entry.capabilities or _capabilities(geometry, flags, source)
        charged = _charges(devices, overheads)
        request = LadderRequest(
            fingerprint=_identity(source, devices),
            engine_build=engine_build,
            flags=entry.flags,
            ctx_size=entry.ctx_size,
            ctx_per_slot=entry.ctx_per_slot,
            parallel=entry.parallel or defaults.parallel,
            cache_types=entry.cache_types or defaults.cache_types,
            ctx_target=defaults.ctx_target,
            ctx_floor=defaults.ctx_floor,
            device=_device(entry, devices),
            embeddings=Capability.EMBEDDING in capabilities,
            reranking=Capability.RERANK in capabilities,
            on_host=all(info.backend is Backend.CPU for info in devices),
            overhead_bytes=max(charged.values()),
            device_overhead_bytes=charged,
            mixed_cache=_mixes_cache_types(devices[0].backend, engine_build),
            device_bytes=usable_bytes(devices, host),
            device_ranks={info.spec.name: info.capability for info in devices},
            projector=_geometry(source.projector) if source.projector is not None else None,
            draft=_geometry(source.draft) if source.draft is not None else None,
            adapters=tuple(map(_geometry, source.adapters)),
        )
        if entry.cache_types is None and not takes_cache(geometry, request):
            request = replace(request, cache_types=None)
        names = tuple(info.spec.name for info in devices)
        return Plan(geometry, capabilities, request, names, ladder(geometry, request, names))
    except GeometryError as error:
        raise Unservable(f"{file.path}: {error}") from error
    except FlagError as error:
        raise Unservable(f"flags: {error}") from error


def overriding(flags: tuple[str, ...], ctx_size: int, parallel: int | None) -> tuple[str, ...]:
    """What goes behind a person's flags that say another context, or other slots, than a launch has: the last of a kind
    wins. Raises FlagError."""
    said = parse_flags(flags)
    ctx_words = ("--ctx-size", str(ctx_size)) if said.ctx_size not in (None, ctx_size) else ()
    return ctx_words + (("--parallel", str(parallel)) if parallel and said.parallel not in (None, parallel) else ())


def usable_bytes(devices: Sequence[DeviceInfo], host: DeviceSpec | None) -> Mapping[DeviceName, int]:
    """What may be planned at all of each device, and of host memory beside them where that is known (L4)."""
    specs = (*(info.spec for info in devices), *((host,) if host is not None else ()))
    return {spec.name: spec.total_bytes - spec.headroom_bytes for spec in specs}


def advised(model: ModelName, suggestion: Suggestion) -> str:
    """A suggestion as a sentence about the configuration."""
    if suggestion.setting != "flags":
        at_most = "" if suggestion.setting in ("cache_type", "device") else "at most "
        return f"Set models.{model}.{suggestion.setting} to {at_most}{suggestion.value}"
    moved = f" ({suggestion.host_bytes / 2**30:.2f} GiB of weights then lie in host memory)"
    return f"Add {suggestion.value} to models.{model}.flags" + (moved if suggestion.host_bytes else "")


def _capabilities(geometry: Geometry, flags: LaunchFlags, source: Source) -> frozenset[Capability]:
    """What the header says the model is made for, unless the person's flags start the engine for something else.

    A causal model without a chat template chats too: the engine then falls back on a common one.
    """
    if flags.reranking or (geometry.is_reranker and not flags.embeddings):
        return frozenset((Capability.RERANK,))
    if flags.embeddings or geometry.is_embedding or not geometry.causal:
        return frozenset((Capability.EMBEDDING,))
    brought = projector_capabilities(source.projector.header) if source.projector else frozenset()
    return frozenset((Capability.CHAT, Capability.COMPLETION)) | brought


MIXED_CACHE_BUILD = 11434
"""llama.cpp's first build known to have CUDA kernels for q8_0 with q4_0 whatever it was built with: its source has them
and its accounting keeps attention on the device. b10819 had not: there attention falls to the CPU, without a word."""

_BUILD = re.compile(r"\bbuild (\d+)|^b?(\d+)(?:\s|$)")


def _mixes_cache_types(backend: Backend, engine_build: str) -> bool:
    """Whether attention over K and V of different types stays where the model is. Vulkan has no kernels for it; of a
    build that does not tell its number it is not believed."""
    if backend is not Backend.CUDA:
        return backend is Backend.CPU
    found = _BUILD.search(engine_build)
    return found is not None and int(found[1] or found[2]) >= MIXED_CACHE_BUILD


def outside(device: DeviceInfo, measured: Mapping[str, int]) -> Overhead:
    """What a process takes beside its buffers: as measured on this card, else what is known of such cards. On the host
    what is known stands: how much of a process is resident there is the kernel's choice."""
    known = measured.get(card(device.identity, device.driver))
    if known is not None and device.backend is not Backend.CPU:
        return Overhead(known)
    return overhead(device.backend.value, device.label, device.spec.total_bytes)


def _charges(devices: Sequence[DeviceInfo], measured: Mapping[str, int]) -> Mapping[DeviceName, int]:
    return {info.spec.name: outside(info, measured).bytes for info in devices}


def _geometry(file: ModelFile) -> Geometry:
    try:
        return Geometry.from_header(file.header, file.shards)
    except GeometryError as error:
        raise Unservable(f"{file.path}: {error}") from error


def _files(source: Source) -> str:
    """All files of a model, as long as they do not change; its own on the first line."""
    first = (source.file, source.projector)
    beside = (each.fingerprint for each in (source.draft, *source.adapters) if each is not None)
    return "\n".join((*(file.fingerprint if file is not None else "" for file in first), *beside))


def _identity(source: Source, devices: Sequence[DeviceInfo]) -> str:
    """What a measurement depends on beside flags and engine: the files, the very cards, the process's environment."""
    parts = [_files(source)]
    parts += [f"{info.spec.name}={info.identity}" for info in devices]
    parts += [f"{name}={value}" for name, value in sorted(source.entry.env.items())]
    return "\n".join(parts)


def _device(entry: ModelEntry, devices: Sequence[DeviceInfo]) -> DeviceName | None:
    """The only device that the model may use, by name, UUID or PCI address, with or without its domain."""
    if entry.device is None:
        return None
    for info in devices:
        bus = info.pci_bus.casefold()
        names = (info.spec.name.casefold(), info.uuid.casefold(), bus, bus.partition(":")[2])
        if entry.device.casefold() in names:
            return info.spec.name
    known = ", ".join(info.spec.name for info in devices)
    raise Unservable(f"device: there is no {entry.device!r} here (there is {known})")
