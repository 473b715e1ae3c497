# ruff: noqa: ARG001 - a jumping clock works by being asked for
"""A scenario's machine behind the real ports: its models, and how their processes share its card, as a clock jumps."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path

import pytest
import trio

from gridsched.cli import scenario as files
from gridsched.core.events import InstanceReady
from gridsched.core.ids import InstanceId, ModelName
from gridsched.ports import Capability
from sim import SimWorld, build_scenario

BIG, SMALL, TINY, EMBEDDER = "gemma4-12b", "gemma4-e4b", "gemma4-e2b", "embedder"
TOKENS, LONG = 42, 2000
ALONE_SECONDS = 0.936
"""So many tokens of the big one: 8.3 GiB are read for each, at 400 GB a second."""


@pytest.fixture
def world() -> SimWorld:
    """The shipped scenario's machine."""
    return build_scenario(files.load(files.found(Path("4060ti-mixed"))))


@asynccontextmanager
async def running(world: SimWorld, *names: str) -> AsyncIterator[dict[str, InstanceId]]:
    """A ready process of each."""
    found: dict[str, InstanceId] = {}
    ready = {InstanceId(number): trio.Event() for number, _ in enumerate(names, 1)}

    def post(event: object) -> None:
        if isinstance(event, InstanceReady):
            ready[event.instance_id].set()

    async with trio.open_nursery() as nursery:
        for number, name in zip(ready, names, strict=True):
            model = world.catalog.resolve(name)
            assert model is not None
            launch = world.catalog.launch(ModelName(name), model.spec.options[0])  # type: ignore[union-attr]
            nursery.start_soon(world.engine.run, number, launch, post)
            found[name] = number
        for event in ready.values():
            await event.wait()
        yield found
        nursery.cancel_scope.cancel()


async def chat(world: SimWorld, instance: InstanceId, tokens: int, *, stream: bool = False) -> list[float]:
    """When each part of an answer came, in seconds since it was asked for."""
    asked_at = trio.current_time()
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": tokens, "stream": stream}
    parts = []
    async with world.upstream.request(
        instance, "POST", "/v1/chat/completions", (), json.dumps(body).encode()
    ) as answer:
        while await answer.receive():
            parts.append(trio.current_time() - asked_at)
    return parts


def test_the_machine_is_the_scenarios(world: SimWorld) -> None:
    """Its card with its headroom, its models with their slots, loads and pins, and what they can do."""
    (card,) = world.monitor.devices()
    assert (card.spec.name, card.spec.total_bytes) == ("gpu0", 16 << 30)
    assert card.spec.headroom_bytes == int(card.spec.total_bytes * 0.02)
    specs = {str(one.name): one.spec for one in world.catalog.models()}
    assert {name: (spec.options[0].parallel, spec.load_seconds, spec.pinned) for name, spec in specs.items()} == {
        BIG: (2, 6.4, False),
        SMALL: (4, 3.4, False),
        TINY: (4, 2.5, False),
        EMBEDDER: (4, 0.8, True),
    }
    able = {str(one.name): one.capabilities for one in world.catalog.models()}
    assert Capability.CHAT in able[BIG]
    assert able[EMBEDDER] == {Capability.EMBEDDING}


async def test_alone_an_answer_takes_what_its_tokens_take(world: SimWorld, autojump_clock: trio.abc.Clock) -> None:
    """In a stream and whole, to the same moment; the load takes what the scenario says."""
    began = trio.current_time()
    async with running(world, BIG) as on:
        assert trio.current_time() - began == pytest.approx(6.4)
        (whole,) = await chat(world, on[BIG], TOKENS)
        *_, last = await chat(world, on[BIG], TOKENS, stream=True)
    assert whole == pytest.approx(ALONE_SECONDS, rel=0.01)
    assert last == pytest.approx(whole)


@pytest.mark.parametrize(
    ("others", "speed"),
    [
        ([(SMALL, 1)], 1.19 * 0.58),
        ([(SMALL, 4)], 1.19 * 0.58 / (0.58 + 0.42 * 1.3)),
        ([(SMALL, 1), (TINY, 1)], 1.2257 * 0.58 / (0.58 + 2 * 0.42)),
        ([(BIG, 1)], 1 / 1.2),
    ],
)
async def test_processes_share_the_card_as_the_scenario_says(
    others: list[tuple[str, int]], speed: float, world: SimWorld, autojump_clock: trio.abc.Clock
) -> None:
    """A chat beside one low answer, beside four in one process, beside two processes, beside another chat."""
    async with running(world, BIG, SMALL, TINY) as on, trio.open_nursery() as nursery:
        for name, count in others:
            for _ in range(count):
                nursery.start_soon(chat, world, on[name], LONG)
        await trio.testing.wait_all_tasks_blocked()
        (took,) = await chat(world, on[BIG], TOKENS)
        nursery.cancel_scope.cancel()
    assert took == pytest.approx(ALONE_SECONDS / speed, rel=0.01)


async def test_a_stream_slows_down_in_the_middle_when_somebody_joins(
    world: SimWorld, autojump_clock: trio.abc.Clock
) -> None:
    """Its tokens come at the rate of the moment, and faster again when the other has ended."""
    parts: list[float] = []

    async def listen() -> None:
        parts.extend(await chat(world, on[BIG], 400, stream=True))

    async with running(world, BIG, SMALL) as on, trio.open_nursery() as nursery:
        nursery.start_soon(listen)
        await trio.sleep(3.0)
        nursery.start_soon(chat, world, on[SMALL], 100)
    gaps = [later - earlier for earlier, later in pairwise(parts)]
    fast, slow = min(gaps), max(gaps)
    assert slow / fast == pytest.approx(1 / (1.19 * 0.58), rel=0.01)
    assert gaps[0] == pytest.approx(fast)
    assert gaps[-1] == pytest.approx(fast)
    assert sum(gap > fast * 1.2 for gap in gaps) > 10


async def test_S10_a_process_that_stands_still_takes_no_share(world: SimWorld, autojump_clock: trio.abc.Clock) -> None:
    """The chat runs as if it were alone meanwhile, and what stood still goes on where it was."""
    low: list[float] = []

    async def work() -> None:
        low.extend(await chat(world, on[SMALL], 45))

    async with running(world, BIG, SMALL) as on, trio.open_nursery() as nursery:
        nursery.start_soon(work)
        await trio.sleep(0.1)
        world.engine.pause(on[SMALL])
        (took,) = await chat(world, on[BIG], TOKENS)
        world.engine.resume(on[SMALL])
    assert took == pytest.approx(ALONE_SECONDS, rel=0.01)
    assert low == [pytest.approx(0.483 + took, rel=0.01)]
