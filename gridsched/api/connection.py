"""One client's connection as hypercorn's HTTP/1.1 serves it, on a transport of our own: whatever is not plain enough
for `fast`, and all that is encrypted.

Owns the socket until its end: reading, writing, idle time, and noticing that a client has gone. It speaks HTTP/1.1
only. hypercorn's own transport is not used because with it
- a client that closes between two requests holds its descriptor until the idle time is over;
- a client that sends one request behind another is not seen to leave before the first is answered, since nothing is
  read meanwhile: its job would run to the end for nobody;
- what is not HTTP is refused without a word.

A request that ends in mid-write does not cut that write off; what ends it is the client (`transport`). Whatever ends
the reading closes the socket at once, and with it a write that is stuck.
"""

import logging
import re
import select
import socket
from contextlib import suppress
from typing import Any, Final

import h11
import trio
from hypercorn.config import Config
from hypercorn.events import Closed, Event, RawData, Updated
from hypercorn.protocol.h11 import H11Protocol
from hypercorn.trio.task_group import TaskGroup
from hypercorn.trio.worker_context import TrioSingleTask, WorkerContext
from hypercorn.typing import AppWrapper, ConnectionState
from hypercorn.utils import parse_socket_addr

from gridsched.api.patterns import make_quick
from gridsched.api.tls import Certificate, agreed
from gridsched.api.transport import Transport, of_one_machine
from gridsched.control.problems import Problem

log = logging.getLogger(__name__)

READ_BYTES = 64 * 1024
HANG_UP_POLL_SECONDS = 0.25
"""How often a client whose further request has to wait is looked at; nothing else tells that it has left."""

_GONE: Final = select.POLLRDHUP | select.POLLHUP | select.POLLERR
_ABSOLUTE: Final = re.compile(rb"https?://([^/?#]*)(.*)", re.IGNORECASE)
_MALFORMED = "the request is not valid HTTP"
_SAID: Final = {431: "the request's headers are too long", 501: "that transfer encoding is not understood"}

make_quick()


class _HungUp(Exception):
    """The client has left, or was left, while a further request of its waited to be read."""


class _Turn:
    """Set while the next request may be read. Waiting for it also finds out whether the client is still there."""

    def __init__(self, sock: socket.socket) -> None:
        self._event = trio.Event()
        self._socket = sock
        self._poll = select.poll()
        self._poll.register(sock.fileno(), select.POLLRDHUP)

    async def clear(self) -> None:
        """The next request has to wait."""
        self._event = trio.Event()

    async def set(self) -> None:
        """It may be read."""
        self._event.set()

    async def wait(self) -> None:
        """Wait until it may. Raises _HungUp."""
        while True:
            with trio.move_on_after(HANG_UP_POLL_SECONDS):
                await self._event.wait()
                return
            if self._socket.fileno() < 0:  # closed by us, and its number may be another's by now
                raise _HungUp
            if any(event & _GONE for _, event in self._poll.poll(0)):
                raise _HungUp

    def is_set(self) -> bool:
        """Whether it may be read now."""
        return self._event.is_set()


def turn_away(sock: socket.socket) -> None:
    """Tell a client for whom there is no room, without reading what it asks."""
    problem = Problem("queue_full", "too many connections are open", retry_after_seconds=1.0)
    body = problem.body()
    lines = [b"HTTP/1.1 %d Too Many Requests" % problem.status, b"connection: close", b"content-length: %d" % len(body)]
    lines += [b"%s: %s" % header for header in problem.head()]
    with suppress(OSError):
        sock.send(b"\r\n".join(lines) + b"\r\n\r\n" + body)  # a new connection has room for as little as that
    sock.close()


def _target(target: bytes) -> tuple[bytes, bytes | None]:
    """A request's target, and the host in it where it has one (RFC 9112, section 3.2.2): that one counts."""
    found = _ABSOLUTE.fullmatch(target)
    if found is None:
        return target, None
    path: bytes = found[2]
    return (path if path.startswith(b"/") else b"/" + path), found[1]


class _Client(h11.Connection):
    """h11's side of a client. What comes behind a request that was to be its last is nothing: an answer is not taken
    back for it, and it is not kept."""

    def receive_data(self, data: bytes) -> None:
        """Take bytes; none are its end."""
        if not data or self.their_state is not h11.MUST_CLOSE:
            super().receive_data(data)

    def next_event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        """What has come."""
        return h11.NEED_DATA if self.their_state is h11.MUST_CLOSE else super().next_event()


class _Http1(H11Protocol):
    """hypercorn's HTTP/1.1, with no way from it into another protocol, and with a word for what it refuses."""

    def __init__(self, app: AppWrapper, config: Config, *rest: Any) -> None:
        super().__init__(app, config, *rest)
        self.connection = _Client(h11.SERVER, max_incomplete_event_size=config.h11_max_incomplete_size)

    async def _check_protocol(self, event: h11.Request) -> None:
        """No HTTP/2: nothing here was made for it."""

    async def _create_stream(self, request: h11.Request) -> None:
        """Begin to answer. An upgrade is an offer, and is left alone: the request is answered as if it had not been
        made. One whose body has two framings is refused: who sent it on may have read the other. So is one whose
        target is no path: nobody behind this is made for that."""
        names = {name for name, _ in request.headers}
        target, host = _target(request.target)
        if {b"content-length", b"transfer-encoding"} <= names or not target.startswith((b"/", b"*")):
            await self._send_error_response(400)
            await self.send(Closed())
            return
        kept = [header for header in request.headers if header[0] != b"upgrade"]
        if host is not None:
            kept = [header for header in kept if header[0] != b"host"] + [(b"host", host)]
        if target != request.target or len(kept) < len(request.headers):
            version = request.http_version
            request = h11.Request(method=request.method, target=target, headers=kept, http_version=version)
        await super()._create_stream(request)

    async def _send_error_response(self, status_code: int) -> None:
        message = _SAID.get(status_code, _MALFORMED)
        problem = Problem("invalid_request", message, passed_status=status_code, headers=((b"connection", b"close"),))
        body = problem.body()
        headers = [*problem.head(), (b"content-length", b"%d" % len(body))]
        await self._send_h11_event(h11.Response(status_code=status_code, headers=headers))
        await self._send_h11_event(h11.Data(data=body))
        await self._send_h11_event(h11.EndOfMessage())


class Connection:
    """Serves `app` on one accepted socket. `run` never raises for what a client does."""

    def __init__(
        self,
        app: AppWrapper,
        config: Config,
        context: WorkerContext,
        sock: socket.socket,
        write_stall_seconds: float,
        certificate: Certificate | None = None,
        read: bytes = b"",
    ) -> None:
        """With a `certificate` TLS is spoken, by who is on this machine plain HTTP too. `read` is what has been read of
        it already."""
        self._app = app
        self._config = config
        self._context = context
        self._socket = sock
        self._read_before = read
        self._write_stall_seconds = write_stall_seconds
        self._certificate = certificate
        self._sending = trio.Lock()
        self._idle = TrioSingleTask()
        self._reading = True

    async def run(self) -> None:
        """To its end, which is the socket's."""
        try:
            self._transport = Transport(self._socket, self._write_stall_seconds, self._read_before)
        except OSError:
            self._socket.close()
            return  # gone already
        self._stream: trio.abc.Stream = self._transport
        try:
            await self._serve()
        except Exception:
            log.exception("a connection failed")
        finally:
            await self._close()

    async def _serve(self) -> None:
        sock = self._socket
        try:
            client = parse_socket_addr(sock.family, sock.getpeername())
            server = parse_socket_addr(sock.family, sock.getsockname())
        except OSError:
            return  # gone already
        here = client is not None and server is not None and of_one_machine(client[0], server[0])
        if self._certificate is not None and not await self._agree(self._transport, self._certificate, here=here):
            return
        async with TaskGroup() as self._tasks:
            self._protocol = _Http1(
                self._app,
                self._config,
                self._context,
                self._tasks,
                ConnectionState({}),
                isinstance(self._stream, trio.SSLStream),
                client,
                server,
                self._obey,
            )
            self._protocol.can_read = _Turn(sock)
            await self._idle.restart(self._tasks, self._end_when_idle)
            await self._read()
            await self._idle.stop()

    async def _agree(self, transport: Transport, certificate: Certificate, *, here: bool) -> bool:
        """Whether it is known what is spoken, before the time for a silent client is over, or the server ends."""
        agreed_on = None
        try:
            async with trio.open_nursery() as nursery:
                nursery.cancel_scope.deadline = trio.current_time() + self._config.keep_alive_timeout
                nursery.start_soon(self._leave_when_terminated, nursery.cancel_scope)
                agreed_on = await agreed(transport, certificate, here=here)
                nursery.cancel_scope.cancel()
        except* (OSError, trio.BrokenResourceError, trio.ClosedResourceError):
            pass  # gone, or speaks something else
        self._stream = agreed_on or transport
        return agreed_on is not None

    async def _leave_when_terminated(self, scope: trio.CancelScope) -> None:
        await self._context.terminated.wait()
        scope.cancel()

    async def _read(self) -> None:
        """Hand on what comes until the client has nothing more to say."""
        data = b" "
        try:
            while data:
                data = bytes(await self._stream.receive_some(READ_BYTES))
                await self._protocol.handle(RawData(data))
        except (trio.BrokenResourceError, trio.ClosedResourceError, _HungUp):
            pass
        finally:
            self._reading = False
            self._transport.close()
        await self._protocol.handle(Closed())

    async def _obey(self, event: Event) -> None:
        """What the protocol wants done with the connection."""
        match event:
            case RawData(data):
                await self._send(data)
            case Closed():
                await self._close()
                await self._protocol.handle(event)
            case Updated(idle=True) if self._reading:
                await self._idle.restart(self._tasks, self._end_when_idle)
            case Updated():
                await self._idle.stop()

    async def _send(self, data: bytes) -> None:
        async with self._sending:
            try:
                await self._stream.send_all(data)
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                await self._protocol.handle(Closed())

    async def _end_when_idle(self) -> None:
        """After the idle time, or at once when the server ends."""
        with trio.move_on_after(self._config.keep_alive_timeout):
            await self._context.terminated.wait()
        await self._close()

    async def _close(self) -> None:
        """Say that no more comes, then close; reading ends with it."""
        try:
            if isinstance(self._stream, trio.abc.HalfCloseableStream):  # TLS says it itself
                await self._stream.send_eof()
        except (trio.BrokenResourceError, trio.BusyResourceError, trio.ClosedResourceError):
            pass  # gone already, or in mid-write
        finally:
            await self._stream.aclose()
