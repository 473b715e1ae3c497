"""What a person's load would come to, asked before it is (R7, L7).

Owns the question alone: the want is a person's, and planning's own functions answer it. Changes nothing; it is for
those who only look, and never runs inside a step.
"""

from dataclasses import replace

from gridsched.core import admission, planning, views
from gridsched.core.admission import Fit
from gridsched.core.ids import ModelName
from gridsched.core.instance import InstanceState
from gridsched.core.job import JobClass
from gridsched.core.model import LaunchOption
from gridsched.core.placement import Obstacle, Want
from gridsched.core.queues import Rank
from gridsched.core.residency import ModelState, Rungs
from gridsched.core.snapshot import LoadView
from gridsched.core.state import State


def of_load(state: State, name: ModelName, now: float, options: tuple[LaunchOption, ...] | None) -> LoadView | None:
    """The load of a model, by its ladder or by other `options`; None where there is no such model.

    A model with a process is told with it: ready or loading there is nothing to do, draining it comes back or is loaded
    when it has gone. Only options that it is none of would replace it.
    """
    model = state.models.get(name)
    if model is None or model.removed:
        return None
    here = model.instance if model.instance is not None and not model.instance.restarting else None
    view = views.instance_of(state, here, now) if here is not None else None
    if state.draining:
        return LoadView(name, view, refusal=admission.draining())
    if here is not None and (options is None or any(option.key == here.option.key for option in options)):
        if here.state is InstanceState.DRAINING:
            return LoadView(name, view, rule="S6b", reason=f"{name} is being unloaded for a job that comes first")
        return LoadView(name, view)
    asked = as_asked(state, model, options or model.spec.options)
    found = planning.outlook(state, _want(state, asked, now), here)
    if isinstance(found, Obstacle):
        fit = admission.fit_of(state, asked)
        refusal = admission.unfit(state, asked, fit) if fit is not Fit.LATER else None
        return LoadView(name, view, rule=found.rule, reason=found.reason, refusal=refusal)
    rule, reason = found.waits if found.held is None else (found.held.rule, found.held.reason)
    load_seconds = state.load_seconds(model, found.option)
    return LoadView(name, view, found.option, views.plan_of(state, found), rule, reason, load_seconds=load_seconds)


def as_asked(state: State, model: ModelState, options: tuple[LaunchOption, ...]) -> ModelState:
    """The model as a person's load would find it: what it ran out of memory with before is forgotten (L6d)."""
    ledger = state.ledger
    rungs = ((option, ledger.taken(option)) for option in options)
    usable = tuple((option, needs) for option, needs in rungs if ledger.carries(option, needs))
    return replace(model, spec=replace(model.spec, options=options), rungs=Rungs(ledger.revision, options, usable))


def _want(state: State, model: ModelState, now: float) -> Want:
    """A person's, who asks now; or that of the chats that wait for the model already, whose load it would join."""
    rank: Rank = (JobClass.INTERACTIVE, now, state.last_number + 1)
    if model.want is not None and model.want.evict_rank is not None and model.unplaced():
        rank = min(rank, model.want.evict_rank)
    return Want(model, None, JobClass.INTERACTIVE, rank, rank, JobClass.INTERACTIVE)
