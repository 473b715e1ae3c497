"""The server's end, from whatever it is doing (P8): everybody is told, nobody is left, no process survives.

Each state is ended twice: by the first signal, which drains, and by the second, which cuts off.
"""

from collections.abc import Awaitable, Callable

import pytest
import trio
from trio.testing import MockClock

from gridsched.core.events import LeaseAsked, LoadAsked, UnloadAsked
from gridsched.core.ids import DeviceName, JobId, ModelName
from gridsched.core.policy import Policy
from gridsched.runtime.runtime import Limits
from sim.engine import Faults
from tests.runtime.inside import BACKGROUND, BIG, CHAT, EMBED, GIB, GRACE_SECONDS, LEFT, MIDDLE, SMALL, Inside, inside

LIMITS = Limits(drain_seconds=10.0, stop_seconds=12.0)
TWO_DO_NOT_FIT = (10 * GIB,)
PAUSING = Policy(background_pause=True)


async def idle(server: Inside) -> None:
    """Nothing has ever been asked."""
    await trio.sleep(1.0)
    assert not server.logged("enqueue")


async def warm(server: Inside) -> None:
    """A model is loaded and nobody uses it."""
    await server.ask(server.job(MIDDLE))


async def loading(server: Inside) -> None:
    """Half way through a load, a chat and a low job wait for it."""
    server.come(server.job(BIG))
    server.come(server.job(BIG, BACKGROUND))
    await server.until("load")
    await trio.sleep(2.0)


async def running(server: Inside) -> None:
    """Three answers are being written, each of about two seconds."""
    await server.ask(server.job(MIDDLE))
    for _ in range(3):
        server.come(server.job(MIDDLE), tokens=150)
    await server.until("dispatch", 4)


async def draining_a_victim(server: Inside) -> None:
    """A chat waits for the memory of a model that still writes an answer."""
    await server.ask(server.job(MIDDLE))
    server.come(server.job(MIDDLE), tokens=700)
    await server.until("dispatch", 2)
    server.come(server.job(BIG))
    await server.until("drain")


async def stopping_a_victim(server: Inside) -> None:
    """A chat waits for a model that was told to go and has not gone."""
    await server.ask(server.job(MIDDLE))
    server.world.engine.set_faults(server.instance(MIDDLE), Faults(ignore_stop=True))
    server.come(server.job(BIG))
    await server.until("evict")


async def waiting_for_memory(server: Inside) -> None:
    """The victim has exited, and the driver has not given its memory back."""
    await server.ask(server.job(MIDDLE))
    server.world.monitor.release_seconds = (30.0, 30.0)
    server.come(server.job(BIG))
    await server.until("exit")


async def a_queue_full_of_waiters(server: Inside) -> None:
    """Two slots, two answers of a while, a hundred behind them."""
    await server.ask(server.job(BIG))
    for number in range(100):
        server.come(server.job(BIG, BACKGROUND if number % 2 else CHAT), tokens=100)
    await server.until("dispatch", 3)


async def refusing(server: Inside) -> None:
    """A model in back-off, and a process that dies again."""
    server.world.engine.plan_faults(SMALL, Faults(crash_in_load=True))
    await server.ask(server.job(SMALL))


async def hanging(server: Inside) -> None:
    """An engine that gives no more bytes, with a client that waits for them."""
    await server.ask(server.job(MIDDLE))
    server.world.engine.set_faults(server.instance(MIDDLE), Faults(hang=True))
    server.come(server.job(MIDDLE))
    await server.until("dispatch", 2)


async def settling(server: Inside) -> None:
    """A client has just left in mid-stream; its slot is not free yet."""
    await server.ask(server.job(MIDDLE))
    scope = server.come(server.job(MIDDLE), tokens=150)
    await server.until("dispatch", 2)
    scope.cancel()
    await trio.testing.wait_all_tasks_blocked()


async def paused(server: Inside) -> None:
    """A background answer stands still while somebody chats beside it (S10)."""
    await server.ask(server.job(MIDDLE, BACKGROUND))
    await server.ask(server.job(SMALL))
    await trio.sleep(5.0)
    server.come(server.job(MIDDLE, BACKGROUND), tokens=300)
    await server.until("dispatch", 3)
    server.come(server.job(SMALL), tokens=300)
    await server.until("pause")


async def leased(server: Inside) -> None:
    """Somebody has the only card; a chat and a low job wait for it to come back."""
    await server.runtime.wishes.ask(lambda number: LeaseAsked(number, DeviceName("sim0"), "a game"))
    server.come(server.job(MIDDLE))
    server.come(server.job(SMALL, BACKGROUND))
    await server.until("enqueue", 2)


async def asked_by_a_person(server: Inside) -> None:
    """A person waits for a load, and another for an unload behind a running answer."""
    await server.ask(server.job(MIDDLE))
    server.come(server.job(MIDDLE), tokens=300)
    await server.until("dispatch", 2)
    server.clients.start_soon(server.runtime.wishes.ask, lambda number: UnloadAsked(number, ModelName(MIDDLE)))
    server.clients.start_soon(server.runtime.wishes.ask, lambda number: LoadAsked(number, ModelName(SMALL)))
    await trio.sleep(0.1)


STATES: dict[str, Callable[[Inside], Awaitable[None]]] = {
    "idle": idle,
    "warm": warm,
    "loading": loading,
    "running": running,
    "draining a victim": draining_a_victim,
    "stopping a victim": stopping_a_victim,
    "waiting for memory": waiting_for_memory,
    "a queue full of waiters": a_queue_full_of_waiters,
    "refusing": refusing,
    "hanging": hanging,
    "settling": settling,
    "paused": paused,
    "leased": leased,
    "asked by a person": asked_by_a_person,
}
states = pytest.mark.parametrize("state", STATES.values(), ids=STATES.keys())


@states
async def test_P8_a_first_signal_drains(autojump_clock: MockClock, state: Callable[[Inside], Awaitable[None]]) -> None:
    """Whoever waits is told at once, whoever is being answered is answered, and it ends within its limits."""
    async with inside(autojump_clock, cards=TWO_DO_NOT_FIT, limits=LIMITS, policy=PAUSING) as server:
        await state(server)
        waiting = {item.id for item in server.runtime.jobs().waiting}
        told_at = trio.current_time()
        server.runtime.end()
        await trio.testing.wait_all_tasks_blocked()
        assert {server.ends[job_id] for job_id in waiting} <= {"draining"}
        assert await server.ask(server.job(MIDDLE)) == "draining"
        await server.ended.wait()
        limit = LIMITS.drain_seconds + LIMITS.stop_seconds + GRACE_SECONDS
        assert trio.current_time() - told_at <= limit
        if state is not hanging and state is not settling:
            assert LEFT not in server.ends.values()


@states
async def test_P8_a_second_signal_ends_at_once(
    autojump_clock: MockClock, state: Callable[[Inside], Awaitable[None]]
) -> None:
    """In the middle of the drain: no time passes any more, and still no process is left and each ticket is closed."""
    async with inside(autojump_clock, cards=TWO_DO_NOT_FIT, limits=LIMITS, policy=PAUSING) as server:
        await state(server)
        server.runtime.end()
        await trio.sleep(0.05)
        second_at = trio.current_time()
        server.cut.cancel()
        await server.ended.wait()
        assert trio.current_time() == second_at


@states
async def test_P8_cut_off_without_a_drain(
    autojump_clock: MockClock, state: Callable[[Inside], Awaitable[None]]
) -> None:
    """As when something of the server's own breaks: everything is unwound at once."""
    async with inside(autojump_clock, cards=TWO_DO_NOT_FIT, limits=LIMITS, policy=PAUSING) as server:
        await state(server)
        cut_at = trio.current_time()
        server.cut.cancel()
        await server.ended.wait()
        assert trio.current_time() == cut_at


async def test_P8_between_a_grant_and_its_taking(autojump_clock: MockClock) -> None:
    """The signal comes in the tick in which a grant is delivered: that job is served, it counts as running."""
    async with inside(autojump_clock, limits=LIMITS) as server:
        await server.ask(server.job(MIDDLE))
        server.on_answer = lambda _: server.runtime.end()
        job = server.job(MIDDLE)
        server.come(job)
        await server.ended.wait()
        assert server.ends[job.id] == "done"


async def test_P8_between_a_grant_and_its_taking_cut_off(autojump_clock: MockClock) -> None:
    """Both signals in that tick: the grant goes back."""
    async with inside(autojump_clock, limits=LIMITS) as server:
        await server.ask(server.job(MIDDLE))
        job = server.job(MIDDLE)

        def on_answer(job_id: JobId) -> None:
            if job_id == job.id:
                server.runtime.end()
                server.cut.cancel()

        server.on_answer = on_answer
        server.come(job)
        await server.ended.wait()
        assert server.closed[job.id] == ["returned"]


async def test_P8_a_process_that_will_not_go_is_killed_within_the_limit(autojump_clock: MockClock) -> None:
    """It ignores the stop until the kill; the server's end waits for that and no longer."""
    async with inside(autojump_clock, limits=LIMITS) as server:
        await server.ask(server.job(MIDDLE))
        server.world.engine.set_faults(server.instance(MIDDLE), Faults(ignore_stop=True))
        told_at = trio.current_time()
        server.runtime.end()
        await server.ended.wait()
        assert 9.0 < trio.current_time() - told_at <= LIMITS.stop_seconds


async def test_P8_an_answer_longer_than_the_drain_is_cut_at_its_limit(autojump_clock: MockClock) -> None:
    """Ten seconds, then the client's grace, then it is gone."""
    async with inside(autojump_clock, limits=LIMITS) as server:
        await server.ask(server.job(BIG))
        job = server.job(BIG)
        server.come(job, tokens=5000)
        await server.until("dispatch", 2)
        told_at = trio.current_time()
        server.runtime.end()
        await server.ended.wait()
        assert trio.current_time() - told_at == pytest.approx(LIMITS.drain_seconds + GRACE_SECONDS, abs=1.0)
        assert server.ends[job.id] == LEFT


async def test_P8_a_job_of_many_steps_ends_with_its_step(autojump_clock: MockClock) -> None:
    """An embedding job in mid-way: its step ends, the next is refused."""
    async with inside(autojump_clock, limits=LIMITS) as server:
        job = server.job(EMBED, BACKGROUND, steps=20)
        server.come(job)
        await server.until("step", 3)
        server.runtime.end()
        await server.ended.wait()
        assert server.ends[job.id] == "draining"
        assert len(server.logged("step", job=job.id)) <= 5
