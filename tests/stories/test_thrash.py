"""R4a: models that alternate are noticed; what it costs and what ends it is said, once in five minutes."""

from itertools import pairwise

import pytest

from gridsched.core.commands import Log, LogEvent
from gridsched.core.policy import Policy
from tests.stories.crowd import Client, Crowd
from tests.stories.world import BACKGROUND, CHAT, World, model, option


def pair(load: float, policy: Policy | None = None, step: float = 1.0) -> World:
    """Two models of 8.1 GB on a card of 16: 200 MB over budget."""
    return World(
        (model("a", option(8.1), load=load), model("b", option(8.1), load=load)),
        policy=policy or Policy(),
        step_seconds={"a": step, "b": step},
    )


def under(world: World, *clients: Client, seconds: float) -> Crowd:
    """Clients without pause for so long."""
    crowd = Crowd(world, *clients)
    crowd.begin()
    world.advance(seconds)
    return crowd


def thrash(world: World) -> list[tuple[float, Log]]:
    """The events."""
    return world.logged(LogEvent.THRASH)


def most_loads(world: World, name: str) -> int:
    """The most loads of a model in any five minutes."""
    times = world.loads(name)
    return max(sum(1 for other in times if at <= other < at + 300.0) for at in times)


@pytest.mark.slow
def test_B9_two_models_200_MB_over_budget_under_background_load_are_loaded_at_most_five_times_in_five_minutes() -> None:
    """Both without pause, for half an hour, loads of 5 s: turns of 30 s. It is no thrash: less than a fifth of the time
    goes into loads."""
    world = pair(5.0)
    crowd = under(world, Client("a", BACKGROUND), Client("b", BACKGROUND), seconds=1800.0)
    assert max(most_loads(world, "a"), most_loads(world, "b")) <= 5
    assert min(client.served for client in crowd.clients) > 300
    assert thrash(world) == []


def test_R4a_alternation_that_costs_over_a_fifth_of_the_time_is_said_once_in_five_minutes() -> None:
    """Loads of 20 s for turns of 30 s: who alternates, what it costs, and the turn that would end it."""
    world = pair(20.0)
    under(world, Client("a", BACKGROUND), Client("b", BACKGROUND), seconds=1200.0)
    events = thrash(world)
    assert len(events) in (3, 4)
    gaps = [later - earlier for (earlier, _), (later, _) in pairwise(events)]
    assert min(gaps) >= 300.0
    figures = events[0][1].figures
    assert events[0][1].rule == "R4a"
    assert figures["models"] == ["a", "b"]
    assert figures["seconds"] == 80.0
    assert figures["share"] == pytest.approx(0.267, abs=0.001)
    assert figures["setting"] == "scheduler.min_residency: 80s"


@pytest.mark.slow
def test_R4a_the_setting_that_is_named_ends_it() -> None:
    """With the turn as advised nothing is said any more."""
    world = pair(20.0, Policy(min_residency_seconds=81.0))
    under(world, Client("a", BACKGROUND), Client("b", BACKGROUND), seconds=1800.0)
    assert thrash(world) == []


def test_R4a_chats_that_alternate_are_told_of_their_own_setting() -> None:
    """People without pause on both, loads of 8 s."""
    world = pair(8.0)
    clients = [Client(name, CHAT) for name in "aabb"]
    under(world, *clients, seconds=300.0)
    assert thrash(world)[0][1].figures["setting"] == "scheduler.interactive_turn: 32s"


def test_R4a_a_sixth_load_in_five_minutes_is_said_however_cheap() -> None:
    """Loads of half a second, no turns: the share is small and the number is not."""
    world = pair(0.5, Policy(min_residency_seconds=0.0), step=6.0)
    under(world, Client("a", BACKGROUND), Client("b", BACKGROUND), seconds=200.0)
    at, line = thrash(world)[0]
    loads = line.figures["loads"]
    assert isinstance(loads, dict)
    assert max(loads.values()) == 6
    assert sorted(world.loads("a") + world.loads("b"))[10] <= at
    assert line.figures["setting"] == "scheduler.min_residency: 30s"


def test_B3_aborted_loads_do_not_count() -> None:
    """A chat takes a low load away again and again: what never became ready is no alternation."""
    world = World(
        (model("low", option(12), load=40.0), model("chat", option(12), load=1.0)),
        policy=Policy(hot_window_seconds=1.0),
        step_seconds={"chat": 1.0, "low": 1.0},
    )
    for _ in range(5):
        job = world.submit("low", BACKGROUND)
        world.advance(12.0)
        world.submit("chat")
        world.advance(10.0)
        if world.waits(job):
            world.leave(job)
    assert len(world.loads("low")) > 5
    assert thrash(world) == []


def test_R4a_where_turns_are_long_already_memory_is_what_is_advised() -> None:
    """A person asked for long turns of chats; it is the low work of others that they displace."""
    world = pair(40.0, Policy(min_residency_seconds=200.0, interactive_turn_seconds=300.0, hot_window_seconds=1.0))
    under(world, Client("a", BACKGROUND), Client("b", CHAT, think=60.0), seconds=900.0)
    assert str(thrash(world)[-1][1].figures["setting"]).startswith("models.*.ctx_size")


def test_R4a_loads_that_cost_little_are_thrash_from_the_sixth_of_a_model_on() -> None:
    """A second each, one a minute: five of one model in five minutes are borne, six in fewer are told of."""
    world = pair(1.0, Policy(min_residency_seconds=0.0))
    for _ in range(5):
        for name in ("a", "b"):
            world.submit(name, BACKGROUND)
            world.advance(29.0)
    assert most_loads(world, "a") == 5
    assert thrash(world) == []
    for name in ("a", "b", "a", "b"):
        world.submit(name, BACKGROUND)
        world.advance(9.0)
    assert most_loads(world, "a") > 5
    assert len(thrash(world)) == 1
