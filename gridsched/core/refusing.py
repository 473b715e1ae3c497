"""Who waits for nothing: jobs that planning found no way for are refused (S9, L7).

Owns when a waiting job is refused for memory or residency; the sentences are `admission`'s. Runs at the end of each
planning and rests on its plans and obstacles. Must never plan, start or stop anything.
"""

from collections.abc import Iterable

from gridsched.core import admission, errands, pins, waiting
from gridsched.core.admission import Fit
from gridsched.core.instance import InstanceState
from gridsched.core.placement import Errand, Purpose
from gridsched.core.queues import JobRecord
from gridsched.core.residency import ModelState
from gridsched.core.state import State

PASSING = frozenset({"S4", "L6", "P6a"})
"""What passes by itself soon: people chat there, something else is loading, too many were started. A model that is to
be started anew waits for that, and not for room."""

RETURN_SECONDS = 600.0
"""R8: how long what made room for a lease looks for room after its end. A guess: whoever took it meanwhile and still
has it by then is at home there."""


def refuse(state: State) -> None:
    """End the waiting of those for whom planning found that there is nothing to wait for."""
    room: admission.Room | None = None
    for model in list(state.wanted_models().values()):
        if not model.unplaced() and not _is_leaving(model):
            model.unfit_since = None
            continue
        if model.removed:
            for record in list(model.queue):
                waiting.reject(state, record, admission.model_not_found(model.name), "S9")
            continue
        if model.obstacle is not None and model.obstacle.but_for == "consent":
            errands.refuse(state, model, admission.not_agreed(model.name, model.obstacle.reason))
            continue
        hopeless = model.unplaced() and model.plan is None
        if hopeless and room is None:
            room = admission.room_of(state)
        fit = admission.fit_of(state, model, room) if hopeless else None
        if fit is not Fit.NEVER:
            _refuse_not_resident(state, model)
        if fit is not None:
            _refuse_unfit(state, model, fit)
            if fit is not Fit.LATER:
                room = None  # a pin that is refused makes room
        else:
            model.unfit_since = None


def _is_leaving(model: ModelState) -> bool:
    return model.instance is not None and model.instance.state is InstanceState.DRAINING


def _refuse_not_resident(state: State, model: ModelState) -> None:
    """S9: `warm_only` waits only for what is resident or loading, `no_evict` also for a load that was planned."""
    if not model.queue.warm_only and not (model.queue.no_evict and model.plan is None):
        return
    for record in list(model.queue):
        if record.job.warm_only or (record.job.no_evict and model.plan is None):
            waiting.reject(state, record, admission.not_resident(record.job), "S9")


def _refuse_unfit(state: State, model: ModelState, fit: Fit) -> None:
    """L7: never, at once; not now, chats after `fit_wait`, and low work with them where a lease keeps it out (R8);
    later, never here. A pin stays down (R7), a model that was to be started anew stays gone (L6b), and so does one that
    made room for a lease and has found none since its end for a while (R8)."""
    errand = model.errand
    if errand is not None and _is_no_more_than_kind(state, model, errand):
        errands.end(state, model)
    if fit is Fit.LATER:
        model.unfit_since = None
        return
    if model.unfit_since is None:
        model.unfit_since = state.now
        if model.pinned:
            pins.say_down(state, model, fit)
    if fit is Fit.NEVER:
        _reject_all(state, model, list(model.queue), fit)
    else:
        queues = model.queue.by_class if admission.kept_by_leases(state, model) else (model.queue.chats,)
        for queue in queues:
            _reject_all(state, model, _late(state, model, queue.values()), fit)
    errand = model.errand
    if errand is not None and errand.requests and (fit is Fit.NEVER or _is_late(state, model, errand.since)):
        errands.refuse(state, model, admission.unfit(state, model, fit))


def _is_no_more_than_kind(state: State, model: ModelState, errand: Errand) -> bool:
    """Whether a load that nobody asked for is given up, because there is no room for it."""
    if errand.purpose is not Purpose.DISPLACED:
        only_waits = model.obstacle is not None and model.obstacle.rule in PASSING
        return errand.purpose is Purpose.RESTART and not only_waits
    until = errand.since + RETURN_SECONDS
    if until > state.now:
        state.plan_wake_at = min(state.plan_wake_at, until)
    return until <= state.now


def _late(state: State, model: ModelState, records: Iterable[JobRecord]) -> list[JobRecord]:
    """Those of a queue, which is in order, that have waited for `fit_wait`."""
    late = []
    for record in records:
        if not _is_late(state, model, record.place):
            break
        late.append(record)
    return late


def _is_late(state: State, model: ModelState, since: float) -> bool:
    """Whether `fit_wait` has passed since something came, and since the model does not fit; else the timer is set."""
    until = max(since, model.unfit_since or since) + state.policy.fit_wait_seconds
    if until > state.now:
        state.plan_wake_at = min(state.plan_wake_at, until)
    return until <= state.now


def _reject_all(state: State, model: ModelState, records: Iterable[JobRecord], fit: Fit) -> None:
    for record in records:
        waiting.reject(state, record, admission.unfit(state, model, fit), "L7")
