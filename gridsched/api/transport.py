"""A client's socket as trio's streams see it, with an end to every write: what TLS is spoken over, or HTTP at once.

Owns the socket's options and its writes. Whoever reads nothing for a while is taken to have left; half a write can be
mended by nothing, so that only the client's leaving cuts one off.
"""

import errno
import fcntl
import socket
import struct
import sys
import termios
from ipaddress import ip_address
from typing import Final

import trio

LONGEST_USER_TIMEOUT_MILLISECONDS = 2**31 - 1
_AT_ONCE: Final = struct.pack("ii", 1, 0)
"""SO_LINGER: what the client has not read is dropped with the connection, which is reset."""


def _unread(sock: trio.socket.SocketType) -> int:
    """How many of the bytes that were written the client's side has not taken yet. Raises OSError."""
    if sock.fileno() < 0:
        raise OSError(errno.EBADF, "the connection is closed")
    return int.from_bytes(fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, bytes(4)), sys.byteorder)


class Transport(trio.abc.HalfCloseableStream):
    """One accepted connection. `reader` is the task that lives as long as it: only its writes are cancelled."""

    def __init__(self, stream: trio.SocketStream, write_stall_seconds: float) -> None:
        """Raises OSError for a client that has gone already."""
        self.socket = stream.socket
        self.reader = trio.lowlevel.current_task()
        self._stream = stream
        self._write_stall_seconds = write_stall_seconds
        milliseconds = min(round(write_stall_seconds * 1000), LONGEST_USER_TIMEOUT_MILLISECONDS)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, milliseconds)  # for a host that vanished

    async def first_byte(self) -> bytes:
        """The first that comes, left where it is; b"" at the end. Raises OSError."""
        return await self.socket.recv(1, socket.MSG_PEEK)

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Hand everything to the client, however slowly it reads. Raises BrokenResourceError when it has gone, and for
        one that has read nothing for `write_stall_seconds`."""
        rest = memoryview(data)
        shield = trio.lowlevel.current_task() is not self.reader
        try:
            while rest:
                unread = _unread(self.socket)
                deadline = trio.current_time() + self._write_stall_seconds
                with trio.CancelScope(shield=shield, deadline=deadline) as limit:
                    rest = rest[await self.socket.send(rest) :]
                if limit.cancelled_caught and _unread(self.socket) >= unread:
                    self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _AT_ONCE)
                    self.socket.close()
        except OSError as error:
            raise trio.BrokenResourceError(str(error)) from None

    async def wait_send_all_might_not_block(self) -> None:
        """As trio's streams have it."""
        await self._stream.wait_send_all_might_not_block()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """The next bytes; b"" at the end. Raises BrokenResourceError and ClosedResourceError."""
        return bytes(await self._stream.receive_some(max_bytes))

    async def send_eof(self) -> None:
        """Say that no more comes. Raises as trio's streams do."""
        await self._stream.send_eof()

    async def aclose(self) -> None:
        """Close it; who reads or writes is told."""
        await self._stream.aclose()


def of_one_machine(peer: str, own: str) -> bool:
    """Whether both ends of a connection, by their addresses, are this machine: what they say never leaves it. Nobody
    else's packets come from an address of our own."""
    return peer == own or ip_address(peer.partition("%")[0]).is_loopback or peer.startswith("::ffff:127.")
