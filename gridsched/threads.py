"""Work that would block the loop, in a worker thread; waiting while the system has none to give.

Owns what is done at the limit of processes (a container's, a user's, a service's): that there is no thread now is
nobody's fault here, and passes. Every worker thread of the server is asked for here.
"""

import errno
import gc
import importlib
import os
import sys
import threading
from collections.abc import Callable
from typing import TypeVar

import trio

T = TypeVar("T")

NO_THREAD = "can't start new thread"
"""The interpreter's words; it has no exception of its own for this."""

SHORTAGES = frozenset((errno.EAGAIN, errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM))
"""What a system call says of descriptors, memory or processes that there are none of just now."""

SHORTAGE_RETRY_SECONDS = 0.05

_importing = trio.Lock()


async def in_thread(
    work: Callable[[], T], *, limiter: trio.CapacityLimiter | None = None, abandon_on_cancel: bool = False
) -> T:
    """As `trio.to_thread.run_sync`. How long there may be no thread is for the caller to limit."""
    while True:
        try:
            return await trio.to_thread.run_sync(work, limiter=limiter, abandon_on_cancel=abandon_on_cancel)
        except RuntimeError as error:
            if str(error) != NO_THREAD:
                raise
        await trio.sleep(SHORTAGE_RETRY_SECONDS)


async def imported(*names: str) -> None:
    """Have these modules imported, which was put off because a start does not need them. In the loop an import would
    hold every stream for as long as it takes."""
    async with _importing:  # of a module that is being imported the table has the half that is there
        if missing := [name for name in names if name not in sys.modules]:
            await in_thread(lambda: [importlib.import_module(name) for name in missing])
            gc.freeze()  # it stays: a full collection would look through it all again, while every stream stands still


def begin(thread: threading.Thread) -> None:
    """Start a thread that is to stay. Raises OSError where there is none."""
    try:
        thread.start()
    except RuntimeError:
        raise OSError(errno.EAGAIN, f"{os.strerror(errno.EAGAIN)}, for one more thread") from None
