"""How fast the core is here: events a second in a plain loop, with nobody looking on. `python -m sim.bench`.

Owns the recording of a run and its replay. A figure for notes and comparisons on one machine, never a test.
"""

import gc
import platform
import sys
from time import perf_counter

from gridsched.core.commands import Command
from gridsched.core.events import Event
from gridsched.core.scheduler import Scheduler
from sim.faults import KINDS
from sim.workload import draw
from sim.world import World

SEEDS = range(1, 21)
EVENTS = 3000
ROUNDS = 5


class _Recorder:
    """Keeps what was heard and when."""

    def __init__(self) -> None:
        self.heard: list[tuple[Event, float]] = []

    def saw(self, event: Event, _: tuple[Command, ...], now: float) -> None:
        """One step has been made."""
        self.heard.append((event, now))


def main() -> int:
    """Record some runs, replay them several times, print the median speed."""
    tapes = []
    for seed in SEEDS:
        scenario, recorder = draw(seed, KINDS), _Recorder()
        World(scenario, Scheduler(scenario.policy), [recorder]).run(EVENTS)
        tapes.append((scenario.policy, recorder.heard))
    events = sum(len(heard) for _, heard in tapes)
    gc.disable()
    speeds = []
    for _ in range(ROUNDS):
        started = perf_counter()
        for policy, heard in tapes:
            step = Scheduler(policy).step
            for event, now in heard:
                step(event, now)
        speeds.append(events / (perf_counter() - started))
    speeds.sort()
    sys.stdout.write(
        f"core: {speeds[ROUNDS // 2]:,.0f} events a second (median of {ROUNDS} replays of {events:,} events, "
        f"{speeds[0]:,.0f} to {speeds[-1]:,.0f}; Python {platform.python_version()}, {platform.machine()})\n"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
