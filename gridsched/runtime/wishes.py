"""What persons ask of the scheduler: a number for each wish, and its one answer.

Owns the open wishes. Must never decide: the scheduler answers each with an `AnswerRequest`. A refusal is completed here
(`advice`), where the answer is waited for.
"""

from collections.abc import Callable
from dataclasses import replace

import trio

from gridsched.core.commands import AnswerRequest
from gridsched.core.events import Event
from gridsched.core.ids import RequestId
from gridsched.ports import Post
from gridsched.runtime.advice import Adviser


class Wishes:
    """All open wishes. Used from the trio thread only."""

    def __init__(self, post: Post, adviser: Adviser) -> None:
        self._post = post
        self._adviser = adviser
        self._last = 0
        self._open: dict[RequestId, tuple[trio.Event, list[AnswerRequest]]] = {}

    async def ask(self, wish: Callable[[RequestId], Event]) -> AnswerRequest:
        """Post a wish and wait for what comes of it. Cancelled, the wish stands and its answer is dropped."""
        self._last += 1
        request = RequestId(self._last)
        answered, answers = self._open[request] = (trio.Event(), [])
        try:
            self._post(wish(request))
            await answered.wait()
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
