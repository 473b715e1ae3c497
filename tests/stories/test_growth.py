"""What failures and growth teach (L6a, L6b, L6d), and that nothing read from a disk can do harm (A1, C12)."""

from dataclasses import replace

import pytest

from gridsched.core.commands import KeepMeasurement, LogEvent
from gridsched.core.events import Failure, FailureCause, HostMemoryRead
from gridsched.core.model import DeviceFootprint, LaunchOption
from gridsched.core.policy import Policy
from gridsched.core.reservation import GROWTH_LIMIT
from tests.stories.world import BACKGROUND, GB, World, model, option, spanning

OOM = Failure(FailureCause.DEVICE_OOM, "out of memory")
HOST_OOM = Failure(FailureCause.HOST_OOM, "out of host memory")
CRASH = Failure(FailureCause.CRASHED, "it died")


# --- L6a: out of memory -----------------------------------------------------------------------------------------


def test_L6a_after_running_out_of_memory_more_must_be_free_than_was() -> None:
    """5 were free of 16 and the load of 4 failed: it is not tried with 5.4 free, and is with 5.6, as estimated."""
    world = World((model("m", option(4)),), broken={"m": OOM})
    world.read(11.0, {})
    world.submit("m")
    world.advance(5.25)
    world.broken.clear()
    world.advance(20.0)
    world.read(10.6, {})
    refused = world.submit("m")
    world.advance(10.0)
    refusal = world.rejection(refused)
    assert refusal is not None
    assert refusal.detail["required_bytes"] == int(5.5 * GB)
    assert any("ran out of memory" in note for note in refusal.detail["notes"])  # type: ignore[attr-defined]  # a list
    world.read(10.4, {})
    job = world.submit("m")
    assert world.loads("m")[-1] == world.now
    assert world.scheduler.snapshot(world.now).devices[0].reserved_bytes == 4 * GB
    world.advance(10.0)
    assert world.granted_at(job) is not None


def test_L6a_a_measurement_that_ran_out_of_memory_is_discarded_on_disk_too() -> None:
    """The next load rests on the estimate again, and on what was free."""
    kept = replace(option(6), measured_bytes=(2 * GB,))
    world = World((model("m", kept),), broken={"m": OOM}, cards={"gpu0": 3.0})
    world.submit("m")
    assert world.loads("m") == [0.0]
    world.advance(5.0)
    forgotten = [item for _, item in world.heard if isinstance(item, KeepMeasurement)]
    assert [(item.option_key, item.measured_bytes) for item in forgotten] == [(kept.key.join(("m:", "")), ())]
    world.advance(20.0)
    refusal = world.rejection(world.submit("m"))
    assert refusal is not None
    assert refusal.detail["required_bytes"] == 6 * GB


def test_L6a_a_process_that_runs_out_of_memory_while_it_serves_teaches_the_same() -> None:
    """It is begun anew at once only where more is free than it had."""
    world = World((model("a", option(7)), model("m", option(5))))
    world.warm("a", "m")
    world.read(14.0, {"a": 7, "m": 5})
    world.dies(world.instance("m"), OOM)
    world.advance(20.0)
    job = world.submit("m")
    assert world.stops("a") == [world.now]
    world.advance(1.0)
    world.read(2.0, {})
    world.advance(10.0)
    assert world.granted_at(job) is not None


def test_A11_running_out_of_memory_again_and_again_is_no_ratchet() -> None:
    """A game holds 6 of 16 and the load of 9 runs out: it is never tried while nothing has changed, and when the game
    leaves it is loaded."""
    world = World((model("m", option(9)),), broken={"m": OOM})
    world.read(6.0, {})
    jobs = []
    for _ in range(3):
        jobs.append(world.submit("m", BACKGROUND))
        world.advance(100.0)
    assert world.loads("m") == [0.0]
    world.broken.clear()
    world.read(0.0, {})
    world.advance(20.0)
    assert [world.granted_at(job) for job in jobs] == [None, 310.0, None]


def test_A11_what_is_asked_for_never_exceeds_what_a_device_has() -> None:
    """Alone on the card it ran out of memory, all but what a desktop holds: it is tried again when it is alone."""
    world = World((model("m", option(9)), model("small", option(2))), broken={"m": OOM})
    world.read(0.5, {})
    for _ in range(5):
        world.submit("m")
        world.advance(1000.0)
    assert len(world.loads("m")) == 5
    world.warm("small")
    world.broken.clear()
    job = world.submit("m")
    assert world.stops("small") == [world.now]
    world.advance(11.0)
    assert world.granted_at(job) is not None


def test_A11_a_program_that_came_between_two_readings_is_counted() -> None:
    """The reading before the failure tells what was really free, whatever is believed."""
    world = World((model("m", option(9)),), broken={"m": OOM})
    world.submit("m")
    world.advance(4.0)
    world.read(12.0, {"m": 4.0})
    world.advance(1.0)
    short = [log.figures["free_bytes"] for _, log in world.logged(LogEvent.PRESSURE) if log.rule == "L6a"]
    assert short == [8 * GB]


def test_L6a_running_out_with_far_more_free_than_it_needs_teaches_nothing() -> None:
    """A small pin dies of another program's burst on a card with much free: it is back at once, beside the rest."""
    world = World((model("small", option(1), pinned=True), model("other", option(9))))
    world.warm("other", job_class=BACKGROUND)
    world.read(10.0, {"small": 1.0, "other": 9.0})
    world.dies(world.instance("small"), OOM)
    world.advance(11.0)
    assert (world.state("small"), world.state("other")) == ("ready", "ready")


def test_L6a_a_launch_over_two_cards_is_short_where_it_had_least_to_spare() -> None:
    """The other card is asked for no more than before."""
    world = World(
        (model("wide", spanning({"gpu0": 8, "gpu1": 8})),), cards={"gpu0": 9.0, "gpu1": 24.0}, broken={"wide": OOM}
    )
    world.submit("wide")
    world.advance(5.0)
    short = [log.figures["short_on"] for _, log in world.logged(LogEvent.PRESSURE) if log.rule == "L6a"]
    assert short == ["gpu0"]


def test_L6a_host_memory_is_short_on_the_host() -> None:
    """Where host memory is planned; else there is only the back-off."""
    wide = LaunchOption(
        "k",
        8192,
        1,
        (DeviceFootprint("gpu0", 4 * GB),),
        host=DeviceFootprint("host", 10 * GB),  # type: ignore[arg-type]  # names
    )
    spec = replace(model("m", option(1)), options=(wide,))
    world = World((spec,), cards={"gpu0": 16.0, "host": 12.0}, broken={"m": HOST_OOM})
    world.submit("m")
    world.advance(5.0)
    short = [log.figures["short_on"] for _, log in world.logged(LogEvent.PRESSURE) if log.rule == "L6a"]
    assert short == ["host"]
    plain = World((model("m", option(4)),), broken={"m": HOST_OOM})
    plain.submit("m")
    plain.advance(5.0)
    assert not plain.logged(LogEvent.PRESSURE)


def test_L6a_a_person_may_have_it_tried_as_it_was_estimated() -> None:
    """Whatever was learnt (A13)."""
    world = World((model("m", option(4)), model("p", option(10), pinned=True)), broken={"m": OOM})
    world.advance(10.0)
    world.submit("m")
    world.advance(6.0)
    world.broken.clear()
    request = world.load("m")
    world.advance(10.0)
    assert world.done(request)


# --- L6b: growth ------------------------------------------------------------------------------------------------


def grown(job_class_of_a_chat: bool = False, **more: object) -> World:
    """A model that was measured at 4 GB and has come to hold more than it may."""
    world = World((model("m", option(4, 2), **more), model("other", option(4))), step_seconds={"other": 1.0})
    world.warm("m", job_class=BACKGROUND)
    if job_class_of_a_chat:
        world.submit("other")
    world.read(4.0, {"m": 4.0})
    world.read(5.2, {"m": 5.2})
    return world


def test_L6b_a_process_past_its_bound_is_started_anew_when_it_is_quiet() -> None:
    """At the reading that shows it; loaded again it counts from its first measurement."""
    world = grown()
    assert world.stops("m") == [world.now]
    assert [log.rule for at, log in world.logged(LogEvent.STOP) if at == world.now] == ["L6b"]
    world.advance(11.0)
    assert world.state("m") == "ready"
    world.finish(world.submit("m", BACKGROUND))
    world.read(4.0, {"m": 4.0})
    world.read(4.9, {"m": 4.9})
    world.advance(100.0)
    assert len(world.stops("m")) == 1


def test_L6b_growth_under_the_bound_is_charged_and_borne() -> None:
    """A quarter above what it was first, and not a byte less than is charged."""
    world = World((model("m", option(4)),))
    world.warm("m")
    world.advance(60.0)
    world.read(5.0, {"m": 5.0})
    world.read(5.0 * GROWTH_LIMIT, {"m": 5.0 * GROWTH_LIMIT})
    assert world.stops("m") == []
    assert world.scheduler.snapshot(world.now).devices[0].reserved_bytes == int(6.25 * GB)
    world.read(6.5, {"m": 6.5})
    assert len(world.stops("m")) == 1


def test_L6b_never_in_mid_step_nor_beside_a_chat() -> None:
    """Not while it works, nor in interactive mode; at the first reading after that."""
    world = World((model("m", option(4, 2)), model("chat", option(4))))
    world.warm("chat", "m", job_class=BACKGROUND)
    running = world.submit("m", BACKGROUND)
    world.read(8.0, {"m": 4.0, "chat": 4.0})
    world.read(9.5, {"m": 5.5, "chat": 4.0})
    assert world.stops("m") == []
    world.finish(running)
    chat = world.submit("chat")
    world.read(9.5, {"m": 5.5, "chat": 4.0})
    world.finish(chat)
    world.advance(1.0)
    world.read(9.5, {"m": 5.5, "chat": 4.0})
    assert world.stops("m") == []
    world.advance(1.0)
    world.read(9.5, {"m": 5.5, "chat": 4.0})
    assert world.stops("m") == [world.now]


def test_L6b_pinned_or_not() -> None:
    """A pin brings it back."""
    world = grown(pinned=True)
    assert len(world.stops("m")) == 1
    world.advance(11.0)
    assert world.state("m") == "ready"


def test_L6b_what_no_longer_fits_stays_gone_and_evicts_nobody() -> None:
    """A game took the memory in that moment: the next job asks for it."""
    world = World((model("m", option(4)), model("other", option(8))))
    world.warm("other", "m", job_class=BACKGROUND)
    world.read(12.0, {"m": 4.0, "other": 8.0})
    world.read(13.5, {"m": 5.5, "other": 8.0})
    assert len(world.stops("m")) == 1
    world.read(16.0, {"other": 8.0})
    for _ in range(4):
        world.advance(5.0)
        world.read(16.0, {"other": 8.0})
    assert (world.state("m"), world.state("other")) == ("cold", "ready")
    assert world.scheduler.state.errands == {}


# --- what is read at start --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kept", [(), (1,), (-5,), (0,), (10**15,), (4 * GB, 4 * GB)])
def test_C12_whatever_was_on_disk_no_invariant_breaks_at_start(kept: tuple[int, ...]) -> None:
    """Figures that make no sense: it loads, or it is refused with the sum; the scheduler lives."""
    world = World((model("m", replace(option(4), measured_bytes=kept), pinned=True), model("n", option(4))))
    world.advance(20.0)
    job = world.submit("m")
    other = world.submit("n")
    world.advance(20.0)
    assert (world.granted_at(job) is not None) is (kept != (10**15,))
    assert world.granted_at(other) is not None


# --- L6d: back-off ----------------------------------------------------------------------------------------------


def test_A13_a_failed_model_has_one_half_open_try_and_an_honest_retry_after() -> None:
    """Everybody who waits ends at once; then one load for however many come, whose end is everybody's."""
    world = World((model("m", option(4)),), broken={"m": CRASH})
    jobs = [world.submit("m", BACKGROUND) for _ in range(9)]
    world.advance(5.0)
    assert all(world.rejection(job) is not None for job in jobs)
    world.advance(4.0)
    refusal = world.rejection(world.submit("m"))
    assert refusal is not None
    assert refusal.retry_after_seconds == 6.0
    world.advance(6.0)
    tried = [world.submit("m") for _ in range(9)]
    assert len(world.loads("m")) == 2
    world.advance(5.0)
    assert all(world.rejection(job) is not None for job in tried)
    assert world.rejection(world.submit("m")).retry_after_seconds == 20.0  # type: ignore[union-attr]  # refused at once


# --- M11: host memory -------------------------------------------------------------------------------------------


def host_read(world: World, **held_gb: float) -> None:
    """A reading of what models hold of host memory."""
    world.tell(HostMemoryRead(tuple((world.instance(name), int(size * GB)) for name, size in held_gb.items())))


def limited(*, pinned: bool = False) -> World:
    """Four GB of host memory a process, one model that is there and has one."""
    world = World((model("m", option(6, 2), pinned=pinned),), policy=Policy(host_memory_limit_bytes=4 * GB))
    world.warm("m", job_class=BACKGROUND)
    host_read(world, m=1.0)
    return world


@pytest.mark.parametrize("pinned", [False, True])
def test_M11_a_process_beyond_its_host_memory_is_begun_anew_while_nobody_uses_it(pinned: bool) -> None:
    """Not while it works, nor at the limit; told with the figures, and back at once."""
    world = limited(pinned=pinned)
    job = world.submit("m", BACKGROUND)
    host_read(world, m=4.5)
    assert world.stops("m") == []
    world.finish(job)
    host_read(world, m=4.0)
    assert world.stops("m") == []
    host_read(world, m=4.5)
    assert world.stops("m") == [world.now]
    why = [log.figures["why"] for _, log in world.logged(LogEvent.STOP) if log.rule == "L6b"]
    assert why == ["it holds 4500000000 bytes of host memory, first 1000000000, 4000000000 are the limit"]
    world.advance(11.0)
    assert world.state("m") == "ready"
    host_read(world, m=1.0)
    assert len(world.stops("m")) == 1


def test_M11_what_is_read_is_shown_and_what_could_not_be_read_is_unknown() -> None:
    """In the snapshot."""
    world = limited()
    assert world.scheduler.snapshot(world.now).instances[0].host_held_bytes == GB
    world.tell(HostMemoryRead(()))
    assert world.scheduler.snapshot(world.now).instances[0].host_held_bytes is None


def test_M11_one_that_needs_more_than_the_limit_is_told_of_once_and_left_alone() -> None:
    """Its next process would hold as much: it would be begun anew for ever."""
    world = World((model("m", option(6)),), policy=Policy(host_memory_limit_bytes=4 * GB))
    world.warm("m", job_class=BACKGROUND)
    for _ in range(3):
        host_read(world, m=5.0)
    assert world.stops("m") == []
    told = [log.figures["host_bytes"] for _, log in world.logged(LogEvent.PRESSURE) if log.rule == "L6b"]
    assert told == [5 * GB]


def test_M11_without_a_limit_nothing_is_begun_anew() -> None:
    """It is the default."""
    world = World((model("m", option(6)),))
    world.warm("m", job_class=BACKGROUND)
    host_read(world, m=1.0)
    host_read(world, m=100.0)
    assert world.stops("m") == []


def test_M11_nothing_is_begun_anew_on_a_device_that_is_lost() -> None:
    """It could not be loaded there again (D6)."""
    world = limited()
    world.lose()
    host_read(world, m=5.0)
    assert world.stops("m") == []
    world.find()
    host_read(world, m=5.0)
    assert world.stops("m") == [world.now]
