"""What the scheduler shows to those who only look: the snapshot, and why a job waits (S9b).

Changes nothing; may be as slow as a person's patience, never runs inside a step.
"""

from collections.abc import Mapping
from itertools import islice
from math import inf
from operator import itemgetter

from gridsched.core import ahead, cost, pins, reasons, words
from gridsched.core.estimate import forecast
from gridsched.core.ids import JobId, ModelName
from gridsched.core.instance import InstanceState
from gridsched.core.job import JobClass
from gridsched.core.ledger import DeviceBook
from gridsched.core.placement import Plan
from gridsched.core.queues import CLASSES, JobRecord
from gridsched.core.residency import GrantRecord, Instance, Lease, ModelState
from gridsched.core.snapshot import (
    DeviceView,
    Explanation,
    InstanceView,
    Jobs,
    Keeper,
    LeaseView,
    PlanView,
    RunningView,
    Snapshot,
    VictimView,
    WaitingView,
)
from gridsched.core.state import State


def snapshot(state: State, now: float) -> Snapshot:
    """Everything at one moment but the jobs."""
    failed = {
        name: (model.retry_at, model.failure.message if model.failure is not None else "")
        for name, model in state.models.items()
        if model.retry_at > now
    }
    return Snapshot(
        at=now,
        devices=tuple(_device(state, book, now) for book in state.ledger.books.values()),
        instances=tuple(instance_of(state, item, now) for item in state.instances.values()),
        queue_lengths={each: state.counts[each].waiting for each in CLASSES},
        running={each: state.counts[each].running for each in CLASSES},
        failed=failed,
        draining=state.draining,
        pins_down={name: pins.why_down(state, model) for name, model in state.pins.items() if model.instance is None},
        oldest_wait_seconds={each: _oldest_wait_seconds(state, each, now) for each in CLASSES},
    )


def _oldest_wait_seconds(state: State, job_class: JobClass, now: float) -> float:
    """Of a class. Each queue is in the order of its places, so its head alone is looked at."""
    heads = (model.queue.head(job_class) for model in state.waiting_models.values())
    return max((now - head.place for head in heads if head is not None), default=0.0)


def waiting(state: State, job_id: JobId, now: float) -> WaitingView | None:
    """One waiting job; None for one that runs, is over or was never there."""
    record = _waiting_record(state, job_id)
    if record is None:
        return None
    return _waiting(state, record, _position(state, record), now, forecast(state, now), {})


def said(state: State, job_id: JobId, now: float) -> str | None:
    """What a comment line says of a waiting job (H3). Clients ask every few seconds each, so nothing is estimated."""
    record = _waiting_record(state, job_id)
    if record is None:
        return None
    return words.short(_waiting(state, record, _position(state, record), now, {}, None))


def jobs(state: State, now: float, most: int | None = None) -> Jobs:
    """All living jobs; of those that wait no more than the first `most` of each class."""
    running = (_running(entry, now) for entry in state.grants.values() if not entry.over)
    return Jobs(_all_waiting(state, now, most), tuple(running))


def explain(state: State, job_id: JobId, now: float) -> Explanation | None:
    """How a job stands that lives; None for every other. What was decided about it is in the log."""
    record = state.jobs.get(job_id)
    if record is None:
        return None
    if record.grant_id is not None:
        return Explanation(job_id, None, _running(state.grants[record.grant_id], now), None)
    plan = state.models[record.model].plan
    return Explanation(job_id, waiting(state, job_id, now), None, None if plan is None else plan_of(state, plan))


def _waiting_record(state: State, job_id: JobId) -> JobRecord | None:
    record = state.jobs.get(job_id)
    return None if record is None or record.grant_id is not None else record


def _position(state: State, record: JobRecord) -> int:
    stands = state.models[record.model].queue.stands_at(record)
    queues = (model.queue for model in state.waiting_models.values())
    return 1 + sum(queue.before(record.job.job_class, stands) for queue in queues)


def _places(state: State, job_class: JobClass, most: int | None) -> list[JobRecord]:
    """The jobs of a class by their positions; no more than the first `most`, who are among as many of each queue."""
    queues = [model.queue for model in state.waiting_models.values()]
    # Whose place each job has: where keys take turns the first to be served stands where the oldest would.
    places = [
        (place.rank, record)
        for queue in queues
        for place, record in islice(
            zip(queue.by_class[job_class].values(), queue.in_turn(job_class), strict=True), most
        )
    ]
    places.sort(key=itemgetter(0))
    return [record for _, record in islice(places, most)]


def _all_waiting(state: State, now: float, most: int | None) -> tuple[WaitingView, ...]:
    views: list[WaitingView] = []
    granted_at = forecast(state, now, most)
    keepers: dict[ModelName, tuple[Keeper, ...]] = {}
    for each in CLASSES:
        places = enumerate(_places(state, each, most), 1)
        views.extend(_waiting(state, record, position, now, granted_at, keepers) for position, record in places)
    return tuple(views)


def _waiting(
    state: State,
    record: JobRecord,
    position: int,
    now: float,
    granted_at: Mapping[JobId, float],
    keepers: dict[ModelName, tuple[Keeper, ...]] | None,
) -> WaitingView:
    """`keepers` remembers what was found for each model; None where nobody asks."""
    model = state.models[record.model]
    rule, reason = reasons.reason(state, record, model, now)
    if record.group is not None:
        reason = f"aims at {record.model}: {reason}"
    instance = model.instance
    loading = instance is not None and instance.state is InstanceState.STARTING
    if keepers is not None and model.name not in keepers:
        keepers[model.name] = _keepers(state, model, now)
    estimate_at = granted_at.get(record.job.id)
    return WaitingView(
        id=record.job.id,
        model=record.job.model,
        job_class=record.job.job_class,
        kind=record.job.kind,
        position=position,
        waited_seconds=now - record.place,
        step=record.step,
        steps=record.job.steps,
        rule=rule,
        reason=reason,
        loading_seconds=now - instance.started_at if instance is not None and loading else None,
        estimate_seconds=None if estimate_at is None else max(0.0, estimate_at - now),
        keepers=keepers[model.name] if keepers is not None else (),
    )


def _keepers(state: State, model: ModelState, now: float) -> tuple[Keeper, ...]:
    """Who holds the devices that a model could be launched on, where it has to be launched."""
    if model.instance is not None and not model.instance.restarting:
        return ()
    found: list[Keeper] = []
    for device in dict.fromkeys(device for option in model.spec.options for device in option.devices):
        book = state.ledger.books.get(device)
        if book is None:
            continue
        lease = state.leases.get(device)
        if lease is not None:
            found.append(Keeper(None, device, book.usable_bytes, (f"leased to {lease.owner}",)))
            continue
        if device in state.lost:
            found.append(Keeper(None, device, book.usable_bytes, ("it does not answer",)))
            continue
        for instance_id, item in book.reservations.items():
            instance = state.instances[instance_id]
            why = ("lost",) if item.lost else _why_it_stays(instance, now)
            found.append(Keeper(instance.model.name, device, item.bytes, why))
        if book.external_bytes:
            found.append(Keeper(None, device, book.external_bytes, ()))
    return tuple(found)


def _why_it_stays(instance: Instance, now: float) -> tuple[str, ...]:
    if instance.state is InstanceState.STOPPING:
        return ("stopping",)
    if instance.state is InstanceState.STARTING:
        return ("loading",)
    draining = ("draining",) if instance.state is InstanceState.DRAINING else ()
    return (instance.tier(now).value, *draining, "busy" if instance.busy() else "idle")


def _running(entry: GrantRecord, now: float) -> RunningView:
    job, model = entry.record.job, entry.instance.model
    running_seconds = now - entry.granted_at
    return RunningView(
        id=job.id,
        model=model.name,
        job_class=job.job_class,
        kind=job.kind,
        instance=entry.instance.id,
        step=entry.record.step,
        steps=job.steps,
        running_seconds=running_seconds,
        rest_seconds=model.pace.rest_seconds(job.job_class, running_seconds),
    )


def plan_of(state: State, plan: Plan) -> PlanView:
    """A plan: what is launched, and who goes for it."""
    victims = (
        VictimView(
            victim.id,
            victim.model.name,
            sum(state.ledger.bytes_of(victim.id).values()),
            len(victim.grants),
            cost.terms_of(state, victim, plan.want.load_class).figures(),
            _why_it_stays(victim, state.now),
        )
        for victim in plan.victims
    )
    option = plan.option
    return PlanView(option.ctx_size, option.parallel, dict(plan.needs), plan.live, tuple(victims))


def _device(state: State, book: DeviceBook, now: float) -> DeviceView:
    mode = state.modes.get(book.spec.name)
    lease = state.leases.get(book.spec.name)
    loss = state.lost.get(book.spec.name)
    freeing = reserved = 0
    for instance_id, item in book.reservations.items():
        if item.lost:
            continue
        if state.instances[instance_id].state in (InstanceState.DRAINING, InstanceState.STOPPING):
            freeing += item.bytes
        else:
            reserved += item.bytes
    return DeviceView(
        name=book.spec.name,
        total_bytes=book.spec.total_bytes,
        headroom_bytes=book.spec.headroom_bytes,
        used_bytes=book.used_bytes,
        external_bytes=book.external_bytes,
        reserved_bytes=reserved,
        freeing_bytes=freeing,
        lost_bytes=book.lost_bytes,
        interactive_mode=mode is not None and mode.active(now),
        pressure=book.pressure,
        lease=None if lease is None else _lease(lease),
        lost_since_seconds=None if loss is None else loss.since,
        lost_why="" if loss is None else loss.why,
        foreign=book.foreign,
    )


def _lease(lease: Lease) -> LeaseView:
    until = lease.until if lease.until < inf else None
    return LeaseView(lease.state, lease.owner, until, lease.process, tuple(lease.displaced))


def instance_of(state: State, instance: Instance, now: float) -> InstanceView:
    """One process."""
    option = instance.option
    books = state.ledger.books.items()
    pages = {name: book.reservations[instance.id] for name, book in books if instance.id in book.reservations}
    held = list(pages.values())
    measured = bool(held) and all(page.measured for page in held)
    expires_at = ahead.idle_until(instance)
    return InstanceView(
        id=instance.id,
        model=instance.model.spec.name,
        state=instance.state,
        tier=instance.tier(now),
        devices=instance.devices,
        ctx_size=option.ctx_size,
        parallel=option.parallel,
        slots_busy=len(instance.grants),
        estimated_bytes=sum(part.total_bytes for part in option.footprint),
        measured_bytes=sum(page.bytes for page in held) if measured else None,
        reserved_bytes=sum(page.bytes for page in held if not page.lost),
        device_bytes={name: page.bytes for name, page in pages.items() if not page.lost},
        since_seconds=instance.since,
        last_used_seconds=instance.last_used_at,
        paused=instance.paused,
        option_key=option.key,
        host_held_bytes=instance.host_held_bytes,
        load_seconds=state.load_seconds(instance.model, option),
        expires_at_seconds=None if expires_at == inf else expires_at,
    )
