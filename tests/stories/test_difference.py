"""Figures that are no driver's, but what a device's use grew by (D2), and figures that say too little (B16, D14)."""

import pytest

from gridsched.core.commands import KeepMeasurement, LogEvent
from gridsched.core.events import DevicesChanged, InstanceReady
from gridsched.core.ids import DeviceName
from gridsched.core.model import DeviceFootprint, DeviceSpec
from tests.stories.world import BACKGROUND, GB, World, model, option, spanning


def kept(world: World) -> list[tuple[tuple[int, ...], bool]]:
    """What was kept on disk: bytes, and whether by difference."""
    return [(item.measured_bytes, item.by_difference) for _, item in world.heard if isinstance(item, KeepMeasurement)]


def refusals(world: World) -> list[object]:
    """Why readings were no measurements."""
    return [log.figures["why"] for _, log in world.logged(LogEvent.MEASURE) if "why" in log.figures]


def test_D2_a_plausible_difference_is_a_measurement_and_says_that_it_is_one() -> None:
    """It replaces the estimate and is kept, with its kind; what others hold is the rest."""
    world = World((model("m", option(8)),))
    world.warm("m")
    world.read(9.5, {"m": 7.5}, by_difference=["m"])
    device = world.scheduler.snapshot(world.now).devices[0]
    assert (device.reserved_bytes, device.external_bytes) == (int(7.5 * GB), 2 * GB)
    assert kept(world) == [((int(7.5 * GB),), True)]
    (_, line), *_ = world.logged(LogEvent.MEASURE)
    assert line.figures["by_difference"] == ["gpu0"]


def test_D2_a_drivers_figure_is_kept_as_one() -> None:
    """Of one that grew by the device's use at first, and is told by the driver when it has grown."""
    world = World((model("m", option(8)),))
    world.warm("m")
    world.read(9.5, {"m": 7.5}, by_difference=["m"])
    world.read(10.0, {"m": 8.0})
    assert kept(world) == [((int(7.5 * GB),), True), ((8 * GB,), False)]
    (_, line), *_ = reversed(world.logged(LogEvent.MEASURE))
    assert "by_difference" not in line.figures


def test_D2_one_device_of_several_makes_the_whole_measurement_a_difference() -> None:
    """And the log says which."""
    cards = {"gpu0": 16.0, "gpu1": 16.0}
    world = World((model("m", spanning({"gpu0": 6, "gpu1": 6})),), cards=cards)
    world.warm("m")
    world.read(6.0, {"m": 6.0})
    world.read(6.0, {"m": 6.0}, "gpu1", by_difference=["m"])
    assert kept(world) == [((6 * GB, 6 * GB), True)]
    (_, line), *_ = world.logged(LogEvent.MEASURE)
    assert line.figures["by_difference"] == ["gpu1"]


@pytest.mark.parametrize(("grown", "external"), [(0.9, 0.0), (0.0, 0.0), (9.0, 5.0)])
def test_D2_a_difference_that_cannot_be_its_own_is_not_believed(grown: float, external: float) -> None:
    """Far less or far more than the 4 estimated: the reservation stands, what is beyond is others'; told once."""
    world = World((model("m", option(4)),))
    world.warm("m")
    for _ in range(3):
        world.read(grown, {"m": grown}, by_difference=["m"])
    device = world.scheduler.snapshot(world.now).devices[0]
    assert (device.reserved_bytes, device.external_bytes) == (4 * GB, int(external * GB))
    assert kept(world) == []
    (why,) = refusals(world)
    assert f"grew by {int(grown * GB)} bytes" in str(why)


def test_D2_a_burst_of_another_program_is_no_growth_that_begins_a_process_anew() -> None:
    """Whether it is taken for the process's own or not, it stays and serves (L6b)."""
    world = World((model("m", option(4)),))
    world.warm("m")
    world.read(4.0, {"m": 4.0}, by_difference=["m"])
    world.advance(400.0)
    for grown in (7.0, 12.0):
        world.read(grown, {"m": grown}, by_difference=["m"])
        assert world.stops("m") == []
    device = world.scheduler.snapshot(world.now).devices[0]
    assert (device.reserved_bytes, device.external_bytes) == (7 * GB, 5 * GB)


def test_D2_a_burst_of_another_program_while_a_model_came_is_not_learnt_as_its_need() -> None:
    """It is set aside for the process while it stands and is nobody's when it has gone, and the next load asks for the
    estimate: else one burst would have the model refused for ever on a card that it fits on."""
    world = World((model("m", option(9)),))
    world.warm("m")
    world.read(14.5, {"m": 14.5}, by_difference=["m"])
    assert world.scheduler.snapshot(world.now).devices[0].reserved_bytes == int(14.5 * GB)
    world.read(9.5, {"m": 9.5}, by_difference=["m"])
    assert world.scheduler.snapshot(world.now).devices[0].reserved_bytes == int(9.5 * GB)
    world.read(8.5, {"m": 8.5}, by_difference=["m"])
    assert kept(world) == [((int(8.5 * GB),), True)]
    world.read(14.5, {"m": 14.5}, by_difference=["m"])
    assert kept(world)[1:] == []
    world.unload("m")
    world.advance(12.0)
    for _ in range(3):
        world.read(2.0, {})
    job = world.submit("m")
    world.advance(10.0)
    assert world.granted_at(job) == world.now


def test_R6a_what_is_neither_held_nor_was_planned_is_no_pressure() -> None:
    """A process that was known to take less than its estimate comes to hold a little more before it has served: so much
    is set aside for it, not the estimate, for which the model beside it would have to go."""
    world = World((model("m", option(9)), model("beside", option(8))))
    world.warm("m")
    world.read(7.5, {"m": 7.5}, by_difference=["m"])
    world.unload("m")
    world.advance(12.0)
    world.read(0.0, {})
    world.warm("beside", job_class=BACKGROUND)
    world.load("m")
    world.advance(20.0)
    world.read(15.875, {"m": 7.875, "beside": 8.0}, by_difference=["m", "beside"])
    assert world.scheduler.snapshot(world.now).devices[0].reserved_bytes == int(15.875 * GB)
    assert world.stops("beside") == []


def test_R6a_what_was_set_aside_for_a_burst_is_free_again_down_to_the_measurement() -> None:
    """Else a model that fits beside it would wait for bytes that nobody holds, for as long as the process lives."""
    world = World((model("m", option(9)), model("beside", option(8))))
    world.warm("m")
    for grown in (7.5, 12.0, 7.5):
        world.read(grown, {"m": grown}, by_difference=["m"])
    assert world.scheduler.snapshot(world.now).devices[0].reserved_bytes == int(7.5 * GB)
    world.warm("beside", job_class=BACKGROUND)
    assert world.stops("m") == []


def test_D2_a_need_that_a_driver_has_told_is_not_lowered_by_what_the_use_grew_by() -> None:
    """The next process of a launch that was seen to take more than its estimate is of a driver that does not tell any
    more: its reservation stands."""
    world = World((model("m", option(9)),))
    world.warm("m")
    world.read(10.0, {"m": 10.0})
    world.unload("m")
    world.advance(12.0)
    for _ in range(3):
        world.read(0.0, {})
    world.warm("m")
    for held in (9.5, 12.0, 9.5):
        world.read(held, {"m": held}, by_difference=["m"])
        assert world.scheduler.snapshot(world.now).devices[0].reserved_bytes == max(10.0, held) * GB


def test_L1_what_the_use_grew_by_beyond_what_a_driver_told_is_reserved_while_it_stands() -> None:
    """Never less than was told, which stays the measurement, until the driver tells again."""
    world = World((model("m", option(9)),))
    world.warm("m")
    world.read(4.5, {"m": 4.5})
    for held, reserved in ((9.25, 9.25), (4.0, 4.5), (6.0, 6.0), (12.0, 12.0)):
        world.read(held, {"m": held}, by_difference=["m"])
        device = world.scheduler.snapshot(world.now).devices[0]
        assert (device.reserved_bytes, device.external_bytes) == (int(reserved * GB), 0)
    assert kept(world) == [((int(4.5 * GB),), False)]
    world.advance(400.0)
    world.read(12.0, {"m": 12.0}, by_difference=["m"])
    assert world.stops("m") == []
    world.read(4.75, {"m": 4.75})
    assert world.scheduler.snapshot(world.now).devices[0].reserved_bytes == int(4.75 * GB)
    assert kept(world)[1:] == [((int(4.75 * GB),), False)]


def test_L1_L4_what_is_taken_off_others_is_promised_to_no_load() -> None:
    """Of one that a driver told 4.5 of and whose device's use grew by 9.25, 16 of the card may be planned: 7 do not fit
    beside it, though so much is free."""
    world = World((model("m", option(9)), model("n", option(7))))
    world.tell(DevicesChanged((DeviceSpec(DeviceName("gpu0"), 17 * GB, 1 * GB),)))
    world.cards["gpu0"] = 17.0
    world.warm("m")
    world.submit("m")
    world.read(4.5, {"m": 4.5})
    world.read(9.25, {"m": 9.25}, by_difference=["m"])
    world.submit("n")
    assert world.loads("n") == []


def test_D2_what_the_engine_has_allocated_is_measured_once() -> None:
    """Where it is more than was estimated, and than the device's use grew by: not anew at each reading."""
    world = World((model("m", option(4)),))
    chat = world.submit("m")
    told = DeviceFootprint(DeviceName("gpu0"), weights_bytes=int(4.5 * GB))
    world.tell(InstanceReady(world.instance("m"), (told,)))
    world.finish(chat)
    for _ in range(3):
        world.read(4.25, {"m": 4.25}, by_difference=["m"])
        assert world.scheduler.snapshot(world.now).devices[0].reserved_bytes == int(4.5 * GB)
    assert kept(world) == [((int(4.5 * GB),), True)]


@pytest.mark.parametrize("held", [0.0, 0.2, 4.9])
def test_B16_D14_a_figure_under_a_quarter_never_replaces_the_estimate(held: float) -> None:
    """An engine that went on without its card, or memory that the driver does not count: 20 stay reserved, are told of
    once, and are what the next load reserves, too. What the card has in use beside it is its own, and nobody's outside.
    """
    world = World((model("m", option(20)),), cards={"gpu0": 24.0})
    world.warm("m")
    for _ in range(3):
        world.read(20.5, {"m": held})
    device = world.scheduler.snapshot(world.now).devices[0]
    assert (device.reserved_bytes, device.external_bytes) == (20 * GB, GB // 2)
    assert kept(world) == []
    (why,) = refusals(world)
    assert "under a quarter of the 20000000000 that were estimated" in str(why)
    world.unload("m")
    world.advance(12.0)
    world.read(0.0, {})
    world.submit("m")
    assert world.scheduler.snapshot(world.now).devices[0].reserved_bytes == 20 * GB
