"""What must hold after every step, numbered as in `core/README.md`.

Owns the checks and nothing else: each recounts from the records what the state keeps as a figure. Must never repair.
Raises InvariantViolation with the story of what it concerns. INV-1 and INV-3 are also enforced where the decision is
made, in `lifecycle.stop` and `Ledger.reserve`.
"""

from collections import Counter, defaultdict
from collections.abc import Callable
from itertools import pairwise
from math import inf
from typing import TYPE_CHECKING, NoReturn

from gridsched.core import ahead
from gridsched.core.errors import InvariantViolation
from gridsched.core.families import qualifying
from gridsched.core.ids import DeviceName, InstanceId, JobId, ModelName
from gridsched.core.instance import InstanceState
from gridsched.core.job import JobClass
from gridsched.core.keys import Lines
from gridsched.core.placement import Plan
from gridsched.core.queues import CLASSES, ModelQueue
from gridsched.core.residency import Instance, ModelState
from gridsched.core.state import State
from gridsched.core.transitions import JobState, LeaseState

if TYPE_CHECKING:  # the door imports the checks
    from gridsched.core.scheduler import Scheduler

HERE = (InstanceState.STARTING, InstanceState.READY, InstanceState.DRAINING)
TOLD = (InstanceState.STOPPING, InstanceState.STOPPED)


def check(scheduler: "Scheduler") -> None:
    """Check all of them."""
    for invariant in INVARIANTS:
        invariant(scheduler.state)


def broken(
    state: State, number: int, message: str, *, job: JobId | None = None, instance: InstanceId | None = None
) -> NoReturn:
    """Raise the violation, with the story of what it concerns."""
    raise InvariantViolation(f"INV-{number}: {message}", state.story.of(job, instance))


def inv_1_no_stop_with_steps_in_flight(state: State) -> None:
    """R2: a process that was told to stop has no step in flight, unless it was dead before or a person forced it."""
    for item in state.instances.values():
        if item.grants and item.state in TOLD and not (item.exited or item.forced):
            broken(state, 1, f"instance {item.id} stops with {len(item.grants)} steps in flight", instance=item.id)


def inv_2_slots(state: State) -> None:
    """S6: no instance has more steps than slots, and all counts of slots agree."""
    outstanding = 0
    for item in state.instances.values():
        outstanding += len(item.grants)
        chats = low = 0
        for entry in item.grants.values():
            if not entry.record.chat:
                low += 1
            elif not entry.over:
                chats += 1
        if len(item.grants) > item.option.parallel or (chats, low) != (item.chats, item.low):
            broken(state, 2, f"instance {item.id}: {len(item.grants)} steps, counted {chats}+{low}", instance=item.id)
    for entry in state.grants.values():
        if entry.lives_on and (not entry.over or entry.record.grant_id == entry.id):
            broken(state, 2, f"grant {entry.id} is over for its job and runs it", job=entry.record.job.id)
        if entry.over and not entry.lives_on and entry.record.state is not JobState.SETTLING:
            broken(state, 2, f"grant {entry.id} is over, its job goes on", job=entry.record.job.id)
    if outstanding != len(state.grants):
        broken(state, 2, f"{len(state.grants)} grants are outstanding, {outstanding} are on instances")


def inv_3_ledger_mirrors_instances(state: State) -> None:
    """L1: each instance reserves on exactly its devices until its memory is back, and nobody else reserves; the sums
    that are kept are right."""
    for name, book in state.ledger.books.items():
        reserved = going = lost = 0
        for instance_id, page in book.reservations.items():
            reserved += page.bytes
            if page.lost:
                lost += page.bytes
            elif page.going:
                going += page.bytes
            holder = state.instances.get(instance_id)
            if holder is None or holder.released:
                broken(state, 3, f"{name} holds memory for instance {instance_id}, which is gone")
        usable = book.spec.total_bytes - book.spec.headroom_bytes
        free = usable - book.external_bytes - reserved
        if (going, lost, usable, free) != (book.going_bytes, book.lost_bytes, book.usable_bytes, book.free_bytes):
            broken(state, 3, f"the sums of {name} are not what it holds")
    for item in state.instances.values():
        for device in item.devices if not item.released else ():
            held = state.ledger.books.get(device)
            if held is None or item.id not in held.reservations:
                broken(state, 3, f"instance {item.id} holds nothing on {device}", instance=item.id)


def inv_4_single_flight(state: State) -> None:
    """S6c, P1, R9: at most one instance of a model starts, serves or drains; beside one that serves a successor may
    start."""
    moving = [model.successor for model in state.models.values() if model.successor is not None]
    for item in moving:
        old = item.model.instance
        if item.state is not InstanceState.STARTING or old is None or old.state is not InstanceState.READY:
            broken(state, 4, f"instance {item.id} is to take the place of none that serves", instance=item.id)
    moves = {item.id for item in moving}
    here: set[ModelName] = set()
    for item in state.instances.values():
        if item.state not in HERE or item.id in moves:
            continue
        name = item.model.name
        if name in here:
            broken(state, 4, f"{name} has two instances", instance=item.id)
        here.add(name)
    for name, model in state.models.items():
        if (model.instance is not None) != (name in here):
            broken(state, 4, f"{name} is not said to have the instance that it has")


def inv_5_every_job_is_in_one_place(state: State) -> None:
    """Every living job waits in exactly one queue or has exactly one grant; all counts of jobs agree."""
    queued: set[JobId] = set()
    waiting, running = [0, 0, 0], [0, 0, 0]
    for name, model in state.models.items():
        queue = model.queue
        lengths = [len(jobs) for jobs in queue.by_class]
        count = sum(lengths)
        if (count, count - lengths[0]) != (queue.count, queue.low) or (count > 0) != (name in state.waiting_models):
            broken(state, 5, f"the counts of {name}'s queue are wrong")
        if count:
            waiting = [one + more for one, more in zip(waiting, lengths, strict=True)]
            _see_queued(state, queue, queued)
    for job_id, record in state.jobs.items():
        runs = record.grant_id in state.grants
        if runs == (job_id in queued) or runs != (record.state is JobState.RUNNING):
            broken(state, 5, f"job {job_id} is {record.state.name}, running: {runs}", job=job_id)
    for entry in state.grants.values():
        if not entry.over:
            running[entry.record.job.job_class] += 1
    for each, kept in zip(CLASSES, state.counts, strict=True):
        of_key = Counter(state.jobs[job].job.key for job in queued if state.jobs[job].job.job_class is each)
        del of_key[""]
        if (waiting[each], running[each], of_key) != (kept.waiting, kept.running, kept.of_key):
            broken(state, 5, f"the counts of {each.label} are wrong")


def _see_queued(state: State, queue: ModelQueue, queued: set[JobId]) -> None:
    """Add a queue's jobs to those seen in the others."""
    for record in queue:
        job_id = record.job.id
        if record.state is not JobState.WAITING or job_id in queued or job_id not in state.jobs:
            broken(state, 5, f"job {job_id} is queued and {record.state.name}", job=job_id)
        queued.add(job_id)


def inv_6_modes_count_chats(state: State) -> None:
    """S4: each device counts exactly the chats that run on it and the models whose chats hold it."""
    running: defaultdict[DeviceName, int] = defaultdict(int)
    holding: defaultdict[DeviceName, int] = defaultdict(int)
    for item in state.instances.values():
        for mode in item.modes:
            running[mode.device] += item.chats
    for model in state.models.values():
        for mode in model.held:
            holding[mode.device] += 1
        if model.held and not (model.queue.chats and _may_hold(model)):
            broken(state, 6, f"{model.spec.name} holds devices for nobody")
    for device, mode in state.modes.items():
        if (mode.chats_running, mode.chats_waiting) != (running[device], holding[device]):
            broken(state, 6, f"{device} counts {mode.chats_running} chats that run, {mode.chats_waiting} that wait")


def _may_hold(model: ModelState) -> bool:
    """A4: a slot, a load or a live plan to wait for."""
    instance = model.instance
    if instance is not None and instance.state in (InstanceState.STARTING, InstanceState.READY):
        return model.held == instance.modes
    return model.plan is not None and model.plan.live and model.held == model.plan.modes


def inv_7_no_low_step_begins_under_a_chat(state: State) -> None:
    """S4: a low step was granted outside interactive mode, or in a turn."""
    for entry in state.grants.values():
        if not entry.record.chat and not entry.lawful:
            broken(state, 7, f"grant {entry.id} was given in interactive mode", job=entry.record.job.id)


def inv_8_queues_are_in_order(state: State) -> None:
    """S2: within a class and model the places ascend; so do they, and the turns, within a key where keys take turns."""
    for model in state.waiting_models.values():
        for each, queue in zip(CLASSES, model.queue.by_class, strict=True):
            if len(queue) > 1 and any(one.rank > other.rank for one, other in pairwise(queue.values())):
                broken(state, 8, f"{each.label} jobs of {model.spec.name} are out of order")
            if model.queue.lines is not None and not _in_turn(model.queue.lines[each], len(queue)):
                broken(state, 8, f"{each.label} jobs of {model.spec.name} are out of turn")


def _in_turn(lines: Lines, count: int) -> bool:
    """Whether the lines of the keys hold so many jobs, each in the order of its places and its turns."""
    for line in lines.by_key.values():
        count -= len(line)
        if not line or any(a.rank > b.rank or a.turn > b.turn for a, b in pairwise(line.values())):
            return False
    return count == 0


def inv_9_nobody_waits_for_nothing(state: State) -> None:
    """S6b, S7: where a job waits, the ready instance of its model has no slot for it."""
    for model in state.waiting_models.values():
        item = model.instance
        if item is None or item.state is not InstanceState.READY:
            continue
        if model.queue.chats and item.free_slots() > 0:
            broken(state, 9, f"a chat waits beside a free slot of {model.spec.name}", instance=item.id)
        if model.queue.low and item.low_slots(state.now) > 0 and not item.interactive_mode(state.now):
            broken(state, 9, f"low work waits beside a free slot of {model.spec.name}", instance=item.id)


def inv_10_turns(state: State) -> None:
    """S5: a device has at most one turn, no longer than allowed, and a turn ends with its last step."""
    outstanding: defaultdict[int, int] = defaultdict(int)
    for entry in state.grants.values():
        if entry.turn is not None:
            outstanding[id(entry.turn)] += 1
    turns = set()
    for mode in state.modes.values():
        turn = mode.turn
        if turn is None:
            continue
        turns.add(id(turn))
        if outstanding[id(turn)] != turn.outstanding or not turn.outstanding:
            broken(state, 10, f"the turn on {mode.device} counts wrong", instance=turn.instance_id)
    if outstanding.keys() - turns:
        broken(state, 10, "a relief step runs in no device's turn")


def inv_11_loads(state: State) -> None:
    """L6: one low load at a time, one interactive beside it."""
    starting = [
        item
        for item in state.instances.values()
        if item.state is InstanceState.STARTING and item.model.successor is not item
    ]
    low = sum(1 for item in starting if item.cause_class != JobClass.INTERACTIVE)
    if low > 1 or len(starting) - low > 1:
        broken(state, 11, f"{low} low and {len(starting) - low} interactive loads at once")


def inv_12_drains_are_for_somebody(state: State) -> None:
    """R1, R2, S6c: what drains is a live plan's victim or restarts, and no pinned model drains for a plan."""
    needed = {victim.id for plan in state.plans if plan.live for victim in plan.victims}
    for item in state.instances.values():
        if item.state is not InstanceState.DRAINING or item.restarting or state.draining:
            continue
        if item.id not in needed or item.model.pinned:
            broken(state, 12, f"instance {item.id} drains for nobody", instance=item.id)
        if not item.grants:
            broken(state, 12, f"instance {item.id} drains with nothing to wait for", instance=item.id)


def inv_13_claims_are_disjoint(state: State) -> None:
    """S2, L1: live plans that have not begun claim, all together, no more than is free, being freed, or
    their victims'."""
    open_plans = [plan for plan in state.plans if plan.live and plan.want.model.plan is plan]
    if not open_plans:
        return
    for name, book in state.ledger.books.items():
        claimed = sum(need for plan in open_plans for device, need in plan.needs if device == name)
        leaving = sum(item.bytes for item_id, item in book.reservations.items() if _leaves(state, open_plans, item_id))
        if claimed > max(0, book.free_bytes + leaving):
            broken(state, 13, f"plans claim {claimed} bytes of {name}, {book.free_bytes + leaving} will be free")


def inv_14_what_stands_is_needed_by_nobody(state: State) -> None:
    """S10: a process that stands serves low steps and nothing else, none of them over or being taken away, and stands
    for a chat that generates on a device of it."""
    for item in state.instances.values():
        if not item.paused:
            continue
        steps = item.grants.values()
        only_low = bool(steps) and not any(step.record.chat or step.over or step.aborting for step in steps)
        if item.state is not InstanceState.READY or state.draining or item.model.queue.chats or not only_low:
            broken(state, 14, f"instance {item.id} stands and is needed", instance=item.id)
        if not any(mode.chats_running for mode in item.modes):
            broken(state, 14, f"instance {item.id} stands for nobody", instance=item.id)


def _leaves(state: State, plans: list[Plan], instance_id: InstanceId) -> bool:
    item: Instance = state.instances[instance_id]
    victim = any(item is other for plan in plans for other in plan.victims)
    return not item.lost and (item.state is InstanceState.STOPPING or item.restarting or victim)


def inv_15_families(state: State) -> None:
    """R10: a waiting job of a family stands in exactly one queue, that of a variant which will do, with its group."""
    for key, group in state.groups.items():
        names = [each.model for each in qualifying(group.family, key[2], key[3])]
        if not group.waiting or group.model.name not in names or group.family.name not in state.families:
            broken(state, 15, f"{len(group.waiting)} jobs for {key[0]} are aimed at {group.model.name}")
        for record in group.waiting.values():
            if record.group is not group or record.model != group.model.name:
                broken(state, 15, f"job {record.job.id} is not where its group is", job=record.job.id)
    grouped = 0
    for model in state.waiting_models.values():
        for record in model.queue:
            grouped += record.group is not None
            if record.model != model.name:
                broken(state, 15, f"job {record.job.id} waits at {model.name}", job=record.job.id)
    if grouped != sum(len(group.waiting) for group in state.groups.values()):
        broken(state, 15, "groups count jobs that do not wait")


def inv_16_low_work_evicts_cold_models(state: State) -> None:
    """R1: nothing that is pinned goes for a plan once it is loaded (C3), nothing that is hot for low work, unless it
    may yield."""
    yielding = state.policy.hot_yield_after_seconds is not None
    for plan in state.plans:
        for victim in plan.victims if plan.live else ():
            hot = victim.hot(state.now) and not plan.want.chat and not yielding
            pinned = victim.model.pinned and victim.ready_at < inf  # a load that was aborted is no pin's yet
            if pinned or hot:
                broken(state, 16, f"{victim.model.name} would go for {plan.want.model.name}", instance=victim.id)


def inv_17_who_waits_for_a_load_has_a_plan_or_a_reason(state: State) -> None:
    """S9b, S7: no job is forgotten: one that needs a load has a plan, or an obstacle that can be told."""
    for model in state.wanted_models().values():
        if model.unplaced() and not state.draining and (model.plan is None) == (model.obstacle is None):
            broken(state, 17, f"{model.name} is waited for, with a plan: {model.plan is not None}, and as much reason")


def inv_18_the_armed_moment_lies_ahead(state: State) -> None:
    """S7: what was due has been done, whoever found it due; a timer in the past would be a poll, or never ring."""
    if state.wake_at <= state.now:
        broken(state, 18, f"the timer stands at {state.wake_at:.6f}, now is {state.now:.6f}")
    for instance_id in state.wakes.come:
        broken(state, 18, f"the moment of instance {instance_id} has come and nobody acts on it", instance=instance_id)


def inv_19_leases(state: State) -> None:
    """R8: nothing of ours starts, serves or drains on a device that a lease holds."""
    for name, lease in state.leases.items():
        if lease.state is not LeaseState.HELD:
            continue
        for instance_id in state.ledger.books[name].reservations:
            if state.instances[instance_id].state in HERE:
                broken(state, 19, f"instance {instance_id} is on {name}, which is leased", instance=instance_id)


def inv_20_errands(state: State) -> None:
    """R7: an errand is for a model that is not ready, and a pinned model that is not there has one, or waits for its
    next try."""
    for name, model in state.models.items():
        if (model.errand is not None) is not (name in state.errands):
            broken(state, 20, f"{name} has an errand that nobody plans, or none that is planned")
        instance = model.instance
        if model.errand is not None and instance is not None and instance.state is InstanceState.READY:
            broken(state, 20, f"{name} is ready and its errand is not over", instance=instance.id)
        down = model.pinned and not model.removed and instance is None and not state.draining
        if down and model.errand is None and model.pin_retry_at <= state.now:
            broken(state, 20, f"{name} is pinned and down, and nobody brings it back")


def inv_21_moments_are_right(state: State) -> None:
    """S7: what is remembered of when time changes something is what would be found now."""
    for item in state.instances.values():
        if (state.wakes.at(item.id), state.reliefs.at(item.id)) != ahead.moments(state, item):
            broken(state, 21, f"instance {item.id} is looked at at the wrong time", instance=item.id)
        if (len(item.modes) > 1) is not (item.id in state.spanning):
            broken(state, 21, f"instance {item.id} is counted among the wrong ones", instance=item.id)
    for mode in state.modes.values():
        if state.tails.at(mode.device) != ahead.tail_at(mode, state.now):
            broken(state, 21, f"{mode.device} is looked at at the wrong time")


def inv_22_nothing_starts_on_a_lost_device(state: State) -> None:
    """D6: what is on a device that does not answer was started before it was lost."""
    for name, loss in state.lost.items():
        for instance in state.instances_on(name):
            if instance.id > loss.last:
                broken(state, 22, f"instance {instance.id} was started on {name}, which is lost", instance=instance.id)


INVARIANTS: tuple[Callable[[State], None], ...] = (
    inv_1_no_stop_with_steps_in_flight,
    inv_2_slots,
    inv_3_ledger_mirrors_instances,
    inv_4_single_flight,
    inv_5_every_job_is_in_one_place,
    inv_6_modes_count_chats,
    inv_7_no_low_step_begins_under_a_chat,
    inv_8_queues_are_in_order,
    inv_9_nobody_waits_for_nothing,
    inv_10_turns,
    inv_11_loads,
    inv_12_drains_are_for_somebody,
    inv_13_claims_are_disjoint,
    inv_14_what_stands_is_needed_by_nobody,
    inv_15_families,
    inv_16_low_work_evicts_cold_models,
    inv_17_who_waits_for_a_load_has_a_plan_or_a_reason,
    inv_18_the_armed_moment_lies_ahead,
    inv_19_leases,
    inv_20_errands,
    inv_21_moments_are_right,
    inv_22_nothing_starts_on_a_lost_device,
)
"""In the order of their numbers."""
