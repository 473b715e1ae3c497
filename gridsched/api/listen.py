"""The public listening socket: its options, and a clear word about who holds a port that is taken.

Owns the socket until the server takes it. Its options are those of every connection: nothing is held back to be sent
with more, and a client that says nothing is asked whether its machine is still there.
"""

import errno
import logging
import math
import resource
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import trio

from gridsched.threads import SHORTAGE_RETRY_SECONDS, SHORTAGES

log = logging.getLogger(__name__)

BACKLOG = 512
KEEPALIVE_IDLE_SECONDS, KEEPALIVE_PAUSE_SECONDS = 30, 10
"""How long a client is silent before its machine is asked, and between two such questions. Who vanishes without a word
is known by no other sign while nothing is sent to it. How long no answer is waited for is `transport`'s to say."""

MOST_DESCRIPTORS = 16 * 1024  # plenty for one machine's clients; a hundred MB of connections at the most
OWN_DESCRIPTORS = 256  # engines' pipes and pidfds, the store, log files; half, where that is less
FEW_CONNECTIONS = 64
SHORTAGE_SAID_SECONDS = 60.0
UNSENT_BYTES = 16 * 1024
"""How much of an answer the kernel takes that is not on its way yet: what is behind it is not read from the engine."""

ACCEPTED_AT_ONCE = 64
"""So many clients are taken before anybody else has a turn."""

_NOT_TAKEN: Final = frozenset(
    {errno.ECONNABORTED, errno.EPERM, errno.EPROTO, errno.ETIMEDOUT, errno.ENOPROTOOPT, errno.EOPNOTSUPP}
    | {errno.ENETDOWN, errno.ENETUNREACH, errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.ENONET}
)
"""What was wrong with one client's connection before it was taken (accept(2))."""

_LISTENING = "0A"  # TCP_LISTEN in /proc/net/tcp


class CannotListen(Exception):
    """The address cannot be listened on; the message is a sentence for a person."""


class PortTaken(CannotListen):
    """Another program listens there. `holder` names it as well as it can be seen from here."""

    def __init__(self, host: str, port: int, holder: str) -> None:
        super().__init__(f"port {port} on {host} is taken by {holder}")
        self.holder = holder


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens already, so that the port is ours; port 0 takes a free one. Raises CannotListen."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (socket.gaierror, UnicodeError) as error:
        raise CannotListen(f"{host!r} is no address of this machine ({error})") from None
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_IDLE_SECONDS)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEPALIVE_PAUSE_SECONDS)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise PortTaken(host, port, holder_of(port)) from None
        raise CannotListen(f"cannot listen on {host} port {port}: {error.strerror}") from None
    return listener


async def accept_all(listener: socket.socket, take: Callable[[socket.socket], None]) -> None:
    """Hand each client's connection, which does not block, to `take`, until cancelled; then the listener is closed.

    Where there is no descriptor for one, clients wait; that is said once a minute. Raises OSError where the listener
    itself is of no more use.
    """
    said_at = -math.inf
    listener.setblocking(False)
    with listener:
        while True:
            await trio.lowlevel.wait_readable(listener)
            try:
                for _ in range(ACCEPTED_AT_ONCE):
                    sock, _ = listener.accept()
                    sock.setblocking(False)
                    take(sock)
            except BlockingIOError:
                pass
            except OSError as error:
                if error.errno in SHORTAGES:
                    if trio.current_time() >= said_at + SHORTAGE_SAID_SECONDS:
                        said_at = trio.current_time()
                        log.error("clients wait, because none can be accepted: %s", error.strerror)  # noqa: TRY400 - it says all
                    await trio.sleep(SHORTAGE_RETRY_SECONDS)
                elif error.errno not in _NOT_TAKEN:
                    raise


def room_for_connections() -> int:
    """How many clients can be served at once: each may take two descriptors, its own and one to an engine.

    The descriptors that this process may open are first raised to all that the system allows; without room the loop
    would fail to accept, again and again, and engines could not be started.
    """
    soft, hard = (
        MOST_DESCRIPTORS if limit == resource.RLIM_INFINITY else limit
        for limit in resource.getrlimit(resource.RLIMIT_NOFILE)
    )
    wanted = min(hard, MOST_DESCRIPTORS)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    return max(1, (wanted - min(OWN_DESCRIPTORS, wanted // 2)) // 2)


def crowded(room: int) -> tuple[str, ...]:
    """What a person is to know of a server that has room for few clients."""
    if room >= FEW_CONNECTIONS:
        return ()
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    served = f"{room} clients are" if room > 1 else "one client is"
    return (f"This process may open {limit} files only (ulimit -Hn): {served} served at once, others are turned away.",)


def holder_of(port: int) -> str:
    """Who listens on a port, by pid and command where /proc lets us see it."""
    inodes = set(_listening_inodes(port))
    for process in Path("/proc").glob("[0-9]*"):
        if inodes & set(_socket_inodes(process)):
            command = _read(process / "cmdline").replace("\0", " ").strip() or _read(process / "comm").strip()
            return f"process {process.name} ({command[:200]})"
    return "a program that this user cannot see"


def _listening_inodes(port: int) -> Iterator[str]:
    for table in ("tcp", "tcp6"):
        for line in _read(Path("/proc/net") / table).splitlines()[1:]:
            fields = line.split()
            if fields[3] == _LISTENING and int(fields[1].rpartition(":")[2], 16) == port:
                yield fields[9]


def _socket_inodes(process: Path) -> Iterator[str]:
    try:
        for link in (process / "fd").iterdir():
            target = str(link.readlink())
            if target.startswith("socket:["):
                yield target[8:-1]
    except OSError:
        return  # another user's process, or one that has just ended


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
