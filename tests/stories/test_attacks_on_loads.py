"""Event sequences that broke an earlier draft of the rules about loads: who may take one away, join it or hold it."""

from gridsched.core.commands import LogEvent, RejectionCode
from gridsched.core.events import DevicesChanged, Failure, FailureCause, MemoryReleased
from gridsched.core.ids import DeviceName
from gridsched.core.model import DeviceSpec
from gridsched.core.policy import Policy
from tests.stories.world import BACKGROUND, BATCH, GB, World, model, option


def test_B3_chats_take_a_low_load_away_twice_and_never_again() -> None:
    """A load of 40 s, and a chat in its way each 30 s: the third try is finished, though the chat waits for it. None
    of it is a failure, and the job keeps its place before one that came later."""
    world = World(
        (model("low", option(12), load=40.0), model("chat", option(12), load=4.0)),
        policy=Policy(hot_window_seconds=1.0),
        step_seconds={"chat": 1.0, "low": 1.0},
    )
    first, second = world.submit("low", BACKGROUND), world.submit("low", BACKGROUND)
    for _ in range(3):
        world.advance(20.0)
        world.submit("chat")
        world.advance(10.0)
    assert len([log for _, log in world.logged(LogEvent.STOP) if log.rule == "L6c"]) == 2
    world.advance(120.0)
    first_at, second_at = world.granted_at(first), world.granted_at(second)
    assert first_at is not None
    assert second_at is not None
    assert first_at < second_at
    assert world.logged(LogEvent.REJECT) == []


def test_C6_a_load_may_do_what_its_most_permissive_living_waiter_may() -> None:
    """A chat that may evict has a plan with a victim; one that may not joins it. When the first leaves, the victim
    takes work again in that step, and the second is told."""
    policy = Policy(interactive_turn_seconds=0.0)
    world = World((model("old", option(12, 2)), model("m", option(12))), policy=policy)
    world.warm("old")
    world.submit("old")
    able = world.submit("m")
    joined = world.submit("m", no_evict=True)
    assert world.state("old") == "draining"
    assert world.waits(joined)
    world.leave(able)
    assert world.state("old") == "ready"
    refused = world.rejection(joined)
    assert refused is not None
    assert refused.code is RejectionCode.NOT_RESIDENT


def test_C6_one_that_may_evict_joins_one_that_may_not() -> None:
    """The first waits for nobody's going and is refused; as soon as one comes who may, the load has its victim."""
    world = World((model("old", option(12)), model("m", option(12))))
    world.warm("old")
    refused = world.submit("m", no_evict=True)
    assert world.rejection(refused) is not None
    world.submit("m")
    assert world.stops("old") == [world.now]
    joined = world.submit("m", no_evict=True)
    world.advance(11.0)
    assert world.granted_at(joined) is None  # one slot: the chat that brought the load has it
    assert world.rejection(joined) is None


def test_C6_warm_only_joins_a_load_and_does_not_hold_it() -> None:
    """Its beginner leaves under half way: the load ends with him, and the joiner is told."""
    world = World((model("m", option(4)),))
    beginner = world.submit("m")
    joiner = world.submit("m", warm_only=True)
    world.advance(2.0)
    world.leave(beginner)
    assert world.stops("m") == [world.now]
    refused = world.rejection(joiner)
    assert refused is not None
    assert refused.code is RejectionCode.NOT_RESIDENT


def test_C8_a_low_model_that_is_ready_and_has_not_served_goes_for_a_chat() -> None:
    """A second of its load was left, so it was not taken away (L6c); ready, it goes at once: R4 protects from the same
    and lower classes only. Its job waits on at its place and has the memory next."""
    world = World((model("low", option(12)), model("chat", option(12))), policy=Policy(hot_window_seconds=1.0))
    job = world.submit("low", BACKGROUND)
    world.advance(9.0)
    chat = world.submit("chat")
    world.advance(1.0)
    assert world.stops("low") == [world.now]
    assert world.waits(job)
    world.advance(11.0)
    world.finish(chat)
    world.advance(13.0)
    assert world.granted_at(job) is not None


def test_A5_a_stop_that_fails_blocks_no_load_elsewhere() -> None:
    """While the victim's memory is awaited on one card, a low load on the other begins: no slot is held by a wait."""
    world = World(
        (model("stuck", option(8)), model("m", option(8)), model("low", option(4, device="gpu1"))),
        cards={"gpu0": 8.0, "gpu1": 8.0},
        stop_seconds=None,
    )
    world.warm("stuck")
    chat = world.submit("m")
    world.advance(1.0)
    world.submit("low", BATCH)
    assert len(world.loads("low")) == 1
    world.advance(40.0)
    assert world.rejection(chat) is not None  # nothing else can go: the memory is lost, and that is said


def test_A5_memory_that_comes_back_late_is_not_lost_for_ever() -> None:
    """The driver lets go a minute later: whoever waits has it in that step."""
    world = World((model("stuck", option(8)), model("m", option(8))), cards={"gpu0": 8.0}, lag_seconds=None)
    world.warm("stuck")
    gone = world.instance("stuck")
    low = world.submit("m", BACKGROUND)
    assert world.waits(low)
    world.advance(360.0)  # it has cooled and has been told to go; its memory is lost
    assert world.scheduler.snapshot(world.now).devices[0].lost_bytes == 8 * GB
    world.tell(MemoryReleased(gone))
    assert world.loads("m") == [world.now]


def test_A7_a_load_far_on_is_finished_for_nobody_and_then_goes_for_whoever_needs_it() -> None:
    """Its only waiter leaves past half way: it is finished, and being without work it is the next job's memory."""
    world = World((model("a", option(12)), model("b", option(12))))
    waiter = world.submit("a")
    world.advance(6.0)
    world.leave(waiter)
    world.advance(4.0)
    assert world.state("a") == "ready"
    world.submit("b", BACKGROUND)
    assert world.stops("a") == [world.now]


def test_S6c_who_is_less_patient_than_half_a_load_is_served_when_it_comes_again() -> None:
    """The first load is given up when it leaves, the second is finished without it; five minutes later one may be
    given up again."""
    world = World((model("a", option(12)), model("b", option(12))))
    for _ in range(2):
        waiter = world.submit("a")
        world.advance(2.0)
        world.leave(waiter)
        world.advance(3.0)
    assert world.state("a") == "starting"
    world.advance(6.0)
    assert world.state("a") == "ready"
    assert (len(world.loads("a")), len(world.stops("a"))) == (2, 1)
    world.warm("b")
    world.advance(300.0)
    waiter = world.submit("a")
    world.advance(2.0)
    world.leave(waiter)
    assert world.stops("a")[2:] == [world.now]


def test_A9_a_chats_plan_that_is_not_complete_drains_nobody() -> None:
    """One victim may go, the other is pinned, and together they would do: the one goes on serving, nothing is held."""
    world = World((model("pin", option(10), pinned=True), model("b", option(4, 1)), model("m", option(14))))
    world.warm("pin", "b", job_class=BACKGROUND)
    world.submit("m")
    assert world.state("b") == "ready"
    assert world.granted_at(world.submit("b", BACKGROUND)) == world.now


def test_C13_four_models_live_side_by_side_at_three_percent_and_take_turns_at_five() -> None:
    """8.3, 4.0, 2.8 and 0.4 of 16: at a headroom of 3 % all four stay; at 5 % the last of them needs another's memory,
    and low work then takes turns of 30 s instead of swapping with each step."""
    sizes = {"chat": 8.3, "small": 4.0, "smaller": 2.8, "embed": 0.4}
    for percent, stops in ((3, 0), (5, 1)):
        world = World(tuple(model(name, option(size)) for name, size in sizes.items()))
        world.tell(DevicesChanged((DeviceSpec(DeviceName("gpu0"), 16 * GB, 16 * GB * percent // 100),)))
        world.warm(*sizes, job_class=BACKGROUND)
        assert sum(len(world.stops(name)) for name in sizes) == stops


def test_C13_low_work_of_two_models_that_just_miss_takes_turns() -> None:
    """Forty jobs for each of the two that do not fit beside a hot chat model: each is loaded twice in 100 s at most."""
    sizes = {"chat": 8.3, "small": 4.0, "smaller": 4.0}
    world = World(
        tuple(model(name, option(size), load=4.0) for name, size in sizes.items()),
        cards={"gpu0": 16.0},
        step_seconds=dict.fromkeys(("small", "smaller"), 0.5),
    )
    world.warm("chat")
    for _ in range(120):
        world.submit("small", BACKGROUND)
        world.submit("smaller", BACKGROUND)
    world.advance(100.0)
    assert len(world.loads("small")) <= 2
    assert len(world.loads("smaller")) <= 2
    assert world.stops("chat") == []


def test_C2_pressure_never_unloads_a_pinned_model_and_one_that_died_of_it_comes_back() -> None:
    """A program outside takes more than there is, for minutes: the pinned model stays. When it dies of that it stays
    down as long as its memory is not there, and is loaded again when the program has gone."""
    world = World((model("pin", option(8), pinned=True), model("other", option(4))))
    world.warm("pin", "other", job_class=BACKGROUND)
    world.read(18.0, {"pin": 8.0, "other": 4.0})
    world.advance(1.0)
    for _ in range(120):
        world.read(18.0, {"pin": 8.0})
        world.advance(1.0)
    assert (world.stops("pin"), len(world.stops("other"))) == ([], 1)
    world.dies(world.instance("pin"), Failure(FailureCause.DEVICE_OOM, "out of memory"))
    loads = len(world.loads("pin"))
    for _ in range(60):
        world.advance(1.0)
        world.read(12.0, {})
    assert len(world.loads("pin")) == loads
    for _ in range(1000):
        world.advance(1.0)
        world.read(8.0 if world.state("pin") == "ready" else 0.0, {"pin": 8.0} if world.state("pin") == "ready" else {})
    assert len(world.loads("pin")) == loads + 1
    assert world.state("pin") == "ready"
