"""Pumping an engine's answer to a client: door 7. Takes bytes, gives an `Outcome`.

Changes nothing of what passes; an answer that says nothing but that a device fails does not (D13). A stall, a broken
engine and an end are outcomes; whatever `send` raises (a client that has left) is the caller's and goes through
untouched, as cancellation does.
"""

from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager

from gridsched.core.job import Outcome, OutcomeKind
from gridsched.engine.faultwatch import FaultWatch
from gridsched.engine.stall import StallClock
from gridsched.ports import EngineAnswer, UpstreamFailure

Send = Callable[[bytes], Awaitable[None]]


async def relay(answer: EngineAnswer, send: Send, limit: AbstractContextManager[StallClock]) -> Outcome:
    """Pass the body on until it ends, or no byte comes within the `limit` (S9; a slow client's time does not count).

    The outcome's `answered` says whether a byte of the body was given to `send`. A device's fault is an answer to its
    end, of which some may have been sent.
    """
    answered = False
    watch = FaultWatch(answer)
    with limit as clock:
        while True:
            clock.restart()
            try:
                data = await answer.receive()
            except UpstreamFailure:
                return Outcome(OutcomeKind.ENGINE_DIED, answer.status, answered)
            clock.hold()
            fault = not data and watch.fault
            if passing := watch.passing(data) if data else watch.end():
                answered = True
                await send(passing)
            if fault:
                return Outcome(OutcomeKind.DEVICE_FAULT, answer.status, answered)
            if not data:
                return Outcome(OutcomeKind.DONE, answer.status)
    return Outcome(OutcomeKind.STALLED, answer.status, answered)
