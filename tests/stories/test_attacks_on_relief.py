"""Event sequences that broke an earlier draft of relief: who counts as starved, and what a turn is."""

from itertools import pairwise

import pytest

from gridsched.core.commands import LogEvent
from gridsched.core.ids import DeviceName
from gridsched.core.policy import Policy
from tests.stories.world import BACKGROUND, BATCH, World, model, option


def under_constant_chat(**policy: float) -> World:
    """A chat that does not end, and two low models of which each step takes a second."""
    world = World(
        (model("chat", option(6, 2)), model("low", option(4, 8)), model("other", option(2, 8))),
        step_seconds={"low": 1.0, "other": 1.0},
        policy=Policy(**policy),  # type: ignore[arg-type]  # figures by name
    )
    world.warm("chat", "low", "other", job_class=BACKGROUND)
    world.submit("chat")
    return world


def test_B6_waiting_for_the_turn_or_for_a_class_starves_like_waiting_for_a_chat() -> None:
    """One batch job and then eight background jobs, one step a turn: the batch job is the longest starved and goes
    first, and each of the others goes in the order of its arrival, none of them counted anew for what held it."""
    world = under_constant_chat(relief_slots=1)
    batch = world.submit("other", BATCH)
    asked_at = world.now
    world.advance(0.5)
    jobs = [world.submit("low", BACKGROUND) for _ in range(8)]
    world.advance(30.0)
    starts = [world.granted_at(job) or 0.0 for job in (batch, *jobs)]
    assert starts[0] == asked_at + 3.0
    gaps = [later - earlier for earlier, later in pairwise(starts)]
    assert gaps == pytest.approx([2.0] * 8)  # a turn of a second, and a second of rest


def test_B6_the_clock_is_the_arrival_or_the_last_steps_end_whatever_came_between() -> None:
    """The chats pause for a moment and come back, another turn is given, a reading comes: the job's 3 s go on."""
    world = under_constant_chat()
    job = world.submit("low", BACKGROUND)
    asked_at = world.now
    world.advance(1.0)
    world.submit("other", BACKGROUND)
    second_chat = world.submit("chat")
    world.advance(1.0)
    world.finish(second_chat)
    world.read(12, {"chat": 6, "low": 4, "other": 2})
    world.advance(1.0)
    assert world.granted_at(job) == asked_at + 3.0


def test_B7_background_has_relief_and_batch_its_lift_and_neither_skips_the_share() -> None:
    """A batch job that has starved for minutes, beside background that has turns: its step is one of the turns."""
    world = under_constant_chat(relief_slots=1)
    for _ in range(200):
        world.submit("low", BACKGROUND)
    world.submit("low", BATCH)
    world.advance(200.0)
    starts = sorted(at for at, log in world.logged(LogEvent.DISPATCH) if log.rule in ("S5", "S5b"))
    assert len(starts) > 90
    assert all(later - earlier >= 2.0 for earlier, later in pairwise(starts))


def test_C11_a_turn_of_four_steps_costs_the_share_what_a_turn_of_one_does() -> None:
    """Four steps side by side of a second each, then a second of rest, not four: turns are counted and not steps."""
    for jobs in (1, 4):
        world = under_constant_chat()
        for _ in range(jobs):
            world.submit("low", BACKGROUND)
        asked_at = world.now
        world.advance(3.5)
        assert world.logged(LogEvent.RELIEF)[0][0] == asked_at + 3.0
        late = world.submit("other", BACKGROUND)
        world.advance(0.5)
        assert world.scheduler.state.modes[DeviceName("gpu0")].next_turn_at == asked_at + 5.0
        world.advance(2.5)
        assert world.granted_at(late) == asked_at + 6.5


def test_C11_a_share_of_all_leaves_no_rest() -> None:
    """1.0: the next turn begins with the end of the last."""
    world = under_constant_chat(background_share=1.0)
    jobs = [world.submit("low", BACKGROUND) for _ in range(12)]
    asked_at = world.now
    world.advance(10.0)
    assert sorted({(world.granted_at(job) or 0.0) - asked_at for job in jobs}) == [3.0, 4.0, 5.0]
