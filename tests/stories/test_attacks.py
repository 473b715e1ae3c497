"""The event sequences that broke an earlier draft of the rules, each with what must happen instead."""

import pytest

from gridsched.core.events import Failure, FailureCause, GrantReturned
from gridsched.core.ids import DeviceName
from gridsched.core.policy import Policy
from tests.stories.world import BACKGROUND, BATCH, GB, World, model, option

OOM = Failure(FailureCause.DEVICE_OOM, "out of memory")


def test_A1_growth_that_is_measured_is_pressure_and_never_a_violation() -> None:
    """8.0 and 7.0 of 15.2; the first turns out to take 8.6: nothing breaks, and nothing new loads there."""
    world = World((model("a", option(8)), model("b", option(7)), model("c", option(0.2))), cards={"gpu0": 15.2})
    world.warm("a", "b")
    world.read(15.6, {"a": 8.6, "b": 7.0})
    device = world.scheduler.snapshot(world.now).devices[0]
    assert device.pressure
    assert device.reserved_bytes == int(15.6 * GB)
    world.submit("c", BACKGROUND)
    assert world.loads("c") == []
    assert world.granted_at(world.submit("a")) == world.now


def test_A4_a_chat_without_a_plan_holds_nothing() -> None:
    """Its model fits only when a game leaves, and its client asks again each 10 s: low work goes on as if alone."""
    world = World((model("m", option(12)), model("low", option(4, 1))), step_seconds={"low": 1.0})
    world.warm("low", job_class=BACKGROUND)
    world.read(12, {"low": 4})
    jobs = [world.submit("low", BACKGROUND) for _ in range(30)]
    for _ in range(3):
        chat = world.submit("m")
        world.advance(10.0)
        assert world.rejection(chat) is not None
    assert all(world.granted_at(job) is not None for job in jobs[:29])


def test_A4_a_chat_for_a_failed_model_holds_nothing() -> None:
    """It is refused, and low work starts in the same moment."""
    world = World((model("m", option(4)), model("low", option(4))), broken={"m": OOM})
    world.warm("low", job_class=BACKGROUND)
    world.submit("m")
    low = world.submit("low", BACKGROUND)
    assert world.waits(low)
    world.advance(5.0)
    assert world.granted_at(low) is not None
    world.finish(low)
    world.submit("m")
    assert world.granted_at(world.submit("low", BACKGROUND)) == world.now


def test_A5_a_stop_that_fails_has_a_deadline() -> None:
    """The victim never dies: 20 s later its bytes are lost and the waiter chooses another victim."""
    world = World((model("stuck", option(8)), model("other", option(8)), model("m", option(8))), stop_seconds=None)
    world.warm("stuck", "other", job_class=BACKGROUND)
    world.submit("m")
    assert (len(world.stops("stuck")), len(world.stops("other"))) == (1, 0)
    asked_at = world.now
    world.advance(19.9)
    assert world.stops("other") == []
    world.advance(0.1)
    assert world.stops("other") == [asked_at + 20.0]
    assert world.scheduler.snapshot(world.now).devices[0].lost_bytes == 8 * GB


def test_A6_an_idle_victim_goes_before_a_busy_one_with_a_long_step() -> None:
    """D idle, B busy with a step of twenty minutes, both large enough: D goes, the chat waits for no drain."""
    world = World((model("b", option(8)), model("d", option(8)), model("m", option(8))))
    world.warm("b", "d", job_class=BACKGROUND)
    world.submit("b", BACKGROUND)
    chat = world.submit("m")
    world.advance(11.0)
    assert world.granted_at(chat) is not None


def test_A7_an_abandoned_waiter_frees_its_victims_back_to_ready() -> None:
    """The plan drains B, which has jobs waiting; the chat leaves: B takes them again in the same step."""
    policy = Policy(interactive_turn_seconds=0.0)
    world = World((model("b", option(12, 1)), model("m", option(12))), policy=policy)
    world.warm("b")
    world.submit("b")
    chat = world.submit("m")
    queued = [world.submit("b", BACKGROUND) for _ in range(3)]
    assert world.state("b") == "draining"
    world.leave(chat)
    assert world.state("b") == "ready"
    world.advance(60.0)
    assert world.stops("b") == []
    assert all(world.waits(job) for job in queued)


def test_A8_R4_protects_only_while_its_job_lives() -> None:
    """The job that caused the load leaves just before it is ready: the next one has the memory."""
    world = World((model("b", option(12)), model("d", option(12))))
    first = world.submit("b", BACKGROUND)
    second = world.submit("d", BACKGROUND)
    world.advance(9.0)
    world.leave(first)
    world.advance(1.0)
    assert world.stops("b") == [10.0]
    world.advance(11.0)
    assert world.granted_at(second) is not None


def test_A8_R4_lapses_when_its_job_could_not_be_granted() -> None:
    """Relief is off and people chat: the loaded model cannot serve its job, and holds the memory no longer than R4a."""
    world = World(
        (model("chat", option(4)), model("b", option(12)), model("d", option(12))),
        policy=Policy(background_max_starvation_seconds=0.0),
    )
    held = world.submit("b", BACKGROUND)
    world.advance(9.0)
    chat = world.submit("chat")
    world.advance(50.0)
    assert world.waits(held)
    world.finish(chat)
    world.advance(2.0)
    assert world.granted_at(held) is not None


def test_A9_an_older_job_that_cannot_load_drains_nobody() -> None:
    """It needs 9; 1 is free, the cold 4 would not be enough beside a hot 10: B goes on serving."""
    world = World((model("b", option(4, 1)), model("hot", option(10)), model("m", option(9))), cards={"gpu0": 15.0})
    world.warm("hot")
    world.warm("b", job_class=BACKGROUND)
    older = world.submit("m", BACKGROUND)
    assert world.state("b") == "ready"
    assert world.granted_at(world.submit("b", BACKGROUND)) == world.now
    assert world.why(older) == "R1"


def test_A9_nothing_drains_before_it_may_go() -> None:
    """B is inside its 30 s with work: it serves until they are over, then drains."""
    world = World((model("b", option(12, 1)), model("m", option(12))), step_seconds={"b": 1.0})
    for _ in range(60):
        world.submit("b", BACKGROUND)
    world.advance(1.0)
    older_than_most = world.submit("m", BACKGROUND)
    for _ in range(60):
        world.submit("b", BACKGROUND)
    world.advance(38.9)
    assert world.state("b") == "ready"
    world.advance(60.0)
    assert world.granted_at(older_than_most) is not None


def test_A10_a_claim_is_the_bytes_of_a_complete_plan() -> None:
    """Free 6; G1 needs 8 and drains D(4): a stream of jobs that need 5 does not starve it; one without a plan blocks
    nobody."""
    world = World(
        (model("d", option(4)), model("g1", option(8)), model("g2", option(5)), model("never", option(6))),
        cards={"gpu0": 10.0},
        policy=Policy(min_residency_seconds=0.0),
    )
    world.warm("d", job_class=BACKGROUND)
    busy = world.submit("d", BACKGROUND)
    first = world.submit("g1", BACKGROUND)
    for _ in range(5):
        world.submit("g2", BACKGROUND)
    assert world.loads("g2") == []
    world.finish(busy)
    world.advance(11.0)
    assert world.granted_at(first) is not None
    hot = World((model("hot", option(8)), model("g1", option(12)), model("g2", option(5))))
    hot.warm("hot")
    hot.submit("g1", BACKGROUND)
    hot.submit("g2", BACKGROUND)
    assert hot.loads("g2") == [hot.now]


def test_A12_external_thaws_after_ten_seconds_whatever_stops() -> None:
    """A stop that never ends: the frozen figure is believed for 10 s, then a game that started is seen."""
    world = World((model("a", option(12)), model("m", option(12))), stop_seconds=None)
    world.warm("a")
    world.read(12, {"a": 12})
    world.submit("m")
    book = world.scheduler.state.ledger.books[DeviceName("gpu0")]
    world.advance(9.0)
    world.read(15, {"a": 12})
    assert book.external_bytes == 0
    world.advance(1.0)
    world.read(15, {"a": 12})
    assert book.external_bytes == 3 * GB


def test_A13_a_failed_models_waiters_end_at_once() -> None:
    """Nine jobs wait for a model that fails: nine refusals in that step."""
    world = World((model("m", option(4)),), broken={"m": OOM})
    jobs = [world.submit("m", BACKGROUND) for _ in range(9)]
    world.advance(5.0)
    assert all(world.rejection(job) is not None for job in jobs)


@pytest.mark.slow
def test_A14_every_low_job_ends() -> None:
    """It can never run; a day later it is told so."""
    world = World((model("hot", option(12)), model("m", option(12))), step_seconds={"hot": 1.0})
    world.warm("hot")
    job = world.submit("m", BACKGROUND)
    for _ in range(24 * 15):
        world.submit("hot")
        world.advance(240.0)
    assert world.rejection(job) is not None


def test_B1_a_hot_model_keeps_a_low_one_out_and_says_so() -> None:
    """A chat each four minutes: the low job that does not fit beside it waits, held by R1. This pins the default."""
    world = World(
        (model("chat", option(8.3)), model("low", option(9))), cards={"gpu0": 15.2}, step_seconds={"chat": 1.0}
    )
    world.warm("chat")
    job = world.submit("low", BACKGROUND)
    for _ in range(15):
        world.submit("chat")
        world.advance(240.0)
        assert world.why(job) == "R1"
    world.advance(100.0)
    assert world.granted_at(job) is not None


def test_B4_relief_loads_take_turns_and_never_two_at_once() -> None:
    """Two starved jobs for cold models that exclude each other, under constant chat: both get their step."""
    world = World(
        (model("chat", option(4, 2)), model("b", option(10)), model("d", option(10))), step_seconds={"b": 1.0, "d": 1.0}
    )
    world.warm("chat")
    world.submit("chat")
    first, second = world.submit("b", BACKGROUND), world.submit("d", BACKGROUND)
    world.advance(60.0)
    assert world.granted_at(first) is not None
    assert world.granted_at(second) is not None
    assert len(world.loads("b") + world.loads("d")) == 2


def test_B7_S5b_lifts_neither_S4_nor_relief() -> None:
    """Relief is off and people chat: a batch job that has starved for three minutes stays where it is."""
    world = World(
        (model("chat", option(4, 2)), model("low", option(4))), policy=Policy(background_max_starvation_seconds=0.0)
    )
    world.warm("chat", "low", job_class=BACKGROUND)
    world.submit("chat")
    job = world.submit("low", BATCH)
    world.advance(180.0)
    assert world.waits(job)


@pytest.mark.slow
def test_B7_a_starved_batch_job_competes_as_background_for_a_load() -> None:
    """Background keeps two models in turns; a cold batch model gets memory after two minutes."""
    world = World(
        (model("a", option(12)), model("b", option(12)), model("t", option(12))),
        step_seconds={"a": 1.0, "b": 1.0, "t": 1.0},
    )
    job = None
    for second in range(200):
        world.submit("a", BACKGROUND)
        world.submit("b", BACKGROUND)
        if second == 5:
            job = world.submit("t", BATCH)
        world.advance(1.0)
    assert job is not None
    granted_at = world.granted_at(job)
    assert granted_at is not None
    assert 120.0 < granted_at - 5.0 < 180.0


def test_B8_R4a_holds_against_the_same_and_lower_classes_only() -> None:
    """A batch load with work for ever: background takes the memory when it has served once."""
    world = World((model("t", option(12)), model("g", option(12))), step_seconds={"t": 1.0})
    for _ in range(50):
        world.submit("t", BATCH)
    world.advance(10.5)
    job = world.submit("g", BACKGROUND)
    assert world.state("t") == "draining"
    world.advance(12.0)
    assert world.granted_at(job) is not None


def test_B11_a_chat_has_a_slot_where_low_work_would_take_them_all() -> None:
    """Low generations fill all slots but the one that is kept while people chat with the model."""
    world = World((model("m", option(8, 4)),))
    world.warm("m")
    for _ in range(8):
        world.submit("m", BACKGROUND)
    assert world.running("m") == 3
    assert world.granted_at(world.submit("m")) == world.now


def test_C7_a_low_load_on_one_card_does_not_hold_a_chats_load_on_another() -> None:
    """One interactive load may always run beside."""
    world = World((model("low", option(8, device="gpu1")), model("chat", option(8))), cards={"gpu0": 8.0, "gpu1": 8.0})
    world.submit("low", BACKGROUND)
    world.submit("chat")
    assert world.loads("chat") == [0.0]
    world.advance(10.0)
    assert world.stops("low") == []


def test_C7_a_chats_drain_on_one_card_does_not_hold_a_chats_load_on_another() -> None:
    """The first chat waits for a step that runs for long; the second loads beside it meanwhile."""
    world = World(
        (model("old", option(8)), model("a", option(8)), model("b", option(8, device="gpu1"))),
        cards={"gpu0": 8.0, "gpu1": 8.0},
    )
    world.warm("old")
    world.submit("old")
    world.submit("a")
    second = world.submit("b")
    world.advance(10.0)
    assert world.granted_at(second) == world.now


def test_C10_a_returned_grant_is_not_queued_again() -> None:
    """It counted as running until it came back, and then as nothing."""
    world = World((model("m", option(4, 1)),))
    world.warm("m")
    job = world.submit("m")
    grant = world.grant(job)
    assert world.running("m") == 1
    world.tell(GrantReturned(grant.id))
    assert world.running("m") == 0
    assert world.scheduler.state.jobs == {}
    assert world.timer_at is None


def test_B4_a_relief_load_obeys_R4a() -> None:
    """Under constant chat a batch model has its turn, with work for ever; another starved job waits for its end."""
    world = World(
        (model("chat", option(4, 2)), model("b", option(10)), model("d", option(10))),
        step_seconds={"b": 1.0, "d": 1.0},
    )
    world.warm("chat")
    world.submit("chat")
    world.submit("b", BATCH)
    job = world.submit("d", BATCH)
    for _ in range(60):
        world.submit("b", BATCH)
    world.advance(13.0)
    ready_at = world.now
    assert world.state("b") == "ready"
    world.advance(29.9)
    assert world.stops("b") == []
    world.advance(20.0)
    assert world.granted_at(job) is not None
    assert world.stops("b")[0] >= ready_at + 30.0
