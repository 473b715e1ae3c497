"""Another configuration while models run: what changed is loaded anew, without a step broken off or a job lost (R2)."""

from dataclasses import replace

from gridsched.core.events import ModelsChanged
from gridsched.core.ids import ModelName
from gridsched.core.model import ModelSpec
from tests.stories.world import BACKGROUND, World, model, option


def with_flags(spec: ModelSpec, flags: str = "other") -> ModelSpec:
    """The same model, launched otherwise."""
    return replace(spec, launched_with=flags)


A, B = model("a", option(4, parallel=2)), model("b", option(4))


def world_with(*warm: str) -> World:
    """Two models that fit side by side, those named loaded."""
    world = World((A, B))
    world.warm(*warm)
    return world


def test_R2_reload_a_running_step_ends_before_its_changed_model_goes_and_who_waits_is_served_by_the_next() -> None:
    """One stream, one new request behind the change: the stream goes on, the request gets the new process."""
    world = world_with("a")
    stream = world.submit("a")
    old = world.instance("a")
    world.tell(ModelsChanged((with_flags(A), B)))
    waiting = world.submit("a")
    world.advance(30.0)
    assert (world.state("a"), world.stops("a"), world.waits(waiting)) == ("draining", [], True)
    world.finish(stream)
    stopped_at = world.now
    world.advance(30.0)
    assert world.stops("a") == [stopped_at]
    assert world.grant(waiting).instance_id != old
    assert world.rejection(waiting) is None


def test_R2_reload_a_model_whose_launch_is_as_it_was_is_not_touched() -> None:
    """Neither the neighbour of a changed model, nor one whose idle time alone changed."""
    world = world_with("a", "b")
    world.tell(ModelsChanged((with_flags(A), replace(B, idle_ttl_seconds=77.0))))
    world.advance(20.0)
    assert (world.stops("b"), len(world.loads("b"))) == ([], 1)


def test_R2_reload_an_idle_model_is_loaded_anew_at_once() -> None:
    """It was there before, so it is there after."""
    world = world_with("a")
    world.tell(ModelsChanged((with_flags(A), B)))
    world.advance(20.0)
    assert (world.state("a"), len(world.stops("a")), len(world.loads("a"))) == ("ready", 1, 2)
    world.tell(ModelsChanged((with_flags(A), B)))
    world.advance(20.0)
    assert len(world.loads("a")) == 2


def test_S4_reload_a_model_that_people_just_used_is_loaded_anew_when_their_tail_is_over() -> None:
    """It comes back as background work, which holds off for two seconds; it is not forgotten meanwhile."""
    world = world_with("a")
    world.finish(world.submit("a"))
    world.tell(ModelsChanged((with_flags(A), B)))
    world.advance(1.0)
    assert (world.state("a"), len(world.loads("a"))) == ("cold", 1)
    world.advance(20.0)
    assert (world.state("a"), len(world.loads("a"))) == ("ready", 2)


def test_L6_reload_several_models_come_back_one_after_the_other() -> None:
    """A changed default concerns all; none is forgotten because another is loading."""
    models = tuple(model(name, option(3)) for name in "abcd")
    world = World(models)
    world.warm(*"abcd")
    world.tell(ModelsChanged(tuple(map(with_flags, models))))
    world.advance(60.0)
    assert [(world.state(name), len(world.loads(name))) for name in "abcd"] == [("ready", 2)] * 4


def test_R2_reload_a_rung_that_is_gone_is_a_changed_launch() -> None:
    """Its process has an option that is in the ladder no more."""
    world = world_with("a")
    world.tell(ModelsChanged((model("a", option(6, parallel=1)), B)))
    world.advance(20.0)
    instance = world.scheduler.state.models[ModelName("a")].instance
    assert instance is not None
    assert instance.parallel == 1


def test_R2_reload_back_to_what_it_was_undoes_a_drain() -> None:
    """Two changes while a step runs: the process takes work again, and nothing is loaded."""
    world = world_with("a")
    stream = world.submit("a")
    world.tell(ModelsChanged((with_flags(A), B)))
    waiting = world.submit("a")
    assert world.waits(waiting)
    world.tell(ModelsChanged((A, B)))
    assert world.grant(waiting).instance_id == world.grant(stream).instance_id
    world.finish(stream)
    world.finish(waiting)
    world.advance(10.0)
    assert (world.stops("a"), len(world.loads("a"))) == ([], 1)


def test_R2_reload_a_load_under_way_is_begun_anew_for_those_who_wait() -> None:
    """Its process would be one that the configuration no longer asks for."""
    world = World((A, B))
    waiting = world.submit("a", BACKGROUND)
    world.advance(3.0)
    world.tell(ModelsChanged((with_flags(A), B)))
    world.advance(30.0)
    assert (len(world.loads("a")), world.state("a")) == (2, "ready")
    assert world.granted_at(waiting) is not None


def test_R2_reload_a_persons_load_is_answered_by_the_next_process() -> None:
    """The wish outlives the load that was begun for it."""
    world = World((A, B))
    request = world.load("a")
    world.advance(3.0)
    world.tell(ModelsChanged((with_flags(A), B)))
    assert world.answer(request) is None
    world.advance(30.0)
    assert world.done(request)


def test_R7_reload_a_changed_pin_comes_back_by_itself() -> None:
    """Once, as a pin."""
    pinned = replace(A, pinned=True)
    world = World((pinned, B))
    world.advance(15.0)
    world.tell(ModelsChanged((with_flags(pinned), B)))
    world.advance(30.0)
    assert (world.state("a"), len(world.loads("a"))) == ("ready", 2)


def test_D6_reload_a_model_on_a_lost_device_serves_on_until_the_device_is_back() -> None:
    """It could not be loaded there again."""
    world = world_with("a")
    world.lose()
    world.tell(ModelsChanged((with_flags(A), B)))
    world.advance(20.0)
    assert (world.state("a"), world.stops("a")) == ("ready", [])
    world.find()
    world.advance(20.0)
    assert (world.state("a"), len(world.loads("a"))) == ("ready", 2)


def test_S9_reload_a_removed_model_takes_no_new_job_and_goes_when_its_steps_have_ended() -> None:
    """Running requests finish, waiting ones that it can still serve too."""
    world = world_with("a")
    stream = world.submit("a")
    world.tell(ModelsChanged((B,)))
    late = world.submit("a")
    rejection = world.rejection(late)
    assert rejection is not None
    assert rejection.code.value == "model_not_found"
    world.advance(5.0)
    assert world.stops("a") == []
    world.finish(stream)
    world.advance(5.0)
    assert len(world.stops("a")) == 1
