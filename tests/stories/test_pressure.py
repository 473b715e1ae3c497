"""R6a: a device holds more than may be planned. What goes, what never goes, and what is said."""

from gridsched.core.commands import Log, LogEvent
from gridsched.core.events import DeviceRead, DevicesChanged, Foreign
from gridsched.core.ids import DeviceName
from gridsched.core.model import DeviceSpec
from gridsched.core.policy import Policy
from tests.stories.world import BACKGROUND, GB, World, model, option


def four(**more: bool) -> World:
    """Four cold models of 3 to 4 GB, all idle, 15 of 16 GB held; `dear` loads slowest, `cheap` fastest."""
    world = World(
        (
            model("dear", option(4), load=40.0),
            model("cheap", option(4), load=2.0),
            model("middle", option(4), load=15.0),
            model("pin", option(3), load=1.0, **more),
        )
    )
    world.warm("pin", "dear", "cheap", "middle", job_class=BACKGROUND)
    world.read(15.0, HELD)
    return world


HELD = {"dear": 4.0, "cheap": 4.0, "middle": 4.0, "pin": 3.0}


HELD_OF = {"a": 8.0, "b": 6.0}


def begun(world: World) -> list[Log]:
    """The lines that tell of pressure's beginning."""
    return [log for _, log in world.logged(LogEvent.PRESSURE) if log.figures.get("pressure") == "begins"]


def gone(world: World) -> list[str]:
    """Who was unloaded, in order."""
    return [str(log.model) for _, log in world.logged(LogEvent.EVICT) if log.rule == "R6a"]


def test_R6a_a_program_outside_has_the_cheapest_idle_model_go_and_no_second_one() -> None:
    """A game takes 3 GB where one is free: the model that loads in 2 s goes. Pinned ones are not asked, readings in
    between change nothing, and with the memory back the pressure is over."""
    world = four(pinned=True)
    world.read(18.0, HELD)
    assert gone(world) == ["cheap"]
    for _ in range(5):
        world.advance(0.1)
        world.read(18.0, HELD)
    world.advance(1.0)
    world.read(14.0, {name: size for name, size in HELD.items() if name != "cheap"})
    world.advance(60.0)
    assert gone(world) == ["cheap"]
    line = begun(world)[0]
    assert (line.figures["cause"], line.figures["short_bytes"]) == ("a program outside", 2 * GB)
    assert [log.figures["pressure"] for _, log in world.logged(LogEvent.PRESSURE)] == ["begins", "ends"]
    assert not world.scheduler.snapshot(world.now).devices[0].pressure


def test_R6a_models_go_one_at_a_time_until_the_headroom_is_back() -> None:
    """Six more are needed: the second goes only when the first has given its memory back and it was not enough."""
    world = four(pinned=True)
    world.read(22.0, HELD)
    assert gone(world) == ["cheap"]
    world.advance(0.74)
    assert gone(world) == ["cheap"]
    world.advance(0.02)
    assert gone(world) == ["cheap"], "what others hold is not believed for two readings (L3)"
    held = {name: size for name, size in HELD.items() if name != "cheap"}
    for _ in range(2):
        world.read(18.0, held)
    assert gone(world) == ["cheap"]
    world.read(18.0, held)
    assert gone(world) == ["cheap", "middle"]
    world.advance(1.0)
    for _ in range(3):
        world.read(14.0, {"dear": 4.0, "pin": 3.0})
    world.advance(60.0)
    assert gone(world) == ["cheap", "middle"]


def test_R6a_frozen_readings_are_waited_for_ten_seconds_and_no_longer() -> None:
    """Nobody reads the card any more: the freeze of L3 ends, and the next one goes."""
    world = four(pinned=True)
    world.read(22.0, HELD)
    stopped_at = world.now
    world.advance(9.9)
    assert gone(world) == ["cheap"]
    world.advance(0.2)
    assert gone(world) == ["cheap", "middle"]
    assert world.stops("middle") == [stopped_at + 10.0]


def test_R6a_at_the_end_of_a_freeze_nothing_goes_for_what_newer_readings_do_not_say() -> None:
    """The program has gone while readings were frozen: what was believed before is no reason."""
    world = four(pinned=True)
    world.read(22.0, HELD)
    held = {name: size for name, size in HELD.items() if name != "cheap"}
    world.advance(9.5)
    world.read(11.0, held)
    world.advance(1.0)
    assert gone(world) == ["cheap"]
    world.read(17.0, held)
    assert gone(world) == ["cheap", "middle"]


def test_R6a_nothing_hot_busy_or_waited_for_goes_and_then_what_cools() -> None:
    """One model is hot, one works, one is waited for: nothing goes, nothing breaks. The busy one goes with its last
    step."""
    world = World(
        (model("hot", option(5)), model("busy", option(5)), model("waited", option(4, 2))),
        policy=Policy(background_max_starvation_seconds=0.0),
    )
    world.warm("busy", "waited", job_class=BACKGROUND)
    world.warm("hot")
    step = world.submit("busy", BACKGROUND)
    chat = world.submit("hot")
    job = world.submit("waited", BACKGROUND)
    world.read(18.0, {"hot": 5.0, "busy": 5.0, "waited": 4.0})
    assert world.scheduler.snapshot(world.now).devices[0].pressure
    assert world.waits(job)
    world.advance(10.0)
    assert gone(world) == []
    world.finish(step)
    assert gone(world) == ["busy"]
    world.finish(chat)
    assert world.granted_at(job) is None


def test_R6a_a_hot_model_goes_at_the_moment_in_which_it_cools() -> None:
    """Nothing else is there; the timer is exact."""
    world = World((model("hot", option(8)),), policy=Policy(hot_window_seconds=100.0))
    world.warm("hot")
    cools_at = world.now - 10.0 + 100.0
    world.read(18.0, {"hot": 8.0})
    world.advance(200.0)
    assert world.stops("hot") == [cools_at]


def test_R6a_growth_names_the_model_that_grew() -> None:
    """Two models fill the card; one of them takes 600 MB more than was thought."""
    world = World((model("a", option(8)), model("b", option(7))), cards={"gpu0": 15.2})
    world.warm("a", "b")
    world.read(15.0, {"a": 8.0, "b": 7.0})
    world.read(15.6, {"a": 8.6, "b": 7.0})
    line = begun(world)[0]
    assert (line.figures["cause"], line.figures["cause_bytes"]) == ("growth of a", int(0.6 * GB))
    assert gone(world) == [], "both are hot"


def test_R6a_a_changed_headroom_is_named() -> None:
    """A person raises it: the idle model goes, and the cause is told."""
    world = World((model("a", option(8)), model("b", option(6))))
    world.warm("a", "b", job_class=BACKGROUND)
    world.tell(DevicesChanged((DeviceSpec(DeviceName("gpu0"), 16 * GB, 4 * GB),)))
    assert begun(world)[0].figures["cause"] == "a changed headroom"
    assert len(gone(world)) == 1


def test_R6a_nothing_new_is_loaded_until_the_sum_is_in_order() -> None:
    """A chat comes while the card is over: what its plan frees makes up for what is lacking, and its load begins when
    the sum allows it and not before."""
    world = World((model("a", option(8)), model("b", option(6)), model("c", option(2))))
    world.warm("a", "b")
    world.read(15.0, {"a": 8.0, "b": 6.0})
    world.read(19.0, {"a": 8.0, "b": 6.0})
    chat = world.submit("c")
    stays = "b" if world.stops("a") else "a"
    for _ in range(30):
        if world.scheduler.snapshot(world.now).devices[0].pressure:
            assert world.loads("c") == []
        world.advance(0.5)
        world.read(5.0 + HELD_OF[stays], {stays: HELD_OF[stays]})
    assert world.granted_at(chat) is not None


def test_R6a_a_live_plans_victims_are_enough() -> None:
    """The plan of a waiting chat has a busy victim there, which will make up for what is lacking: no idle model goes
    beside it."""
    world = World(
        (model("victim", option(9, 2), load=5.0), model("idle", option(6), load=50.0), model("c", option(7))),
        policy=Policy(interactive_turn_seconds=0.0),
    )
    world.warm("idle", "victim", job_class=BACKGROUND)
    world.read(15.0, {"victim": 9.0, "idle": 6.0})
    running = world.submit("victim", BACKGROUND)
    world.read(16.5, {"victim": 9.0, "idle": 6.0})
    assert gone(world) == ["idle"]
    world.advance(1.0)
    for _ in range(3):
        world.read(10.5, {"victim": 9.0})
    world.submit("c")
    assert world.state("victim") == "draining"
    world.finish(running)
    assert len(world.stops("victim")) == 1


def test_R6a_a_device_under_pressure_that_is_gone_presses_nobody() -> None:
    """It is taken away while it holds too much and nothing of ours: the other one is planned as before."""
    world = World((model("a", option(4, device="gpu1")),), cards={"gpu0": 16.0, "gpu1": 16.0})
    world.tell(DevicesChanged((DeviceSpec(DeviceName("gpu0"), 4 * GB), DeviceSpec(DeviceName("gpu1"), 16 * GB))))
    world.read(16.0, {}, card="gpu0")
    world.advance(20.0)
    world.read(16.0, {}, card="gpu0")
    world.tell(DevicesChanged((DeviceSpec(DeviceName("gpu1"), 16 * GB),)))
    world.submit("a", BACKGROUND)
    assert world.state("a") == "starting"


def test_R6a_a_stop_that_takes_long_is_waited_for_and_no_second_model_goes() -> None:
    """The process needs 15 s to end, longer than readings are frozen: its memory counts as being freed all the same."""
    world = four(pinned=True)
    world.stop_seconds = 15.0
    for _ in range(14):
        world.read(18.0, HELD)
        world.advance(1.0)
    assert gone(world) == ["cheap"]
    world.advance(2.0)
    for _ in range(3):
        world.read(14.0, {name: size for name, size in HELD.items() if name != "cheap"})
    assert gone(world) == ["cheap"]


def test_R6a_a_program_outside_that_is_known_is_named() -> None:
    """In the event, in a refusal's holders and in what it suggests."""
    world = World((model("m", option(6)), model("large", option(12))))
    world.warm("m")
    instance = world.instance("m")
    program = Foreign(4711, "blender", 12 * GB)
    world.tell(DeviceRead(DeviceName("gpu0"), 16 * GB, 18 * GB, ((instance, 6 * GB),), foreign=(program,)))
    (begins, *_) = [log for _, log in world.logged(LogEvent.PRESSURE)]
    assert begins.figures["cause"] == "a program outside: blender (pid 4711)"
    job = world.submit("large")
    world.advance(11.0)
    refusal = world.rejection(job)
    assert refusal is not None
    holders = refusal.detail["holders"]
    assert isinstance(holders, list)
    assert {"pid": 4711, "name": "blender", "bytes": 12 * GB} in [
        one for holder in holders for one in holder.get("programs", ())
    ]
    assert "blender (pid 4711)" in str(refusal.detail["suggestions"])
