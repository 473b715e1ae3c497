"""How a long verb that waits for the scheduler tells how far it has come: once a second, by what can be seen.

Owns the rhythm. Must never decide anything by what it sees.
"""

from collections.abc import Awaitable, Callable
from typing import TypeVar

import trio

from gridsched.control.verb import Tell

TELL_SECONDS = 1.0

T = TypeVar("T")

Look = Callable[[], tuple[float, float | None, str]]
"""How far it has come: done, of how much (None: nobody knows), and one sentence."""


async def while_telling(tell: Tell, look: Look, wish: Awaitable[T]) -> T:
    """The wish's answer; until it is there, whoever listens is told."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_tell, tell, look)
        answer = await wish
        nursery.cancel_scope.cancel()
    return answer


async def _tell(tell: Tell, look: Look) -> None:
    while True:
        tell(*look())
        await trio.sleep(TELL_SECONDS)
