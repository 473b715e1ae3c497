"""S5 and S5a: what low work gets while people chat without end."""

import pytest

from gridsched.core.commands import LogEvent
from gridsched.core.ids import JobId
from gridsched.core.policy import Policy
from tests.stories.world import BACKGROUND, BATCH, World, model, option, spanning


def constant_chat(world: World, name: str = "chat") -> JobId:
    """A chat that does not end by itself: its device is in interactive mode from now on."""
    return world.submit(name)


def chat_and_low(low_slots: int = 8, step_seconds: float = 1.0, **policy: float) -> World:
    """A chat model, and a low one that is warm; both fit."""
    world = World(
        (model("chat", option(6, 2)), model("low", option(4, low_slots)), model("other", option(2, 8))),
        step_seconds={"low": step_seconds, "other": step_seconds},
        policy=Policy(**policy),  # type: ignore[arg-type]  # figures by name
    )
    world.warm("chat", "low", "other", job_class=BACKGROUND)
    return world


def test_S5_relief_comes_after_three_seconds_of_starvation() -> None:
    """Under constant chat a low job stands for 3 s, to the moment, then has a turn."""
    world = chat_and_low()
    constant_chat(world)
    world.advance(1.0)
    job = world.submit("low", BACKGROUND)
    asked_at = world.now
    world.advance(2.99)
    assert world.waits(job)
    world.advance(0.01)
    assert world.granted_at(job) == asked_at + 3.0
    assert world.logged(LogEvent.DISPATCH)[-1][1].rule == "S5"


def test_S5_a_turn_takes_up_to_four_slots_in_one_decision() -> None:
    """Ten starved jobs, eight free slots: four run, the rest wait for the next turn."""
    world = chat_and_low()
    constant_chat(world)
    jobs = [world.submit("low", BACKGROUND) for _ in range(10)]
    world.advance(3.0)
    assert [world.granted_at(job) == world.now for job in jobs] == [True] * 4 + [False] * 6
    assert world.running("low") == 4


def test_S5a_turns_take_at_most_their_share() -> None:
    """Share 0.5, steps of 1 s: a turn, a second of rest, a turn; at a share of 0.25 three seconds of rest."""
    for share, rest in ((0.5, 1.0), (0.25, 3.0)):
        world = chat_and_low(background_share=share)
        constant_chat(world)
        jobs = [world.submit("low", BACKGROUND) for _ in range(12)]
        asked_at = world.now
        world.advance(30.0)
        starts = sorted({(world.granted_at(job) or 0.0) - asked_at for job in jobs})
        assert starts == [3.0, 3.0 + (1.0 + rest), 3.0 + 2 * (1.0 + rest)]


def test_S5a_a_turn_is_as_long_as_its_longest_step() -> None:
    """Two steps of a turn, 1 s and 2 s: the next turn waits for 2 s after the second has ended."""
    world = chat_and_low(step_seconds=1.0)
    world.step_seconds = {}
    constant_chat(world)
    first, second = world.submit("low", BACKGROUND), world.submit("low", BACKGROUND)
    world.advance(3.0)
    third = world.submit("low", BACKGROUND)
    world.advance(1.0)
    world.finish(first)
    world.advance(1.0)
    world.finish(second)
    assert world.timer_at == world.now + 2.0
    world.advance(2.0)
    assert world.granted_at(third) == world.now


def full_of_chats(slots: int, share: float = 0.5) -> tuple[World, list[JobId], JobId, float]:
    """Chats take all slots of their model, the first relief turn has ended, and the share has just allowed another:
    the chats, who waits for it, and when it is due."""
    world = World(
        (model("chat", option(6, slots)), model("low", option(4, 1))),
        step_seconds={"low": 1.0},
        policy=Policy(relief_slots=1, background_share=share),
    )
    world.warm("chat", "low", job_class=BACKGROUND)
    chats = [constant_chat(world) for _ in range(slots)]
    first, second = world.submit("low", BACKGROUND), world.submit("low", BACKGROUND)
    world.advance(3.0)
    assert world.granted_at(first) == world.now  # the first turn waits for nobody
    due_at = world.now + 1.0 / share
    world.advance(1.0 / share)
    return world, chats, second, due_at


def test_S5a_a_turn_that_is_due_waits_for_the_end_of_a_chat() -> None:
    """All three slots answer and nobody waits behind them: the turn begins in the step in which one of them ends."""
    world, chats, second, due_at = full_of_chats(3)
    world.advance(0.25)
    assert world.waits(second)
    assert world.why(second) == "S5a"
    world.finish(chats[0])
    assert world.granted_at(second) == due_at + 0.25


def test_S5a_it_waits_half_a_second_and_no_longer() -> None:
    """No chat ends: the timer rings, and the turn begins."""
    world, _, second, due_at = full_of_chats(3)
    assert world.timer_at == due_at + 0.5
    world.advance(1.0)
    assert world.granted_at(second) == due_at + 0.5


def test_S5a_it_waits_no_more_once_somebody_waits_behind_the_chats() -> None:
    """The slot that comes free is taken again at once: there is nothing to wait for."""
    world, _, second, due_at = full_of_chats(3)
    world.advance(0.25)
    constant_chat(world)
    assert world.granted_at(second) == due_at + 0.25


@pytest.mark.parametrize("slots", [1, 2])
def test_S5a_it_does_not_wait_where_slots_come_free_too_seldom(slots: int) -> None:
    """One slot or two: the turn begins when the share allows it."""
    world, _, second, due_at = full_of_chats(slots)
    assert world.granted_at(second) == due_at


def test_S5a_with_a_share_of_all_it_does_not_wait() -> None:
    """Nothing of the time is the chats' to begin with."""
    world, _, second, due_at = full_of_chats(3, share=1.0)
    assert world.granted_at(second) == due_at


def test_S5_one_turn_at_a_time_on_a_device_for_the_longest_starved_model() -> None:
    """Two low models starve: the one that has waited longer has the turn, whatever its class (S1 is lifted)."""
    world = chat_and_low()
    constant_chat(world)
    batch = world.submit("other", BATCH)
    world.advance(0.5)
    background = world.submit("low", BACKGROUND)
    world.advance(2.5)
    assert world.granted_at(batch) == world.now
    world.advance(1.0)
    assert world.waits(background)
    assert world.why(background) == "S5a"
    world.advance(1.0)
    assert world.granted_at(background) == world.now


def test_S5_a_job_that_cannot_run_blocks_nobody() -> None:
    """The longest starved job's only slot is taken by a step that was there before: the next one has the turn."""
    world = World((model("chat", option(6, 2)), model("one", option(4, 1)), model("two", option(4, 1))))
    world.warm("chat", "one", "two", job_class=BACKGROUND)
    world.submit("one", BACKGROUND)
    constant_chat(world)
    stuck = world.submit("one", BACKGROUND)
    world.advance(0.5)
    runs = world.submit("two", BACKGROUND)
    world.advance(3.0)
    assert world.waits(stuck)
    assert world.granted_at(runs) == world.now


def test_S5_the_clock_starts_anew_with_each_step_and_with_nothing_else() -> None:
    """A job of several steps is relieved again 3 s after its last step's end."""
    world = chat_and_low()
    constant_chat(world)
    job = world.submit("low", BACKGROUND, steps=2)
    world.advance(4.0)
    ended_at = world.now
    assert world.waits(job)
    world.advance(3.0)
    assert world.grants(job)[-1][0] == ended_at + 3.0


def test_S5_zero_switches_relief_off() -> None:
    """With 0 s low work stands as long as people chat."""
    world = chat_and_low(background_max_starvation_seconds=0.0)
    chat = constant_chat(world)
    job = world.submit("low", BACKGROUND)
    world.advance(3600.0)
    assert world.waits(job)
    assert world.why(job) == "S4"
    world.finish(chat)
    world.advance(2.0)
    assert world.granted_at(job) == world.now


def test_S5_a_relief_load_holds_no_turn_and_comes_only_after_starvation() -> None:
    """A cold low model that fits beside the chat's: loaded after 3 s, while another's turn is under way."""
    world = World(
        (model("chat", option(6, 2)), model("low", option(4, 4)), model("cold", option(4, 4))),
        step_seconds={"low": 5.0, "cold": 1.0},
    )
    world.warm("chat", "low", job_class=BACKGROUND)
    constant_chat(world)
    turn = world.submit("low", BACKGROUND)
    job = world.submit("cold", BACKGROUND)
    asked_at = world.now
    world.advance(2.9)
    assert world.loads("cold") == []
    assert world.why(job) == "S4"
    world.advance(0.1)
    assert world.loads("cold") == [asked_at + 3.0]
    assert world.granted_at(turn) == asked_at + 3.0
    world.advance(10.0)
    assert world.granted_at(job) == asked_at + 13.0


def test_S5_a_relief_load_evicts_nothing_hot() -> None:
    """The chat's model is hot and fills the card: the low job waits, says so, and comes when it has cooled."""
    world = World((model("chat", option(12, 2)), model("low", option(8, 1))), step_seconds={"low": 1.0})
    world.warm("chat")
    cooled_at = world.now - 10.0 + 300.0
    job = world.submit("low", BACKGROUND)
    world.advance(60.0)
    assert world.why(job) == "R1"
    assert world.stops("chat") == []
    world.advance(240.0)
    assert world.stops("chat") == [pytest.approx(cooled_at)]
    world.advance(20.0)
    assert world.granted_at(job) is not None


def test_S5_the_reserved_slot_is_not_given_to_relief() -> None:
    """The chat's own model has two slots, one is kept for chats, the other runs one: a starved job there waits."""
    world = World((model("chat", option(6, 2)),))
    world.warm("chat")
    constant_chat(world)
    low = world.submit("chat", BACKGROUND)
    other = world.submit("chat", BACKGROUND)
    world.advance(10.0)
    assert world.granted_at(low) is not None
    assert world.waits(other)


def test_B5_a_model_over_two_cards_gets_the_turns_of_both() -> None:
    """Small relief steps on either card end at different times; the longest starved spanning job reserves what comes
    free, has both turns in one decision, and both cards rest for it."""
    world = World(
        (
            model("chat0", option(4, 2)),
            model("chat1", option(4, 2, device="gpu1")),
            model("s0", option(2, 1)),
            model("s1", option(2, 1, device="gpu1")),
            model("wide", spanning({"gpu0": 2, "gpu1": 2}, 1)),
        ),
        cards={"gpu0": 16.0, "gpu1": 16.0},
        step_seconds={"s0": 1.0, "s1": 1.5},
        policy=Policy(background_share=1.0),
    )
    world.warm("chat0", "chat1", "s0", "s1", "wide", job_class=BACKGROUND)
    constant_chat(world, "chat0")
    constant_chat(world, "chat1")
    for _ in range(20):
        world.submit("s0", BACKGROUND)
        world.submit("s1", BACKGROUND)
        world.advance(0.25)
    wide = world.submit("wide", BACKGROUND)
    asked_at = world.now
    for _ in range(60):
        world.submit("s0", BACKGROUND)
        world.submit("s1", BACKGROUND)
        world.advance(0.5)
    granted_at = world.granted_at(wide)
    assert granted_at is not None
    assert granted_at - asked_at < 30.0
    modes = world.scheduler.state.modes.values()
    assert len({id(mode.turn) for mode in modes}) == 1
    world.finish(wide)
    assert all(mode.turn is None or mode.turn.began_at == world.now for mode in modes)


def test_S5_interactive_mode_ends_relief_ends() -> None:
    """When no chat holds the device any more low work runs by the ordinary rules."""
    world = chat_and_low()
    chat = constant_chat(world)
    jobs = [world.submit("low", BACKGROUND) for _ in range(8)]
    world.finish(chat)
    world.advance(2.0)
    assert all(world.granted_at(job) == world.now for job in jobs)


def test_S5_starved_loads_go_by_how_long_they_are_starved_whatever_their_class() -> None:
    """A batch job has waited a second longer than a background job for a load, and both are starved beside a chat: the
    batch job's load is the first when the low load slot comes free."""
    cards = {"gpu0": 16.0, "gpu1": 16.0}
    models = (
        model("chat", option(4)), model("slow", option(4, device="gpu1"), load=20.0),
        model("old", option(4)), model("young", option(4)),
    )  # fmt: skip
    world = World(models, cards)
    world.warm("chat")
    world.submit("chat")
    world.submit("slow", BACKGROUND)
    world.submit("old", BATCH)
    world.advance(1.0)
    world.submit("young", BACKGROUND)
    world.advance(20.0)
    assert (world.state("old"), world.state("young")) == ("starting", "cold")
