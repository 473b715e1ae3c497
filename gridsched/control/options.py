"""The catalogue that an agent picks from: for each model a row for each context, each one a real plan.

Owns which contexts are offered, how many slots a row has, and the words. Must never have a formula of its own for what
fits: the launches are the catalog's ladder for that context, and what would come of one is the scheduler's outlook.

A row's slots: as many as are worth running (from a benchmark of the model; without one as many as its own ladder offers
first), or fewer where only fewer load without sending anybody away; where none do, as many as an idle machine carries.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Annotated, NamedTuple

import trio
from msgspec import Meta

from gridsched.control.allowed import allowed
from gridsched.control.benchmarks import Results
from gridsched.control.ladders import Ladder
from gridsched.control.models import state_of
from gridsched.control.problems import RequestError, invalid, unknown_model
from gridsched.control.residency import of_instance
from gridsched.control.services import Services
from gridsched.control.speed import Speed, speed_of
from gridsched.control.verb import Answer, Arguments, Call, Rest, Verb, Victim
from gridsched.core.ids import DeviceName
from gridsched.core.model import LaunchOption
from gridsched.core.snapshot import LoadView, Snapshot
from gridsched.credentials import Scope
from gridsched.ports import Capability, CatalogFamily, CatalogModel

FIRST_TIER = 4096
SLOTS = (8, 4, 2, 1)
"""What is tried, and measured: an engine answers more than eight at once hardly faster in sum."""

MOST_MODELS = 100
USUAL_MODELS = 25
"""Of an answer: each model takes some ten ladders the first time it is asked for."""


class LoadArgs(Answer, frozen=True, kw_only=True):
    """What load_model takes for exactly this launch."""

    model: str
    ctx: Annotated[int, Meta(description="Tokens of context for all slots together.")]
    parallel: Annotated[int, Meta(description="Slots that share them.")]


class OptionRow(Answer, frozen=True, kw_only=True):
    """One way to load a model: so much context for each of its slots."""

    ctx: Annotated[int, Meta(description="Tokens of context for each slot.")]
    ctx_size: Annotated[int, Meta(description="Tokens for all slots together.")]
    parallel: Annotated[int, Meta(description="Slots of this launch: answers that are written at once.")]
    trained: Annotated[bool, Meta(description="It is the whole window that the model was trained on.")]
    configured: Annotated[bool, Meta(description="It is what the model has when nobody asks for another context.")]
    loaded: Annotated[bool, Meta(description="The model runs with exactly this launch.")]
    fits_now: Annotated[bool, Meta(description="It would be loaded at once, and nobody would go for it.")]
    fits_if_idle: Annotated[bool, Meta(description="The devices would carry it if nothing else ran.")]
    devices: tuple[str, ...]
    cache_type: Annotated[str, Meta(description="What K and V of the cache are kept as.")]
    total_bytes: int
    bytes_by_device: Mapping[str, int]
    evictions: Annotated[tuple[Victim, ...], Meta(description="Who would have to go for it now.")]
    slots_that_fit: Annotated[int, Meta(description="The most slots of this context on idle devices, of 1, 2, 4, 8.")]
    slots_worth_running: Annotated[int, Meta(description="More slots than these make each answer slower for little.")]
    rule: Annotated[str | None, Meta(description="What it would wait for, or why it is refused.")]
    reason: str | None
    speed: Speed
    load_args: Annotated[
        LoadArgs | None, Meta(description="To be passed to load_model unchanged; null where it never fits.")
    ]


class ModelOptions(Answer, frozen=True, kw_only=True):
    """One model and its rows, the smallest context first."""

    model: str
    state: str
    unavailable: str | None
    capabilities: tuple[str, ...]
    quantization: str
    size_bytes: int
    ctx_train: int
    slots_worth_running: int | None
    slots_from: Annotated[str, Meta(description="benchmark, stale benchmark, or rule: where that number is from.")]
    rows: tuple[OptionRow, ...]


class OptionsAnswer(Answer, frozen=True, kw_only=True):
    """A page of the catalogue."""

    models: tuple[ModelOptions, ...]
    total: Annotated[int, Meta(description="Models in all.")]
    next_cursor: Annotated[str | None, Meta(description="Ask again with this for those that follow.")]


class OptionsArguments(Arguments, frozen=True, kw_only=True):
    """Which models, and what is wanted of them."""

    model: Annotated[str | None, Meta(description="Any name of one; without it all models, page by page.")] = None
    ctx: Annotated[
        Annotated[int, Meta(ge=1, le=2**31 - 1)] | None,
        Meta(description="Only rows with at least so many tokens for each slot."),
    ] = None
    fits: Annotated[bool, Meta(description="Only rows that fit now, at once and without an eviction.")] = False
    limit: Annotated[int, Meta(description="Models in one answer.", ge=1, le=MOST_MODELS)] = USUAL_MODELS
    cursor: Annotated[str | None, Meta(description="next_cursor of the answer before.")] = None


@dataclass(frozen=True, slots=True)
class Row:
    """A row with what it was made of. `option` is None where no launch is possible at all."""

    told: OptionRow
    option: LaunchOption | None
    ladder: Ladder
    view: LoadView | None


async def _options(services: Services, asked: OptionsArguments, call: Call) -> OptionsAnswer:
    catalog = services.runtime.parts.catalog
    services.ladders.keep_only({model.name for model in catalog.models()})
    every = allowed(catalog, call.asker.caller).models()
    if asked.model is not None:
        chosen, following = models_named(services, asked.model), None
    else:
        chosen, following = _page(every, asked.cursor, asked.limit)
    told = [await _of_model(services, model, asked) for model in chosen]
    total = len(every) if asked.model is None else len(chosen)
    return OptionsAnswer(models=tuple(told), total=total, next_cursor=following)


def _page(
    every: tuple[CatalogModel, ...], cursor: str | None, limit: int
) -> tuple[tuple[CatalogModel, ...], str | None]:
    """Models after the one that the cursor names, and the next cursor. Raises RequestError."""
    names = [str(model.name) for model in every]
    if cursor is not None and cursor not in names:
        raise invalid("cursor: it names no model that is there now; begin without one", "cursor")
    begin = names.index(cursor) + 1 if cursor is not None else 0
    chosen = every[begin : begin + limit]
    return chosen, str(chosen[-1].name) if chosen and begin + limit < len(every) else None


def models_named(services: Services, name: str) -> tuple[CatalogModel, ...]:
    """The model that any of its names means, of a family all its models, best first. Raises RequestError."""
    catalog = services.runtime.parts.catalog
    found = catalog.resolve(name)
    if found is None:
        raise RequestError(unknown_model(name, catalog.closest(name)))
    return tuple(model for _, model in found.variants) if isinstance(found, CatalogFamily) else (found,)


async def _of_model(services: Services, model: CatalogModel, asked: OptionsArguments) -> ModelOptions:
    worth, source = slots_worth(services, model)
    rows = []
    for ctx in tiers(model):
        if asked.ctx is None or ctx >= asked.ctx:
            row = await row_of(services, model, ctx)
            if row is not None and (row.told.fits_now or not asked.fits):
                rows.append(row.told)
    return ModelOptions(
        model=model.name,
        state=state_of(model, services.runtime.snapshot()),
        unavailable=model.unavailable,
        capabilities=tuple(sorted(each.value for each in model.capabilities)),
        quantization=model.quantization,
        size_bytes=model.size_bytes,
        ctx_train=model.ctx_train,
        slots_worth_running=worth if model.spec is not None else None,
        slots_from=source,
        rows=tuple(rows),
    )


def tiers(model: CatalogModel) -> tuple[int, ...]:
    """The contexts that are offered, in tokens a slot: by doubling up to the trained window, that itself, and what the
    model has when nobody asks for another."""
    if model.spec is None:
        return ()
    own = configured(model)
    longest = model.ctx_train or own
    found = {own, longest}
    tier = FIRST_TIER
    while tier < longest:
        found.add(tier)
        tier *= 2
    return tuple(sorted(found))


def configured(model: CatalogModel) -> int:
    """Tokens a slot of the launch that its own ladder offers first."""
    best = model.spec.options[0] if model.spec is not None else None
    return best.ctx_size // best.parallel if best is not None else 0


def slots_worth(services: Services, model: CatalogModel) -> tuple[int, str]:
    """How many slots are worth running, and where that is from."""
    if model.spec is None:
        return 1, "rule"
    newest = tuple(reversed(Results(services).of(model)))
    for result in (*(each for each in newest if not each.stale), *newest):
        return result.recommended_slots, "stale benchmark" if result.stale else "benchmark"
    return model.spec.options[0].parallel, "rule"


async def row_of(services: Services, model: CatalogModel, ctx: int) -> Row | None:
    """The launch that so many tokens for each slot would have; None where there is none at all."""
    worth, _ = slots_worth(services, model)
    counts = _counts(model, worth)
    catalog = services.runtime.parts.catalog
    found: dict[int, Ladder] = {}
    for slots in counts:
        found[slots] = await services.ladders.of(catalog, model, ctx, slots)
    await trio.lowlevel.checkpoint()
    now = services.runtime.snapshot()
    carried = {slots: _carried(ladder, now) for slots, ladder in found.items() if ladder}
    if not carried:
        return None
    most = max((slots for slots, option in carried.items() if option is not None), default=0)
    wanted = [slots for slots in carried if slots <= max(worth, min(carried))]
    views = {}
    for slots in wanted:
        views[slots] = services.runtime.outlook(model.name, found[slots])
        await trio.lowlevel.checkpoint()  # each takes a while where there are many cards, and chats go on
    slots = _best(wanted, views, carried)
    view = views[slots]
    option = (view.option if view is not None else None) or carried[slots] or found[slots][0]
    speed = _speed(services, model, option)
    told = _told(model, _Shape(ctx, slots, most, worth), option, view, speed)
    return Row(told, option, found[slots], view)


def _counts(model: CatalogModel, worth: int) -> tuple[int, ...]:
    """Counts of slots to look at, most first. An embedder has one: its engine works through a chunk by itself."""
    if model.capabilities & {Capability.EMBEDDING, Capability.RERANK}:
        return (1,)
    return tuple(sorted({*SLOTS, worth}, reverse=True))


def _best(wanted: list[int], views: Mapping[int, LoadView | None], carried: Mapping[int, LaunchOption | None]) -> int:
    """The most slots that load without anybody going; else the most that load at all; else the most that idle devices
    carry; else the fewest."""
    loads = (slots for slots in wanted if _loads(views[slots]))
    idle = (slots for slots in wanted if carried[slots] is not None)
    at_once = (slots for slots in wanted if _at_once(views[slots]))
    return next(chain(at_once, loads, idle), wanted[-1])


def _loads(view: LoadView | None) -> bool:
    """Whether there is a plan for it, if not at once."""
    return view is not None and view.refusal is None and view.plan is not None


def _at_once(view: LoadView | None) -> bool:
    """Whether it is there, or would be loaded without a wait and without a victim."""
    if view is None or view.refusal is not None or view.rule:
        return False
    return not victims_of(view) if view.plan is not None else view.instance is not None


def _carried(ladder: Ladder, now: Snapshot) -> LaunchOption | None:
    """The first launch that the devices would carry if nothing else ran."""
    room = {device.name: device.total_bytes - device.headroom_bytes for device in now.devices}
    return next((option for option in ladder if _has_room(option, room)), None)


def _has_room(option: LaunchOption, room: Mapping[DeviceName, int]) -> bool:
    return all(need <= room.get(device, 0) for device, need in option.need_bytes)


class _Shape(NamedTuple):
    """Tokens a slot, the slots, the most that fit, and those worth running."""

    ctx: int
    slots: int
    most: int
    worth: int


def _told(model: CatalogModel, shape: _Shape, option: LaunchOption, view: LoadView | None, speed: Speed) -> OptionRow:
    ctx, slots, most, worth = shape
    plan = view.plan if view is not None else None
    needs = plan.needs if plan is not None else dict(option.need_bytes)
    keys, values = option.cache_types
    refusal = view.refusal if view is not None else None
    instance = view.instance if view is not None and plan is None else None
    return OptionRow(
        ctx=ctx,
        ctx_size=option.ctx_size,
        parallel=option.parallel,
        trained=ctx == model.ctx_train,
        configured=ctx == configured(model),
        loaded=instance is not None and (instance.ctx_size, instance.parallel) == (option.ctx_size, option.parallel),
        fits_now=_at_once(view),
        fits_if_idle=most >= slots,
        devices=option.devices,
        cache_type=keys if keys == values else f"{keys}/{values}",
        total_bytes=sum(needs.values()),
        bytes_by_device={str(device): size for device, size in needs.items()},
        evictions=victims_of(view),
        slots_that_fit=most,
        slots_worth_running=worth,
        rule=(view.rule or ("L7" if refusal is not None else None)) if view is not None else None,
        reason=(refusal.message if refusal is not None else view.reason or None) if view is not None else None,
        speed=speed,
        load_args=LoadArgs(model=model.name, ctx=ctx * slots, parallel=slots) if most >= slots else None,
    )


def victims_of(view: LoadView | None) -> tuple[Victim, ...]:
    """Who would go for a load now: its own process among them, where that has another launch."""
    if view is None or view.plan is None:
        return ()
    going = [Victim(model=one.model, bytes=one.bytes, running_steps=one.steps) for one in view.plan.victims]
    return (*going, of_instance(view.instance)) if view.instance is not None else tuple(going)


def _speed(services: Services, model: CatalogModel, option: LaunchOption) -> Speed:
    parts = services.runtime.parts
    facts = parts.catalog.launch(model.name, option).facts
    devices = {str(info.spec.name): info for info in parts.monitor.devices()}
    results = services.benchmarks.all()
    fingerprint, build = (facts.fingerprint, facts.engine_build) if facts is not None else ("", "")
    return speed_of(model, option, devices, results, fingerprint, build)


VERBS = (
    Verb(
        name="model_options",
        summary="What can be loaded, with how much context, and how fast it is",
        description=(
            "For each model a row for each context: whether it fits now or on idle devices, who would go for it, its "
            "bytes by device, slots, speed, and load_args to pass to load_model unchanged."
        ),
        scope=Scope.READ,
        takes=OptionsArguments,
        gives=OptionsAnswer,
        act=_options,
        rest=Rest("GET", "/api/options"),
        tool=True,
        reads=True,
        idempotent=True,
    ),
)
