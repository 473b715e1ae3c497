"""Coming to wait and waiting no longer, and what waiting chats hold (S4, S6c, S8).

Owns every change to a queue, with the counts that go with it. Must never decide who goes next.
"""

from gridsched.core.commands import LogEvent, Rejection, RejectJob
from gridsched.core.instance import InstanceState
from gridsched.core.modes import DeviceMode
from gridsched.core.queues import JobRecord
from gridsched.core.residency import READY, ModelState
from gridsched.core.state import State
from gridsched.core.transitions import JOB_MOVES, JobMove, moved


def enter(state: State, record: JobRecord, model: ModelState, *, at_old_place: bool = False) -> None:
    """A job comes to wait, last in its queue or at its old place (P5)."""
    queue = model.queue
    first_of_class = not queue.by_class[record.job.job_class]
    if at_old_place:
        queue.put_back(record)
    else:
        queue.add(record)
    state.counts[record.job.job_class].waiting += 1
    state.waiting_models[model.name] = model
    state.entered.append(record)
    state.touched[model.name] = model
    instance = model.instance
    if instance is not None and instance.state is READY:
        return
    # Behind others who may as much as it, a job changes no plan.
    if first_of_class or at_old_place or queue.warm_only or queue.no_evict:
        state.replan_due = True


def leave(state: State, record: JobRecord, model: ModelState) -> None:
    """A job waits no longer, whatever the reason."""
    queue = model.queue
    queue.remove(record)
    count = state.counts[record.job.job_class]
    count.waiting -= 1
    if record.place < state.now:
        count.departures.append(state.now)
    if not queue.count:
        del state.waiting_models[model.name]


def leave_for_good(state: State, record: JobRecord, model: ModelState) -> None:
    """A waiting job's end without a grant: what it claimed or joined may lapse with it (S6c, R4)."""
    leave(state, record, model)
    del state.jobs[record.job.id]
    state.touch(model)
    state.replan_due = True


def reject(state: State, record: JobRecord, rejection: Rejection, rule: str) -> None:
    """End a waiting job with a refusal."""
    record.state = moved(JOB_MOVES, record.state, JobMove.REJECT)
    leave_for_good(state, record, state.models[record.job.model])
    tell_rejection(state, record, rejection, rule)


def reject_between(state: State, record: JobRecord, rejection: Rejection, rule: str) -> None:
    """End a job that has just finished a step and is in no queue."""
    record.state = moved(JOB_MOVES, record.state, JobMove.REJECT)
    del state.jobs[record.job.id]
    tell_rejection(state, record, rejection, rule)


def tell_rejection(state: State, record: JobRecord, rejection: Rejection, rule: str) -> None:
    """Answer the job's ticket, and say so in the log."""
    figures: dict[str, object] = {"code": rejection.code.value}
    if rejection.retry_after_seconds is not None:
        figures["retry_after_s"] = round(rejection.retry_after_seconds, 3)
    state.say_of_job(LogEvent.REJECT, record, rule, figures)
    state.out.append(RejectJob(record.job.id, rejection))


def hold_devices(model: ModelState) -> None:
    """S4: let the model's waiting chats hold the devices where they have a slot, a load or a live plan to wait for,
    and no others."""
    instance = model.instance
    held: tuple[DeviceMode, ...] = ()
    if model.queue.chats:
        if instance is not None and (instance.state is READY or instance.state is InstanceState.STARTING):
            held = instance.modes
        elif model.plan is not None and model.plan.live:
            held = model.plan.modes
    if held == model.held:
        return
    for mode in held:
        mode.chats_waiting += 1
    for mode in model.held:
        mode.chats_waiting -= 1
    model.held = held
