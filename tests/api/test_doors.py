"""The two doors of HTTP: what the strict reader takes h11 reads alike, and both answer the same bytes the same way."""

import json
import re
import socket
from random import Random
from typing import Any, cast

import h11
import pytest
import trio
from trio.testing import MockClock

from gridsched.api.fast import FastConnection, Hall
from gridsched.api.head import LONGEST_PLAIN_HEAD_BYTES, Head, Told, read_head
from gridsched.api.routes import ROUTES
from gridsched.api.seat import House as HouseOfFront
from gridsched.api.settings import FrontSettings
from gridsched.api.watch import HangUps, IdleTimes
from gridsched.ports import UpstreamFailureKind
from tests.support.fakes import EVENTS, JSON, Script
from tests.support.front import Client, House, serving

CHAT = "/v1/chat/completions"
BODY = json.dumps({"model": "sim-chat-4b", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}).encode()
LINE = b"POST /v1/chat/completions HTTP/1.1\r\n"
HOST = b"Host: localhost\r\n"
LENGTH = b"Content-Length: %d\r\n" % len(BODY)
PLAIN = LINE + HOST + b"Content-Type: application/json\r\nX-Request-Id: mine\r\n" + LENGTH + b"\r\n"
HIDDEN = b"GET /v1/hidden HTTP/1.1\r\n" + HOST + b"\r\n"
FIGURES = FrontSettings(keep_alive_seconds=20.0, upload_stall_seconds=30.0, max_body_bytes=100_000)


def test_every_route_of_jobs_has_its_plain_head() -> None:
    """And what is left out of it, or not ended, is told apart."""
    for path in ROUTES:
        head = b"POST %b HTTP/1.1\r\n" % path.encode() + HOST + b"x-a: 1\r\nCONTENT-LENGTH:7 \r\nX-A:\t2 3\r\n\r\n"
        found = read_head(head + b"1234567")
        assert found == Head(path, {b"host": b"localhost", b"x-a": b"1, 2 3", b"content-length": b"7"}, 7, len(head))
        for size in range(len(head)):
            assert read_head(head[:size]) is Told.MORE, head[:size]
    assert read_head(PLAIN[:-2] + b"X: " + b"x" * LONGEST_PLAIN_HEAD_BYTES) is Told.ODD


ODD: dict[str, bytes] = {
    "another method": b"PUT" + PLAIN[4:],
    "another path": PLAIN.replace(b"chat/completions", b"chat/Completions"),
    "a query": PLAIN.replace(b"completions ", b"completions?a=b "),
    "an encoded path": PLAIN.replace(b"chat/", b"chat%2F"),
    "a whole URL": PLAIN.replace(b" /v1", b" http://localhost/v1"),
    "HTTP/1.0": PLAIN.replace(b"HTTP/1.1", b"HTTP/1.0"),
    "a line end before it": b"\r\n" + PLAIN,
    "a line feed for a line end": PLAIN.replace(b"\r\nX-R", b"\nX-R"),
    "line feeds at its end": PLAIN[:-4] + b"\n\n",
    "a bare carriage return": PLAIN.replace(b"mine", b"mi\rne"),
    "a NUL": PLAIN.replace(b"mine", b"mi\0ne"),
    "a control character": PLAIN.replace(b"mine", b"mi\x01ne"),
    "a vertical tab": PLAIN.replace(b"mine", b"mi\x0bne"),
    "a folded line": PLAIN.replace(b"mine\r\n", b"mine\r\n more\r\n"),
    "a space before the colon": PLAIN.replace(b"X-Request-Id:", b"X-Request-Id :"),
    "a space in a name": PLAIN.replace(b"X-Request-Id:", b"X Request-Id:"),
    "no name": PLAIN.replace(b"X-Request-Id:", b":"),
    "no colon": PLAIN.replace(b"X-Request-Id:", b"X-Request-Id"),
    "no host": PLAIN.replace(HOST, b""),
    "two hosts": PLAIN.replace(HOST, HOST + HOST),
    "no length": PLAIN.replace(LENGTH, b""),
    "a length of nothing": PLAIN.replace(LENGTH, b"Content-Length: 0\r\n"),
    "an empty length": PLAIN.replace(LENGTH, b"Content-Length: \r\n"),
    "the same length twice": PLAIN.replace(LENGTH, LENGTH + LENGTH),
    "two lengths": PLAIN.replace(LENGTH, LENGTH + b"Content-Length: 5\r\n"),
    "two lengths in a line": PLAIN.replace(LENGTH, b"Content-Length: 5,5\r\n"),
    "a length with a plus": PLAIN.replace(LENGTH, b"Content-Length: +5\r\n"),
    "a negative length": PLAIN.replace(LENGTH, b"Content-Length: -5\r\n"),
    "a length in hexadecimal": PLAIN.replace(LENGTH, b"Content-Length: 0x5\r\n"),
    "a length with a leading zero": PLAIN.replace(LENGTH, b"Content-Length: 0%d\r\n" % len(BODY)),
    "a length with an underscore": PLAIN.replace(LENGTH, b"Content-Length: 1_0\r\n"),
    "a length with a point": PLAIN.replace(LENGTH, b"Content-Length: 5.0\r\n"),
    "a length in other digits": PLAIN.replace(LENGTH, "Content-Length: \u0665\r\n".encode()),
    "a length of 40 digits": PLAIN.replace(LENGTH, b"Content-Length: " + b"9" * 40 + b"\r\n"),
    "both framings": PLAIN.replace(LENGTH, LENGTH + b"Transfer-Encoding: chunked\r\n"),
    "the other framing first": PLAIN.replace(LENGTH, b"Transfer-Encoding: chunked\r\n" + LENGTH),
    "an unknown coding": PLAIN.replace(LENGTH, LENGTH + b"Transfer-Encoding: xchunked\r\n"),
    "a coding behind a tab": PLAIN.replace(LENGTH, LENGTH + b"Transfer-Encoding:\tchunked\r\n"),
    "a coding with a space in its name": PLAIN.replace(LENGTH, LENGTH + b"Transfer-Encoding : chunked\r\n"),
    "a coding in capitals": PLAIN.replace(LENGTH, LENGTH + b"TRANSFER-ENCODING: CHUNKED\r\n"),
    "a coding on a folded line": PLAIN.replace(LENGTH, LENGTH + b"X-A: b\r\n Transfer-Encoding: chunked\r\n"),
    "an expectation": PLAIN.replace(LENGTH, LENGTH + b"Expect: 100-continue\r\n"),
    "an offer to upgrade": PLAIN.replace(LENGTH, LENGTH + b"Upgrade: h2c\r\n"),
    "the last request": PLAIN.replace(LENGTH, LENGTH + b"Connection: close\r\n"),
    "two words about the connection": PLAIN.replace(LENGTH, LENGTH + b"Connection: keep-alive, X-A\r\n"),
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    "a letter of another method": b"G",
}


@pytest.mark.parametrize("sent", ODD.values(), ids=ODD.keys())
def test_what_is_odd_is_left_to_h11(sent: bytes) -> None:
    """Whatever could be read in two ways, or asks for more than an answer."""
    assert read_head(sent) is Told.ODD


def test_H6_a_spoilt_head_is_refused_without_trying_it_in_all_ways() -> None:
    """There are more of them than anybody could count: blanks that may stand before a value or behind it."""
    for spoilt_at_its_end in (
        b"X: " + b" " * 8000 + b"\0",
        b"A: \r\n" * 1000 + b"B",
        b"A: \t b \r\n" * 500 + b"B:\x7f",
    ):
        assert read_head(LINE + HOST + LENGTH + spoilt_at_its_end + b"\r\n\r\n") is Told.ODD


def by_h11(data: bytes) -> tuple[bytes, bytes, bytes, dict[bytes, bytes], int, bytes]:
    """How h11 reads a request: method, target, version, headers, the length of its body, and what is behind its head.
    Raises h11.RemoteProtocolError."""
    connection = h11.Connection(h11.SERVER, max_incomplete_event_size=65536)
    connection.receive_data(data)
    request = connection.next_event()
    assert isinstance(request, h11.Request), data
    headers: dict[bytes, bytes] = {}
    for name, value in request.headers:
        headers[name] = headers[name] + b", " + value if name in headers else value
    behind = b""
    while isinstance(event := connection.next_event(), h11.Data):
        behind += bytes(event.data)
    length = int(headers.get(b"content-length", b"0"))
    return request.method, request.target, request.http_version, headers, length, behind + connection.trailing_data[0]


PIECES = (
    *(
        b"\r",
        b"\n",
        b"\r\n",
        b"\0",
        b" ",
        b"\t",
        b":",
        b",",
        b";",
        b"\x0b",
        b"\x7f",
        b"\x80",
        b"\xff",
        b"0",
        b"+",
        b"_",
    ),
    *(LINE, HOST, LENGTH, b"Transfer-Encoding: chunked\r\n", b"Connection: close\r\n", b"\r\n\r\n", b"\r\n ", b"POST "),
    *(b"X-A: b\r\n", b"Content-Length: 5\r\n", b"x-request-id:\r\n", b"HTTP/1.1", b"/v1/completions", b"Expect: x\r\n"),
)


def spoilt(random: Random, whole: bytes, most: int) -> bytes:
    """The same with a few pieces put in, taken out, doubled or changed."""
    data = bytearray(whole)
    for _ in range(random.randint(1, most)):
        at = random.randrange(len(data) + 1)
        end = min(len(data), at + random.choice((0, 0, 1, 1, 2, 8)))
        doubled = bytes(data[at : at + 12])
        data[at:end] = random.choice((*PIECES, b"", doubled, bytes([random.randrange(256)])))
    return bytes(data)


@pytest.mark.slow
def test_what_is_taken_is_what_h11_reads() -> None:
    """Of thousands of spoilt heads: the same method, target, headers, length, and first byte of the body."""
    random, taken = Random(20261201), 0  # noqa: S311 - no secret
    for _ in range(6000):
        sent = spoilt(random, PLAIN, 3) + BODY
        found = read_head(sent)
        if isinstance(found, Head):
            taken += 1
            method, target, version, headers, length, behind = by_h11(sent[: found.end + found.length_bytes])
            assert (method, target.decode(), version) == (b"POST", found.path, b"1.1")
            assert headers == found.headers
            assert length == found.length_bytes
            assert behind == sent[found.end :][:length]
    assert taken > 300


# --- both doors -------------------------------------------------------------------------------------------------------

OWN = re.compile(rb"(x-gridsched-job-id: |x-gridsched-queue-ms: |x-request-id: |date: )[^\r]*")


async def all_of(client: Client) -> bytes:
    """Everything that comes until the server closes, or resets."""
    parts = []
    try:
        while part := await client.stream.receive_some(65536):
            parts.append(part)
    except trio.BrokenResourceError:
        pass
    return OWN.sub(rb"\1*", b"".join(parts))


async def answered(house: House, sent: bytes, *, plain_door: bool) -> bytes:
    """What comes back for these bytes, as what is first sent on a connection, or behind a request that is not plain."""
    house.upstream.scripts.clear()
    house.upstream.scripts.extend(Script([b'{"answer":1}']) for _ in range(9))
    async with await house.connect() as client:
        if not plain_door:
            assert (await client.ask("GET", "/v1/models")).status == 200
        await client.stream.send_all(sent)
        return await all_of(client)


BODIES: dict[str, bytes] = {
    "one": PLAIN + BODY,
    "three behind one another": (PLAIN + BODY) * 3,
    "one behind it for the other door": PLAIN + BODY + HIDDEN,
    "a body that looks like a request": LINE + HOST + b"Content-Length: %d\r\n\r\n" % len(HIDDEN) + HIDDEN,
    "a body longer than its length": PLAIN.replace(LENGTH, b"Content-Length: %d\r\n" % (len(BODY) - 9)) + BODY,
    "a body shorter than its length": PLAIN.replace(LENGTH, b"Content-Length: %d\r\n" % (len(BODY) + 9)) + BODY,
    "no JSON": PLAIN.replace(LENGTH, b"Content-Length: 5\r\n") + b"{nope",
    "a foreign host": PLAIN.replace(b"localhost", b"evil.example") + BODY + HIDDEN,
    "a foreign page": PLAIN.replace(HOST, HOST + b"Origin: http://evil.example\r\n") + BODY + HIDDEN,
    "its own page": PLAIN.replace(HOST, HOST + b"Origin: http://localhost\r\n") + BODY,
    "an unknown model": PLAIN.replace(LENGTH, b"Content-Length: 32\r\n") + b'{"model":"x","messages":["abc"]}',
    "too long a body": PLAIN.replace(LENGTH, b"Content-Length: 200000\r\n") + b" " * 200_000 + HIDDEN,
    "an endless head": PLAIN[:-2] + b"X: " + b"x" * 70_000,
    "garbage behind it": PLAIN + BODY + b"\x16\x03\x01garbage\r\n\r\n",
}


@pytest.mark.parametrize("sent", BODIES.values(), ids=BODIES.keys())
async def test_both_doors_answer_alike(autojump_clock: MockClock, sent: bytes) -> None:
    """Byte for byte, but for numbers of their own."""
    async with serving(autojump_clock, FIGURES) as house:
        first = await answered(house, sent, plain_door=True)
        jobs = len(house.upstream.asked)
        assert first == await answered(house, sent, plain_door=False)
        assert len(house.upstream.asked) == 2 * jobs


@pytest.mark.slow
async def test_H6_no_body_is_ever_the_next_request(autojump_clock: MockClock) -> None:
    """Odd framings of all kinds, each around a body that is a request of its own: one answer, alike by both doors."""
    async with serving(autojump_clock, FIGURES) as house:
        for how, odd in ODD.items():
            if "length" not in how and "coding" not in how and "framing" not in how:
                continue
            sent = odd + b"5\r\n12345\r\n0\r\n\r\n" + HIDDEN
            answer = await answered(house, sent, plain_door=True)
            assert re.match(rb"HTTP/1.1 (4\d\d|501) ", answer), how
            assert b"/v1/hidden" not in answer, how
            assert answer == await answered(house, sent, plain_door=False), how


@pytest.mark.slow
async def test_spoilt_requests_are_answered_alike_by_both_doors(autojump_clock: MockClock) -> None:
    """Heads and bodies, some with another behind them."""
    random = Random(9)  # noqa: S311 - no secret
    async with serving(autojump_clock, FIGURES) as house:
        await house.ask("POST", CHAT, BODY)
        for _ in range(100):
            sent = spoilt(random, PLAIN + BODY + random.choice((b"", PLAIN + BODY, HIDDEN)), 2)
            assert await answered(house, sent, plain_door=True) == await answered(house, sent, plain_door=False), sent


async def test_a_connection_goes_from_one_door_to_the_other(autojump_clock: MockClock) -> None:
    """Plain, another route, plain again, an unusual one, the last: all on one connection, streams too."""
    async with serving(autojump_clock) as house, await house.connect() as client:
        for _ in range(2):
            house.upstream.scripts.append(Script([b"data: 1\n\n", 0.5, b"data: 2\n\n"], headers=EVENTS))
            answer = await client.ask("POST", CHAT, {**json.loads(BODY), "stream": True})
            assert (answer.complete, answer.body) == (True, b"data: 1\n\ndata: 2\n\n")
            assert answer.headers["transfer-encoding"] == "chunked"
            assert (await client.ask("POST", CHAT, BODY)).status == 200
            assert (await client.ask("GET", "/health")).status == 200
        assert (await client.ask("POST", CHAT, BODY, {"Transfer-Encoding": "chunked"})).status == 200
        assert (await client.ask("POST", CHAT, BODY, {"Connection": "close"})).status == 200
        assert await client.stream.receive_some(1) == b""


@pytest.mark.parametrize("plain_door", [True, False])
@pytest.mark.parametrize("promised", [5, 7])
async def test_an_answer_of_another_length_breaks_its_connection(
    autojump_clock: MockClock, promised: int, plain_door: bool
) -> None:
    """Whether it is longer or shorter than its head says: nobody is to wait for the rest, or take it for the next."""
    async with serving(autojump_clock) as house, await house.connect() as client:
        if not plain_door:
            await client.ask("GET", "/v1/models")
        headers = ((b"content-type", b"application/json"), (b"content-length", b"%d" % promised))
        house.upstream.scripts.append(Script([b"123", b"456"], headers=headers))
        await client.stream.send_all(PLAIN + BODY)
        answer = await all_of(client)
        assert answer.endswith(b"\r\n\r\n123" if promised == 5 else b"\r\n\r\n123456")


@pytest.mark.usefixtures("autojump_clock")
async def test_no_piece_goes_out_in_part_where_its_answer_is_cut_off() -> None:
    """The server's end, or a limit, comes while a client is slow: what is said next would stand inside the piece."""
    near, far = socket.socketpair()
    near.setblocking(False)
    nobody = cast("Any", None)
    house = HouseOfFront(nobody, FrontSettings(), nobody, nobody, trio.Event())
    piece, came = b"x" * 4_000_000, 0

    async def send() -> None:
        with trio.CancelScope() as cut_off:
            cut_off.cancel()
            await connection.send(piece)
        await connection.send(b"y")

    with HangUps() as hang_ups:
        connection = FastConnection(Hall(house, nobody, nobody, hang_ups, IdleTimes(1.0)), near)
        async with trio.SocketStream(trio.socket.from_stdlib_socket(far)) as client, trio.open_nursery() as nursery:
            nursery.start_soon(send)
            with trio.fail_after(10.0):
                while not (part := await client.receive_some(65536)).endswith(b"y"):
                    came += len(part)
        connection.end()
    assert came + len(part) == len(piece) + 1


async def test_what_was_sent_ahead_takes_no_answer_back(autojump_clock: MockClock) -> None:
    """Of a connection that ends with its answer."""
    async with serving(autojump_clock) as house, await house.connect() as client:
        house.upstream.scripts.append(Script([b"data: 1\n\n", 9.0, UpstreamFailureKind.BROKEN], headers=JSON))
        await client.stream.send_all((PLAIN + BODY) * 3)
        await trio.sleep(20.0)
        answer = b""
        while part := await client.stream.receive_some(65536):
            answer += part
        assert answer.count(b"HTTP/1.1 ") == 1
        assert answer.endswith(b"data: 1\n\n\r\n")


async def test_a_request_may_come_byte_by_byte(autojump_clock: MockClock) -> None:
    """Each on its own."""
    async with serving(autojump_clock) as house, await house.connect() as client:
        for number in range(len(PLAIN + BODY)):
            await client.stream.send_all((PLAIN + BODY)[number : number + 1])
            await trio.testing.wait_all_tasks_blocked()
        house.upstream.scripts.append(Script([b"answer"]))
        answer = b""
        while not answer.endswith(b"answer\r\n0\r\n\r\n"):
            answer += await client.stream.receive_some(65536)
        assert answer.startswith(b"HTTP/1.1 200 ")


async def test_a_plain_client_that_leaves_frees_the_engine_before_time_passes(autojump_clock: MockClock) -> None:
    """Nobody looks for it now and then: the kernel says it, also behind a request that was sent ahead."""
    async with serving(autojump_clock) as house:
        for number, ahead in enumerate((b"", HIDDEN, PLAIN), start=1):
            house.upstream.scripts.append(Script([b"data: 1\n\n", 1000.0], headers=EVENTS))
            client = await house.connect()
            await client.stream.send_all(PLAIN + BODY + ahead)
            await house.until_logged("dispatch", number)
            await trio.testing.wait_all_tasks_blocked()
            left_at = trio.current_time()
            await client.stream.aclose()
            await house.runtime.desk.wait_idle()
            assert house.upstream.asked[-1].closed_at == trio.current_time() == left_at


async def test_P8_idle_connections_are_closed_at_once_when_the_server_ends(autojump_clock: MockClock) -> None:
    """Used, unused, and in the midst of a head; one that is answered has its time."""
    async with serving(autojump_clock) as house:
        unused, used, half, busy = [await house.connect() for _ in range(4)]
        await used.ask("POST", CHAT, BODY)
        await half.stream.send_all(PLAIN[:40])
        house.upstream.scripts.append(Script([b"data: 1\n\n", 2.0, b"data: 2\n\n"], headers=EVENTS))
        await busy.send("POST", CHAT, BODY)
        head = await busy.head()
        await trio.testing.wait_all_tasks_blocked()
        ended_at = trio.current_time()
        house.runtime.end()
        answer = await busy.rest(head)
        assert (answer.complete, answer.body.count(b"data")) == (True, 2)
        for client in (unused, used, half):
            assert await client.stream.receive_some(1) == b""
        assert trio.current_time() - ended_at < 3.0
        for client in (unused, used, half, busy):
            await client.stream.aclose()


async def test_idle_plain_connections_are_closed_in_their_time(autojump_clock: MockClock) -> None:
    """Each in its own: one that never asked, one that asked half a question, and one that was answered, from then on;
    an answer may take longer than any of them may wait."""
    closed_at: dict[str, float] = {}

    async def until_closed(name: str, client: Client) -> None:
        async with client:
            await all_of(client)
            closed_at[name] = trio.current_time()

    async with serving(autojump_clock, FrontSettings(keep_alive_seconds=10.0)) as house:
        clients = {name: await house.connect() for name in ("silent", "half", "asked", "asking")}
        await clients["asked"].ask("POST", CHAT, BODY)
        house.upstream.scripts.append(Script([b"1", 30.0, b"2"]))
        await clients["asking"].send("POST", CHAT, BODY)
        asked_at = trio.current_time()
        async with trio.open_nursery() as nursery:
            for name, client in clients.items():
                nursery.start_soon(until_closed, name, client)
            await trio.sleep(3.0)
            await clients["half"].stream.send_all(PLAIN[:-9])
    assert closed_at["silent"] == closed_at["half"] == pytest.approx(10.0, abs=0.1)
    assert closed_at["asked"] == pytest.approx(asked_at + 10.0, abs=0.1)
    assert closed_at["asking"] == pytest.approx(asked_at + 40.0, abs=0.1)


async def test_who_looks_behind_an_answer_finds_its_job_ended(autojump_clock: MockClock) -> None:
    """The log has its last line by then; every time."""
    async with serving(autojump_clock) as house, await house.connect() as client:
        for number in range(1, 21):
            assert (await client.ask("POST", CHAT, BODY)).complete
            assert len(house.logged("complete")) == number
