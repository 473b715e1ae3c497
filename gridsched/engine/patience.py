"""Timers that are moved far more often than they ring: how long an engine may be silent, when a stream is told why.

Each token moves one, so moving it is an assignment, and nothing is told to trio: a deadline of its own, set twice for
each token of each stream, cost as much as the token's own way. One task a run sleeps until the earliest ring that it
knows of, and looks then at those timers alone that it knew to ring by now: thousands may wait for a slot, each with its
own. Must never ring early, nor later than a loop's turn.
"""

import heapq
import math
from collections.abc import Callable
from itertools import count

import trio

SPARE = 64
"""So many that ring no more are never worth a look through all."""


class Timer:
    """`ring` is called when `due`, in seconds of trio's clock, has come: it never waits and never raises, and may set
    `due` anew. Whoever sets it to an earlier moment says so to `Patience.hurry`.

    `known` is when it is looked at next, inf for never; `kept` whether it rings at all."""

    __slots__ = ("due", "kept", "known", "ring")

    def __init__(self, ring: Callable[[], object]) -> None:
        self.due = math.inf
        self.ring = ring
        self.known = math.inf
        self.kept = False


class Patience:
    """All timers of one run of trio.

    An entry of the `heap` counts only while its timer is to be looked at then; others are dropped when they come up, or
    when the heap is mostly them.
    """

    def __init__(self) -> None:
        self.heap: list[tuple[float, int, Timer]] = []
        self._numbers = count()
        self._kept = 0
        self._watching = False
        self._wakes_at = math.inf
        self._earlier = trio.Event()

    def add(self, timer: Timer) -> None:
        """Have it ring from now on."""
        timer.kept = True
        self._kept += 1
        self.hurry(timer)

    def drop(self, timer: Timer) -> None:
        """It does not ring any more, nor ever again, and keeps nothing of its owner while it lies in the heap."""
        if timer.kept:
            timer.kept, timer.known, timer.ring = False, math.inf, _nothing
            self._kept -= 1

    def hurry(self, timer: Timer) -> None:
        """A timer is due at a time that may be before the one that it was known to be due at."""
        due = timer.due
        if due >= timer.known or not timer.kept:
            return
        timer.known = due
        heapq.heappush(self.heap, (due, next(self._numbers), timer))
        if len(self.heap) > SPARE + 4 * self._kept:
            self.heap = [entry for entry in self.heap if _counts(entry)]
            heapq.heapify(self.heap)
        if due < self._wakes_at:
            self._wake_at(due)

    def _wake_at(self, due: float) -> None:
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
                for timer in self._come(now):
                    if timer.due <= now and timer.kept:
                        timer.due = math.inf
                        timer.ring()
                    self.hurry(timer)
                self._wakes_at = self.heap[0][0] if self.heap else math.inf
        finally:
            self._watching = False

    def _come(self, now: float) -> list[Timer]:
        """Take out those that are to be looked at by now; what is left begins with one that is to be later."""
        come, heap = list[Timer](), self.heap
        while heap and (heap[0][0] <= now or not _counts(heap[0])):
            entry = heapq.heappop(heap)
            if _counts(entry):
                entry[2].known = math.inf
                come.append(entry[2])
        return come


def _nothing() -> None:
    """What a timer does that was dropped."""


def _counts(entry: tuple[float, int, Timer]) -> bool:
    return entry[2].known == entry[0]


_of_run: trio.lowlevel.RunVar[Patience] = trio.lowlevel.RunVar("patience")


def patience() -> Patience:
    """That of this run."""
    try:
        return _of_run.get()
    except LookupError:
        found = Patience()
        _of_run.set(found)
        return found
