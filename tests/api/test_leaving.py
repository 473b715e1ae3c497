"""A client that leaves is noticed in every phase, over a real socket: its job ends, the engine's connection closes."""

import itertools
import json
import socket
import struct
from collections import Counter

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from gridsched.api.settings import FrontSettings
from sim.engine import Faults
from tests.support.fakes import EVENTS, Script
from tests.support.front import Client, House, serving

CHAT = "/v1/chat/completions"
HELLO = {"model": "sim-chat-4b", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}
STREAM = HELLO | {"stream": True}
MODELS = b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n"
ONE = b'data: {"n":1}\n\n'
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


LONG_SECONDS = 1000.0
STAGES = {
    "before the head": Script(head_seconds=LONG_SECONDS),
    "before the first byte": Script([LONG_SECONDS], headers=EVENTS),
    "in mid-answer": Script([ONE, LONG_SECONDS], headers=EVENTS),
}
WAYS = ("closed", "reset", "half closed")
CONNECTIONS = ("fresh", "kept alive", "more sent behind")
LEAVINGS = list(itertools.product(WAYS, CONNECTIONS))


async def leave(client: Client, way: str) -> None:
    """FIN, RST, or the end of what it says while it would still listen."""
    if way == "half closed":
        await client.stream.send_eof()
        return
    if way == "reset":
        client.stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    await client.stream.aclose()


async def ask_on(house: House, connection: str, body: object) -> Client:
    """A chat on its way, on such a connection."""
    client = await house.connect()
    if connection == "kept alive":
        assert (await client.ask("GET", "/v1/models")).status == 200
    await client.send("POST", CHAT, json.dumps(body).encode())
    if connection == "more sent behind":
        await client.stream.send_all(MODELS)
    return client


def counted(page: str) -> Counter[str]:
    """How many requests for answers have ended with which code."""
    found: Counter[str] = Counter()
    for line in page.splitlines():
        if line.startswith("gridsched_requests_total{") and CHAT in line:
            labels, _, count = line.rpartition(" ")
            found[labels.partition('code="')[2][:3]] += int(float(count))
    return found


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("body", [HELLO, STREAM], ids=["plain", "stream"])
async def test_S8_a_client_that_leaves_in_whatever_way(autojump_clock: MockClock, stage: str, body: object) -> None:
    """Closed, reset or half closed, on a connection that was used before or has more to say: each time its job is over
    and the engine's connection closed within a second, 499 is counted, and the next is answered."""
    async with serving(autojump_clock) as house:
        await house.ask("POST", CHAT, HELLO)
        for number, (way, connection) in enumerate(LEAVINGS, start=1):
            house.upstream.scripts.append(STAGES[stage])
            client = await ask_on(house, connection, body)
            await house.until_logged("dispatch", number + 1)
            if stage == "in mid-answer":
                assert (await client.head()).status == 200
            await trio.testing.wait_all_tasks_blocked()
            left_at = trio.current_time()
            await leave(client, way)
            await gone(house)
            await client.stream.aclose()
            closed_at = house.upstream.asked[-1].closed_at
            assert closed_at is not None, (way, connection)
            assert closed_at - left_at < NOTICED_SECONDS, (way, connection)
            assert len(house.logged("cancel")) == number
        assert len(house.upstream.asked) == 1 + len(LEAVINGS)
        assert (await house.ask("POST", CHAT, HELLO)).status == 200
        assert counted((await house.ask("GET", "/metrics")).body.decode()) == {"499": len(LEAVINGS), "200": 2}


@pytest.mark.parametrize(("way", "connection"), LEAVINGS)
async def test_S8_A2_a_client_that_leaves_while_its_model_loads(
    autojump_clock: MockClock, way: str, connection: str
) -> None:
    """Nothing is sent to the engine, the load is given up, and 499 is counted and nothing else."""
    async with serving(autojump_clock) as house:
        async with await ask_on(house, connection, STREAM if way == "closed" else HELLO) as client:
            await house.until_logged("load")
            await leave(client, way)
            await gone(house)
        await house.until_logged("released")
        assert house.upstream.asked == []
        assert counted((await house.ask("GET", "/metrics")).body.decode()) == {"499": 1}
        assert (await house.ask("POST", CHAT, HELLO)).status == 200


@pytest.mark.parametrize(
    ("load_factor", "patience_seconds", "loads"), [(3.2, 3.0, 1), (1.0, 1.0, 2)], ids=["longer", "as expected"]
)
async def test_A9_a_client_less_patient_than_a_load_is_served_in_the_end(
    autojump_clock: MockClock, load_factor: float, patience_seconds: float, loads: int
) -> None:
    """A9, 7: five tries, half a second apart, and a patient one. A load of 8 s that was to take less goes on when one
    leaves after 3 s; one that is left under its half is given up, but the next is finished, whoever waits."""
    async with serving(autojump_clock) as house:
        house.world.engine.plan_faults("sim-chat-4b", Faults(load_factor=load_factor))
        for _ in range(5):
            async with await send(house, STREAM) as client:
                with trio.move_on_after(patience_seconds):
                    await client.head()
            await trio.sleep(0.5)
        asked_at = trio.current_time()
        assert (await house.ask("POST", CHAT, HELLO)).status == 200
        assert trio.current_time() - asked_at < NOTICED_SECONDS
        assert len(house.logged("load")) == loads


async def test_S8_A7_clients_that_leave_the_queue(autojump_clock: MockClock) -> None:
    """In whatever way, behind four others, whose answers are none the worse; the engine never hears of them."""
    answers = []

    async def ask(house: House) -> None:
        answers.append(await house.ask("POST", CHAT, HELLO))

    async with serving(autojump_clock) as house, trio.open_nursery() as nursery:
        house.upstream.scripts.extend([Script([b"answer"], head_seconds=30.0)] * 4)
        for _ in range(4):
            nursery.start_soon(ask, house)
        await house.until_logged("dispatch", 4)
        for number, (way, connection) in enumerate(LEAVINGS, start=1):
            async with await ask_on(house, connection, STREAM) as client:
                await house.until_logged("enqueue", 4 + number)
                left_at = trio.current_time()
                await leave(client, way)
                await house.until_logged("cancel", number)
                assert trio.current_time() - left_at < NOTICED_SECONDS, (way, connection)
            assert house.runtime.jobs().waiting == ()
        assert len(house.upstream.asked) == 4
    assert [answer.body for answer in answers] == [b"answer"] * 4


FLOOD = Script([ONE * 4096] * 100_000, headers=EVENTS)
"""Gigabytes."""


async def send_flooded(house: House, body: object) -> Client:
    """A request whose answer has begun."""
    house.upstream.scripts.append(FLOOD)
    client = await send(house, body)
    await house.until_logged("dispatch")
    return client


@pytest.mark.parametrize("body", [HELLO, STREAM], ids=["plain", "stream"])
async def test_S8_a_client_that_reads_nothing_has_left_when_its_time_is_over(
    autojump_clock: MockClock, body: object
) -> None:
    """What nobody reads is not read from the engine; two minutes later its connection is cut and its slot free. The
    kernel may still be busy with the last bytes when the clock jumps, and then it is two minutes more."""
    async with serving(autojump_clock) as house, await send_flooded(house, body) as client:
        began_at = trio.current_time()
        await house.runtime.desk.wait_idle()
        assert 120.0 <= trio.current_time() - began_at < 721.0
        (asked,) = house.upstream.asked
        assert asked.closed_at == trio.current_time()
        assert not (await client.rest(await client.head())).complete
        assert (await house.ask("POST", CHAT, HELLO)).status == 200
        assert counted((await house.ask("GET", "/metrics")).body.decode()) == {"499": 1, "200": 1}


@pytest.mark.slow
async def test_S8_a_client_that_reads_nothing_and_sent_more_behind_makes_room(autojump_clock: MockClock) -> None:
    """Its connection ends, too: it is no longer counted, and nothing goes on asking whether it is there."""
    async with (
        serving(autojump_clock, FrontSettings(most_connections=1)) as house,
        await send_flooded(house, STREAM) as client,
    ):
        await client.stream.send_all(MODELS)
        await house.runtime.desk.wait_idle()
        await trio.sleep(NOTICED_SECONDS)
        assert (await house.ask("GET", "/v1/models")).status == 200


@pytest.mark.slow
async def test_a_client_that_reads_slowly_gets_it_all(autojump_clock: MockClock) -> None:
    """Some of it each minute, for longer than the longest that a client may read nothing."""
    parts = [b"#" * 65536] * 300
    async with serving(autojump_clock) as house:
        house.upstream.scripts.append(Script(parts, headers=EVENTS))
        received = bytearray()
        async with await send(house, STREAM) as client:
            while b"\r\n0\r\n\r\n" not in received[-20:]:
                await trio.sleep(60.0)
                for _ in range(16):
                    received += await client.stream.receive_some(65536)
        assert received.count(b"#") == 300 * 65536
        assert trio.current_time() > 1000.0
        assert counted((await house.ask("GET", "/metrics")).body.decode()) == {"200": 1}


@pytest.mark.parametrize("way", ["half closed", "still there"])
async def test_P8_a_client_that_reads_nothing_holds_up_nobody(autojump_clock: MockClock, way: str) -> None:
    """Neither the end of its own job, when it says that it has left, nor the server's."""
    async with serving(autojump_clock) as house, await send_flooded(house, STREAM) as client:
        await trio.sleep(10.0)
        if way == "half closed":
            await leave(client, way)
            await gone(house)
        told_at = trio.current_time()
        house.runtime.end()
        await house.ended.wait()
        assert trio.current_time() - told_at < (5.0 if way == "half closed" else 35.0)


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


async def test_A6_many_aborted_streams_leave_nothing_behind(
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
