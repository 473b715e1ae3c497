"""How long an engine may be silent in a step (S9), in time in which its process runs.

Owns the clocks of all steps under way, by process, and stops them while their process stands still (S10). Must never
end anything but the block it was entered for, and never decide what a stall means.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager

import trio

from gridsched.core.ids import InstanceId


class StallClock:
    """One step's clock: its block is cancelled when it has run down."""

    def __init__(self, seconds: float, *, paused: bool) -> None:
        self.scope = trio.CancelScope()
        self._seconds = seconds
        self._left = seconds
        self._paused = paused
        self.restart()

    def restart(self) -> None:
        """The engine has just sent something, or is asked for something: it has the whole limit."""
        self._set(self._seconds)

    def hold(self) -> None:
        """Nothing is awaited from the engine."""
        self._set(math.inf)

    def pause(self) -> None:
        """The process stands still."""
        self._left = self.scope.deadline - trio.current_time()
        self._paused = True
        self._set(self._left)

    def resume(self) -> None:
        """It goes on, with what was left of the limit."""
        self._paused = False
        self._set(self._left)

    def _set(self, seconds: float) -> None:
        self._left = seconds
        self.scope.deadline = math.inf if self._paused else trio.current_time() + seconds


class StallClocks:
    """All clocks of one server."""

    def __init__(self) -> None:
        self._running: dict[InstanceId, set[StallClock]] = {}
        self._paused: set[InstanceId] = set()

    @contextmanager
    def limit(self, instance_id: InstanceId, seconds: float) -> Iterator[StallClock]:
        """Bound a block by a clock of a process; the block is left in silence when it has run down."""
        clock = StallClock(seconds, paused=instance_id in self._paused)
        clocks = self._running.setdefault(instance_id, set())
        clocks.add(clock)
        try:
            with clock.scope:
                yield clock
        finally:
            clocks.discard(clock)
            if not clocks:
                self._running.pop(instance_id, None)

    def pause(self, instance_id: InstanceId) -> None:
        """A process stands still from now on."""
        self._paused.add(instance_id)
        for clock in self._running.get(instance_id, ()):
            clock.pause()

    def resume(self, instance_id: InstanceId) -> None:
        """It goes on. Harmless for one that did not stand."""
        if instance_id in self._paused:
            self._paused.remove(instance_id)
            for clock in self._running.get(instance_id, ()):
                clock.resume()
