"""How long an engine may be silent in a step (S9), in time in which its process runs.

Owns the clocks of all steps under way, by process, and stops them while their process stands still (S10). Must never
end anything but the block it was entered for, and never decide what a stall means.
"""

from types import TracebackType
from typing import Self

import trio

from gridsched.core.ids import InstanceId
from gridsched.engine.patience import Timer, patience


class StallClock:
    """One step's clock: its block is cancelled when it has run down, and left in silence."""

    def __init__(self, clocks: "StallClocks", instance_id: InstanceId, seconds: float) -> None:
        self.scope = trio.CancelScope()
        self._clocks = clocks
        self._instance_id = instance_id
        self._seconds = seconds
        self._awaited = True
        self._paused = False
        self._left = seconds
        self._timer = Timer(self._ring)

    def __enter__(self) -> Self:
        """It runs from now on, unless the process stands still."""
        self._patience = patience()
        self._paused = self._clocks.entered(self._instance_id, self)
        self.scope.__enter__()
        self.restart()
        self._patience.add(self._timer)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        """It runs no more."""
        self._patience.drop(self._timer)
        self._clocks.left(self._instance_id, self)
        return self.scope.__exit__(kind, error, traceback)

    def restart(self) -> None:
        """The engine has just sent something, or is asked for something: it has the whole limit."""
        self._awaited = True
        self._left = self._seconds
        self._timer.due = trio.current_time() + self._seconds

    def hold(self) -> None:
        """Nothing is awaited from the engine."""
        self._awaited = False

    def pause(self) -> None:
        """The process stands still."""
        self._left = self._timer.due - trio.current_time()
        self._paused = True

    def resume(self) -> None:
        """It goes on, with what was left of the limit."""
        self._paused = False
        self._timer.due = trio.current_time() + self._left
        self._patience.hurry(self._timer)

    def _ring(self) -> None:
        """The limit is over, if it was running."""
        if self._awaited and not self._paused:
            self.scope.cancel()
        else:
            self._timer.due = trio.current_time() + self._seconds


class StallClocks:
    """All clocks of one server."""

    def __init__(self) -> None:
        self._running: dict[InstanceId, set[StallClock]] = {}
        self._paused: set[InstanceId] = set()

    def limit(self, instance_id: InstanceId, seconds: float) -> StallClock:
        """Bound a block by a clock of a process; the block is left in silence when it has run down."""
        return StallClock(self, instance_id, seconds)

    def entered(self, instance_id: InstanceId, clock: StallClock) -> bool:
        """A clock runs from now on; whether its process stands still."""
        self._running.setdefault(instance_id, set()).add(clock)
        return instance_id in self._paused

    def left(self, instance_id: InstanceId, clock: StallClock) -> None:
        """It runs no more."""
        clocks = self._running.get(instance_id)
        if clocks is not None:
            clocks.discard(clock)
            if not clocks:
                del self._running[instance_id]

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
