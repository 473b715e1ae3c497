"""The life of an instance, move by move: start, ready, drain, stop, exit, memory back (R2, L1, L2, L5, L6d).

Owns every change of an instance's state and of its reservation. Must never choose which instance: `planning` does.
A stop is refused here while a step is in flight (INV-1), whoever asks, but for a person's forced unload (R2).
"""

from dataclasses import replace
from math import inf

from gridsched.core import admission, errands, failures, measuring, pause, pins, thrash, waiting, yielding
from gridsched.core.commands import (
    AnswerRequest,
    KeepLoadTime,
    KeepMeasurement,
    LogEvent,
    Rejection,
    StartInstance,
    StopInstance,
)
from gridsched.core.errors import InvariantViolation
from gridsched.core.events import DeviceRead, Failure, FailureCause
from gridsched.core.ids import InstanceId
from gridsched.core.instance import InstanceState
from gridsched.core.job import JobClass
from gridsched.core.model import LaunchOption
from gridsched.core.placement import Plan
from gridsched.core.queues import JobRecord
from gridsched.core.residency import Instance, ModelState
from gridsched.core.state import State
from gridsched.core.transitions import INSTANCE_MOVES, InstanceMove, moved

FAULTY = Failure(FailureCause.DRIVER_FAULT, "its device failed while it served, and may fail until it is begun anew")
"""D13: a process that lives, and answers with its device's errors."""


def _move(state: State, instance: Instance, move: InstanceMove) -> None:
    if instance.paused:
        pause.resume(state, instance, move.value)
    instance.state = moved(INSTANCE_MOVES, instance.state, move)
    instance.since = state.now
    state.touch(instance.model)


# --- coming -----------------------------------------------------------------------------------------------------


def start(state: State, plan: Plan) -> None:
    """Begin a planned load."""
    want = plan.want
    model = want.model
    rule = "S5" if plan.relief else "S5b" if want.lifted else "L1"
    instance = spawn(state, model, plan.option, want.job, want.load_class, rule)
    model.instance = instance
    model.plan = model.obstacle = None
    if want.job is not None:
        state.keys.load_begins(want.job.job.key, state.now)
    if want.lifted:
        for mode in instance.modes:
            mode.batch_lifted_at = state.now


def spawn(
    state: State, model: ModelState, option: LaunchOption, cause: JobRecord | None, load_class: JobClass, rule: str
) -> Instance:
    """A new process: its memory is reserved in this very decision (L1)."""
    state.last_instance += 1
    instance_id = InstanceId(state.last_instance)
    state.ledger.reserve(instance_id, option)
    modes = tuple(state.mode_of(device) for device in option.devices)
    instance = Instance(instance_id, model, option, modes, cause, load_class, state.now, since=state.now)
    instance.last_used_at = state.now
    instance.hot_until = model.hot_until
    state.remember(instance)
    state.starts.note(state.now, chat=load_class is JobClass.INTERACTIVE)
    state.touch(model)
    needs = {str(device): held_bytes for device, held_bytes in state.ledger.bytes_of(instance_id).items()}
    state.say_of_instance(LogEvent.LOAD, instance, rule, bytes=needs, ctx=option.ctx_size, parallel=option.parallel)
    state.out.append(StartInstance(instance_id, model.spec.name, option))
    return instance


def became_ready(state: State, instance: Instance) -> None:
    """P6: it serves. A stop that was on its way meanwhile holds."""
    was = instance.state
    _move(state, instance, InstanceMove.BECOME_READY)
    if was is not InstanceState.STARTING:
        return
    now = state.now
    instance.ready_at = instance.last_used_at = now
    state.ledger.settled(instance.id, now)
    yielding.became_ready(state, instance)
    thrash.became_ready(state, instance)
    load_seconds = now - instance.started_at
    state.load_seconds_by_key[instance.option.key] = load_seconds
    state.ledger.forget_shortage(instance.option)
    state.say_of_instance(LogEvent.READY, instance, "P6", load_s=round(load_seconds, 3))
    state.out.append(KeepLoadTime(instance.model.spec.name, instance.option.key, load_seconds))
    if instance.model.errand is not None:
        errands.fulfil(state, instance)
    state.replan_due = True


# --- going ------------------------------------------------------------------------------------------------------


def drain(state: State, instance: Instance, rule: str, reason: str, **figures: object) -> None:
    """No new step; it will be stopped when its last one ends (R2)."""
    _move(state, instance, InstanceMove.DRAIN)
    state.say_of_instance(LogEvent.DRAIN, instance, rule, why=reason, steps=len(instance.grants), **figures)


def undrain(state: State, instance: Instance) -> None:
    """Nobody needs it to go any more (R2, S6c)."""
    _move(state, instance, InstanceMove.UNDRAIN)
    state.say_of_instance(LogEvent.DRAIN, instance, "R2", why="no longer needed to go")
    if instance.model.errand is not None:
        errands.fulfil(state, instance)


def restart(state: State, instance: Instance, rule: str, failure: Failure | None = None) -> None:
    """P5, S9, D13: its process is dead or stalled, or of no use, which is its `failure`. It takes no new work, and is
    stopped when its other steps have ended; whoever waits for its model has it loaded anew. What somebody wanted gone
    is no longer to be had back."""
    here = instance.state in (InstanceState.READY, InstanceState.DRAINING)
    if not here or (instance.restarting and instance.retired is None):
        return
    instance.restarting = True
    instance.retired = None
    instance.failure = failure
    if instance.state is InstanceState.READY:
        drain(state, instance, rule, _why_anew(instance))
    state.replan_due = True


def _why_anew(instance: Instance) -> str:
    return "its process is dead or stalled" if instance.failure is None else instance.failure.message


def force(state: State, instance: Instance) -> None:
    """R2's one exception, on a person's word: with the steps that are in flight. They end when the process has."""
    instance.forced = True
    stop(state, instance, "R2", "a person unloads it by force", forced=True, steps=len(instance.grants))


def retire(state: State, instance: Instance, rule: str, reason: str) -> None:
    """R7, R8: somebody wants it gone, and no plan undoes that. With its last step; at once where none is in flight."""
    if instance.state is InstanceState.STARTING or not instance.grants:
        stop(state, instance, rule, reason)
        return
    instance.retired = (rule, reason)
    instance.restarting = True
    if instance.state is InstanceState.READY:
        drain(state, instance, rule, reason)
    state.replan_due = True


def unretire(state: State, instance: Instance) -> None:
    """Nobody wants it gone any more, in the middle of its drain."""
    if instance.state is InstanceState.DRAINING:
        instance.retired = None
        instance.restarting = False
        undrain(state, instance)


def stop(
    state: State,
    instance: Instance,
    rule: str,
    reason: str,
    event: LogEvent = LogEvent.STOP,
    **figures: object,
) -> None:
    """Tell a process to end. Raises InvariantViolation while a step is in flight (R2), unless a person forces it."""
    if instance.grants and not instance.forced:
        story = state.story.of(instance_id=instance.id)
        raise InvariantViolation(f"INV-1: instance {instance.id} is stopped with steps in flight", story)
    _move(state, instance, InstanceMove.STOP)
    policy = state.policy
    instance.release_by = state.now + policy.stop_grace_seconds + policy.release_timeout_seconds
    if event is LogEvent.EVICT:
        thrash.evicted(state, instance)
    _leaves(state, instance)
    state.say_of_instance(event, instance, rule, why=reason, **figures)
    state.out.append(StopInstance(instance.id, reason))


def became_idle(state: State, instance: Instance) -> None:
    """Its last step has ended: what waited for that happens now."""
    if instance.exited:
        _forget_if_over(state, instance)
    elif instance.forced:
        return  # it was told before its steps ended
    elif instance.restarting:
        stop(state, instance, *(instance.retired or ("P5", _why_anew(instance))))
    elif state.draining:
        stop(state, instance, "P8", "the server is going away")
    elif _changes_plans(state, instance):
        state.replan_due = True


def _changes_plans(state: State, instance: Instance) -> bool:
    """Whether plans rest on an instance that has become idle."""
    if state.pressed or state.groups or instance.state is InstanceState.DRAINING or instance.model.removed:
        return True
    return state.unplaced and (waiting.lets_go(state, instance) or any(map(_may_choose_again, state.plans)))


def _may_choose_again(plan: Plan) -> bool:
    """R5: idle goes before busy and before a load under way, so that a plan whose victims still work would rather have
    one that does not."""
    return any(victim.grants or victim.state is InstanceState.STARTING for victim in plan.victims)


def _leaves(state: State, instance: Instance) -> None:
    model = instance.model
    if instance not in model.leaving:
        model.leaving.append(instance)
    if model.instance is instance:
        model.instance = None
    elif model.successor is instance:
        model.successor = None
    model.settle_ladder()
    state.ledger.going(instance.id, state.now)
    state.replan_due = True


# --- gone -------------------------------------------------------------------------------------------------------


def exited(state: State, instance: Instance, failure: Failure | None, log_tail: tuple[str, ...] = ()) -> None:
    """The process is verified gone, told to or not. Its memory counts as being freed until that is verified too."""
    was, moves = instance.state, instance.model.successor is instance
    _move(state, instance, InstanceMove.EXIT)
    instance.exited = True
    _leaves(state, instance)
    figures = {"cause": failure.cause.value} if failure is not None else {}
    state.say_of_instance(LogEvent.EXIT, instance, "P5", **figures)
    if was is not InstanceState.STOPPING:
        instance.release_by = state.now + state.policy.release_timeout_seconds
    elif not instance.restarting or instance.retired is not None:
        return
    _learn(state, instance, failure)
    known = instance.failure  # before its end, whatever that says (D13)
    told = failure or Failure(FailureCause.CRASHED, "the process died or stalled in mid-request", log_tail)
    instance.failure = told if known is None else replace(told, cause=known.cause, message=known.message)
    if moves:  # the one that it was to replace serves on (R9)
        return
    if was is InstanceState.STARTING:
        _failed(state, instance, instance.failure)
    else:
        _died(state, instance, instance.failure, counts=known is not None or not instance.served)


def _died(state: State, instance: Instance, failure: Failure, *, counts: bool) -> None:
    """L6d: it was ready. A first death is begun anew at once; the second in a row that `counts`, and one too many in
    a while, are failed loads. One that had been given up for lost only counts: it was begun anew since, and its end
    says nothing of what has its place, or of the back-off after that."""
    model = instance.model
    model.crashes += counts
    model.deaths.times.append(state.now)
    if instance.lost:
        return
    if model.deaths.too_many(state.now):
        minutes = failures.WINDOW_SECONDS / 60
        often = f"its process died more than {failures.DEATHS} times in {minutes:.0f} min, this time: {failure.message}"
        _failed(state, instance, replace(failure, message=often))
    elif model.crashes >= failures.CRASHES_IN_A_ROW:
        _failed(state, instance, failure)


def _failed(state: State, instance: Instance, failure: Failure) -> None:
    """L6d: its waiting jobs end at once, and new ones are refused until the back-off is over. Those of a family may
    have another variant, which is looked for before plans are made (R10). What failed by a launch that its ladder has
    no more, because file or flags are others by now, or that only a person asked for, says nothing of the next."""
    model = instance.model
    model.failure = failure
    if any(option.key == instance.option.key for option in model.configured.options):
        model.retry_at = state.now + failures.back_off_seconds(failure.cause, model.failures)
        model.failures += 1
        pins.note_failure(model, state.now)
    for record in [each for each in model.queue if each.group is None]:
        waiting.reject(state, record, admission.model_failed(model, state.now), "L6d")
    if model.errand is not None and model.errand.guest is None:
        errands.refuse(state, model, admission.model_failed(model, state.now))


def close_back_off(state: State, model: ModelState) -> None:
    """L6d: a person says that it may be tried, or its file or flags are others: as it was estimated (L6a)."""
    model.failures = model.crashes = 0
    model.deaths.times.clear()
    model.retry_at = model.pin_retry_at = -inf
    model.failure = None
    for option in model.spec.options:
        state.ledger.forget_shortage(option)


def _learn(state: State, instance: Instance, failure: Failure | None) -> None:
    """L6a: it ran out of memory, so what was measured of it is wrong, and what was free is not enough."""
    if failure is None or failure.cause not in (FailureCause.DEVICE_OOM, FailureCause.HOST_OOM):
        return
    option = instance.option
    if state.ledger.forget_measurement(option):
        state.out.append(KeepMeasurement(instance.model.name, option.key, ()))
    short = state.ledger.note_shortage(instance.id, option, on_host=failure.cause is FailureCause.HOST_OOM)
    if short is not None:
        state.say_of_instance(LogEvent.PRESSURE, instance, "L6a", short_on=short.device, free_bytes=short.free_bytes)


def memory_released(state: State, instance: Instance) -> None:
    """L5: its memory is verified back, late or in time."""
    failed = instance.failure is not None
    _move(state, instance, InstanceMove.RELEASE_FAILED if failed else InstanceMove.RELEASE)
    freed_bytes = sum(state.ledger.bytes_of(instance.id).values())
    instance.released = True
    instance.release_by = inf
    state.ledger.release(instance.id, state.now)
    state.say_of_instance(LogEvent.RELEASED, instance, "L5")
    _answer_unloads(state, instance, None, freed_bytes)
    state.replan_due = True
    _forget_if_over(state, instance)


def _answer_unloads(state: State, instance: Instance, rejection: Rejection | None, freed_bytes: int = 0) -> None:
    requests, instance.unload_requests = instance.unload_requests, []
    for request in requests:
        detail = {"model": instance.model.name, "was": "loaded", "instance": instance.id, "freed_bytes": freed_bytes}
        state.out.append(AnswerRequest(request, rejection, detail))


def _forget_if_over(state: State, instance: Instance) -> None:
    if instance.released and not instance.grants:
        state.forget(instance)
        instance.model.leaving.remove(instance)


def give_up_for_lost(state: State, instance: Instance) -> None:
    """L5, R3: the deadline has passed. The bytes no longer count as being freed, and whoever waits is replanned."""
    instance.release_by = inf
    instance.lost = True
    state.touch(instance.model)
    lost_bytes = state.ledger.lose(instance.id)
    state.say_of_instance(LogEvent.PRESSURE, instance, "L5", lost_bytes=lost_bytes, exited=instance.exited)
    if instance.unload_requests:
        _answer_unloads(state, instance, admission.unload_unverified(state, instance))
    state.replan_due = True


# --- read -------------------------------------------------------------------------------------------------------


def device_read(state: State, event: DeviceRead) -> None:
    """L2, L3: take over a reading, and measure what has served on that device."""
    book = state.ledger.books.get(event.device)
    if book is None:
        return
    free_before = book.free_bytes
    state.ledger.read(event, state.now)
    for instance_id in list(book.reservations):
        instance = state.instances[instance_id]
        if not instance.served or instance.exited:
            continue
        measuring.measure(state, instance, event.device)
    if book.pressure or state.pressed:
        state.replan_due = True
    elif state.unplaced or state.groups or state.movable:
        moved_bytes = book.free_bytes != free_before
        if moved_bytes or state.move_waits or any(_waits_for_device(plan) for plan in state.plans):
            state.replan_due = True


def _waits_for_device(plan: Plan) -> bool:
    """L3: whether it fits, and has not begun."""
    return plan.fits_now and plan.want.model.plan is plan
