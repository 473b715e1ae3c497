"""One connection to one engine, from connect to close: bytes out, bytes in, no HTTP.

Owns the waiting: for a full backlog, for a slow reader, and for an engine that is silent, which is knocked at after a
while. Must never send anything twice, and never look at what passes.
"""

import errno
import os
import socket

import trio

from gridsched.engine.address import LOOPBACK, Address, Port
from gridsched.engine.patience import Timer, patience
from gridsched.ports import UpstreamFailure, UpstreamFailureKind
from gridsched.threads import SHORTAGE_RETRY_SECONDS, SHORTAGES

READ_BYTES = 64 * 1024
LARGEST_READ_BYTES = 256 * 1024
"""What is read at once of an answer that fills the other: more would be copied for longer than others should wait."""

BACKLOG_RETRY_SECONDS = 0.005
QUIET_SECONDS = 5.0
"""How long an engine is silent before it is knocked at, and between two knocks. Silence alone means nothing: an answer
that is not streamed is silent until it is whole."""

KNOCK_SECONDS = 1.0


class Wire:
    """`waited` is set by every read that had to wait, and so had everybody else have a turn."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self.waited = False
        self._socket: socket.socket | None = None
        self._read_bytes = READ_BYTES
        self._timer: Timer | None = None
        self._listens = False
        self._quiet = False

    async def open(self) -> None:
        """Connect. Raises UpstreamFailure."""
        address = self.address
        self._socket = opened = await _open_socket(socket.AF_INET if isinstance(address, Port) else socket.AF_UNIX)
        opened.setblocking(False)
        if isinstance(address, Port):
            await _connect_port(opened, address)
        else:
            await _connect(opened, str(address))

    def close(self) -> None:
        """At once, also in mid-send."""
        if self._timer is not None:
            patience().drop(self._timer)
        if self._socket is not None:
            self._socket.close()

    async def send(self, data: bytes) -> None:
        """Send everything, unless the engine answers or hangs up before it has read it all.

        Both are found out by reading: an early refusal may lie in the connection that the engine has already closed.
        """
        assert self._socket is not None  # noqa: S101 - open before; for the type checker
        connection = self._socket
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

    async def read(self) -> bytes:
        """The next bytes, b"" at the end. A checkpoint only where it has to wait. Raises UpstreamFailure."""
        assert self._socket is not None  # noqa: S101 - open before; for the type checker
        while True:
            try:
                data = self._socket.recv(self._read_bytes)
                break
            except BlockingIOError:
                await self._hear(self._socket)
            except OSError as error:
                message = f"the engine broke the connection off ({error.strerror})"
                raise UpstreamFailure(UpstreamFailureKind.BROKEN, message) from error
        if len(data) == READ_BYTES:
            self._read_bytes = LARGEST_READ_BYTES
        return data

    async def _hear(self, connection: socket.socket) -> None:
        """Wait until there is something to read. An engine that is silent is knocked at: one that somebody else has
        told to end listens no more, and may wait for ever for answers that nothing works on. Raises UpstreamFailure."""
        self.waited = True
        while True:
            self._listen()
            try:
                await trio.lowlevel.wait_readable(connection)
            except trio.ClosedResourceError:
                if not self._quiet:
                    raise
            else:
                return
            finally:
                self._listens = False
            if await _listens_no_more(self.address):
                raise UpstreamFailure(UpstreamFailureKind.BROKEN, "the engine listens no more, and is silent")

    def _listen(self) -> None:
        """From now on silence counts."""
        self._listens, self._quiet = True, False
        timer = self._timer
        if timer is None:
            timer = self._timer = Timer(self._ring)
            timer.due = trio.current_time() + QUIET_SECONDS
            patience().add(timer)
        else:
            timer.due = trio.current_time() + QUIET_SECONDS

    def _ring(self) -> None:
        """It has been silent for so long, if it was listened to."""
        assert self._timer is not None  # noqa: S101 - it has rung; for the type checker
        assert self._socket is not None  # noqa: S101 - the same
        self._timer.due = trio.current_time() + QUIET_SECONDS
        if self._listens:
            self._quiet = True
            trio.lowlevel.notify_closing(self._socket)  # it is not closed, but whoever waits for it is woken


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
