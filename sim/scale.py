"""What one step of the core costs as the queues, the models and the machine grow. `python -m sim.scale [--plot F.svg]`.

Owns a crowd: a closed loop that keeps a given number of jobs waiting over a given number of models and devices, with
processes that start, serve and stop, and a stopwatch around `Scheduler.step`. The stopwatch counts this thread's own
processor time, so that a busy machine does not count. Figures for notes, never a test: the
reference for each is the smallest crowd of the same run.
"""

import argparse
import gc
import heapq
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from math import log10
from pathlib import Path
from time import thread_time

from gridsched.core.commands import ArmTimer, Command, Grant, GrantStep, RejectJob, StartInstance, StopInstance
from gridsched.core.events import (
    DevicesChanged,
    Event,
    InstanceExited,
    InstanceReady,
    JobEnded,
    JobSubmitted,
    MemoryReleased,
    ModelsChanged,
    TimerFired,
)
from gridsched.core.ids import DeviceName, InstanceId, JobId, ModelName
from gridsched.core.job import Job, JobClass, JobKind, Outcome, OutcomeKind
from gridsched.core.model import DeviceFootprint, DeviceSpec, LaunchOption, ModelSpec
from gridsched.core.policy import Policy, QueueLimits
from gridsched.core.scheduler import Scheduler
from sim.svg import frame, grid, page, square, text
from sim.workload import GIB, generator

DONE = Outcome(OutcomeKind.DONE)
UNLIMITED = Policy(queues={each: QueueLimits(max_length=10**9, max_wait_seconds=None) for each in JobClass})
CARD_GIB, HEADROOM_GIB = 24, 1
CLASS_SHARES = (JobClass.INTERACTIVE, JobClass.BACKGROUND, JobClass.BACKGROUND, JobClass.BATCH)


@dataclass(frozen=True, slots=True)
class Size:
    """One crowd. `crowded`: only a third of the models fit at once, so that loads are planned all the time."""

    waiting: int
    models: int
    devices: int
    crowded: bool

    @property
    def machine(self) -> tuple[int, int]:
        """Models and devices."""
        return (self.models, self.devices)

    def __str__(self) -> str:
        kind = "a third fits" if self.crowded else "all fit"
        return f"{self.waiting:>7,} waiting, {self.models:>3} models, {self.devices:>3} devices, {kind}"


class Crowd:
    """A closed loop over the scheduler: each job that ends is followed by another, of a model drawn at random."""

    def __init__(self, size: Size, seed: int = 1) -> None:
        self.size = size
        self.took: list[float] = []
        self.scheduler = Scheduler(UNLIMITED)
        self.now = 0.0
        self._rng = generator(seed, "crowd", size)
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._made = self._jobs = 0
        self._alarm = 0
        self._alive: set[InstanceId] = set()

    def run(self, events: int) -> None:
        """Fill the queues, let things settle for as many events as are measured, then measure."""
        names = self._begin()
        for _ in range(self.size.waiting + 3 * self.size.devices):
            self._submit(names)
        self._play(min(events, 2000))
        self.took.clear()
        self._play(events)

    def _begin(self) -> list[ModelName]:
        size = self.size
        cards = [DeviceName(f"gpu{number}") for number in range(size.devices)]
        room = (CARD_GIB - HEADROOM_GIB) * size.devices / (size.models / 3 if size.crowded else size.models)
        need = int(min(room * 0.8, CARD_GIB * 0.3) * GIB)
        models = tuple(
            ModelSpec(ModelName(f"m{number}"), tuple(_option(number, card, need) for card in _near(cards, number)))
            for number in range(size.models)
        )
        specs = tuple(DeviceSpec(card, CARD_GIB * GIB, HEADROOM_GIB * GIB) for card in cards)
        self._tell(DevicesChanged(specs))
        self._tell(ModelsChanged(models))
        return [model.name for model in models]

    def _play(self, events: int) -> None:
        until = len(self.took) + events
        while self._heap and len(self.took) < until:
            self.now, _, act = heapq.heappop(self._heap)
            act()

    def _later(self, seconds: float, act: Callable[[], None]) -> None:
        self._made += 1
        heapq.heappush(self._heap, (self.now + seconds, self._made, act))

    def _tell(self, event: Event) -> None:
        started = thread_time()
        commands = self.scheduler.step(event, self.now)
        self.took.append(thread_time() - started)
        for command in commands:
            self._carry_out(command)

    def _carry_out(self, command: Command) -> None:
        match command:
            case GrantStep(grant):
                self._later(self._rng.uniform(0.2, 2.0), partial(self._end, grant))
            case RejectJob():
                raise AssertionError(f"nothing is refused here: {command.rejection.message}")
            case StartInstance(instance_id):
                self._alive.add(instance_id)
                self._later(self._rng.uniform(2.0, 8.0), partial(self._ready, instance_id))
            case StopInstance(instance_id):
                self._alive.discard(instance_id)
                self._later(0.2, lambda: self._tell(InstanceExited(instance_id)))
                self._later(0.4, lambda: self._tell(MemoryReleased(instance_id)))
            case ArmTimer(at):
                self._alarm += 1
                if at is not None:
                    self._later(max(0.0, at - self.now), partial(self._ring, self._alarm))
            case _:
                pass

    def _submit(self, names: list[ModelName]) -> None:
        self._jobs += 1
        job_class = self._rng.choice(CLASS_SHARES)
        job = Job(JobId(self._jobs), self._rng.choice(names), job_class, JobKind.CHAT)
        self._tell(JobSubmitted(job))

    def _end(self, grant: Grant) -> None:
        self._tell(JobEnded(grant.id, DONE))
        self._submit(list(self.scheduler.state.models))

    def _ready(self, instance_id: InstanceId) -> None:
        if instance_id in self._alive:
            self._tell(InstanceReady(instance_id))

    def _ring(self, number: int) -> None:
        if number == self._alarm:
            self._tell(TimerFired())


def _near(cards: list[DeviceName], number: int) -> Iterator[DeviceName]:
    """Up to four cards for each model: a ladder that tries a hundred is nobody's."""
    for step in range(min(4, len(cards))):
        yield cards[(number + step * 7) % len(cards)]


def _option(number: int, card: DeviceName, need: int) -> LaunchOption:
    return LaunchOption(f"m{number}/{card}", 16384, 4, (DeviceFootprint(card, weights_bytes=need),))


WAITING = (10, 100, 1_000, 10_000, 100_000)
MACHINES = ((10, 1), (100, 10), (100, 100))
"""Models and devices."""

COLOURS = ("#1b9e4b", "#2b7bba", "#d9731a")
WIDTH, HEIGHT, LEFT, TOP, PLOT_W, PLOT_H, GAP = 1060, 460, 70, 62, 420, 300, 100
FLOOR_US, CEILING_US = 1.0, 100_000.0


@dataclass(frozen=True, slots=True)
class Cost:
    """What a step costs in one crowd, in microseconds of processor time."""

    size: Size
    median: float
    p99: float
    longest: float

    def __str__(self) -> str:
        return f"{self.size}: median {self.median:7.1f} us, p99 {self.p99:8.1f} us, longest {self.longest:9.1f} us"


def measure(size: Size, events: int) -> Cost:
    """Run one crowd, without the garbage collector's pauses."""
    crowd = Crowd(size)
    gc.collect()
    gc.disable()
    crowd.run(events)
    gc.enable()
    took = sorted(crowd.took)
    median, p99, longest = (1e6 * took[int(share * (len(took) - 1))] for share in (0.5, 0.99, 1.0))
    return Cost(size, median, p99, longest)


def svg(costs: list[Cost]) -> str:
    """Cost against waiting jobs, both on logarithmic scales: all models fit on the left, a third of them on the right.
    Solid is the median, dashed the 99th percentile."""
    parts = [text(LEFT, 26, "What one step of the scheduler costs (microseconds) against how many jobs wait")]
    for column, crowded in enumerate((False, True)):
        left = LEFT + column * (PLOT_W + GAP)
        parts += _axes(left, "a third of the models fits" if crowded else "all models fit")
        for colour, machine in zip(COLOURS, MACHINES, strict=True):
            line = [each for each in costs if each.size.crowded is crowded and each.size.machine == machine]
            for figures, dash in (([each.median for each in line], ""), ([each.p99 for each in line], "6 4")):
                places = (
                    f"{_x(left, each.size.waiting):.1f} {_y(figure):.1f}"
                    for each, figure in zip(line, figures, strict=True)
                )
                parts.append(f'<path d="M{"L".join(places)}" fill="none" stroke="{colour}" stroke-dasharray="{dash}"/>')
    for place, (colour, (models, devices)) in enumerate(zip(COLOURS, MACHINES, strict=True)):
        x = LEFT + place * 220
        parts += [square(x, HEIGHT - 42, colour), text(x + 18, HEIGHT - 32, f"{models} models, {devices} devices")]
    parts.append(text(LEFT, HEIGHT - 8, "solid: median · dashed: 99th percentile"))
    return page(WIDTH, HEIGHT, parts)


def _axes(left: float, title: str) -> Iterator[str]:
    yield frame(left, TOP, PLOT_W, PLOT_H)
    yield text(left, TOP - 10, title)
    for waiting in WAITING:
        yield text(_x(left, waiting) - 10, TOP + PLOT_H + 18, f"{waiting:,}")
    for power in range(int(log10(FLOOR_US)), int(log10(CEILING_US)) + 1):
        y = _y(10.0**power)
        yield grid(f"M{left} {y:.1f}h{PLOT_W}")
        yield text(left - 56, y + 4, f"{10**power:,}")


def _x(left: float, waiting: int) -> float:
    return left + PLOT_W * log10(waiting / WAITING[0]) / log10(WAITING[-1] / WAITING[0])


def _y(cost_us: float) -> float:
    return TOP + PLOT_H * (1.0 - log10(max(cost_us, FLOOR_US) / FLOOR_US) / log10(CEILING_US / FLOOR_US))


def main(arguments: list[str] | None = None) -> int:
    """Measure, print, and draw if asked to."""
    parser = argparse.ArgumentParser(prog="python -m sim.scale", description="What a step of the scheduler costs.")
    parser.add_argument("--events", type=int, default=5000, help="steps measured in each crowd (default 5000)")
    parser.add_argument("--plot", type=Path, metavar="F.svg", help="draw the figures too")
    asked = parser.parse_args(arguments)
    costs = []
    for crowded in (False, True):
        for models, devices in MACHINES:
            for waiting in WAITING:
                costs.append(measure(Size(waiting, models, devices, crowded), asked.events))
                sys.stdout.write(f"{costs[-1]}\n")
                sys.stdout.flush()
    if asked.plot is not None:
        asked.plot.write_text(svg(costs))
    return 0


if __name__ == "__main__":
    sys.exit(main())
