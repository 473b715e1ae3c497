"""From what was seen of a run to its result. Pure: no clock, no server, no files but what the machine calls itself.

Owns which request counts where, and what two witnesses of the same thing come to: the server's counters are believed,
its decision log is held against them, and where they disagree that is said.
"""

import os
import platform
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime

from loadtest import timeline
from loadtest.casting import Cast
from loadtest.clients import Measured
from loadtest.decisions import Line, counts_of
from loadtest.drive import Done
from loadtest.report import ROWS, Row, percentile, row_of
from loadtest.result import Failure, Request, Result, Sample
from loadtest.roles import ROLES
from loadtest.server import FAMILIES, Counters, Told

MOST_FAILURES = 20
"""Different errors that are told; all are counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What is asked for. `counts`: clients of each role; `models`: those that the user has chosen, by what they are
    for; `rate`: arrivals a second of each role, None for a closed loop; `cold`: without a warm-up; `strict`: a role
    that nobody can do is a fault; `longest_seconds`: what one request may take."""

    counts: Mapping[str, int]
    models: Mapping[str, str]
    seconds: float
    seed: int
    mix: str = ""
    rate: float | None = None
    cold: bool = False
    strict: bool = False
    longest_seconds: float = 300.0


@dataclass(slots=True, kw_only=True)
class Run:
    """What was seen. Times are the clock's but `began_wall`, the first one in seconds since the epoch. `loading`: how
    many loads were under way when it began; `living`: the processes that there were, with their models; `log_fault`:
    why the log ends where it does, if something broke."""

    options: Options
    told: Told
    cast: Cast
    is_gridsched: bool
    before: Counters
    living: Mapping[int, str]
    loading: int
    began: float
    began_wall: float
    measured_from: float | None = None
    ended: float = 0.0
    interrupted: bool = False
    after: Counters = field(default_factory=lambda: dict.fromkeys(FAMILIES))
    done: Sequence[Done] = ()
    failed_models: Mapping[str, str] = field(default_factory=dict)
    lines: Sequence[Line] = ()
    log_fault: str = ""
    samples: Sequence[Sample] = ()


def result_of(run: Run) -> Result:
    """Everything there is to report."""
    counted = [one for one in run.done if not one.warm_up or one.measured.error]
    counted = list(_with_waits(counted, timeline.waits(run.lines)))
    measured_from = run.ended if run.measured_from is None else run.measured_from
    seconds = run.ended - measured_from
    figures, disagreements = _figures(run)
    sent = {
        one.measured.job: run.began_wall + one.measured.due - run.began
        for one in run.done
        if one.measured.job is not None
    }
    server_began = run.began_wall + timeline.server_ahead(run.lines, sent)
    return Result(
        classes=_rows(ROWS, {part.role.name: part.role.row for part in run.cast.parts}, counted, seconds),
        roles=_rows(ROLES, {part.role.name: part.role.name for part in run.cast.parts}, counted, seconds),
        loads=figures["loads"],
        needless_loads=figures["needless_loads"],
        evictions=figures["evictions"],
        relief_steps=figures["relief_steps"],
        thrash=figures["thrash"],
        seed=run.options.seed,
        settings=_settings(run),
        failures=tuple(_failures(counted)),
        left_out=_left_out(run),
        notes=(*_notes(run), *disagreements),
        began=datetime.fromtimestamp(run.began_wall, UTC).isoformat(timespec="seconds"),
        measured_from_s=measured_from - run.began,
        measured_s=seconds,
        interrupted=run.interrupted,
        server=run.told.server,
        machine=machine(),
        requests=tuple(_request(one, run.began) for one in _with_waits(run.done, timeline.waits(run.lines))),
        grants=tuple(timeline.grants(run.lines, server_began)),
        events=tuple(timeline.events(run.lines, server_began)),
        samples=tuple(run.samples),
    )


def machine() -> Mapping[str, str]:
    """Where the clients ran."""
    return {
        "system": f"{platform.system()} {platform.release()}",
        "processor": platform.machine(),
        "cores": str(os.cpu_count() or "?"),
        "python": platform.python_version(),
    }


def _with_waits(done: Sequence[Done], waits: Mapping[int, float]) -> Iterator[Done]:
    """A stream that began while it waited could not tell how long it would: the log does."""
    for one in done:
        measured = one.measured
        if measured.queue_seconds is None and measured.job is not None:
            measured = replace(measured, queue_seconds=waits.get(measured.job))
        yield replace(one, measured=measured)


def _rows(
    order: Iterable[str], row_of_role: Mapping[str, str], done: Sequence[Done], seconds: float
) -> Mapping[str, Row]:
    """A row for each name that a role counts in, also for one without a request, in this order."""
    groups: dict[str, list[Measured]] = {name: [] for name in order if name in row_of_role.values()}
    for one in done:
        groups[row_of_role[one.role.name]].append(one.measured)
    return {name: row_of(group, seconds) for name, group in groups.items()}


def _request(done: Done, began: float) -> Request:
    measured = done.measured
    at_s = measured.due - began
    return Request(
        role=done.role.name,
        row=done.role.row,
        job_class=done.role.job_class,
        model=done.model,
        at_s=at_s,
        end_s=at_s + measured.latency_seconds,
        status=measured.status,
        queue_s=measured.queue_seconds,
        ttft_s=measured.first_token_seconds,
        inter_token_s=percentile(measured.gaps, 0.5),
        tokens=measured.tokens,
        job=measured.job,
        error=measured.error,
        warm_up=done.warm_up,
    )


def _failures(done: Sequence[Done]) -> Iterator[Failure]:
    """The errors, the most usual first."""
    counted = Counter((one.role.name, one.measured.error) for one in done if one.measured.error)
    for (role, error), count in counted.most_common(MOST_FAILURES):
        yield Failure(role=role, error=error, count=count)


def _left_out(run: Run) -> Mapping[str, str]:
    failed = {
        part.role.name: f"its model {part.model} did not answer in the warm-up: {run.failed_models[part.model]}"
        for part in run.cast.parts
        if part.model in run.failed_models
    }
    return {**run.cast.left_out, **failed}


def _settings(run: Run) -> Mapping[str, object]:
    told = asdict(run.options)
    del told["seed"]
    told["loop"] = "closed" if run.options.rate is None else "open"
    told["models"] = {part.role.name: part.model for part in run.cast.parts}
    return told


def _notes(run: Run) -> Iterator[str]:
    if run.interrupted:
        yield "The run was ended early; requests that were under way then are not counted."
    if not run.is_gridsched:
        yield "The server tells neither counters nor memory nor decisions as gridsched does: loads are not known."
    elif run.log_fault:
        yield f"The decision log is not whole: {run.log_fault}."
    silent = {part.role.name for part in run.cast.parts if part.model not in run.failed_models}
    silent -= {one.role.name for one in run.done if not one.warm_up}
    if silent:
        yield f"No request was made by {', '.join(sorted(silent))}: the run was too short for it."
    lost = sum(_lost(line) for line in run.lines)
    if lost:
        yield f"{lost} lines of the decision log were not kept for us."
    if _began_anew(run):
        yield "The server's counters began anew during the run: it was restarted."


def _lost(line: Line) -> int:
    lost = line.raw.get("lost")
    return lost if line.event == "gap" and isinstance(lost, int) else 0


def _began_anew(run: Run) -> bool:
    return any(line.event == "start" for line in run.lines) or any(
        (after or 0) < (run.before[what] or 0) for what, after in run.after.items() if after is not None
    )


def _figures(run: Run) -> tuple[Mapping[str, int | None], Sequence[str]]:
    """What the server did, by its counters, else by its log; and where the two disagree."""
    log: dict[str, int] = {}
    if run.is_gridsched and not run.log_fault:
        log = {**asdict(counts_of(run.lines, run.living)), "thrash": sum(map(_alternated, run.lines))}
    figures: dict[str, int | None] = {}
    disagreements = []
    began_anew = _began_anew(run)
    under_way = run.loading + _unfinished(run.lines)
    for what in FAMILIES:
        before, after = run.before[what], run.after[what]
        counted = None if before is None or after is None or began_anew else after - before
        figures[what] = log.get(what) if counted is None else counted
        apart = abs((counted or 0) - log.get(what, 0))
        # A load is counted when it ends, and in the log where it begins.
        if counted is not None and what in log and apart > (under_way if what == "loads" else 0):
            name = what.replace("_", " ")
            disagreements.append(f"The server's counters say {counted} {name}, its decision log {log[what]}.")
    return figures, disagreements


def _alternated(line: Line) -> int:
    """How many models a line says of that they take turns in memory."""
    models = line.raw.get("models")
    return len(models) if line.event == "thrash" and isinstance(models, list) else 0


def _unfinished(lines: Sequence[Line]) -> int:
    begun = {line.instance for line in lines if line.event == "load"}
    return len(begun - {line.instance for line in lines if line.event in ("ready", "exit")})
