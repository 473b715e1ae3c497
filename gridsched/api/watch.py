"""Who has left, and who has been idle for too long: one task each for all plain connections.

Owns the kernel's word about a hang-up. It is asked for once for a connection, and comes whatever lies unread in front
of it, so that no connection needs a task of its own that reads ahead. Must never read from a connection.
"""

import select
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Final, Protocol, Self

import trio

_GONE: Final = select.EPOLLRDHUP | select.EPOLLET
"""Told once, when it happens; an error and the end of both directions are told unasked."""


class HangUps:
    """Says of connections that their clients have left: closed, reset, or have said that they say no more."""

    def __init__(self) -> None:
        self._poll = select.epoll()
        self._left: dict[int, Callable[[], None]] = {}

    def watch(self, sock: socket.socket, left: Callable[[], None]) -> None:
        """Call `left` when its client has gone, and at the end of `run`; `forget` it before it is closed."""
        self._poll.register(sock.fileno(), _GONE)
        self._left[sock.fileno()] = left

    def forget(self, number: int) -> None:
        """Say no more of the one with this descriptor."""
        if self._left.pop(number, None) is not None:
            with suppress(OSError):  # one that was closed has been forgotten by the kernel
                self._poll.unregister(number)

    async def run(self) -> None:
        """Until cancelled; then nobody is served any longer, and all are told so."""
        try:
            while True:
                await trio.lowlevel.wait_readable(self._poll.fileno())
                for number, _ in self._poll.poll(0):
                    if (left := self._left.get(number)) is not None:
                        left()
        finally:
            for left in tuple(self._left.values()):
                left()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._poll.close()


class Idle(Protocol):
    """A connection that waits for its next request."""

    def end(self) -> None:
        """It has waited long enough."""


class IdleTimes:
    """Ends connections that have waited for `longest_seconds`, and once `stop` is called each that waits, at once."""

    def __init__(self, longest_seconds: float) -> None:
        self._longest_seconds = longest_seconds
        self._until: dict[Idle, float] = {}  # in the order of their ends, because each waits equally long
        self._some = trio.Event()
        self._over = False

    def begin(self, idle: Idle) -> None:
        """It waits from now on."""
        if self._over:
            idle.end()
            return
        self._until[idle] = trio.current_time() + self._longest_seconds
        if not self._some.is_set():
            self._some.set()

    def over(self, idle: Idle) -> None:
        """It waits no longer."""
        self._until.pop(idle, None)

    def stop(self) -> None:
        """Nobody may wait any more."""
        self._over = True
        for idle in tuple(self._until):
            idle.end()
        self._until.clear()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self._some.wait()
            while self._until:
                idle, until = next(iter(self._until.items()))
                if trio.current_time() < until:
                    await trio.sleep_until(until)
                else:
                    del self._until[idle]
                    idle.end()
            self._some = trio.Event()
