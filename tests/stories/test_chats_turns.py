"""R4b: people use two models that do not fit together. Each serves what waits for it for a turn before the swap."""

import pytest

from gridsched.core.commands import LogEvent
from gridsched.core.policy import Policy
from tests.stories.crowd import Client, Crowd
from tests.stories.world import BACKGROUND, CHAT, World, model, option


def rivals(policy: Policy | None = None, **seconds: float) -> World:
    """Two models of 12 GB on a card of 16, loaded in 5 s; steps take a second."""
    world = World(
        (model("a", option(12), load=5.0), model("b", option(12), load=5.0), model("low", option(3), load=1.0)),
        policy=policy or Policy(),
        step_seconds={"a": 1.0, "b": 1.0, "low": 0.5} | seconds,
    )
    world.warm("a")
    return world


def abab(world: World) -> list[float]:
    """Four chats in turn, 0.3 s apart; when each was served."""
    jobs = []
    for name in "abab":
        jobs.append(world.submit(name))
        world.advance(0.3)
    world.advance(60.0)
    moments = [world.granted_at(job) for job in jobs]
    assert None not in moments
    return [at for at in moments if at is not None]


def test_R4b_ABAB_costs_one_reload_not_three() -> None:
    """The resident model serves its second chat too, then the swap, then both of the other's."""
    world = rivals()
    a1, b1, a2, b2 = abab(world)
    assert (len(world.loads("a")), len(world.loads("b"))) == (1, 1)
    assert a1 < a2 < b1 < b2


def test_R4b_zero_is_strict_order_and_costs_three() -> None:
    """Each chat waits for those before it and for nobody else."""
    world = rivals(Policy(interactive_turn_seconds=0.0))
    a1, b1, a2, b2 = abab(world)
    assert (len(world.loads("a")), len(world.loads("b"))) == (2, 2)
    assert a1 < b1 < a2 < b2


@pytest.mark.parametrize(("turn", "seconds"), [(None, 5.0), (20.0, 20.0)])
def test_R4b_a_turn_lasts_as_long_as_a_load_or_as_configured(turn: float | None, seconds: float) -> None:
    """Chats for the resident model never stop: the other is let in when the turn that began with it is over."""
    world = World(
        (model("a", option(12, 2), load=5.0), model("b", option(12), load=5.0)),
        policy=Policy(interactive_turn_seconds=turn),
        step_seconds={"a": 1.0, "b": 1.0},
    )
    world.warm("a")
    for _ in range(2):
        Crowd(world, Client("a", CHAT)).begin()
        world.advance(0.5)
    world.advance(30.25)
    since = world.now
    chat = world.submit("b")
    assert world.why(chat) == "R4b"
    world.advance(seconds - 0.01)
    assert world.state("a") == "ready"
    world.advance(0.02)
    assert world.state("a") == "draining"
    world.advance(20.0)
    granted_at = world.granted_at(chat)
    assert granted_at is not None
    assert granted_at < since + seconds + 1.0 + 0.75 + 5.0 + 0.1


def test_R4b_a_turn_ends_with_the_last_chat_that_waits_for_it() -> None:
    """Nothing is kept waiting for a model that is idle."""
    world = rivals(Policy(interactive_turn_seconds=60.0))
    world.submit("a")
    chat = world.submit("b")
    assert world.waits(chat)
    world.advance(0.9)
    assert world.stops("a") == []
    world.advance(0.1)
    assert len(world.stops("a")) == 1


def test_R4b_low_work_of_the_resident_model_is_no_turn() -> None:
    """The turn is for people: a chat drains a model that only background work uses."""
    world = rivals(Policy(interactive_turn_seconds=60.0), a=30.0)
    world.advance(400.0)
    world.submit("a", BACKGROUND)
    world.submit("b")
    assert world.state("a") == "draining"


def test_R4b_the_turn_counts_from_when_the_model_was_ready() -> None:
    """The other's chat has waited through the whole load: the loaded model still has its turn."""
    world = rivals()
    jobs = [world.submit("b") for _ in range(3)]
    world.advance(0.25)
    waiting = world.submit("a")
    world.advance(6.0)
    assert all(world.granted_at(job) is None for job in jobs[1:])
    world.advance(30.0)
    assert [len(world.loads(name)) for name in "ab"] == [2, 1]
    served = [world.granted_at(job) for job in jobs]
    last_at, other_at = served[-1], world.granted_at(waiting)
    assert last_at is not None
    assert other_at is not None
    assert last_at < other_at


def test_B2_constant_chat_on_two_models_that_do_not_fit_starves_nobody() -> None:
    """Ten minutes of chat without pause on both, and low work on a third: everybody is served, low work too, and chats
    are served for at least as long as models are loaded."""
    world = rivals()
    chats = [Client(name, CHAT) for name in "aabb"]
    low = Client("low", BACKGROUND)
    crowd = Crowd(world, *chats, low)
    crowd.begin()
    world.advance(600.0)
    assert crowd.rejected == []
    loads = len(world.loads("a")) + len(world.loads("b"))
    assert loads <= 600 / (5.0 + 5.0)
    assert min(client.served for client in chats) >= 60
    assert crowd.longest_gap(CHAT) < 2 * (5.0 + 5.0 + 1.0 + 0.75) + 2.0
    assert low.served >= 20
    assert crowd.gap(low) < 60.0


def test_B2_zero_serves_one_chat_a_load_and_still_everybody() -> None:
    """Strict order is what was asked for: it costs a load for each chat that takes turns, and starves nobody."""
    world = rivals(Policy(interactive_turn_seconds=0.0))
    chats = [Client(name, CHAT) for name in "ab"]
    crowd = Crowd(world, *chats)
    crowd.begin()
    world.advance(300.0)
    assert min(client.served for client in chats) >= 20
    assert crowd.longest_gap(CHAT) < 2 * (5.0 + 1.0 + 0.75) + 2.0


def test_S6a_what_a_chat_will_need_after_a_turn_is_kept_from_a_load_that_would_not_be_done() -> None:
    """The other's chat waits for the turn of 20 s to end. A low load of 1 s may use the memory meanwhile, one of 30 s
    that takes what the chat will need may not."""
    models = (
        model("a", option(10), load=5.0), model("b", option(14), load=5.0),
        model("quick", option(3), load=1.0), model("slow", option(3), load=30.0),
    )  # fmt: skip
    world = World(models, policy=Policy(interactive_turn_seconds=20.0), step_seconds={"a": 1.0, "quick": 0.25})
    world.warm("a")
    world.step_seconds["a"] = 30.0
    world.submit("a")
    chat = world.submit("b")
    quick, slow = world.submit("quick", BACKGROUND), world.submit("slow", BACKGROUND)
    world.advance(6.0)
    assert world.granted_at(quick) is not None
    assert world.waits(chat)
    world.advance(60.0)
    first_load = world.loads("slow")[0] if world.loads("slow") else world.now
    assert first_load > world.loads("b")[0]
    assert world.logged(LogEvent.REJECT) == []
    assert world.waits(slow) or world.granted_at(slow) is not None


def test_INV_13_low_work_does_not_count_on_what_a_chats_victim_will_free_when_its_turn_is_over() -> None:
    """A full card: the chats of `big` have their turn, another chat waits for `mid`, which will have `big` go. A low
    load that would need what that frees is not planned, and nobody goes for it."""
    world = World(
        (model("big", option(8)), model("small", option(2)), model("mid", option(4)), model("x", option(6), load=30.0)),
        {"gpu0": 10.0},
        Policy(interactive_turn_seconds=20.0, hot_window_seconds=5.0),
    )
    world.warm("small", job_class=BACKGROUND)
    world.warm("big")
    running = world.submit("big")
    world.submit("mid")
    world.submit("x", BACKGROUND)
    world.advance(10.0)
    assert (world.state("big"), world.state("small")) == ("ready", "ready")
    world.finish(running)
    world.advance(20.0)
    assert world.state("mid") == "ready"
