"""What is counted in a run, and the mean of runs: one row a class, and what the scheduler did meanwhile.

Owns the arithmetic and the shapes. Must never leave a refused request out: it counts among the requests and the errors,
and only its time is in no percentile. Whoever still waits at the end is counted as unanswered.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from gridsched.core.commands import Command, Log, LogEvent, RejectJob, StartInstance
from gridsched.core.ids import ModelName


@dataclass(frozen=True, slots=True)
class Request:
    """One request that is over. Seconds; `first_seconds` None where nothing was streamed."""

    row: str
    seconds: float
    queue_seconds: float
    first_seconds: float | None
    refused: bool = False


@dataclass(frozen=True, slots=True)
class Row:
    """One kind of traffic in a run, or in the mean of several. Times in seconds; None where nothing was measured."""

    requests: float
    errors: float
    unanswered: float
    p50_s: float | None
    p95_s: float | None
    p99_s: float | None
    queue_p50_s: float | None
    queue_p95_s: float | None
    ttft_p50_s: float | None


@dataclass(frozen=True, slots=True)
class Figures:
    """What the scheduler did in a run, or did in the mean of several. A load is needless when its model had a process
    that was not told to go; `busy_share` is the part of the time in which the cards computed."""

    loads: float
    needless_loads: float
    evictions: float
    relief_turns: float
    relief_steps: float
    pauses: float
    busy_share: float


@dataclass(frozen=True, slots=True)
class Result:
    """A run, or the mean of runs. `refusals`: the first sentence of each kind of refusal."""

    classes: dict[str, Row]
    figures: Figures
    refusals: dict[str, str] = field(default_factory=dict)

    def answered(self, *rows: str) -> float:
        """Requests of some rows that got their answer."""
        found = [self.classes[name] for name in rows if name in self.classes]
        return sum(row.requests - row.errors for row in found)


@dataclass(slots=True)
class Tally:
    """Counts while a run goes on. Loads are followed from the beginning, and counted from when `counting` is set."""

    counting: bool = False
    requests: list[Request] = field(default_factory=list)
    refusals: dict[str, str] = field(default_factory=dict)
    _counts: dict[str, int] = field(default_factory=dict)
    _loaded: set[ModelName] = field(default_factory=set)

    def saw(self, commands: Iterable[Command]) -> None:
        """Look at what was decided in one step."""
        for command in commands:
            if isinstance(command, StartInstance):
                self._count("loads")
                if command.model in self._loaded:
                    self._count("needless_loads")
                self._loaded.add(command.model)
            elif isinstance(command, Log):
                self._saw_line(command)
            elif isinstance(command, RejectJob):
                self.refusals.setdefault(command.rejection.code.value, command.rejection.message)

    def _saw_line(self, line: Log) -> None:
        match line.event:
            case LogEvent.DISPATCH if line.rule == "S5":
                self._count("relief_steps")
            case LogEvent.RELIEF if line.figures.get("turn") == "begins":
                self._count("relief_turns")
            case LogEvent.EVICT:
                self._count("evictions")
            case LogEvent.PAUSE:
                self._count("pauses")
            case LogEvent.DRAIN | LogEvent.STOP | LogEvent.EXIT if line.model is not None:
                self._loaded.discard(line.model)
            case _:
                pass

    def _count(self, name: str) -> None:
        if self.counting:
            self._counts[name] = self._counts.get(name, 0) + 1

    def result(self, rows: Sequence[str], unanswered: Sequence[str], busy_share: float) -> Result:
        """The run's figures. `unanswered` names the row of each request that still waits."""
        counts = {name: self._counts.get(name, 0) for name in (each.name for each in fields(Figures))}
        counts.pop("busy_share")
        classes = {
            name: _row([one for one in self.requests if one.row == name], unanswered.count(name)) for name in rows
        }
        return Result(classes, Figures(**counts, busy_share=busy_share), self.refusals)


def percentile(values: Iterable[float], share: float) -> float | None:
    """The smallest value that at least `share` (0 to 1) of the values do not exceed (nearest rank); None for none."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else None


def _row(requests: Sequence[Request], unanswered: int) -> Row:
    answered = [one for one in requests if not one.refused]
    times = [one.seconds for one in answered]
    queued = [one.queue_seconds for one in answered]
    return Row(
        requests=len(requests),
        errors=len(requests) - len(answered),
        unanswered=unanswered,
        p50_s=percentile(times, 0.5),
        p95_s=percentile(times, 0.95),
        p99_s=percentile(times, 0.99),
        queue_p50_s=percentile(queued, 0.5),
        queue_p95_s=percentile(queued, 0.95),
        ttft_p50_s=percentile([one.first_seconds for one in answered if one.first_seconds is not None], 0.5),
    )


def mean(results: Sequence[Result]) -> Result:
    """The mean of runs of one policy, figure by figure; a figure that some runs lack is the mean of the others."""
    names = results[0].classes
    classes = {name: Row(**_means([each.classes[name] for each in results])) for name in names}
    refusals = {code: sentence for each in reversed(results) for code, sentence in each.refusals.items()}
    return Result(classes, Figures(**_means([each.figures for each in results])), refusals)


def _means(records: Sequence[Row] | Sequence[Figures]) -> dict[str, Any]:  # Any: counts are numbers, times may be None
    means: dict[str, Any] = {}
    for each in fields(records[0]):
        values = [value for value in (getattr(record, each.name) for record in records) if value is not None]
        means[each.name] = sum(values) / len(values) if values else None
    return means
