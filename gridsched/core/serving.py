"""Steps on slots: who is granted, and what the end of a step means (S1 to S4, S6 to S8, P5).

Owns every change to a slot. Must never walk all waiting jobs, nor load anything: where an end makes that necessary it
marks the state for planning.
"""

from math import inf

from gridsched.core import lifecycle, pause
from gridsched.core.commands import Grant, GrantStep, LogEvent
from gridsched.core.job import JobClass, Outcome, OutcomeKind
from gridsched.core.modes import DeviceMode, Turn
from gridsched.core.queues import JobRecord
from gridsched.core.residency import READY, GrantRecord, Instance, ModelState
from gridsched.core.state import State
from gridsched.core.transitions import JOB_MOVES, JobMove, JobState, moved
from gridsched.core.waiting import hold_devices, leave, leave_for_good, lets_go, note_held

DISPATCH = LogEvent.DISPATCH
DONE = OutcomeKind.DONE
INTERACTIVE, BACKGROUND, BATCH = JobClass
GRANT, END, RETURN = JobMove.GRANT, JobMove.END, JobMove.RETURN
"""Members that every event asks for: looking one up in its enum costs more than the comparison."""

TIMES_BESIDE_OTHERS = 10
"""S9: so many times its limit an engine may go on for a client that has left, while it serves others. It may be one
that works to the end of what was asked, as llama-server does beside a stream; a restart would cost the others more."""

# --- granting ---------------------------------------------------------------------------------------------------


def in_ms(seconds: float) -> float:
    """Milliseconds with one decimal; several times as fast as `round`."""
    return int(seconds * 10_000.0 + 0.5) / 10.0


def serve_chats(state: State, model: ModelState) -> None:
    """S7: grant free slots to waiting chats, and let those that still wait hold their devices."""
    chats = model.queue.chats
    instance = model.instance
    if chats and instance is not None and instance.state is READY:
        free = instance.parallel - len(instance.grants)
        while free > 0 and chats and (chat := model.queue.due(INTERACTIVE)) is not None:
            grant(state, instance, chat)
            free -= 1
    hold_devices(state, model)


def serve_low(state: State, model: ModelState) -> None:
    """Grant free slots to low work where no chat keeps it from starting (S4, S6)."""
    instance = model.instance
    if instance is None or instance.state is not READY:
        return
    now = state.now
    if instance.interactive_mode(now):
        return
    queue = model.queue
    background, batch = queue.due(BACKGROUND), queue.due(BATCH)
    for _ in range(instance.low_slots(now)):
        if batch is not None and (background is None or _is_lifted(state, instance, batch, background)):
            grant(state, instance, batch, rule=None if background is None else "S5b")
            batch = queue.due(BATCH)
        elif background is not None:
            grant(state, instance, background)
            background = queue.due(BACKGROUND)
        else:
            return


def _is_lifted(state: State, instance: Instance, batch: JobRecord, background: JobRecord) -> bool:
    """S5b: a batch job that was starved for long competes as background, once in that time on a device. S1 else."""
    if batch.place > background.place or (batch.place == background.place and batch.number > background.number):
        return False
    if batch_lift_at(state, batch, instance.modes) > state.now:
        return False
    for mode in instance.modes:
        mode.batch_lifted_at = state.now
    return True


def batch_lift_at(state: State, batch: JobRecord, modes: tuple[DeviceMode, ...]) -> float:
    """S5b: when a batch job may compete as background on these devices; inf for never."""
    limit_seconds = state.policy.batch_max_starvation_seconds
    if limit_seconds == 0:
        return inf
    since = batch.place
    for mode in modes:
        since = max(since, mode.batch_lifted_at)
    return since + limit_seconds


def grant(
    state: State, instance: Instance, record: JobRecord, turn: Turn | None = None, rule: str | None = None
) -> None:
    """Give a waiting job a slot. It counts as running from here on (S7)."""
    model = instance.model
    job = record.job
    now = state.now
    grant_id = next(state.grant_ids)
    record.state = moved(JOB_MOVES, record.state, GRANT)
    record.grant_id = grant_id
    leave(state, record, model)
    entry = GrantRecord(grant_id, record, instance, now, turn)
    state.grants[grant_id] = instance.grants[grant_id] = entry
    state.counts[job.job_class].running += 1
    if record.chat:
        if instance.paused:
            pause.resume(state, instance, "a chat is served")
        instance.chats += 1
        for mode in instance.modes:
            mode.chats_running += 1
            state.stirred[mode.device] = mode
    else:
        entry.lawful = turn is not None or not instance.interactive_mode(now)
        instance.low += 1
    if instance.id in state.watched and (instance.cause is record or lets_go(state, instance)):
        state.replan_due = True
    if instance.cause is record:
        instance.cause = None
    waited_seconds = now - record.place
    if rule is None:
        rule = "S3" if record.step > 1 else "S7" if waited_seconds == 0 else "S2"
    figures: dict[str, object] = {"queue_ms": in_ms(waited_seconds), "instance": instance.id}
    note_held(record, figures)
    state.say_of_job(DISPATCH, record, rule, figures, instance.device)
    state.out.append(
        GrantStep(Grant(grant_id, job.id, instance.id, model.name, record.step, job.steps, waited_seconds))
    )


# --- ends -------------------------------------------------------------------------------------------------------


def end_job(state: State, entry: GrantRecord, move: JobMove) -> None:
    """The job of a grant is over for its client. A step that ran opens the tail (S4); one that was returned never
    ran. With END_UNSETTLED the slot stays taken until the engine is done (S8)."""
    record = entry.record
    record.state = moved(JOB_MOVES, record.state, move)
    del state.jobs[record.job.id]
    _stop_counting(state, entry, ran=move is not RETURN)
    if move is END or move is RETURN:
        free_slot(state, entry)
    else:
        _await_settling(state, entry)


def _await_settling(state: State, entry: GrantRecord) -> None:
    """S8: the slot stays taken until the engine is done with the step, for a limited time (S9)."""
    instance = entry.instance
    entry.over, entry.left_at = True, state.now
    entry.settle_by = state.now + state.policy.settle_limit_seconds
    instance.settle_by = min(instance.settle_by, entry.settle_by)
    state.touch(instance.model)


def settle(state: State, entry: GrantRecord) -> None:
    """S8: the engine is done with a step that its job was done with before."""
    if not entry.lives_on:
        entry.record.state = moved(JOB_MOVES, entry.record.state, JobMove.SETTLE)
    free_slot(state, entry)
    _next_settling(entry.instance)


def give_up_slots(state: State, instance: Instance) -> None:
    """S9: the engine still works for clients that left long ago. It hangs: those slots are its own affair, and it is
    restarted when the steps of those who are still there have ended. Beside such steps it has more time."""
    beside_others = any(not item.over for item in instance.grants.values())
    times = TIMES_BESIDE_OTHERS if beside_others else 1
    late = [item for item in instance.grants.values() if item.settle_by <= state.now]
    hung = [item for item in late if item.left_at + times * state.policy.settle_limit_seconds <= state.now]
    for entry in late:
        entry.settle_by = state.now + state.policy.settle_limit_seconds
    if hung:
        lifecycle.restart(state, instance, "S9")
    for entry in hung:
        settle(state, entry)
    _next_settling(instance)


def _next_settling(instance: Instance) -> None:
    """When the engine is next looked at for a step that it does not let go of."""
    instance.settle_by = min((item.settle_by for item in instance.grants.values()), default=inf)


def end_step(state: State, entry: GrantRecord, *, settled: bool) -> JobRecord:
    """A step is over and its job stays, in no queue yet: its caller lets it wait again, or rejects it. Not `settled`:
    the engine may still be busy with it, as with one that was taken away (S11)."""
    record = entry.record
    record.state = moved(JOB_MOVES, record.state, JobMove.STEP_END)
    record.grant_id = None
    _stop_counting(state, entry, ran=True)
    if settled:
        free_slot(state, entry)
    else:
        entry.lives_on = True
        _await_settling(state, entry)
    return record


def _stop_counting(state: State, entry: GrantRecord, *, ran: bool) -> None:
    instance = entry.instance
    now = state.now
    if instance.paused:
        pause.resume(state, instance, "a step of it has ended")
    state.counts[entry.record.job.job_class].running -= 1
    if ran and not entry.record.job.looks:
        instance.last_used_at = now
        instance.ttl_seconds = entry.record.job.ttl_seconds
    if not entry.record.chat:
        return
    instance.chats -= 1
    for mode in instance.modes:
        mode.chats_running -= 1
        state.stirred[mode.device] = mode
    if ran:
        instance.hot_until = instance.model.hot_until = now + state.policy.hot_window_seconds
        tail_until = now + state.policy.interactive_cooldown_seconds
        for mode in instance.modes:
            mode.tail_until = tail_until
    if not instance.chats and instance.id in state.watched:
        # It cools from now on (R1), and its turn among other chats may be over (R4b).
        state.plan_wake_at = min(state.plan_wake_at, instance.hot_until)
        state.replan_due = state.replan_due or lets_go(state, instance)


def free_slot(state: State, entry: GrantRecord) -> None:
    """The engine is done with a step: its slot is free, and what waited for that is looked at."""
    instance = entry.instance
    del state.grants[entry.id]
    del instance.grants[entry.id]
    if not entry.record.chat:
        instance.low -= 1
    if entry.turn is not None and entry.turn.step_over(state.now, state.policy.background_share):
        seconds = entry.turn.seconds(state.now)
        instance.model.pace.note_turn(seconds)
        state.say_of_instance(LogEvent.RELIEF, instance, "S5a", turn="over", seconds=round(seconds, 3))
        state.turned.update((mode.device, mode) for mode in entry.turn.modes)
    state.touch(instance.model)
    if not instance.grants:
        lifecycle.became_idle(state, instance)


def note_outcome(state: State, instance: Instance, outcome: Outcome) -> None:
    """What the end of a step says about its process: a dead or stalled one, or one whose device fails, takes no new
    work (P5, S9, D13)."""
    if outcome.kind is DONE:
        model = instance.model
        instance.served = True
        model.crashes = 0
        if model.failures and not model.deaths.too_many(state.now):
            model.failures = 0
    elif outcome.kind is OutcomeKind.ENGINE_DIED:
        lifecycle.restart(state, instance, "P5")
    elif outcome.kind is OutcomeKind.DEVICE_FAULT:
        lifecycle.restart(state, instance, "D13", lifecycle.FAULTY)
    elif outcome.kind is OutcomeKind.STALLED:
        lifecycle.restart(state, instance, "S9")


def abandon(state: State, record: JobRecord) -> None:
    """S8: the client left. A waiting job leaves at once; one whose grant is on its way to it returns the grant."""
    if record.state is JobState.WAITING:
        record.state = moved(JOB_MOVES, record.state, JobMove.ABANDON)
        figures: dict[str, object] = {"waited_s": round(state.now - record.place, 3)}
        note_held(record, figures)
        state.say_of_job(LogEvent.CANCEL, record, "S8", figures)
        leave_for_good(state, record, state.models[record.model])
    elif record.grant_id is not None:
        state.say_of_job(LogEvent.CANCEL, record, "S7")
        end_job(state, state.grants[record.grant_id], JobMove.RETURN)
