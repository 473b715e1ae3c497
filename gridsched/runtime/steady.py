"""The time that the server goes by: the time in which it ran.

Owns trio's clock, and with it every deadline in the server: of jobs, tiers, back-offs, stalls, starts. A process that
was stopped, or whose machine was, comes back hours later by the system's clock, and would find that all of them have
passed at once: every model idle, every chat timed out, every engine stalled. By this clock it was away for a second.

Must never decide anything, and must never wait: what is seen of the machine's clocks is told, a line a finding.
"""

import math
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import trio

from gridsched.core.commands import Log, LogEvent
from gridsched.ports import Clock

LOOK_SECONDS = 1.0
"""The longest time between two looks at the clock, as long as the process runs: no sleep is longer."""

GAP_SECONDS = 10.0
"""How much longer a look may take than it should without being a gap. A guess: far above what a machine under load
keeps a process waiting, far below what anybody calls idle."""

JUMP_SECONDS = 1.0
"""By how much two clocks must part between two looks to be told. Time servers slew by a thousandth of that."""


class SteadyClock(trio.abc.Clock):
    """A clock for `trio.run`, in seconds, that never goes back. Two looks at it are never further apart than a look
    and a gap: what is longer is taken off, before whoever looks can see it."""

    def __init__(self, monotonic_seconds: Callable[[], float] = time.monotonic) -> None:
        self._monotonic_seconds = monotonic_seconds
        self._seen = monotonic_seconds()
        self._away_seconds = 0.0

    def start_clock(self) -> None:
        """The run begins: what came before it was no gap."""
        self._seen = self._monotonic_seconds()

    def current_time(self) -> float:
        """Seconds in which this process ran."""
        now = self._monotonic_seconds()
        too_long = now - self._seen - LOOK_SECONDS
        self._seen = now
        if too_long > GAP_SECONDS:
            self._away_seconds += too_long
        return now - self._away_seconds

    def deadline_to_sleep_time(self, deadline: float) -> float:
        """How long to sleep: until the deadline, or the next look."""
        return min(deadline - self.current_time(), LOOK_SECONDS)


KEPT_FINDINGS = 1000
"""A laptop that sleeps ten times a day for three months; moments before them are told less well."""


@dataclass(frozen=True, slots=True)
class _Look:
    """All clocks at one moment, in seconds: `steady` is trio's."""

    steady: float
    awake: float
    boot: float
    wall: float


_WHY = {
    "stopped": "this process did not run: it was stopped, or its machine was",
    "suspended": "this machine slept",
    "set": "the clock of this machine was set",
}


class ClockWatch:
    """Compares the machine's clocks with each other and with trio's, and tells what has happened to them."""

    def __init__(self, clock: Clock, tell: Callable[[Log], None]) -> None:
        self._clock = clock
        self._tell = tell
        self._found_so_far: deque[tuple[float, float]] = deque(maxlen=KEPT_FINDINGS)

    def wall_seconds_at(self, steady: float) -> float:
        """What the wall clock said at a moment of trio's clock, to a second: as the decision log has it."""
        since = sum(seconds for at, seconds in self._found_so_far if at > steady)
        return self._clock.wall_seconds() - (trio.current_time() - steady) - since

    async def run(self, came_back: Callable[[], None]) -> None:
        """Look once a second until cancelled. `came_back` is called after every time in which we did not run."""
        before = self._look()
        while True:
            await trio.sleep(LOOK_SECONDS)
            now = self._look()
            steady_seconds, awake_seconds = now.steady - before.steady, now.awake - before.awake
            boot_seconds, wall_seconds = now.boot - before.boot, now.wall - before.wall
            before = now
            stopped = self._found("stopped", max(0.0, awake_seconds - steady_seconds))
            suspended = self._found("suspended", boot_seconds - awake_seconds)
            self._found("set", wall_seconds - boot_seconds)
            if stopped or suspended:
                came_back()

    def _found(self, kind: str, seconds: float) -> bool:
        """Whether it is one; then it is told."""
        if math.fabs(seconds) <= JUMP_SECONDS:
            return False
        # Trio's clock counted a look for a stop; what came meanwhile may have been decided before anybody looked here.
        self._found_so_far.append((trio.current_time() - LOOK_SECONDS / 2, seconds))
        self._tell(Log(LogEvent.CLOCK, figures={"kind": kind, "seconds": round(seconds, 3), "why": _WHY[kind]}))
        return True

    def _look(self) -> _Look:
        clock = self._clock
        return _Look(trio.current_time(), clock.awake_seconds(), clock.boot_seconds(), clock.wall_seconds())
