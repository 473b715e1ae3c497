"""A device that does not answer any more (D6): what runs goes on, nothing is loaded there, who waits is told why."""

import pytest

from gridsched.core.commands import LogEvent, RejectionCode
from gridsched.core.events import DevicesChanged, Failure, FailureCause, MemoryReleased
from gridsched.core.ids import DeviceName, ModelName
from gridsched.core.model import DeviceSpec, ModelSpec
from tests.stories.world import BACKGROUND, GB, World, model, option, spanning

TWO = {"gpu0": 16.0, "gpu1": 16.0}
CRASH = Failure(FailureCause.CRASHED, "it died")


def both(name: str, size_gb: float) -> ModelSpec:
    """A model that may be on either card."""
    return model(name, option(size_gb), option(size_gb, device="gpu1"))


def test_D6_what_runs_on_a_lost_device_serves_on_and_may_be_stopped() -> None:
    """New chats are granted there, and idle time counts as ever."""
    world = World((model("m", option(6, 2), idle_ttl_seconds=20.0),))
    world.warm("m")
    world.lose()
    job = world.submit("m")
    assert world.granted_at(job) == world.now
    world.finish(job)
    world.advance(20.0)
    assert world.stops("m") == [world.now]


def test_D6_a_load_under_way_goes_on_and_serves() -> None:
    """It had begun before."""
    world = World((model("m", option(6)),))
    job = world.submit("m")
    world.advance(5.0)
    world.lose()
    world.advance(5.0)
    assert world.granted_at(job) == world.now


def test_D6_plans_are_made_elsewhere_and_their_victims_there_are_spared() -> None:
    """The chat's plan was to have gpu0's busy model go; when the card is lost that one takes work again, and the chat
    is served on the other card."""
    world = World((model("a", option(12)), model("b", option(12, device="gpu1")), both("m", 10)), cards=TWO)
    world.warm("a", "b", job_class=BACKGROUND)
    on_a, on_b = world.submit("a", BACKGROUND), world.submit("b", BACKGROUND)
    chat = world.submit("m")
    draining = next(name for name in ("a", "b") if world.state(name) == "draining")
    other = {"a": "b", "b": "a"}[draining]
    world.lose({"a": "gpu0", "b": "gpu1"}[draining])
    assert (world.state(draining), world.state(other)) == ("ready", "draining")
    world.finish({"a": on_a, "b": on_b}[other])
    world.advance(11.0)
    assert world.granted_at(chat) is not None
    assert world.stops(draining) == []


def test_D6_a_short_loss_costs_a_chat_a_wait_and_no_failure() -> None:
    """A driver that comes back within fit_wait: the load begins in that moment."""
    world = World((model("m", option(6)),))
    world.lose()
    job = world.submit("m")
    world.advance(9.0)
    assert (world.loads("m"), world.why(job)) == ([], "D6")
    world.find()
    assert world.loads("m") == [world.now]
    world.advance(10.0)
    assert world.granted_at(job) is not None


def test_D6_a_long_loss_refuses_chats_with_the_device_since_when_and_the_drivers_word() -> None:
    """503 after fit_wait, with an honest guess when to ask again; low work waits with the reason."""
    world = World((model("m", option(6)),))
    world.lose(why="GPU is lost")
    world.advance(32.0)
    chat, low = world.submit("m"), world.submit("m", BACKGROUND)
    world.advance(9.9)
    assert world.rejection(chat) is None
    world.advance(0.1)
    refusal = world.rejection(chat)
    assert refusal is not None
    assert refusal.code is RejectionCode.GPU_UNAVAILABLE
    assert "gpu0 has not answered for 42 s: GPU is lost" in refusal.message
    assert (refusal.retry_after_seconds, refusal.detail["retry_after_s"]) == (30.0, 30)
    assert refusal.detail["devices"] == [{"device": "gpu0", "why": "GPU is lost", "lost_s": 42.0}]
    view = world.scheduler.waiting(low, world.now)
    assert view is not None
    assert (view.rule, view.reason) == ("D6", "gpu0 does not answer (GPU is lost)")
    assert [keeper.why for keeper in view.keepers] == [("it does not answer",)]
    world.find()
    world.advance(10.0)
    assert world.granted_at(low) is not None


def test_D6_low_work_whose_longest_wait_is_over_is_told_the_same() -> None:
    """Not that memory is short."""
    world = World((model("m", option(6)),))
    world.lose()
    low = world.submit("m", BACKGROUND, max_wait=20.0)
    world.advance(20.0)
    refusal = world.rejection(low)
    assert refusal is not None
    assert refusal.code is RejectionCode.GPU_UNAVAILABLE


def test_D6_what_never_fits_is_refused_for_its_size_whatever_is_lost() -> None:
    """507 at once, not 503."""
    world = World((model("m", option(60)),))
    world.lose()
    refusal = world.rejection(world.submit("m"))
    assert refusal is not None
    assert refusal.code is RejectionCode.INSUFFICIENT_VRAM


def test_D6_memory_that_cannot_be_verified_is_lost_until_it_is() -> None:
    """The process dies with the card: its model waits for the device, not for the bytes; a late word of the memory
    gives them back."""
    world = World((model("m", option(10)),), lag_seconds=None)
    world.warm("m")
    instance = world.instance("m")
    world.lose()
    world.dies(instance, CRASH)
    chat = world.submit("m")
    world.advance(10.0)
    device = world.scheduler.snapshot(world.now).devices[0]
    assert (device.lost_bytes, device.lost_since_seconds, device.lost_why) == (10 * GB, world.now - 10.0, "GPU is lost")
    refusal = world.rejection(chat)
    assert refusal is not None
    assert refusal.code is RejectionCode.GPU_UNAVAILABLE
    world.find()
    again = world.submit("m")
    assert world.loads("m") == [0.0]
    world.tell(MemoryReleased(instance))
    assert world.loads("m")[1:] == [world.now]
    world.advance(10.0)
    assert world.granted_at(again) is not None
    assert world.scheduler.snapshot(world.now).devices[0].lost_since_seconds is None


@pytest.mark.parametrize(("ends", "words"), [(0.5, "that is gone"), (None, "that does not end")])
def test_L5_L7_who_is_refused_for_memory_that_is_not_back_is_told_whose_it_was(ends: float | None, words: str) -> None:
    """Without that the sum says that it does not fit, and nobody sees why."""
    world = World((model("a", option(10)), model("b", option(10))), stop_seconds=ends, lag_seconds=None)
    world.warm("a")
    job = world.submit("b")
    world.advance(60.0)
    refusal = world.rejection(job)
    assert refusal is not None
    assert refusal.message.endswith(f"9.31 GiB of gpu0 are not back from a process of a {words}")


def test_D6_pressure_on_a_lost_device_unloads_nothing() -> None:
    """What would go could not be seen to be back, and the next would follow it."""
    world = World((model("a", option(6)), model("b", option(6))))
    world.warm("a", "b", job_class=BACKGROUND)
    world.lose()
    world.read(15.9, {"a": 6, "b": 6})
    world.tell(DevicesChanged((DeviceSpec(DeviceName("gpu0"), 16 * GB, 5 * GB),)))
    assert (world.stops("a"), world.stops("b")) == ([], [])
    world.find()
    assert len(world.stops("a") + world.stops("b")) == 1


def test_D6_a_pin_stays_down_while_its_only_card_is_lost_and_comes_with_it() -> None:
    """It is told why, and keeps its errand."""
    world = World((model("m", option(6)),))
    world.lose()
    world.pin("m")
    world.advance(30.0)
    down = world.scheduler.snapshot(world.now).pins_down[ModelName("m")]
    assert "gpu0 has not answered" in down.reason
    world.find()
    assert world.loads("m") == [world.now]


def test_D6_a_persons_load_is_refused_after_fit_wait_and_foretold() -> None:
    """The outlook says what would come of it."""
    world = World((model("m", option(6)),))
    world.lose()
    outlook = world.scheduler.outlook(ModelName("m"), world.now)
    assert outlook is not None
    assert outlook.rule == "D6"
    assert outlook.refusal is not None
    assert outlook.refusal.code is RejectionCode.GPU_UNAVAILABLE
    request = world.load("m")
    world.advance(10.0)
    assert world.refused(request) == "gpu_unavailable"


def test_D6_a_launch_over_several_cards_needs_them_all() -> None:
    """And is not begun while one is lost; one that fits on the other alone is."""
    world = World((model("wide", spanning({"gpu0": 8, "gpu1": 8})), both("m", 6)), cards=TWO)
    world.lose("gpu0")
    wide, narrow = world.submit("wide", BACKGROUND), world.submit("m")
    world.advance(15.0)
    assert (world.why(wide), world.granted_at(narrow) is not None) == ("D6", True)


def test_D6_a_leased_card_beside_a_lost_one_is_told_by_the_loss() -> None:
    """503: with the lost one back it would fit; a model whose only card is leased is told of the lease."""
    world = World((model("here", option(6)), model("there", option(6, device="gpu1"))), cards=TWO)
    world.lease("gpu0", owner="training")
    world.lose("gpu1")
    here, there = world.submit("here"), world.submit("there")
    world.advance(10.0)
    codes = [refusal.code.value for job in (here, there) if (refusal := world.rejection(job)) is not None]
    assert codes == ["insufficient_vram", "gpu_unavailable"]


def test_D6_each_change_is_one_line_of_the_log() -> None:
    """Told again it is no news; what leaves the configuration and comes back is lost all the while."""
    world = World((model("m", option(6)),), cards=TWO)
    world.lose("gpu0", "GPU is lost")
    world.advance(5.0)
    world.lose("gpu0", "Unknown Error")
    world.find("gpu1")
    world.find("gpu0")
    world.lose("gpu1")
    gpu0, gpu1 = DeviceSpec(DeviceName("gpu0"), 16 * GB), DeviceSpec(DeviceName("gpu1"), 16 * GB)
    world.tell(DevicesChanged((gpu0,)))
    world.tell(DevicesChanged((gpu0, gpu1)))
    assert [view.lost_why for view in world.scheduler.snapshot(world.now).devices] == ["", "GPU is lost"]
    told = [(log.device, dict(log.figures)) for _, log in world.logged(LogEvent.DEVICE)]
    assert told == [
        ("gpu0", {"answers": False, "why": "GPU is lost"}),
        ("gpu0", {"answers": True, "lost_s": 5.0}),
        ("gpu1", {"answers": False, "why": "GPU is lost"}),
    ]


def test_D6_L3_a_load_that_began_after_the_last_reading_is_no_part_of_what_was_read() -> None:
    """The card is back with 8 of others' in use, and a load of 4 begins; only then the memory of the process that died
    with the card is told to be back. Others hold 8 still, not 4: else another load begins in room that there is not."""
    world = World((model("a", option(6)), model("b", option(4)), model("c", option(5))), lag_seconds=None)
    world.warm("a")
    instance = world.instance("a")
    world.lose()
    world.dies(instance, CRASH)
    world.advance(20.0)
    world.find()
    world.read(8.0, {})
    world.submit("b")
    assert world.state("b") == "starting"
    world.tell(MemoryReleased(instance))
    assert world.scheduler.snapshot(world.now).devices[0].external_bytes == 8 * GB
    world.submit("c", BACKGROUND)
    assert world.loads("c") == []
