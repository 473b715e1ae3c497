"""An engine's 500 for what is wrong with the request is told as what it is: a 400, in the engine's words (H1).

llama-server answers so to what it cannot parse and to numbers out of their range, and the usual SDKs repeat every 500.
Owns the words by which such an answer is known. Must never touch another answer, nor hold one back that is longer than
an error.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from gridsched.api.reply import Reply
from gridsched.control.problems import Header, Problem

INTERNAL_ERROR = 500
LONGEST_ERROR_BYTES = 256 * 1024  # it says back what it could not parse
_SAID: Final = re.compile(
    r"(?:Failed to parse (?:messages|tools)|\[json\.exception\.|Invalid uri|uri must be base64|Invalid base64"
    r"|Unknown reasoning format|vector::_M_)"  # the last of a number that is out of its range
    r"|(?:image|audio) input is not supported|.* is too large to process"
)


class _Error(msgspec.Struct):
    message: str


class _Body(msgspec.Struct):
    error: _Error


_bodies = msgspec.json.Decoder(_Body)


def fault_of_client(content: bytes) -> Problem | None:
    """What a 500's body says of the request; None where the fault is another's."""
    try:
        message = _bodies.decode(content).error.message
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    return Problem("invalid_request", message) if _SAID.match(message) else None


@dataclass(slots=True)
class Judged:
    """The client's side of one job, implements `reply.Reply`: a 500 is read to its end before it goes down."""

    reply: Reply
    _held: bytearray | None = None

    @property
    def begun_at(self) -> float | None:
        """When the answer began to go down."""
        return self.reply.begun_at

    @property
    def status(self) -> int:
        """Of what goes down."""
        return self.reply.status

    def decided(self, headers: Sequence[Header]) -> None:
        """A step begins, or the job is refused."""
        self.reply.decided(headers)

    def begin(self, status: int, headers: Sequence[Header]) -> None:
        """The engine's head has come."""
        self._held = bytearray() if status == INTERNAL_ERROR else None
        self.reply.begin(status, headers)

    async def body(self, data: bytes) -> None:
        """Pass bytes on, or keep those of an error."""
        if self._held is None:
            await self.reply.body(data)
            return
        self._held += data
        if len(self._held) > LONGEST_ERROR_BYTES:
            await self._let_go()

    async def finish(self) -> bool:
        """The engine's body has ended."""
        problem = fault_of_client(bytes(self._held)) if self._held else None
        if problem is not None:
            return await self.reply.refuse(problem)
        await self._let_go()
        return await self.reply.finish()

    async def refuse(self, problem: Problem) -> bool:
        """There is no answer, or no rest of it."""
        return await self.reply.refuse(problem)

    async def _let_go(self) -> None:
        held, self._held = self._held, None
        if held:
            await self.reply.body(bytes(held))
