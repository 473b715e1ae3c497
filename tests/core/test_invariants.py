"""Each invariant is trusted because it has caught a planted bug."""

from collections.abc import Callable

import pytest

from gridsched.core.errors import InvariantViolation
from gridsched.core.ids import DeviceName, InstanceId, JobId, ModelName
from gridsched.core.instance import InstanceState
from gridsched.core.invariants import INVARIANTS, check
from gridsched.core.job import JobClass
from gridsched.core.losses import Loss
from gridsched.core.modes import DeviceMode, Turn
from gridsched.core.placement import Plan, Want
from gridsched.core.residency import Instance, Lease, LeaseWish, ModelState
from gridsched.core.state import State
from gridsched.core.transitions import LeaseState
from tests.stories.world import BACKGROUND, World, model, option


def busy_state() -> State:
    """Two chats run, one waits; two low jobs wait, held by them."""
    world = World((model("m", option(6, 2)), model("low", option(4, 2))))
    world.warm("m", "low", job_class=BACKGROUND)
    for _ in range(3):
        world.submit("m")
    for _ in range(2):
        world.submit("low", BACKGROUND)
    check(world.scheduler)
    return world.scheduler.state


def parts(state: State) -> tuple[Instance, ModelState, DeviceMode]:
    """The chat's instance, the low model, the card's mode."""
    instance = state.models[ModelName("m")].instance
    assert instance is not None
    return instance, state.models[ModelName("low")], state.modes[DeviceName("gpu0")]


def stopped_with_steps(state: State) -> None:
    """INV-1."""
    parts(state)[0].state = InstanceState.STOPPING


def slots_miscounted(state: State) -> None:
    """INV-2."""
    parts(state)[0].chats = 1


def memory_given_away(state: State) -> None:
    """INV-3."""
    state.ledger.release(parts(state)[0].id, state.now)


def instance_forgotten(state: State) -> None:
    """INV-4."""
    parts(state)[1].instance = None


def job_forgotten(state: State) -> None:
    """INV-5."""
    state.jobs.popitem()


def chat_counted_twice(state: State) -> None:
    """INV-6."""
    parts(state)[2].chats_running += 1


def low_step_slipped_in(state: State) -> None:
    """INV-7."""
    for entry in state.grants.values():
        entry.record.chat = entry.lawful = False


def queue_jumped(state: State) -> None:
    """INV-8."""
    queue = parts(state)[1].queue.background
    queue.move_to_end(next(iter(queue)))


def slot_left_empty(state: State) -> None:
    """INV-9."""
    parts(state)[0].grants.popitem()


def turn_without_steps(state: State) -> None:
    """INV-10."""
    instance, _, mode = parts(state)
    mode.turn = Turn(instance.id, (mode,), 0.0, 1, 1)


def two_low_loads(state: State) -> None:
    """INV-11."""
    for item in state.instances.values():
        item.state = InstanceState.STARTING
        item.cause_class = JobClass.BATCH


def drained_for_nobody(state: State) -> None:
    """INV-12."""
    parts(state)[0].state = InstanceState.DRAINING


def greedy_plan(state: State) -> None:
    """INV-13."""
    low = parts(state)[1]
    record = state.jobs[max(state.jobs)]
    plan = Plan(
        Want(low, record, record.job.job_class, record.rank, None, record.job.job_class),
        low.spec.options[0],
        ((DeviceName("gpu0"), 10**12),),
    )
    low.plan = plan
    state.plans = [plan]


def stands_while_it_serves_chats(state: State) -> None:
    """INV-14."""
    parts(state)[0].paused = True


def aimed_past_its_queue(state: State) -> None:
    """INV-15."""
    next(iter(parts(state)[1].queue)).model = ModelName("m")


def hot_model_given_away(state: State) -> None:
    """INV-16."""
    greedy_plan(state)
    (plan,) = state.plans
    plan.needs = ()
    plan.victims = (parts(state)[0],)


def load_forgotten(state: State) -> None:
    """INV-17."""
    model = parts(state)[1]
    assert model.instance is not None
    model.instance.restarting = True


def timer_left_behind(state: State) -> None:
    """INV-18."""
    state.wake_at = state.now


def leased_device_used(state: State) -> None:
    """INV-19."""
    gpu = DeviceName("gpu0")
    state.leases[gpu] = Lease(gpu, "somebody", LeaseWish(None), None, LeaseState.HELD)


def pin_forgotten(state: State) -> None:
    """INV-20."""
    state.models[ModelName("down")] = ModelState(model("down", option(1), pinned=True))


def moment_forgotten(state: State) -> None:
    """INV-21."""
    parts(state)[0].settle_by = state.now + 1.0


def started_on_a_lost_device(state: State) -> None:
    """INV-22."""
    state.lost[DeviceName("gpu0")] = Loss(state.now, "GPU is lost", InstanceId(0))


BUGS: tuple[Callable[[State], None], ...] = (
    stopped_with_steps,
    slots_miscounted,
    memory_given_away,
    instance_forgotten,
    job_forgotten,
    chat_counted_twice,
    low_step_slipped_in,
    queue_jumped,
    slot_left_empty,
    turn_without_steps,
    two_low_loads,
    drained_for_nobody,
    greedy_plan,
    stands_while_it_serves_chats,
    aimed_past_its_queue,
    hot_model_given_away,
    load_forgotten,
    timer_left_behind,
    leased_device_used,
    pin_forgotten,
    moment_forgotten,
    started_on_a_lost_device,
)


@pytest.mark.parametrize("number", range(1, len(INVARIANTS) + 1))
def test_every_invariant_catches_a_planted_bug(number: int) -> None:
    """INV-n, by the n-th bug."""
    state = busy_state()
    BUGS[number - 1](state)
    with pytest.raises(InvariantViolation, match=f"INV-{number}:"):
        INVARIANTS[number - 1](state)


def settled_in_secret(state: State) -> None:
    """INV-2: a step that is over whose job goes on."""
    entry = next(iter(state.grants.values()))
    entry.over = True
    entry.instance.chats -= 1


def held_without_a_plan(state: State) -> None:
    """INV-6: a chat in back-off that holds the card (A4)."""
    instance = parts(state)[0]
    instance.model.instance = None


def unloaded_by_nobody(state: State) -> None:
    """INV-18: it is idle for longer than it is kept."""
    instance = parts(state)[0]
    state.wakes.set(instance.id, state.now - 1.0, state.now)


@pytest.mark.parametrize(
    ("number", "bug"), [(2, settled_in_secret), (6, held_without_a_plan), (18, unloaded_by_nobody)]
)
def test_an_invariant_with_two_sides_catches_a_bug_on_either(number: int, bug: Callable[[State], None]) -> None:
    """The other one of each."""
    state = busy_state()
    bug(state)
    with pytest.raises(InvariantViolation, match=f"INV-{number}:"):
        INVARIANTS[number - 1](state)


def test_a_violation_tells_the_story_of_whom_it_concerns() -> None:
    """What happened to the instance that stops with steps in flight."""
    state = busy_state()
    stopped_with_steps(state)
    with pytest.raises(InvariantViolation, match="INV-1") as bug:
        INVARIANTS[0](state)
    assert any("dispatch" in line for line in bug.value.story)
    assert JobId(1) not in state.jobs
