"""Load a model with at least so much context for each answer: the best launch that has it, or a refusal, never less.

Owns the choice between a family's models, and the refusal's words beside the scheduler's. The rows are `options`', the
load itself is `residency`'s.
"""

from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta

from gridsched.control.looking import OneModel
from gridsched.control.options import OptionRow, Row, models_named, row_of
from gridsched.control.problems import Problem, RequestError, invalid, of_rejection
from gridsched.control.residency import Loaded, load, load_plan
from gridsched.control.services import Services
from gridsched.control.verb import Answer, Call, Consequences, Rest, Verb
from gridsched.core.instance import InstanceState
from gridsched.core.snapshot import InstanceView
from gridsched.credentials import Scope
from gridsched.ports import CatalogModel


class RecommendedArguments(OneModel, frozen=True, kw_only=True):
    """Which model, and what each answer needs."""

    ctx: Annotated[int, Meta(description="At least so many tokens of context for each slot.", ge=1, le=2**31 - 1)]


class RecommendedAnswer(Answer, frozen=True, kw_only=True):
    """What is ready now. `already`: it was there with as much, and nothing was done."""

    already: bool
    loaded: Loaded | None
    model: str
    ctx_per_slot: int
    parallel: int
    devices: tuple[str, ...]
    row: Annotated[OptionRow | None, Meta(description="What was chosen; null where it was there.")]


@dataclass(frozen=True, slots=True)
class _Choice:
    """A model with what it is loaded by, or its process that has enough."""

    model: CatalogModel
    row: Row | None = None
    here: InstanceView | None = None


async def _recommended(services: Services, asked: RecommendedArguments, call: Call) -> RecommendedAnswer:
    choice = await _choose(services, asked)
    here, row = choice.here, choice.row
    if here is not None or row is None:
        return _already(choice)
    loaded = await load(services, choice.model.name, row.ladder, call)
    return RecommendedAnswer(
        already=False,
        loaded=loaded,
        model=loaded.model,
        ctx_per_slot=loaded.ctx_size // loaded.parallel,
        parallel=loaded.parallel,
        devices=loaded.devices,
        row=row.told,
    )


def _already(choice: _Choice) -> RecommendedAnswer:
    here = choice.here
    assert here is not None  # noqa: S101 - for the type checker: a choice has one or the other
    return RecommendedAnswer(
        already=True,
        loaded=None,
        model=choice.model.name,
        ctx_per_slot=here.ctx_size // here.parallel,
        parallel=here.parallel,
        devices=here.devices,
        row=None,
    )


async def _refuse(services: Services, asked: RecommendedArguments, _: Call) -> None:
    """Raises RequestError for what would be refused now: with the arithmetic, and not by an operation."""
    await _choose(services, asked)


async def _plan(services: Services, asked: RecommendedArguments, _: Call) -> Consequences:
    choice = await _choose(services, asked)
    if choice.row is None:
        return Consequences(text=f"{choice.model.name} is there with as much context", harms=False, seconds=0.0)
    return await load_plan(services, choice.model, choice.row.ladder)


async def _choose(services: Services, asked: RecommendedArguments) -> _Choice:
    """Of a family the best that loads at once, else the best that loads at all (R10). Raises RequestError: 400 for more
    than the model was trained for, 507 where nothing that runs could make room."""
    served = [model for model in models_named(services, asked.model) if model.spec is not None]
    if not served:
        raise RequestError(Problem("model_unavailable", f"{asked.model} cannot be served", "model"))
    able = [model for model in served if not model.ctx_train or asked.ctx <= model.ctx_train]
    if not able:
        longest = max(model.ctx_train for model in served)
        raise invalid(f"ctx: {asked.model} was trained for {longest} tokens, not for {asked.ctx}", "ctx")
    for model in able:
        if (here := _here(services, model, asked.ctx)) is not None:
            return _Choice(model, here=here)
    rows = [(model, await row_of(services, model, asked.ctx)) for model in able]
    possible = [_Choice(model, row) for model, row in rows if row is not None and not _refused(row)]
    at_once = [choice for choice in possible if choice.row is not None and choice.row.told.fits_now]
    for choice in (*at_once, *possible):
        return choice
    raise await _refusal(services, *rows[0], asked.ctx)


def _here(services: Services, model: CatalogModel, ctx: int) -> InstanceView | None:
    """Its process, where that is ready and has enough."""
    ready = (one for one in services.runtime.snapshot().instances if one.state is InstanceState.READY)
    return next((one for one in ready if one.model == model.name and one.ctx_size // one.parallel >= ctx), None)


def _refused(row: Row) -> bool:
    return row.view is None or row.view.refusal is not None


async def _refusal(services: Services, model: CatalogModel, row: Row | None, ctx: int) -> RequestError:
    """With its arithmetic, and what would fit (L7)."""
    refusal = row.view.refusal if row is not None and row.view is not None else None
    if row is None or refusal is None:
        return invalid(f"ctx: {model.name} cannot be launched with {ctx} tokens for each slot", "ctx")
    complete = await services.runtime.adviser.complete(model.name, refusal, row.told.ctx_size)
    return RequestError(of_rejection(complete))


VERBS = (
    Verb(
        name="load_recommended",
        summary="Load a model with at least so much context",
        description=(
            "Loads exactly the best launch that has so many tokens for each slot, with as many slots as are worth "
            "running. Refuses with the arithmetic and what would fit rather than give less."
        ),
        scope=Scope.RESIDENCY,
        takes=RecommendedArguments,
        gives=RecommendedAnswer,
        act=_recommended,
        rest=Rest("POST", "/api/models/{model}/load-recommended"),
        tool=True,
        destructive=True,
        idempotent=True,
        long=True,
        refuse=_refuse,
        plan=_plan,
    ),
)
