"""A process that dies, in every state it can be in: its own requests are told or run again, nobody else's (P5)."""

import pytest
import trio
from trio.testing import MockClock

from gridsched.core.failures import DEATHS
from gridsched.core.policy import Policy
from sim.engine import Faults
from tests.runtime.inside import BACKGROUND, BIG, EMBED, GIB, LEFT, MIDDLE, SMALL, Inside, Sink, inside

TWO_DO_NOT_FIT = (10 * GIB,)


async def outcome(server: Inside, *jobs: object) -> list[str]:
    """What became of jobs, once the desk is empty."""
    await trio.testing.wait_all_tasks_blocked()
    with trio.fail_after(200.0):
        await server.runtime.desk.wait_idle()
    return [server.ends[job.id] for job in jobs]  # type: ignore[attr-defined]


async def test_L6d_while_it_loads(autojump_clock: MockClock) -> None:
    """Whoever waits is told with the cause; the next one in the back-off too; after it the model is tried again."""
    async with inside(autojump_clock) as server:
        jobs = [server.job(BIG), server.job(BIG, BACKGROUND)]
        for job in jobs:
            server.come(job)
        await server.until("load")
        await trio.sleep(1.0)
        server.world.engine.crash(server.instance(BIG))
        assert await outcome(server, *jobs) == ["model_failed"] * 2
        assert await server.ask(server.job(BIG)) == "model_failed"
        await trio.sleep(10.5)
        assert await server.ask(server.job(BIG)) == "done"


async def test_P5_while_it_is_idle(autojump_clock: MockClock) -> None:
    """Nobody notices but the next one, who waits for a load."""
    async with inside(autojump_clock) as server:
        await server.ask(server.job(MIDDLE))
        server.world.engine.crash(server.instance(MIDDLE))
        await server.until("released")
        assert await server.ask(server.job(MIDDLE)) == "done"
        assert len(server.logged("load")) == 2


async def test_P5_while_it_answers(autojump_clock: MockClock) -> None:
    """Four streams: whoever had a byte is told, and a neighbour's model goes on."""
    async with inside(autojump_clock) as server:
        await server.ask(server.job(MIDDLE))
        await server.ask(server.job(SMALL))
        jobs = [server.job(MIDDLE) for _ in range(4)]
        sinks = [Sink() for _ in jobs]
        for job, sink in zip(jobs, sinks, strict=True):
            server.come(job, tokens=200, sink=sink)
        other = server.job(SMALL)
        server.come(other, tokens=200)
        await trio.sleep(1.0)
        assert all(sink.parts for sink in sinks)
        server.world.engine.crash(server.instance(MIDDLE))
        assert await outcome(server, *jobs, other) == ["engine_died"] * 4 + ["done"]
        assert await server.ask(server.job(MIDDLE)) == "done"


async def test_P5_before_it_has_answered(autojump_clock: MockClock) -> None:
    """No byte had reached the client: it is run again on a fresh process, and the client never knows."""
    async with inside(autojump_clock) as server:
        await server.ask(server.job(EMBED, BACKGROUND))
        job = server.job(EMBED, BACKGROUND, steps=3)
        server.come(job)
        await server.until("dispatch", 2)
        await trio.sleep(0.1)
        server.world.engine.crash(server.instance(EMBED))
        assert await outcome(server, job) == ["done"]
        assert [line["step"] for _, line in server.logged("dispatch", job=job.id)] == [1, 1, 2, 3]


async def test_P5_twice_before_it_has_answered(autojump_clock: MockClock) -> None:
    """Once is chance, twice is told."""
    async with inside(autojump_clock) as server:
        server.world.engine.plan_faults(EMBED, Faults(crash_after_seconds=0.1))
        job = server.job(EMBED, BACKGROUND)
        server.come(job)
        (end,) = await outcome(server, job)
        assert end in ("upstream_error", "model_failed")  # its own second end, or its model's, whichever is heard first
        assert len(server.logged("dispatch", job=job.id)) == 2


async def test_R2_while_it_drains_for_a_chat(autojump_clock: MockClock) -> None:
    """The victim dies in its last step: the chat's model has the memory all the sooner."""
    async with inside(autojump_clock, cards=TWO_DO_NOT_FIT) as server:
        await server.ask(server.job(MIDDLE))
        old, chat = server.job(MIDDLE), server.job(BIG)
        server.come(old, tokens=2000)
        await server.until("dispatch", 2)
        await trio.sleep(1.0)
        server.come(chat)
        await server.until("drain")
        server.world.engine.crash(server.instance(MIDDLE))
        assert await outcome(server, old, chat) == ["engine_died", "done"]


async def test_S10_while_it_stands_for_a_chat(autojump_clock: MockClock) -> None:
    """A paused process is killed: its job had no byte yet, is run again on a fresh one, and the chat never knew."""
    async with inside(autojump_clock, policy=Policy(background_pause=True)) as server:
        await server.ask(server.job(EMBED, BACKGROUND))
        await server.ask(server.job(SMALL))
        await trio.sleep(5.0)
        low, chat = server.job(EMBED, BACKGROUND), server.job(SMALL)
        server.come(low)
        await server.until("dispatch", 3)
        server.come(chat, tokens=100)
        await server.until("pause")
        server.world.engine.crash(server.instance(EMBED))
        assert await outcome(server, low, chat) == ["done", "done"]
        assert len(server.logged("dispatch", job=low.id)) == 2


async def test_P5_while_it_is_being_stopped(autojump_clock: MockClock) -> None:
    """It was told to go, would have taken its time, and dies: its exit is its exit."""
    async with inside(autojump_clock, cards=TWO_DO_NOT_FIT) as server:
        await server.ask(server.job(MIDDLE))
        gone = server.instance(MIDDLE)
        server.world.engine.set_faults(gone, Faults(ignore_stop=True))
        chat = server.job(BIG)
        server.come(chat)
        await server.until("evict")
        await trio.sleep(1.0)
        server.world.engine.crash(gone)
        assert await outcome(server, chat) == ["done"]
        assert len(server.logged("exit", instance=gone)) == 1


async def test_P5_in_the_tick_in_which_a_client_leaves_it(autojump_clock: MockClock) -> None:
    """Its slot begins to be watched as its process ends: neither is forgotten, and the server lives."""
    async with inside(autojump_clock) as server:
        for _ in range(DEATHS):
            await server.ask(server.job(MIDDLE))
            scope = server.come(server.job(MIDDLE), tokens=200)
            await trio.sleep(0.1)
            scope.cancel()
            server.world.engine.crash(server.instance(MIDDLE))
            await trio.sleep(1.0)
            assert server.runtime.snapshot().running == dict.fromkeys(server.runtime.snapshot().running, 0)
        assert LEFT in server.ends.values()


async def test_P5_in_the_tick_of_a_grant(autojump_clock: MockClock) -> None:
    """The grant is delivered as the process dies: nothing takes the connection, and the step is run again."""
    async with inside(autojump_clock) as server:
        await server.ask(server.job(MIDDLE))
        died = server.instance(MIDDLE)
        job = server.job(MIDDLE)
        server.on_answer = lambda job_id: job_id == job.id and _crash_once(server, died)
        server.come(job)
        assert await outcome(server, job) == ["done"]
        assert len(server.logged("dispatch", job=job.id)) == 2


def _crash_once(server: Inside, instance_id: object) -> None:
    if instance_id in server.world.engine.processes():
        server.world.engine.crash(instance_id)  # type: ignore[arg-type]


async def test_S9_when_it_hangs(autojump_clock: MockClock) -> None:
    """No byte for the stall limit: the client is told, the process restarted, and the next one is served."""
    async with inside(autojump_clock) as server:
        await server.ask(server.job(MIDDLE))
        hung = server.instance(MIDDLE)
        server.world.engine.set_faults(hung, Faults(hang=True))
        job = server.job(MIDDLE)
        server.come(job)
        assert await outcome(server, job) == ["stalled"]
        assert await server.ask(server.job(MIDDLE)) == "done"
        assert server.logged("stop", instance=hung, rule="P5")


async def test_S8_when_it_hangs_for_a_client_that_has_left(autojump_clock: MockClock) -> None:
    """Its slot never settles: after a minute the process is restarted, and the chat behind it is served."""
    async with inside(autojump_clock) as server:
        await server.ask(server.job(BIG))
        server.world.engine.set_faults(server.instance(BIG), Faults(hang=True))
        scopes = [server.come(server.job(BIG)) for _ in range(2)]
        await server.until("dispatch", 3)
        await trio.testing.wait_all_tasks_blocked()
        for scope in scopes:
            scope.cancel()
        waiter = server.job(BIG)
        server.come(waiter)
        assert await outcome(server, waiter) == ["done"]
        assert server.logged("drain", rule="S9")


@pytest.mark.parametrize("fault", [Faults(out_of_memory=True), Faults(crash_in_load=True)], ids=["memory", "crash"])
async def test_L6d_a_load_that_fails_gives_everything_back(autojump_clock: MockClock, fault: Faults) -> None:
    """Its reservation, its slot, its device: the next model loads at once."""
    async with inside(autojump_clock) as server:
        server.world.engine.plan_faults(BIG, fault)
        assert await server.ask(server.job(BIG)) == "model_failed"
        assert await server.ask(server.job(MIDDLE)) == "done"
        await trio.sleep(2.0)
        device = server.runtime.snapshot().devices[0]
        assert device.reserved_bytes == sum(item.estimated_bytes for item in server.runtime.snapshot().instances)
