"""What persons ask of the scheduler: a number for each wish, and its one answer.

Owns the open wishes. Must never decide: the scheduler answers each with an `AnswerRequest`. A refusal is completed here
(`advice`), where the answer is waited for.
"""

from collections.abc import Awaitable, Callable
from dataclasses import replace

import trio

from gridsched.core.commands import AnswerRequest
from gridsched.core.events import Event, StandingTold, WishWithdrawn
from gridsched.core.ids import RequestId
from gridsched.core.standing import Standing
from gridsched.ports import Clock, Post, StandingStore
from gridsched.runtime.advice import Adviser


class Memory:
    """What persons asked for that outlives the server (R7, R8), in wall time, which goes on while there is none. One
    without a store keeps nothing."""

    def __init__(self, store: StandingStore | None = None, clock: Clock | None = None) -> None:
        self._store = store
        self._clock = clock

    def tell(self, post: Post) -> None:
        """What was asked for before this start still holds."""
        if self._store is not None:
            post(StandingTold(self._store.standing().by_clock(-self._ahead_seconds())))

    def keep(self, standing: Standing) -> Callable[[], Awaitable[object]]:
        """Take in what there is now. What comes back is to be awaited, and writes it."""
        if self._store is not None:
            self._store.take(standing.by_clock(self._ahead_seconds()))
        return self.written

    async def written(self) -> str:
        """Once all of it is on the disk: "", else why it is not."""
        return await self._store.write() if self._store is not None else "this server has no place to keep it"

    def _ahead_seconds(self) -> float:
        """By how much the wall clock is ahead of the actor's."""
        return self._clock.wall_seconds() - trio.current_time() if self._clock is not None else 0.0


class Wishes:
    """All open wishes, and the `memory` of those that outlive the server. Used from the trio thread only."""

    def __init__(self, post: Post, adviser: Adviser, memory: Memory | None = None) -> None:
        self._post = post
        self._adviser = adviser
        self.memory = memory or Memory()
        self._last = 0
        self._open: dict[RequestId, tuple[trio.Event, list[AnswerRequest]]] = {}

    async def ask(self, wish: Callable[[RequestId], Event], *, withdrawn: bool = False) -> AnswerRequest:
        """Post a wish and wait for what comes of it. Cancelled, the wish stands and its answer is dropped, unless it is
        to be `withdrawn` then."""
        self._last += 1
        request = RequestId(self._last)
        answered, answers = self._open[request] = (trio.Event(), [])
        try:
            self._post(wish(request))
            await answered.wait()
        except trio.Cancelled:
            if withdrawn and not answers:
                self._post(WishWithdrawn(request))
            raise
        finally:
            del self._open[request]
        (answer,) = answers
        if answer.rejection is None:
            return answer
        return replace(answer, rejection=await self._adviser.complete(None, answer.rejection))

    def deliver(self, answer: AnswerRequest) -> None:
        """Answer a wish; nobody may be waiting for it any more."""
        if answer.request in self._open:
            answered, answers = self._open[answer.request]
            answers.append(answer)
            answered.set()
