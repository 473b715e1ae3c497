"""Why a job waits: the rule that holds it, and the same in words (S9b).

Owns these reasons. Changes nothing; asked in the step in which a job comes to wait, too, so that it looks at the job's
model and devices alone and walks nothing.
"""

from math import inf

from gridsched.core import relief, words
from gridsched.core.instance import InstanceState
from gridsched.core.placement import Obstacle
from gridsched.core.queues import JobRecord
from gridsched.core.residency import Instance, ModelState
from gridsched.core.state import State


def reason(state: State, record: JobRecord, model: ModelState, now: float) -> tuple[str, str]:
    """The rule that holds a waiting job, and why in words."""
    name = model.spec.name
    instance = model.instance
    if instance is None or instance.restarting:
        return _reason_without_instance(state, model, now)
    if instance.state is InstanceState.STARTING:
        return "S6c", f"loading {name} ({now - instance.started_at:.0f}s)"
    if instance.state is InstanceState.DRAINING:
        return "S6b", f"{name} is being unloaded for a job that comes first"
    if instance.free_slots() <= 0:
        return "S6", f"all {instance.option.parallel} slots of {name} are busy"
    if not record.chat:
        held = _reason_of_low(state, record, instance, now)
        if held is not None:
            return held
    return "S2", f"older jobs for {name} go first"


def _reason_without_instance(state: State, model: ModelState, now: float) -> tuple[str, str]:
    name = model.spec.name
    plan = model.plan
    if plan is not None and plan.held is not None:
        return plan.held.rule, plan.held.reason
    if plan is not None and plan.waits[0]:
        return plan.waits
    if plan is not None:
        return "R3", f"memory for {name} is being freed"
    barred = model.obstacle is not None and model.obstacle.rule in ("R8", "D6")
    if model.unfit_since is not None and not barred:
        return "L7", f"{name} does not fit beside what cannot go"
    if model.obstacle is not None:
        return model.obstacle.rule, model.obstacle.reason + _until_it_cools(state, model.obstacle, now)
    return "S2", f"{name} has to be loaded"


def _until_it_cools(state: State, obstacle: Obstacle, now: float) -> str:
    """B1: until when that is hot which keeps low work out, if nobody chats with it meanwhile."""
    if obstacle.but_for != "hot":
        return ""
    found = (state.instances.get(each) for each, _ in obstacle.watched)
    hot = [instance for instance in found if instance is not None and instance.hot(now)]
    if not hot or any(instance.chats for instance in hot):
        return ""
    return f", for {words.duration(min(instance.hot_until for instance in hot) - now)} more"


def _reason_of_low(state: State, record: JobRecord, instance: Instance, now: float) -> tuple[str, str] | None:
    policy = state.policy
    if instance.low_slots(now) <= 0:
        return "S6", f"the free slot of {instance.model.spec.name} is kept for chats"
    active = [mode for mode in instance.modes if mode.active(now)]
    if not active:
        return None
    devices = ", ".join(mode.device for mode in active)
    starved_at = record.place + (policy.background_max_starvation_seconds or inf)
    if now < starved_at:
        return "S4", f"people chat on {devices}"
    if any(mode.turn is not None for mode in active):
        return "S5", f"another low step has the turn on {devices}"
    gate_at = max(mode.next_turn_at for mode in active)
    if now < gate_at:
        return "S5a", f"the next turn on {devices} is in {gate_at - now:.1f}s, chats have the rest of the time"
    waits = relief.waits_for_slot(state, instance)
    why = f"the next turn on {devices} waits a moment for the end of a chat"
    return ("S5a", why) if waits else ("S5", f"longer starved jobs have the turn on {devices} first")
