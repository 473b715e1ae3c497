"""A request's body as it comes: read whole, or dropped.

Owns how long a body may be, how long one may stop coming, and that nobody is answered into a connection that is then
reset under his upload: whoever is refused gets his answer at once, and what he still sends is read and dropped, so that
he comes to read it. Must never keep what is dropped.
"""

import trio
from hypercorn.typing import ASGIReceiveCallable, HTTPScope

from gridsched.api.problems import Problem

DROPPED_BYTES = 1024 * 1024 * 1024
"""How much of a body that nobody wants is read before its connection is cut."""


class Incoming:
    """The body of one request. `stall_seconds` bounds the time in which no byte of it comes."""

    def __init__(self, scope: HTTPScope, receive: ASGIReceiveCallable, stall_seconds: float) -> None:
        self._receive = receive
        self._stall_seconds = stall_seconds
        self._declared = _declared(scope)
        self._may_come = True

    async def read(self, longest: int) -> bytes | Problem | None:
        """All of it; as soon as it is known a refusal of one that is too long or stops coming; None when the client
        leaves before its end."""
        if self._declared > longest:
            return _too_long(longest)
        parts: list[bytes] = []
        length = 0
        while self._may_come:
            part = await self._part()
            if part is None or isinstance(part, Problem):
                return part
            length += len(part)
            if length > longest:
                return _too_long(longest)
            parts.append(part)
        return b"".join(parts)

    async def drop(self) -> None:
        """Read what is still to come, within bounds."""
        dropped = 0
        while self._may_come and dropped <= DROPPED_BYTES:
            part = await self._part()
            dropped += len(part) if isinstance(part, bytes) else 0

    async def _part(self) -> bytes | Problem | None:
        message = None
        with trio.move_on_after(self._stall_seconds):
            message = await self._receive()
        if message is not None and message["type"] == "http.request":
            self._may_come = message.get("more_body", False)
            return message.get("body", b"")
        self._may_come = False
        return _stalled(self._stall_seconds) if message is None else None


def _declared(scope: HTTPScope) -> int:
    """What the client says that it will send; the server has seen to it that it is a number."""
    return max((int(value) for name, value in scope["headers"] if name == b"content-length"), default=0)


def _too_long(longest: int) -> Problem:
    return Problem("request_too_large", f"the body is longer than {longest} bytes, the longest that is taken")


def _stalled(seconds: float) -> Problem:
    """408; what is left of the body may still come, so the connection is of no more use."""
    return Problem("request_timeout", f"no byte of the body has come for {seconds:g} s")
