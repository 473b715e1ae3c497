"""P5, P8, L6d and changes of configuration: processes that fail, a server that goes, models that come and go."""

from gridsched.core.commands import RejectionCode
from gridsched.core.events import DrainBegan, Failure, FailureCause, ModelsChanged, PolicyChanged
from gridsched.core.job import Outcome, OutcomeKind
from gridsched.core.policy import Policy, QueueLimits
from tests.stories.world import BACKGROUND, BATCH, CHAT, DIED, World, model, option

OOM = Failure(FailureCause.DEVICE_OOM, "cudaMalloc failed: out of memory", ("loading", "out of memory"))
CRASH = Failure(FailureCause.CRASHED, "signal 11", ("segfault",))
STALLED = Outcome(OutcomeKind.STALLED, answered=True)


def test_L6d_a_failed_load_ends_its_waiting_jobs_with_the_cause_and_the_log() -> None:
    """All of them, at once; the memory is given back."""
    world = World((model("m", option(6)),), broken={"m": OOM})
    jobs = [world.submit("m"), world.submit("m", BACKGROUND)]
    world.advance(5.0)
    for job in jobs:
        rejection = world.rejection(job)
        assert rejection is not None
        assert rejection.code is RejectionCode.MODEL_FAILED
        assert rejection.detail["cause"] == "device_oom"
        assert rejection.detail["log_tail"] == ["loading", "out of memory"]
        assert rejection.retry_after_seconds == 10.0
    world.advance(1.0)
    assert world.scheduler.state.ledger.books["gpu0"].free_bytes == 16 * 10**9  # type: ignore[index]


def test_L6d_new_jobs_are_refused_until_the_back_off_is_over_which_doubles_up_to_900() -> None:
    """10, 20, 40 … 900 s; in between an honest retry_after and no load; the first job after it tries once."""
    world = World((model("m", option(6)),), broken={"m": OOM})
    waits = []
    for number in range(1, 10):
        world.submit("m")
        assert len(world.loads("m")) == number
        world.advance(5.0)
        rejection = world.rejection(world.submit("m"))
        assert rejection is not None
        waits.append(rejection.retry_after_seconds)
        assert len(world.loads("m")) == number
        world.advance(rejection.retry_after_seconds or 0.0)
    assert waits == [10.0, 20.0, 40.0, 80.0, 160.0, 320.0, 640.0, 900.0, 900.0]


def test_L6d_a_half_open_try_that_succeeds_closes_it() -> None:
    """Mended, loaded, served: the next failure begins at 10 s again."""
    world = World((model("m", option(6)),), broken={"m": OOM})
    for _ in range(2):
        world.submit("m")
        world.advance(30.0)
    world.broken.clear()
    job = world.submit("m")
    world.advance(10.0)
    world.finish(job)
    assert world.scheduler.snapshot(world.now).failed == {}
    world.dies(world.instance("m"), CRASH)
    world.broken["m"] = OOM
    world.submit("m")
    world.advance(5.0)
    assert world.scheduler.snapshot(world.now).failed["m"] == (world.now + 10.0, OOM.message)  # type: ignore[index]


def test_P5_an_unanswered_step_is_run_again_once_after_the_death_is_verified() -> None:
    """The step waits at its arrival place; the model is loaded anew; a second death is an error of the engine."""
    world = World((model("m", option(6, 1)),))
    job = world.submit("m")
    other = world.submit("m")
    world.advance(10.0)
    instance = world.instance("m")
    world.step_ends(job, DIED)
    assert world.waits(job)
    assert len(world.loads("m")) == 1
    world.dies(instance, CRASH)
    world.advance(10.0)
    assert len(world.loads("m")) == 2
    assert [grant.step for _, grant in world.grants(job)] == [1, 1]
    assert world.granted_at(other) is None
    second = world.instance("m")
    world.dies(second, CRASH)
    world.step_ends(job, DIED)
    rejection = world.rejection(job)
    assert rejection is not None
    assert rejection.code is RejectionCode.UPSTREAM_ERROR
    assert rejection.detail == {"cause": "crashed", "log_tail": ["segfault"]}
    failed = world.rejection(other)
    assert failed is not None
    assert failed.code is RejectionCode.MODEL_FAILED


def test_P5_an_answered_step_is_not_run_again() -> None:
    """A byte of the answer has reached the client."""
    world = World((model("m", option(6)),))
    world.warm("m")
    job = world.submit("m")
    world.step_ends(job, Outcome(OutcomeKind.ENGINE_DIED, answered=True))
    rejection = world.rejection(job)
    assert rejection is not None
    assert rejection.code is RejectionCode.UPSTREAM_ERROR


def test_P5_a_process_with_a_dead_step_takes_no_more_work_until_its_exit() -> None:
    """The exit has not been heard; another step still runs: new jobs wait, and it is stopped when that one ends."""
    world = World((model("m", option(6, 4)),))
    world.warm("m")
    first, second = world.submit("m"), world.submit("m")
    world.step_ends(first, DIED)
    third = world.submit("m")
    assert world.waits(third)
    assert world.stops("m") == []
    world.finish(second)
    assert world.stops("m") == [world.now]
    world.advance(11.0)
    assert world.granted_at(third) is not None
    assert len(world.grants(first)) == 2


def test_P5_a_crash_in_service_is_reloaded_at_once_the_first_time() -> None:
    """It had served: waiting jobs get a new process without a back-off."""
    world = World((model("m", option(6, 1)),))
    world.warm("m")
    job = world.submit("m")
    waiting = world.submit("m")
    world.dies(world.instance("m"), CRASH)
    world.step_ends(job, DIED)
    world.advance(11.0)
    assert world.granted_at(job) is not None
    assert world.rejection(waiting) is None


def test_P5_a_crash_takes_down_one_model() -> None:
    """The other's steps go on."""
    world = World((model("a", option(6)), model("b", option(6))))
    world.warm("a", "b")
    other = world.submit("b")
    world.dies(world.instance("a"), CRASH)
    world.advance(5.0)
    world.finish(other)
    assert world.state("b") == "ready"


def test_S9_a_stalled_step_restarts_its_instance_when_its_other_steps_have_ended() -> None:
    """No byte for the stall limit: the job is told, no new work, the stop comes with the last step's end."""
    world = World((model("m", option(6, 2)),))
    world.warm("m")
    stalled, healthy = world.submit("m"), world.submit("m")
    world.finish(stalled, STALLED)
    waiting = world.submit("m")
    assert world.stops("m") == []
    assert world.waits(waiting)
    world.finish(healthy)
    assert world.stops("m") == [world.now]
    world.advance(11.0)
    assert world.granted_at(waiting) is not None


def test_S9_a_stalled_step_of_a_job_that_waits_on_is_an_upstream_error() -> None:
    """It is not run again."""
    world = World((model("m", option(6, 2)),))
    world.warm("m")
    job = world.submit("m")
    world.step_ends(job, STALLED)
    rejection = world.rejection(job)
    assert rejection is not None
    assert rejection.code is RejectionCode.UPSTREAM_ERROR
    assert world.stops("m") == [world.now]


def test_P8_draining_refuses_all_that_waits_and_stops_each_model_with_its_last_step() -> None:
    """Running steps finish; idle and starting instances stop at once; a job between two steps is refused."""
    world = World((model("busy", option(4, 1)), model("idle", option(4)), model("starts", option(4))))
    world.warm("busy", "idle")
    running = world.submit("busy", steps=3)
    waiting = [world.submit("busy", job_class) for job_class in (CHAT, BACKGROUND, BATCH)]
    loading = world.submit("starts")
    world.tell(DrainBegan())
    codes = {job: rejection.code for job in (*waiting, loading) if (rejection := world.rejection(job))}
    assert set(codes.values()) == {RejectionCode.DRAINING}
    assert len(codes) == 4
    assert (world.stops("idle"), world.stops("starts"), world.stops("busy")) == ([world.now], [world.now], [])
    late = world.rejection(world.submit("busy"))
    assert late is not None
    assert late.code is RejectionCode.DRAINING
    world.step_ends(running)
    assert world.rejection(running) is not None
    assert world.stops("busy") == [world.now]
    world.tell(DrainBegan())
    assert world.scheduler.snapshot(world.now).draining


def test_an_unknown_model_is_refused() -> None:
    """It never was in the configuration."""
    world = World((model("m", option(4)),))
    rejection = world.rejection(world.submit("nobody"))
    assert rejection is not None
    assert rejection.code is RejectionCode.MODEL_NOT_FOUND


def test_a_model_that_is_gone_takes_no_new_job_and_is_unloaded_when_idle() -> None:
    """Running and waiting work is served first; those who wait for a load of it are refused."""
    world = World((model("m", option(4, 1)), model("cold", option(14)), model("keep", option(4))))
    world.warm("m", "keep")
    running, waiting = world.submit("m"), world.submit("m")
    loads = world.submit("cold")
    world.tell(ModelsChanged((world.models[2],)))
    for refused in (world.submit("m"), loads):
        rejection = world.rejection(refused)
        assert rejection is not None
        assert rejection.code is RejectionCode.MODEL_NOT_FOUND
    world.finish(running)
    assert world.stops("m") == []
    world.finish(waiting)
    assert world.stops("m") == [world.now]
    assert world.state("keep") == "ready"


def test_a_new_policy_holds_for_those_who_wait_already() -> None:
    """The longest wait is shortened: it counts from when they began to wait."""
    world = World((model("m", option(4, 1)),))
    world.warm("m")
    world.submit("m")
    low = world.submit("m", BACKGROUND)
    world.advance(5.0)
    limits = QueueLimits(max_wait_seconds=6.0)
    world.tell(PolicyChanged(Policy(queues={CHAT: QueueLimits(), BACKGROUND: limits, BATCH: limits})))
    world.advance(0.9)
    assert world.waits(low)
    world.advance(0.1)
    assert world.rejection(low) is not None


def test_S9_an_engine_that_never_settles_is_restarted_though_nobody_else_wants_it() -> None:
    """Its only client left in mid-step: a minute later the process is given up, to the second."""
    world = World((model("m", option(4, 2)),))
    world.warm("m")
    job = world.submit("m", BACKGROUND)
    world.finish(job, Outcome(OutcomeKind.CLIENT_GONE), settled=False)
    gone_at = world.now
    world.advance(59.0)
    assert world.stops("m") == []
    world.advance(2.0)
    assert world.stops("m") == [gone_at + 60.0]
