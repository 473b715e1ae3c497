"""HTTP to one process at its address: door 6. Owns the life of one request on a connection of its own (`wire`).

A new connection for every request (P3), because llama-server closes connections behind a stream without saying so and
a pooled one may be dead. Nothing is ever sent twice. Payload is handed on as it arrives and never read; headers
that speak of the connection, or of the engine's own idea of browsers, stay here.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from http import HTTPStatus
from types import TracebackType

import trio

from gridsched.core.ids import InstanceId
from gridsched.engine.address import Address, Port
from gridsched.engine.http1 import NotHttp, ResponseReader
from gridsched.engine.wire import READ_BYTES, Wire
from gridsched.ports import UpstreamFailure, UpstreamFailureKind

MAX_SLOTS_ANSWER_BYTES = 8 * 1024 * 1024
SLOTS_TIMEOUT_SECONDS = 5.0

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

    def __init__(self, wire: Wire, reader: ResponseReader, first: bytes) -> None:
        if reader.head is None:
            raise ValueError("an answer begins with its head")
        self.status = reader.head.status
        """The HTTP status."""
        named = {part.strip().lower() for value in reader.head.values(b"connection") for part in value.split(b",")}
        self.headers = tuple(_passed(reader.head.headers, _DROPPED_HEADERS | named))
        """Names in lower case, hop-by-hop ones removed."""
        self._wire = wire
        self._reader = reader
        self._first = first

    async def receive(self) -> bytes:
        """The next bytes of the body as they came, b"" at its end. Raises UpstreamFailure.

        A checkpoint, but for an end that is known already: a client that hangs up at the last byte has been answered
        whole, and must not be cancelled in the moment in which we would find that out.
        """
        reader, payload = self._reader, self._first
        if payload:
            self._first = b""
        elif reader.done:
            return b""
        while not payload and not reader.done:
            payload = await _read(self._wire, reader)
            if not reader.done and not payload:
                await _turn(self._wire)
        if payload:
            await _turn(self._wire)
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

    def request(
        self, instance_id: InstanceId, method: str, target: str, headers: tuple[tuple[bytes, bytes], ...], body: bytes
    ) -> "Asking":
        """Send one request; the block's exit closes the connection at once, also when it is cancelled.

        Raises UpstreamFailure. The caller's headers are sent as they are; only the framing is ours.
        """
        address = self._endpoint(instance_id)
        if address is None:
            raise UpstreamFailure(UpstreamFailureKind.CONNECT, f"instance {instance_id} is not running")
        return Asking(address, method, target, headers, body)

    async def busy_slots(self, instance_id: InstanceId) -> int:
        """How many slots the engine itself says are busy. Raises UpstreamFailure."""
        answered = None
        with trio.move_on_after(SLOTS_TIMEOUT_SECONDS):
            async with self.request(instance_id, "GET", "/slots", (), b"") as answer:
                answered = answer.status, await read_all(answer, MAX_SLOTS_ANSWER_BYTES)
        if answered is None:
            raise UpstreamFailure(UpstreamFailureKind.BROKEN, f"no slots within {SLOTS_TIMEOUT_SECONDS:g} s")
        return _count_busy(*answered)


class Asking:
    """One request to an engine, made where the block begins; the connection is closed at the block's exit. A class,
    because it costs a third of what a generator does."""

    def __init__(
        self, address: Address, method: str, target: str, headers: tuple[tuple[bytes, bytes], ...], body: bytes
    ) -> None:
        if isinstance(address, Port) and address.key:
            headers = (*headers, (b"Authorization", b"Bearer " + address.key.encode()))
        self._wire = Wire(address)
        self._method = method
        self._pieces = _request(method, target, headers, body)

    async def __aenter__(self) -> SocketAnswer:
        """Its answer, as soon as its head is there."""
        wire, pieces, self._pieces = self._wire, self._pieces, ()
        try:
            await wire.open()
            for piece in pieces:
                await wire.send(piece)
            reader = ResponseReader(self._method)
            payload = b""
            while reader.head is None:
                payload = await _read(wire, reader)
                if reader.head is None:
                    await _turn(wire)
            return SocketAnswer(wire, reader, payload)
        except BaseException:
            wire.close()
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Over, however."""
        self._wire.close()


def open_answer(
    address: Address, method: str, target: str, headers: tuple[tuple[bytes, bytes], ...], body: bytes
) -> Asking:
    """One request to an engine. Entering it raises UpstreamFailure; its exit closes the connection."""
    return Asking(address, method, target, headers, body)


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


def _request(method: str, target: str, headers: tuple[tuple[bytes, bytes], ...], body: bytes) -> tuple[bytes, ...]:
    """What is sent: in one piece, unless the body is large, which is not copied for that."""
    lines = [f"{method} {target} HTTP/1.1\r\nHost: engine\r\nConnection: close\r\n".encode()]
    lines.extend(b"%s: %s\r\n" % header for header in headers)
    if body or method not in ("GET", "HEAD"):
        lines.append(b"Content-Length: %d\r\n" % len(body))
    lines.append(b"\r\n")
    head = b"".join(lines)
    return (head + body,) if len(body) < READ_BYTES else (head, body)


async def _turn(wire: Wire) -> None:
    """Others have their turn too, where nobody had to wait for what was read last: it lay there already."""
    if not wire.waited:
        await trio.lowlevel.checkpoint()
    wire.waited = False


async def _read(wire: Wire, reader: ResponseReader) -> bytes:
    """Wait for bytes and return the payload in them, which may be none. Raises UpstreamFailure."""
    if reader.broken is not None:
        raise _not_http(reader.broken)
    data = await wire.read()
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
