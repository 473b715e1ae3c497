"""Which models have to be loaded, for whom, and in which order (S2, S5, S5b, S6c).

Owns the reading of the queues and errands for planning: one want for each model that is waited for and not there.
Walks models, never their jobs. Changes nothing.
"""

from math import inf

from gridsched.core import yielding
from gridsched.core.job import JobClass
from gridsched.core.placement import COURTESIES, Errand, Obstacle, Want
from gridsched.core.queues import JobRecord, Rank
from gridsched.core.residency import ModelState
from gridsched.core.serving import batch_lift_at
from gridsched.core.state import State


def wants_of(state: State) -> list[Want]:
    """The wants by rank."""
    models = [model for model in state.wanted_models().values() if model.unplaced() and not model.removed]
    state.keys.meet(key for model in models for key in model.queue.waiting_keys())
    chatting = any(mode.active(state.now) for mode in state.modes.values())
    wants = [want for model in models if (want := _want_of(state, model, chatting=chatting)) is not None]
    wants.sort(key=lambda want: want.rank)
    return wants


def _want_of(state: State, model: ModelState, *, chatting: bool) -> Want | None:
    queue = model.queue
    job = queue.holder(may_evict=False)
    errand, bar = model.errand, None
    if errand is not None:
        bar = _bar(state, model, errand)
        # One that must not be begun yet, or for which nobody goes, keeps no job of its model from having it loaded.
        kept = bar is not None or errand.purpose in COURTESIES
        if job is None or (not kept and errand.rank < state.keys.load_rank(job)):
            return _want_of_errand(state, model, errand, bar)
    return _want_of_job(state, model, job, bar, chatting=chatting) if job is not None else None


def _want_of_job(state: State, model: ModelState, job: JobRecord, bar: Obstacle | None, *, chatting: bool) -> Want:
    """The load for the first job that may begin one; `bar` is what its model's errand waits for, if it has one."""
    queue, now = model.queue, state.now
    next_at = bar.until if bar is not None and bar.until > now else inf
    # Where every waiting job has the full permission, the one who holds the load is the one who may evict.
    evictor, gentle = queue.evictor() if queue.warm_only or queue.no_evict or queue.gentle else (job, False)
    if gentle and evictor is not None:
        gentle_at = evictor.place + state.policy.background_max_starvation_seconds
        if gentle_at > now:
            evictor = None
            next_at = min(next_at, gentle_at)
    load_class = evict_class = job.job.job_class
    rank = state.keys.load_rank(job)
    evict_rank: Rank | None = rank
    if evictor is not job:
        evict_rank = state.keys.load_rank(evictor) if evictor is not None else None
        evict_class = evictor.job.job_class if evictor is not None else load_class
    if job.chat:
        return Want(model, job, load_class, rank, evict_rank, evict_class, next_at=next_at, gentle=gentle)
    starved_at = _starved_at(state, job)
    lift_at = _lift_at(state, model, job)
    lifted = lift_at <= now
    # A starved job is relieved by how long it is starved, whatever its class: S1 is lifted for it (S5).
    if lifted or (chatting and starved_at <= now):
        rank = _raised(rank)
        evict_rank = _raised(evict_rank) if evict_rank is not None else None
    for at in (starved_at, lift_at):
        if now < at < next_at:
            next_at = at
    return Want(model, job, load_class, rank, evict_rank, evict_class, starved_at, lifted, next_at, gentle)


def _bar(state: State, model: ModelState, errand: Errand) -> Obstacle | None:
    """Why an errand must not be begun yet."""
    if model.retry_at > state.now:
        return Obstacle("L6d", f"{model.name} failed to load", model.retry_at)
    return yielding.bar(state, model, errand)


def _want_of_errand(state: State, model: ModelState, errand: Errand, bar: Obstacle | None) -> Want:
    """A load without a job competes as one of its class. It runs no step, so relief that is switched off does not keep
    it for ever from a device with chats (S4). What comes back after it yielded has no turn to take: the other's is
    over whatever its class (R1, R4a)."""
    comes_back = errand.guest is not None
    evict_class = JobClass.BATCH if comes_back else errand.load_class
    starved_at = -inf if comes_back else errand.since + state.policy.background_max_starvation_seconds
    return Want(
        model,
        None,
        errand.load_class,
        errand.rank,
        None if errand.purpose in COURTESIES else errand.rank,
        evict_class,
        starved_at,
        next_at=starved_at if starved_at > state.now else inf,
        guest=errand.guest,
        bar=bar,
    )


def _raised(rank: Rank) -> Rank:
    return (min(rank[0], JobClass.BACKGROUND), rank[1], rank[2])


def _starved_at(state: State, job: JobRecord) -> float:
    limit_seconds = state.policy.background_max_starvation_seconds
    return job.place + limit_seconds if limit_seconds else inf


def _lift_at(state: State, model: ModelState, job: JobRecord) -> float:
    """S5b, for a load: on the devices of the best rung. inf for background work, which needs no lift."""
    if job.job.job_class is not JobClass.BATCH:
        return inf
    return batch_lift_at(state, job, tuple(state.mode_of(device) for device in model.spec.options[0].devices))
