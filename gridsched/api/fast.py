"""One client's plain requests: read, answered and written with no framework, no server and no task beside its own.

Owns a connection from accept to its end, or to its first request that is not plain (`head`): then its socket goes on,
with the bytes that have been read, to `connection`, which serves the rest. Owns the form of an answer on the wire, the
same as hypercorn would give it. Every rule about a request is asked for where hypercorn's door asks too (`entrance`,
`plane`). Must never decide anything about a request that is not plain, nor read beyond the body of one.

A write that finds room costs one system call, and is never a checkpoint; whoever pumps an answer has its own. A client
that leaves ends the whole task, wherever it is.
"""

import logging
import socket
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from email.utils import formatdate
from functools import lru_cache
from typing import Final

import trio
from hypercorn.utils import parse_socket_addr

from gridsched.api.body import Incoming
from gridsched.api.entrance import Entrance
from gridsched.api.exchange import refuse_unread, request_id_of
from gridsched.api.head import Head, Told, read_head
from gridsched.api.plane import DataPlane
from gridsched.api.seat import House
from gridsched.api.transport import bound_silence, send_patiently
from gridsched.api.watch import HangUps, IdleTimes
from gridsched.control.authority import NOBODY, Caller
from gridsched.control.problems import Header, Problem

log = logging.getLogger(__name__)

POST: Final = "POST"
READ_BYTES = 64 * 1024
BODY_READ_BYTES = 256 * 1024
DROPPED_READS = 16
"""At the end so much of what was sent ahead is read for nothing: the kernel would take back the last answer for it."""

WITHOUT_BODY: Final = frozenset({204, 304})
_LAST_CHUNK: Final = b"0\r\n\r\n"


@dataclass(frozen=True, slots=True)
class Hall:
    """What all plain connections of a server share."""

    house: House
    entrance: Entrance
    data_plane: DataPlane
    hang_ups: HangUps
    idle: IdleTimes


class FastConnection:
    """One accepted socket, which does not block."""

    __slots__ = ("_client", "_hall", "_held", "_is_open", "_is_stuck", "_number", "_scope", "_sock", "_turns")

    def __init__(self, hall: Hall, sock: socket.socket) -> None:
        self._hall = hall
        self._sock = sock
        self._number = sock.fileno()
        self._client: tuple[str, int] | None = None
        self._held = b""  # what has been read and belongs to no request yet
        self._scope = trio.CancelScope()
        self._is_open = True
        self._is_stuck = False  # a write waits for room
        self._turns: trio.Lock | None = None  # of writes, once one had to wait

    async def run(self) -> bytes | None:
        """Serve plain requests. What has been read of one that is not plain, None where the connection is over and
        closed. Raises nothing for what a client does."""
        rest = None
        try:
            self._client = parse_socket_addr(self._sock.family, self._sock.getpeername())
            self._hall.hang_ups.watch(self._sock, self._left)
            bound_silence(self._sock, self._hall.house.settings.write_stall_seconds)
            with self._scope:
                rest = await self._serve()
        except OSError:
            pass  # gone already
        except Exception:
            log.exception("a connection failed")
        finally:
            if rest is None:
                self.end()
            else:
                self._hall.hang_ups.forget(self._number)
        return rest

    async def _serve(self) -> bytes | None:
        while (head := await self._next_head()) is not None:
            figures = self._hall.house.settings
            if not isinstance(head, Head) or head.length_bytes > figures.max_body_bytes:
                return self._held
            self._held = self._held[head.end :]
            body = FastBody(self, head.length_bytes, figures.upload_stall_seconds)
            if not await self._answer(head, body) or body.unread:
                break
            if self._held:  # of a request that came behind this one: nothing else would give others their turn
                await trio.lowlevel.checkpoint()
        return None

    async def _next_head(self) -> Head | Told | None:
        """The next request's, or that it is not plain; None where there is none. Half a head is no sign of life."""
        self._hall.idle.begin(self)
        try:
            while self._is_open:
                if self._held and (head := read_head(self._held)) is not Told.MORE:
                    return head
                await trio.lowlevel.wait_readable(self._sock)
                came = self._receive(READ_BYTES)
                if came == b"":
                    break
                self._held += came or b""
        except trio.ClosedResourceError:
            pass  # it has been idle for too long, or the server ends
        finally:
            self._hall.idle.over(self)
        return None

    async def _answer(self, head: Head, body: "FastBody") -> bool:
        """Answer one request; whether another may follow it."""
        entered = self._hall.entrance.look(POST, head.path, head.headers, self._client)
        found = entered.found
        exchange = FastExchange(self, head, body, found if isinstance(found, Caller) else NOBODY, entered.for_browsers)
        if isinstance(found, Problem):
            await refuse_unread(exchange, found)
        else:
            await self._hall.data_plane.serve(exchange)
        return exchange.may_go_on

    # --- bytes ------------------------------------------------------------------------------------------------------

    def take(self, most: int) -> bytes:
        """Bytes that have been read already."""
        taken, self._held = self._held[:most], self._held[most:]
        return taken

    async def receive(self, most: int) -> bytes:
        """The next bytes from the client, b"" where it has left. Others have their turn before each, so that a fast
        upload holds nobody up."""
        came = None
        while came is None:
            try:
                await trio.lowlevel.wait_readable(self._sock)
            except trio.ClosedResourceError:
                return b""
            came = self._receive(most)
        return came

    def _receive(self, most: int) -> bytes | None:
        """What is there; None where nothing is yet, b"" at the end."""
        try:
            return self._sock.recv(most)
        except BlockingIOError:
            return None
        except OSError:
            return b""

    async def send(self, data: bytes) -> None:
        """Hand bytes to the client. A client that has left, or reads nothing for too long, ends the task."""
        sent = 0
        if not self._is_stuck:
            try:
                sent = self._sock.send(data)
            except BlockingIOError:
                pass
            except OSError:
                self._left()
            if sent == len(data):
                return
        await self._send_slowly(memoryview(data)[sent:])

    async def _send_slowly(self, rest: memoryview) -> None:
        """Whatever is cancelled meanwhile, but the connection itself, half a piece can be mended by nothing."""
        if self._is_open:
            self._turns = self._turns or trio.Lock()
            with trio.CancelScope(shield=True):  # its turn too: a part of the piece may have gone out
                async with self._turns:
                    await self._send_in_turn(rest)
        if self._scope.cancel_called:
            await trio.lowlevel.checkpoint()

    async def _send_in_turn(self, rest: memoryview) -> None:
        self._is_stuck = True
        try:
            await send_patiently(self._sock, rest, self._hall.house.settings.write_stall_seconds, shield=True)
        except trio.BrokenResourceError:
            self._left()
        finally:
            self._is_stuck = self._turns is not None and self._turns.statistics().tasks_waiting > 0

    # --- its end ----------------------------------------------------------------------------------------------------

    def _left(self) -> None:
        """Its client has left: nothing is done for it any longer, wherever that has come to."""
        self._scope.cancel()
        if self._is_stuck:
            self.end()  # a write that waits hears of nothing else

    def end(self) -> None:
        """Say that no more comes, and close."""
        if self._is_open:
            self._is_open = False
            self._hall.hang_ups.forget(self._number)
            with suppress(OSError):
                self._sock.shutdown(socket.SHUT_WR)
                for _ in range(DROPPED_READS):
                    if not self._sock.recv(READ_BYTES):
                        break
            trio.lowlevel.notify_closing(self._sock)
            self._sock.close()


class FastBody(Incoming):
    """The body of a plain request, whose length is known. `unread` are the bytes of it that are still to come."""

    def __init__(self, connection: FastConnection, length_bytes: int, stall_seconds: float) -> None:
        super().__init__(length_bytes, stall_seconds)
        self.unread = length_bytes
        self._connection = connection

    async def piece(self) -> bytes | None:
        """As `Incoming`; what has been read already is waited for by nobody."""
        if held := self._connection.take(self.unread):
            return self._came(held)
        return await super().piece()

    async def _next(self) -> bytes | None:
        return self._came(await self._connection.receive(min(self.unread, BODY_READ_BYTES)))

    def _came(self, data: bytes) -> bytes | None:
        self.unread -= len(data)
        self.more = self.unread > 0 and bool(data)
        return data or None


class FastExchange:
    """Implements `exchange.Asking` on a plain connection. `may_go_on`: the answer is whole, and another request may
    follow."""

    method = POST
    query = b""

    def __init__(
        self,
        connection: FastConnection,
        head: Head,
        incoming: FastBody,
        caller: Caller,
        for_browsers: tuple[Header, ...],
    ) -> None:
        self.path = head.path
        self.headers = head.headers
        self.incoming = incoming
        self.body = b""
        self.request_id = request_id_of(head.headers)
        self.caller = caller
        self.started = False
        self.may_go_on = False
        self._connection = connection
        self._for_browsers = for_browsers
        self._left: int | None = None  # of the length that was promised; None: it comes in chunks
        self._is_bodiless = False
        self._last_of_all = False

    async def send_start(self, status: int, headers: Sequence[Header], first: bytes = b"") -> None:
        """Send the head. Raises ValueError for one that would be another than was meant."""
        self.started = True
        self._is_bodiless = status in WITHOUT_BODY
        head = self._head(status, [*headers, (b"x-request-id", self.request_id.encode()), *self._for_browsers])
        if len(first) < READ_BYTES:
            await self._connection.send(head + self._framed(first))
        else:  # is not copied for that
            await self._connection.send(head)
            await self.send_body(first)

    async def send_body(self, data: bytes) -> None:
        """Send body bytes. Raises ValueError for more than were promised."""
        if framed := self._framed(data):
            await self._connection.send(framed)

    async def while_there(self, answer: Callable[[], Awaitable[bool]]) -> bool:
        """What `answer` says; the connection's whole task is cancelled where its client leaves."""
        return await answer()

    async def finish(self) -> None:
        """The end of the answer. Raises ValueError where less has come than was promised."""
        if self._left is None:
            await trio.lowlevel.checkpoint()  # whoever looks behind its answer finds the job ended
            await self._connection.send(_LAST_CHUNK)
        elif self._left:
            raise ValueError(f"{self._left} bytes of an answer are missing")
        self.may_go_on = not self._last_of_all

    def _head(self, status: int, headers: list[Header]) -> bytes:
        headers.append((b"date", _date(int(time.time()))))
        length = next((value for name, value in headers if name == b"content-length"), None)
        self._last_of_all = any(name == b"connection" for name, _ in headers)
        if self._is_bodiless:
            self._left = 0
        elif length is not None:
            self._left = int(length)
        else:
            headers.append((b"Transfer-Encoding", b"chunked"))
        lines = [b"HTTP/1.1 %d " % status, *[b"%b: %b" % header for header in headers], b"", b""]
        head = b"\r\n".join(lines)
        if not head.count(b"\n") == head.count(b"\r") == len(lines) - 1:
            raise ValueError("a header has a line end in it")
        return head

    def _framed(self, data: bytes) -> bytes:
        if self._is_bodiless or not data:
            return b""
        if self._left is None:
            return b"%x\r\n%b\r\n" % (len(data), data)
        if len(data) > self._left:
            raise ValueError(f"an answer is {len(data) - self._left} bytes longer than it was to be")
        self._left -= len(data)
        return data


@lru_cache(maxsize=1)
def _date(second: int) -> bytes:
    return formatdate(second, usegmt=True).encode()
