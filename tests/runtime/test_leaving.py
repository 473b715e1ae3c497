"""A client that goes away, at every moment of its job: one closing, its slot free, nobody else the worse (S7, S8)."""

import pytest
import trio
from trio.testing import MockClock

from gridsched.core.events import JobAbandoned, JobSubmitted
from gridsched.core.ids import JobId
from tests.runtime.inside import BACKGROUND, BIG, LEFT, MIDDLE, Inside, Sink, inside


async def served_soon(server: Inside, name: str = BIG) -> None:
    """Whatever happened before, the next chat is answered, and all slots are free in the end."""
    with trio.fail_after(60.0):
        assert await server.ask(server.job(name)) == "done"
    await trio.sleep(1.0)
    assert all(item.slots_busy == 0 for item in server.runtime.snapshot().instances)


async def test_S8_while_its_model_loads(autojump_clock: MockClock) -> None:
    """The load is under half way and for nobody else: it is aborted."""
    async with inside(autojump_clock) as server:
        scope = server.come(server.job(BIG))
        await server.until("load")
        await trio.sleep(1.0)
        scope.cancel()
        await server.until("stop", rule="S6c")
        await server.until("released")
        assert list(server.closed.values()) == [["abandoned"]]
        await served_soon(server)


async def test_S6c_in_the_tick_in_which_its_load_begins(autojump_clock: MockClock) -> None:
    """The process is told to go before its task has had a turn: it never starts, and its memory is free."""
    async with inside(autojump_clock) as server:
        job = server.job(BIG)
        server.runtime.post(JobSubmitted(job))
        server.runtime.post(JobAbandoned(job.id))
        await server.until("released")
        assert server.logged("load")[0][0] == server.logged("exit")[0][0]
        assert not server.world.engine.processes()
        await served_soon(server)


async def test_S8_in_the_queue(autojump_clock: MockClock) -> None:
    """Behind two that run; the one behind it moves up."""
    async with inside(autojump_clock) as server:
        await server.ask(server.job(BIG))
        for _ in range(2):
            server.come(server.job(BIG), tokens=100)
        await server.until("dispatch", 3)
        scope = server.come(server.job(BIG))
        last = server.job(BIG)
        server.come(last)
        await trio.sleep(0.1)
        scope.cancel()
        await trio.sleep(10.0)
        assert server.ends[last.id] == "done"
        assert [how for how in server.closed.values() if how == ["abandoned"]] == [["abandoned"]]
        await served_soon(server)


@pytest.mark.parametrize("pieces", [0, 1, 4], ids=["before the first byte", "after the first", "in mid-stream"])
async def test_S8_in_a_running_step(autojump_clock: MockClock, pieces: int) -> None:
    """The job is over at once; the slot is free when the engine has noticed, and not before."""
    async with inside(autojump_clock) as server:
        await server.ask(server.job(BIG))
        enough = trio.Event()
        sink = Sink(on_bytes=lambda _: len(sink.parts) == pieces and enough.set())
        scope = server.come(server.job(BIG), tokens=200, sink=sink)
        await server.until("dispatch", 2)
        if pieces:
            await enough.wait()
        scope.cancel()
        await trio.testing.wait_all_tasks_blocked()
        assert server.runtime.desk.open_tickets == 0
        assert [item.slots_busy for item in server.runtime.snapshot().instances] == [1]
        await served_soon(server)
        assert [how for _, how in sorted(server.closed.items())] == [["ended"]] * 3


@pytest.mark.parametrize("before", [True, False], ids=["just before", "just after"])
async def test_S7_in_the_tick_of_its_grant(autojump_clock: MockClock, before: bool) -> None:
    """The grant is on its way to a client that has gone: it is returned, opens no tail, and the next one has the slot.
    The client goes as the answer is delivered, or when it has been and before the client wakes."""
    async with inside(autojump_clock) as server:
        await server.ask(server.job(MIDDLE))
        await trio.sleep(10.0)
        job = server.job(MIDDLE)
        scope = trio.CancelScope()

        def on_answer(job_id: JobId) -> None:
            if job_id == job.id and before:
                scope.cancel()
            elif job_id == job.id:
                trio.lowlevel.current_trio_token().run_sync_soon(scope.cancel)

        server.on_answer = on_answer
        with scope:
            await server.ask(job)
        await trio.sleep(0.0)
        if before:
            assert server.closed[job.id] == ["returned"]
            low = server.job(MIDDLE, BACKGROUND)
            asked_at = trio.current_time()
            await server.ask(low)
            assert [at for at, _ in server.logged("dispatch", job=low.id)] == [asked_at]
        await served_soon(server, MIDDLE)


async def test_S8_in_the_tick_of_its_rejection(autojump_clock: MockClock) -> None:
    """It is over already: nothing more is said of it."""
    async with inside(autojump_clock) as server:
        job = server.job(BIG, warm_only=True)
        scope = trio.CancelScope()
        server.on_answer = lambda _: scope.cancel()
        with scope:
            await server.ask(job)
        await trio.sleep(0.1)
        assert server.closed[job.id] == ["rejected"]
        server.on_answer = lambda _: None
        await served_soon(server)


async def test_S8_in_the_moment_before_its_rejection(autojump_clock: MockClock) -> None:
    """Its leaving and the refusal cross: the leaving is what closes it, and the scheduler does not mind."""
    async with inside(autojump_clock) as server:
        job = server.job(BIG, max_wait_seconds=1.0)
        with trio.move_on_after(1.0):
            await server.ask(job)
        await trio.sleep(0.1)
        assert len(server.closed[job.id]) == 1
        await served_soon(server)


async def test_S8_in_the_tick_of_its_end(autojump_clock: MockClock) -> None:
    """The last bytes are going out as it leaves: one closing, whichever was first."""
    async with inside(autojump_clock) as server:
        scope = trio.CancelScope()
        sink = Sink(on_bytes=lambda data: scope.cancel() if b"[DONE]" in data else None)
        job = server.job(BIG)
        with scope:
            await server.ask(job, sink=sink)
        assert sink.parts
        await trio.sleep(1.0)
        assert server.closed[job.id] == ["ended"]
        await served_soon(server)


async def test_S8_sixty_that_leave_at_as_many_moments(autojump_clock: MockClock) -> None:
    """Each a hundredth of a second later in its life than the one before: no slot is lost, no ticket closed twice."""
    async with inside(autojump_clock) as server:
        await server.ask(server.job(MIDDLE))
        for number in range(60):
            with trio.move_on_after(number * 0.01):
                await server.ask(server.job(MIDDLE), tokens=12)
        assert {LEFT, "done"} == set(server.ends.values())
        await served_soon(server, MIDDLE)
