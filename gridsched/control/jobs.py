"""`GET /api/jobs` and `/api/jobs/{id}`: who waits and why, who runs, and all that is known of one job (S9b); and the
long verbs that run, which are jobs too.

Owns the types of these answers, and their pages. Must never find a reason itself: every word of it is the scheduler's.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import msgspec
import trio
from msgspec import Meta

from gridsched.control.history import History, history_of, sentence
from gridsched.control.operations import Operation, State
from gridsched.control.pages import Page, cut
from gridsched.control.problems import Problem, RequestError
from gridsched.control.services import Services
from gridsched.control.verb import Answer
from gridsched.core import words
from gridsched.core.ids import DeviceName, JobId
from gridsched.core.snapshot import Explanation, PlanView, RunningView, VictimView, WaitingView
from gridsched.runtime.runtime import Runtime

JobNumber = Annotated[int, Meta(description="The job's number: the order of arrival.")]
ClassName = Annotated[str, Meta(description="interactive, background or batch.")]
Steps = Annotated[int, Meta(description="How many steps the job has in all.")]

Line = Annotated[
    Mapping[str, Any],
    Meta(
        description="One decision, as in the decision log: `time`, `event`, what it concerns, and figures.",
        extra_json_schema={"required": ["time", "event"]},
    ),
]


class Keeper(Answer, frozen=True, kw_only=True):
    """Who keeps memory that a waiting job's model could use."""

    model: Annotated[str | None, Meta(description="None for programs outside, and for a whole device.")]
    device: str
    bytes: int
    why: Annotated[tuple[str, ...], Meta(description="In words, the plainest first: pinned, hot, busy …")]


class WaitingJob(Answer, frozen=True, kw_only=True):
    """A job that waits, with the rule that holds it."""

    job: JobNumber
    job_class: ClassName = msgspec.field(name="class")
    kind: Annotated[str, Meta(description="What is asked of the model: chat, embeddings …")]
    model: str
    position: Annotated[int, Meta(description="Its place in its class, from 1.")]
    waited_s: float
    step: Annotated[int, Meta(description="The step that it waits for, from 1.")]
    steps: Steps
    rule: Annotated[str, Meta(description="The name of the rule that holds it.")]
    reason: Annotated[str, Meta(description="The same in words.")]
    estimate_s: Annotated[float | None, Meta(description="When it will run, from now; null where nobody can say.")]
    keepers: Annotated[tuple[Keeper, ...], Meta(description="Who keeps the memory that its model needs.")]
    text: Annotated[str, Meta(description="All of it as a sentence.")]


class RunningJob(Answer, frozen=True, kw_only=True):
    """A job whose step runs."""

    job: JobNumber
    job_class: ClassName = msgspec.field(name="class")
    kind: Annotated[str, Meta(description="What is asked of the model: chat, embeddings …")]
    model: str
    instance: Annotated[int, Meta(description="The process that it runs on.")]
    step: Annotated[int, Meta(description="The step that runs, from 1.")]
    steps: Steps
    running_s: float
    rest_s: Annotated[float | None, Meta(description="What the step still needs; null where that is not known.")]
    text: Annotated[str, Meta(description="All of it as a sentence.")]


class EvictedInstance(Answer, frozen=True, kw_only=True):
    """A process that a plan wants to go, and why this one."""

    instance: Annotated[int, Meta(description="The process.")]
    model: str
    bytes: Annotated[int, Meta(description="What that frees.")]
    steps: Annotated[int, Meta(description="How many of its steps run, and end first.")]
    why: Annotated[tuple[str, ...], Meta(description="How it stands: hot or cold, busy or idle …")]
    terms: Annotated[Mapping[str, float], Meta(description="What it was chosen by, in seconds (R5).")]


class PlannedLoad(Answer, frozen=True, kw_only=True):
    """How a waiting job's model would be made ready."""

    ctx_size: Annotated[int, Meta(description="Tokens of context for all slots together.")]
    parallel: Annotated[int, Meta(description="How many slots it would have.")]
    needs: Annotated[Mapping[DeviceName, int], Meta(description="Bytes of each device.")]
    live: Annotated[bool, Meta(description="Whether it is being carried out.")]
    victims: Annotated[tuple[EvictedInstance, ...], Meta(description="Who goes for it.")]


class OperationAnswer(Answer, frozen=True, kw_only=True):
    """A long verb (a load, a download …), while it runs and for a while after its end."""

    id: Annotated[str, Meta(description="op- and a number.")]
    verb: str
    arguments: Mapping[str, Any]
    state: Annotated[str, Meta(description="running, done, failed or cancelled.")]
    text: Annotated[str, Meta(description="How far it has come, as a sentence.")]
    done: Annotated[float, Meta(description="How much of `total`, in the verb's own unit.")]
    total: Annotated[float | None, Meta(description="Null where nobody knows.")]
    result: Annotated[Any, Meta(description="The verb's answer, once it is done.")]
    error: Annotated[Mapping[str, Any] | None, Meta(description="What has failed, as under `error` of a refusal.")]
    running_s: Annotated[float, Meta(description="For how long it runs, or ran.")]


class JobList(Answer, frozen=True, kw_only=True):
    """All jobs that live, and the long verbs that run or have ended lately."""

    waiting: tuple[WaitingJob, ...]
    running: tuple[RunningJob, ...]
    operations: tuple[OperationAnswer, ...]
    total: Annotated[int, Meta(description="How many there are on all pages.")]
    next_cursor: Annotated[str | None, Meta(description="Ask with it for the next page; null on the last.")]


class JobAnswer(Answer, frozen=True, kw_only=True):
    """All that is known of one job, also of one that is over and of runs of the server before, as long as the decision
    log has it; or of one long verb. What the other kind has is null."""

    id: Annotated[str, Meta(description="The job's number as a text, or the operation's id.")]
    job: Annotated[int | None, Meta(description="The job's number.")]
    state: Annotated[str, Meta(description="Of a job waiting, running or over; of a verb running, done, failed …")]
    text: Annotated[str, Meta(description="How it stands, as a sentence.")]
    job_class: Annotated[str | None, Meta(description="interactive, background or batch.")] = msgspec.field(
        name="class", default=None
    )
    kind: Annotated[str | None, Meta(description="What is asked of the model: chat, embeddings …")] = None
    model: str | None = None
    waiting: WaitingJob | None = None
    running: RunningJob | None = None
    plan: PlannedLoad | None = None
    history: Annotated[History | None, Meta(description="Its waits, by rule, its steps, its end.")] = None
    story: Annotated[tuple[Line, ...], Meta(description="What was decided about it, oldest first.")] = ()
    verb: str | None = None
    arguments: Mapping[str, Any] | None = None
    done: Annotated[float | None, Meta(description="How much of `total`: steps, or the verb's own unit.")] = None
    total: float | None = None
    result: Annotated[Any, Meta(description="The verb's answer, once it is done.")] = None
    error: Annotated[Mapping[str, Any] | None, Meta(description="What has failed, as in a refusal.")] = None
    running_s: float | None = None


MOST_TOLD = 1000
"""Lines of one story: the last ones."""

NO_LINE: Mapping[str, Any] = {}

_Entry = WaitingJob | RunningJob | OperationAnswer
_SECTIONS = ("waiting", "running", "op")
OPERATION = "op-"
"""What the id of a long verb begins with; jobs have numbers."""


def _cursor(entry: _Entry) -> str:
    """waiting-7, running-3, op-1: in this order, a job that begins to run between two pages is on the second."""
    if isinstance(entry, OperationAnswer):
        return entry.id
    return f"{'waiting' if isinstance(entry, WaitingJob) else 'running'}-{entry.job}"


def jobs(services: Services, page: Page) -> JobList:
    """All living jobs, and the operations. Who is told on several pages is told in order of arrival. Raises
    RequestError."""
    now = services.runtime.jobs()
    entries: list[_Entry] = [*map(waiting, now.waiting), *map(running, now.running)]
    entries += map(operation, services.operations.all())
    told, next_cursor = cut(page, entries, _cursor, _key_of)
    return JobList(
        waiting=tuple(entry for entry in told if isinstance(entry, WaitingJob)),
        running=tuple(entry for entry in told if isinstance(entry, RunningJob)),
        operations=tuple(entry for entry in told if isinstance(entry, OperationAnswer)),
        total=len(entries),
        next_cursor=next_cursor,
    )


def _key_of(cursor: str) -> tuple[int, int]:
    """The place of an entry among all, by what a cursor says of it. Raises ValueError."""
    section, _, number = cursor.rpartition("-")
    return _SECTIONS.index(section), int(number)


def operation(told: Operation) -> OperationAnswer:
    """One long verb."""
    until = trio.current_time() if told.ended_at is None else told.ended_at
    return OperationAnswer(
        id=told.id,
        verb=told.verb,
        arguments=told.arguments,
        state=told.state.value,
        text=_operation_text(told),
        done=told.done,
        total=told.total,
        result=told.result,
        error=told.problem.error() if told.problem is not None else None,
        running_s=round(until - told.began_at, 3),
    )


def _operation_text(told: Operation) -> str:
    if told.problem is not None:
        return told.problem.message
    return f"cancelled; before that: {told.text or 'it had just begun'}" if told.state is State.CANCELLED else told.text


def find_operation(services: Services, name: str) -> Operation:
    """One that runs, or has ended lately. Raises RequestError."""
    found = services.operations.find(name)
    if found is None:
        raise RequestError(Problem("not_found", f"there is no operation {name}, or it is over and forgotten"))
    return found


def one_operation(services: Services, name: str) -> JobAnswer:
    """All about a long verb. Raises RequestError."""
    told = operation(find_operation(services, name))
    return JobAnswer(job=None, **msgspec.structs.asdict(told))


async def one_job(runtime: Runtime, job_id: JobId) -> JobAnswer | None:
    """One job, also one that is over as long as the log has it, of whichever run; None for one that nobody knows."""
    story = [line for _, line in await runtime.log.about(job_id)]
    told = runtime.explain(job_id) or Explanation(job_id, None, None, None)
    now = told.waiting or told.running
    if now is None and not story:
        return None
    past = history_of(story, lives=now is not None) if story else None
    first = story[0] if story else NO_LINE
    return JobAnswer(
        id=str(told.job),
        job=told.job,
        job_class=now.job_class.label if now else first.get("class"),
        kind=now.kind.value if now else first.get("kind"),
        model=now.model if now else story[-1].get("model"),
        done=float(now.step - 1) if now else float(past.steps_done) if past else None,
        total=float(now.steps) if now else past.steps if past else None,
        running_s=round(told.running.running_seconds, 3) if told.running else None,
        state="waiting" if told.waiting else "running" if told.running else "over",
        text=_text(told, past),
        waiting=waiting(told.waiting) if told.waiting else None,
        running=running(told.running) if told.running else None,
        plan=_plan(told.plan) if told.plan else None,
        history=past,
        story=tuple(story[-MOST_TOLD:]),
    )


def _text(told: Explanation, past: History | None) -> str:
    if told.waiting is not None:
        return words.sentence(told.waiting)
    if told.running is not None:
        return words.running(told.running)
    return sentence(past) if past is not None else ""


def waiting(view: WaitingView) -> WaitingJob:
    """One waiting job."""
    return WaitingJob(
        job=view.id,
        job_class=view.job_class.label,
        kind=view.kind.value,
        model=view.model,
        position=view.position,
        waited_s=round(view.waited_seconds, 3),
        step=view.step,
        steps=view.steps,
        rule=view.rule,
        reason=view.reason,
        estimate_s=_rounded(view.estimate_seconds),
        keepers=tuple(Keeper(model=one.model, device=one.device, bytes=one.bytes, why=one.why) for one in view.keepers),
        text=words.sentence(view),
    )


def running(view: RunningView) -> RunningJob:
    """One job whose step runs."""
    return RunningJob(
        job=view.id,
        job_class=view.job_class.label,
        kind=view.kind.value,
        model=view.model,
        instance=view.instance,
        step=view.step,
        steps=view.steps,
        running_s=round(view.running_seconds, 3),
        rest_s=_rounded(view.rest_seconds),
        text=words.running(view),
    )


def _plan(view: PlanView) -> PlannedLoad:
    return PlannedLoad(
        ctx_size=view.ctx_size,
        parallel=view.parallel,
        needs=view.needs,
        live=view.live,
        victims=victims(view.victims),
    )


def victims(views: Sequence[VictimView]) -> tuple[EvictedInstance, ...]:
    """Those that a plan wants to go."""
    return tuple(
        EvictedInstance(
            instance=one.instance,
            model=one.model,
            bytes=one.bytes,
            steps=one.steps,
            why=one.why,
            terms={name: round(value, 3) for name, value in one.terms.items()},
        )
        for one in views
    )


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 3)
