"""Pumping an engine's answer to a client: door 7. Takes bytes, gives an `Outcome`.

Never parses what passes. A stall, a broken engine and an end are outcomes; whatever `send` raises (a client that has
left) is the caller's and goes through untouched, as cancellation does.
"""

from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager

from gridsched.core.job import Outcome, OutcomeKind
from gridsched.engine.stall import StallClock
from gridsched.ports import EngineAnswer, UpstreamFailure

Send = Callable[[bytes], Awaitable[None]]


async def relay(answer: EngineAnswer, send: Send, limit: AbstractContextManager[StallClock]) -> Outcome:
    """Pass the body on until it ends, or no byte comes within the `limit` (S9; a slow client's time does not count).

    The outcome's `answered` says whether a byte of the body was given to `send`.
    """
    answered = False
    with limit as clock:
        while True:
            clock.restart()
            try:
                data = await answer.receive()
            except UpstreamFailure:
                return Outcome(OutcomeKind.ENGINE_DIED, answer.status, answered)
            clock.hold()
            if not data:
                return Outcome(OutcomeKind.DONE, answer.status)
            answered = True
            await send(data)
    return Outcome(OutcomeKind.STALLED, answer.status, answered)
