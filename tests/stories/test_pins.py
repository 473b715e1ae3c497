"""Pins are a desired state (R7): what is pinned comes back, in its place among everybody's loads."""

from dataclasses import replace
from itertools import pairwise

import pytest

from gridsched.core.commands import LogEvent
from gridsched.core.events import DevicesChanged, DrainBegan, Failure, FailureCause, ModelsChanged
from gridsched.core.ids import DeviceName, ModelName
from gridsched.core.model import DeviceSpec
from tests.stories.world import BACKGROUND, DIED, GB, World, model, option

CRASH = Failure(FailureCause.CRASHED, "it died")


def down(world: World, name: str) -> str:
    """The rule by which a pinned model is down; "" where it is not."""
    pins = world.scheduler.snapshot(world.now).pins_down
    return pins[ModelName(name)].rule if name in pins else ""


def test_R7_at_start_pins_load_in_the_order_of_the_configuration() -> None:
    """One after the other, and nothing that is not pinned."""
    world = World((model("b", option(4), pinned=True), model("c", option(4)), model("a", option(4), pinned=True)))
    world.advance(30.0)
    assert (world.loads("b"), world.loads("a"), world.loads("c")) == ([0.0], [10.0], [])


def test_R7_a_pinned_model_that_crashes_comes_back_with_back_off_and_stays_down_when_a_person_unloaded_it() -> None:
    """At once the first time; after 60 s, doubling up to 900 s, while it dies again; and not after an unload."""
    world = World((model("p", option(4), pinned=True),))
    world.advance(10.0)
    world.dies(world.instance("p"), CRASH)
    assert world.loads("p") == [0.0, 10.0]
    world.broken["p"] = CRASH
    world.advance(10.0)
    world.dies(world.instance("p"), CRASH)
    failed_at = world.now
    world.advance(3000.0)
    failures = [failed_at, *(at + 5.0 for at in world.loads("p")[2:])]
    assert [at - before for before, at in pairwise(failures)] == [65.0, 125.0, 245.0, 485.0, 905.0, 905.0]
    world.broken.clear()
    world.advance(900.0)
    assert world.state("p") == "ready"
    request = world.unload("p")
    world.advance(5000.0)
    assert world.done(request)
    assert world.state("p") == "cold"


def test_R7_a_persons_load_brings_the_pin_back() -> None:
    """Unloaded it stays down; loaded by a person it is pinned again, and returns after a crash."""
    world = World((model("p", option(4), pinned=True),))
    world.advance(10.0)
    world.unload("p")
    world.advance(100.0)
    request = world.load("p")
    world.advance(10.0)
    assert world.done(request)
    world.dies(world.instance("p"), CRASH)
    world.advance(10.0)
    assert world.state("p") == "ready"


def test_R7_a_clients_request_loads_an_unloaded_pin_as_an_ordinary_model() -> None:
    """It is served, and may be evicted like any other."""
    world = World((model("p", option(10), pinned=True), model("m", option(10))))
    world.advance(10.0)
    world.unload("p")
    world.advance(10.0)
    job = world.submit("p")
    world.advance(10.0)
    world.finish(job)
    other = world.submit("m")
    world.advance(11.0)
    assert world.granted_at(other) is not None
    assert world.state("p") == "cold"
    world.finish(other)
    world.advance(1000.0)
    assert world.state("p") == "cold"


def test_C3_a_pin_comes_back_as_background_work_that_evicts_cold_only() -> None:
    """Hot is left alone until the very moment at which it is not."""
    world = World((model("p", option(10), pinned=True), model("m", option(10))))
    world.advance(10.0)
    world.unload("p")
    world.advance(1.0)
    job = world.submit("m")
    world.advance(10.0)
    world.finish(job)
    cools_at = world.now + 300.0
    world.pin("p")
    assert down(world, "p") == "S4"
    world.advance(200.0)
    assert down(world, "p") == "R1"
    assert world.loads("p") == [0.0]
    world.advance(200.0)
    assert world.stops("m") == [cools_at]
    assert world.state("p") == "ready"


def test_C3_S6a_a_pin_does_not_slip_in_before_a_chat() -> None:
    """The chat's plan waits for a running step to end; the pin would fit into what is free meanwhile."""
    world = World((model("busy", option(8)), model("p", option(4)), model("m", option(12))))
    world.warm("busy", job_class=BACKGROUND)
    running = world.submit("busy", BACKGROUND)
    chat = world.submit("m")
    world.pin("p")
    world.advance(100.0)
    assert world.loads("p") == []
    world.finish(running)
    world.advance(10.75)
    assert world.granted_at(chat) is not None
    world.finish(chat)
    world.advance(60.0)
    assert world.state("p") == "ready"


def test_C3_L6c_a_pins_load_gives_way_to_a_chat_and_at_most_twice() -> None:
    """A long load is aborted for a chat's; the third time it is finished."""
    world = World((model("p", option(10), load=100.0, pinned=True), model("m", option(10))), step_seconds={"m": 1.0})
    for aborted in (1, 2):
        chat = world.submit("m")
        world.advance(12.0)
        assert world.granted_at(chat) is not None
        assert len(world.stops("p")) == aborted
        world.advance(310.0)
        assert world.state("p") == "starting"
    chat = world.submit("m")
    world.advance(5.0)
    assert world.waits(chat)
    world.advance(100.0)
    assert world.state("p") == "ready"
    assert len(world.stops("p")) == 2


def test_A1_pins_that_by_measurement_cannot_all_be_leave_the_later_one_down_with_the_arithmetic() -> None:
    """8.0 and 7.0 of 15.2 by estimate, 8.6 by measurement: after the restart the later one stays down, and no load of
    it is ever tried until what it rests on has changed."""
    kept = replace(option(8), measured_bytes=(int(8.6 * GB),))
    world = World((model("a", kept, pinned=True), model("b", option(7), pinned=True)), cards={"gpu0": 15.2})
    world.advance(10_000.0)
    assert (world.loads("a"), world.loads("b")) == ([0.0], [])
    pin = world.scheduler.snapshot(world.now).pins_down[ModelName("b")]
    assert pin.rule == "R7"
    assert (pin.arithmetic["required_bytes"], pin.arithmetic["available_bytes"]) == (7 * GB, int(6.6 * GB))
    said = [log for _, log in world.logged(LogEvent.REJECT)]
    assert [(log.model, log.rule) for log in said] == [("b", "R7")]
    world.pin("a", pinned=False)
    world.advance(11.0)
    assert world.state("b") == "ready"


def test_A1_growth_over_the_card_restarts_nothing_and_is_never_a_violation() -> None:
    """Both pins are up, one grows past the card, and then crashes: it stays down beside the other."""
    world = World((model("a", option(8), pinned=True), model("b", option(7), pinned=True)), cards={"gpu0": 15.2})
    world.advance(20.0)
    world.finish(world.submit("a"))
    world.read(15.6, {"a": 8.6, "b": 7.0})
    assert world.scheduler.snapshot(world.now).devices[0].pressure
    world.advance(100.0)
    assert (world.state("a"), world.state("b")) == ("ready", "ready")
    world.dies(world.instance("a"), CRASH)
    world.advance(1000.0)
    assert (world.state("a"), down(world, "a")) == ("cold", "R7")


def test_R7_a_changed_configuration_takes_effect() -> None:
    """Pinned there it is loaded, no longer pinned it may go; either goes before what a person said earlier."""
    world = World((model("p", option(10)), model("m", option(10))))
    world.tell(ModelsChanged((model("p", option(10), pinned=True), model("m", option(10)))))
    world.advance(10.0)
    assert world.state("p") == "ready"
    world.unload("p")
    world.tell(ModelsChanged((model("p", option(10)), model("m", option(10)))))
    world.advance(100.0)
    world.tell(ModelsChanged((model("p", option(10), pinned=True), model("m", option(10)))))
    world.advance(10.0)
    assert world.state("p") == "ready"


def test_R7_pins_and_unpins_of_persons() -> None:
    """Each is answered at once; pinning loads, unpinning lets it be evicted."""
    world = World((model("p", option(10)), model("m", option(10))))
    pinned = world.pin("p")
    assert world.done(pinned)
    world.advance(10.0)
    assert world.state("p") == "ready"
    chat = world.submit("m")
    world.advance(10.0)
    refusal = world.rejection(chat)
    assert refusal is not None
    assert "Unpin p" in refusal.detail["suggestions"]  # type: ignore[operator]  # a list
    assert world.done(world.pin("p", pinned=False))
    chat = world.submit("m")
    world.advance(11.0)
    assert world.granted_at(chat) is not None
    assert world.refused(world.pin("nothing")) == "model_not_found"


def test_R7_an_unpinned_load_under_half_way_is_aborted() -> None:
    """Nobody waits for it any more (S6c)."""
    world = World((model("p", option(10), load=100.0),))
    world.pin("p")
    world.advance(10.0)
    world.pin("p", pinned=False)
    assert world.state("p") == "cold"


@pytest.mark.parametrize("how", ["unpinned", "drained"])
def test_R7_no_pin_comes_back_for_nobody(how: str) -> None:
    """Neither when it was unpinned while it was down, nor when the server goes away."""
    world = World((model("p", option(10), pinned=True),), broken={"p": CRASH})
    world.advance(5.0)
    if how == "unpinned":
        world.pin("p", pinned=False)
    else:
        world.tell(DrainBegan())
    world.broken.clear()
    world.advance(1000.0)
    assert world.loads("p") == [0.0]


def test_R7_a_half_open_try_by_a_job_is_the_pins_too() -> None:
    """A13: a job comes before the pin's own timer and its load succeeds: that is the pin's load."""
    world = World((model("p", option(4), pinned=True),), broken={"p": CRASH})
    world.advance(5.0)
    world.broken.clear()
    world.advance(10.0)
    job = world.submit("p")
    world.advance(10.0)
    assert world.granted_at(job) is not None
    world.advance(1000.0)
    assert world.loads("p") == [0.0, 15.0]


def test_R7_a_pin_whose_step_dies_comes_back_for_its_job_and_for_itself() -> None:
    """P5 runs the step again on the process that the pin wants anyway."""
    world = World((model("p", option(4), pinned=True),))
    world.advance(10.0)
    job = world.submit("p")
    old = world.instance("p")
    world.step_ends(job, DIED)
    world.dies(old, CRASH)
    world.advance(11.0)
    assert len(world.grants(job)) == 2
    assert len(world.loads("p")) == 2


def test_R7_a_pin_that_is_taken_out_of_the_configuration_frees_the_load_slot_in_the_same_step() -> None:
    """Its load ends, and the next pin's begins at once, not when the memory of the first is back."""
    world = World((model("gone", option(4), pinned=True), model("p", option(4), pinned=True)))
    world.advance(5.0)
    world.tell(ModelsChanged((model("p", option(4), pinned=True),)))
    assert (world.stops("gone"), world.loads("p")) == ([5.0], [5.0])


def test_R7_L7_a_job_for_a_pin_that_can_never_fit_any_more_is_refused_at_once() -> None:
    """The card is gone for which it was pinned: the pin waits for it, a job does not."""
    models = (model("p", option(4, device="gpu1"), pinned=True), model("m", option(4)))
    world = World(models, cards={"gpu0": 8.0, "gpu1": 8.0})
    world.advance(10.0)
    world.tell(ModelsChanged(models[1:]))
    world.tell(DevicesChanged((DeviceSpec(DeviceName("gpu0"), 8 * GB),)))
    world.advance(10.0)
    world.tell(ModelsChanged(models))
    assert down(world, "p")
    world.submit("m")
    world.advance(1.0)
    job = world.submit("p", BACKGROUND)
    assert world.rejection(job) is not None


def test_R7_what_a_person_said_goes_with_the_model() -> None:
    """Pinned by hand, it leaves the configuration while its process still works, and comes back as configured: not
    pinned."""
    specs = (model("a", option(4)), model("b", option(4)))
    world = World(specs)
    world.pin("a")
    world.advance(15.0)
    world.submit("a", BACKGROUND)
    world.tell(ModelsChanged(specs[1:]))
    world.tell(ModelsChanged(specs))
    assert not world.scheduler.state.models[ModelName("a")].pinned


def test_R7_an_unload_of_a_model_that_is_gone_from_the_configuration_is_none_of_the_one_that_comes_back() -> None:
    """Whether a process of it still worked meanwhile or not."""
    specs = (model("p", option(4), pinned=True), model("b", option(4)))
    world = World(specs)
    world.advance(10.0)
    world.submit("p", BACKGROUND)
    world.tell(ModelsChanged(specs[1:]))
    world.unload("p", force=True)
    world.tell(ModelsChanged(specs))
    world.advance(30.0)
    assert world.state("p") == "ready"
