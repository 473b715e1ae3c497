"""What persons ask for: loads and unloads, each answered once."""

import pytest

from gridsched.core.commands import LogEvent, StopInstance
from gridsched.core.events import DeviceRead, DrainBegan, Failure, FailureCause, ModelsChanged
from gridsched.core.ids import DeviceName
from gridsched.core.policy import Policy
from tests.stories.world import BACKGROUND, DIED, GB, World, model, option

CRASH = Failure(FailureCause.CRASHED, "it died", ("boom",))


def test_R7_a_persons_load_is_answered_when_it_is_ready() -> None:
    """With what came of it; a second person joins, a third finds it there; no device enters interactive mode."""
    world = World((model("m", option(6, 2)), model("low", option(4))))
    world.warm("low", job_class=BACKGROUND)
    request = world.load("m")
    low = world.submit("low", BACKGROUND)
    assert world.granted_at(low) == world.now
    second = world.load("m")
    assert world.answer(request) is None
    world.advance(10.0)
    answer = world.answer(request)
    assert answer is not None
    assert answer.rejection is None
    assert dict(answer.detail) == {
        "model": "m",
        "instance": world.instance("m"),
        "devices": ["gpu0"],
        "ctx_size": 8192,
        "parallel": 2,
        "load_s": 10.0,
        "bytes": 6 * GB,
    }
    assert world.done(second)
    assert world.done(world.load("m"))
    assert len(world.loads("m")) == 1


def test_R7_a_persons_load_is_interactive_work() -> None:
    """It evicts what people chatted with, as a chat would, and goes before low loads."""
    world = World((model("hot", option(10)), model("m", option(10)), model("low", option(10))))
    world.warm("hot")
    low = world.submit("low", BACKGROUND)
    request = world.load("m")
    world.advance(11.0)
    assert world.done(request)
    assert world.waits(low)
    assert world.refused(world.load("nothing")) == "model_not_found"


def test_R7_a_persons_load_is_not_taken_away_by_a_chat() -> None:
    """L6c is for low loads: the chat waits for the end of this one, and then evicts it."""
    world = World((model("m", option(10), load=60.0), model("chat", option(10))))
    request = world.load("m")
    chat = world.submit("chat")
    world.advance(60.0)
    assert world.done(request)
    assert world.stops("m") == [60.0]
    world.advance(11.0)
    assert world.granted_at(chat) is not None


def test_L7_a_persons_load_that_never_fits_is_refused_at_once() -> None:
    """With the sum, as a chat."""
    world = World((model("m", option(20)),))
    request = world.load("m")
    answer = world.answer(request)
    assert answer is not None
    assert answer.rejection is not None
    assert answer.rejection.detail["required_bytes"] == 20 * GB
    assert world.refused(request) == "insufficient_vram"


def test_L7_a_persons_load_that_does_not_fit_now_is_refused_after_fit_wait() -> None:
    """A game holds the memory: at exactly 10 s, or loaded when the game leaves before."""
    world = World((model("m", option(12)),))
    world.read(10.0, {})
    first = world.load("m")
    world.advance(9.9)
    assert world.answer(first) is None
    world.advance(0.1)
    assert world.refused(first) == "insufficient_vram"
    second = world.load("m")
    world.advance(5.0)
    world.read(0.0, {})
    world.advance(10.0)
    assert world.done(second)


def test_A13_a_persons_load_closes_a_back_off() -> None:
    """Clients are refused, the person is not; when it is ready clients are served."""
    world = World((model("m", option(6)),), broken={"m": CRASH})
    world.submit("m")
    world.advance(5.0)
    assert world.rejection(world.submit("m")) is not None
    world.broken.clear()
    request = world.load("m")
    job = world.submit("m")
    world.advance(10.0)
    assert world.done(request)
    assert world.granted_at(job) is not None


def test_L6d_a_persons_load_that_fails_is_told_the_cause() -> None:
    """As a client, with the engine's last lines."""
    world = World((model("m", option(6)),), broken={"m": CRASH})
    request = world.load("m")
    world.advance(5.0)
    answer = world.answer(request)
    assert answer is not None
    assert answer.rejection is not None
    assert answer.rejection.code.value == "model_failed"
    assert answer.rejection.detail["log_tail"] == ["boom"]
    world.advance(1000.0)
    assert len(world.loads("m")) == 1


def test_L5_an_unload_is_answered_when_the_memory_is_back() -> None:
    """Not when it is told, not when the process is gone."""
    world = World((model("m", option(6)),))
    world.warm("m")
    request = world.unload("m")
    second = world.unload("m")
    world.advance(0.7)
    assert world.answer(request) is None
    world.advance(0.1)
    assert world.done(request)
    assert world.done(second)
    assert world.done(world.unload("m"))
    assert world.refused(world.unload("nothing")) == "model_not_found"


def test_R2_an_unload_lets_running_steps_end() -> None:
    """No new step begins; what comes meanwhile waits for the next process of that name."""
    world = World((model("m", option(6, 2)),))
    world.warm("m")
    running = world.submit("m")
    request = world.unload("m")
    late = world.submit("m")
    world.advance(100.0)
    assert world.stops("m") == []
    assert world.answer(request) is None
    world.finish(running)
    assert world.stops("m") == [world.now]
    world.advance(11.0)
    assert world.done(request)
    assert world.granted_at(late) is not None


def test_R7_an_unload_is_refused_while_jobs_wait_for_the_model() -> None:
    """They would load it again in the same moment."""
    world = World((model("m", option(6)),))
    world.warm("m")
    world.submit("m")
    waiting = world.submit("m")
    assert world.refused(world.unload("m")) == "conflict"
    world.leave(waiting)
    assert world.answer(world.unload("m")) is None


def test_R2_a_forced_unload_stops_with_steps_in_flight_and_says_so() -> None:
    """Its cut step is run once more by P5, on a new process; a step that had answered is refused."""
    world = World((model("m", option(6, 2)),))
    world.warm("m")
    fresh, told = world.submit("m"), world.submit("m")
    request = world.unload("m", force=True)
    said = [log for at, log in world.logged(LogEvent.STOP) if at == world.now]
    assert [(log.rule, log.figures["forced"], log.figures["steps"]) for log in said] == [("R2", True, 2)]
    assert any(isinstance(command, StopInstance) for command in world.last)
    world.step_ends(fresh, DIED)
    world.finish(told, DIED)
    world.advance(11.0)
    assert world.done(request)
    assert len(world.grants(fresh)) == 2
    assert world.state("m") == "ready"


def test_R2_the_steps_of_a_forced_unload_may_end_after_its_memory_is_back() -> None:
    """Nothing is told to stop twice, and nothing is left behind."""
    world = World((model("m", option(6)),))
    world.warm("m")
    job = world.submit("m")
    request = world.unload("m", force=True)
    world.advance(5.0)
    assert world.done(request)
    world.finish(job, DIED)
    assert world.scheduler.state.instances == {}
    assert len(world.stops("m")) == 1


def test_R2_who_lost_patience_with_an_unload_may_force_it() -> None:
    """It is told to stop once, though its step ends before its process does; both wishes are done."""
    world = World((model("m", option(6)),))
    world.warm("m")
    job = world.submit("m")
    patient = world.unload("m")
    forced = world.unload("m", force=True)
    assert world.stops("m") == [world.now]
    world.finish(job, DIED)
    world.advance(1.0)
    assert len(world.stops("m")) == 1
    assert world.done(patient)
    assert world.done(forced)


def test_L5_an_unload_whose_memory_never_comes_back_is_unverified() -> None:
    """At the deadline of L5; and whoever asks after that hears it at once."""
    world = World((model("m", option(6)),), lag_seconds=None)
    world.warm("m")
    request = world.unload("m")
    world.advance(19.9)
    assert world.answer(request) is None
    world.advance(0.1)
    assert world.refused(request) == "unload_unverified"
    assert world.refused(world.unload("m")) == "unload_unverified"


def test_R7_an_unload_ends_a_load_that_a_person_asked_for() -> None:
    """The load is answered with why, the unload when its memory is back."""
    world = World((model("m", option(6)),))
    load = world.load("m")
    world.advance(9.0)
    unload = world.unload("m")
    assert world.refused(load) == "conflict"
    world.advance(1.0)
    assert world.done(unload)
    assert world.state("m") == "cold"


def test_R7_a_load_in_the_middle_of_an_unload_comes_after_it() -> None:
    """Both are done, in their order."""
    world = World((model("m", option(6)),))
    world.warm("m")
    unload = world.unload("m")
    load = world.load("m")
    world.advance(0.75)
    assert world.done(unload)
    world.advance(10.0)
    assert world.done(load)


def test_R2_a_persons_load_of_a_model_that_drains_for_low_work_undoes_that() -> None:
    """As a chat would; and it is there at once."""
    world = World((model("b", option(10)), model("m", option(10))))
    world.warm("b", job_class=BACKGROUND)
    world.advance(60.0)
    running = world.submit("b", BACKGROUND)
    world.submit("m", BACKGROUND)
    world.advance(31.0)
    assert world.state("b") == "draining"
    request = world.load("b")
    assert world.done(request)
    assert world.state("b") == "ready"
    world.finish(running)


@pytest.mark.parametrize("end", ["drain", "removed"])
def test_every_wish_is_answered_once_however_it_ends(end: str) -> None:
    """The server goes away, or the model leaves the configuration, in the middle of a load and of an unload."""
    world = World((model("m", option(6)), model("n", option(6))))
    world.warm("n")
    job = world.submit("n")
    load, unload = world.load("m"), world.unload("n")
    world.advance(1.0)
    if end == "drain":
        world.tell(DrainBegan())
        assert world.refused(load) == "draining"
        assert world.refused(world.load("n")) == "draining"
        assert world.refused(world.pin("n")) == "draining"
    else:
        world.tell(ModelsChanged(()))
        assert world.refused(load) == "model_not_found"
    world.finish(job)
    world.advance(20.0)
    assert world.done(unload)
    assert world.done(world.unload("n"))


def test_R6_a_request_moves_the_idle_timer_and_nothing_else() -> None:
    """60 s instead of 30 after its end; 0 is ignored; the next one without a word is as configured."""
    world = World((model("m", option(6), idle_ttl_seconds=30.0),), step_seconds={"m": 1.0})
    world.submit("m")
    world.advance(11.0)
    world.submit("m", ttl_seconds=60.0)
    world.advance(60.9)
    assert world.state("m") == "ready"
    world.submit("m", ttl_seconds=0.0)
    world.advance(31.0)
    assert world.state("m") == "cold"
    world.submit("m", ttl_seconds=5.0)
    world.advance(12.0)
    world.submit("m")
    world.advance(30.9)
    assert world.state("m") == "ready"
    world.advance(0.1)
    assert world.state("m") == "cold"


def test_R6_a_request_can_have_a_model_unloaded_that_never_would_be() -> None:
    """No `idle_ttl` is configured; pinned it stays all the same."""
    world = World((model("m", option(6)), model("p", option(6), pinned=True)), step_seconds={"m": 1.0, "p": 1.0})
    world.submit("m", ttl_seconds=5.0)
    world.submit("p", ttl_seconds=5.0)
    world.advance(60.0)
    assert (world.state("m"), world.state("p")) == ("cold", "ready")


def test_C5_a_model_whose_jobs_wait_is_not_idle() -> None:
    """Its jobs are held by a chat for longer than its `idle_ttl`: it is still there when they may run."""
    world = World(
        (model("low", option(4), idle_ttl_seconds=10.0), model("chat", option(4))),
        policy=Policy(background_max_starvation_seconds=0.0),
    )
    world.warm("chat")
    world.submit("low", BACKGROUND)
    world.advance(9.0)
    chat = world.submit("chat")
    world.advance(100.0)
    world.finish(chat)
    world.advance(2.0)
    assert world.running("low") == 1


def test_R7_a_device_that_is_not_there_keeps_a_persons_load_from_nothing_but_an_answer() -> None:
    """A reading of another device changes nothing, and the wish is refused as never fitting."""
    world = World((model("m", option(6, device="gpu9")),))
    world.tell(DeviceRead(DeviceName("gpu9"), 1, 0))
    assert world.refused(world.load("m")) == "insufficient_vram"
