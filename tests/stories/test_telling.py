"""What a waiting job is told: where it stands, what holds it, who keeps the memory, and when (S9b)."""

import pytest

from gridsched.core import words
from gridsched.core.commands import LogEvent, RejectionCode
from gridsched.core.policy import Policy
from gridsched.core.snapshot import WaitingView
from tests.stories.world import BACKGROUND, BATCH, CHAT, JobId, World, model, option


def view_of(world: World, job: JobId) -> WaitingView:
    """What a waiting job is told now."""
    view = world.scheduler.waiting(job, world.now)
    assert view is not None
    return view


def loaded(world: World, name: str, step_seconds: float = 2.0) -> None:
    """Have a model loaded by a chat and one step of it measured; its tail is over."""
    world.step_seconds[name] = step_seconds
    world.submit(name)
    world.advance(20 + step_seconds)


def test_S9b_a_second_chat_waits_for_the_rest_of_the_first() -> None:
    """One slot, a step of 2 s, a second of it gone: about one second more."""
    world = World((model("m", option(6, 1)),))
    loaded(world, "m")
    world.submit("m")
    world.advance(1)
    second, third = world.submit("m"), world.submit("m")
    assert view_of(world, second).estimate_seconds == pytest.approx(1.0)
    assert view_of(world, third).estimate_seconds == pytest.approx(3.0)
    world.advance(10)
    assert world.granted_at(second) == world.now - 9


def test_S9b_nothing_is_said_where_nothing_was_measured() -> None:
    """The first step ever runs: nobody knows how long."""
    world = World((model("m", option(6, 1)),))
    world.submit("m")
    world.advance(11)
    assert view_of(world, world.submit("m")).estimate_seconds is None


def test_S9b_a_load_is_waited_for_by_its_measured_time() -> None:
    """10 s as the model says, 4 s gone: six more, in the words of a comment line too."""
    world = World((model("m", option(6, 1)),))
    job = world.submit("m")
    world.advance(4)
    view = view_of(world, job)
    assert view.estimate_seconds == pytest.approx(6.0)
    assert view.loading_seconds == pytest.approx(4.0)
    assert words.short(view) == "loading m (4s)"
    assert words.sentence(view) == "loading m (4s), about 6s"


def test_S9b_low_work_waits_for_the_tail() -> None:
    """The chat is over, its two seconds run: the estimate is exactly what is left of them."""
    world = World((model("m", option(6, 2)),))
    loaded(world, "m")
    world.submit("m")
    world.advance(2.5)
    low = world.submit("m", BACKGROUND)
    assert view_of(world, low).estimate_seconds == pytest.approx(1.5, abs=0.6)
    world.advance(1.5)
    assert world.granted_at(low) == world.now


def test_S9b_relief_comes_after_the_limit_and_in_its_share() -> None:
    """Under a chat that never ends: the first low job at 3 s, the next turn as long after the first as that took."""
    world = World((model("c", option(6, 1)), model("l", option(6, 1))))
    loaded(world, "c")
    loaded(world, "l")
    world.step_seconds.pop("c")
    world.submit("c")
    first, second = world.submit("l", BACKGROUND), world.submit("l", BATCH)
    began = world.now
    assert view_of(world, first).estimate_seconds == pytest.approx(3.0)
    assert view_of(world, second).estimate_seconds == pytest.approx(3.0 + 2 * 2.0)
    world.advance(8)
    assert world.granted_at(first) == began + 3.0
    assert world.granted_at(second) == began + 7.0


def test_S9b_relief_is_foretold_past_who_wants_a_slot_that_people_fill() -> None:
    """Chats have both slots of their model and queue for more: its low job starves longest and has no turn meanwhile,
    so the turns are the others', as foretold."""
    world = World((model("c", option(6, 2)), model("l", option(6, 1))), policy=Policy(relief_slots=1))
    loaded(world, "c")
    loaded(world, "l")
    for _ in range(4):
        world.submit("c")
    for _ in range(40):
        world.advance(1)
        world.submit("c")
    barred, *others = (world.submit(name, BACKGROUND) for name in ("c", "l", "l"))
    foretold = [world.now + (view_of(world, job).estimate_seconds or 0.0) for job in others]
    for _ in range(12):
        world.submit("c")
        world.advance(1)
    assert [world.granted_at(job) for job in others] == pytest.approx(foretold)
    assert world.granted_at(barred) is None


def test_S9b_relief_that_stands_still_is_foretold_with_the_time_it_stands() -> None:
    """With pauses (S10) a turn beside a chat that never ends stands for its whole limit, of which no share is due."""
    policy = Policy(background_pause=True, pause_limit_seconds=3.0)
    world = World((model("c", option(6, 1)), model("l", option(6, 1))), policy=policy)
    loaded(world, "c")
    loaded(world, "l")
    world.step_seconds.pop("c")
    world.submit("c")
    first, second = (world.submit("l", BACKGROUND) for _ in range(2))
    assert view_of(world, first).estimate_seconds == pytest.approx(3.0)
    assert view_of(world, second).estimate_seconds == pytest.approx(3.0 + 3.0 + 2 * 2.0)


def test_S9b_who_keeps_the_memory_is_named_with_the_reason() -> None:
    """A hot model in the way of low work: named, and the moment it cools down is the estimate (B1)."""
    world = World((model("hot", option(12, 1)), model("cold", option(12, 1), load=5.0)))
    loaded(world, "hot")
    low = world.submit("cold", BACKGROUND)
    view = view_of(world, low)
    assert (view.rule, view.estimate_seconds is not None) == ("R1", True)
    assert [(one.model, one.why) for one in view.keepers] == [("hot", ("hot", "idle"))]
    assert "memory: hot 11.2 GiB hot, idle" in words.sentence(view)
    foretold_at = world.now + (view.estimate_seconds or 0)
    world.advance(320)
    granted_at = world.granted_at(low)
    assert granted_at is not None
    assert granted_at == pytest.approx(foretold_at, abs=1.0)


def test_S9b_a_pinned_model_and_programs_outside_are_named_too() -> None:
    """Nothing can be said of when, but who has the memory can."""
    world = World((model("pin", option(8, 1), pinned=True), model("big", option(14, 1))))
    loaded(world, "pin")
    world.read(9.0, {"pin": 8.0})
    low = world.submit("big", BACKGROUND)
    view = view_of(world, low)
    assert view.estimate_seconds is None
    assert [(one.model, one.why[:1]) for one in view.keepers] == [("pin", ("pinned",)), (None, ())]
    assert "programs outside 0.9 GiB" in words.sentence(view)


def test_S9b_explain_knows_a_job_as_long_as_it_lives() -> None:
    """Waiting with its plan, running; over, and what never was, is known to the log alone."""
    world = World((model("a", option(10, 1)), model("b", option(10, 1))))
    loaded(world, "a")
    world.step_seconds.pop("a")
    running = world.submit("a")
    waiting = world.submit("b")
    world.advance(0.5)
    told = world.scheduler.explain(waiting, world.now)
    assert told is not None
    assert told.waiting is not None
    assert told.plan is not None
    assert [(victim.model, victim.steps) for victim in told.plan.victims] == [("a", 1)]
    told = world.scheduler.explain(running, world.now)
    assert told is not None
    assert told.running is not None
    assert told.running.rest_seconds == pytest.approx(1.5)
    assert words.running(told.running).endswith("about 1.5s more")
    world.advance(3.5)
    told = world.scheduler.explain(running, world.now)
    assert told is not None
    assert told.running is not None
    assert words.running(told.running) == "step 1/1 on a for 4s, longer than usual"
    world.finish(running)
    assert world.scheduler.explain(running, world.now) is None
    assert world.scheduler.explain(JobId(999), world.now) is None


def test_A14_low_work_that_nothing_can_be_done_for_is_refused_in_the_end() -> None:
    """L7's "waits with the reason, then refused" has a moment: the class's longest wait, 24 h where nobody says
    otherwise. Until then it is told why, and with no promise of when."""
    world = World((model("pin", option(8, 1), pinned=True), model("big", option(14, 1))))
    loaded(world, "pin")
    low, batch, chat = world.submit("big", BACKGROUND), world.submit("big", BATCH), world.submit("big", CHAT)
    world.advance(11)
    assert world.rejection(chat) is not None
    assert view_of(world, low).rule == "L7"
    began = world.now - 11
    world.advance(24 * 3600 - 12)
    assert world.waits(low)
    assert world.waits(batch)
    world.advance(2)
    for job in (low, batch):
        rejection = world.rejection(job)
        assert rejection is not None
        assert rejection.code is RejectionCode.INSUFFICIENT_VRAM
    assert began + 24 * 3600 <= world.now


def test_A14_every_class_of_low_work_has_a_longest_wait_by_default() -> None:
    """Without one, "every job ends" could not be proven."""
    queues = Policy().queues
    assert queues[BACKGROUND].max_wait_seconds == queues[BATCH].max_wait_seconds == 24 * 3600
    assert queues[CHAT].max_wait_seconds is None


@pytest.mark.parametrize(("older", "younger", "rule"), [(1, 20, "R4b"), (10, 0, "S2")])
def test_S9b_a_chat_is_told_when_its_model_gets_the_card_of_another(older: int, younger: int, rule: str) -> None:
    """The turn of the chats there has to end (R4b), or older ones go first: then the other model stops, and ours
    loads."""
    world = World((model("a", option(10, 1), load=8.0), model("b", option(10, 1), load=4.0)))
    loaded(world, "a", step_seconds=1.0)
    for _ in range(older):
        world.submit("a")
    other = world.submit("b")
    for _ in range(younger):
        world.submit("a")
    began, view = world.now, view_of(world, other)
    assert view.rule == rule
    assert view.estimate_seconds is not None
    world.advance(30)
    granted_at = world.granted_at(other)
    assert granted_at is not None
    assert view.estimate_seconds == pytest.approx(granted_at - began, rel=0.25)


def test_S9b_where_keys_take_turns_the_position_is_that_of_the_turn() -> None:
    """Four of one key came first; the first of another key is second in line, and is told so and served so."""
    world = World((model("m", option(6, 1)),))
    loaded(world, "m")
    world.submit("m", key="a")
    first = [world.submit("m", key="a") for _ in range(3)]
    other = world.submit("m", key="b")
    jobs = world.scheduler.jobs(world.now).waiting
    assert [view.id for view in jobs] == [first[0], other, *first[1:]]
    assert [view.position for view in jobs] == [1, 2, 3, 4]
    foretold = {view.id: world.now + (view.estimate_seconds or 0.0) for view in jobs}
    for view in jobs:
        alone = view_of(world, view.id)
        assert (alone.position, alone.estimate_seconds) == (view.position, view.estimate_seconds)
    world.advance(20)
    assert [world.granted_at(view.id) for view in jobs] == pytest.approx([foretold[view.id] for view in jobs])


def test_S9b_relief_is_foretold_in_the_turns_of_the_keys() -> None:
    """Under a chat that never ends: three of one key wait, then one of another, which has the second turn."""
    world = World((model("c", option(6, 1)), model("l", option(6, 1))))
    loaded(world, "c")
    loaded(world, "l", step_seconds=1.0)
    world.step_seconds.pop("c")
    world.submit("c")
    jobs = [world.submit("l", BACKGROUND, key="a") for _ in range(3)]
    jobs.insert(1, world.submit("l", BACKGROUND, key="b"))
    foretold = [world.now + (view_of(world, job).estimate_seconds or 0.0) for job in jobs]
    world.advance(15)
    assert [world.granted_at(job) for job in jobs] == pytest.approx(foretold)
    assert foretold == sorted(foretold)


def test_S9b_a_leased_device_is_named_with_whom_it_is_leased_to() -> None:
    """What was there has gone, so the lease alone keeps the card; it is no program that somebody could close."""
    world = World((model("m", option(6, 1)),))
    world.lease(owner="training")
    low = world.submit("m", BACKGROUND)
    view = view_of(world, low)
    assert [(one.model, one.device, one.why) for one in view.keepers] == [(None, "gpu0", ("leased to training",))]
    assert "memory: gpu0 14.9 GiB leased to training" in words.sentence(view)
    assert view.estimate_seconds is None


def test_S9b_a_turn_of_unknown_length_leaves_what_comes_after_it_untold() -> None:
    """The first low step ever runs in a turn, with all the time for relief: nobody knows when the next may begin."""
    world = World((model("c", option(6, 1)), model("l", option(6, 1))), policy=Policy(background_share=1.0))
    world.warm("c")
    world.load("l")
    world.advance(20)
    world.submit("c")
    for _ in range(2):
        low = world.submit("l", BACKGROUND)
    world.advance(4)
    assert world.running("l") == 1
    assert view_of(world, low).estimate_seconds is None


def test_S9b_what_held_a_job_is_said_with_the_end_of_its_wait() -> None:
    """By the rule that held it when it came to wait, and in words; of one that began at once nothing."""
    world = World((model("m", option(6, 1)),), policy=Policy(background_max_starvation_seconds=0.0))
    loaded(world, "m")
    chat = world.submit("m")
    low, gone = world.submit("m", BACKGROUND), world.submit("m", BACKGROUND)
    world.leave(gone)
    second = world.submit("m")
    world.advance(20)
    told = {log.job_id: log.figures for _, log in world.logged(LogEvent.DISPATCH)}
    assert "held" not in told[chat]
    assert (told[low]["held"], told[second]["held"]) == ("S6", "S6")
    assert told[low]["why"] == "all 1 slots of m are busy"
    (cancelled,) = (log for _, log in world.logged(LogEvent.CANCEL))
    assert (cancelled.job_id, cancelled.figures["held"]) == (gone, "S6")
    after = world.submit("m")
    world.advance(2.5)
    waits = world.submit("m", BACKGROUND)
    world.advance(20)
    told = {log.job_id: log.figures for _, log in world.logged(LogEvent.DISPATCH)}
    assert (told[waits]["held"], told[waits]["why"]) == ("S4", "people chat on gpu0")
    assert "held" not in told[after]
