"""A client's socket: its options, and an end to every write; and as trio's streams see it, for what is spoken over TLS
or read by hypercorn.

Owns the socket's options and its writes. Whoever reads nothing for a while is taken to have left; half a write can be
mended by nothing, so that only the client's leaving cuts one off.
"""

import errno
import fcntl
import socket
import struct
import sys
import termios
from contextlib import suppress
from ipaddress import ip_address
from typing import Final

import trio

LONGEST_USER_TIMEOUT_MILLISECONDS = 2**31 - 1
_AT_ONCE: Final = struct.pack("ii", 1, 0)
"""SO_LINGER: what the client has not read is dropped with the connection, which is reset."""


def bound_silence(sock: socket.socket, write_stall_seconds: float) -> None:
    """Have the kernel end the connection of a host that vanished with bytes on their way to it. Raises OSError."""
    milliseconds = min(round(write_stall_seconds * 1000), LONGEST_USER_TIMEOUT_MILLISECONDS)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, milliseconds)


async def send_patiently(
    sock: socket.socket, data: bytes | bytearray | memoryview, write_stall_seconds: float, *, shield: bool
) -> None:
    """Hand everything to the client, however slowly it reads. With a `shield` nothing cuts that off but the end of the
    connection. Raises BrokenResourceError when it has gone or was closed, and for one that has read nothing for
    `write_stall_seconds`, whose connection is reset."""
    rest = memoryview(data)
    try:
        while True:
            with suppress(BlockingIOError):
                rest = rest[sock.send(rest) :]
            if not rest:
                return
            unread = _unread(sock)
            deadline = trio.current_time() + write_stall_seconds
            with trio.CancelScope(shield=shield, deadline=deadline) as limit:
                await trio.lowlevel.wait_writable(sock)
            if limit.cancelled_caught and _unread(sock) >= unread:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _AT_ONCE)
                trio.lowlevel.notify_closing(sock)
                sock.close()
                raise trio.BrokenResourceError(f"nothing was read for {write_stall_seconds:g} s")
    except (OSError, trio.ClosedResourceError) as error:
        raise trio.BrokenResourceError(str(error)) from None


def _unread(sock: socket.socket) -> int:
    """How many of the bytes that were written the client's side has not taken yet. Raises OSError."""
    if sock.fileno() < 0:
        raise OSError(errno.EBADF, "the connection is closed")
    return int.from_bytes(fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, bytes(4)), sys.byteorder)


class Transport(trio.abc.HalfCloseableStream):
    """One accepted connection. `reader` is the task that lives as long as it: only its writes are cancelled. `read` are
    bytes that somebody has read of it already."""

    def __init__(self, sock: socket.socket, write_stall_seconds: float, read: bytes = b"") -> None:
        """Raises OSError for a client that has gone already."""
        self.reader = trio.lowlevel.current_task()
        self._sock = sock
        self._stream = trio.SocketStream(trio.socket.from_stdlib_socket(sock))
        self._read = read
        self._write_stall_seconds = write_stall_seconds
        bound_silence(sock, write_stall_seconds)

    async def first_byte(self) -> bytes:
        """The first that comes, left where it is; b"" at the end. Raises OSError."""
        return await self._stream.socket.recv(1, socket.MSG_PEEK)

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Hand everything to the client, as `send_patiently`."""
        shield = trio.lowlevel.current_task() is not self.reader
        if not shield:
            await trio.lowlevel.checkpoint_if_cancelled()
        await send_patiently(self._sock, data, self._write_stall_seconds, shield=shield)
        await trio.lowlevel.cancel_shielded_checkpoint()

    async def wait_send_all_might_not_block(self) -> None:
        """As trio's streams have it."""
        await self._stream.wait_send_all_might_not_block()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """The next bytes; b"" at the end. Raises BrokenResourceError and ClosedResourceError."""
        if self._read:
            await trio.lowlevel.checkpoint()
            read, self._read = self._read, b""
            return read
        return bytes(await self._stream.receive_some(max_bytes))

    async def send_eof(self) -> None:
        """Say that no more comes. Raises as trio's streams do."""
        await self._stream.send_eof()

    async def aclose(self) -> None:
        """Close it; who reads or writes is told."""
        await self._stream.aclose()

    def close(self) -> None:
        """The same, at once."""
        self._stream.socket.close()


def of_one_machine(peer: str, own: str) -> bool:
    """Whether both ends of a connection, by their addresses, are this machine: what they say never leaves it. Nobody
    else's packets come from an address of our own."""
    return peer == own or ip_address(peer.partition("%")[0]).is_loopback or peer.startswith("::ffff:127.")
