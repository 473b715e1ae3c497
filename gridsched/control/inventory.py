"""`GET /api/models[/{id}]`: what models are and take by device, estimated and measured, and how far off estimates were.

Owns the types of these answers. Reads the catalog, a snapshot and the kept measurements; starts nothing and changes
nothing.
"""

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from gridsched.control.masking import masked_argv
from gridsched.control.models import added, best_instance, capabilities, fits, memory, state_of, tier
from gridsched.control.pages import Page, cut
from gridsched.control.status import BackOff, Slots
from gridsched.control.verb import Answer
from gridsched.core.ids import DeviceName
from gridsched.core.model import LaunchOption, Tier
from gridsched.core.snapshot import InstanceView, Snapshot
from gridsched.library.measured import loads
from gridsched.ports import CatalogFamily, CatalogModel, CatalogVirtual, Measurement, Names
from gridsched.runtime.runtime import Runtime
from gridsched.vram.calibrate import ArchitectureError, by_architecture


class ComponentError(Answer, frozen=True, kw_only=True):
    """How far off the estimates of one component were: estimated less measured."""

    median_bytes: int
    worst_bytes: int


class EstimateError(Answer, frozen=True, kw_only=True):
    """How far off the estimates of an architecture's launches were (L2); ratios are of what was measured."""

    architecture: str
    launches: Annotated[int, Meta(description="How many were measured.")]
    median_ratio: float
    least_ratio: float
    most_ratio: float
    components: Mapping[str, ComponentError]


class OnDevice(Answer, frozen=True, kw_only=True):
    """What a model takes of one device."""

    name: str
    estimated_bytes: int
    measured_bytes: Annotated[int | None, Meta(description="Null until it was loaded so.")]


class ModelAnswer(Answer, frozen=True, kw_only=True):
    """One model, or a name over one (`base`). Figures of a launch are of its process, where it has one, else of the
    best that it would be launched with."""

    id: str
    state: Annotated[str, Meta(description="ready, loading, draining, cold, unavailable or failed.")]
    fits: Annotated[str, Meta(description="now, if_idle (once everything idle has gone) or never.")]
    tier: Annotated[str, Meta(description="pinned, hot or cold: who may evict it.")]
    pinned: Annotated[bool, Meta(description="Whether it is loaded again whenever it is down.")]
    capabilities: tuple[str, ...]
    aliases: tuple[str, ...]
    publisher: Annotated[str, Meta(description="Empty where nobody says.")]
    architecture: str
    quantization: Annotated[str, Meta(description="Empty where its file does not say.")]
    size_bytes: Annotated[int, Meta(description="Of its files.")]
    ctx_train: Annotated[int, Meta(description="The context that it was trained for, in tokens.")]
    ctx_size: Annotated[int | None, Meta(description="Tokens of context for all slots together.")]
    ctx_per_slot: int | None
    parallel: Annotated[int | None, Meta(description="How many slots the launch has.")]
    slots: Annotated[Slots | None, Meta(description="Those of its process.")]
    estimated_bytes: Annotated[int | None, Meta(description="On all devices together.")]
    measured_bytes: Annotated[int | None, Meta(description="On all devices together; null until it was loaded so.")]
    devices: tuple[OnDevice, ...]
    error: Annotated[EstimateError | None, Meta(description="How far off this launch's estimate was.")]
    unavailable: Annotated[str | None, Meta(description="Why it cannot be served.")]
    failed: Annotated[BackOff | None, Meta(description="Why its loads fail.")]
    base: Annotated[str | None, Meta(description="What a name over a model is over.")]
    virtual: Annotated[Mapping[str, Any] | None, Meta(description="What a name over a model adds to requests.")]
    argv: Annotated[
        tuple[str, ...], Meta(description="What its process was started with, of one model alone; secrets are hidden.")
    ] = ()


class ModelList(Answer, frozen=True, kw_only=True):
    """All models, and the errors of their estimates by architecture."""

    models: tuple[ModelAnswer, ...]
    errors: tuple[EstimateError, ...]
    total: Annotated[int, Meta(description="How many models there are on all pages.")]
    next_cursor: Annotated[str | None, Meta(description="Ask with it for the next page; null on the last.")]


def inventory(runtime: Runtime, page: Page, names: Names) -> ModelList:
    """The models of these names, and the errors of their estimates by architecture. Raises RequestError."""
    kept = runtime.parts.store.measurements()
    now = runtime.snapshot()
    named: list[CatalogModel | CatalogVirtual] = [*names.models(), *names.virtuals()]
    told, next_cursor = cut(page, named, lambda each: each.name, str)
    return ModelList(
        models=tuple(
            _virtual(each, kept, now) if isinstance(each, CatalogVirtual) else _model(each, kept, now) for each in told
        ),
        errors=tuple(_error(each) for each in by_architecture(loads(kept.values()))),
        total=len(named),
        next_cursor=next_cursor,
    )


def one_model(runtime: Runtime, name: str) -> ModelAnswer | None:
    """The model that any of its names means, of a family the best; None where there is none."""
    parts = runtime.parts
    kept, now = parts.store.measurements(), runtime.snapshot()
    virtual = parts.catalog.virtual(name)
    found = virtual.base if virtual else parts.catalog.resolve(name)
    model = found.best if isinstance(found, CatalogFamily) else found
    if model is None:
        return _virtual(virtual, kept, now) if virtual else None
    told = _virtual(virtual, kept, now) if virtual else _model(model, kept, now)
    instance = best_instance(now.instances, model)
    argv = parts.engine.command_line(instance.id) if instance is not None else ()
    return msgspec.structs.replace(told, argv=tuple(masked_argv(argv)))


def _virtual(virtual: CatalogVirtual, kept: Mapping[str, Measurement], now: Snapshot) -> ModelAnswer:
    """A name over another model: the figures are those of its base, of a family's best."""
    base = virtual.base
    model = base.best if isinstance(base, CatalogFamily) else base
    told = _model(model, kept, now) if model is not None else _NOTHING
    return msgspec.structs.replace(
        told, id=virtual.name, aliases=virtual.entry.aliases, base=base.name, virtual=added(virtual)
    )


def _model(model: CatalogModel, kept: Mapping[str, Measurement], now: Snapshot) -> ModelAnswer:
    instance = best_instance(now.instances, model)
    option = _option(model, instance)
    shape = instance or option
    pinned = model.name in now.pins_down or (instance is not None and instance.tier is Tier.PINNED)
    in_all = memory(model.spec, instance)
    return ModelAnswer(
        id=model.name,
        state=state_of(model, now),
        fits=fits(model.spec, instance, now),
        tier=Tier.PINNED.value if pinned else tier(model, instance),
        pinned=pinned,
        capabilities=tuple(capabilities(model)),
        aliases=model.aliases,
        publisher=model.publisher,
        architecture=model.architecture,
        quantization=model.quantization,
        size_bytes=model.size_bytes,
        ctx_train=model.ctx_train,
        ctx_size=shape.ctx_size if shape is not None else None,
        ctx_per_slot=shape.ctx_size // shape.parallel if shape is not None else None,
        parallel=shape.parallel if shape is not None else None,
        slots=Slots(total=instance.parallel, busy=instance.slots_busy) if instance is not None else None,
        estimated_bytes=in_all["estimated"],
        measured_bytes=in_all["measured"],
        devices=_devices(option, kept) if option is not None else _held(instance),
        error=_own_error(option, kept),
        unavailable=model.unavailable,
        failed=_failed(model, now),
        base=None,
        virtual=None,
    )


_NOTHING = ModelAnswer(
    id="",
    state="unavailable",
    fits="never",
    tier=Tier.COLD.value,
    pinned=False,
    capabilities=(),
    aliases=(),
    publisher="",
    architecture="",
    quantization="",
    size_bytes=0,
    ctx_train=0,
    ctx_size=None,
    ctx_per_slot=None,
    parallel=None,
    slots=None,
    estimated_bytes=None,
    measured_bytes=None,
    devices=(),
    error=None,
    unavailable="none of its models is there",
    failed=None,
    base=None,
    virtual=None,
)
"""What there is to tell of a family without a single model."""


def _option(model: CatalogModel, instance: InstanceView | None) -> LaunchOption | None:
    """The launch that the figures are of: the process's, None where it is one that somebody has asked for and nobody
    configured; without a process the best."""
    options = model.spec.options if model.spec is not None else ()
    return next((each for each in options if instance is None or each.key == instance.option_key), None)


def _held(instance: InstanceView | None) -> tuple[OnDevice, ...]:
    """What a process of such a launch takes."""
    held = instance.device_bytes if instance is not None else {}
    return tuple(OnDevice(name=name, estimated_bytes=size, measured_bytes=None) for name, size in held.items())


def _failed(model: CatalogModel, now: Snapshot) -> BackOff | None:
    if model.name not in now.failed:
        return None
    retry_at, why = now.failed[model.name]
    return BackOff(retry_after_s=round(max(0.0, retry_at - now.at), 3), reason=why)


def _devices(option: LaunchOption, kept: Mapping[str, Measurement]) -> tuple[OnDevice, ...]:
    measured: Mapping[DeviceName, int] = {}
    found = kept.get(option.key, Measurement()).measured_bytes
    if len(found) == len(option.devices):
        measured = dict(zip(option.devices, found, strict=True))
    return tuple(
        OnDevice(name=device, estimated_bytes=size, measured_bytes=measured.get(device))
        for device, size in option.estimates
    )


def _own_error(option: LaunchOption | None, kept: Mapping[str, Measurement]) -> EstimateError | None:
    """Of the launch that the figures are of; None where it was not measured."""
    found = kept.get(option.key) if option is not None else None
    told = by_architecture(loads([found])) if found is not None else ()
    return _error(told[0]) if told else None


def _error(error: ArchitectureError) -> EstimateError:
    return EstimateError(
        architecture=error.architecture,
        launches=error.launches,
        median_ratio=round(error.median_part, 5),
        least_ratio=round(error.least_part, 5),
        most_ratio=round(error.most_part, 5),
        components={
            name: ComponentError(median_bytes=middle, worst_bytes=worst)
            for name, (middle, worst) in error.components.items()
        },
    )
