"""Connections over a real socket: what is not HTTP, requests sent one behind another, clients that close, too many."""

import json
from pathlib import Path

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from gridsched.api.settings import FrontSettings
from tests.support.fakes import EVENTS, Script
from tests.support.front import Client, House, serving

CHAT = "/v1/chat/completions"
HELLO = {"model": "sim-chat-4b", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}
NOTICED_SECONDS = 1.0
MODELS = b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n"
HEALTH = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"


async def read_until_closed(client: Client) -> bytes:
    """Everything that comes."""
    parts = []
    while part := await client.stream.receive_some(65536):
        parts.append(part)
    return b"".join(parts)


async def descriptors_at_rest() -> int:
    """How many descriptors this process has once nothing moves any more."""
    await trio.testing.wait_all_tasks_blocked()
    return count_descriptors()


def count_descriptors() -> int:
    """How many this process has."""
    return len(list(Path("/proc/self/fd").iterdir()))


BEHIND = {"a request": MODELS, "half a request": MODELS[:20], "no request": b"\0\1\2"}


@pytest.mark.parametrize("behind", BEHIND.values(), ids=BEHIND.keys())
@pytest.mark.parametrize("streamed", [True, False], ids=["stream", "plain"])
async def test_S8_a_client_that_sends_more_and_leaves(autojump_clock: MockClock, behind: bytes, streamed: bool) -> None:
    """What it sent behind its request hides nothing: its step ends, as if it had sent nothing."""
    async with serving(autojump_clock) as house:
        house.upstream.scripts.append(Script(head_seconds=100.0, headers=EVENTS if streamed else ()))
        client = await house.connect()
        await client.send("POST", CHAT, json.dumps(HELLO | {"stream": streamed}).encode())
        await house.until_logged("dispatch")
        await client.stream.send_all(behind)
        await trio.testing.wait_all_tasks_blocked()
        left_at = trio.current_time()
        await client.stream.aclose()
        await house.runtime.desk.wait_idle()
        assert trio.current_time() - left_at < NOTICED_SECONDS
        (asked,) = house.upstream.asked
        assert asked.closed_at is not None
        assert asked.closed_at - left_at < NOTICED_SECONDS


async def test_S8_a_client_that_sends_more_and_leaves_the_queue(autojump_clock: MockClock) -> None:
    """Its waiting job goes too, and the engine never hears of it."""
    async with serving(autojump_clock) as house:
        client = await house.connect()
        await client.send("POST", CHAT, json.dumps(HELLO).encode())
        await client.stream.send_all(MODELS)
        await house.until_logged("load")
        await client.stream.aclose()
        with trio.fail_after(NOTICED_SECONDS):
            await house.until_logged("cancel")
        assert house.upstream.asked == []


async def test_requests_sent_one_behind_another_are_answered_in_order(autojump_clock: MockClock) -> None:
    """By whichever application."""
    async with serving(autojump_clock) as house, await house.connect() as client:
        await client.send("POST", CHAT, json.dumps(HELLO).encode())
        await client.stream.send_all(MODELS + HEALTH.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
        answers = await read_until_closed(client)
        assert answers.count(b"HTTP/1.1 200 ") == 3
        places = [answers.index(word) for word in (b'"chat.completion"', b'"object":"list"', b'"can_serve"')]
        assert places == sorted(places)


@pytest.mark.parametrize("target", ["/v1/models", "/health"])
async def test_a_client_that_closes_between_requests_holds_nothing(autojump_clock: MockClock, target: str) -> None:
    """Its descriptor goes at once, not with the idle time."""
    async with serving(autojump_clock) as house:
        before = await descriptors_at_rest()
        clients = [await house.connect() for _ in range(20)]
        for client in clients:
            assert (await client.ask("GET", target)).status == 200
        assert await descriptors_at_rest() == before + 40
        for client in clients:
            await client.stream.aclose()
        closed_at = trio.current_time()
        assert await descriptors_at_rest() == before
        assert trio.current_time() - closed_at < NOTICED_SECONDS


async def test_an_idle_connection_is_closed_in_its_time(autojump_clock: MockClock) -> None:
    """Also one that never asked anything, or only half of it."""
    figures = FrontSettings(keep_alive_seconds=10.0)
    async with serving(autojump_clock, figures) as house:
        silent, half, asked = [await house.connect() for _ in range(3)]
        await half.stream.send_all(MODELS[:20])
        await asked.ask("GET", "/v1/models")
        for client in (silent, half, asked):
            assert await read_until_closed(client) == b""
            await client.stream.aclose()
        assert 9.9 < trio.current_time() < 10.1


NOT_HTTP = {
    "binary": (b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n", 400),
    "no version": (b"GET /v1/models\r\n\r\n", 400),
    "no host": (b"GET /v1/models HTTP/1.1\r\n\r\n", 400),
    "two hosts": (b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n", 400),
    "a negative length": (b"POST /v1/models HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n", 400),
    "two lengths": (
        b"POST /v1/models HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        400,
    ),
    "an unknown coding": (b"POST /v1/models HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: gzip\r\n\r\n", 501),
    "a head without end": (b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 70_000, 431),
}


@pytest.mark.parametrize(("sent", "status"), NOT_HTTP.values(), ids=NOT_HTTP.keys())
async def test_H1_what_is_not_http_is_told_so(autojump_clock: MockClock, sent: bytes, status: int) -> None:
    """A real 4xx or 501 with an OpenAI-shaped body, and the end of the connection."""
    async with serving(autojump_clock) as house, await house.connect() as client:
        await client.stream.send_all(sent)
        answer = await read_until_closed(client)
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 %d " % status)
    assert b"application/json" in head
    error = json.loads(body)["error"]
    assert error["code"] == "invalid_request"
    assert error["message"]


OFFERS = {
    "websocket": {"Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Version": "13"},
    "http/2": {"Upgrade": "h2c", "Connection": "Upgrade, HTTP2-Settings", "HTTP2-Settings": "AAMAAABkAAQAoAAAAAIAAAAA"},
}


@pytest.mark.parametrize("headers", OFFERS.values(), ids=OFFERS.keys())
@pytest.mark.parametrize("target", ["/v1/models", "/health"])
async def test_an_offer_to_upgrade_is_left_alone(
    autojump_clock: MockClock, headers: dict[str, str], target: str
) -> None:
    """The request is answered in HTTP/1.1, with the checks that every request gets."""
    async with serving(autojump_clock) as house:
        assert (await house.ask("GET", target, headers=headers)).status == 200
        refused = await house.ask("GET", target, headers=headers | {"Origin": "http://evil.example"})
        assert (refused.status, refused.error["code"]) == (403, "cross_origin")


async def test_http2_from_the_first_byte_is_refused(autojump_clock: MockClock) -> None:
    """Nothing here was made for it."""
    async with serving(autojump_clock) as house, await house.connect() as client:
        await client.stream.send_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(9))
        assert (await read_until_closed(client)).startswith(b"HTTP/1.1 404 ")


async def test_a_client_too_many_is_told_to_come_back(autojump_clock: MockClock) -> None:
    """Connections are bounded; one that ends makes room."""
    async with serving(autojump_clock, FrontSettings(most_connections=2)) as house:
        first, second = await house.connect(), await house.connect()
        await first.ask("GET", "/v1/models")
        await second.ask("GET", "/v1/models")
        async with await house.connect() as third:
            head = await third.head()
            answer = await third.rest(head)
        assert (answer.status, answer.error["code"], answer.headers["retry-after"]) == (429, "queue_full", "1")
        await first.stream.aclose()
        await trio.testing.wait_all_tasks_blocked()
        assert (await house.ask("GET", "/v1/models")).status == 200
        await second.stream.aclose()


async def test_an_upload_that_stops_is_ended(autojump_clock: MockClock) -> None:
    """A slow one is fine; one from which nothing more comes holds its place for a bounded time."""
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n"
    async with serving(autojump_clock, FrontSettings(upload_stall_seconds=5.0)) as house:
        async with await house.connect() as client:
            await client.stream.send_all(head)
            for _ in range(3):
                await client.stream.send_all(b" ")
                await trio.sleep(4.0)
            stopped_at = trio.current_time()
            assert (await read_until_closed(client)).startswith(b"HTTP/1.1 408 ")
            assert trio.current_time() - stopped_at < 5.0
        assert not house.logged("enqueue")


@pytest.mark.parametrize("target", ["/nope", "/health", "/api/generate"])
@pytest.mark.parametrize(("length", "statuses"), [(10_000, {404, 405}), (3_000_000, {413})])
async def test_H1_a_long_body_to_another_route_is_read_before_the_refusal(
    autojump_clock: MockClock, target: str, length: int, statuses: set[int]
) -> None:
    """The client gets its 4xx and not a reset, and its connection goes on."""
    async with serving(autojump_clock) as house, await house.connect() as client:
        assert (await client.ask("POST", target, b"x" * length)).status in statuses
        assert (await client.ask("GET", "/health")).status == 200


async def test_a_house_without_clients_has_no_connection(autojump_clock: MockClock) -> None:
    """A hundred that came and went in all ways leave nothing."""

    async def come_and_go(house: House, number: int) -> None:
        async with await house.connect() as client:
            await client.stream.send_all((MODELS * 2)[: number * len(MODELS) // 50])
            await trio.sleep(number / 1000)

    async with serving(autojump_clock) as house:
        before = await descriptors_at_rest()
        async with trio.open_nursery() as nursery:
            for number in range(100):
                nursery.start_soon(come_and_go, house, number)
        await trio.sleep(NOTICED_SECONDS)
        assert await descriptors_at_rest() == before
