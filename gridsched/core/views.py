"""What the scheduler shows to those who only look: the snapshot, and why a job waits (S9b).

Owns the sentences of waiting. Changes nothing; may be as slow as a person's patience, never runs inside a step.
"""

from collections.abc import Iterable
from math import inf

from gridsched.core.ids import JobId
from gridsched.core.instance import InstanceState
from gridsched.core.ledger import DeviceBook
from gridsched.core.queues import CLASSES, JobRecord
from gridsched.core.residency import Instance, ModelState
from gridsched.core.snapshot import DeviceView, InstanceView, Snapshot, WaitingView
from gridsched.core.state import State


def snapshot(state: State, now: float) -> Snapshot:
    """Everything at one moment."""
    failed = {
        name: (model.retry_at, model.failure.message if model.failure is not None else "")
        for name, model in state.models.items()
        if model.retry_at > now
    }
    return Snapshot(
        at=now,
        devices=tuple(_device(state, book, now) for book in state.ledger.books.values()),
        instances=tuple(_instance(state, item, now) for item in state.instances.values()),
        queue_lengths={each: state.counts[each].waiting for each in CLASSES},
        running={each: state.counts[each].running for each in CLASSES},
        waiting=_all_waiting(state, now),
        failed=failed,
        draining=state.draining,
    )


def waiting(state: State, job_id: JobId, now: float) -> WaitingView | None:
    """One waiting job; None for one that runs, is over or was never there."""
    record = state.jobs.get(job_id)
    if record is None or record.grant_id is not None:
        return None
    queues = (model.queue.by_class[record.job.job_class] for model in state.waiting_models.values())
    position = 1 + sum(_ahead(queue.values(), record) for queue in queues)
    return _waiting(state, record, position, now)


def _ahead(queue: Iterable[JobRecord], record: JobRecord) -> int:
    """How many of a queue, which is in order, stand before a job."""
    count = 0
    for other in queue:
        if other.rank >= record.rank:
            break
        count += 1
    return count


def _all_waiting(state: State, now: float) -> tuple[WaitingView, ...]:
    views: list[WaitingView] = []
    for each in CLASSES:
        records = [item for model in state.waiting_models.values() for item in model.queue.by_class[each].values()]
        records.sort(key=lambda record: record.rank)
        views.extend(_waiting(state, record, number, now) for number, record in enumerate(records, 1))
    return tuple(views)


def _waiting(state: State, record: JobRecord, position: int, now: float) -> WaitingView:
    rule, reason = _reason(state, record, state.models[record.job.model], now)
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
    )


def _device(state: State, book: DeviceBook, now: float) -> DeviceView:
    mode = state.modes.get(book.spec.name)
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
    )


def _instance(state: State, instance: Instance, now: float) -> InstanceView:
    option = instance.option
    pages = [book.reservations.get(instance.id) for book in state.ledger.books.values()]
    held = [page for page in pages if page is not None]
    measured = bool(held) and all(page.measured for page in held)
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
        since_seconds=instance.since,
        last_used_seconds=instance.last_used_at,
    )


# --- why a job waits --------------------------------------------------------------------------------------------


def _reason(state: State, record: JobRecord, model: ModelState, now: float) -> tuple[str, str]:
    name = model.spec.name
    instance = model.instance
    if instance is None or instance.restarting:
        return _reason_without_instance(model)
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


def _reason_without_instance(model: ModelState) -> tuple[str, str]:
    name = model.spec.name
    plan = model.plan
    if plan is not None and plan.held is not None:
        return plan.held.rule, plan.held.reason
    if plan is not None and plan.waits[0]:
        return plan.waits
    if plan is not None:
        return "R3", f"memory for {name} is being freed"
    if model.unfit_since is not None:
        return "L7", f"{name} does not fit beside what cannot go"
    if model.obstacle is not None:
        return model.obstacle.rule, model.obstacle.reason
    return "S2", f"{name} has to be loaded"


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
    return "S5", f"longer starved jobs have the turn on {devices} first"
