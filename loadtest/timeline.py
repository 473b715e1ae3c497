"""The decision log as a load test's result has it: grants and events in seconds of the run, waits by job.

Owns the translation from the server's clock to the run's, and what becomes of a line. Must never judge.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from loadtest.clients import waited
from loadtest.decisions import ENDINGS, Line
from loadtest.report import EMBEDDINGS_ROW
from loadtest.result import Event, Grant

TOLD = frozenset(("load", "ready", "evict", "drain", "stop", "exit", "abort", "thrash"))
"""What is told of a model beside its grants."""


def server_ahead(lines: Iterable[Line], sent: Mapping[int, float]) -> float:
    """How many seconds the server's clock is ahead of ours. `sent`: when each job was sent, in seconds since the epoch
    by ours; the one that arrived soonest was nearly no time under way. 0 where no job is in the log."""
    arrived = {line.job: line.time for line in lines if line.event == "enqueue" and line.job is not None}
    return min((arrived[job] - at for job, at in sent.items() if job in arrived), default=0.0)


def waits(lines: Iterable[Line]) -> Mapping[int, float]:
    """How long each job waited for its first step, in seconds."""
    found: dict[int, float] = {}
    for line in lines:
        queued = waited(line.raw.get("queue_ms"))
        if line.event == "dispatch" and line.job is not None and queued is not None:
            found.setdefault(line.job, queued)
    return found


def grants(lines: Sequence[Line], began: float) -> Iterator[Grant]:
    """Every step that was let run. `began`: the run's first second by the server's clock."""
    ends = {(line.job, line.step): line.time for line in lines if line.event == "step"}
    over = {line.job: line.time for line in lines if line.event in ENDINGS}
    for line in lines:
        if line.event == "dispatch" and line.job is not None:
            end = ends.get((line.job, line.step), over.get(line.job))
            yield Grant(
                at_s=line.time - began,
                end_s=None if end is None else end - began,
                row=EMBEDDINGS_ROW if line.kind == "embeddings" else line.job_class,
                job=line.job,
                model=line.model,
                device=line.device,
                rule=line.rule,
                relief=line.is_relief,
            )


def events(lines: Iterable[Line], began: float) -> Iterator[Event]:
    """What happened to models."""
    for line in lines:
        if line.event in TOLD and line.model:
            yield Event(
                at_s=line.time - began,
                event=line.event,
                model=line.model,
                device=line.device,
                rule=line.rule,
            )
