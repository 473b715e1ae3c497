"""Many seeds on all cores, in their order, and what they add up to.

Owns the processes. Each imports the package anew (spawn), so that a run is the same on every platform and in every
process. An interrupt ends them all; what was reported until then stands.
"""

import multiprocessing
import os
import signal
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

from sim.coverage import ALL_DECISIONS, ALL_MOVES, ALL_PAIRS
from sim.faults import KINDS
from sim.run import Report, run_seed, shrink

SEEDS_AT_ONCE = 4  # a run takes a fraction of a second, and asking for the next one should cost nothing


def run_all(seeds: Sequence[int], events: int, *, shrinking: bool = False) -> Iterator[Report]:
    """The reports of many seeds, in their order."""
    one = partial(_run_one, events=events, shrinking=shrinking)
    processes = min(len(os.sched_getaffinity(0)), len(seeds))
    if processes == 1:
        yield from map(one, seeds)
        return
    with multiprocessing.get_context("spawn").Pool(processes, _begin) as pool:
        yield from pool.imap(one, seeds, SEEDS_AT_ONCE)


def _begin() -> None:
    """Leave an interrupt to the parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _run_one(seed: int, *, events: int, shrinking: bool) -> Report:
    report = run_seed(seed, events)
    return shrink(report, events) if report.violations and shrinking else report


@dataclass(slots=True)
class Sums:
    """What many runs add up to. `cpu_seconds` is what their processes worked, `wall_seconds` how long it took."""

    runs: int = 0
    broken: int = 0
    events: int = 0
    cpu_seconds: float = 0.0
    wall_seconds: float = 0.0
    faults: Counter[str] = field(default_factory=Counter)
    met: Counter[str] = field(default_factory=Counter)

    def add(self, report: Report) -> None:
        """Take in one run."""
        self.runs += 1
        self.broken += bool(report.violations)
        self.events += report.events
        self.cpu_seconds += report.cpu_seconds
        self.faults.update(report.faults)
        self.met.update(report.met)

    def lines(self) -> Iterator[str]:
        """For a person."""
        yield f"{self.runs:,} seeds, {self.broken:,} with violations"
        if not self.runs:
            return
        speed = f"{self.events / self.cpu_seconds:,.0f} a second and core"
        yield f"{self.events:,} events, {speed}, {self.events / self.wall_seconds:,.0f} a second in all"
        yield f"faults: {', '.join(f'{kind} {self.faults[kind]:,}' for kind in KINDS if self.faults[kind]) or 'none'}"
        for what, everything in (
            ("moves of the tables", ALL_MOVES),
            ("pairs of event and state", ALL_PAIRS),
            ("kinds of decisions", ALL_DECISIONS),
        ):
            yield self._coverage(what, everything)

    def _coverage(self, what: str, everything: Iterable[str]) -> str:
        names = tuple(everything)
        never = [name for name in names if not self.met[name]]
        rest = f"; never: {', '.join(never)}" if never else ""
        return f"{what}: {len(names) - len(never)} of {len(names)} met{rest}"
