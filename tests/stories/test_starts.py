"""No more processes are started in a minute than may be (P6a): what is beyond waits, and is told why."""

import pytest

from gridsched.core.ids import ModelName
from gridsched.core.policy import Policy
from tests.stories.world import BACKGROUND, World, model, option

WAIT = "2 processes a minute are started at the most, and as many were"


def world(*names: str, limit: int = 2, size: float = 4.0, **more: object) -> World:
    """Models that load in a second."""
    models = tuple(model(name, option(size), load=1.0) for name in names)
    return World(models, policy=Policy(starts_per_minute=limit, **more))  # type: ignore[arg-type]  # the policy's figures


def test_P6a_a_start_beyond_the_limit_waits_for_the_exact_moment_and_says_so() -> None:
    """The third of two begins a minute after the first, to the moment; the reason is told."""
    told = world("a", "b", "c")
    told.warm("a", "b")
    first_at = told.loads("a")[0]
    job = told.submit("c")
    view = told.scheduler.waiting(job, told.now)
    assert view is not None
    assert (view.rule, view.reason) == ("P6a", WAIT)
    assert view.estimate_seconds is not None
    told.advance(60.0)
    assert told.loads("c") == [first_at + 60.0]
    told.advance(2.0)
    assert told.granted_at(job) == first_at + 61.0


def test_P6a_nobody_is_evicted_for_a_load_that_may_not_begin() -> None:
    """The resident model serves on meanwhile; the outlook of a person's load says what it waits for."""
    told = world("a", "b", "c", size=12.0)
    told.warm("a", "b")
    waiting = told.submit("c")
    assert told.state("b") == "ready"
    between = told.submit("b")
    assert told.granted_at(between) == told.now
    told.finish(between)
    outlook = told.scheduler.outlook(ModelName("c"), told.now)
    assert outlook is not None
    assert (outlook.rule, outlook.reason) == ("P6a", WAIT)
    told.advance(60.0)
    assert told.granted_at(waiting) is not None


def test_P6a_a_freed_start_is_a_chats_first() -> None:
    """Low work came before it, and has the next one."""
    told = world("a", "b", "low", "chat", background_max_starvation_seconds=0.0)
    told.warm("a", "b")
    low, chat = told.submit("low", BACKGROUND), told.submit("chat")
    told.advance(60.0)
    assert (len(told.loads("chat")), len(told.loads("low"))) == (1, 0)
    told.finish(chat)
    told.advance(60.0)
    assert told.granted_at(low) is not None


def test_P6a_starved_low_work_has_one_start_of_a_minute_that_chats_would_fill() -> None:
    """Two people whose models do not fit together would take every start for ever."""
    told = World(
        (
            model("a", option(12), load=1.0),
            model("b", option(12), load=1.0),
            model("low", option(12, device="gpu1"), load=1.0),
        ),
        cards={"gpu0": 16.0, "gpu1": 16.0},
        policy=Policy(starts_per_minute=2, interactive_turn_seconds=0.0),
        step_seconds={"a": 1.0, "b": 1.0},
    )
    told.submit("a")
    low = None
    for count in range(40):
        told.submit("ab"[count % 2])
        if count == 10:
            low = told.submit("low", BACKGROUND)
        told.advance(5.0)
    assert low is not None
    assert told.granted_at(low) is not None
    assert len(told.loads("a") + told.loads("b")) > 3


def test_S5_no_start_is_kept_for_low_work_that_could_not_be_loaded_anyway() -> None:
    """What people use is in its way, and stays: the chat has the last start of the minute, and is told so before."""
    told = World(
        (model("hot", option(12)), model("low", option(12)), model("chat", option(6, device="gpu1"))),
        cards={"gpu0": 16.0, "gpu1": 16.0},
        policy=Policy(starts_per_minute=2),
    )
    told.warm("hot")
    low = told.submit("low", BACKGROUND)
    told.advance(10.0)
    assert told.why(low) == "R1"
    outlook = told.scheduler.outlook(ModelName("chat"), told.now)
    assert outlook is not None
    assert outlook.rule == ""
    told.submit("chat")
    assert told.loads("chat") == [told.now]


@pytest.mark.parametrize("beside", [True, False])
def test_S5_a_start_is_kept_for_low_work_that_has_a_place_beside_the_chats(beside: bool) -> None:
    """Memory comes free while one start is left: low work has it where the chat's memory stays free, else the chat. The
    two that find no place beside the first chat are no reason either way; and the decision is made once."""
    told = World(
        (
            model("warm", option(1, device="gpu1"), load=1.0),
            model("low", option(5 if beside else 8), load=1.0),
            *(model(name, option(size), load=1.0) for name, size in (("a", 10), ("b", 12), ("c", 12))),
        ),
        cards={"gpu0": 16.0, "gpu1": 16.0},
        policy=Policy(starts_per_minute=2),
    )
    told.read(16.0, {})
    low = told.submit("low", BACKGROUND)
    told.advance(5.0)
    told.warm("warm")
    chats = [told.submit(name) for name in "abc"]
    assert told.why(low) == told.why(chats[0]) == "L7"
    told.read(0.0, {})
    assert (len(told.loads("low")), len(told.loads("a"))) == ((1, 0) if beside else (0, 1))
    assert told.why(chats[0]) == "P6a" if beside else told.why(low) != "P6a"


def test_P6a_the_outlook_of_a_load_leaves_starved_low_work_its_start_too() -> None:
    """As the load does: low work has a plan, which waits for a step to end, and then needs the last start."""
    told = World(
        (
            model("busy", option(12), load=1.0),
            model("low", option(12), load=1.0),
            *(model(name, option(6, device="gpu1"), load=1.0) for name in ("first", "chat")),
        ),
        cards={"gpu0": 16.0, "gpu1": 16.0},
        policy=Policy(starts_per_minute=2),
    )
    told.warm("busy", job_class=BACKGROUND)
    told.advance(70.0)
    told.warm("first")
    step, low = told.submit("busy", BACKGROUND), told.submit("low", BACKGROUND)
    told.advance(5.0)
    assert told.why(low) == "R2"
    outlook = told.scheduler.outlook(ModelName("chat"), told.now)
    chat = told.submit("chat")
    assert outlook is not None
    assert (outlook.rule, told.why(chat)) == ("P6a", "P6a")
    told.finish(step)
    told.advance(2.0)
    assert told.granted_at(low) is not None


def test_P6a_two_loads_of_one_moment_share_the_last_start() -> None:
    """A chat's and low work's could begin side by side; the second waits for its own."""
    told = World(
        (model("low", option(6)), model("chat", option(6, device="gpu1")), model("x", option(4))),
        cards={"gpu0": 16.0, "gpu1": 16.0},
        policy=Policy(starts_per_minute=2),
    )
    told.warm("x", job_class=BACKGROUND)
    told.lease("gpu0")
    told.lease("gpu1")
    told.advance(1.0)
    low, chat = told.submit("low", BACKGROUND), told.submit("chat")
    assert told.loads("low") + told.loads("chat") == []
    told.release("gpu1")
    told.release("gpu0")
    assert (len(told.loads("chat")), len(told.loads("low"))) == (1, 0)
    assert told.why(low) == "P6a"
    told.advance(60.0)
    assert told.loads("low") == [60.0]
    assert told.granted_at(chat) is not None


def test_S6a_what_a_chat_needs_that_waits_for_a_start_is_kept_from_low_work() -> None:
    """Low work that is starved has the next start, and may not have the memory: the chat would evict it."""
    told = World(
        tuple(model(name, option(size), load=1.0) for name, size in (("a", 1), ("b", 1), ("chat", 9), ("low", 6))),
        policy=Policy(starts_per_minute=2),
    )
    told.warm("a", "b")
    second_at = told.loads("b")[0]
    chat, low = told.submit("chat"), told.submit("low", BACKGROUND)
    told.advance(60.0)
    assert told.granted_at(chat) is not None
    assert told.loads("low") == []
    assert told.loads("chat")[0] <= second_at + 60.0
    assert told.waits(low)
