"""What is hot and in the way of low work: it is said (B1), and where a person opted in it yields once (R1).

Owns the event about starvation by something hot, the rule of who yields and when, and the way back: an errand that
loads the model again after the other's turn. Must never let a model yield that works or that a chat waits for.
"""

from math import inf

from gridsched.core.commands import LogEvent
from gridsched.core.job import JobClass
from gridsched.core.placement import Errand, Obstacle, Plan, Purpose, Want
from gridsched.core.residency import Instance, ModelState
from gridsched.core.state import State

STARVATION_SECONDS = 600.0
"""B1: how long low work waits for nothing but something hot before that is said. Twice the time in which a model stays
hot after one chat: by then it is a habit and no chance."""


def yields_at(state: State, instance: Instance, want: Want) -> float:
    """R1, opt-in: when an idle hot model goes for a low job that has starved beside it for so long; inf for never.
    Once: it comes back as hot as it was, and does not yield again before somebody has chatted with it."""
    after_seconds = state.policy.hot_yield_after_seconds
    if after_seconds is None or want.job is None or instance.busy() or instance.model.queue.chats:
        return inf
    if want.chat:  # a chat that may have nobody go lends its age to no low job that may
        return inf
    if instance.hot_until <= instance.model.yielded_until:
        return inf
    return max(want.job.place, instance.ready_at) + after_seconds


def yielded(state: State, victim: Instance, plan: Plan) -> None:
    """It was told to go although it is hot. It comes back when the other has had its turn; should that never be loaded,
    when it would have had it."""
    model = victim.model
    if model.removed:
        return  # it is gone from the configuration, and with its process for good
    guest_seconds = state.load_seconds(plan.want.model, plan.option) + state.policy.min_residency_seconds
    state.last_number += 1
    model.yielded_until = victim.hot_until
    back_at = state.now + guest_seconds
    model.errand = Errand(Purpose.RETURN, JobClass.BACKGROUND, back_at, state.last_number, plan.want.model)
    state.errands[model.name] = model


def became_ready(state: State, instance: Instance) -> None:
    """A guest's turn begins; or what had yielded is loaded again, for the errand or for a job."""
    for model in list(state.errands.values()):
        errand = model.errand
        if errand is None or errand.guest is None:
            continue
        if errand.guest is instance.model:
            errand.since = state.now + state.policy.min_residency_seconds
            errand.first = True
        elif model is instance.model:
            model.errand = None
            del state.errands[model.name]


def bar(state: State, model: ModelState, errand: Errand) -> Obstacle | None:
    """Why a model that yielded does not come back yet."""
    if errand.guest is None or errand.since <= state.now:
        return None
    return Obstacle("R1", f"{model.name} has yielded its memory for a turn", errand.since)


def say_if_starved(state: State, want: Want, obstacle: Obstacle) -> float:
    """B1: low work that has waited for long only because something is hot is told of, once a wait. Gives when it will
    have to be, in seconds of the clock."""
    record = want.job
    if obstacle.but_for != "hot" or record is None or record.hot_told_at >= record.place:
        return inf
    due_at = record.place + STARVATION_SECONDS
    if due_at > state.now:
        return due_at
    record.hot_told_at = state.now
    there = (state.instances[each] for each, _ in obstacle.watched)
    state.say_of_job(
        LogEvent.STARVATION,
        record,
        "R1",
        {
            "waited_s": round(state.now - record.place, 1),
            "hot": sorted({str(item.model.name) for item in there if item.hot(state.now)}),
            "setting": "scheduler.hot_yield_after",
        },
    )
    return inf
