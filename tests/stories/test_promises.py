"""What people who use a shared card were promised, each as they would tell it."""

import pytest

from gridsched.core.commands import GrantStep, Log, LogEvent
from gridsched.core.ids import DeviceName
from gridsched.core.policy import Policy
from tests.stories.crowd import Client, Crowd
from tests.stories.world import BACKGROUND, BATCH, CHAT, World, model, option


def test_a_chat_into_a_job_of_1000_documents_is_dispatched_in_the_step_of_its_arrival() -> None:
    """300 ms into the job a person asks: granted at once; nothing of the job starts until 2.0 s after the chat's end;
    then it goes on with its very next chunk, and every chunk is done once."""
    world = World((model("chat", option(6, 2)), model("embed", option(2, 4))), step_seconds={"embed": 0.5})
    world.warm("chat", "embed", job_class=BACKGROUND)
    job = world.submit("embed", BACKGROUND, steps=32)  # 1,000 documents in chunks of 32
    world.advance(0.3)
    chat = world.submit("chat")
    assert world.granted_at(chat) == world.now
    assert [item.event for item in world.last if isinstance(item, Log)][:2] == [LogEvent.ENQUEUE, LogEvent.DISPATCH]
    assert any(isinstance(item, GrantStep) and item.grant.job_id == chat for item in world.last)
    world.advance(1.2)
    world.finish(chat)
    ended_at = world.now
    world.advance(60.0)
    begun_at = [at for at, _ in world.grants(job)]
    assert begun_at[1] == ended_at + 2.0
    assert [grant.step for _, grant in world.grants(job)] == list(range(1, 33))


def six_chats_and_low_work() -> Crowd:
    """The usual card: a chat model with two slots, two small ones and an embedder, all resident, each step a second."""
    models = (
        model("chat", option(8.3, 2)),
        model("small", option(4, 4)),
        model("smaller", option(2.8, 4)),
        model("embed", option(0.4, 4)),
    )
    world = World(models, step_seconds={spec.name: 1.0 for spec in models})
    world.warm("chat", "small", "smaller", "embed", job_class=BACKGROUND)
    return Crowd(
        world,
        *(Client("chat", CHAT) for _ in range(6)),
        *(Client("small", BACKGROUND) for _ in range(8)),
        *(Client("smaller", BATCH) for _ in range(4)),
        *(Client("embed", BACKGROUND, steps=8) for _ in range(2)),
    )


@pytest.mark.slow
def test_six_clients_that_chat_without_pause_stop_nobody() -> None:
    """Five minutes: every low client makes a step at least each 12 s, low work takes half of the time and no more, and
    no chat waits longer than the three steps before it."""
    crowd = six_chats_and_low_work()
    crowd.begin()
    began_at = crowd.world.now
    crowd.world.advance(300.0)
    seconds = crowd.world.now - began_at
    assert crowd.rejected == []
    assert crowd.longest_gap(CHAT) <= 3.0
    assert crowd.longest_gap(BACKGROUND) <= 12.0
    assert crowd.longest_gap(BATCH) <= 12.0
    in_turns = sum(float(str(turn["seconds"])) for turn in crowd.turns())
    assert 0.45 * seconds <= in_turns <= 0.5 * seconds
    low_steps = sum(len(client.progress) for client in crowd.clients if client.job_class is not CHAT)
    assert low_steps >= 400
    assert all(client.served >= 2 for client in crowd.clients)
    assert len(crowd.world.logged(LogEvent.LOAD)) == 4


def test_the_oldest_starved_job_that_cannot_load_does_not_stand_before_an_embedding_job() -> None:
    """Its model does not fit beside the two that people chat with: it waits and says why, and the embedder's job, far
    younger, gets its turn after 3 s."""
    world = World(
        (model("one", option(6, 2)), model("two", option(6, 2)), model("big", option(8)), model("embed", option(1, 4))),
        step_seconds={"embed": 0.5},
    )
    world.warm("one", "two", "embed")
    world.submit("one")
    world.submit("two")
    oldest = world.submit("big", BACKGROUND)
    world.advance(60.0)
    job = world.submit("embed", BACKGROUND, steps=4)
    asked_at = world.now
    world.advance(3.0)
    assert world.granted_at(job) == asked_at + 3.0
    world.advance(20.0)
    assert len(world.grants(job)) == 4
    assert world.why(oldest) == "R1"
    assert world.loads("big") == []


def test_R3_being_200_MB_short_does_not_unload_a_second_model_while_the_first_is_finishing() -> None:
    """One model is told to go and takes its time; readings and other chats come meanwhile: the second stays."""
    world = World(
        (model("a", option(8)), model("b", option(7.8)), model("m", option(0.4))),
        stop_seconds=5.0,
        lag_seconds=3.0,
        policy=Policy(stop_grace_seconds=10.0),
    )
    world.warm("a", "b")
    world.read(15.8, {"a": 8, "b": 7.8})
    chat = world.submit("m")
    assert (len(world.stops("a")), len(world.stops("b"))) == (1, 0)
    for _ in range(8):
        world.advance(0.9)
        world.read(15.8, {"b": 7.8})
        world.finish(world.submit("b"))
    world.advance(1.0)
    world.read(7.8, {"b": 7.8})
    world.advance(11.0)
    assert world.granted_at(chat) is not None
    assert world.stops("b") == []


def test_R3_being_short_does_not_drain_a_second_model_while_the_first_still_works() -> None:
    """The first victim's long step ends first; the other, busy too, goes on taking work."""
    world = World((model("a", option(8, 2)), model("b", option(7.8, 2)), model("m", option(0.4))))
    world.warm("a", "b", job_class=BACKGROUND)
    long_step = world.submit("a", BACKGROUND)
    world.submit("b", BACKGROUND)
    world.submit("m")
    draining = [name for name in ("a", "b") if world.state(name) == "draining"]
    assert len(draining) == 1
    for _ in range(20):
        world.advance(1.0)
        world.read(15.8, {"a": 8, "b": 7.8})
    assert [name for name in ("a", "b") if world.state(name) == "draining"] == draining
    assert world.grant(long_step)


@pytest.mark.parametrize("still_used", [True, False], ids=["its bytes are still there", "its bytes are gone"])
def test_L3_a_process_that_vanished_between_two_readings_makes_no_healthy_model_go(still_used: bool) -> None:
    """The list of processes and the total are two calls: one of ours is missing from the first. Nobody else is
    believed to hold its memory, and nothing is unloaded; not when its exit is heard either."""
    world = World((model("a", option(8)), model("b", option(6)), model("c", option(1.5))))
    world.warm("a", "b", "c")
    world.read(15.5, {"a": 8, "b": 6, "c": 1.5})
    used = 15.5 if still_used else 9.5
    for _ in range(3):
        world.read(used, {"a": 8, "c": 1.5})
        assert world.scheduler.state.ledger.books[DeviceName("gpu0")].external_bytes == 0
        world.advance(1.0)
    world.dies(world.instance("b"))
    world.read(used, {"a": 8, "c": 1.5})
    world.advance(60.0)
    world.read(9.5, {"a": 8, "c": 1.5})
    world.advance(60.0)
    assert (world.stops("a"), world.stops("c")) == ([], [])
    assert not world.scheduler.snapshot(world.now).devices[0].pressure


def test_S6a_a_starved_background_load_is_never_slipped_in_before_a_waiting_chat() -> None:
    """The chat's model waits for a long step of its victim; memory is free for the small one, whose job starves for a
    minute: it is loaded only when the chat's model is there."""
    world = World((model("old", option(10)), model("m", option(14)), model("small", option(2)), model("s", option(1))))
    world.warm("old")
    step = world.submit("old", BACKGROUND)
    chat = world.submit("m")
    starved = world.submit("small", BACKGROUND)
    batch = world.submit("s", BATCH)
    world.advance(180.0)
    assert world.granted_at(chat) is None
    assert (world.loads("small"), world.loads("s")) == ([], [])
    world.finish(step)
    world.advance(11.0)
    assert world.granted_at(chat) is not None
    assert all(at >= world.loads("m")[0] for at in world.loads("small") + world.loads("s"))
    world.finish(chat)
    world.advance(40.0)
    assert world.granted_at(starved) is not None
    assert batch is not None


def test_L1_two_chats_and_a_background_job_never_claim_the_same_memory() -> None:
    """Each of three fits alone, in the same instant: what is reserved, loading or ready, never passes the card."""
    models = tuple(model(name, option(9)) for name in ("a", "b", "c"))
    world = World(models, policy=Policy(hot_window_seconds=5.0))
    jobs = [world.submit("a", BACKGROUND), world.submit("b"), world.submit("c")]
    for _ in range(120):
        device = world.scheduler.snapshot(world.now).devices[0]
        assert device.reserved_bytes <= device.total_bytes
        for job in jobs:
            if world.grants(job) and world.grant(job).id in world.scheduler.state.grants:
                world.finish(job)
        world.advance(1.0)
    assert all(world.granted_at(job) is not None for job in jobs)
