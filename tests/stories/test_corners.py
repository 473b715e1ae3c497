"""Where rules meet: short sequences in which each rule does what it says and the two together did not."""

import pytest

from gridsched.core.events import DrainBegan, Failure, FailureCause, ModelsChanged
from gridsched.core.ids import ModelName
from gridsched.core.job import JobClass, Outcome, OutcomeKind
from gridsched.core.policy import Policy
from tests.stories.world import BACKGROUND, BATCH, CHAT, GB, World, model, option, spanning

CRASH = Failure(FailureCause.CRASHED, "it died")


# --- the end of the server ----------------------------------------------------------------------------------------


def test_P8_plans_end_with_the_server() -> None:
    """A chat's victim is on its way out when the server begins to end, and its process never does: nobody claims the
    memory that is lost then."""
    world = World((model("old", option(10)), model("new", option(10))), stop_seconds=None, step_seconds={"old": 1.0})
    world.warm("old")
    job = world.submit("new")
    assert world.stops("old") == [world.now]
    world.tell(DrainBegan())
    assert world.rejection(job) is not None
    assert world.scheduler.state.plans == []
    world.advance(60.0)
    assert world.timer_at is None


# --- memory -------------------------------------------------------------------------------------------------------


def test_L3_what_a_process_holds_beyond_its_reservation_is_nobodys_before_it_has_served_too() -> None:
    """A model of 8 took 9 and its job left before it was ready: the chat that needs the other 8 does not wait for ever
    for a card that will never say that they are free; the idle model goes."""
    world = World((model("fat", option(8)), model("other", option(8))), step_seconds={"other": 1.0})
    job = world.submit("fat", BACKGROUND)
    world.advance(6.0)
    world.leave(job)
    world.advance(6.0)
    assert world.state("fat") == "ready"
    world.read(9.0, {"fat": 9.0})
    chat = world.submit("other")
    assert world.stops("fat") == [world.now]
    world.advance(1.0)
    world.read(0.0, {})
    world.advance(12.0)
    assert world.granted_at(chat) is not None


def test_L2_a_reading_from_before_the_first_request_is_no_measurement() -> None:
    """A launch over two cards is read on the second while it loads, with 3 of its 8 there; after its first request the
    first card is read: the second card's reservation stays what it was until that is read too."""
    world = World((model("wide", spanning({"gpu0": 8, "gpu1": 8})),), {"gpu0": 16.0, "gpu1": 16.0})
    job = world.submit("wide")
    world.advance(5.0)
    world.read(3.0, {"wide": 3.0}, "gpu1")
    world.advance(5.0)
    world.finish(job)
    world.read(8.5, {"wide": 8.5}, "gpu0")
    books = world.scheduler.state.ledger.books
    held = {name: book.spec.total_bytes - book.free_bytes for name, book in books.items()}
    assert held == {"gpu0": int(8.5 * GB), "gpu1": 8 * GB}
    world.read(7.0, {"wide": 7.0}, "gpu1")
    assert books[world.scheduler.state.instances[world.instance("wide")].devices[1]].free_bytes == 9 * GB


# --- load slots ---------------------------------------------------------------------------------------------------


def test_L6_chats_whose_victims_work_keep_nobody_from_a_card_that_is_free() -> None:
    """Four chats wait for long generations on four cards. A fifth, whose card is empty, waits for none of them."""
    cards = {f"gpu{number}": 16.0 for number in range(5)}
    low = [model(f"low{number}", option(12, device=f"gpu{number}")) for number in range(4)]
    chat = [model(f"chat{number}", option(12, device=f"gpu{number}")) for number in range(5)]
    world = World((*low, *chat), cards, step_seconds={"chat4": 1.0})
    for each in low:
        world.submit(each.name, BACKGROUND)
        world.advance(11.0)
    waiting = [world.submit(each.name) for each in chat]
    assert world.loads("chat4") == [world.now]
    world.advance(11.0)
    assert [world.why(job) for job in waiting] == ["R2"] * 4 + [""]


@pytest.mark.parametrize("job_class", [CHAT, BACKGROUND])
def test_L6_a_load_that_waits_for_a_stalled_process_to_end_its_other_step_claims_no_slot(job_class: JobClass) -> None:
    """One step of two stalls, the other goes on for long: neither who wants the memory nor who wants the model itself
    keeps another card from loading."""
    ladder = model("old", option(12, 2))
    models = (ladder, model("next", option(12)), model("elsewhere", option(12, device="gpu1")))
    for name in ("next", "old"):
        world = World(models, {"gpu0": 16.0, "gpu1": 16.0})
        world.submit("old", BACKGROUND)
        world.advance(11.0)
        world.finish(world.submit("old", BACKGROUND), Outcome(OutcomeKind.STALLED))
        assert world.state("old") == "draining"
        waits = world.submit(name, job_class)
        world.submit("elsewhere", job_class)
        assert world.loads("elsewhere") == [world.now]
        world.advance(60.0)
        assert world.waits(waits)


# --- slots --------------------------------------------------------------------------------------------------------


def test_S6_a_launch_with_fewer_slots_keeps_one_for_low_work_unless_the_model_is_for_chat_only() -> None:
    """One slot of two is reserved, and only the launch with a single slot fits: low work runs there all the same. A
    model all of whose slots are reserved in each of its launches is for chat only, and stays so."""
    ladder = model("ladder", option(12, 2), option(6, 1), reserved_slots=1)
    chat_only = model("chat only", option(1, 1), reserved_slots=1)
    world = World((model("pin", option(8), pinned=True), ladder, chat_only), step_seconds={"ladder": 1.0})
    world.advance(20.0)
    job, never = world.submit("ladder", BACKGROUND), world.submit("chat only", BACKGROUND)
    world.advance(60.0)
    assert world.granted_at(job) is not None
    assert world.waits(never)


# --- who is hot ---------------------------------------------------------------------------------------------------


def test_R1_a_model_is_hot_whichever_process_people_used() -> None:
    """People chat with a model, and its process dies; low work has it loaded again. Other low work does not evict it
    before five minutes have passed since the chat."""
    world = World((model("a", option(10)), model("b", option(10))), step_seconds={"b": 1.0})
    world.warm("a")
    chat = world.submit("a")
    world.finish(chat)
    used_at = world.now
    world.dies(world.instance("a"), CRASH)
    again = world.submit("a", BACKGROUND)
    world.advance(15.0)
    world.finish(again)
    waits = world.submit("b", BACKGROUND)
    world.advance(100.0)
    assert world.why(waits) == "R1"
    world.advance(used_at + 299.0 - world.now)
    assert world.stops("a") == []
    world.advance(2.0)
    assert world.stops("a") == [used_at + 300.0]


def test_R1_a_model_that_yields_and_is_gone_from_the_configuration_does_not_come_back() -> None:
    """A batch job still waits for its last process when that yields: the job is told, and nothing stays to be done."""
    models = (model("gone", option(9)), model("guest", option(9)), model("chats", option(3, 4)))
    world = World(models, policy=Policy(hot_yield_after_seconds=20.0), step_seconds={"gone": 1.0})
    world.warm("gone")
    world.submit("chats")
    world.submit("chats", BACKGROUND)
    world.advance(15.0)
    assert world.running("chats") == 2, "the card's relief turn is taken"
    last = world.submit("gone", BATCH)
    world.tell(ModelsChanged(models[1:]))
    guest = world.submit("guest", BACKGROUND)
    world.advance(40.0)
    refusal = world.rejection(last)
    assert refusal is not None
    assert refusal.code.value == "model_not_found"
    assert world.state("guest") == "ready"
    assert world.waits(guest)
    assert not world.scheduler.state.errands


# --- pins ---------------------------------------------------------------------------------------------------------


def test_C3_a_pins_load_that_was_begun_for_a_job_gives_way_to_a_chat_when_the_job_has_left() -> None:
    """The pin waits for its next try after a failure, a client's request loads the model meanwhile, and leaves: nobody
    waits for the load, which is no pin's before it is ready."""
    world = World(
        (model("pin", option(10), pinned=True), model("other", option(10))),
        broken={"pin": CRASH},
        step_seconds={"other": 1.0},
    )
    world.advance(20.0)
    world.broken.clear()
    job = world.submit("pin", BACKGROUND)
    assert world.state("pin") == "starting"
    world.leave(job)
    chat = world.submit("other")
    assert world.stops("pin") == [world.now]
    world.advance(12.0)
    assert world.granted_at(chat) is not None


# --- moves --------------------------------------------------------------------------------------------------------


def test_R6_a_model_that_moves_is_kept_as_long_as_its_last_job_asked() -> None:
    """It was to be kept for an hour; five minutes later it moves to the other card, where the hour goes on."""
    moves = model("moves", option(5, 2), option(5, 2, device="gpu1"), idle_ttl_seconds=600.0)
    models = (model("guest", option(15, device="gpu1")), model("stays", option(6)), moves)
    world = World(models, {"gpu0": 16.0, "gpu1": 16.0}, step_seconds={"guest": 1.0, "stays": 1.0, "moves": 1.0})
    world.warm("guest", "stays", job_class=BACKGROUND)
    world.submit("moves", BACKGROUND, ttl_seconds=3600.0)
    world.advance(11.5)
    instance = world.scheduler.state.models[ModelName("moves")].instance
    assert instance is not None
    used_at = instance.last_used_at
    world.tell(ModelsChanged(models[1:]))
    world.advance(400.0)
    assert len(world.stops("moves")) == 1, "it has moved"
    world.advance(used_at + 3599.0 - world.now)
    assert world.state("moves") == "ready"
    world.advance(2.0)
    assert world.stops("moves")[1:] == [used_at + 3600.0]
