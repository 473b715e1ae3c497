"""A page that is read changes nothing: no model is loaded, woken, or kept any longer for it."""

from collections.abc import Iterator
from contextlib import AsyncExitStack

import pytest
import trio
from trio.testing import MockClock

from gridsched.core.commands import LogEvent
from gridsched.core.policy import Policy
from gridsched.metrics.registry import Metrics
from gridsched.ports import EngineInfo
from sim import build
from tests.stories.world import BACKGROUND, BATCH, CHAT, World, model, option
from tests.support.front import serving

HOUR = 3600.0
IDLE = 900.0


def an_hour(*, scraped_every: float | None) -> World:
    """Three models of which two fit: chats, hot windows, low work that waits, relief, a pause, idle timers."""
    models = tuple(model(name, option(7, 2), idle_ttl_seconds=IDLE, load=5.0) for name in ("chat", "low", "other"))
    steps = {"chat": 4.0, "low": 3.0, "other": 2.0}
    world = World(models, policy=Policy(background_pause=True, hot_yield_after_seconds=60.0), step_seconds=steps)
    metrics = Metrics(EngineInfo(ok=True, version="b1", backend="cpu"), lambda: 0.0)
    metrics.watch(lambda: world.scheduler.snapshot(world.now), build().catalog)
    for at, name, job_class in asked():
        world.later(at, lambda name=name, job_class=job_class: world.submit(name, job_class))  # type: ignore[misc]
    if scraped_every is None:
        world.advance(HOUR)
        return world
    while world.now < HOUR:
        world.advance(scraped_every)
        assert len(metrics.exposition("application/openmetrics-text")[1]) > 10_000
    return world


def asked() -> Iterator[tuple[float, str, object]]:
    """Who asks for what, and when: busy for twenty minutes, then hardly."""
    for number in range(120):
        yield number * 10.0, "chat", CHAT
        yield number * 10.0 + 1, "low", BACKGROUND
        if number % 10 == 0:
            yield number * 10.0 + 2, "other", BATCH
    yield 3000.0, "other", CHAT


@pytest.mark.slow
def test_R6_an_hour_of_pages_every_second_changes_no_decision_and_no_moment() -> None:
    """The same commands at the same times, loads and idle unloads among them, as with nobody looking."""
    left_alone, scraped = an_hour(scraped_every=None), an_hour(scraped_every=1.0)
    assert scraped.heard == left_alone.heard
    events = {event for event in LogEvent if left_alone.logged(event)}
    assert events >= {LogEvent.LOAD, LogEvent.EVICT, LogEvent.STOP, LogEvent.PAUSE, LogEvent.MODE}
    assert "R6" in {line.rule for _, line in left_alone.logged(LogEvent.STOP)}


async def test_R6_a_page_over_http_is_no_event(autojump_clock: MockClock) -> None:
    """The scheduler is told nothing by it, so that nothing is loaded or marked as used."""
    async with serving(autojump_clock) as house:

        async def decisions() -> str:
            page = (await house.ask("GET", "/metrics")).body.decode()
            return next(line for line in page.split("\n") if line.startswith("gridsched_decision_seconds_count"))

        before = await decisions()
        assert {await decisions() for _ in range(20)} == {before}
        assert not house.logged("load")


async def test_a_storm_of_scrapes_leaves_every_turn_but_one_page_to_others(autojump_clock: MockClock) -> None:
    """Fifty ask at once: whoever else has something to do has its turn between any two pages."""
    async with serving(autojump_clock) as house, AsyncExitStack() as stack:
        pages, between, over = 0, [0], False

        def pressure() -> None:
            nonlocal pages
            pages += 1

        house.metrics.watch(house.runtime.snapshot, house.world.catalog, pressure)
        clients = [await stack.enter_async_context(await house.connect()) for _ in range(50)]

        async def somebody_else() -> None:
            while not over:
                before = pages
                await trio.lowlevel.checkpoint()
                between.append(pages - before)

        async with trio.open_nursery() as others:
            others.start_soon(somebody_else)
            async with trio.open_nursery() as scrapers:
                for client in clients:
                    scrapers.start_soon(client.ask, "GET", "/metrics")
            over = True
        assert pages == 50
        assert max(between) <= 2  # the end of one turn and the beginning of the next
