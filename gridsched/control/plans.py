"""`GET /api/models/{id}/plan`: what a person's load would do now, without doing it; or the refusal with its arithmetic.

Owns the shape of the answer, which is the same where no server is asked (`gridsched plan`). Must never plan: the
launches are the catalog's, what would come of them is the scheduler's.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from gridsched.control.jobs import EvictedInstance, victims
from gridsched.control.problems import Problem, RequestError, invalid, unknown_model
from gridsched.control.verb import Answer
from gridsched.core.commands import Rejection
from gridsched.core.ids import DeviceName, ModelName
from gridsched.core.model import COMPONENTS, DeviceFootprint, LaunchOption
from gridsched.core.snapshot import InstanceView, LoadView
from gridsched.ports import Catalog, CatalogFamily, CatalogModel, HostMemory
from gridsched.runtime.advice import Adviser
from gridsched.runtime.beside import lacking

MOST_TOKENS = 2**31 - 1  # what the engine counts with
MOST_SLOTS = 256

Refusal = Annotated[
    Mapping[str, Any],
    Meta(
        description="Why there is no load: its code and sentence, and the figures of an error's `gridsched`.",
        extra_json_schema={"required": ["code", "message"]},
    ),
]


class DevicePart(Answer, frozen=True, kw_only=True):
    """What a launch is estimated to take of one device, by component."""

    name: str
    weights_bytes: int
    kv_bytes: int
    recurrent_bytes: int
    compute_bytes: int
    mmproj_bytes: int
    draft_bytes: int
    overhead_bytes: int
    total_bytes: int


class HostPart(DevicePart, frozen=True, kw_only=True):
    """What it takes of host memory beside its devices."""

    need_bytes: Annotated[int, Meta(description="What of that must be there.")]
    mapped_bytes: Annotated[int, Meta(description="What is only mapped from its file.")]


class PlannedLaunch(Answer, frozen=True, kw_only=True):
    """The launch that is there, or that there would be; what only the latter has is null of the former."""

    devices: tuple[str, ...]
    ctx_size: Annotated[int, Meta(description="Tokens of context for all slots together.")]
    ctx_per_slot: int
    parallel: Annotated[int, Meta(description="How many slots it has.")]
    cache_type: Annotated[str | None, Meta(description="What the cache is kept as: one word, or keys/values.")] = None
    flags: Annotated[tuple[str, ...] | None, Meta(description="What else the engine is told.")] = None
    needs: Annotated[Mapping[DeviceName, int] | None, Meta(description="Bytes of each device.")] = None
    measured: Annotated[bool, Meta(description="Whether the figures were measured; else they are estimated.")]
    total_bytes: int
    estimate: Annotated[tuple[DevicePart, ...] | None, Meta(description="The estimate by component.")] = None
    host: HostPart | None = None


class PlanAnswer(Answer, frozen=True, kw_only=True):
    """What a person's load of a model would come to now."""

    model: str
    state: Annotated[str, Meta(description="How it stands now: ready, starting, draining, stopping or cold.")]
    loads: Annotated[bool, Meta(description="It is there, comes, or would be loaded without anybody's doing.")]
    rule: Annotated[str | None, Meta(description="What it would wait for, or why there is no load now: the rule.")]
    reason: Annotated[str | None, Meta(description="The same in words.")]
    load_s: Annotated[float | None, Meta(description="How many seconds the load is expected to take.")] = None
    text: Annotated[str, Meta(description="All of it as a sentence.")]
    launch: PlannedLaunch | None
    evictions: Annotated[tuple[EvictedInstance, ...], Meta(description="Who would go for it.")]
    refusal: Refusal | None
    notes: tuple[str, ...] = ()


Outlook = Callable[[ModelName, tuple[LaunchOption, ...] | None], LoadView | None]
"""What a load of a model would come to, by its ladder or by other options: `Runtime.outlook`."""


class Planner:
    """Answers for one server, or for one that there could be."""

    def __init__(self, catalog: Catalog, adviser: Adviser, outlook: Outlook, host: HostMemory | None = None) -> None:
        self._catalog = catalog
        self._host = host
        self._adviser = adviser
        self._outlook = outlook

    async def plan(self, name: str, ctx: str | None, parallel: int | None = None) -> PlanAnswer:
        """The answer for the model that `choose` gives. Raises RequestError."""
        ctx_size = _tokens(ctx)
        if parallel is not None and ctx_size is None:
            raise invalid("parallel is said with ctx, which these slots share", "parallel")
        chosen = await self.choose(name, ctx_size, parallel)
        refusal = chosen.view.refusal
        if refusal is not None:
            refusal = await self._adviser.complete(chosen.model.name, refusal, ctx_size)
        return msgspec.structs.replace(_told(chosen, refusal), notes=self._notes(chosen.view))

    async def choose(self, name: str, ctx_size: int | None, parallel: int | None = None) -> "Chosen":
        """What is meant by a name; of a family the best that would load, else the best (R10). Raises RequestError for
        a model that is not there or not servable, or a context that it cannot have."""
        looked: list[Chosen] = []
        for model in _candidates(self._catalog, name):
            options = await self._options(model, ctx_size, parallel)
            looked.append(self.look(model, options))
            if looked[-1].loads:
                return looked[-1]
        return looked[0]

    def _notes(self, view: LoadView) -> tuple[str, ...]:
        """What is to be said of a launch beside what it would come to."""
        why = lacking(view.option, self._host) if view.option is not None and view.plan is not None else None
        return (why,) if why else ()

    async def _options(
        self, model: CatalogModel, ctx_size: int | None, parallel: int | None
    ) -> tuple[LaunchOption, ...] | None:
        if ctx_size is None:
            return None
        try:
            return await self._catalog.options(model.name, ctx_size, parallel)
        except ValueError as error:
            slots = f" and {parallel} slots" if parallel is not None else ""
            raise invalid(f"{model.name} cannot be launched with {ctx_size} tokens{slots}: {error}", "ctx") from None

    def look(self, model: CatalogModel, options: tuple[LaunchOption, ...] | None) -> "Chosen":
        """What the load of one model would come to. Raises RequestError."""
        view = self._outlook(model.name, options)
        if view is None:  # it is in the catalog, and the scheduler has not heard of it yet
            raise RequestError(Problem("model_not_found", f"there is no model {model.name} yet", "model"))
        return Chosen(model, options, view)


@dataclass(frozen=True, slots=True)
class Chosen:
    """A model, what it is to be launched by (None: its ladder), and what its load would come to. `loads`: it is there,
    comes, or would be loaded without anybody's doing."""

    model: CatalogModel
    options: tuple[LaunchOption, ...] | None
    view: LoadView

    @property
    def loads(self) -> bool:
        """Whether a person who asks for it gets it."""
        view = self.view
        here = view.instance if view.plan is None else None
        return view.plan is not None or (here is not None and not view.rule and view.refusal is None)

    @property
    def text(self) -> str:
        """The same in words."""
        return _text(self.model, self.view, self.view.refusal)


def _tokens(text: str | None) -> int | None:
    """The context that is asked about. Raises RequestError."""
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and 0 < int(text[:20]) <= MOST_TOKENS):
        raise invalid(f"ctx: {text[:40]!r} is not a number of tokens from 1 to {MOST_TOKENS}", "ctx")
    return int(text)


def _candidates(catalog: Catalog, name: str) -> tuple[CatalogModel, ...]:
    """The model; of a family those that can be served, best first (R10). Never empty. Raises RequestError."""
    found = catalog.resolve(name)
    if found is None:
        raise RequestError(unknown_model(name, catalog.closest(name)))
    models = tuple(model for _, model in found.variants) if isinstance(found, CatalogFamily) else (found,)
    served = tuple(model for model in models if model.spec is not None)
    if not served:
        why = models[0].unavailable if models else "none of its models is there"
        raise RequestError(Problem("model_unavailable", f"{found.name} cannot be served: {why}", "model"))
    return served


def _told(chosen: Chosen, refusal: Rejection | None) -> PlanAnswer:
    """One model's answer."""
    model, view = chosen.model, chosen.view
    here = view.instance if view.plan is None else None
    return PlanAnswer(
        model=model.name,
        state=view.instance.state.value if view.instance is not None else "cold",
        loads=chosen.loads,
        rule=view.rule or None,
        reason=view.reason or None,
        load_s=round(view.load_seconds, 3) if view.plan is not None else None,
        text=_text(model, view, refusal),
        launch=_present(here) if here is not None else _launch(view),
        evictions=victims(view.plan.victims) if view.plan is not None else (),
        refusal=_refusal(refusal),
    )


def _text(model: CatalogModel, view: LoadView, refusal: Rejection | None) -> str:
    name, here = model.name, view.instance
    if refusal is not None:
        return refusal.message
    if view.plan is None:
        return f"not now: {view.reason} ({view.rule})" if view.rule or here is None else f"{name} is {here.state.value}"
    going = [str(one.model) for one in view.plan.victims]
    text = f"{name} would be loaded"
    if here is not None:
        text += f" in place of its process, which has {here.ctx_size} tokens"
    if going:
        text += f", once {' and '.join(going)} {'have' if len(going) > 1 else 'has'} gone"
    if view.rule and not (going and view.rule == "R3"):
        return f"{text}, but not at once: {view.reason} ({view.rule})"
    return text if going or here is not None else f"{text} at once"


def _present(view: InstanceView) -> PlannedLaunch:
    """The launch that is there."""
    return PlannedLaunch(
        devices=view.devices,
        ctx_size=view.ctx_size,
        ctx_per_slot=view.ctx_size // view.parallel,
        parallel=view.parallel,
        measured=view.measured_bytes is not None,
        total_bytes=view.measured_bytes or view.estimated_bytes,
    )


def _launch(view: LoadView) -> PlannedLaunch | None:
    """The launch that there would be: its shape, what it needs of each device, and of what that is made."""
    option, planned = view.option, view.plan
    if option is None or planned is None:
        return None
    keys, values = option.cache_types
    return PlannedLaunch(
        devices=option.devices,
        ctx_size=option.ctx_size,
        ctx_per_slot=option.ctx_size // option.parallel,
        parallel=option.parallel,
        cache_type=keys if keys == values else f"{keys}/{values}",
        flags=option.flags,
        needs=planned.needs,
        measured=any(planned.needs[device] != estimate for device, estimate in option.estimates),
        total_bytes=sum(planned.needs.values()),
        estimate=tuple(DevicePart(**_part(part)) for part in option.footprint),
        host=_beside(option),
    )


def _beside(option: LaunchOption) -> HostPart | None:
    """What it takes of host memory beside its devices: by component, what of it is needed, and what only mapped."""
    if option.host is None:
        return None
    return HostPart(**_part(option.host), need_bytes=option.host_need_bytes, mapped_bytes=option.host_mapped_bytes)


def _part(part: DeviceFootprint) -> dict[str, Any]:
    sizes = {name: getattr(part, name) for name in COMPONENTS}
    return {"name": part.device, **sizes, "total_bytes": part.total_bytes}


def _refusal(rejection: Rejection | None) -> Refusal | None:
    """The code and sentence that the load would be refused with, and its figures as under `error.gridsched`."""
    if rejection is None:
        return None
    return {"code": rejection.code.value, "message": rejection.message, **rejection.detail}
