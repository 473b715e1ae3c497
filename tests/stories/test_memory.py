"""L1 to L7: bytes are promised once, believed when measured, and refused with the sum."""

from dataclasses import replace

import pytest

from gridsched.core.commands import KeepLoadTime, KeepMeasurement, Log, LogEvent, RejectionCode
from gridsched.core.events import DevicesChanged, Failure, FailureCause, InstanceReady, ModelsChanged
from gridsched.core.ids import DeviceName
from gridsched.core.model import DeviceFootprint, DeviceSpec
from gridsched.core.policy import Policy
from tests.stories.world import BACKGROUND, DIED, GB, World, model, option, spanning


def test_L1_two_loads_never_claim_the_same_memory() -> None:
    """A chat's and a background job's model, each two thirds of the card: the second load waits for the first."""
    world = World((model("a", option(10)), model("b", option(10))))
    world.submit("a")
    world.submit("b", BACKGROUND)
    assert (len(world.loads("a")), len(world.loads("b"))) == (1, 0)
    book = world.scheduler.state.ledger.books[DeviceName("gpu0")]
    assert book.free_bytes == 6 * GB


def test_L1_a_load_reserves_in_the_decision_that_begins_it() -> None:
    """Three loads fit only two and two: the reservation is there before the process is."""
    world = World((model("a", option(7)), model("b", option(7)), model("c", option(7))))
    world.submit("a")
    world.submit("b", BACKGROUND)
    world.submit("c")
    world.advance(60.0)
    assert world.scheduler.snapshot(world.now).devices[0].reserved_bytes <= 16 * GB


def test_L2_a_served_model_is_measured_and_its_next_load_uses_that() -> None:
    """Estimate 8, measured 6.5: kept, freed for others, and reserved so the next time; an idle reading does nothing."""
    world = World((model("m", option(8)), model("rest", option(9))))
    chat = world.submit("m")
    world.advance(10.0)
    world.read(6.5, {"m": 6.5})
    assert not [item for _, item in world.heard if isinstance(item, KeepMeasurement)]
    world.finish(chat)
    out = world.read(6.5, {"m": 6.5})
    assert KeepMeasurement(world.models[0].name, "m:gpu0/8/1/8192", (int(6.5 * GB),)) in out
    assert world.scheduler.snapshot(world.now).devices[0].reserved_bytes == int(6.5 * GB)
    world.submit("rest")
    assert (world.loads("rest"), world.stops("m")) == ([world.now], [])


@pytest.mark.parametrize("held_gb", [0.0, 1.9])
def test_L2_an_implausible_reading_never_replaces_the_estimate(held_gb: float) -> None:
    """Nothing, or under a quarter of the estimate."""
    world = World((model("m", option(8)),))
    world.warm("m")
    assert not [item for item in world.read(held_gb, {"m": held_gb}) if isinstance(item, KeepMeasurement)]
    assert world.scheduler.snapshot(world.now).devices[0].reserved_bytes == 8 * GB


def test_L2_a_load_tells_what_was_predicted_what_it_takes_and_the_error_by_component() -> None:
    """Estimate 8, measured 6.5; the engine told of 6.25 in buffers, where weights and compute were estimated."""
    world = World((model("m", option(8)),))
    chat = world.submit("m")
    instance = next(iter(world.scheduler.state.instances))
    told = DeviceFootprint(DeviceName("gpu0"), weights_bytes=int(6.25 * GB))
    world.tell(InstanceReady(instance, (told,)))
    world.finish(chat)
    out = world.read(6.5, {"m": 6.5})
    (line,) = [item for item in out if isinstance(item, Log) and item.event is LogEvent.MEASURE]
    assert line.rule == "L2"
    assert line.figures["predicted_bytes"] == {"gpu0": 8 * GB}
    assert line.figures["measured_bytes"] == {"gpu0": int(6.5 * GB)}
    error = line.figures["error_bytes"]["gpu0"]  # type: ignore[index]  # what a reader of JSON sees
    assert error["total"] == int(1.5 * GB)
    assert error["overhead"] == int(-0.25 * GB)
    assert sum(size for name, size in error.items() if name != "total") == error["total"]
    (kept,) = [item for item in out if isinstance(item, KeepMeasurement)]
    assert (kept.option, kept.allocated) == (world.models[0].options[0], (told,))


@pytest.mark.parametrize(
    ("held", "why"),
    [({}, "gives no figure for this process"), ({"m": 0.0}, "0 bytes are read"), ({"m": 1.9}, "under a quarter")],
)
def test_L2_B16_D2_D4_D14_a_reading_that_is_not_believed_is_told_once(held: dict[str, float], why: str) -> None:
    """No figure at all, nothing, or a small part: the estimate stands, and a person reads why, not every second."""
    world = World((model("m", option(8)),))
    world.warm("m")
    lines = [item for _ in range(3) for item in world.read(2, held) if isinstance(item, Log)]
    (line,) = [item for item in lines if item.event is LogEvent.MEASURE]
    assert (line.rule, line.figures["refused_on"]) == ("L2", "gpu0")
    assert why in str(line.figures["why"])
    assert world.scheduler.snapshot(world.now).devices[0].reserved_bytes == 8 * GB


def test_L2_a_model_over_two_cards_is_kept_when_both_are_measured() -> None:
    """One reading is half the measurement."""
    world = World((model("wide", spanning({"gpu0": 4, "gpu1": 4})),), cards={"gpu0": 8.0, "gpu1": 8.0})
    world.warm("wide")
    assert not [item for item in world.read(3, {"wide": 3}) if isinstance(item, KeepMeasurement)]
    out = world.read(5, {"wide": 5}, card="gpu1")
    assert [item.measured_bytes for item in out if isinstance(item, KeepMeasurement)] == [(3 * GB, 5 * GB)]


def test_L2_load_times_are_kept() -> None:
    """Ten seconds from start to ready."""
    world = World((model("m", option(8)),))
    world.warm("m")
    assert [item.load_seconds for _, item in world.heard if isinstance(item, KeepLoadTime)] == [10.0]


def test_L3_what_programs_outside_hold_is_not_planned() -> None:
    """A game takes 8 of 16: a model of 10 does not fit beside it; when the game leaves, it does."""
    world = World((model("m", option(10)),))
    world.read(8, {})
    chat = world.submit("m")
    assert world.loads("m") == []
    assert world.why(chat) == "L7"
    world.advance(5.0)
    world.read(0, {})
    assert world.loads("m") == [world.now]


def test_L3_external_is_frozen_while_one_of_ours_goes_and_for_two_readings() -> None:
    """A stopping process's memory is not taken for somebody else's."""
    world = World((model("a", option(12)), model("b", option(12))), lag_seconds=None)
    world.warm("a", job_class=BACKGROUND)
    world.read(13, {"a": 12})
    world.submit("b")
    book = world.scheduler.state.ledger.books[DeviceName("gpu0")]
    for _ in range(3):
        world.advance(0.25)
        world.read(13, {})
        assert book.external_bytes == 1 * GB


def test_L3_a_load_begins_only_when_the_devices_own_total_covers_it() -> None:
    """The ledger has the memory back, the frozen figure hides a game: the device's own sum says no till it is gone."""
    world = World((model("a", option(12)), model("b", option(12))))
    world.warm("a", job_class=BACKGROUND)
    world.read(12, {"a": 12})
    job = world.submit("b")
    world.read(15, {"a": 12})
    world.advance(1.0)
    assert world.loads("b") == []
    assert world.why(job) == "L3"
    world.read(1, {})
    assert world.loads("b") == [world.now]


def test_L4_headroom_is_never_planned() -> None:
    """16 less 2: a model of 15 never fits."""
    world = World((model("m", option(15)),))
    world.tell(DevicesChanged((DeviceSpec(DeviceName("gpu0"), 16 * GB, 2 * GB),)))
    rejection = world.rejection(world.submit("m"))
    assert rejection is not None
    assert rejection.code is RejectionCode.INSUFFICIENT_VRAM
    assert rejection.detail["suggestions"] == ["Lower devices.headroom to at most 0.93 GiB"]


def test_L5_memory_that_is_not_back_at_the_deadline_is_lost_and_reported() -> None:
    """The process is gone, its memory is not: counted as lost, never planned, forgotten when it comes back."""
    world = World((model("a", option(12)), model("b", option(12)), model("c", option(3))), lag_seconds=None)
    world.warm("a", job_class=BACKGROUND)
    chat = world.submit("b")
    world.advance(20.0)
    device = world.scheduler.snapshot(world.now).devices[0]
    assert (device.freeing_bytes, device.lost_bytes) == (0, 12 * GB)
    assert [item.figures["lost_bytes"] for _, item in world.logged(LogEvent.PRESSURE)] == [12 * GB]
    world.submit("c", BACKGROUND)
    world.advance(11.0)
    rejection = world.rejection(chat)
    assert rejection is not None
    assert rejection.code is RejectionCode.INSUFFICIENT_VRAM
    assert {"lost"} <= {holder["state"] for holder in rejection.detail["holders"]}  # type: ignore[attr-defined]
    assert world.state("c") == "ready"


def test_L6_one_low_load_and_one_interactive_beside_it() -> None:
    """Two background loads go one after the other; a chat's load does not wait for them."""
    world = World((model("a", option(3)), model("b", option(3)), model("chat", option(3))))
    world.submit("a", BACKGROUND)
    second = world.submit("b", BACKGROUND)
    assert world.why(second) == "L6"
    world.submit("chat")
    assert (world.loads("a"), world.loads("b"), world.loads("chat")) == ([0.0], [], [0.0])
    world.advance(15.0)
    assert len(world.loads("b")) == 1


def test_L6c_a_low_load_in_a_chats_way_is_aborted_at_most_twice_a_job() -> None:
    """The chat's model needs the card: the low load ends at once, its job keeps its place; the third chat waits."""
    policy = Policy(hot_window_seconds=1.0)
    world = World((model("low", option(12)), model("chat", option(12), load=4.0)), policy=policy)
    low = world.submit("low", BACKGROUND)
    for number in (1, 2):
        world.advance(2.0)
        chat = world.submit("chat")
        assert world.stops("low")[number - 1 :] == [world.now]
        world.advance(6.0)
        world.finish(chat)
        world.advance(3.0)
        assert len(world.loads("low")) == number + 1
    chat = world.submit("chat")
    world.advance(5.0)
    assert len(world.stops("low")) == 2
    assert world.granted_at(low) is None
    world.advance(15.0)
    assert len(world.stops("low")) == 3
    assert world.granted_at(chat) is not None
    assert world.rejection(low) is None


def test_L6c_the_short_rest_of_a_low_load_is_waited_for() -> None:
    """A second of the low load is left: it is finished, then evicted for the chat."""
    world = World((model("low", option(12)), model("chat", option(12))))
    world.submit("low", BACKGROUND)
    world.advance(9.0)
    chat = world.submit("chat")
    assert world.stops("low") == []
    world.advance(1.0)
    assert len(world.stops("low")) == 1
    world.advance(11.0)
    assert world.granted_at(chat) is not None


def test_S6a_a_waiting_chats_load_is_never_slipped_by_a_low_load() -> None:
    """The chat waits for a busy victim; what is free now is promised to it, and a low model that would fit waits."""
    world = World((model("old", option(8)), model("big", option(12)), model("small", option(4))))
    world.warm("old")
    running = world.submit("old")
    chat = world.submit("big")
    world.submit("small", BACKGROUND)
    world.advance(60.0)
    assert world.loads("small") == []
    world.finish(running)
    world.advance(11.0)
    assert world.granted_at(chat) is not None
    world.finish(chat)
    world.advance(10.0)
    assert len(world.loads("small")) == 1


def test_L7_a_model_that_never_fits_is_refused_at_once_with_the_sum() -> None:
    """20 on a card of 16: 507 in the same step, for every class, and nothing that trying again would change."""
    world = World((model("m", option(24), option(20)),))
    for job_class in (BACKGROUND, None):
        job = world.submit("m", job_class) if job_class else world.submit("m")
        rejection = world.rejection(job)
        assert rejection is not None
        assert rejection.code is RejectionCode.INSUFFICIENT_VRAM
        detail = rejection.detail
        assert (detail["required_bytes"], detail["available_bytes"]) == (20 * GB, 16 * GB)
        assert detail["retry_after_s"] is None
        assert detail["estimate"]["weights_bytes"] == 20 * GB  # type: ignore[index]
        assert detail["per_device"][0]["short_bytes"] == 4 * GB  # type: ignore[index]


def test_L7_not_now_is_refused_after_fit_wait_for_chats_and_waits_for_low_work() -> None:
    """A game holds the card: the chat is refused 10 s after it came, with what would help; low work stays."""
    world = World((model("m", option(10)),))
    world.read(8, {})
    low = world.submit("m", BACKGROUND)
    world.advance(3.0)
    chat = world.submit("m")
    world.advance(9.9)
    assert world.rejection(chat) is None
    world.advance(0.1)
    rejection = world.rejection(chat)
    assert rejection is not None
    assert rejection.code is RejectionCode.INSUFFICIENT_VRAM
    assert rejection.retry_after_seconds == 10.0
    assert rejection.detail["suggestions"] == ["Close programs outside that hold at least 1.86 GiB on gpu0"]
    assert {"model": None, "device": "gpu0", "bytes": 8 * GB, "state": "external"} in rejection.detail["holders"]  # type: ignore[operator]
    assert world.waits(low)
    world.advance(24 * 3600.0)
    late = world.rejection(low)
    assert late is not None
    assert late.code is RejectionCode.INSUFFICIENT_VRAM


def test_L7_pins_in_the_way_name_themselves_and_no_hope() -> None:
    """Nothing changes by trying again: retry is null, unpinning is the suggestion."""
    world = World((model("pin", option(10), pinned=True), model("m", option(10))))
    world.warm("pin")
    chat = world.submit("m")
    world.advance(10.0)
    rejection = world.rejection(chat)
    assert rejection is not None
    assert rejection.detail["retry_after_s"] is None
    assert rejection.detail["suggestions"] == ["Unpin pin"]


def test_L7_what_fits_when_running_work_ends_queues() -> None:
    """The card is full of a busy model: the chat waits, longer than fit_wait, and is served."""
    world = World((model("a", option(12)), model("b", option(12))))
    world.warm("a")
    running = world.submit("a")
    chat = world.submit("b")
    world.advance(600.0)
    assert world.waits(chat)
    assert world.why(chat) == "R2"
    world.finish(running)
    world.advance(11.0)
    assert world.granted_at(chat) is not None


def test_L7_the_ladder_takes_the_first_rung_that_fits_without_evicting() -> None:
    """12 does not fit beside 8, 6 does: the smaller context is loaded and nobody goes."""
    world = World((model("a", option(8)), model("b", option(12, ctx=32768), option(6))))
    world.warm("a", job_class=BACKGROUND)
    world.submit("b")
    assert world.stops("a") == []
    assert world.scheduler.snapshot(world.now).instances[-1].ctx_size == 8192


def test_L7_else_the_first_rung_that_victims_can_make_room_for() -> None:
    """Neither fits beside a model of 12: the better rung is loaded in its place."""
    world = World((model("a", option(12)), model("b", option(12, ctx=32768), option(6))))
    world.warm("a", job_class=BACKGROUND)
    world.submit("b")
    assert len(world.stops("a")) == 1
    world.advance(1.0)
    assert world.scheduler.snapshot(world.now).instances[-1].ctx_size == 32768


def test_L7_the_other_card_is_used_before_anybody_goes() -> None:
    """The first card is full, the second free."""
    world = World(
        (model("a", option(12)), model("b", option(12), option(12, device="gpu1"))), cards={"gpu0": 16.0, "gpu1": 16.0}
    )
    world.warm("a", job_class=BACKGROUND)
    world.submit("b")
    assert world.stops("a") == []
    assert world.scheduler.snapshot(world.now).instances[-1].devices == ("gpu1",)


def test_L7_a_device_that_is_gone_can_carry_nothing() -> None:
    """A ladder for a card that is not there."""
    world = World((model("m", option(4, device="gpu7")),))
    rejection = world.rejection(world.submit("m"))
    assert rejection is not None
    assert rejection.code is RejectionCode.INSUFFICIENT_VRAM


def test_L4_a_changed_headroom_is_pressure_and_no_violation() -> None:
    """A person raises the headroom under a loaded model: no new load there, nothing breaks, and back."""
    world = World((model("a", option(12)), model("b", option(3))), policy=Policy(fit_wait_seconds=60.0))
    world.warm("a")
    world.tell(DevicesChanged((DeviceSpec(DeviceName("gpu0"), 16 * GB, 6 * GB),)))
    assert world.scheduler.snapshot(world.now).devices[0].pressure
    low = world.submit("b", BACKGROUND)
    assert world.loads("b") == []
    world.tell(DevicesChanged((DeviceSpec(DeviceName("gpu0"), 16 * GB),)))
    assert len(world.loads("b")) == 1
    assert world.waits(low)
    world.tell(ModelsChanged(world.models))


def test_L7_what_never_fits_is_said_also_to_whoever_wants_nothing_evicted() -> None:
    """No other model would have to go: none could make room."""
    world = World((model("huge", option(40)),))
    for flags in ({"no_evict": True}, {"warm_only": True}):
        rejection = world.rejection(world.submit("huge", **flags))
        assert rejection is not None
        assert rejection.code is RejectionCode.INSUFFICIENT_VRAM


def test_R3_of_two_like_cards_the_one_that_is_free_goes_before_the_one_that_is_being_freed() -> None:
    """A release may take long, or never come: nobody waits for it beside an empty card."""
    cards = {"gpu0": 12.0, "gpu1": 12.0}
    both = (option(9, device="gpu0"), option(9, device="gpu1"))
    world = World((model("old", option(9, device="gpu0"), idle_ttl_seconds=5.0), model("m", *both)), cards=cards)
    world.stop_seconds = None  # the old process never ends
    world.warm("old")
    world.advance(6.0)
    assert len(world.stops("old")) == 1
    assert world.scheduler.snapshot(world.now).devices[0].freeing_bytes == 9 * GB
    world.submit("m")
    assert world.loads("m") == [world.now]


def test_a_model_that_is_gone_from_the_configuration_is_not_loaded_for_those_who_waited() -> None:
    """Its process dies, and they are told that there is no such model any more."""
    world = World((model("gone", option(4)), model("m", option(4))))
    world.warm("gone")
    running = world.submit("gone")
    waiting = world.submit("gone", BACKGROUND)
    world.tell(ModelsChanged(world.models[1:]))
    world.dies(world.instance("gone"), Failure(FailureCause.CRASHED, "it died"))
    world.finish(running, DIED)
    rejection = world.rejection(waiting)
    assert rejection is not None
    assert rejection.code is RejectionCode.MODEL_NOT_FOUND
    assert len(world.loads("gone")) == 1


def test_L7_memory_that_is_lost_may_come_back_so_a_refusal_says_when_to_try_again() -> None:
    """A process of 10 ended without giving its memory back; a chat that needs it is refused after ten seconds."""
    world = World((model("old", option(10)), model("new", option(10))), lag_seconds=None)
    world.warm("old")
    chat = world.submit("new")
    world.advance(40.0)
    refusal = world.rejection(chat)
    assert refusal is not None
    assert refusal.code is RejectionCode.INSUFFICIENT_VRAM
    assert refusal.detail["retry_after_s"] == 10


def test_L7_never_is_never_also_for_a_job_that_asks_for_little() -> None:
    """It is told the arithmetic, not that the model is not loaded: asking for more would not help."""
    for asked in ({"warm_only": True}, {"no_evict": True}):
        world = World((model("never", option(40)),))
        refusal = world.rejection(world.submit("never", **asked))
        assert refusal is not None
        assert refusal.code is RejectionCode.INSUFFICIENT_VRAM


def test_L7_who_waits_for_a_model_that_never_fits_any_more_is_told_at_once() -> None:
    """Low work and a chat wait for a card's running step when the card falls off the bus."""
    models = (model("busy", option(10, device="gpu1")), model("wants", option(10, device="gpu1")))
    world = World(models, {"gpu0": 4.0, "gpu1": 16.0})
    world.submit("busy", BACKGROUND)
    world.advance(11.0)
    waiting = [world.submit("wants", BACKGROUND), world.submit("wants")]
    assert all(world.waits(job) for job in waiting)
    world.tell(DevicesChanged((DeviceSpec(DeviceName("gpu0"), 4 * GB),)))
    refusals = [world.rejection(job) for job in waiting]
    assert [each.code if each is not None else None for each in refusals] == [RejectionCode.INSUFFICIENT_VRAM] * 2


def test_E24_a_model_that_takes_more_host_memory_than_there_is_never_fits() -> None:
    """20 GB of experts beside a card, on a machine of 16: refused with the sum; what is mapped, or no host, is none."""
    beside = DeviceFootprint(DeviceName("host"), weights_bytes=20 * GB)
    launch = replace(option(4), host=beside)
    mapped = replace(launch, key="mapped", host_mapped_bytes=18 * GB, host_growth_bytes=1 * GB)
    world = World((model("read", launch), model("mapped", mapped)))
    devices = (DeviceSpec(DeviceName("gpu0"), 16 * GB),)
    world.tell(DevicesChanged(devices, DeviceSpec(DeviceName("host"), 16 * GB, 1 * GB)))
    rejection = world.rejection(world.submit("read"))
    assert rejection is not None
    assert rejection.code is RejectionCode.INSUFFICIENT_VRAM
    assert rejection.message == "read never fits (host memory: needs 18.63 GiB, 13.97 GiB can be had)"
    card, host = rejection.detail["per_device"]  # type: ignore[misc]  # a list, as JSON has it
    assert (card["device"], card["short_bytes"]) == ("gpu0", 0)
    assert (host["device"], host["required_bytes"], host["available_bytes"]) == ("host", 20 * GB, 15 * GB)
    assert rejection.detail["suggestions"] == []
    world.submit("mapped")
    assert world.loads("mapped") == [world.now]
    world.tell(DevicesChanged(devices))
    world.advance(20.0)
    world.submit("read")
    assert world.loads("read")


def test_E24_headroom_that_alone_keeps_a_model_out_of_host_memory_is_named() -> None:
    """15.5 of 16 GB."""
    launch = replace(option(4), host=DeviceFootprint(DeviceName("host"), compute_bytes=int(15.5 * GB)))
    world = World((model("m", launch),))
    host = DeviceSpec(DeviceName("host"), 16 * GB, 1 * GB)
    world.tell(DevicesChanged((DeviceSpec(DeviceName("gpu0"), 16 * GB),), host))
    rejection = world.rejection(world.submit("m"))
    assert rejection is not None
    assert rejection.detail["suggestions"] == ["Lower devices.headroom to at most 0.47 GiB"]


@pytest.mark.parametrize(
    ("told_gb", "held_gb", "kept_gb"),
    [(6.0, 5.0, 7.0), (6.0, 7.5, 7.5), (None, 5.0, 7.0), (None, 7.5, 7.5)],
)
def test_L2_what_is_held_only_as_it_is_touched_is_never_kept_below_what_was_allocated(
    told_gb: float | None, held_gb: float, kept_gb: float
) -> None:
    """Host memory, 8 estimated of which 1 lies outside of the buffers: 6 of buffers and that 1, or without the engine's
    word all but it; more where more is held. On a card what is held is what is taken."""
    launch = replace(
        option(8), footprint=(DeviceFootprint(DeviceName("gpu0"), compute_bytes=7 * GB, overhead_bytes=1 * GB),)
    )
    for touched, expected in ((True, kept_gb), (False, max(held_gb, told_gb or 0.0))):
        world = World((model("m", launch),))
        world.tell(DevicesChanged((DeviceSpec(DeviceName("gpu0"), 16 * GB, held_as_touched=touched),)))
        chat = world.submit("m")
        instance = next(iter(world.scheduler.state.instances))
        told = (DeviceFootprint(DeviceName("gpu0"), compute_bytes=int(told_gb * GB)),) if told_gb else ()
        world.tell(InstanceReady(instance, told))
        world.finish(chat)
        (kept,) = [item for item in world.read(held_gb, {"m": held_gb}) if isinstance(item, KeepMeasurement)]
        assert kept.measured_bytes == (int(expected * GB),)
