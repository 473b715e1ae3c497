"""What a person's load would come to, asked before it is: planning's own answer, and nothing moves."""

import random

import pytest

from gridsched.core.commands import StartInstance, StopInstance
from gridsched.core.events import DrainBegan, Failure, FailureCause
from gridsched.core.ids import DeviceName, ModelName
from gridsched.core.model import LaunchOption
from gridsched.core.snapshot import LoadView
from tests.stories.world import BACKGROUND, BATCH, CHAT, GB, World, model, option

CRASH = Failure(FailureCause.CRASHED, "it died", ("boom",))


def outlook(world: World, name: str, *options: LaunchOption) -> LoadView:
    """What would come of a load now."""
    found = world.scheduler.outlook(ModelName(name), world.now, options or None)
    assert found is not None
    return found


def test_R7_a_load_that_can_begin_says_where_and_how() -> None:
    """At once, and the world is as it was."""
    world = World((model("m", option(6, 2)),))
    before = world.scheduler.snapshot(world.now)
    found = outlook(world, "m")
    assert found.plan is not None
    assert (found.rule, found.plan.victims, dict(found.plan.needs)) == ("", (), {DeviceName("gpu0"): 6 * GB})
    assert world.scheduler.snapshot(world.now) == before
    assert world.scheduler.outlook(ModelName("nothing"), world.now) is None


def test_R7_what_is_there_or_on_its_way_is_said() -> None:
    """Loading, ready, and on its way out for somebody who comes first."""
    world = World((model("m", option(10)), model("other", option(10))))
    world.load("m")
    assert outlook(world, "m").instance is not None
    assert outlook(world, "m").plan is None
    world.advance(10.0)
    job = world.submit("m", BACKGROUND)
    chat = world.submit("other")
    found = outlook(world, "m")
    assert found.instance is not None
    assert (found.plan, found.rule) == (None, "S6b")
    world.finish(job)
    world.advance(11.0)
    assert world.granted_at(chat) is not None


def test_R1_who_would_go_is_named_with_why_it_was_chosen() -> None:
    """An idle one goes at once, of a busy one the steps end first; a pinned one is never named."""
    world = World((model("pin", option(4), pinned=True), model("a", option(6)), model("m", option(10))))
    world.advance(11.0)
    world.warm("a", job_class=BACKGROUND)
    found = outlook(world, "m")
    assert found.plan is not None
    (victim,) = found.plan.victims
    assert (victim.model, victim.bytes, victim.steps, found.rule) == ("a", 6 * GB, 0, "R3")
    assert victim.terms["price"] >= 0
    job = world.submit("a", BACKGROUND)
    assert world.granted_at(job) is not None
    found = outlook(world, "m")
    assert (found.rule, found.reason) == ("R2", "running steps of a end first")


def test_L6_a_load_that_waits_for_another_says_so() -> None:
    """A person's goes after the person's before."""
    world = World((model("a", option(4)), model("m", option(4))))
    world.load("a")
    assert (outlook(world, "m").rule, outlook(world, "m").reason) == ("L6", "a is loading")


def test_L7_what_cannot_fit_is_refused_with_the_arithmetic() -> None:
    """Never, and not now because of a program outside; the same sums as the load itself would be refused with."""
    world = World((model("big", option(20)), model("m", option(12))))
    never = outlook(world, "big").refusal
    assert never is not None
    assert never.detail["required_bytes"] == 20 * GB
    world.read(10.0, {})
    found = outlook(world, "m")
    assert found.refusal is not None
    request = world.load("m")
    world.advance(10.0)
    answer = world.answer(request)
    assert answer is not None
    assert answer.rejection == found.refusal


def test_R8_a_leased_device_is_named() -> None:
    """Nothing loads there; that is the reason, and whose lease it is is in the sentence."""
    world = World((model("m", option(4)),))
    world.lease(owner="a training run")
    found = outlook(world, "m")
    assert found.rule == "R8"
    assert found.refusal is not None
    assert "a training run" in found.refusal.message


def test_L6d_a_back_off_is_no_obstacle_for_a_person() -> None:
    """Whose load closes it: what it would come to is a load."""
    world = World((model("m", option(4)),), broken={"m": CRASH})
    world.load("m")
    world.advance(10.0)
    assert world.scheduler.snapshot(world.now).failed
    found = outlook(world, "m")
    assert found.plan is not None
    assert found.rule == ""
    assert world.scheduler.snapshot(world.now).failed


def test_L6a_a_shortage_is_forgotten_by_a_persons_load() -> None:
    """It ran out of memory before: a person's load asks for what was estimated, and so does the question."""
    world = World((model("m", option(8)),), broken={"m": Failure(FailureCause.DEVICE_OOM, "no memory")})
    world.load("m")
    world.advance(10.0)
    found = outlook(world, "m")
    assert found.plan is not None
    assert dict(found.plan.needs) == {DeviceName("gpu0"): 8 * GB}


def test_other_options_take_the_place_of_its_own_process() -> None:
    """A longer context of a model that is loaded: its own memory is part of what there will be."""
    world = World((model("m", option(10)),))
    world.warm("m")
    found = outlook(world, "m", option(14, ctx=16384))
    assert found.plan is not None
    assert found.option is not None
    assert (found.option.ctx_size, found.plan.victims, found.rule) == (16384, (), "R3")
    found = outlook(world, "m", option(17, ctx=32768))
    assert found.refusal is not None
    assert outlook(world, "m").instance is not None
    same = outlook(world, "m", *model("m", option(10)).options)
    assert (same.plan, same.refusal, same.rule) == (None, None, "")


def test_P8_a_server_that_goes_away_takes_no_load() -> None:
    """Whatever there is room for."""
    world = World((model("m", option(4)),))
    world.tell(DrainBegan())
    found = outlook(world, "m")
    assert found.refusal is not None
    assert found.refusal.code.value == "draining"


@pytest.mark.parametrize("seed", range(40))
def test_the_load_then_does_what_was_said(seed: int) -> None:
    """In a world in which chats, low work, pins, leases and programs outside have gone about for a while: who asks and
    then loads in the same moment sees that launch begin, those go, or nothing yet."""
    rng = random.Random(seed)  # noqa: S311 - a story, not a secret
    names = ("a", "b", "c", "d", "m")
    sizes = {name: rng.choice((2, 3, 5, 7, 9)) for name in names}
    cards = {"gpu0": 16.0, "gpu1": 10.0}
    models = (
        model(name, *(option(size, rng.choice((1, 2)), card) for card in cards), pinned=name == "d" and seed % 3 == 0)
        for name, size in sizes.items()
    )
    world = World(tuple(models), cards, step_seconds={name: rng.choice((0.5, 4.0, 20.0)) for name in names})
    for _ in range(rng.randrange(2, 14)):
        world.submit(rng.choice(names[:4]), rng.choice((CHAT, BACKGROUND, BATCH)))
        world.advance(rng.choice((0.0, 0.0, 1.0, 7.0, 40.0)))
    if seed % 4 == 0:
        world.lease("gpu1")
    said = outlook(world, "m")
    heard = len(world.heard)
    world.load("m")
    commands = [command for _, command in world.heard[heard:]]
    starts = [item for item in commands if isinstance(item, StartInstance) and item.model == "m"]
    stops = {item.instance_id for item in commands if isinstance(item, StopInstance) and item.reason.startswith("m ")}
    if said.plan is None:
        assert not starts
        assert not stops
        return
    assert bool(starts) is (said.rule == "")
    assert all(item.option == said.option for item in starts)
    idle = {one.instance for one in said.plan.victims if "idle" in one.why}
    assert stops == (idle if said.plan.live else set())
