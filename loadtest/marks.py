"""What the main job must show, as figures: read from the decision log and the clients' measurements, judged here.

Owns the thresholds. Must never be met by leaving something out: a mark whose evidence is missing is missed.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from loadtest.clients import Embedded, Measured, Vector
from loadtest.decisions import ENDINGS, LOW_CLASSES, Line
from loadtest.mainjob import Plan, Result
from loadtest.report import percentile

QUEUE_WAIT_SECONDS = 0.005
COOLDOWN_SECONDS = 2.0
LOG_GRAIN_SECONDS = 0.001
"""The log tells times in whole milliseconds, so a gap read from it may be short by one."""

DOCUMENTS_A_STEP = 32
SAME_COSINE = 0.999
"""A text embedded alone and in a batch gives the same vector but for rounding; another text stays well below."""


@dataclass(frozen=True, slots=True)
class Mark:
    """One thing to be shown: what, the figure that was found, and whether that is enough."""

    name: str
    figure: str
    met: bool


@dataclass(frozen=True, slots=True)
class Overtaking:
    """The chats that arrived while the embedding job was under way, each as its enqueue and dispatch lines."""

    job: int
    began: Line
    chats: Sequence[tuple[Line, Line | None]]


def judge(lines: Sequence[Line], result: Result, plan: Plan) -> list[Mark]:
    """Every mark of the main job, in the order they are told."""
    found = overtaking(lines)
    return [
        same_millisecond(found),
        queue_wait(result.chats()),
        quiet_after_chat(lines),
        all_steps(lines, found, math.ceil(plan.documents / DOCUMENTS_A_STEP)),
        in_order(result.job, result.alone, plan.documents),
        no_errors(result.measured),
    ]


def overtaking(lines: Sequence[Line]) -> Overtaking | None:
    """Find the background embedding job and the chats that met it; None without such a job."""
    began = next((one for one in lines if one.event == "dispatch" and _is_embedding_job(one)), None)
    if began is None or began.job is None:
        return None
    ended = next((one for one in lines if one.job == began.job and one.event in ENDINGS), lines[-1])
    dispatched = {one.job: one for one in reversed(lines) if one.event == "dispatch"}
    chats = [
        (one, dispatched.get(one.job))
        for one in lines
        if one.event == "enqueue" and one.job_class == "interactive" and began.seq < one.seq < ended.seq
    ]
    return Overtaking(began.job, began, chats)


def same_millisecond(found: Overtaking | None) -> Mark:
    """A chat whose model is ready is dispatched in the millisecond it is enqueued, low work under way or not."""
    chats = found.chats if found else ()
    at_once = sum(1 for enqueued, dispatch in chats if dispatch is not None and dispatch.time == enqueued.time)
    return Mark(
        "chats dispatched in the millisecond they arrived, embedding job under way",
        f"{at_once} of {len(chats)}",
        bool(chats) and at_once == len(chats),
    )


def queue_wait(chats: Sequence[Measured]) -> Mark:
    """Chats that find a free slot do not wait."""
    waits = [one.queue_seconds for one in chats if one.queue_seconds is not None]
    p95 = percentile(waits, 0.95)
    return Mark(
        f"queue wait of chats, p95 at most {QUEUE_WAIT_SECONDS * 1000:.0f} ms",
        "not measured" if p95 is None else f"{p95 * 1000:.2f} ms over {len(waits)} chats",
        p95 is not None and p95 <= QUEUE_WAIT_SECONDS and len(waits) == len(chats),
    )


def quiet_after_chat(lines: Sequence[Line]) -> Mark:
    """No low step starts while a chat runs, nor until the cool-down is over; relief steps have a rule of their own."""
    gaps = list(_gaps(lines))
    least = min(gaps, default=math.nan)
    return Mark(
        f"low steps start at least {COOLDOWN_SECONDS} s after the last chat, relief aside",
        f"least gap {least:.3f} s over {len(gaps)} steps" if gaps else "no low step after a chat",
        bool(gaps) and least >= COOLDOWN_SECONDS - LOG_GRAIN_SECONDS,
    )


def all_steps(lines: Sequence[Line], found: Overtaking | None, wanted: int) -> Mark:
    """Every step of the embedding job was dispatched, once, and the job is complete."""
    steps = [one.step for one in lines if found and one.job == found.job and one.event == "dispatch"]
    complete = any(found and one.job == found.job and one.event == "complete" for one in lines)
    return Mark(
        f"all {wanted} steps of the embedding job done",
        f"{len(set(steps))} dispatched, job {'complete' if complete else 'not complete'}",
        complete and steps == list(range(1, wanted + 1)),
    )


def in_order(job: Embedded, alone: dict[int, Vector], wanted: int) -> Mark:
    """The vectors stand in input order: numbered so, and equal to what the same documents give when sent alone."""
    cosines = [cosine(job.vectors[place], vector) for place, vector in alone.items() if place < len(job.vectors)]
    least = min(cosines, default=math.nan)
    return Mark(
        f"{wanted} vectors in input order",
        f"{len(job.vectors)} vectors; {len(cosines)} compared with single requests, least cosine {least:.5f}",
        job.indexes == list(range(wanted)) and len(cosines) == len(alone) > 0 and least >= SAME_COSINE,
    )


def no_errors(measured: Sequence[Measured]) -> Mark:
    """Nothing failed; the first failure is shown."""
    failed = [one for one in measured if one.error]
    shown = f", first: {failed[0].row}: {failed[0].error}" if failed else ""
    return Mark("no errors", f"{len(failed)} of {len(measured)} requests failed{shown}", bool(measured) and not failed)


def cosine(one: Vector, other: Vector) -> float:
    """How far two vectors point the same way, 1 for the same way; 0 where they cannot be compared."""
    lengths = math.sqrt(math.fsum(x * x for x in one) * math.fsum(x * x for x in other))
    if len(one) != len(other) or not lengths:
        return 0.0
    return math.fsum(x * y for x, y in zip(one, other, strict=True)) / lengths


def _is_embedding_job(line: Line) -> bool:
    return line.job_class in LOW_CLASSES and line.kind == "embeddings"


def _gaps(lines: Sequence[Line]) -> Iterator[float]:
    """For each low step that is no relief: seconds since the last chat ended, 0 while one runs."""
    running: set[int | None] = set()
    last_end: float | None = None
    for line in lines:
        if line.job_class == "interactive":
            if line.event == "dispatch":
                running.add(line.job)
            elif line.event in ENDINGS and line.job in running:
                running.discard(line.job)
                last_end = line.time
        elif line.event == "dispatch" and line.job_class in LOW_CLASSES and not line.is_relief:
            if running:
                yield 0.0
            elif last_end is not None:
                yield line.time - last_end
