"""What is hot keeps low work out (R1, B1): what is said of it, and how it yields where a person opted in."""

import pytest

from gridsched.core.commands import LogEvent
from gridsched.core.ids import ModelName
from gridsched.core.policy import Policy
from tests.stories.world import BACKGROUND, BATCH, World, model, option

YIELDS = Policy(hot_yield_after_seconds=60.0)


def chatty(policy: Policy | None = None) -> World:
    """A model of 8.3 of 15.2 GB that people chat with, and one of 9 GB for low work."""
    models = (model("hot", option(8.3, 2), load=5.0), model("low", option(9, 2), load=5.0))
    world = World(models, {"gpu0": 15.2}, policy or Policy(), step_seconds={"hot": 1.0, "low": 2.0})
    world.warm("hot")
    return world


def chat_each(world: World, seconds: float, times: int) -> None:
    """A person who comes back again and again."""
    for _ in range(times):
        world.submit("hot")
        world.advance(seconds)


def told(world: World) -> list[float]:
    """When it was said that something hot starves low work."""
    return [at for at, _ in world.logged(LogEvent.STARVATION)]


def test_B1_low_work_that_only_something_hot_keeps_out_is_told_of_after_ten_minutes_and_once() -> None:
    """A chat each four minutes: by default the low job waits, and says until when it will be hot; after ten minutes the
    decision log says so, names the model and the setting, and says it no more for this wait."""
    world = chatty()
    job = world.submit("low", BACKGROUND)
    asked_at = world.now
    chat_each(world, 240.0, 12)
    assert world.loads("low") == []
    assert told(world) == [asked_at + 600.0]
    line = world.logged(LogEvent.STARVATION)[0][1]
    assert (line.job_id, line.model, line.rule) == (job, "low", "R1")
    assert (line.figures["hot"], line.figures["setting"]) == (["hot"], "scheduler.hot_yield_after")
    view = world.scheduler.waiting(job, world.now)
    assert view is not None
    assert (view.rule, view.reason) == ("R1", "hot is hot: people chat with it, for 61s more")
    world.advance(120.0)
    assert world.granted_at(job) is not None


def test_B1_a_job_that_waits_for_something_else_too_is_not_told_of() -> None:
    """A pinned model alone leaves too little: that is no starvation by heat."""
    world = World((model("hot", option(4)), model("pin", option(6), pinned=True), model("low", option(11))))
    world.warm("pin")
    world.warm("hot")
    world.submit("low", BACKGROUND)
    world.advance(2000.0)
    assert told(world) == []


def test_R1_hot_yields_once_and_comes_back_after_a_turn() -> None:
    """Opted in: after a minute of waiting the idle hot model goes, the low one has its turn of 30 s though it has more
    to do, and then the hot one is loaded again and hot as before, without anybody asking."""
    world = chatty(YIELDS)
    world.submit("hot")
    world.advance(1.0)
    cools_at = world.now + 300.0
    asked_at = world.now
    jobs = [world.submit("low", BACKGROUND) for _ in range(60)]
    world.advance(59.9)
    assert world.stops("hot") == []
    world.advance(0.1)
    assert world.stops("hot") == [asked_at + 60.0]
    world.advance(0.75 + 5.0 + 29.0)
    assert world.granted_at(jobs[0]) is not None
    assert (world.state("low"), world.state("hot")) == ("ready", "cold")
    world.advance(10.0)
    assert world.state("low") == "cold"
    assert len(world.loads("hot")) == 2
    world.advance(5.0)
    assert world.state("hot") == "ready"
    instance = world.scheduler.state.models[ModelName("hot")].instance
    assert instance is not None
    assert instance.hot_until == cools_at
    world.advance(cools_at - world.now - 0.1)
    assert len(world.stops("hot")) == 1, "it has yielded once and nobody has chatted with it since"
    assert any(world.waits(job) for job in jobs)
    world.advance(5.2)
    assert len(world.stops("hot")) == 2


def test_R1_hot_yields_again_only_after_a_chat() -> None:
    """A person comes back: that heat is new, and may yield again, as long after its return as the first
    time."""
    world = chatty(YIELDS)
    for _ in range(200):
        world.submit("low", BACKGROUND)
    world.advance(120.0)
    assert len(world.stops("hot")) == 1
    world.submit("hot")
    back_at = world.loads("hot")[1] + 5.0
    world.advance(back_at + 59.0 - world.now)
    assert len(world.stops("hot")) == 1
    world.advance(2.0)
    assert len(world.stops("hot")) == 2


@pytest.mark.parametrize("policy", [Policy(), YIELDS], ids=["off", "after a minute"])
def test_R1_a_model_that_works_never_yields(policy: Policy) -> None:
    """A long chat runs: opted in or not, it stays."""
    world = chatty(policy)
    world.step_seconds["hot"] = 500.0
    world.submit("hot")
    world.submit("low", BACKGROUND)
    world.advance(400.0)
    assert world.stops("hot") == []


def test_R1_a_chat_during_the_others_turn_has_its_model_back_at_once() -> None:
    """The person does not wait for the turn to end, and the errand is over with the load."""
    world = chatty(YIELDS)
    for _ in range(60):
        world.submit("low", BACKGROUND)
    world.advance(70.0)
    assert world.state("low") == "ready"
    chat = world.submit("hot")
    world.advance(10.0)
    assert world.granted_at(chat) is not None
    assert world.scheduler.state.errands == {}
    assert len(world.loads("hot")) == 2


def test_R1_a_batch_guest_has_its_whole_turn_and_no_more() -> None:
    """The class of the guest makes its turn neither shorter nor longer."""
    world = chatty(YIELDS)
    for _ in range(60):
        world.submit("low", BATCH)
    world.advance(66.0)
    ready_at = world.now
    assert world.state("low") == "ready"
    world.advance(28.0)
    assert world.state("low") == "ready"
    world.advance(12.0)
    assert world.stops("low")[0] <= ready_at + 33.0


def test_R1_what_yielded_is_loaded_for_its_own_low_work_as_soon_as_there_is_room() -> None:
    """Its return waits for the guest's turn, but the guest has gone early: a background job of its own does not wait
    beside an empty card."""
    models = (model("hot", option(8.3, 2), load=5.0), model("low", option(9, 2), load=5.0, idle_ttl_seconds=3.0))
    world = World(models, {"gpu0": 15.2}, YIELDS, step_seconds={"hot": 1.0, "low": 1.0})
    world.warm("hot")
    world.submit("low", BACKGROUND)
    world.advance(72.0)
    assert world.loads("low")
    own = world.submit("hot", BACKGROUND)
    world.advance(15.0)
    assert world.stops("low"), "idle for three seconds"
    assert world.granted_at(own) is not None
    assert world.granted_at(own) < world.loads("low")[0] + 5.0 + 30.0, "before the guest's turn would have been over"
