"""Door 4 itself: what it refuses, what it says, when it wakes, and that its invariants are not asleep."""

import sys

import pytest

from gridsched.core.commands import ArmTimer, Log
from gridsched.core.errors import IllegalMove
from gridsched.core.events import (
    GrantReturned,
    InstanceExited,
    InstanceReady,
    JobAbandoned,
    JobEnded,
    JobSubmitted,
    MemoryReleased,
    SlotSettled,
    StepEnded,
    TimerFired,
)
from gridsched.core.ids import GrantId, InstanceId, JobId, ModelName
from gridsched.core.job import Job, JobClass, JobKind
from gridsched.core.scheduler import Scheduler
from gridsched.core.story import line_of
from tests.stories.world import BACKGROUND, DONE, World, model, option


def warm_world() -> World:
    """A chat model with two slots, warm."""
    world = World((model("m", option(6, 2)), model("low", option(4, 2))))
    world.warm("m", "low", job_class=BACKGROUND)
    return world


@pytest.mark.parametrize(
    "event",
    [
        GrantReturned(GrantId(99)),
        StepEnded(GrantId(99), DONE),
        JobEnded(GrantId(99), DONE),
        InstanceReady(InstanceId(99)),
        InstanceExited(InstanceId(99)),
        MemoryReleased(InstanceId(99)),
    ],
)
def test_an_event_about_what_is_not_there_is_a_bug(event: GrantReturned) -> None:
    """It raises, naming the number."""
    with pytest.raises(IllegalMove, match="99"):
        warm_world().tell(event)


@pytest.mark.parametrize("event", [JobAbandoned(JobId(99)), SlotSettled(GrantId(99)), TimerFired()])
def test_what_may_cross_on_the_way_is_harmless(event: JobAbandoned) -> None:
    """A leaving after a refusal, a settled slot of a dead process, a timer that fires for nothing."""
    assert warm_world().tell(event) == ()


def test_a_job_submitted_twice_is_a_bug_with_its_story() -> None:
    """The exception carries what happened to the job."""
    world = warm_world()
    job = Job(JobId(7), ModelName("m"), JobClass.INTERACTIVE, JobKind.CHAT)
    world.tell(JobSubmitted(job))
    with pytest.raises(IllegalMove, match="submitted twice") as bug:
        world.tell(JobSubmitted(job))
    assert any("dispatch" in line for line in bug.value.story)


def test_an_instance_move_that_the_table_lacks_is_a_bug_with_its_story() -> None:
    """Ready twice, exited twice, released before its exit."""
    world = warm_world()
    instance = world.instance("m")
    with pytest.raises(IllegalMove, match="READY does not allow BECOME_READY") as bug:
        world.tell(InstanceReady(instance))
    assert any("ready" in line for line in bug.value.story)
    with pytest.raises(IllegalMove):
        world.tell(MemoryReleased(instance))
    world.tell(InstanceExited(instance))
    with pytest.raises(IllegalMove, match="exits twice"):
        world.tell(InstanceExited(instance))


def test_a_grant_ends_once() -> None:
    """The second closing event is a bug."""
    world = warm_world()
    job = world.submit("m")
    grant = world.grant(job)
    world.finish(job)
    with pytest.raises(IllegalMove):
        world.tell(JobEnded(grant.id, DONE))


def test_the_timer_is_armed_only_when_its_moment_changes() -> None:
    """A second chat that ends at once moves the tail; one that begins takes it away; a low job adds nothing."""
    world = warm_world()
    chat = world.submit("m")
    assert not [command for command in world.last if isinstance(command, ArmTimer)]
    out = world.finish(chat)
    assert ArmTimer(world.now + 2.0) in out
    assert not [command for command in world.tell(TimerFired()) if isinstance(command, ArmTimer)]
    world.submit("m")
    assert ArmTimer(None) in world.last


def test_time_takes_effect_with_any_event_whose_moment_has_come() -> None:
    """The timer is late: another event at that time does its work."""
    world = warm_world()
    chat = world.submit("m")
    world.finish(chat)
    low = world.submit("low", BACKGROUND)
    world.now += 2.0
    world.tell(JobAbandoned(JobId(12345)))
    assert world.granted_at(low) == world.now


def test_a_line_reads_like_a_sentence() -> None:
    """`dispatch background step 1/32 -> nomic-embed`, with the job's number."""
    world = World((model("embed", option(2)),))
    world.warm("embed", job_class=BACKGROUND)
    world.submit("embed", BACKGROUND, steps=32)
    lines = [line_of(item) for item in world.last if isinstance(item, Log)]
    assert lines[1].startswith("dispatch background job 2 step 1/32 -> embed on gpu0 (S7) queue_ms=0.0")


def test_the_story_of_a_job_and_of_an_instance() -> None:
    """Each tells only what concerns it, with times."""
    world = warm_world()
    job = world.submit("m")
    world.finish(job)
    words = [line.split()[1] for line in world.scheduler.story(job)]
    assert words == ["enqueue", "dispatch", "complete"]
    assert {line.split()[1] for line in world.scheduler.story(instance_id=world.instance("low"))} >= {"load", "ready"}


def test_the_snapshot_is_a_picture_of_everything() -> None:
    """Counts, bytes, slots, tiers, mode."""
    world = warm_world()
    world.submit("m")
    world.submit("m")
    world.submit("m")
    world.submit("low", BACKGROUND)
    picture = world.scheduler.snapshot(world.now)
    assert [picture.queue_lengths[each] for each in JobClass] == [1, 1, 0]
    assert [picture.running[each] for each in JobClass] == [2, 0, 0]
    assert [(view.model, view.slots_busy, view.tier.value) for view in picture.instances] == [
        ("m", 2, "hot"),
        ("low", 0, "cold"),
    ]
    device = picture.devices[0]
    assert device.interactive_mode
    assert device.reserved_bytes == 10 * 10**9
    assert [view.rule for view in world.scheduler.jobs(world.now).waiting] == ["S6", "S4"]


def test_the_snapshot_tells_the_longest_wait_of_each_class() -> None:
    """By place: an embedding's next step has waited since the one before it ended. 0 where nobody waits."""
    world = warm_world()
    busy = [world.submit("m"), world.submit("m")]
    world.advance(1)
    world.submit("m")
    world.advance(2)
    world.submit("low", BACKGROUND)
    world.submit("m")
    world.advance(2)
    longest = world.scheduler.snapshot(world.now).oldest_wait_seconds
    assert [longest[each] for each in JobClass] == [4.0, 2.0, 0.0]
    world.finish(busy[0])
    longest = world.scheduler.snapshot(world.now).oldest_wait_seconds
    assert [longest[each] for each in JobClass] == [2.0, 2.0, 0.0]


def test_a_snapshot_costs_the_same_with_many_waiting() -> None:
    """It calls as many functions with 600 jobs in two queues as with four."""
    world = warm_world()
    calls: list[int] = []

    def cost() -> int:
        calls.clear()
        sys.setprofile(lambda frame, event, arg: calls.append(1) if "call" in event else None)  # noqa: ARG005
        try:
            world.scheduler.snapshot(world.now)
        finally:
            sys.setprofile(None)
        return len(calls)

    for _ in range(3):
        world.submit("m")
    world.submit("low", BACKGROUND)
    few = cost()
    for _ in range(300):
        world.submit("m")
        world.submit("low", BACKGROUND)
    assert cost() == few > 0


def test_a_scheduler_without_checks_is_as_quiet() -> None:
    """Invariants are off by default: they cost more than the decision."""
    scheduler = Scheduler()
    assert scheduler.step(TimerFired(), 0.0) == ()
    assert scheduler.waiting(JobId(1), 0.0) is None
