"""HTTP to one process at its address: door 6. Owns the connection of one request, from connect to close.

A new connection for every request (P3), because llama-server closes connections behind a stream without saying so and
a pooled one may be dead. Nothing is ever sent twice. Payload is handed on as it arrives and never read; headers
that speak of the connection, or of the engine's own idea of browsers, stay here.
"""

import errno
import json
import os
import socket
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from http import HTTPStatus

import trio

from gridsched.core.ids import InstanceId
from gridsched.engine.address import LOOPBACK, Address, Port
from gridsched.engine.http1 import NotHttp, ResponseReader
from gridsched.ports import UpstreamFailure, UpstreamFailureKind
from gridsched.threads import SHORTAGE_RETRY_SECONDS, SHORTAGES

READ_BYTES = 64 * 1024
MAX_SLOTS_ANSWER_BYTES = 8 * 1024 * 1024
SLOTS_TIMEOUT_SECONDS = 5.0
BACKLOG_RETRY_SECONDS = 0.005
QUIET_SECONDS = 5.0
"""How long an engine is silent before it is knocked at, and between two knocks. Silence alone means nothing: an answer
that is not streamed is silent until it is whole."""

KNOCK_SECONDS = 1.0

# Hop-by-hop (RFC 9110, section 7.6.1), and what the front says itself.
_DROPPED_HEADERS = frozenset(
    (
        b"connection",
        b"keep-alive",
        b"proxy-connection",
        b"proxy-authenticate",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
        b"server",
        b"date",
        b"x-request-id",
        b"set-cookie",
    )
)
_DROPPED_PREFIXES = (b"access-control-", b"x-gridsched-")  # the engine's open CORS policy, and words that are ours
_GIVEN_ONCE = frozenset((b"content-type", b"content-length", b"content-encoding"))

Endpoint = Callable[[InstanceId], Address | None]
"""Where a process listens; None when it is not there."""


class SocketAnswer:
    """An engine's answer on its own connection. Implements `ports.EngineAnswer`."""

    def __init__(self, connection: socket.socket, address: Address, reader: ResponseReader, first: bytes) -> None:
        if reader.head is None:
            raise ValueError("an answer begins with its head")
        self._connection = connection
        self._address = address
        self._reader = reader
        self._first = first
        self._status = reader.head.status
        named = {part.strip().lower() for value in reader.head.values(b"connection") for part in value.split(b",")}
        self._headers = tuple(_passed(reader.head.headers, _DROPPED_HEADERS | named))

    @property
    def status(self) -> int:
        """The HTTP status."""
        return self._status

    @property
    def headers(self) -> tuple[tuple[bytes, bytes], ...]:
        """Names in lower case, hop-by-hop ones removed."""
        return self._headers

    async def receive(self) -> bytes:
        """The next bytes of the body as they came, b"" at its end. Raises UpstreamFailure.

        A checkpoint, but for an end that is known already: a client that hangs up at the last byte has been answered
        whole, and must not be cancelled in the moment in which we would find that out.
        """
        if self._reader.done and not self._first:
            return b""
        await trio.lowlevel.checkpoint()
        payload, self._first = self._first, b""
        while not payload and not self._reader.done:
            payload = await _read(self._connection, self._address, self._reader)
        return payload


def _passed(headers: Iterable[tuple[bytes, bytes]], dropped: frozenset[bytes]) -> Iterator[tuple[bytes, bytes]]:
    """Those that a client gets; of what may be said once only, the first."""
    said: set[bytes] = set()
    for name, value in headers:
        if name in dropped or name.startswith(_DROPPED_PREFIXES) or (name in said and name in _GIVEN_ONCE):
            continue
        said.add(name)
        yield name, value


class SocketUpstream:
    """Implements `ports.Upstream` for the processes that `endpoint` knows."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint

    @asynccontextmanager
    async def request(
        self, instance_id: InstanceId, method: str, target: str, headers: tuple[tuple[bytes, bytes], ...], body: bytes
    ) -> AsyncIterator[SocketAnswer]:
        """Send one request; the block's exit closes the connection at once, also when it is cancelled.

        Raises UpstreamFailure. The caller's headers are sent as they are; only the framing is ours.
        """
        address = self._endpoint(instance_id)
        if address is None:
            raise UpstreamFailure(UpstreamFailureKind.CONNECT, f"instance {instance_id} is not running")
        async with open_answer(address, method, target, headers, body) as answer:
            yield answer

    async def busy_slots(self, instance_id: InstanceId) -> int:
        """How many slots the engine itself says are busy. Raises UpstreamFailure."""
        answered = None
        with trio.move_on_after(SLOTS_TIMEOUT_SECONDS):
            async with self.request(instance_id, "GET", "/slots", (), b"") as answer:
                answered = answer.status, await read_all(answer, MAX_SLOTS_ANSWER_BYTES)
        if answered is None:
            raise UpstreamFailure(UpstreamFailureKind.BROKEN, f"no slots within {SLOTS_TIMEOUT_SECONDS:g} s")
        return _count_busy(*answered)


@asynccontextmanager
async def open_answer(
    address: Address, method: str, target: str, headers: tuple[tuple[bytes, bytes], ...], body: bytes
) -> AsyncIterator[SocketAnswer]:
    """One request to an engine. Raises UpstreamFailure; closes the connection at the block's exit."""
    connection = await _open_socket(socket.AF_INET if isinstance(address, Port) else socket.AF_UNIX)
    try:
        connection.setblocking(False)
        if isinstance(address, Port):
            await _connect_port(connection, address)
            headers = (*headers, (b"Authorization", b"Bearer " + address.key.encode())) if address.key else headers
        else:
            await _connect(connection, str(address))
        for piece in _request(method, target, headers, body):
            await _send(connection, piece)
        reader = ResponseReader(method)
        payload = b""
        while reader.head is None:
            payload = await _read(connection, address, reader)
        yield SocketAnswer(connection, address, reader, payload)
    finally:
        connection.close()


async def read_all(answer: SocketAnswer, max_bytes: int) -> bytes:
    """A small answer whole. Raises UpstreamFailure, also when it is longer than `max_bytes`."""
    parts: list[bytes] = []
    total = 0
    while part := await answer.receive():
        parts.append(part)
        total += len(part)
        if total > max_bytes:
            raise UpstreamFailure(UpstreamFailureKind.PROTOCOL, f"an answer is longer than {max_bytes} bytes")
    return b"".join(parts)


async def _open_socket(family: socket.AddressFamily) -> socket.socket:
    """A socket, as soon as there is a descriptor: that there is none is nobody's fault here, and passes."""
    while True:
        try:
            return socket.socket(family, socket.SOCK_STREAM)
        except OSError as error:
            if error.errno not in SHORTAGES:
                raise
            await trio.sleep(SHORTAGE_RETRY_SECONDS)


async def _connect(connection: socket.socket, path: str) -> None:
    """A Unix socket connects at once, or not at all: EAGAIN means that the engine's backlog is full."""
    while True:
        try:
            connection.connect(path)
        except BlockingIOError:
            await trio.sleep(BACKLOG_RETRY_SECONDS)
        except OSError as error:
            raise _refused(error) from error
        else:
            return


async def _connect_port(connection: socket.socket, port: Port) -> None:
    """A port is connected to little by little, and what is written in small pieces is not held back."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    number = connection.connect_ex((LOOPBACK, port.number))
    if number == errno.EINPROGRESS:
        await trio.lowlevel.wait_writable(connection)
        number = connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    if number:
        raise _refused(OSError(number, os.strerror(number)))


def _refused(error: OSError) -> UpstreamFailure:
    return UpstreamFailure(UpstreamFailureKind.CONNECT, f"the engine does not take connections ({error.strerror})")


def _request(method: str, target: str, headers: tuple[tuple[bytes, bytes], ...], body: bytes) -> tuple[bytes, ...]:
    """What is sent: in one piece, unless the body is large, which is not copied for that."""
    lines = [f"{method} {target} HTTP/1.1\r\nHost: engine\r\nConnection: close\r\n".encode()]
    lines.extend(b"%s: %s\r\n" % header for header in headers)
    if body or method not in ("GET", "HEAD"):
        lines.append(b"Content-Length: %d\r\n" % len(body))
    lines.append(b"\r\n")
    head = b"".join(lines)
    return (head + body,) if len(body) < READ_BYTES else (head, body)


async def _send(connection: socket.socket, data: bytes) -> None:
    """Send everything, unless the engine answers or hangs up before it has read it all.

    Both are found out by reading: an early refusal may lie in the connection that the engine has already closed.
    """
    rest = _send_some(connection, memoryview(data))
    if not rest:
        return
    async with trio.open_nursery() as nursery:

        async def watch_for_answer() -> None:
            await trio.lowlevel.wait_readable(connection)
            nursery.cancel_scope.cancel()

        nursery.start_soon(watch_for_answer)
        while rest:
            await trio.lowlevel.wait_writable(connection)
            rest = _send_some(connection, rest)
        nursery.cancel_scope.cancel()


def _send_some(connection: socket.socket, data: memoryview) -> memoryview:
    """What is left to send; nothing when the engine has hung up."""
    try:
        while data:
            data = data[connection.send(data) :]
    except BlockingIOError:
        return data
    except OSError:
        return memoryview(b"")
    return data


async def _heard(connection: socket.socket, address: Address) -> None:
    """Wait until there is something to read. An engine that is silent is knocked at: one that somebody else has told to
    end listens no more, and may wait for ever for answers that nothing works on. Raises UpstreamFailure."""
    while True:
        with trio.move_on_after(QUIET_SECONDS):
            await trio.lowlevel.wait_readable(connection)
            return
        if await _listens_no_more(address):
            raise UpstreamFailure(UpstreamFailureKind.BROKEN, "the engine listens no more, and is silent")


async def _listens_no_more(address: Address) -> bool:
    """Whether a connection is refused: neither taken, nor kept waiting, nor without an address to go to."""
    port = isinstance(address, Port)
    target = (LOOPBACK, address.number) if isinstance(address, Port) else str(address)
    try:
        with socket.socket(socket.AF_INET if port else socket.AF_UNIX, socket.SOCK_STREAM) as knock:
            knock.setblocking(False)
            number = knock.connect_ex(target)
            if number == errno.EINPROGRESS:
                with trio.move_on_after(KNOCK_SECONDS):
                    await trio.lowlevel.wait_writable(knock)
                number = knock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    except OSError:
        return False
    return number == errno.ECONNREFUSED


async def _read(connection: socket.socket, address: Address, reader: ResponseReader) -> bytes:
    """Wait for bytes and return the payload in them, which may be none. Raises UpstreamFailure."""
    if reader.broken is not None:
        raise _not_http(reader.broken)
    while True:
        try:
            data = connection.recv(READ_BYTES)
            break
        except BlockingIOError:
            await _heard(connection, address)
        except OSError as error:
            message = f"the engine broke the connection off ({error.strerror})"
            raise UpstreamFailure(UpstreamFailureKind.BROKEN, message) from error
    if not data:
        if reader.end():
            return b""
        where = "before it answered" if reader.head is None else "in mid-answer"
        raise UpstreamFailure(UpstreamFailureKind.BROKEN, f"the engine closed the connection {where}")
    try:
        return reader.feed(data)
    except NotHttp as error:
        raise _not_http(error) from error


def _not_http(error: NotHttp) -> UpstreamFailure:
    return UpstreamFailure(UpstreamFailureKind.PROTOCOL, f"the engine did not speak HTTP: {error}")


def _count_busy(status: int, body: bytes) -> int:
    try:
        slots = json.loads(body)
        if status == HTTPStatus.OK:
            return sum(1 for slot in slots if slot["is_processing"])
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise UpstreamFailure(UpstreamFailureKind.PROTOCOL, "the engine's list of slots cannot be read") from error
    raise UpstreamFailure(UpstreamFailureKind.PROTOCOL, f"the engine answered {status} when asked for its slots")
