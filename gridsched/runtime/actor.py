"""The one task that owns the scheduler (S7): takes an event, stamps the time, steps, hands the commands on.

Owns the inbox and the wake-up time. Must never await inside a step, and never carry a command out itself. The inbox
has no limit of its own: its size follows from the limits on jobs, processes and devices, so a full inbox would be a
bug and never back-pressure.
"""

from collections import deque
from collections.abc import Callable
from time import perf_counter

import trio

from gridsched.core.commands import ArmTimer, Command, Log
from gridsched.core.events import Event, TimerFired
from gridsched.core.scheduler import Scheduler
from gridsched.ports import Clock
from gridsched.runtime.decisions import DecisionLog
from gridsched.runtime.tape import Recorder


class Actor:
    """Runs one `Scheduler`. `log` gets its decisions, `carry_out` its other commands, in order; the timer it keeps
    itself. `timed` is told how long each step took, `recorder` what was heard and answered."""

    def __init__(
        self,
        scheduler: Scheduler,
        carry_out: Callable[[Command], None],
        log: DecisionLog,
        clock: Clock,
        *,
        timed: Callable[[float], None] = lambda seconds: None,  # noqa: ARG005 - nobody asked
        recorder: Recorder | None = None,
    ) -> None:
        self.scheduler = scheduler
        self._carry_out = carry_out
        self._log = log
        self._clock = clock
        self._timed = timed
        self._recorder = recorder
        self._inbox: deque[Event] = deque()
        self._wake = trio.Event()
        self._alarm: float | None = None
        self._pulses: list[trio.Event] = []

    def post(self, event: Event) -> None:
        """Put an event into the inbox. Synchronous, and never fails."""
        self._inbox.append(event)
        self._wake.set()

    async def pulse(self) -> None:
        """Return when an event that says nothing has been stepped, and what it asked for has been begun."""
        stepped = trio.Event()
        self._pulses.append(stepped)
        self.post(TimerFired())
        await stepped.wait()

    async def run(self) -> None:
        """Step every event as it comes, and the timer when its time has come. Ends only by cancellation, or with a
        bug's exception, which ends the server: a scheduler that has lost its invariants must not go on."""
        while True:
            with trio.move_on_at(self._alarm if self._alarm is not None else float("inf")):
                await self._wake.wait()
            self._wake = trio.Event()
            if self._alarm is not None and trio.current_time() >= self._alarm:
                self._alarm = None
                self._step(TimerFired())
            while self._inbox:
                self._step(self._inbox.popleft())
            while self._pulses:
                self._pulses.pop().set()

    def _step(self, event: Event) -> None:
        wall_seconds, started = self._clock.wall_seconds(), perf_counter()
        commands = self._decide(event)
        self._timed(perf_counter() - started)
        for command in commands:
            if isinstance(command, ArmTimer):
                self._alarm = command.at
            elif isinstance(command, Log):
                self._log.add(command, wall_seconds)
            else:
                self._carry_out(command)

    def _decide(self, event: Event) -> tuple[Command, ...]:
        """The step itself. The event that meets a bug is on the tape too: it is the one that everybody will want."""
        now, recorder = trio.current_time(), self._recorder
        if recorder is None:
            return self.scheduler.step(event, now)
        try:
            commands = self.scheduler.step(event, now)
        except BaseException:
            recorder.saw(event, now, None)
            raise
        recorder.saw(event, now, commands)
        return commands
