"""Who goes when another model needs the memory (R1, R3, R5), and when a drain is thought over (A6)."""

import pytest

from gridsched.core.commands import LogEvent
from gridsched.core.model import ModelSpec
from gridsched.core.policy import Eviction, Policy
from tests.stories.world import BACKGROUND, BATCH, CHAT, World, model, option, spanning

LRU = Policy(eviction=Eviction.LRU)
NO_TURNS = Policy(min_residency_seconds=0.0, interactive_turn_seconds=0.0)


def stopped(world: World, *names: str) -> list[str]:
    """Those of the names that were told to stop."""
    return [name for name in names if world.stops(name)]


@pytest.mark.parametrize(("policy", "goes"), [(Policy(), "quick"), (LRU, "slow")])
def test_R5_cost_spares_the_slow_load_and_lru_the_last_used(policy: Policy, goes: str) -> None:
    """Two idle models of a size: the one used last loads in 2 s, the other in 60 s."""
    world = World((model("slow", option(7), load=50.0), model("quick", option(7), load=2.0), model("new", option(8))),
                  policy=policy)  # fmt: skip
    world.warm("slow", "quick", job_class=BACKGROUND)
    world.submit("new")
    assert stopped(world, "slow", "quick") == [goes]


def test_R5_what_is_used_often_is_dearer_than_what_is_used_seldom() -> None:
    """Both load alike; the one that served ten jobs stays, although the other served its one job last."""
    world = World((model("often", option(7)), model("seldom", option(7)), model("new", option(8))))
    world.step_seconds = {"often": 0.5, "seldom": 0.5}
    world.warm("often", job_class=BACKGROUND)
    for _ in range(10):
        world.submit("often", BACKGROUND)
        world.advance(1.0)
    world.warm("seldom", job_class=BACKGROUND)
    world.submit("new")
    assert stopped(world, "often", "seldom") == ["seldom"]


def test_R5_a_persons_wait_weighs_more_than_a_batch_jobs() -> None:
    """Both cold, used once: people chat with one of them, a night's batch used the other, and later."""
    models = (model("people", option(7)), model("nightly", option(7)), model("new", option(8)))
    world = World(models, policy=Policy(hot_window_seconds=1.0))
    world.warm("people")
    world.warm("nightly", job_class=BATCH)
    world.submit("new")
    assert stopped(world, "people", "nightly") == ["nightly"]


def test_R5_measured_load_times_replace_the_estimate() -> None:
    """Both say 10 s; one of them took 30 s when it was loaded, and is spared."""
    world = World((model("a", option(7)), model("b", option(7)), model("new", option(8))))
    world.scheduler.state.load_seconds_by_key["b:gpu0/7/1/8192"] = 30.0
    world.warm("b", "a", job_class=BACKGROUND)
    world.scheduler.state.load_seconds_by_key["b:gpu0/7/1/8192"] = 30.0
    world.submit("new")
    assert stopped(world, "a", "b") == ["a"]


def small_and_large() -> tuple[ModelSpec, ...]:
    """Three small models that load fast, a large one that loads slowly."""
    small = (model(name, option(3), load=2.0) for name in ("s1", "s2", "s3"))
    return (*small, model("large", option(6), load=30.0), model("new", option(6)))


@pytest.mark.parametrize("policy", [Policy(), LRU])
def test_R3_nobody_goes_whom_the_sum_does_not_need(policy: Policy) -> None:
    """6 GB are needed, 1 is free: two of the small ones are enough, whichever way victims are chosen."""
    world = World(small_and_large(), policy=policy)
    world.warm("s1", "s2", "s3", "large", job_class=BACKGROUND)
    world.submit("new")
    assert len(stopped(world, "s1", "s2", "s3", "large")) == 2


def test_R5_the_cheapest_sum_goes_and_not_the_cheapest_models() -> None:
    """One model of 20 s frees as much as three of 8 s each."""
    small = (model(name, option(4), load=8.0) for name in ("s1", "s2", "s3"))
    world = World((*small, model("one", option(12), load=20.0), model("new", option(12))), {"gpu0": 24.5})
    world.warm("s1", "s2", "s3", "one", job_class=BACKGROUND)
    world.submit("new")
    assert stopped(world, "s1", "s2", "s3", "one") == ["one"]


def test_R5_one_victim_over_two_cards_may_be_cheaper_than_one_on_each() -> None:
    """The new model lacks memory on both cards."""
    world = World(
        (
            model("left", option(6, device="gpu0"), load=9.0),
            model("right", option(6, device="gpu1"), load=9.0),
            model("both", spanning({"gpu0": 6, "gpu1": 6}), load=12.0),
            model("new", spanning({"gpu0": 6, "gpu1": 6})),
        ),
        {"gpu0": 13.0, "gpu1": 13.0},
    )
    world.warm("both", "left", "right", job_class=BACKGROUND)
    world.submit("new")
    assert stopped(world, "left", "right", "both") == ["both"]


def test_C1_a_hot_model_never_goes_for_being_cheap() -> None:
    """The cold one loads in 50 s, the hot one in a second: the tier comes first, whatever the price."""
    world = World((model("hot", option(7), load=1.0), model("cold", option(7), load=50.0), model("new", option(8))))
    world.warm("cold", job_class=BACKGROUND)
    world.warm("hot")
    world.submit("new")
    assert stopped(world, "hot", "cold") == ["cold"]


def test_C1_one_hot_model_goes_rather_than_two() -> None:
    """Nothing is cold: the fewest hot go, though the two are cheaper."""
    models = (model("h1", option(4), load=1.0), model("h2", option(4), load=1.0), model("h3", option(8), load=50.0))
    world = World((*models, model("new", option(8))))
    world.warm("h1", "h2", "h3")
    world.submit("new")
    assert stopped(world, "h1", "h2", "h3") == ["h3"]


def test_R5_the_prices_terms_stand_in_the_decision_log() -> None:
    """Whoever asks why this one reads what it costs."""
    world = World((model("old", option(12), load=20.0), model("new", option(12))))
    world.warm("old", job_class=BACKGROUND)
    world.submit("new")
    figures = world.logged(LogEvent.EVICT)[0][1].figures
    assert figures["reload_s"] == 20.0
    assert figures["reuse"] == pytest.approx(1 - 2.718281828**-0.98, abs=0.02)
    assert (figures["class_weight"], figures["drain_s"], figures["waiting_weight"]) == (1.0, 0.0, 4.0)
    assert figures["price"] == pytest.approx(20.0 * 0.63, abs=0.4)


def two_busy(policy: Policy = NO_TURNS) -> World:
    """Two models with slots for a long and a short step; a step of `a` takes 30 s by experience, one of `b` 4 s."""
    world = World((model("a", option(8, 2)), model("b", option(8, 2)), model("new", option(8))), policy=policy)
    for name, seconds in (("a", 30.0), ("b", 4.0)):
        world.step_seconds = {name: seconds}
        world.warm(name, job_class=BACKGROUND)
        world.submit(name, BACKGROUND)
        world.advance(seconds + 1.0)
    world.step_seconds = {}
    return world


def test_A6_the_victim_that_is_expected_to_drain_first_goes() -> None:
    """Both are busy and load alike."""
    world = two_busy()
    world.submit("a", BACKGROUND)
    world.submit("b", BACKGROUND)
    world.submit("new")
    assert (world.state("a"), world.state("b")) == ("ready", "draining")


def test_A6_a_drain_past_its_estimate_is_thought_over_and_the_spared_victim_takes_work_again() -> None:
    """What should have taken 4 s hangs. Meanwhile the other one's step is nearly over: it drains instead, once, and
    the first serves its queue again."""
    world = two_busy()
    long = world.submit("a", BACKGROUND)
    world.advance(12.0)
    world.submit("b", BACKGROUND)
    chat = world.submit("new")
    queued = world.submit("b", BACKGROUND)
    assert (world.state("a"), world.state("b")) == ("ready", "draining")
    world.advance(7.9)
    assert world.state("b") == "draining"
    world.advance(4.0)
    assert (world.state("a"), world.state("b")) == ("ready", "draining"), "12 s rest of a against 8 s that b is over"
    world.advance(10.0)
    assert (world.state("a"), world.state("b")) == ("draining", "ready")
    assert world.granted_at(queued) is not None
    world.finish(long)
    world.advance(12.0)
    assert world.granted_at(chat) is not None
    assert world.stops("b") == []


def test_A6_a_remade_plan_keeps_its_victim() -> None:
    """The other one becomes the better choice while the first drains within its estimate: no change of mind."""
    world = two_busy()
    world.submit("a", BACKGROUND)
    world.advance(25.0)
    world.submit("b", BACKGROUND)
    world.submit("new")
    assert world.state("b") == "draining"
    world.advance(3.0)
    world.submit("new")
    world.read(16.0, {"a": 8.0, "b": 8.0})
    assert (world.state("a"), world.state("b")) == ("ready", "draining")


def test_A6_an_idle_victim_goes_before_a_busy_one_that_is_cheaper() -> None:
    """The busy one reloads in a second, the idle one in a minute."""
    world = World((model("idle", option(7), load=50.0), model("busy", option(7), load=1.0), model("new", option(8))))
    world.warm("idle", "busy", job_class=BACKGROUND)
    world.submit("busy", BACKGROUND)
    world.submit("new", CHAT)
    assert stopped(world, "idle", "busy") == ["idle"]


def on_either(name: str, size_gb: float, **more: float) -> ModelSpec:
    """A model that takes either card."""
    return model(name, option(size_gb), option(size_gb, device="gpu1"), **more)


def test_L7_of_cards_that_fit_the_one_without_chats_is_taken_then_the_emptier_one() -> None:
    """People chat on the first card, the second has a small cold model, the third nothing: low work goes to the third,
    the next beside the cold one, whatever stands first in the ladder."""
    cards = {"gpu0": 16.0, "gpu1": 16.0, "gpu2": 16.0}
    both = [model(name, *(option(4, device=card) for card in cards)) for name in ("first", "second")]
    world = World((model("chat", option(8)), model("cold", option(2, device="gpu1")), *both), cards)
    world.warm("cold", job_class=BACKGROUND)
    world.warm("chat")
    world.warm("first", "second", job_class=BACKGROUND)
    found = {item.model.name: item.device for item in world.scheduler.state.instances.values()}
    assert found == {"cold": "gpu1", "chat": "gpu0", "first": "gpu2", "second": "gpu1"}


def test_R5_of_two_cards_the_one_whose_victim_costs_less_is_cleared() -> None:
    """A hot model on the card that stands first, a cold one on the other: the cold one goes."""
    world = World((model("hot", option(12)), model("cold", option(12, device="gpu1")), on_either("new", 8)),
                  {"gpu0": 16.0, "gpu1": 16.0})  # fmt: skip
    world.warm("cold", job_class=BACKGROUND)
    world.warm("hot")
    world.submit("new")
    assert stopped(world, "hot", "cold") == ["cold"]


def test_R5_a_smaller_context_is_not_taken_because_its_victims_are_cheaper() -> None:
    """Only rungs that are alike to a client are compared by price."""
    ladder = (option(12), option(4, device="gpu1", ctx=2048))
    world = World((model("dear", option(8), load=50.0), model("cheap", option(14, device="gpu1"), load=1.0),
                   model("new", *ladder)), {"gpu0": 16.0, "gpu1": 16.0})  # fmt: skip
    world.warm("dear", "cheap", job_class=BACKGROUND)
    world.submit("new")
    assert stopped(world, "dear", "cheap") == ["dear"]


def test_R5_a_plan_that_waits_for_the_end_of_a_load_takes_a_model_that_has_become_idle_instead() -> None:
    """The chat's only victim at first is a low load with a second to go, which is waited for; then another model's
    step ends: that one goes in this step, and the load is finished for its own job."""
    models = (model("busy", option(8)), model("loading", option(8), load=10.0), model("new", option(8)))
    world = World(models, policy=NO_TURNS)
    world.warm("busy", job_class=BACKGROUND)
    step = world.submit("busy", BACKGROUND)
    low = world.submit("loading", BACKGROUND)
    world.advance(9.0)
    world.submit("new")
    assert stopped(world, "busy", "loading") == []
    world.finish(step)
    assert stopped(world, "busy", "loading") == ["busy"]
    world.advance(60.0)
    assert stopped(world, "busy", "loading") == ["busy"]
    assert world.granted_at(low) is not None


def test_R5_the_search_finds_a_sum_that_the_best_bargains_miss() -> None:
    """10 GB are lacking. Taken by their value for money it would be the 9 GB, then the 10 GB, which then does alone for
    13 s; the 9 and the 2 GB together cost less than 12."""
    models = (
        model("nine", option(9), load=9.0), model("ten", option(10), load=13.0), model("two", option(2), load=2.8)
    )  # fmt: skip
    world = World((*models, model("new", option(10.5))), {"gpu0": 21.5})
    world.warm("nine", "ten", "two", job_class=BACKGROUND)
    world.submit("new")
    assert stopped(world, "nine", "ten", "two") == ["nine", "two"]


def test_R3_what_an_older_plans_victim_will_free_beyond_its_need_is_there_for_the_next() -> None:
    """A chat has a busy model of 10 go for a model of 6. The 4 that are over are the next chat's: nobody else goes."""
    models = (model("busy", option(10)), model("idle", option(14)), model("six", option(6)), model("four", option(4)))
    world = World(models, {"gpu0": 24.0})
    world.warm("idle")
    world.submit("busy", BACKGROUND)
    world.advance(11.0)
    six = world.submit("six")
    assert world.state("busy") == "draining"
    four = world.submit("four")
    assert world.stops("idle") == []
    assert (world.why(six), world.why(four)) == ("R2", "R3")


def test_R5_a_model_of_batch_work_goes_before_one_of_background_work() -> None:
    """All else equal, its users' waiting weighs less; here it was even used later."""
    world = World((model("background", option(8)), model("batch", option(8)), model("new", option(8))))
    world.warm("background", job_class=BACKGROUND)
    world.warm("batch", job_class=BATCH)
    world.advance(30.0)
    world.submit("new")
    assert (len(world.stops("background")), len(world.stops("batch"))) == (0, 1)
