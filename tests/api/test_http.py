"""HTTP itself, over real sockets: what is damaged, half, said in two ways or old; the next client is served."""

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from random import Random

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from gridsched.api.body import BODIES_AT_ONCE
from gridsched.api.routes import ROUTES
from gridsched.api.settings import FrontSettings
from tests.support.front import Client, House, serving

CHAT = "/v1/chat/completions"
HELLO = json.dumps(
    {"model": "sim-chat-4b", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 3, "x_class": "interactive"}
).encode()
LOCAL = b"Host: localhost\r\n"
POST = b"POST /v1/chat/completions HTTP/1.1\r\n" + LOCAL
MODELS = b"GET /v1/models HTTP/1.1\r\n" + LOCAL + b"\r\n"
LAST = POST + b"Connection: close\r\n"
WHOLE = b"Content-Length: %d\r\n" % len(HELLO)
CHUNKED = b"Transfer-Encoding: chunked\r\n"
ONE_CHUNK = b"%x\r\n%b\r\n0\r\n\r\n" % (len(HELLO), HELLO)
MANY = FrontSettings(keep_alive_seconds=20.0, upload_stall_seconds=30.0, max_body_bytes=100_000)


async def all_of(client: Client) -> bytes:
    """Everything that comes until the server closes; a reset ends it too."""
    parts = []
    try:
        while part := await client.stream.receive_some(65536):
            parts.append(part)
    except trio.BrokenResourceError:
        pass
    return b"".join(parts)


@asynccontextmanager
async def served_after(clock: MockClock) -> AsyncIterator[House]:
    """A server that must serve the next client behind whatever a test did, and with nothing in its queues."""
    async with serving(clock, MANY) as house:
        yield house
        answer = await house.ask("GET", "/v1/models")
        assert answer.status == 200
        await house.runtime.desk.wait_idle()


REFUSED: dict[str, bytes] = {
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200),
    "an old TLS": b"\x80\x2e\x01\x00\x02\x00\x15" + bytes(40),
    "SSH": b"SSH-2.0-OpenSSH_9.0\r\n\r\n",
    "SOCKS": b"\x05\x01\x00\r\n\r\n",
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(9),
    "Redis": b"*1\r\n$4\r\nPING\r\n\r\n",
    "line ends only": b"\r\n\r\n\r\n\r\n",
    "a line end before it": b"\r\n" + POST + WHOLE + b"\r\n" + HELLO,
    "no target": b"GET ?x HTTP/1.1\r\n" + LOCAL + b"\r\n",
    "a word for a target": b"GET v1/models HTTP/1.1\r\n" + LOCAL + b"\r\n",
    "another scheme": b"GET ftp://localhost/v1/models HTTP/1.1\r\n" + LOCAL + b"\r\n",
    "a tunnel": b"CONNECT localhost:443 HTTP/1.1\r\n" + LOCAL + b"\r\n",
    "HTTP/0.9": b"GET /v1/models\r\n\r\n",
    "a word for a version": b"GET /v1/models HTTP/one\r\n" + LOCAL + b"\r\n",
    "spaces in the target": b"GET /v1/mo dels HTTP/1.1\r\n" + LOCAL + b"\r\n",
    "a NUL in the target": b"GET /v1/mo\0dels HTTP/1.1\r\n" + LOCAL + b"\r\n",
    "letters beyond ASCII in the target": "GET /v1/modèles HTTP/1.1\r\nHost: localhost\r\n\r\n".encode(),
    "no host": b"GET /v1/models HTTP/1.1\r\n\r\n",
    "two hosts": b"GET /v1/models HTTP/1.1\r\n" + LOCAL + LOCAL + b"\r\n",
    "a NUL in a header": b"GET /v1/models HTTP/1.1\r\n" + LOCAL + b"X-A: a\0b\r\n\r\n",
    "a header's name with a space": b"GET /v1/models HTTP/1.1\r\n" + LOCAL + b"X A: b\r\n\r\n",
    "a space before the colon": b"GET /v1/models HTTP/1.1\r\n" + LOCAL + b"X-A : b\r\n\r\n",
    "a header without a colon": b"GET /v1/models HTTP/1.1\r\n" + LOCAL + b"X-A\r\n\r\n",
    "a header without a name": b"GET /v1/models HTTP/1.1\r\n" + LOCAL + b": b\r\n\r\n",
    "a folded first header": b"GET /v1/models HTTP/1.1\r\n x\r\n" + LOCAL + b"\r\n",
    "headers of 70 KiB": b"GET /v1/models HTTP/1.1\r\n" + LOCAL + b"X-A: " + b"x" * 70_000,
    "a target of 70 KiB": b"GET /" + b"x" * 70_000,
    "a negative length": POST + b"Content-Length: -1\r\n\r\n",
    "a length with a plus": POST + b"Content-Length: +5\r\n\r\n12345",
    "a length that is a word": POST + b"Content-Length: five\r\n\r\n12345",
    "a length of 40 digits": POST + b"Content-Length: " + b"9" * 40 + b"\r\n\r\n",
    "an empty length": POST + b"Content-Length: \r\n\r\n",
    "two lengths": POST + b"Content-Length: 4\r\nContent-Length: 5\r\n\r\n12345",
    "two lengths in one line": POST + b"Content-Length: 4, 5\r\n\r\n12345",
    "both framings": POST + WHOLE + CHUNKED + b"\r\n" + ONE_CHUNK,
    "both framings the other way": POST + CHUNKED + WHOLE + b"\r\n" + ONE_CHUNK,
    "an unknown coding": POST + b"Transfer-Encoding: gzip\r\n\r\n",
    "two codings": POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n" + ONE_CHUNK,
    "a coding twice": POST + CHUNKED + CHUNKED + b"\r\n" + ONE_CHUNK,
    "no framing": POST + b"\r\n",
    "no framing and a body": POST + b"\r\n" + HELLO,
    "another expectation": POST + WHOLE + b"Expect: 200-ok\r\nConnection: close\r\n\r\n" + HELLO[:-1] + b"!",
}


@pytest.mark.parametrize(("how", "sent"), REFUSED.items(), ids=REFUSED.keys())
async def test_H1_what_is_damaged_is_a_4xx_in_shape_or_the_end_of_the_connection(
    autojump_clock: MockClock, how: str, sent: bytes
) -> None:
    """Never a 5xx but 501 for a coding that HTTP has a status for, and nothing is queued."""
    async with served_after(autojump_clock) as house:
        async with await house.connect() as client:
            await client.stream.send_all(sent)
            answer = await all_of(client)
        assert not house.logged("enqueue")
        head, _, body = answer.decode().partition("\r\n\r\n")
        if not head:
            assert "TLS" in how  # no line ever ended: it was waited for
            return
        status = int(head.split(" ")[1])
        assert 400 <= status < 500 or status == 501
        assert json.JSONDecoder().raw_decode(body)[0]["error"]["message"]
        assert "x-should-retry: false" in head


DAMAGED_CHUNKS: dict[str, bytes] = {
    "no number": b"zz\r\nabc\r\n0\r\n\r\n",
    "a negative one": b"-1\r\n\r\n",
    "0x": b"0x5\r\n12345\r\n0\r\n\r\n",
    "a huge one": b"f" * 30 + b"\r\n",
    "too short for its data": b"2\r\nabcdef\r\n0\r\n\r\n",
    "no line end": b"5\r\n12345",
    "a line feed for a line end": b"5\n12345\n0\n\n",
    "an endless extension": b"5;" + b"x" * 100_000,
}


@pytest.mark.parametrize("chunks", DAMAGED_CHUNKS.values(), ids=DAMAGED_CHUNKS.keys())
async def test_H6_damaged_chunks_end_their_request_and_nothing_is_queued(
    autojump_clock: MockClock, chunks: bytes
) -> None:
    """Whoever waits for more of them is told so in time."""
    async with served_after(autojump_clock) as house:
        async with await house.connect() as client:
            await client.stream.send_all(POST + CHUNKED + b"\r\n" + chunks)
            answer = await all_of(client)
        assert answer == b"" or 400 <= int(answer.split(b" ")[1]) < 500
        assert not house.logged("enqueue")


HALF: dict[str, bytes] = {
    "nothing": b"",
    "a word": b"POST",
    "half a head": POST,
    "a head": POST + WHOLE + b"\r\n",
    "half a body": POST + WHOLE + b"\r\n" + HELLO[:20],
    "half a chunk": POST + CHUNKED + b"\r\n" + ONE_CHUNK[:20],
    "all but the last chunk": POST + CHUNKED + b"\r\n" + ONE_CHUNK[:-5],
}


@pytest.mark.parametrize("sent", HALF.values(), ids=HALF.keys())
@pytest.mark.parametrize("reset", [False, True], ids=["end", "reset"])
async def test_half_a_request_is_no_request(autojump_clock: MockClock, sent: bytes, reset: bool) -> None:
    """However the client leaves behind it."""
    async with served_after(autojump_clock) as house:
        async with await house.connect() as client:
            await client.stream.send_all(sent)
            if reset:
                linger = (1).to_bytes(4, "little") + (0).to_bytes(4, "little")
                client.stream.setsockopt(trio.socket.SOL_SOCKET, trio.socket.SO_LINGER, linger)
        await trio.testing.wait_all_tasks_blocked()
        assert not house.logged("enqueue")


TAKEN: dict[str, bytes] = {
    "a length": LAST + WHOLE + b"\r\n" + HELLO,
    "the same length twice": LAST + WHOLE + WHOLE + b"\r\n" + HELLO,
    "one chunk": LAST + CHUNKED + b"\r\n" + ONE_CHUNK,
    "chunks of one byte": LAST + CHUNKED + b"\r\n" + b"".join(b"1\r\n%c\r\n" % byte for byte in HELLO) + b"0\r\n\r\n",
    "extensions and trailers": LAST + CHUNKED + b"\r\n%x;a=b\r\n%b\r\n0\r\nX-T: 1\r\n\r\n" % (len(HELLO), HELLO),
    "capital letters": LAST + b"TRANSFER-ENCODING: Chunked\r\n\r\n" + ONE_CHUNK,
    "HTTP/1.0": LAST.replace(b"1.1", b"1.0") + WHOLE + b"\r\n" + HELLO,
    "HTTP/1.0 without a host": LAST.replace(b"1.1", b"1.0").replace(LOCAL, b"") + WHOLE + b"\r\n" + HELLO,
    "a target with a host": LAST.replace(b" /", b" http://localhost/", 1) + WHOLE + b"\r\n" + HELLO,
    "a query": LAST.replace(b"completions", b"completions?beta=true&x=%00") + WHOLE + b"\r\n" + HELLO,
    "1,000 headers": LAST + WHOLE + b"".join(b"X-%d: %d\r\n" % (at, at) for at in range(1000)) + b"\r\n" + HELLO,
    "a folded header": LAST + WHOLE + b"X-A: a\r\n b\r\n\r\n" + HELLO,
    "headers twice": LAST + WHOLE + b"X-Class: batch\r\nAccept: a\r\naccept: b\r\n\r\n" + HELLO,
    "letters beyond ASCII in a header": LAST + WHOLE + b"X-A: caf\xe9\r\n\r\n" + HELLO,
    "curl's type": LAST + WHOLE + b"Content-Type: application/x-www-form-urlencoded\r\n\r\n" + HELLO,
    "a line end behind it": LAST + WHOLE + b"\r\n" + HELLO + b"\r\n",
    "something else behind the last one": LAST + WHOLE + b"\r\n" + HELLO + b"\0" * 100_000,
    "HTTP/1.0 and a line end": LAST.replace(b"1.1", b"1.0") + WHOLE + b"\r\n" + HELLO + b"\r\n",
    "a charset": LAST + WHOLE + b'Content-Type: application/json; charset="UTF-8"\r\n\r\n' + HELLO,
}


@pytest.mark.parametrize("sent", TAKEN.values(), ids=TAKEN.keys())
async def test_what_is_merely_out_of_fashion_is_served(autojump_clock: MockClock, sent: bytes) -> None:
    """The engine gets the body once, with one framing of ours."""
    async with served_after(autojump_clock) as house:
        async with await house.connect() as client:
            await client.stream.send_all(sent)
            answer = await all_of(client)
        assert answer.startswith(b"HTTP/1.1 200 "), answer
        assert [asked.body.count(b'"hi"') for asked in house.upstream.asked] == [1]
        (asked,) = house.upstream.asked
        assert {name for name, _ in asked.headers} == {b"content-type", b"accept-encoding"}


async def test_a_target_with_a_host_is_judged_by_that_host(autojump_clock: MockClock) -> None:
    """Whatever `Host` says beside it."""
    async with served_after(autojump_clock) as house, await house.connect() as client:
        await client.stream.send_all(
            b"GET http://evil.example/v1/models HTTP/1.1\r\n" + LOCAL + b"Connection: close\r\n\r\n"
        )
        assert (await all_of(client)).startswith(b"HTTP/1.1 403 ")


async def test_H6_a_client_that_waits_to_be_told_to_go_on_is_told(autojump_clock: MockClock) -> None:
    """Before it sends its body, and before the job is queued."""
    async with served_after(autojump_clock) as house, await house.connect() as client:
        await client.stream.send_all(POST + WHOLE + b"Expect: 100-continue\r\nConnection: close\r\n\r\n")
        assert (await client.stream.receive_some(100)).startswith(b"HTTP/1.1 100 ")
        assert not house.logged("enqueue")
        await client.stream.send_all(HELLO)
        assert (await all_of(client)).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize("framing", [b"Content-Length: 5000000\r\n", CHUNKED], ids=["declared", "chunked"])
async def test_H10_too_long_a_body_is_refused_as_soon_as_that_is_known_and_the_rest_is_read(
    autojump_clock: MockClock, framing: bytes
) -> None:
    """With a length before any byte of it; the answer is there to be read while the client still sends."""
    piece = b"x" * 65_536
    async with served_after(autojump_clock) as house, await house.connect() as client:
        await client.stream.send_all(POST + framing + b"\r\n")
        if framing == CHUNKED:
            await client.stream.send_all(b"%x\r\n%b\r\n" % (len(piece), piece) * 2)
        answer = b""
        while not answer.endswith(b"}}}"):
            answer += await client.stream.receive_some(65_536)
        assert answer.startswith(b"HTTP/1.1 413 ")
        assert b"longer than 100000 bytes" in answer
        for _ in range(40):
            chunk = b"%x\r\n%b\r\n" % (len(piece), piece) if framing == CHUNKED else piece
            await client.stream.send_all(chunk)
        await client.stream.send_all(b"0\r\n\r\n" if framing == CHUNKED else b"x" * (5_000_000 - 40 * len(piece)))
        assert not house.logged("enqueue")
        await client.stream.send_all(MODELS)  # the connection goes on
        assert (await client.stream.receive_some(65_536)).startswith(b"HTTP/1.1 200 ")


@pytest.mark.slow
async def test_H10_large_bodies_have_so_much_memory_and_no_more(autojump_clock: MockClock) -> None:
    """Whoever finds none is told to come back, but a chat is served; when the others are done there is room again."""
    length = 300_000  # large, and no larger than that takes
    body = HELLO[:-1] + b',"user":"' + b"x" * (length - len(HELLO) - 10) + b'"}'
    head = LAST + b"Content-Length: %d\r\n\r\n" % len(body)
    async with serving(autojump_clock, FrontSettings(max_body_bytes=length)) as house, AsyncExitStack() as clients:
        others = [await clients.enter_async_context(await house.connect()) for _ in range(BODIES_AT_ONCE + 8)]
        for client in others:
            await client.stream.send_all(head + body[:-1])
        await trio.testing.wait_all_tasks_blocked()
        refused = await house.ask("POST", CHAT, body)
        assert (refused.status, refused.error["code"], refused.headers["x-should-retry"]) == (429, "queue_full", "true")
        assert int(refused.headers["retry-after"]) > 0
        assert (await house.ask("POST", CHAT, HELLO)).status == 200
        for client in others:
            await client.stream.send_all(body[-1:])
        statuses = [int((await all_of(client)).split(b" ")[1]) for client in others]
        assert statuses.count(200) >= BODIES_AT_ONCE
        assert set(statuses) == {200, 429}
        assert (await house.ask("POST", CHAT, body)).status == 200
        await house.runtime.desk.wait_idle()


async def test_H10_a_slow_upload_is_no_stopped_one(autojump_clock: MockClock) -> None:
    """Twenty MiB in pieces over ten minutes are served; one that stops is a 408, and the place is free."""
    figures = FrontSettings(upload_stall_seconds=60.0)
    body = HELLO[:-1] + b',"user":"' + b"x" * (20 << 20) + b'"}'
    async with serving(autojump_clock, figures) as house:
        async with await house.connect() as client:
            await client.stream.send_all(POST + b"Content-Length: %d\r\n\r\n" % len(body))
            for start in range(0, len(body), 1 << 20):
                await client.stream.send_all(body[start : start + (1 << 20)])
                await trio.sleep(30.0)
            assert (await client.head()).status == 200
        async with await house.connect() as client:
            await client.stream.send_all(POST + b"Content-Length: %d\r\n\r\n" % len(body) + body[: 1 << 20])
            stopped_at = trio.current_time()
            assert (await all_of(client)).startswith(b"HTTP/1.1 408 ")
            assert trio.current_time() - stopped_at < 61.0
        assert len(house.logged("enqueue")) == 1


SPOILT = (
    POST + WHOLE + b"\r\n" + HELLO,
    POST + CHUNKED + b"\r\n" + ONE_CHUNK,
    LAST + WHOLE + b"\r\n" + HELLO,
    MODELS + MODELS,
    b"GET http://localhost/api/events?follow=0 HTTP/1.1\r\n" + LOCAL + b"Last-Event-ID: 5\r\n\r\n",
    b"OPTIONS /v1/models HTTP/1.1\r\n" + LOCAL + b"Origin: http://a\r\nAccess-Control-Request-Method: GET\r\n\r\n",
)
PIECES = (b"\r\n", b"\0", b"\xff", b"%00", b"..", b" ", b":", b",", b"-1", b"9" * 30, b"0x", b'"', b"@", b"\n", b"//")


def spoilt(random: Random) -> bytes:
    """A request with one to four faults."""
    data = bytearray(random.choice(SPOILT))
    for _ in range(random.randint(1, 4)):
        start = random.randrange(len(data) or 1)
        end = min(len(data), start + random.randint(1, 8))
        match random.randrange(5):
            case 0:
                del data[start:end]
            case 1:
                data[start:start] = random.choice(PIECES)
            case 2:
                data[start:start] = data[start:end]
            case 3:
                data[start:end] = random.randbytes(end - start)
            case _:
                del data[start + random.randint(0, 200) :]
    return bytes(data)


@pytest.mark.slow
async def test_H1_spoilt_requests_end_in_an_answer_or_in_silence_and_leave_nothing(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """A thousand that chance has made: no 5xx but 501, no word in the log, and every connection is given back."""
    random = Random(1)  # noqa: S311 - nothing here is secret
    async with served_after(autojump_clock) as house:
        await house.ask("POST", CHAT, HELLO)
        for _ in range(1000):
            async with await house.connect() as client:
                await client.stream.send_all(spoilt(random))
                if random.random() < 0.5:
                    await client.stream.send_eof()
                answer = await all_of(client) if random.random() < 0.5 else await client.stream.receive_some(10)
            assert not answer or answer.startswith((b"HTTP/1.1 2", b"HTTP/1.1 4", b"HTTP/1.1 501")), answer
        await house.runtime.desk.wait_idle()
    assert caplog.records == []


ODD_PATHS = [
    ("/v1/models/", {200}),
    ("//v1/models", {404}),
    ("/v1//models", {404}),
    ("/V1/models", {404}),
    ("/v1/models?limit=5", {200}),
    ("/v1/%6dodels", {200}),
    ("/v1/../v1/models", {404}),
    ("/v1/%2e%2e/api/status", {404}),
    ("/v1/models/%2e%2e/%2e%2e/etc/passwd", {404}),
    ("/v1/models/..%2f..%2fetc%2fpasswd", {404}),
    ("/v1/models/%00", {404}),
    ("/v1/models/%ff%fe", {404}),
    ("/v1/models/%", {404}),
    ("/v1/models;x=1", {404}),
    ("/v1/models/sim-chat-4b?x=1#y", {200, 400, 404}),
    ("/health/", {404}),
    ("/api/status/", {404}),
    ("/", {200, 404}),
    ("*", {404}),
]


@pytest.mark.parametrize(("target", "statuses"), ODD_PATHS)
async def test_H1_odd_paths_are_found_as_they_are_or_not_at_all(
    autojump_clock: MockClock, target: str, statuses: set[int]
) -> None:
    """Nothing is cut short, tidied up or redirected: a redirect would turn a POST into a GET."""
    async with served_after(autojump_clock) as house, await house.connect() as client:
        await client.stream.send_all(b"GET %b HTTP/1.1\r\n" % target.encode() + LOCAL + b"Connection: close\r\n\r\n")
        answer = await all_of(client)
        assert int(answer.split(b" ")[1]) in statuses, answer
        assert b"\r\nlocation:" not in answer.lower()


@pytest.mark.parametrize("path", ["/v1/models", "/v1/nope", "/health", "/api/status", "/nope", "/api/chat", "/metrics"])
async def test_what_is_asked_for_at_any_path_has_its_id_in_the_answer(autojump_clock: MockClock, path: str) -> None:
    """The client's own, once; or one of ours."""
    async with serving(autojump_clock) as house, await house.connect() as client:
        assert (await client.ask("GET", path, headers={"X-Request-Id": "mine-1"})).headers["x-request-id"] == "mine-1"
        ours = (await client.ask("GET", path)).headers["x-request-id"]
        assert ours.startswith("req-")


async def test_a_head_of_the_decision_log_is_not_followed(autojump_clock: MockClock) -> None:
    """It has no body, so the connection is free at once for the next request."""
    async with serving(autojump_clock) as house, await house.connect() as client:
        await client.stream.send_all(b"HEAD /api/events HTTP/1.1\r\n" + LOCAL + b"\r\n" + MODELS)
        answer = b""
        with trio.fail_after(5.0):
            while b'"object":"list"' not in answer:
                answer += await client.stream.receive_some(65_536)
        assert answer.startswith(b"HTTP/1.1 200 ")


ODD_METHODS = ("GET", "HEAD", "PUT", "PATCH", "DELETE", "TRACE", "CONNECT", "PROPFIND", "get", "X-Y")


@pytest.mark.parametrize(
    "path", [*ROUTES, "/v1/models", "/v1/models/sim-chat-4b", "/health", "/metrics", "/api/status"]
)
async def test_H1_another_method_is_a_405_that_names_the_right_ones(autojump_clock: MockClock, path: str) -> None:
    """On every route; a method that is none of HTTP's too."""
    async with served_after(autojump_clock) as house:
        for method in ODD_METHODS:
            async with await house.connect() as client:
                await client.stream.send_all(
                    b"%b %b HTTP/1.1\r\n" % (method.encode(), path.encode()) + LOCAL + b"Connection: close\r\n\r\n"
                )
                answer = await all_of(client)
            head = answer.partition(b"\r\n\r\n")[0].lower()
            if method.upper() in {"GET", "HEAD"} and path not in ROUTES:
                assert head.startswith(b"http/1.1 200 "), (method, answer)
                continue
            assert head.startswith((b"http/1.1 405 ", b"http/1.1 400 ") if method == "get" else b"http/1.1 405 "), (
                answer
            )
            assert (b"\r\nallow: " in head) == head.startswith(b"http/1.1 405"), answer
        assert not house.logged("enqueue")
