"""The application beside the data plane, which is made while the server already serves: Quart and what hangs on it take
a sixth of what is imported for a start, and no chat waits for them.

Owns when it is imported and made, and that whoever asks before that waits. Both are done in a thread: in the loop they
would hold every stream for as long as they take.
"""

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

import trio
from hypercorn.typing import ASGIReceiveCallable, ASGISendCallable, HTTPScope

from gridsched.threads import imported, in_thread

if TYPE_CHECKING:  # what is not to be imported yet
    from quart_trio import QuartTrio

MODULE = "gridsched.api.admin"


class Later:
    """An ASGI application. `run` must be running, or no request is ever answered."""

    def __init__(self, make: Callable[[], "QuartTrio"]) -> None:
        """`make` makes the application, in a thread; nobody else uses it, or what it is made of, to make another."""
        self._make = make
        self._made: QuartTrio | None = None
        self._is_there = trio.Event()

    async def run(self) -> None:
        """Import and make it."""
        is_first = MODULE not in sys.modules
        await imported(MODULE)
        # A second server of the process finds all of it warm, and is made in less time than a thread takes to begin.
        self._made = await in_thread(self._make) if is_first else self._make()
        self._is_there.set()

    async def __call__(self, scope: HTTPScope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        """Answer one request, as soon as it can be."""
        await self._is_there.wait()
        assert self._made is not None  # noqa: S101 - for the type checker
        await self._made(scope, receive, send)
