"""Who waits for nothing: jobs that planning found no way for are refused (S9, L7).

Owns when a waiting job is refused for memory or residency; the sentences are `admission`'s. Runs at the end of each
planning and rests on its plans and obstacles. Must never plan, start or stop anything.
"""

from collections.abc import Iterable

from gridsched.core import admission, waiting
from gridsched.core.admission import Fit
from gridsched.core.instance import InstanceState
from gridsched.core.queues import JobRecord
from gridsched.core.residency import ModelState
from gridsched.core.state import State


def refuse(state: State) -> None:
    """End the waiting of those for whom planning found that there is nothing to wait for."""
    for model in list(state.waiting_models.values()):
        if not model.unplaced() and not _is_leaving(model):
            model.unfit_since = None
            continue
        if model.removed:
            for record in list(model.queue):
                waiting.reject(state, record, admission.model_not_found(record.job), "S9")
            continue
        hopeless = model.unplaced() and model.plan is None
        if not (hopeless and admission.fit_of(state, model) is Fit.NEVER):
            _refuse_not_resident(state, model)
        if hopeless:
            _refuse_unfit(state, model)
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
            waiting.reject(state, record, admission.not_resident(record), "S9")


def _refuse_unfit(state: State, model: ModelState) -> None:
    """L7: never, at once; not now, chats after `fit_wait`; later, never here."""
    fit = admission.fit_of(state, model)
    if fit is Fit.LATER:
        model.unfit_since = None
        return
    if fit is Fit.NEVER:
        _reject_all(state, model, list(model.queue), fit)
        return
    if model.unfit_since is None:
        model.unfit_since = state.now
    limit_seconds = state.policy.fit_wait_seconds
    late = []
    for record in model.queue.chats.values():
        until = max(record.place, model.unfit_since) + limit_seconds
        if until > state.now:
            state.plan_wake_at = min(state.plan_wake_at, until)
            break
        late.append(record)
    _reject_all(state, model, late, fit)


def _reject_all(state: State, model: ModelState, records: Iterable[JobRecord], fit: Fit) -> None:
    for record in records:
        waiting.reject(state, record, admission.insufficient_vram(state, model, fit), "L7")
