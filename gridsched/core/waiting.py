"""Coming to wait and waiting no longer, and what waiting chats hold (S4, S6c, S8, R10).

Owns every change to a queue, with the counts that go with it. Must never decide who goes next, nor at which variant of
its family a job stands.
"""

from collections.abc import Sequence

from gridsched.core.commands import LogEvent, Rejection, RejectJob
from gridsched.core.instance import InstanceState
from gridsched.core.modes import DeviceMode
from gridsched.core.queues import JobRecord
from gridsched.core.residency import READY, Instance, ModelState
from gridsched.core.state import State
from gridsched.core.transitions import JOB_MOVES, JobMove, moved


def enter(state: State, record: JobRecord, model: ModelState, *, at_old_place: bool = False) -> None:
    """A job comes to wait, last in its queue or at its old place (P5)."""
    queue = model.queue
    first_of_class = not queue.by_class[record.job.job_class]
    record.model = model.name
    if record.group is not None:
        record.group.add(state, record, at_old_place=at_old_place)
    if at_old_place:
        queue.put_back(record)
    else:
        queue.add(record)
    state.counts[record.job.job_class].entered(record.job.key)
    state.waiting_models[model.name] = model
    state.entered.append(record)
    state.touched[model.name] = model
    if model.successor is not None:
        state.replan_due = True  # its move is given up (R9)
    instance = model.instance
    if instance is not None and instance.state is READY:
        return
    # Behind others who may as much as it, a job changes no plan, unless its key has a turn before theirs.
    lesser = queue.warm_only or queue.no_evict or queue.gentle
    if at_old_place or lesser or state.keys.counts(record) or (first_of_class and _goes_first(record, model)):
        state.replan_due = True


def _goes_first(record: JobRecord, model: ModelState) -> bool:
    """Whether a job that has come is who its model would be loaded for, or may hasten a load that is under way."""
    want = model.want
    was_wanted = model.errand is not None or model.queue.count > 1
    if want is None or not was_wanted or not model.unplaced():
        return True
    if model.queue.count == 1 and model.plan is None:
        return True  # only an errand has waited, and an errand waits where a job is refused (L7)
    return record.rank < (want.job.rank if want.job is not None else want.rank)


def leave(state: State, record: JobRecord, model: ModelState) -> None:
    """A job waits no longer, whatever the reason."""
    queue = model.queue
    queue.remove(record)
    if record.group is not None:
        record.group.remove(state, record)
    count = state.counts[record.job.job_class]
    count.left(record.job.key)
    if record.place < state.now:
        count.departures.append(state.now)
    if not queue.count:
        del state.waiting_models[model.name]
        model.want = None


def move(state: State, records: Sequence[JobRecord], source: ModelState, target: ModelState) -> None:
    """R10: jobs of a family, of one class, wait on at another variant, at the places they had. What they caused to be
    loaded is no longer kept for them (R4)."""
    for record in records:
        source.queue.remove(record)
        if source.instance is not None and source.instance.cause is record:
            source.instance.cause = None
        record.model = target.name
    if not source.queue.count:
        del state.waiting_models[source.name]
        source.want = None
    target.queue.put_back(*records)
    state.waiting_models[target.name] = target
    state.touch(source)
    state.touch(target)


def leave_group(state: State, record: JobRecord, model: ModelState) -> None:
    """R10: its family is gone. The job waits on for the variant where it stands, as one that had named it."""
    model.queue.remove(record)
    if record.group is not None:
        record.group.remove(state, record)
        record.group = None
    model.queue.put_back(record)


def leave_for_good(state: State, record: JobRecord, model: ModelState) -> None:
    """A waiting job's end without a grant: what it claimed or joined may lapse with it (S6c, R4)."""
    leave(state, record, model)
    del state.jobs[record.job.id]
    state.touch(model)
    if state.pressed or _was_planned_for(state, record, model):
        state.replan_due = True


def _was_planned_for(state: State, record: JobRecord, model: ModelState) -> bool:
    """Whether plans rest on a job that has left its queue."""
    instance = model.instance
    if instance is not None and instance.state is READY:
        return model.removed or instance.cause is record or lets_go(state, instance)
    want, queue = model.want, model.queue
    if want is None or instance is not None or not queue.count or queue.warm_only or queue.no_evict:
        return True
    if state.keys.counts(record):
        return True
    return record is want.job or (want.evict_rank is not None and record.rank[1:] == want.evict_rank[1:])


def lets_go(state: State, instance: Instance) -> bool:
    """Whether some load waits for an instance to be done with older work, and none of that waits any more."""
    rank = state.watched.get(instance.id)
    if rank is None:
        return False
    for job_class in range(rank[0] + 1):
        head = instance.model.queue.head(job_class)
        if head is not None and state.keys.load_rank(head) < rank:
            return False
    return True


def reject(state: State, record: JobRecord, rejection: Rejection, rule: str) -> None:
    """End a waiting job with a refusal."""
    record.state = moved(JOB_MOVES, record.state, JobMove.REJECT)
    leave_for_good(state, record, state.models[record.model])
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
    note_held(record, figures)
    state.say_of_job(LogEvent.REJECT, record, rule, figures)
    state.out.append(RejectJob(record.job.id, rejection))


def note_held(record: JobRecord, figures: dict[str, object]) -> None:
    """S9b: with the end of a wait it is said what held the job when it came to wait."""
    if record.held is not None:
        figures["held"], figures["why"] = record.held
        record.held = None


def hold_devices(state: State, model: ModelState) -> None:
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
        state.stirred[mode.device] = mode
    for mode in model.held:
        mode.chats_waiting -= 1
        state.stirred[mode.device] = mode
    model.held = held
