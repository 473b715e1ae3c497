"""A client that leaves is noticed in every phase, over a real socket: its job ends, the engine's connection closes."""

import json
import socket
import struct

import h11
import pytest
import trio
import trio.testing
from trio.testing import MockClock

from sim.engine import Faults
from tests.support.fakes import EVENTS, Script
from tests.support.front import Client, House, serving

CHAT = "/v1/chat/completions"
HELLO = {"model": "sim-chat-4b", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}
STREAM = HELLO | {"stream": True}
NOTICED_SECONDS = 1.0


async def send(house: House, body: object) -> Client:
    """A request on its way."""
    client = await house.connect()
    await client.send("POST", CHAT, json.dumps(body).encode())
    return client


async def gone(house: House) -> None:
    """Wait until the desk is empty; it must be soon."""
    with trio.fail_after(NOTICED_SECONDS):
        await house.runtime.desk.wait_idle()


@pytest.mark.parametrize("body", [HELLO, STREAM], ids=["plain", "stream"])
async def test_S8_a_client_that_leaves_while_its_model_loads(autojump_clock: MockClock, body: object) -> None:
    """Its job leaves the queue; nothing is sent to the engine; 499 is counted and nothing else."""
    async with serving(autojump_clock) as house:
        client = await send(house, body)
        await house.until_logged("load")
        await client.stream.aclose()
        await gone(house)
        assert house.upstream.asked == []
        page = (await house.ask("GET", "/metrics")).body.decode()
        assert 'code="499"' in page
        assert 'code="200"' not in page


async def test_S8_a_client_that_leaves_the_queue(autojump_clock: MockClock) -> None:
    """Behind four others, whose answers are none the worse."""
    answers = []

    async def ask(house: House) -> None:
        answers.append(await house.ask("POST", CHAT, STREAM))

    async with serving(autojump_clock) as house, trio.open_nursery() as nursery:
        house.upstream.scripts.extend([Script([30.0, b"data: 1\n\n"], headers=EVENTS)] * 4)
        for _ in range(4):
            nursery.start_soon(ask, house)
        await house.until_logged("dispatch", 4)
        client = await send(house, STREAM)
        await house.until_logged("enqueue", 5)
        await client.stream.aclose()
        await house.until_logged("cancel")
        assert len(house.upstream.asked) == 4
        assert house.runtime.jobs().waiting == ()
    assert [answer.complete for answer in answers] == [True] * 4


PHASES = {
    "before the head": Script(head_seconds=30.0),
    "before the first byte": Script([30.0], headers=EVENTS),
    "in mid-stream": Script([b"data: 1\n\n", 30.0], headers=EVENTS),
}


@pytest.mark.parametrize("script", PHASES.values(), ids=PHASES.keys())
@pytest.mark.parametrize("reset", [False, True], ids=["closed", "reset"])
async def test_S8_a_client_that_leaves_a_running_step(autojump_clock: MockClock, script: Script, reset: bool) -> None:
    """The engine's connection closes, and the slot is free once the engine says so."""
    async with serving(autojump_clock) as house:
        await house.ask("POST", CHAT, HELLO)
        house.upstream.scripts.append(script)
        client = await send(house, STREAM)
        await house.until_logged("dispatch", 2)
        if script.parts[:1] == [b"data: 1\n\n"]:
            assert (await client.head()).status == 200
            assert isinstance(await client.event(), h11.Data)
        await trio.testing.wait_all_tasks_blocked()
        left_at = trio.current_time()
        if reset:
            client.stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        await client.stream.aclose()
        await gone(house)
        (_, asked) = house.upstream.asked
        assert asked.closed_at is not None
        assert asked.closed_at - left_at < NOTICED_SECONDS
        assert (await house.ask("POST", CHAT, HELLO)).status == 200


async def test_S8_a_client_that_leaves_a_plain_generation(autojump_clock: MockClock) -> None:
    """The first answer byte would come at its end only; the engine works for nobody no longer than a moment."""
    async with serving(autojump_clock) as house:
        house.upstream.scripts.append(Script(head_seconds=100.0))
        client = await send(house, HELLO)
        await house.until_logged("dispatch")
        await trio.testing.wait_all_tasks_blocked()
        left_at = trio.current_time()
        await client.stream.aclose()
        await gone(house)
        (asked,) = house.upstream.asked
        assert asked.closed_at is not None
        assert asked.closed_at - left_at < NOTICED_SECONDS


async def test_a_client_that_leaves_in_its_upload_is_no_job(autojump_clock: MockClock) -> None:
    """Half a body is not a request."""
    async with serving(autojump_clock) as house:
        client = await house.connect()
        head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n{"
        await client.stream.send_all(head)
        await trio.testing.wait_all_tasks_blocked()
        await client.stream.aclose()
        assert (await house.ask("GET", "/v1/models")).status == 200
        assert not house.logged("enqueue")


async def test_many_aborted_streams_leave_nothing_behind(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Fifty at different moments on four slots, then one that is served in its usual time; no traceback for any."""

    async def abort(house: House, after_seconds: float) -> None:
        client = await send(house, STREAM)
        await trio.sleep(after_seconds)
        await client.stream.aclose()

    async with serving(autojump_clock) as house:
        await house.ask("POST", CHAT, HELLO)
        async with trio.open_nursery() as nursery:
            for number in range(50):
                nursery.start_soon(abort, house, number * 0.01)
        await house.runtime.desk.wait_idle()
        before = trio.current_time()
        assert (await house.ask("POST", CHAT, HELLO)).status == 200
        assert trio.current_time() - before < NOTICED_SECONDS
        assert house.world.engine.overfilled == 0
    assert caplog.records == []


async def test_a_crash_ends_the_stream_and_the_next_one_loads_again(autojump_clock: MockClock) -> None:
    """An error frame for who was being answered, a fresh process for who comes next."""
    async with serving(autojump_clock) as house:
        house.world.engine.plan_faults("sim-chat-4b", Faults(crash_after_seconds=0.05))
        answer = await house.ask("POST", CHAT, STREAM | {"max_tokens": 100})
        assert b"upstream_error" in answer.body
        assert b"[DONE]" not in answer.body
