"""How fast the core and the header reader are here, with nobody looking on. `python -m sim.bench`.

Owns two workloads for the core: the mixed load that a busy card lives with, and runs full of faults, which plan all the
time. Runs are recorded first and then replayed in a plain loop. `header_bench` measures the header reader. Figures
for notes, to be compared on one machine; never a test.
"""

import gc
import platform
import sys
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from time import perf_counter

from gridsched.core.commands import Command
from gridsched.core.events import Event
from gridsched.core.ids import DeviceName, ModelName
from gridsched.core.job import JobClass, JobKind
from gridsched.core.model import DeviceFootprint, DeviceSpec, LaunchOption, ModelSpec
from gridsched.core.policy import Policy
from gridsched.core.scheduler import Scheduler
from sim.faults import KINDS
from sim.header_bench import compare
from sim.workload import GIB, Client, Scenario, draw
from sim.world import World

ROUNDS = 5
CARD = DeviceName("gpu0")
Tape = tuple[Policy, list[tuple[Event, float]]]


class _Recorder:
    """Keeps what was heard and when."""

    def __init__(self) -> None:
        self.heard: list[tuple[Event, float]] = []

    def saw(self, event: Event, _: tuple[Command, ...], now: float) -> None:
        """One step has been made."""
        self.heard.append((event, now))


def mixed_load() -> Scenario:
    """Four models that live side by side on one card; six people, eight background and four batch clients, two indexing
    jobs that never end."""

    def model(name: str, size: float, parallel: int) -> ModelSpec:
        option = LaunchOption(name, 16384, parallel, (DeviceFootprint(CARD, weights_bytes=int(size * GIB)),))
        return ModelSpec(ModelName(name), (option,), load_seconds=size)

    def clients(count: int, job_class: JobClass, name: str, seconds: float, steps: int = 1) -> Iterable[Client]:
        kind = JobKind.EMBEDDINGS if steps > 1 else JobKind.CHAT
        span = (seconds * 0.8, seconds * 1.2)
        for number in range(count):
            label = f"{job_class.label}-{name}-{number}"
            yield Client(label, job_class, kind, ModelName(name), span, (0.3, 1.8), (steps, steps))

    everybody = (
        *clients(6, JobClass.INTERACTIVE, "12b", 0.95),
        *clients(8, JobClass.BACKGROUND, "4b", 0.48),
        *clients(4, JobClass.BATCH, "2b", 0.40),
        *clients(2, JobClass.BACKGROUND, "embed", 0.35, steps=32),
    )
    models = (model("12b", 8.3, 2), model("4b", 4.0, 4), model("2b", 2.8, 4), model("embed", 0.4, 4))
    return Scenario(0, (DeviceSpec(CARD, 16 * GIB, 3 * GIB // 100 * 16),), models, Policy(), everybody)


def _record(scenario: Scenario, events: int) -> Tape:
    recorder = _Recorder()
    World(scenario, Scheduler(scenario.policy), [recorder]).run(events)
    return scenario.policy, recorder.heard


def _replay(tapes: list[Tape]) -> float:
    """Seconds for one event."""
    started = perf_counter()
    for policy, heard in tapes:
        step = Scheduler(policy).step
        for event, now in heard:
            step(event, now)
    return (perf_counter() - started) / sum(len(heard) for _, heard in tapes)


def _rounds(measure: Callable[[], float]) -> tuple[float, float, float]:
    """Median, least and most of some rounds, without the garbage collector's pauses."""
    gc.collect()
    gc.disable()
    figures = sorted(measure() for _ in range(ROUNDS))
    gc.enable()
    return figures[ROUNDS // 2], figures[0], figures[-1]


def main() -> int:
    """Measure and print."""
    where = f"Python {platform.python_version()}, {platform.machine()}"
    storms = [_record(replace(draw(seed, KINDS), drain=False), 2000) for seed in range(1, 13)]
    for name, tapes in (("mixed load", [_record(mixed_load(), 30_000)]), ("runs full of faults", storms)):
        median, least, most = _rounds(partial(_replay, tapes))
        events = sum(len(heard) for _, heard in tapes)
        spread = f"{1 / most:,.0f} to {1 / least:,.0f}"
        _say(f"core, {name}: {1 / median:,.0f} events a second ({events:,} events, {ROUNDS} rounds, {spread}; {where})")
    _say(compare())
    return 0


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")


if __name__ == "__main__":
    sys.exit(main())
