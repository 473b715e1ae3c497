"""Drain and end as verbs: who asks for them need not be a signal, and the server ends with the code that was said."""

import trio
from trio.testing import MockClock

from tests.runtime.inside import BACKGROUND, BIG, EMBED, MIDDLE, inside


async def test_P8_a_drained_server_stays_and_goes_on_refusing(autojump_clock: MockClock) -> None:
    """Whoever runs finishes, whoever waits or comes is told, idle processes go; the server stays until it is ended."""
    async with inside(autojump_clock) as server:
        await server.ask(server.job(BIG))
        jobs = [server.job(BIG) for _ in range(3)]
        for job in jobs:
            server.come(job, tokens=200)
        await server.until("dispatch", 3)
        assert await server.runtime.drain()
        assert sorted(server.ends[job.id] for job in jobs) == ["done", "done", "draining"]
        await trio.sleep(60.0)
        assert await server.ask(server.job(BIG)) == "draining"
        assert not server.world.engine.processes()
        assert not server.ended.is_set()
        server.runtime.begin_drain()
        server.runtime.end()
        await server.ended.wait()
    assert server.exit_code == 0


async def test_P8_a_drain_waits_no_longer_than_its_limit(autojump_clock: MockClock) -> None:
    """One that runs too long is left to run: the drain says that it has not ended."""
    async with inside(autojump_clock) as server:
        await server.ask(server.job(BIG))
        server.come(server.job(BIG), tokens=5000)
        await server.until("dispatch", 2)
        began_at = trio.current_time()
        assert not await server.runtime.drain()
        assert trio.current_time() - began_at == 30.0
        assert server.runtime.desk.open_tickets == 1


async def test_P8_it_ends_with_the_code_that_was_asked_for(autojump_clock: MockClock) -> None:
    """A restart: with idle processes it takes under two seconds."""
    async with inside(autojump_clock) as server:
        await server.ask(server.job(MIDDLE))
        await server.ask(server.job(EMBED, BACKGROUND))
        assert len(server.world.engine.processes()) == 2
        told_at = trio.current_time()
        server.runtime.end(75)
        await server.ended.wait()
        assert trio.current_time() - told_at < 2.0
    assert server.exit_code == 75


async def test_P8_a_stop_that_overtakes_a_restart_is_a_stop(autojump_clock: MockClock) -> None:
    """The last word counts, and nothing is ended sooner for it."""
    async with inside(autojump_clock) as server:
        await server.ask(server.job(BIG))
        job = server.job(BIG)
        server.come(job, tokens=200)
        await server.until("dispatch", 2)
        server.runtime.end(75)
        await trio.sleep(1.0)
        server.runtime.end()
        await server.ended.wait()
        assert server.ends[job.id] == "done"
    assert server.exit_code == 0
