"""A body as it comes, and where work on a large one is done."""

import threading
import tracemalloc
from typing import Any, cast

import pytest
import trio
import trio.testing

from gridsched.api.asgi import AsgiBody
from gridsched.api.body import ONE_LARGE, ONE_VERY_LARGE, VERY_LARGE_BODY_BYTES, Incoming, beside
from gridsched.api.settings import LARGE_BODY_BYTES


def incoming(pieces: int, piece: bytes) -> Incoming:
    """A body that comes in so many pieces."""
    left = pieces

    async def receive() -> Any:
        nonlocal left
        left -= 1
        if left % 100 == 0:  # where the loop forgets its past deadlines
            await trio.lowlevel.checkpoint()
        return {"type": "http.request", "body": bytes(bytearray(piece)), "more_body": left > 0}

    return AsgiBody(cast("Any", {"headers": []}), receive, 1.0)


@pytest.mark.slow
async def test_H10_a_body_in_tiny_chunks_takes_little_more_memory_than_is_in_it() -> None:
    """Two bytes each: kept as they come they would take over twenty times that."""
    pieces = 30_000
    body = incoming(pieces, b"ab")
    tracemalloc.start()
    try:
        read = await body.read(2 * pieces)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert read == b"ab" * pieces
    assert most < 10 * len(read)


@pytest.mark.parametrize(("size", "place"), [(LARGE_BODY_BYTES, ONE_LARGE), (VERY_LARGE_BODY_BYTES, ONE_VERY_LARGE)])
async def test_S7_large_bodies_are_worked_on_one_after_the_other(size: int, place: trio.CapacityLimiter) -> None:
    """Threads that are many share the interpreter with the loop, which hardly ever has its turn."""
    go_on = threading.Event()
    async with trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(beside, size, go_on.wait)
        await trio.testing.wait_all_tasks_blocked()
        now = place.statistics()
        go_on.set()
    assert (now.borrowed_tokens, now.tasks_waiting) == (1, 4)


async def test_S7_a_small_body_needs_no_thread() -> None:
    """Which would cost more than the work."""
    assert await beside(LARGE_BODY_BYTES - 1, threading.get_ident) == threading.get_ident()
    assert await beside(LARGE_BODY_BYTES, threading.get_ident) != threading.get_ident()


async def test_S7_a_very_large_body_does_not_hold_a_large_one_up() -> None:
    """A picture need not wait for a film."""
    go_on = threading.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(beside, VERY_LARGE_BODY_BYTES, go_on.wait)
        await trio.testing.wait_all_tasks_blocked()
        await beside(LARGE_BODY_BYTES, go_on.set)
    assert go_on.is_set()
