"""Verbs about which models are loaded: load, unload, pin, unpin, rebalance (R6, R7, R9).

Owns their words and types, and what each would come to before it is done. Must never choose who goes: the scheduler
does.
"""

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta

from gridsched.control.looking import OneModel
from gridsched.control.plans import MOST_SLOTS, MOST_TOKENS, Chosen, Planner
from gridsched.control.problems import RequestError, invalid, of_rejection, unknown_model
from gridsched.control.services import Services
from gridsched.control.telling import while_telling
from gridsched.control.verb import Answer, Call, Consequences, Nothing, Rest, Verb, Victim
from gridsched.core.commands import AnswerRequest
from gridsched.core.events import LoadAsked, PinAsked, RebalanceAsked, UnloadAsked
from gridsched.core.ids import ModelName
from gridsched.core.instance import InstanceState
from gridsched.core.model import LaunchOption
from gridsched.core.snapshot import InstanceView
from gridsched.credentials import Scope
from gridsched.ports import CatalogFamily, CatalogModel
from gridsched.runtime.runtime import Runtime

LONGEST_TTL_SECONDS = 30 * 86400.0

T = TypeVar("T", bound=Answer)


class LoadArguments(OneModel, frozen=True, kw_only=True):
    """Which model is loaded, and how."""

    ctx: (
        Annotated[
            int,
            Meta(
                description="Tokens of context for all slots together, in place of the configuration's, as long as this"
                " process lives. A process with another context is replaced.",
                ge=1,
                le=MOST_TOKENS,
            ),
        ]
        | None
    ) = None
    parallel: (
        Annotated[int, Meta(description="How many slots share that context; with ctx only.", ge=1, le=MOST_SLOTS)]
        | None
    ) = None
    ttl_s: (
        Annotated[
            float,
            Meta(
                description="How many seconds it may be idle before it is unloaded, as long as this process lives (R6);"
                " a request's own goes before it, 0 is ignored.",
                ge=0,
                le=LONGEST_TTL_SECONDS,
            ),
        ]
        | None
    ) = None


class UnloadArguments(OneModel, frozen=True, kw_only=True):
    """Which model goes."""

    force: Annotated[bool, Meta(description="Break off what runs there (R2); without it running steps end first.")] = (
        False
    )


class PinArguments(OneModel, frozen=True, kw_only=True):
    """Which model is pinned, or is no more."""

    keep: Annotated[bool, Meta(description="After a restart of the server, too.")] = True


class Loaded(Answer, frozen=True, kw_only=True):
    """A model that is ready. `bytes` is what its devices hold for it, `load_s` what its load took."""

    model: str
    instance: int
    devices: tuple[str, ...]
    ctx_size: int
    parallel: int
    load_s: float
    bytes: int


class Unloaded(Answer, frozen=True, kw_only=True):
    """A model that is gone, its memory verified back; or that was not there (`was` is then cold)."""

    model: str
    was: str
    instance: int | None = None
    freed_bytes: int = 0


class Pinned(Answer, frozen=True, kw_only=True):
    """What is pinned now. `kept`: it is on the disk for the next start; `note` says why it is not."""

    model: str
    pinned: bool
    state: str
    kept: bool
    note: str | None = None


class Rebalanced(Answer, frozen=True, kw_only=True):
    """The move that has begun, or why there is none."""

    model: str | None
    from_devices: tuple[str, ...] = ()
    to_devices: tuple[str, ...] = ()
    why: str | None = None


def model_named(services: Services, name: str) -> ModelName:
    """The model that any of its names means, of a family the best. Raises RequestError."""
    found = services.runtime.parts.catalog.resolve(name)
    model = found.best if isinstance(found, CatalogFamily) else found
    if model is None:
        raise RequestError(unknown_model(name, services.runtime.parts.catalog.closest(name)))
    return model.name


def told_of(answer: AnswerRequest) -> Mapping[str, object]:
    """What the scheduler answers to a wish. Raises RequestError for a refusal."""
    if answer.rejection is not None:
        raise RequestError(of_rejection(answer.rejection))
    return answer.detail


def told_as(kind: type[T], answer: AnswerRequest, **more: object) -> T:
    """The same as a verb's answer."""
    return msgspec.convert({**told_of(answer), **more}, kind, from_attributes=True)


# --- load -------------------------------------------------------------------------------------------------------


def _planner(services: Services) -> Planner:
    runtime = services.runtime
    return Planner(runtime.parts.catalog, runtime.adviser, runtime.outlook, runtime.parts.host)


async def _choose(services: Services, asked: LoadArguments) -> Chosen:
    if asked.parallel is not None and asked.ctx is None:
        raise invalid("parallel: so many slots share ctx tokens: say ctx, too", "parallel")
    return await _planner(services).choose(asked.model, asked.ctx, asked.parallel)


async def _refuse_load(services: Services, asked: LoadArguments, _: Call) -> None:
    """Raises RequestError for what no load can come of: that is told at once, and not by an operation."""
    await _choose(services, asked)


async def _load(services: Services, asked: LoadArguments, call: Call) -> Loaded:
    chosen = await _choose(services, asked)
    return await load(services, chosen.model.name, chosen.options, call, asked.ttl_s)


async def load(
    services: Services,
    name: ModelName,
    options: tuple[LaunchOption, ...] | None,
    call: Call,
    ttl_s: float | None = None,
) -> Loaded:
    """Have a model loaded, by its ladder or by other launches. Cancelled, nobody waits for it any more. Raises
    RequestError for a refusal."""
    runtime = services.runtime
    wish = runtime.wishes.ask(
        lambda request: LoadAsked(request, name, options or (), ttl_s, call.may_go), withdrawn=True
    )
    answer = await while_telling(call.tell, partial(_progress_of_load, runtime, name), wish)
    await runtime.wishes.memory.written()  # that a pinned one is down no more outlives the server
    return told_as(Loaded, answer)


def _progress_of_load(runtime: Runtime, name: ModelName) -> tuple[float, float | None, str]:
    """How long it has been loading, against how long that is expected to take; before that, what it waits for."""
    now = runtime.snapshot()
    here = [view for view in now.instances if view.model == name]
    loading = next((view for view in here if view.state is InstanceState.STARTING), None)
    if loading is not None:
        elapsed, expected = now.at - loading.since_seconds, loading.load_seconds
        return elapsed, max(expected, elapsed), f"loading {name}: {elapsed:.0f} s of about {expected:.0f} s"
    view = runtime.outlook(name)
    if view is not None and view.reason:
        return 0.0, None, f"{name} waits: {view.reason} ({view.rule})"
    return 0.0, None, f"{name} is to be loaded"


async def _plan_load(services: Services, asked: LoadArguments, _: Call) -> Consequences:
    return _told(services, await _choose(services, asked))


async def load_plan(services: Services, model: CatalogModel, options: tuple[LaunchOption, ...] | None) -> Consequences:
    """What `load` would come to now. Raises RequestError."""
    return _told(services, _planner(services).look(model, options))


def _told(services: Services, chosen: Chosen) -> Consequences:
    name, view = chosen.model.name, chosen.view
    if view.plan is None or view.option is None:
        return Consequences(text=chosen.text, harms=False, seconds=0.0 if view.refusal is None else None)
    evicted = [Victim(model=one.model, bytes=one.bytes, running_steps=one.steps) for one in view.plan.victims]
    if view.instance is not None:
        evicted.append(of_instance(view.instance))
    drain_seconds = max((one.terms["drain_s"] for one in view.plan.victims), default=0.0)
    where = ",".join(view.option.devices)
    return Consequences(
        text=chosen.text,
        harms=bool(evicted),
        evicted=tuple(evicted),
        waiting_jobs=waiting_for(services, {one.model for one in evicted}),
        seconds=round(view.load_seconds + drain_seconds, 1),
        details={"devices": view.option.devices, "ctx_size": view.option.ctx_size, "parallel": view.option.parallel},
        essence=f"load {name} {view.option.ctx_size} on {where} for {_names(evicted)}",
    )


def of_instance(view: InstanceView) -> Victim:
    """A process that would go."""
    return Victim(model=view.model, bytes=view.reserved_bytes, running_steps=view.slots_busy)


def until_done(rests: Iterable[float | None]) -> float | None:
    """How long until the last of what runs has ended; None where nobody knows."""
    known = list(rests)
    return None if None in known else max((rest for rest in known if rest is not None), default=0.0)


def waiting_for(services: Services, models: set[str]) -> tuple[int, ...]:
    """The jobs that wait for any of these models: for their next load, if these go."""
    return tuple(view.id for view in services.runtime.jobs().waiting if str(view.model) in models)


def _names(evicted: list[Victim]) -> str:
    return ",".join(sorted(one.model for one in evicted)) or "nobody"


# --- unload -----------------------------------------------------------------------------------------------------


async def _refuse_unload(services: Services, asked: UnloadArguments, _: Call) -> None:
    """Raises RequestError for a model that is not there."""
    model_named(services, asked.model)


async def _unload(services: Services, asked: UnloadArguments, call: Call) -> Unloaded:
    name = model_named(services, asked.model)
    wish = services.runtime.wishes.ask(lambda request: UnloadAsked(request, name, asked.force))
    told = await while_telling(call.tell, partial(_progress_of_unload, services.runtime, name), wish)
    await services.runtime.wishes.memory.written()  # that a pinned one is to stay down outlives the server
    return told_as(Unloaded, told)


def _progress_of_unload(runtime: Runtime, name: ModelName) -> tuple[float, float | None, str]:
    busy = sum(view.slots_busy for view in runtime.snapshot().instances if view.model == name)
    return 0.0, None, f"{busy} steps of {name} end first" if busy else f"the memory of {name} comes back"


async def _plan_unload(services: Services, asked: UnloadArguments, _: Call) -> Consequences:
    name = model_named(services, asked.model)
    here = [view for view in services.runtime.snapshot().instances if view.model == name]
    going = [of_instance(view) for view in here if view.state is not InstanceState.STOPPING]
    waiting = waiting_for(services, {name})
    if not going:
        return Consequences(text=f"{name} is not loaded", harms=False, seconds=0.0)
    busy = sum(one.running_steps for one in going)
    running = [view for view in services.runtime.jobs().running if view.model == name]
    how = "broken off" if asked.force else "ended first"
    return Consequences(
        text=f"{name} would be unloaded" + (f", its {busy} running steps {how}" if busy else ""),
        harms=True,
        evicted=tuple(going),
        waiting_jobs=waiting,
        seconds=0.0 if asked.force else until_done(view.rest_seconds for view in running),
        essence=f"unload {name}" + (f" by force, {'busy' if busy else 'idle'}" if asked.force else ""),
    )


# --- pins, rebalancing ------------------------------------------------------------------------------------------


async def _pin(services: Services, asked: PinArguments, _: Call) -> Pinned:
    return await _said(services, asked, pinned=True)


async def _plan_pin(services: Services, asked: PinArguments, _: Call) -> Consequences:
    """As of a load: it is one, and holds its place for good."""
    chosen = await _planner(services).choose(asked.model, None)
    told = _told(services, chosen)
    return msgspec.structs.replace(
        told,
        text=f"{chosen.model.name} would be kept loaded, and is never evicted; now {told.text}",
        essence=f"pin: {told.essence}",
    )


async def _unpin(services: Services, asked: PinArguments, _: Call) -> Pinned:
    return await _said(services, asked, pinned=False)


async def _said(services: Services, asked: PinArguments, *, pinned: bool) -> Pinned:
    name, wishes = model_named(services, asked.model), services.runtime.wishes
    answer = await wishes.ask(lambda request: PinAsked(request, name, pinned=pinned, keep=asked.keep))
    told_of(answer)
    why_not = await wishes.memory.written() if asked.keep else "it was not to be kept"
    return told_as(Pinned, answer, kept=not why_not, note=why_not or None)


async def _rebalance(services: Services, _: Nothing, __: Call) -> Rebalanced:
    return told_as(Rebalanced, await services.runtime.wishes.ask(RebalanceAsked))


def _verb(name: str, summary: str, description: str, path: str, **more: Any) -> Verb:
    return Verb(
        name=name,
        summary=summary,
        description=description,
        scope=Scope.RESIDENCY,
        rest=Rest("POST", path),
        idempotent=True,
        **more,
    )


VERBS = (
    _verb(
        "load_model",
        "Load a model",
        "Load a model as for a person: cold models go for it before hot ones, pinned ones never. Of a family the best"
        " that can be loaded now.",
        "/api/models/{model}/load",
        takes=LoadArguments,
        gives=Loaded,
        act=_load,
        plan=_plan_load,
        refuse=_refuse_load,
        tool=True,
        destructive=True,
        long=True,
    ),
    _verb(
        "unload_model",
        "Unload a model",
        "Have a model go when its running steps have ended, and its memory verified back. A pinned one stays down until"
        " it is loaded, after a restart too. Refused while jobs wait for it, unless by force.",
        "/api/models/{model}/unload",
        takes=UnloadArguments,
        gives=Unloaded,
        act=_unload,
        plan=_plan_unload,
        refuse=_refuse_unload,
        tool=True,
        destructive=True,
        long=True,
    ),
    _verb(
        "pin_model",
        "Keep a model loaded",
        "Load it, and load it again whenever it is down (R7). It is never evicted. Refused where it does not fit beside"
        " what is pinned already.",
        "/api/models/{model}/pin",
        takes=PinArguments,
        gives=Pinned,
        act=_pin,
        plan=_plan_pin,
        tool=True,
        destructive=True,
    ),
    _verb(
        "unpin_model",
        "Let a model go like any other",
        "It stays loaded as long as nothing else needs its place.",
        "/api/models/{model}/unpin",
        takes=PinArguments,
        gives=Pinned,
        act=_unpin,
        tool=True,
    ),
    _verb(
        "rebalance",
        "Look whether an idle model had better be elsewhere",
        "Move an idle model off a device that it shares, if it fits elsewhere at its exact settings and nobody waits"
        " (R9). The server does so by itself; this has it look now.",
        "/api/rebalance",
        takes=Nothing,
        gives=Rebalanced,
        act=_rebalance,
    ),
)
