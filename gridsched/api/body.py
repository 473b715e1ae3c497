"""A request's body as it comes: read whole, or dropped; and where work on a large one is done.

Owns how long a body may be, how long one may stop coming, and that nobody is answered into a connection that is then
reset under his upload: whoever is refused gets his answer at once, and what he still sends is read and dropped, so that
he comes to read it. Must never keep what is dropped.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import trio

from gridsched.api.settings import LARGE_BODY_BYTES, MIB
from gridsched.control.problems import Problem, RequestError
from gridsched.threads import in_thread

Done = TypeVar("Done")

VERY_LARGE_BODY_BYTES = 4 * MIB
ONE_LARGE, ONE_VERY_LARGE = trio.CapacityLimiter(1), trio.CapacityLimiter(1)

DROPPED_BYTES = 1024 * 1024 * 1024
"""How much of a body that nobody wants is read before its connection is cut."""


LONGEST_BESIDE_BYTES = 1024 * 1024
"""Of what is not for the data plane: a configuration is the longest."""

BODIES_AT_ONCE = 32
"""So many of the longest that are taken may be in memory; one byte more is told to come back."""
ROOM_RETRY_SECONDS = 5.0


class Room:
    """The memory that there is for large bodies, in bytes: `left` of it is free. How much there is may change."""

    def __init__(self, most_bytes: Callable[[], int]) -> None:
        self._most_bytes = most_bytes
        self._taken = 0

    @property
    def left(self) -> int:
        """What nobody has."""
        return self._most_bytes() - self._taken

    @contextmanager
    def share(self) -> Iterator[Callable[[int], None]]:
        """Take bytes of it little by little, which are free again behind the block, or once they are taken back (a
        negative number). Raises RequestError where there are not as many."""
        taken = 0

        def take(size: int) -> None:
            nonlocal taken
            if size > self.left:
                said = "the bodies of the requests that are here take all the memory that there is for them"
                raise RequestError(Problem("queue_full", said, retry_after_seconds=ROOM_RETRY_SECONDS))
            self._taken += size
            taken += size

        try:
            yield take
        finally:
            self._taken -= taken


class Incoming(ABC):
    """The body of one request, by whichever door it comes. `more`: it has not ended yet. `declared` are the bytes that
    its client says it will send, 0 where it does not. `stall_seconds` bounds the time in which no byte comes."""

    def __init__(self, declared: int, stall_seconds: float) -> None:
        self.more = True
        self._stall_seconds = stall_seconds
        self._declared = declared

    @abstractmethod
    async def _next(self) -> bytes | None:
        """The door's next bytes, and `more` set to whether others follow; None where the client has left."""

    async def read(self, longest: int, take: Callable[[int], None] = lambda size: None) -> bytes | None:  # noqa: ARG005
        """All of it; None when the client leaves before its end. `take` hears of the bytes of a large one.

        Raises RequestError as soon as it is known that the body is too long, has stopped coming, or has no room.
        """
        if self._declared > longest:
            raise _too_long(longest)
        taken = 0
        body = bytearray()  # pieces that were kept would cost many times what is in them, and leave the heap in holes
        try:
            while self.more:
                part = await self.piece()
                if part is None:
                    return None
                body += part
                if len(body) > longest:
                    raise _too_long(longest)
                if len(body) >= LARGE_BODY_BYTES:  # a chat is never told that films have taken all the room
                    take(len(body) - taken)
                    taken = len(body)
        except RequestError:
            body.clear()  # its traceback would keep it while the rest is dropped
            take(-taken)
            raise
        return bytes(body)

    async def piece(self) -> bytes | None:
        """The next bytes; None where the client has left. Raises RequestError where none come."""
        with trio.move_on_after(self._stall_seconds):
            return await self._next()
        self.more = False  # what is left may still come, so the connection is of no more use
        raise RequestError(Problem("request_timeout", f"no byte of the body has come for {self._stall_seconds:g} s"))

    async def drop(self) -> bool:
        """Read what nobody wants, within bounds; whether the client is still there."""
        left = DROPPED_BYTES
        try:
            while self.more and left > 0:
                piece = await self.piece()
                if piece is None:
                    return False
                left -= len(piece)
        except RequestError:
            return True
        return True


async def beside(size: int, work: Callable[[], Done]) -> Done:
    """What is done with so many bytes of a body: if they are many, beside the loop, and one after the other.

    Each call into C keeps the interpreter to itself, so several threads of them hardly ever let the loop have its turn.
    """
    if size < LARGE_BODY_BYTES:
        return work()
    return await in_thread(work, limiter=ONE_LARGE if size < VERY_LARGE_BODY_BYTES else ONE_VERY_LARGE)


def _too_long(longest: int) -> RequestError:
    message = f"the body is longer than {longest} bytes, the longest that is taken (server.max_body)"
    return RequestError(Problem("request_too_large", message))
