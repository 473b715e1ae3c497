"""Timers that are moved far more often than they ring: how long an engine may be silent.

Each token moves one, so moving it is an assignment, and nothing is told to trio: a deadline of its own, set twice for
each token of each stream, cost as much as the token's own way. One task a run sleeps until the earliest ring that it
knows of, and looks again then. Must never ring early, nor later than a loop's turn.
"""

import math
from collections.abc import Callable

import trio


class Timer:
    """`ring` is called when `due`, in seconds of trio's clock, has come: it never waits and never raises, and may set
    `due` anew. Whoever sets it to an earlier moment says so to `Patience.hurry`."""

    __slots__ = ("due", "ring")

    def __init__(self, ring: Callable[[], object]) -> None:
        self.due = math.inf
        self.ring = ring


class Patience:
    """All timers of one run of trio."""

    def __init__(self) -> None:
        self._timers: set[Timer] = set()
        self._watching = False
        self._wakes_at = math.inf
        self._earlier = trio.Event()

    def add(self, timer: Timer) -> None:
        """Have it ring from now on."""
        self._timers.add(timer)
        if timer.due < self._wakes_at:
            self.hurry(timer.due)

    def drop(self, timer: Timer) -> None:
        """It does not ring any more."""
        self._timers.discard(timer)

    def hurry(self, due: float) -> None:
        """A timer is due at that time, which may be before all others."""
        if due >= self._wakes_at:
            return
        self._wakes_at = due
        if self._watching:
            self._earlier.set()
        else:
            self._watching = True
            trio.lowlevel.spawn_system_task(self._watch, name="the engine's silence")

    async def _watch(self) -> None:
        """Ring what is due, until there is nothing that will be."""
        try:
            while self._wakes_at < math.inf:
                with trio.move_on_at(self._wakes_at):
                    await self._earlier.wait()
                self._earlier = trio.Event()
                now = trio.current_time()
                for timer in [each for each in self._timers if each.due <= now]:
                    timer.due = math.inf
                    timer.ring()
                self._wakes_at = min((each.due for each in self._timers), default=math.inf)
        finally:
            self._watching = False


_of_run: trio.lowlevel.RunVar[Patience] = trio.lowlevel.RunVar("patience")


def patience() -> Patience:
    """That of this run."""
    try:
        return _of_run.get()
    except LookupError:
        found = Patience()
        _of_run.set(found)
        return found
