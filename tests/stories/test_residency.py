"""R1 to R6: which models stay, which go, and never with a request in flight."""

from dataclasses import replace
from itertools import pairwise

import pytest

from gridsched.core.commands import StopInstance
from gridsched.core.events import ModelsChanged
from gridsched.core.ids import JobId
from gridsched.core.job import JobClass
from gridsched.core.policy import Policy
from tests.stories.world import BACKGROUND, BATCH, World, model, option

NO_TURNS = Policy(min_residency_seconds=0.0, interactive_turn_seconds=0.0)


def test_R1_a_pinned_model_is_never_evicted() -> None:
    """Not for a chat either: it waits and is refused with the arithmetic."""
    world = World((model("pin", option(12), pinned=True), model("other", option(12))))
    world.warm("pin", job_class=BACKGROUND)
    chat = world.submit("other")
    world.advance(10.0)
    assert world.rejection(chat) is not None
    assert world.stops("pin") == []


def test_R1_interactive_work_evicts_cold_before_hot() -> None:
    """The hot one was used longer ago, the cold one goes."""
    world = World((model("hot", option(6)), model("cold", option(6)), model("new", option(6))))
    world.warm("hot")
    world.warm("cold", job_class=BACKGROUND)
    world.submit("new")
    assert (world.stops("hot"), world.stops("cold")) == ([], [world.now])


def test_R1_interactive_work_evicts_hot_where_nothing_cold_is_enough() -> None:
    """A chat needs the card: the hot model goes."""
    world = World((model("hot", option(12)), model("new", option(12))))
    world.warm("hot")
    chat = world.submit("new")
    assert world.stops("hot") == [world.now]
    world.advance(20.0)
    assert world.granted_at(chat) is not None


def test_R1_low_work_never_evicts_hot_but_when_it_has_cooled_at_the_moment() -> None:
    """The timer stands at the end of the hot window, and moves with each chat."""
    world = World((model("hot", option(12)), model("low", option(12))))
    world.warm("hot")
    job = world.submit("low", BACKGROUND)
    world.advance(100.0)
    chat = world.submit("hot")
    world.advance(1.0)
    world.finish(chat)
    cools_at = world.now + 300.0
    world.advance(299.9)
    assert world.stops("hot") == []
    world.advance(0.1)
    assert world.stops("hot") == [cools_at]
    world.advance(15.0)
    assert world.granted_at(job) is not None


def test_R1_idle_goes_before_busy_then_the_longest_unused() -> None:
    """Three cold models: a busy one that is the oldest, two idle ones; the older idle one goes."""
    names = ("busy", "older", "newer")
    world = World((*(model(name, option(5)) for name in names), model("new", option(5))))
    world.warm(*names, job_class=BACKGROUND)
    world.submit("busy", BACKGROUND)
    world.submit("new")
    assert [len(world.stops(name)) for name in names] == [0, 1, 0]


def test_R2_a_stop_never_happens_with_steps_in_flight() -> None:
    """The only victim is busy: it drains, takes nothing new, and is stopped in the step that its last one ends."""
    world = World((model("old", option(12, 2)), model("new", option(12))), policy=NO_TURNS)
    world.warm("old")
    first, second = world.submit("old"), world.submit("old")
    chat = world.submit("new")
    assert world.state("old") == "draining"
    late = world.submit("old")
    assert world.waits(late)
    world.finish(first)
    assert world.stops("old") == []
    world.finish(second)
    assert world.stops("old") == [world.now]
    assert any(isinstance(command, StopInstance) for command in world.last)
    world.advance(11.0)
    assert world.granted_at(chat) is not None


def test_R2_a_drain_for_low_work_is_undone_when_a_chat_wants_the_model() -> None:
    """The model drains for a background load; a chat comes for it: ready again and granted in the same step."""
    world = World((model("old", option(12, 2)), model("new", option(12))), policy=NO_TURNS)
    world.warm("old", job_class=BACKGROUND)
    running = world.submit("old", BACKGROUND)
    low = world.submit("new", BACKGROUND)
    assert world.state("old") == "draining"
    chat = world.submit("old")
    assert world.state("old") == "ready"
    assert world.granted_at(chat) == world.now
    world.finish(running)
    world.finish(chat)
    assert world.waits(low)
    assert world.stops("old") == []


def test_R3_memory_being_freed_counts_for_every_later_decision() -> None:
    """A victim is stopping; a second job that fits into what it frees chooses no victim of its own."""
    world = World((model("a", option(8)), model("b", option(6)), model("c", option(4)), model("d", option(4))))
    world.warm("a", "b", job_class=BACKGROUND)
    world.submit("c")
    assert (len(world.stops("a")), len(world.stops("b"))) == (1, 0)
    world.submit("d")
    world.advance(30.0)
    assert world.stops("b") == []
    assert len(world.loads("d")) == 1


def test_R3_victims_that_the_sum_does_not_need_are_spared() -> None:
    """The oldest is too small and the next alone is enough: only the one that is needed goes."""
    world = World(
        (model("small", option(2)), model("big", option(8)), model("keep", option(5)), model("new", option(8)))
    )
    world.warm("small", "big", "keep", job_class=BACKGROUND)
    world.submit("new")
    assert [len(world.stops(name)) for name in ("small", "big", "keep")] == [0, 1, 0]


def test_R3_a_drain_is_replanned_when_an_idle_victim_turns_up() -> None:
    """Both models are busy; the older drains; the other becomes idle first: it goes, the first takes work again."""
    world = World((model("a", option(8)), model("b", option(8)), model("new", option(8))))
    world.warm("a", "b", job_class=BACKGROUND)
    world.submit("a", BACKGROUND)
    quick = world.submit("b", BACKGROUND)
    world.submit("new")
    assert (world.state("a"), world.state("b")) == ("draining", "ready")
    world.finish(quick)
    assert world.state("a") == "ready"
    assert world.stops("b") == [world.now]


def test_R4_a_load_serves_the_job_first_that_caused_it() -> None:
    """A younger chat needs the same card: the first chat's load is not taken away before it has served it."""
    world = World((model("a", option(12)), model("b", option(12))))
    first, second = world.submit("a"), world.submit("b")
    world.advance(10.0)
    assert world.granted_at(first) == 10.0
    world.finish(first)
    assert world.stops("a") == [10.0]
    world.advance(20.0)
    assert world.granted_at(second) is not None


@pytest.mark.slow
def test_R4a_low_work_takes_turns_of_thirty_seconds() -> None:
    """Two low models with work for ever, room for one: each is loaded at most 5 times in 5 minutes, and both serve."""
    world = World(
        (model("a", option(12), load=5.0), model("b", option(12), load=5.0)), step_seconds={"a": 1.0, "b": 1.0}
    )
    jobs: dict[str, list[JobId]] = {"a": [], "b": []}
    for _ in range(300):
        for name, asked in jobs.items():
            asked.append(world.submit(name, BACKGROUND))
    world.advance(300.0)
    for name in ("a", "b"):
        assert 2 <= len(world.loads(name)) <= 5
        assert sum(world.granted_at(job) is not None for job in jobs[name]) > 60
    turns = sorted(world.loads("a") + world.loads("b"))
    assert all(later - earlier >= 35.0 for earlier, later in pairwise(turns))


def test_R4a_does_not_hold_interactive_work_back() -> None:
    """A chat evicts a low model that has just become ready and has work."""
    world = World((model("low", option(12)), model("chat", option(12))), step_seconds={"low": 1.0})
    for _ in range(20):
        world.submit("low", BACKGROUND)
    world.advance(11.5)
    chat = world.submit("chat")
    assert world.state("low") == "draining"
    world.advance(12.5)
    assert world.granted_at(chat) is not None


def test_R4a_gives_no_turn_to_what_was_loaded_for_a_person() -> None:
    """Its heat keeps it from low work; once that is over, an older low job of another model has its memory, though it
    was loaded a moment ago and low work runs on it."""
    world = World((model("a", option(10)), model("b", option(10))), policy=Policy(hot_window_seconds=5.0))
    chat = world.submit("a")
    world.advance(10.0)
    world.finish(chat)
    cools_at = world.now + 5.0
    world.submit("b", BATCH)
    mine = world.submit("a", BATCH)
    world.advance(4.9)
    assert (world.state("a"), world.running("a")) == ("ready", 1)
    world.advance(0.1)
    assert world.state("a") == "draining"
    world.finish(mine)
    assert world.stops("a") == [cools_at]


def test_R4a_lapses_when_the_model_has_no_work() -> None:
    """The low model is idle, and its client has not asked again in two seconds: the next low job takes the memory."""
    world = World((model("a", option(12)), model("b", option(12))))
    first = world.submit("a", BACKGROUND)
    world.advance(10.0)
    world.finish(first)
    world.submit("b", BACKGROUND)
    world.advance(3.0)
    assert world.stops("a") == [12.0]


@pytest.mark.parametrize("job_class", [BACKGROUND, BATCH])
def test_R4_a_batch_load_serves_its_first_step_before_background_takes_it(job_class: JobClass) -> None:
    """Background is held by R4 for the first step of a batch load, and by nothing after it."""
    world = World((model("a", option(12)), model("b", option(12))), policy=NO_TURNS)
    batch = world.submit("a", BATCH)
    world.advance(5.0)
    other = world.submit("b", job_class)
    world.advance(5.0)
    assert world.granted_at(batch) == 10.0
    world.finish(batch)
    assert world.stops("a") == [10.0]
    world.advance(20.0)
    assert world.granted_at(other) is not None


def test_R6_an_idle_model_is_unloaded_at_its_ttl() -> None:
    """A minute after its last step, to the moment; a used one later; a pinned one never."""
    world = World(
        (model("m", option(4), idle_ttl_seconds=60.0), model("pin", option(4), pinned=True, idle_ttl_seconds=1.0))
    )
    world.warm("m", "pin")
    chat = world.submit("m")
    world.finish(chat)
    idle_at = world.now
    world.advance(59.9)
    assert world.state("m") == "ready"
    world.advance(0.1)
    assert world.stops("m") == [idle_at + 60.0]
    assert world.state("pin") == "ready"


def test_R6_a_model_with_waiting_jobs_is_not_idle() -> None:
    """Its low job is held by a chat for longer than the ttl."""
    world = World(
        (model("m", option(4), idle_ttl_seconds=5.0), model("chat", option(4))),
        policy=Policy(background_max_starvation_seconds=0.0),
    )
    world.warm("chat")
    low = world.submit("m", BACKGROUND)
    world.advance(10.0)
    world.finish(low)
    world.submit("chat")
    world.submit("m", BACKGROUND)
    world.advance(100.0)
    assert world.state("m") == "ready"


def test_R6_a_model_goes_with_the_last_job_that_waited_past_its_ttl() -> None:
    """A chat holds its low job until long after the ttl; in the step in which that client gives up, it is unloaded."""
    world = World(
        (model("m", option(4), idle_ttl_seconds=5.0), model("chat", option(4))),
        policy=Policy(background_max_starvation_seconds=0.0),
    )
    world.warm("chat")
    first = world.submit("m", BACKGROUND)
    world.advance(10.0)
    world.finish(first)
    world.submit("chat")
    second, third = world.submit("m", BACKGROUND), world.submit("m", BACKGROUND)
    world.advance(100.0)
    world.leave(second)
    assert world.stops("m") == []
    world.leave(third)
    assert world.stops("m") == [world.now]


def test_R6_a_model_goes_when_its_last_waiting_job_has_waited_too_long() -> None:
    """The same by a refusal (S9), and at the moment of it."""
    world = World(
        (model("m", option(4), idle_ttl_seconds=20.0), model("chat", option(4))),
        policy=Policy(background_max_starvation_seconds=0.0),
    )
    world.warm("chat", "m")
    world.submit("chat")
    asked_at = world.now
    low = world.submit("m", BACKGROUND, max_wait=30.0)
    world.advance(100.0)
    assert world.rejection(low) is not None
    assert world.stops("m") == [asked_at + 30.0]


def test_R6_a_model_goes_in_the_step_that_lets_it() -> None:
    """Unused for longer than it is kept: unpinned, or by a new configuration."""
    spec = model("m", option(4), idle_ttl_seconds=60.0)
    world = World((spec, model("pin", option(4), idle_ttl_seconds=5.0, pinned=True)))
    world.warm("m", "pin")
    world.advance(20.0)
    world.pin("pin", pinned=False)
    assert world.stops("pin") == [world.now]
    world.tell(ModelsChanged((replace(spec, idle_ttl_seconds=10.0),)))
    assert world.stops("m") == [world.now]


def test_S2_low_work_has_nothing_evicted_that_older_work_of_its_class_waits_for() -> None:
    """A model whose turn is over serves the job that came before; only then it drains for the younger one's."""
    world = World((model("a", option(10, 1)), model("b", option(10))))
    running = world.submit("a", BACKGROUND)
    world.advance(60.0)
    older = world.submit("a", BACKGROUND)
    younger = world.submit("b", BACKGROUND)
    assert (world.state("a"), world.why(younger)) == ("ready", "S2")
    world.finish(running)
    assert world.granted_at(older) == world.now
    assert world.state("a") == "draining"
    world.finish(older)
    world.advance(12.0)
    assert world.granted_at(younger) is not None
