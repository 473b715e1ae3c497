"""The models there are, as `ports.Catalog`: names, ladders, launches.

Owns the composition of sources, plans and names. Reads no device: everything it says follows from what it was built
with, what it was told of measurements since, and the files of a model that had changed when it was to be launched, or
that are back when somebody asks for it. Any other change of files, devices or settings makes a new one.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import trio

from gridsched.core.ids import DeviceName, ModelName
from gridsched.core.model import DeviceSpec, LaunchOption, ModelSpec
from gridsched.library.doubts import assumed, bases_of, cannot_be_told, not_chatting, too_much_pinned
from gridsched.library.measured import loads
from gridsched.library.names import Named, Names, printable, publisher_of
from gridsched.library.planning import Defaults, Plan, Unservable, advised, overriding, plan
from gridsched.library.quantizations import quantization
from gridsched.library.read import real_path
from gridsched.library.shards import ModelFile
from gridsched.library.sources import Library, Source
from gridsched.ports import (
    Capability,
    CatalogFamily,
    CatalogModel,
    CatalogVirtual,
    DeviceInfo,
    FamilyEntry,
    LargestFit,
    Launch,
    Measurement,
    ModelEntry,
)
from gridsched.threads import in_thread
from gridsched.vram.calibrate import overheads
from gridsched.vram.flags import FlagError

LOOK_SECONDS = 1.0
"""A crowd that asks for what is not there reads the disk once in this time."""

NEWS_BYTES = 8 << 20
"""What a process takes beside its buffers differs by some MiB from one start to the next."""

REASONING = "--reasoning-format"
"""The engine's flag for what a model thinks. It takes no memory: a launch is the same launch with it."""

LOAD_FLOOR_SECONDS = 1.0
LOAD_BYTES_PER_SECOND = 1e9
"""What a load takes until one was timed: process start and warm-up, then a usual disk. Both are guesses."""


@dataclass(frozen=True, slots=True)
class _Entry:
    source: Source
    plan: Plan | None
    model: CatalogModel
    doubts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Ground:
    """What all models are planned on."""

    devices: tuple[DeviceInfo, ...]
    measurements: Mapping[str, Measurement]
    defaults: Defaults
    engine_build: str
    outside: Mapping[str, int]
    host: DeviceSpec | None


class ModelCatalog:
    """A `ports.Catalog` over what `read_library` found."""

    def __init__(  # noqa: PLR0913 - all that a plan rests on
        self,
        library: Library,
        devices: Sequence[DeviceInfo],
        measurements: Mapping[str, Measurement],
        *,
        defaults: Defaults,
        families: Sequence[FamilyEntry] = (),
        default_model: str | None = None,
        engine_build: str = "",
        host: DeviceSpec | None = None,
        before: "ModelCatalog | None" = None,
    ) -> None:
        """`devices` is never empty and of one backend; `host` is the memory beside them. `default_model` is any word
        that resolves. What is as it was in the catalog `before` is not planned again."""
        self._devices = tuple(devices)
        # Families' and virtual models' names go before what files bring with them.
        named = [Named(ModelName(entry.name), Path()) for entry in families]
        named += [Named(ModelName(entry.name), Path(), entry.aliases) for entry in library.virtuals]
        named += [_named(source) for source in library.sources]
        words = Names(named, None)
        self._entries: dict[ModelName, _Entry] = {}
        measured_outside = overheads(loads(measurements.values()), engine_build)
        if before is not None and _alike(measured_outside, before._ground.outside):
            measured_outside = before._ground.outside
        ground = _Ground(self._devices, measurements, defaults, engine_build, measured_outside, host)
        self._ground: _Ground = ground
        self._measured = measurements
        self._fits: dict[ModelName, tuple[frozenset[tuple[DeviceName, int]], LargestFit]] = {}
        self._one_at_a_time = trio.CapacityLimiter(1)
        self._looking = trio.Lock()
        self._look_at: dict[ModelName, float] = {}
        for source in library.sources:
            name = ModelName(source.entry.name)
            planned = before._planned(source, ground) if before is not None else None
            self._entries[name] = _entry(source, words.aliases(name), ground, planned)
        served = {name: entry.model for name, entry in self._entries.items()}
        self._configured_families = tuple(families)
        self._families = {ModelName(entry.name): CatalogFamily.of(entry, served) for entry in families}
        self._virtuals = {ModelName(entry.name): entry for entry in library.virtuals}
        self._bases, no_base = bases_of(library.virtuals, words)
        default = words.resolve(default_model) if default_model else None
        self._names = Names(named, default or self._first_chat())
        self.notes = tuple(map(printable, (*library.notes, *assumed(self._devices, measured_outside), *self._doubts())))
        self.problems = tuple(too_much_pinned(self.models(), self._devices))
        self.faults = (*not_chatting(self.families()), *no_base, *cannot_be_told(self.virtuals()))
        if default_model and default is None:
            known = ", ".join(words.closest(default_model)) or "no name is like it"
            self.problems += (f"library.default_model: there is no model {default_model!r} ({known})",)

    def _planned(self, source: Source, ground: _Ground) -> Plan | None:
        """The plan of a model whose files and settings, and all that it is planned on, are the same."""
        entry = self._entries.get(ModelName(source.entry.name))
        if entry is None or entry.source != source or _planned_on(self._ground) != _planned_on(ground):
            return None
        return entry.plan

    def models(self) -> tuple[CatalogModel, ...]:
        """All of them: the configured ones in their order, then those from folders in the order of their paths."""
        return tuple(entry.model for entry in self._entries.values())

    def families(self) -> tuple[CatalogFamily, ...]:
        """All of them, in the order of the configuration."""
        return tuple(self._families.values())

    def virtuals(self) -> tuple[CatalogVirtual, ...]:
        """All of them that have a base, in the order of the configuration."""
        return tuple(self._virtual(name) for name in self._virtuals if name in self._bases)

    def resolve(self, name: str) -> CatalogModel | CatalogFamily | None:
        """The family or model that serves what a client means, see `names`."""
        found = self._names.resolve(name)
        if found is None or (found in self._virtuals and found not in self._bases):
            return None
        return self._serving(self._bases.get(found, found))

    def virtual(self, name: str) -> CatalogVirtual | None:
        """The virtual model that a client means."""
        found = self._names.resolve(name)
        return self._virtual(found) if found is not None and found in self._bases else None

    def _virtual(self, name: ModelName) -> CatalogVirtual:
        base = self._serving(self._bases[name])
        return CatalogVirtual(name, self._virtuals[name], base)

    def _serving(self, name: ModelName) -> CatalogModel | CatalogFamily:
        return self._families.get(name) or self._entries[name].model

    def closest(self, name: str) -> tuple[str, ...]:
        """Up to three names a person may have meant."""
        return self._names.closest(name)

    def launch(self, model: ModelName, option: LaunchOption) -> Launch:
        """What to start. Raises KeyError for a model that is not there, or has no file."""
        entry = self._entries[model]
        if entry.plan is None or entry.source.file is None:
            raise KeyError(model)
        return Launch(
            model=model,
            path=entry.source.file.path,
            option=option,
            capabilities=entry.plan.capabilities,
            mmproj=entry.source.projector.path if entry.source.projector else None,
            flags=_flags(entry, option) + _thinking(entry.source.entry, entry.plan.capabilities, self._ground.defaults),
            env=entry.source.entry.env,
            facts=entry.plan.facts(entry.source, option, self._devices),
        )

    def learn(self, measurements: Mapping[str, Measurement]) -> bool:
        """Charge every launch what was measured beside the buffers of any (L2), and say whether that changes a charge.

        Keys, shapes and measurements stay. A difference of under `NEWS_BYTES` is not worth planning everything anew.
        """
        self._measured, self._fits = measurements, {}
        before, found = self._ground.outside, overheads(loads(measurements.values()), self._ground.engine_build)
        if _alike(found, before):
            return False
        self._ground = ground = replace(self._ground, outside=found)
        changed = False
        for name, entry in self._entries.items():
            if entry.plan is None or entry.model.spec is None:
                continue
            planned = entry.plan.with_overhead(found, self._devices)
            changed = changed or planned.request != entry.plan.request
            options, _ = planned.measured(ground.measurements, _usable(self._devices))
            model = replace(entry.model, spec=replace(entry.model.spec, options=options))
            self._entries[name] = replace(entry, plan=planned, model=model)
        self._planned_anew()
        return changed

    async def renew(self, model: ModelName) -> str | None:
        """Read a model again whose files are others than it was planned with: the sentence for whoever wanted it.

        What cannot be served now stays planned as it was, for when it has its files back. Raises KeyError.
        """
        entry = self._entries[model]
        work = partial(_renewed, entry, self._names.aliases(model), self._ground)
        renewed, sentence = await in_thread(work, abandon_on_cancel=True)
        if renewed is not None:
            self._entries[model] = renewed
            self._planned_anew()
        return sentence

    async def look_again(self, model: ModelName) -> bool:
        """Read a model again that could not be served (F11). Whoever asks within a second of another finds what that
        one found. Raises KeyError."""
        async with self._looking:
            entry, now = self._entries[model], trio.current_time()
            if entry.plan is not None:
                return entry.model.spec is not None
            if now < self._look_at.get(model, now):
                return False
            self._look_at[model] = now + LOOK_SECONDS
            work = partial(_read_anew, entry, self._names.aliases(model), self._ground)
            found = await in_thread(work)
            self._entries[model] = found
            self._planned_anew()
            return found.plan is not None

    def plan_of(self, file: ModelFile, projector: ModelFile | None = None) -> Plan:
        """A model that is not here, planned as it would be if it were. Raises Unservable. Takes a moment."""
        ground = self._ground
        source = Source(ModelEntry(file.path.name, file.path), (), file, projector)
        return plan(source, ground.devices, ground.defaults, ground.engine_build, ground.outside, ground.host)

    def _planned_anew(self) -> None:
        self._fits = {}  # a search that is under way keeps what it finds elsewhere
        served = {name: entry.model for name, entry in self._entries.items()}
        for family in self._configured_families:
            self._families[ModelName(family.name)] = CatalogFamily.of(family, served)

    def fingerprints(self) -> Mapping[str, str]:
        """Of the models' own files, by path: what a measurement must be of to be of use."""
        files = (entry.source.file for entry in self._entries.values())
        return {str(file.path.absolute()): file.fingerprint for file in files if file is not None}

    def _doubts(self) -> Iterator[str]:
        for name, entry in self._entries.items():
            for why in entry.doubts:
                yield f"{name}: what is kept of a launch is not believed, and its estimate stands: {why}"

    async def options(self, model: ModelName, ctx_size: int, parallel: int | None = None) -> tuple[LaunchOption, ...]:
        """The ladder for another context, and other slots, worked out one at a time. Raises KeyError for a model that
        is not there, or unavailable, and ValueError for a context that it cannot have."""
        planned = self._entries[model].plan
        if planned is None:
            raise KeyError(model)
        work = partial(planned.at, ctx_size, parallel)
        try:
            return (await in_thread(work, limiter=self._one_at_a_time, abandon_on_cancel=True)).options
        except FlagError as error:
            raise ValueError(str(error)) from None

    async def largest_fit(
        self, model: ModelName, usable_bytes: Mapping[DeviceName, int], ctx_size: int | None = None
    ) -> LargestFit:
        """What those bytes would carry: nothing of an unavailable model. Raises KeyError for one that is not there.

        The search takes as long as many steps, so that it has a thread, one at a time. Refusals come in crowds: who
        asks the same meanwhile, or later, finds what was found, also where the first to ask has gone.
        """
        work = partial(self._fit_once, model, frozenset(usable_bytes.items()), ctx_size)
        return await in_thread(work, limiter=self._one_at_a_time, abandon_on_cancel=True)

    def _fit_once(
        self, model: ModelName, usable: frozenset[tuple[DeviceName, int]], ctx_size: int | None
    ) -> LargestFit:
        planned = self._entries[model].plan
        if ctx_size is not None and planned is not None:
            return self._fit_of(model, planned.at(ctx_size), dict(usable))
        fits = self._fits
        known = fits.get(model)
        if known is None or known[0] != usable:
            known = fits[model] = (usable, self._fit_of(model, planned, dict(usable)))
        return known[1]

    def _fit_of(self, model: ModelName, plan_of: Plan | None, usable_bytes: Mapping[DeviceName, int]) -> LargestFit:
        if plan_of is None:
            return LargestFit(0, 0)
        options, _ = plan_of.measured(self._measured, _usable(self._devices))
        short = _short(options)
        advice = plan_of.advice({device: size - short.get(device, 0) for device, size in usable_bytes.items()})
        changes = advice.suggestions()
        told = [advised(model, change) for change in changes]
        if not advice.fits(plan_of.request):
            told += self._smaller_variants(model, usable_bytes)
        return LargestFit(*advice.largest(), tuple(told))

    def _smaller_variants(self, model: ModelName, usable_bytes: Mapping[DeviceName, int]) -> Iterator[str]:
        """R10: models of its families that are smaller and fit."""
        for family in self._families.values():
            names = [variant.name for _, variant in family.variants]
            for name in names[names.index(model) + 1 :] if model in names else ():
                plan_of = self._entries[name].plan
                if plan_of is not None and plan_of.advice(usable_bytes).fits(plan_of.request):
                    yield f"Ask for {name}, a smaller model of the family {family.name}"

    def _first_chat(self) -> ModelName | None:
        """The first model that chats and has a template for it, else the first that chats."""
        chats = [
            entry
            for entry in self._entries.values()
            if entry.plan is not None and Capability.CHAT in entry.plan.capabilities
        ]
        made_for_it = [entry for entry in chats if entry.plan is not None and entry.plan.geometry.has_chat_template]
        return next((entry.model.name for entry in (*made_for_it, *chats)), None)


def _named(source: Source) -> Named:
    path = source.file.path if source.file is not None else source.entry.path
    return Named(ModelName(source.entry.name), real_path(path), source.entry.aliases, source.words)


def _flags(entry: _Entry, option: LaunchOption) -> tuple[str, ...]:
    """The person's engine flags; of a launch that is none of the ladder's with its own context and slots behind them,
    because the last of a kind wins."""
    flags = entry.source.entry.flags
    own = entry.model.spec.options if entry.model.spec is not None else ()
    if any(option.key == known.key for known in own):
        return flags
    return (*flags, *overriding(flags, option.ctx_size, option.parallel))


def _usable(devices: Sequence[DeviceInfo]) -> Mapping[DeviceName, int]:
    return {info.spec.name: info.spec.total_bytes - info.spec.headroom_bytes for info in devices}


def _short(options: Sequence[LaunchOption]) -> Mapping[DeviceName, int]:
    """By how much any of these launches took more of a device than its estimate says: what advice about the others, of
    which there are estimates alone, has to leave free there."""
    found: dict[DeviceName, int] = {}
    for option in options:
        if option.measured_bytes:
            for part, size in zip(option.footprint, option.measured_bytes, strict=True):
                found[part.device] = max(found.get(part.device, 0), size - part.total_bytes)
    return found


def _alike(found: Mapping[str, int], before: Mapping[str, int]) -> bool:
    """Whether what was measured outside of the engine's buffers is no news."""
    known = before.keys() == found.keys()
    return known and all(abs(found[card] - size) < NEWS_BYTES for card, size in before.items())


def _planned_on(ground: _Ground) -> object:
    """What of the ground a plan rests on: not measurements, nor what is said of a process that takes no memory."""
    defaults = replace(ground.defaults, idle_ttl_seconds=0.0, reasoning_format="")
    return (ground.devices, defaults, ground.engine_build, ground.outside, ground.host)


def _entry(source: Source, aliases: tuple[str, ...], ground: _Ground, known: Plan | None = None) -> _Entry:
    """`known` is its plan, where it has been made."""
    devices = ground.devices
    try:
        planned = known or plan(source, devices, ground.defaults, ground.engine_build, ground.outside, ground.host)
    except Unservable as error:
        return _Entry(source, None, _model(source, aliases, None, None, printable(str(error))))
    options, doubts = planned.measured(ground.measurements, _usable(devices))
    spec = _spec(source, options, ground, planned.capabilities)
    return _Entry(source, planned, _model(source, aliases, planned, spec, None), doubts)


def _renewed(entry: _Entry, aliases: tuple[str, ...], ground: _Ground) -> tuple[_Entry | None, str | None]:
    """An entry with the files that are there now, and what is to be said of them; nothing where they are the same."""
    changed = entry.source.changed()
    if changed is None:
        return None, None
    found = _entry(entry.source.read_again(), aliases, ground)
    if found.plan is None:
        return None, printable(f"{changed} has changed, and cannot be served: {found.model.unavailable}")
    return found, printable(f"{changed} has changed since it was read; it is planned anew")


def _read_anew(entry: _Entry, aliases: tuple[str, ...], ground: _Ground) -> _Entry:
    return _entry(entry.source.read_again(), aliases, ground)


def _model(
    source: Source, aliases: tuple[str, ...], planned: Plan | None, spec: ModelSpec | None, unavailable: str | None
) -> CatalogModel:
    file = source.file
    metadata = file.header.metadata if file is not None else {}
    context = planned.geometry.context_train if planned is not None else 0
    return CatalogModel(
        name=ModelName(source.entry.name),
        path=file.path if file is not None else source.entry.path,
        aliases=aliases,
        capabilities=planned.capabilities if planned is not None else source.entry.capabilities or frozenset(),
        default_class=source.entry.default_class,
        architecture=str(metadata.get("general.architecture", "")),
        size_bytes=file.size_bytes if file is not None else 0,
        created=file.created if file is not None else 0,
        ctx_train=context,
        spec=spec,
        unavailable=unavailable,
        publisher=publisher_of(source.words),
        quantization=quantization(metadata),
        active_part=planned.geometry.active_part if planned is not None else 1.0,
    )


def _thinking(entry: ModelEntry, capabilities: frozenset[Capability], defaults: Defaults) -> tuple[str, ...]:
    """How thoughts are handed out, where that is not as the engine does by itself or as a flag says."""
    word = entry.reasoning_format or defaults.reasoning_format
    said = any(flag.partition("=")[0] == REASONING for flag in entry.flags)
    return (REASONING, word) if word != "auto" and not said and Capability.CHAT in capabilities else ()


def _launched_with(entry: ModelEntry, capabilities: frozenset[Capability], defaults: Defaults) -> str:
    """What a process is started with that no key of a launch knows of, because it takes no memory."""
    words = sorted(capability.value for capability in capabilities)
    return " ".join((*words, *_thinking(entry, capabilities, defaults)))


def _spec(
    source: Source, options: tuple[LaunchOption, ...], ground: _Ground, capabilities: frozenset[Capability]
) -> ModelSpec:
    measurements, defaults = ground.measurements, ground.defaults
    entry = source.entry
    beside = (source.projector, source.draft, *source.adapters)
    size_bytes = sum(file.size_bytes for file in (source.file, *beside) if file is not None)
    timed = (kept.load_seconds for option in options if (kept := measurements.get(option.key)) is not None)
    estimate = LOAD_FLOOR_SECONDS + size_bytes / LOAD_BYTES_PER_SECOND
    idle_seconds = defaults.idle_ttl_seconds if entry.idle_ttl_seconds is None else entry.idle_ttl_seconds
    return ModelSpec(
        name=ModelName(entry.name),
        options=options,
        pinned=entry.pinned,
        reserved_slots=entry.reserved_slots,
        idle_ttl_seconds=idle_seconds if math.isfinite(idle_seconds) else None,
        load_seconds=next((seconds for seconds in timed if seconds is not None), estimate),
        launched_with=_launched_with(entry, capabilities, defaults),
    )
