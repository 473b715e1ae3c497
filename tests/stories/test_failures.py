"""What failures cost: a back-off by cause (P6a, L6d), a limit to deaths whatever was served between them, and a device
that fails under its process (D13)."""

from dataclasses import replace

import pytest

from gridsched.core.commands import LogEvent, RejectionCode
from gridsched.core.events import Failure, FailureCause, ModelsChanged
from gridsched.core.failures import DEATHS, FIRST_SECONDS
from gridsched.core.ids import ModelName
from gridsched.core.job import Outcome, OutcomeKind
from tests.stories.world import BACKGROUND, World, model, option

CRASH = Failure(FailureCause.CRASHED, "signal 11", ("segfault",))
FAULT = Outcome(OutcomeKind.DEVICE_FAULT, status=500, answered=False)


def failed(world: World, name: str = "m") -> tuple[float, str]:
    """For how long a model is in back-off yet, and why; (0, "") for one that is not."""
    at, why = world.scheduler.snapshot(world.now).failed.get(ModelName(name), (world.now, ""))
    return at - world.now, why


# --- by cause ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cause", FailureCause)
def test_P6a_all_who_wait_are_told_the_cause_the_last_lines_and_when_to_ask_again(cause: FailureCause) -> None:
    """A chat, low work and a person; whoever comes later is told the rest of the back-off, and one try is made after
    it, which waits twice as long when it fails."""
    failure = Failure(cause, f"it failed: {cause.value}", ("line 1", "line 2"))
    world = World((model("m", option(6)),), broken={"m": failure})
    jobs, request = [world.submit("m"), world.submit("m", BACKGROUND)], world.load("m")
    world.advance(5.0)
    first_seconds = FIRST_SECONDS[cause]
    answer = world.answer(request)
    assert answer is not None
    for refusal in (*map(world.rejection, jobs), answer.rejection):
        assert refusal is not None
        assert (refusal.code, refusal.retry_after_seconds) == (RejectionCode.MODEL_FAILED, first_seconds)
        assert refusal.message == f"m failed ({cause.value}): it failed: {cause.value}"
        assert (refusal.detail["cause"], refusal.detail["log_tail"]) == (cause.value, ["line 1", "line 2"])
    world.advance(first_seconds - 1.0)
    late = world.rejection(world.submit("m"))
    assert late is not None
    assert late.retry_after_seconds == 1.0
    world.advance(1.0)
    world.submit("m")
    assert len(world.loads("m")) == 2
    world.advance(5.0)
    assert failed(world)[0] == 2 * first_seconds


def test_L6d_another_file_or_other_flags_end_the_back_off() -> None:
    """What somebody had to mend is mended: it is tried at once. The same launch, measured anew, is no other."""
    world = World((model("m", option(6)),), broken={"m": Failure(FailureCause.DAMAGED_FILE, "cut off")})
    world.submit("m")
    world.advance(5.0)
    spec = world.models[0]
    measured = replace(spec.options[0], measured_bytes=(5 * 10**9,))
    world.tell(ModelsChanged((replace(spec, options=(measured,), idle_ttl_seconds=60.0),)))
    assert failed(world) == (60.0, "cut off")
    world.broken.clear()
    world.tell(ModelsChanged((replace(spec, options=(replace(spec.options[0], key="m:another file"),)),)))
    job = world.submit("m")
    world.advance(10.0)
    assert world.granted_at(job) is not None


def test_L6d_a_launch_that_is_replaced_while_it_loads_keeps_the_new_one_from_nothing() -> None:
    """Its file is another one by now: it is begun anew for who waits, and what was wrong with it is forgotten."""
    world = World((model("m", option(6)),), broken={"m": Failure(FailureCause.BAD_FLAGS, "not the file it was")})
    job = world.submit("m")
    spec = world.models[0]
    world.broken.clear()
    world.tell(ModelsChanged((replace(spec, options=(replace(spec.options[0], key="m:another file"),)),)))
    world.advance(11.0)
    assert (world.granted_at(job), failed(world)) == (10.5, (0.0, ""))


def test_L6d_R7_a_pin_whose_launch_is_replaced_while_it_loads_is_loaded_at_once() -> None:
    """And that it was to fail is none of the new launch's: its first failure has the first back-off."""
    world = World((model("m", option(6), pinned=True),), broken={"m": Failure(FailureCause.CRASHED, "another file")})
    spec = world.models[0]
    world.tell(ModelsChanged((replace(spec, options=(replace(spec.options[0], key="m:another file"),)),)))
    world.advance(0.5)
    assert world.loads("m") == [0.0, 0.5]
    world.advance(5.0)
    assert failed(world)[0] == FIRST_SECONDS[FailureCause.CRASHED]


# --- deaths in service ------------------------------------------------------------------------------------------


def die_after_serving(world: World) -> None:
    """It is loaded, serves one step, and dies."""
    job = world.submit("m")
    world.advance(12.0)
    world.finish(job)
    world.dies(world.instance("m"), CRASH)
    world.advance(1.0)


def test_L6d_a_model_that_serves_and_dies_again_and_again_is_failed_in_the_end() -> None:
    """Five times in ten minutes it is begun anew at once; the sixth is a failure, told as such, and each further one
    doubles the back-off, served steps or not."""
    world = World((model("m", option(6)),))
    for _ in range(DEATHS):
        die_after_serving(world)
        assert failed(world) == (0.0, "")
    die_after_serving(world)
    seconds, why = failed(world)
    assert seconds == 9.0
    assert why == "its process died more than 5 times in 10 min, this time: signal 11"
    refusal = world.rejection(world.submit("m"))
    assert refusal is not None
    assert refusal.detail["log_tail"] == ["segfault"]
    world.advance(10.0)
    die_after_serving(world)
    assert failed(world)[0] == 19.0


def test_L6d_deaths_that_are_long_ago_do_not_count() -> None:
    """One in two minutes goes on for ever."""
    world = World((model("m", option(6)),))
    for _ in range(20):
        die_after_serving(world)
        world.advance(107.0)
        assert failed(world) == (0.0, "")


def test_L6d_a_persons_load_forgives_all_deaths() -> None:
    """She knows better."""
    world = World((model("m", option(6)),))
    for _ in range(DEATHS + 1):
        die_after_serving(world)
    world.load("m")
    world.advance(10.0)
    die_after_serving(world)
    assert failed(world) == (0.0, "")


@pytest.mark.parametrize(
    ("failure", "back_off_seconds"),
    [
        (None, 0.0),
        (Failure(FailureCause.START_TIMEOUT, "never became ready"), FIRST_SECONDS[FailureCause.START_TIMEOUT]),
    ],
)
def test_L6d_a_death_that_comes_late_says_nothing_of_what_was_begun_anew(
    failure: Failure | None, back_off_seconds: float
) -> None:
    """One death too many, of a process that no stop ended and that was given up for lost: who waits for the next one
    is not refused, and where that failed, nobody's back-off becomes shorter."""
    world = World((model("m", option(6)),))
    for _ in range(DEATHS):
        die_after_serving(world)
    world.warm("m")
    stuck, world.stop_seconds = world.instance("m"), None
    world.step_ends(world.submit("m"), Outcome(OutcomeKind.ENGINE_DIED, status=502, answered=False))
    world.broken = {"m": failure} if failure is not None else {}
    world.advance(25.0)  # half a load after it was given up
    assert failed(world)[0] == back_off_seconds
    world.dies(stuck)
    assert failed(world)[0] == back_off_seconds
    assert world.state("m") == ("cold" if failure is not None else "starting")


def test_L6d_what_was_told_to_go_has_not_died() -> None:
    """Unloaded by a person ten times in a row."""
    world = World((model("m", option(6)),))
    for _ in range(10):
        job = world.submit("m")
        world.advance(12.0)
        world.finish(job)
        world.unload("m")
        world.advance(1.0)
    assert failed(world) == (0.0, "")


# --- D13: the device fails under the process ------------------------------------------------------------------------


def test_D13_a_device_fault_has_the_process_begun_anew_when_its_other_steps_have_ended() -> None:
    """The step is run again at its place by the next process; the other one has its time, nothing new begins."""
    world = World((model("m", option(6, 2)),))
    world.warm("m")
    faulty, other = world.submit("m"), world.submit("m")
    world.step_ends(faulty, FAULT)
    late = world.submit("m")
    assert (world.stops("m"), world.waits(faulty), world.waits(late)) == ([], True, True)
    world.finish(other)
    assert world.stops("m") == [world.now]
    world.advance(11.0)
    assert len(world.loads("m")) == 2
    assert all(world.granted_at(job) is not None for job in (faulty, late))
    assert [grant.step for _, grant in world.grants(faulty)] == [1, 1]
    told = [log.figures["why"] for _, log in world.logged(LogEvent.DRAIN) if log.rule == "D13"]
    assert told == ["its device failed while it served, and may fail until it is begun anew"]


def test_D13_an_answered_step_is_told_that_the_device_failed() -> None:
    """The cause is in its refusal, and no client's error."""
    world = World((model("m", option(6)),))
    world.warm("m")
    job = world.submit("m")
    world.step_ends(job, replace(FAULT, answered=True))
    refusal = world.rejection(job)
    assert refusal is not None
    assert refusal.code is RejectionCode.UPSTREAM_ERROR
    assert "the device of m failed" in refusal.message
    assert refusal.detail["cause"] == "driver_fault"


def test_D13_a_second_process_in_a_row_that_serves_nothing_is_a_failed_load() -> None:
    """With the driver's back-off, and what the process printed that was told to end; the first had served for long."""
    world = World((model("m", option(6)),))
    world.warm("m")
    job = world.submit("m")
    world.step_ends(job, FAULT)
    waiting = world.submit("m")
    world.advance(11.0)
    assert failed(world) == (0.0, "")
    world.step_ends(job, FAULT)
    told = world.rejection(job)
    assert told is not None
    assert told.code is RejectionCode.UPSTREAM_ERROR
    world.advance(0.5)
    refusal = world.rejection(waiting)
    assert refusal is not None
    assert (refusal.code, refusal.retry_after_seconds) == (RejectionCode.MODEL_FAILED, 30.0)
    assert (refusal.detail["cause"], refusal.detail["log_tail"]) == ("driver_fault", ["last line of m"])


def test_D13_a_step_that_is_served_between_makes_the_next_fault_a_first_one() -> None:
    """It was mended by the restart."""
    world = World((model("m", option(6)),))
    world.warm("m")
    for _ in range(3):
        job = world.submit("m")
        world.step_ends(job, FAULT)
        world.advance(11.0)
        world.finish(job)
        assert failed(world) == (0.0, "")


def test_D13_a_process_that_dies_of_its_device_is_told_as_the_devices_failure() -> None:
    """With the last lines that it wrote, and the file that has them all."""
    world = World((model("m", option(6)),))
    world.warm("m")
    for _ in range(2):
        job = world.submit("m")
        world.advance(11.0)
        other = world.instance("m")
        world.finish(job, replace(FAULT, answered=True))
        world.dies(other, replace(CRASH, log_path="m.log"))
        world.advance(1.0)
    seconds, why = failed(world)
    assert (seconds, why) == (29.0, "its device failed while it served, and may fail until it is begun anew")
    refusal = world.rejection(world.submit("m"))
    assert refusal is not None
    assert (refusal.detail["log_tail"], refusal.detail["log"]) == (["segfault"], "m.log")
