"""What an engine's answer passes through on its way to the client: the Protocol, and the plain, unstreamed way.

Owns which headers go down, and the moment the head does: with the first byte of the body, so that a step whose engine
dies before it may be run again (P5). Must never change a byte of a body.
"""

from collections.abc import Sequence
from typing import Protocol

import trio

from gridsched.api.exchange import Exchange, send_problem
from gridsched.control.problems import Header, Problem, RequestError

LONGEST_KEPT_BYTES = 256 * 1024 * 1024
"""2,048 vectors of 8,192 numbers take less."""


class Reply(Protocol):
    """The client's side of one job."""

    @property
    def status(self) -> int:
        """What went down, or is to."""

    @property
    def begun_at(self) -> float | None:
        """When the first byte of an answer went out, None before."""

    def decided(self, headers: Sequence[Header]) -> None:
        """A step begins, or the job is refused; `headers` go with the head if it has not gone yet."""

    def begin(self, status: int, headers: Sequence[Header]) -> None:
        """The engine's head has come. Sends nothing."""

    async def body(self, data: bytes) -> None:
        """Bytes of the engine's body have come."""

    async def finish(self) -> bool:
        """The engine's body has ended. True: the answer is whole."""

    async def refuse(self, problem: Problem) -> bool:
        """There is no answer, or no rest of it. False: nothing can be said any more, break the connection."""


class PlainReply:
    """An answer that is passed on as it comes, status and headers with its first byte."""

    def __init__(self, exchange: Exchange, headers: Sequence[Header]) -> None:
        self.begun_at: float | None = None
        self.status = 0
        self._exchange = exchange
        self._ours = list(headers)
        self._theirs: Sequence[Header] = ()

    def decided(self, headers: Sequence[Header]) -> None:
        """A step begins, or the job is refused."""
        self._ours = list(headers)

    def begin(self, status: int, headers: Sequence[Header]) -> None:
        """Keep the engine's head until its first byte."""
        self.status, self._theirs = status, headers

    async def body(self, data: bytes) -> None:
        """Pass bytes on, after the head."""
        if self.begun_at is None:
            await self._start(data)
        else:
            await self._exchange.send_body(data)

    async def finish(self) -> bool:
        """An answer without a body still has a head."""
        if self.begun_at is None:
            await self._start()
        return True

    async def refuse(self, problem: Problem) -> bool:
        """A real status before the first byte; after it a broken connection is the only honest sign (I4)."""
        self.status = problem.status
        if self._exchange.started:
            return False
        await send_problem(self._exchange, problem, self._ours)
        return True

    async def _start(self, first: bytes = b"") -> None:
        self.begun_at = trio.current_time()
        await self._exchange.send_start(self.status, [*self._ours, *self._theirs], first)


class Kept:
    """Bytes of an answer that are kept in memory; an engine that does not come to an end must not fill it."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._length = 0

    def add(self, data: bytes) -> None:
        """Keep some more. Raises RequestError, 502, for more than LONGEST_KEPT_BYTES in all."""
        self._length += len(data)
        if self._length > LONGEST_KEPT_BYTES:
            self._parts.clear()
            message = f"the engine's answer is longer than {LONGEST_KEPT_BYTES} bytes, the most that is kept of one"
            raise RequestError(Problem("upstream_error", message))
        self._parts.append(data)

    @property
    def content(self) -> bytes:
        """All that is kept."""
        return b"".join(self._parts)


class CollectedReply:
    """Keeps an engine's answer in memory, for answers that are put together from several. Sends nothing."""

    def __init__(self) -> None:
        self.status = 0
        self._kept = Kept()

    def begin(self, status: int, headers: Sequence[Header]) -> None:
        """A new answer begins; what was kept of a broken one is dropped."""
        del headers
        self.status = status
        self._kept = Kept()

    async def body(self, data: bytes) -> None:
        """Keep bytes. Raises RequestError where they have no end."""
        self._kept.add(data)

    @property
    def content(self) -> bytes:
        """The body so far."""
        return self._kept.content
