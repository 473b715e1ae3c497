"""How long a decision takes while a crowd waits, and from an arrival to its grant. `python -m sim.grant`.

Owns the crowds (nobody, a hundred, ten thousand jobs of background and batch), the stopwatch, and what is timed in the
core alone; `inside` does the same through the running server's desk. The stopwatch counts this thread's own processor
time, so that a busy machine does not count. Sizes take turns within a round, and each is to be compared with the empty
one of its round. Figures for notes and for the benchmark, never a test.
"""

import argparse
import json
import sys
import tracemalloc
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import count
from time import thread_time_ns

from gridsched.core.commands import Grant, GrantStep, RejectJob, StartInstance
from gridsched.core.events import DevicesChanged, Event, InstanceReady, JobEnded, JobSubmitted, ModelsChanged
from gridsched.core.ids import DeviceName, JobId, ModelName
from gridsched.core.job import Job, JobClass, JobKind
from gridsched.core.model import DeviceFootprint, DeviceSpec, LaunchOption, ModelSpec
from gridsched.core.policy import Policy
from gridsched.core.scheduler import Scheduler
from sim.inside import CHAT, DONE, LOW, SLOTS, arrivals, resident_bytes
from sim.workload import GIB

SIZES = (0, 100, 10_000)
LONGEST_QUEUE = 100_000
"""The highest `max_length` that a configuration may give a class: with less the crowd would be refused."""

POLICY = Policy(queues={each: replace(limits, max_length=LONGEST_QUEUE) for each, limits in Policy().queues.items()})
CARD = DeviceName("gpu0")

Took = dict[str, list[float]]
"""Microseconds by what was timed: `chat`, a chat that finds a slot; `freed`, from the end of a step to the grant of the
next in the crowd; `queued`, one that goes behind a crowd of its own class."""


class Core:
    """The scheduler alone, with a chat model that is idle and one whose slots are busy, both ready."""

    def __init__(self) -> None:
        self._scheduler = Scheduler(POLICY, guarded=True)
        self._now = 0.0
        self._ids = count(1)
        self.running: deque[Grant] = deque()
        self.tell(DevicesChanged((DeviceSpec(CARD, 24 * GIB, GIB),)))
        self.tell(ModelsChanged((_model(CHAT), _model(LOW))))
        self.tell(JobSubmitted(self.job(CHAT, JobClass.BACKGROUND)))
        self.tell(JobEnded(self.running.pop().id, DONE))
        self.crowd(SLOTS)

    def job(self, model: ModelName, job_class: JobClass) -> Job:
        """A new one."""
        return Job(JobId(next(self._ids)), model, job_class, JobKind.CHAT)

    def crowd(self, waiting: int) -> None:
        """So many more come for the busy model, of both low classes."""
        for number in range(waiting):
            self.tell(JobSubmitted(self.job(LOW, JobClass.BACKGROUND if number % 2 else JobClass.BATCH)))

    def tell(self, event: Event) -> float:
        """Microseconds of the step; what it begins is ready at once."""
        self._now += 0.001
        began = thread_time_ns()
        commands = self._scheduler.step(event, self._now)
        took = (thread_time_ns() - began) / 1000
        for command in commands:
            if isinstance(command, GrantStep):
                self.running.append(command.grant)
            elif isinstance(command, StartInstance):
                self.tell(InstanceReady(command.instance_id))
            elif isinstance(command, RejectJob):
                raise AssertionError(command.rejection.message)  # noqa: TRY004 - nobody is refused here
        return took


def _model(name: ModelName) -> ModelSpec:
    return ModelSpec(name, (LaunchOption(name, 16384, SLOTS, (DeviceFootprint(CARD, weights_bytes=GIB),)),))


def decisions(waiting: int, times: int) -> Took:
    """What steps of the core take while so many wait."""
    core, took = Core(), Took(chat=[], freed=[], queued=[])
    core.crowd(waiting)
    for _ in range(times):
        took["queued"].append(core.tell(JobSubmitted(core.job(LOW, JobClass.BATCH))))
        took["freed"].append(core.tell(JobEnded(core.running.popleft().id, DONE)))
    for _ in range(times):
        took["chat"].append(core.tell(JobSubmitted(core.job(CHAT, JobClass.INTERACTIVE))))
        core.tell(JobEnded(core.running.pop().id, DONE))
    return took


def percentiles(took: Took, what: str) -> Iterator[tuple[str, float]]:
    """By name, with the unit at its end."""
    for name, values in took.items():
        ordered = sorted(values)
        for share in (50, 99):
            yield f"{what}_{name}_p{share}_us", round(ordered[(len(ordered) - 1) * share // 100], 2)


def bytes_of_waiting(waiting: int) -> dict[str, float]:
    """What each waiting job takes: in the core alone, and in the server with the task that waits for it."""
    core = Core()
    tracemalloc.start()
    core.crowd(waiting)
    in_core = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    return {"core_bytes": round(in_core / waiting), "inside_rss_bytes": round(resident_bytes(POLICY, waiting))}


def measure(rounds: int, times: int, sizes: Sequence[int] = SIZES) -> dict[int, list[Mapping[str, float]]]:
    """Each size with its rounds, which took turns."""
    each: dict[int, list[Mapping[str, float]]] = {waiting: [] for waiting in sizes}
    for _ in range(rounds):
        for waiting in sizes:
            found = dict(percentiles(decisions(waiting, times), "decision"))
            found |= percentiles(arrivals(POLICY, waiting, times), "arrival")
            each[waiting].append(found)
    return each


def lines(sizes: Mapping[int, Sequence[Mapping[str, float]]]) -> Iterator[str]:
    """For a person: the median of the rounds, and between which they are."""
    for waiting, rounds in sizes.items():
        for name in rounds[0]:
            values = sorted(each[name] for each in rounds)
            spread = f"({values[0]:.1f} to {values[-1]:.1f})"
            yield f"{waiting:>6} waiting  {name:24} {values[len(values) // 2]:8.1f}  {spread}"


def main(arguments: list[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m sim.grant", description="Decisions while a crowd waits.")
    parser.add_argument("--rounds", type=int, default=5, help="how often all sizes are measured (default 5)")
    parser.add_argument("--times", type=int, default=400, help="grants of each kind in each (default 400)")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="how many wait (default 0 100 10000)")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    asked = parser.parse_args(arguments)
    memory = bytes_of_waiting(max(*asked.sizes, 1))  # first: what others have given back would not show
    sizes = measure(asked.rounds, asked.times, asked.sizes)
    if asked.json:
        told = [{"waiting": waiting, "rounds": rounds} for waiting, rounds in sizes.items()]
        sys.stdout.write(json.dumps({"sizes": told, "a_waiting_job": memory}) + "\n")
        return 0
    for line in lines(sizes):
        sys.stdout.write(line + "\n")
    sys.stdout.write(", ".join(f"{name} {size:,.0f}" for name, size in memory.items()) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
