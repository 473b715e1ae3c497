"""P3 and door 6: one connection for one request, bytes as they come, and every way an engine can fail us."""

import resource
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from gridsched.engine.address import Address, Port
from gridsched.engine.upstream import SocketUpstream, open_answer, read_all
from gridsched.engine.wire import KNOCK_SECONDS, QUIET_SECONDS
from gridsched.ports import EngineAnswer, UpstreamFailure, UpstreamFailureKind
from tests.engine.conftest import ONE, PATIENCE_SECONDS, Bench, descriptors

JSON = ((b"Content-Type", b"application/json"),)
CHAT = "/v1/chat/completions"


async def whole(answer: EngineAnswer) -> bytes:
    """The body to its end."""
    parts = []
    while part := await answer.receive():
        parts.append(part)
    return b"".join(parts)


class Peer:
    """The other end of connections, spoken by the test itself."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.listener = trio.socket.socket(socket.AF_UNIX)

    async def accept(self) -> trio.SocketStream:
        """The next connection."""
        connection, _ = await self.listener.accept()
        return trio.SocketStream(connection)


@pytest.fixture
async def peer(tmp_path: Path) -> AsyncIterator[Peer]:
    """A listener in this process."""
    peer = Peer(tmp_path / "p.sock")
    await peer.listener.bind(str(peer.path))
    peer.listener.listen(1)
    yield peer
    peer.listener.close()


async def test_bytes_are_handed_on_as_they_arrive(peer: Peer) -> None:
    """The first event of a stream is there before the second has been sent."""
    with trio.fail_after(PATIENCE_SECONDS):
        async with trio.open_nursery() as nursery:
            go_on = trio.Event()

            async def serve() -> None:
                async with await peer.accept() as stream:
                    await stream.receive_some()
                    await stream.send_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\none\r\n")
                    await go_on.wait()
                    await stream.send_all(b"3\r\ntwo\r\n0\r\n\r\n")

            nursery.start_soon(serve)
            async with open_answer(peer.path, "POST", "/x", JSON, b"{}") as answer:
                assert await answer.receive() == b"one"
                go_on.set()
                assert await answer.receive() == b"two"
                assert await answer.receive() == b""
                assert await answer.receive() == b""


PAYLOAD = b"data: \n", b"1\r\n\n0\r\n\r\n"
ANSWER = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n7\r\n%b\r\n9;x\r\n%b\r\n0\r\n\r\n" % PAYLOAD


async def test_an_answer_that_is_cut_at_any_byte_arrives_whole(peer: Peer) -> None:
    """Nothing is lost or added where one read ends and the next begins, in the head, the framing or the payload."""
    with trio.fail_after(PATIENCE_SECONDS):
        for cut in range(1, len(ANSWER)):
            async with trio.open_nursery() as nursery:

                async def serve(cut: int = cut) -> None:
                    async with await peer.accept() as stream:
                        await stream.receive_some()
                        await stream.send_all(ANSWER[:cut])
                        await trio.testing.wait_all_tasks_blocked()
                        await stream.send_all(ANSWER[cut:])

                nursery.start_soon(serve)
                async with open_answer(peer.path, "POST", "/x", JSON, b"{}") as answer:
                    assert await whole(answer) == b"".join(PAYLOAD)


async def test_others_have_their_turn_while_much_lies_ready(peer: Peer) -> None:
    """A read that need not wait gives a turn away: a stream that floods holds no other one up. One that is cancelled
    ends there."""
    with trio.fail_after(PATIENCE_SECONDS):
        async with trio.open_nursery() as nursery:
            turns = 0

            async def serve() -> None:
                async with await peer.accept() as stream:
                    await stream.receive_some()
                    await stream.send_all(b"HTTP/1.1 200 OK\r\n\r\n")
                    await stream.send_all(bytes(100_000_000))

            async def others() -> None:
                nonlocal turns
                while True:
                    await trio.lowlevel.checkpoint()
                    turns += 1

            nursery.start_soon(serve)
            nursery.start_soon(others)
            async with open_answer(peer.path, "POST", "/x", JSON, b"{}") as answer:
                await answer.receive()  # the head was waited for
                before = turns
                for _ in range(20):
                    assert await answer.receive()
                assert turns - before >= 19  # who is first in a turn of the loop is chance
                with trio.CancelScope() as scope:
                    scope.cancel()
                    await answer.receive()
                assert scope.cancelled_caught
            nursery.cancel_scope.cancel()


@pytest.mark.parametrize("before", [b"", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n"])
async def test_others_have_their_turn_while_nothing_but_framing_comes(
    peer: Peer, monkeypatch: pytest.MonkeyPatch, before: bytes
) -> None:
    """Heads that only announce another, or lines behind the last chunk, without end: nobody is held up by them."""
    for name in ("READ_BYTES", "LARGEST_READ_BYTES"):
        monkeypatch.setattr(f"gridsched.engine.wire.{name}", 100)
    flood = b"A: b\r\n" if before else b"HTTP/1.1 100 Continue\r\n\r\n"
    with trio.fail_after(PATIENCE_SECONDS):
        async with trio.open_nursery() as nursery:
            turns = came = 0

            async def serve() -> None:
                nonlocal came
                async with await peer.accept() as stream:
                    await stream.receive_some()
                    await stream.send_all(before + flood * 1000)
                    came = turns

            async def others() -> None:
                nonlocal turns
                while True:
                    await trio.lowlevel.checkpoint()
                    turns += 1

            nursery.start_soon(serve)
            nursery.start_soon(others)
            with pytest.raises(UpstreamFailure):
                async with open_answer(peer.path, "POST", "/x", JSON, b"{}") as answer:
                    await whole(answer)
            nursery.cancel_scope.cancel()
    assert turns > came + 50


async def test_an_end_that_is_known_is_told_even_to_whoever_is_being_cancelled(peer: Peer) -> None:
    """A client that hangs up at the last byte has been answered whole: it is no client that has gone."""
    with trio.fail_after(PATIENCE_SECONDS):
        async with trio.open_nursery() as nursery:

            async def serve() -> None:
                async with await peer.accept() as stream:
                    await stream.receive_some()
                    await stream.send_all(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\none")

            nursery.start_soon(serve)
            async with open_answer(peer.path, "POST", "/x", JSON, b"{}") as answer:
                assert await answer.receive() == b"one"
                with trio.CancelScope() as scope:
                    scope.cancel()
                    assert await answer.receive() == b""
                assert not scope.cancelled_caught


async def test_what_is_sent_is_the_callers_headers_and_our_framing(peer: Peer) -> None:
    """Nothing else: no user agent, no encoding that the caller did not ask for."""
    with trio.fail_after(PATIENCE_SECONDS):
        async with trio.open_nursery() as nursery:
            seen = b""

            async def serve() -> None:
                nonlocal seen
                async with await peer.accept() as stream:
                    seen = bytes(await stream.receive_some())
                    await stream.send_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")

            nursery.start_soon(serve)
            async with open_answer(peer.path, "POST", "/v1/x", JSON, b'{"a":1}'):
                pass
    expected = (
        b"POST /v1/x HTTP/1.1\r\nHost: engine\r\nConnection: close\r\n"
        b'Content-Type: application/json\r\nContent-Length: 7\r\n\r\n{"a":1}'
    )
    assert seen == expected


async def test_headers_of_the_connection_and_of_browsers_stay_here(peer: Peer) -> None:
    """Those that a Connection header names, too."""
    with trio.fail_after(PATIENCE_SECONDS):
        async with trio.open_nursery() as nursery:

            async def serve() -> None:
                async with await peer.accept() as stream:
                    await stream.receive_some()
                    await stream.send_all(
                        b"HTTP/1.1 418 X\r\nServer: llama.cpp\r\nDate: x\r\nAccess-Control-Allow-Origin: *\r\n"
                        b"Access-Control-Allow-Headers: *\r\nKeep-Alive: timeout=5\r\nConnection: X-Hop\r\nX-Hop: 1\r\n"
                        b"Content-Type: text/plain\r\nContent-Length: 2\r\nX-Kept: yes\r\n\r\nhi"
                    )

            nursery.start_soon(serve)
            async with open_answer(peer.path, "GET", "/", (), b"") as answer:
                assert answer.status == 418
                kept = ((b"content-type", b"text/plain"), (b"content-length", b"2"), (b"x-kept", b"yes"))
                assert answer.headers == kept
                assert await whole(answer) == b"hi"


async def test_leaving_closes_the_connection_at_once(peer: Peer) -> None:
    """S8: a cancelled request is noticed by the engine, in whatever state it was."""
    with trio.fail_after(PATIENCE_SECONDS):
        async with trio.open_nursery() as nursery:
            for answer in (b"", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n"):

                async def ask() -> None:
                    async with open_answer(peer.path, "POST", "/x", (), b"{}") as begun:
                        await whole(begun)

                with trio.CancelScope() as scope:
                    async with trio.open_nursery() as inner:
                        inner.start_soon(ask)
                        stream = await peer.accept()
                        await stream.receive_some()
                        await stream.send_all(answer)
                        await trio.testing.wait_all_tasks_blocked(0.01)
                        scope.cancel()
                assert await stream.receive_some() == b""
                await stream.aclose()
            nursery.cancel_scope.cancel()


async def test_64_mib_go_up_while_the_peer_is_slow_to_read(peer: Peer) -> None:
    """Every byte arrives, once."""
    body = bytes(64 * 1024 * 1024)
    with trio.fail_after(PATIENCE_SECONDS):
        async with trio.open_nursery() as nursery:
            read = 0

            async def serve() -> None:
                nonlocal read
                async with await peer.accept() as stream:
                    while read < len(body):
                        read += len(await stream.receive_some(1024 * 1024))
                    await stream.send_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

            nursery.start_soon(serve)
            async with open_answer(peer.path, "POST", "/x", (), body) as answer:
                assert await whole(answer) == b"ok"
    assert len(body) <= read < len(body) + 200


async def test_an_answer_before_the_body_was_read_is_received(peer: Peer) -> None:
    """The peer refuses by the head alone and closes; what it said is not lost."""
    with trio.fail_after(PATIENCE_SECONDS):
        async with trio.open_nursery() as nursery:

            async def serve() -> None:
                async with await peer.accept() as stream:
                    await stream.receive_some(100)
                    await stream.send_all(b"HTTP/1.1 413 X\r\nContent-Length: 3\r\n\r\nbig")

            nursery.start_soon(serve)
            async with open_answer(peer.path, "POST", "/x", (), bytes(8 * 1024 * 1024)) as answer:
                assert answer.status == 413
                assert await whole(answer) == b"big"


@pytest.mark.parametrize(
    ("said", "kind", "words"),
    [
        (b"", UpstreamFailureKind.BROKEN, "before it answered"),
        (b"HTTP/1.1 200", UpstreamFailureKind.BROKEN, "before it answered"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf", UpstreamFailureKind.BROKEN, "in mid-answer"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n", UpstreamFailureKind.BROKEN, "mid-answer"),
        (b"SSH-2.0-OpenSSH_9.0\r\n", UpstreamFailureKind.PROTOCOL, "did not speak HTTP"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", UpstreamFailureKind.PROTOCOL, "chunk"),
    ],
)
async def test_every_way_an_answer_can_break_has_a_kind(
    peer: Peer, said: bytes, kind: UpstreamFailureKind, words: str
) -> None:
    """And a sentence; nothing is sent again."""

    async def serve() -> None:
        async with await peer.accept() as stream:
            await stream.receive_some()
            await stream.send_all(said)

    async def ask() -> None:
        async with open_answer(peer.path, "POST", "/x", (), b"{}") as answer:
            await whole(answer)

    with trio.fail_after(PATIENCE_SECONDS):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve)
            with pytest.raises(UpstreamFailure) as caught:
                await ask()
    assert caught.value.kind is kind
    assert words in caught.value.message


async def test_nobody_listening_is_a_failure_to_connect(tmp_path: Path) -> None:
    """No socket, a socket that nobody serves, an instance that is not there."""
    dead = tmp_path / "dead.sock"
    with socket.socket(socket.AF_UNIX) as closed:
        closed.bind(str(dead))
    for upstream in (
        SocketUpstream(lambda _: tmp_path / "none.sock"),
        SocketUpstream(lambda _: dead),
        SocketUpstream(lambda _: None),
    ):
        with pytest.raises(UpstreamFailure) as caught:
            await upstream.busy_slots(ONE)
        assert caught.value.kind is UpstreamFailureKind.CONNECT


async def test_a_full_backlog_is_waited_out(peer: Peer) -> None:
    """More connections at once than the engine's queue holds: all are served."""
    count = 8
    with trio.fail_after(PATIENCE_SECONDS):
        async with trio.open_nursery() as nursery:
            bodies: list[bytes] = []

            async def ask() -> None:
                async with open_answer(peer.path, "GET", "/", (), b"") as answer:
                    bodies.append(await whole(answer))

            for _ in range(count):
                nursery.start_soon(ask)
            await trio.testing.wait_all_tasks_blocked()
            for _ in range(count):
                async with await peer.accept() as stream:
                    await stream.receive_some()
                    await stream.send_all(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nx")
    assert bodies == [b"x"] * count


async def test_a_shortage_of_descriptors_is_waited_out(peer: Peer) -> None:
    """It is no fault of the engine's, which would be restarted for one."""
    _, hard = limits = resource.getrlimit(resource.RLIMIT_NOFILE)

    async def serve() -> None:
        await trio.testing.wait_all_tasks_blocked()
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        async with await peer.accept() as stream:
            await stream.receive_some()
            await stream.send_all(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nx")

    with trio.fail_after(PATIENCE_SECONDS):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve)
            resource.setrlimit(resource.RLIMIT_NOFILE, (1, hard))
            async with open_answer(peer.path, "GET", "/", (), b"") as answer:
                assert await whole(answer) == b"x"


async def test_an_answer_that_should_be_small_is_not_read_without_end(peer: Peer) -> None:
    """A broken peer does not fill our memory."""

    async def serve() -> None:
        async with await peer.accept() as stream:
            await stream.receive_some()
            await stream.send_all(b"HTTP/1.1 200 OK\r\n\r\n" + bytes(5000))

    with trio.fail_after(PATIENCE_SECONDS):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve)
            async with open_answer(peer.path, "GET", "/", (), b"") as answer:
                with pytest.raises(UpstreamFailure, match="longer than 1000"):
                    await read_all(answer, 1000)


@pytest.mark.slow
async def test_one_byte_segments_through_a_real_process(bench: Bench) -> None:
    """Framing is never taken for payload."""
    chunks = ["data: {}\n\n", "x" * 300, "data: [DONE]\n\n"]
    async with (
        bench.running(bench.launch(segment_bytes=1, chunks=chunks)),
        bench.upstream.request(ONE, "POST", CHAT, JSON, b"{}") as answer,
    ):
        assert await whole(answer) == "".join(chunks).encode()


@pytest.mark.slow
async def test_the_engine_says_how_many_slots_are_busy(bench: Bench) -> None:
    """A11: the count that frees a slot after its client has left."""
    async with bench.running(bench.launch(busy=2)):
        assert await bench.upstream.busy_slots(ONE) == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    "switches", [{"garbage_at": "/slots"}, {"close_at": "/slots"}, {"answers": {"/slots": "[" * 50_000}}]
)
async def test_slots_that_cannot_be_read_are_a_failure(bench: Bench, switches: dict[str, Any]) -> None:
    """Not zero."""
    async with bench.running(bench.launch(**switches)):
        with pytest.raises(UpstreamFailure):
            await bench.upstream.busy_slots(ONE)


@pytest.mark.slow
async def test_K3_hundreds_of_cancelled_requests_leave_nothing_open(bench: Bench) -> None:
    """Cancelled at every stage; then an ordinary one is served."""
    async with bench.running(bench.launch(hang_at="/hang", chunks=["a", "b"])):
        before = descriptors()
        for number in range(200):
            target = "/hang" if number % 2 else CHAT
            with trio.move_on_after(0.0001 * (number % 20)):
                async with bench.upstream.request(ONE, "POST", target, JSON, b"{}") as answer:
                    await whole(answer)
        async with bench.upstream.request(ONE, "POST", CHAT, JSON, b"{}") as answer:
            assert await whole(answer) == b"ab"
        assert descriptors() == before


@pytest.mark.parametrize("head", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\no"])
@pytest.mark.parametrize("at_port", [False, True])
async def test_S9_an_engine_that_listens_no_more_and_is_silent_has_broken_off(
    tmp_path: Path, autojump_clock: trio.testing.MockClock, head: bytes, *, at_port: bool
) -> None:
    """As the real one is that somebody else has told to end: it waits for ever for what nothing works on."""
    path = tmp_path / "p.sock"
    with trio.socket.socket(socket.AF_INET if at_port else socket.AF_UNIX) as listener:
        await listener.bind(("127.0.0.1", 0) if at_port else str(path))
        listener.listen()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(broken_off, Port(listener.getsockname()[1]) if at_port else path)
            taken, _ = await listener.accept()
            await taken.send(head)
            await trio.sleep(60.0)  # it listens, and may say something yet
            assert nursery.child_tasks
            listener.close()
            limit = autojump_clock.current_time() + QUIET_SECONDS + KNOCK_SECONDS
        assert autojump_clock.current_time() <= limit
        taken.close()


async def broken_off(address: Address) -> None:
    """A request that its engine breaks off."""
    with pytest.raises(UpstreamFailure) as caught:
        async with open_answer(address, "POST", "/x", JSON, b"{}") as answer:
            await whole(answer)
    assert caught.value.kind is UpstreamFailureKind.BROKEN


async def test_an_engine_whose_address_was_tidied_away_is_waited_for(
    peer: Peer, autojump_clock: trio.testing.MockClock
) -> None:
    """It works on; nobody can knock there, which says nothing."""
    with trio.move_on_after(60.0) as patience:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(broken_off, peer.path)
            async with await peer.accept():
                peer.path.unlink()
                await trio.sleep_forever()
    assert patience.cancelled_caught
    assert autojump_clock.current_time() >= 60.0
