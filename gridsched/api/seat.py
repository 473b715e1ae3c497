"""One exchange at the desk: what every way of answering does alike between the job's submission and its end.

Owns the words about what a job waits for, the headers that name the job, and what is counted of it. Must never post an
event itself: the ticket does.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from types import TracebackType

import trio

from gridsched.api.exchange import Exchange
from gridsched.api.observe import Observer
from gridsched.api.resolve import Resolver, look_up
from gridsched.api.settings import FrontSettings
from gridsched.api.steps import JSON, Sink, Way, run_step
from gridsched.api.tracing import UNRECORDED, UNTRACED, Timed, Trace, Tracer
from gridsched.control.authority import Authority
from gridsched.control.problems import Header, Problem, of_outcome, of_rejection
from gridsched.core.commands import Grant, Rejection, RejectionCode
from gridsched.core.ids import ModelName
from gridsched.core.job import JobClass, JobKind, Outcome, OutcomeKind
from gridsched.runtime.desk import Ticket
from gridsched.runtime.runtime import Runtime

CLIENT_CLOSED = 499
"""What is counted when the client left before its answer was whole; nobody ever receives it."""


TAKEN_AWAY = Outcome(OutcomeKind.ABORTED, status=0, answered=False)


@dataclass(slots=True, eq=False)
class House:
    """What handlers need of the server. `stop` is set when the front ends; `authority` knows who may do what; `resolve`
    looks the hosts of images up. The `settings` may become others between two requests: nobody keeps a figure of them
    longer than one."""

    runtime: Runtime
    settings: FrontSettings
    observer: Observer
    authority: Authority
    stop: trio.Event
    resolve: Resolver = look_up
    tracer: Tracer = UNTRACED
    _open: set[trio.CancelScope] = field(default_factory=set)

    def way(self) -> Way:
        """To the engine."""
        return Way(self.runtime.parts.upstream, self.runtime.dispatch.stalls, self.settings.stall_seconds)

    def until_cut_off(self) -> "Answering":
        """Make an answer: the block is left in silence when the server's end cuts it off (P8)."""
        return Answering(self._open)

    def cut_off(self, at: float) -> None:
        """Whoever is still being answered at that time is told instead that the server ends."""
        for scope in self._open:
            scope.deadline = at


class Answering:
    """The block in which an answer is made; `among` has the scopes of all."""

    __slots__ = ("_among", "_scope")

    def __init__(self, among: set[trio.CancelScope]) -> None:
        self._among = among
        self._scope = trio.CancelScope()

    def __enter__(self) -> None:
        """From now on it may be cut off."""
        self._among.add(self._scope)
        self._scope.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        """It is made, or was cut off."""
        self._among.discard(self._scope)
        return self._scope.__exit__(kind, error, traceback)


@dataclass(slots=True)
class Tally:
    """What is counted of one exchange, known little by little. `began` is the clock when it was read whole, `trace` is
    for whoever else follows it."""

    began: float
    job_class: str = ""
    model: str = ""
    code: int = CLIENT_CLOSED
    job: int | None = None
    trace: Trace = UNRECORDED


class UntilAnswered:
    """A sink that says when the first byte of an answer is about to go out; until then the step may be taken away."""

    def __init__(self, sink: Sink, ticket: Ticket) -> None:
        self._sink = sink
        self._ticket = ticket
        self._answered = False

    def begin(self, status: int, headers: Sequence[Header]) -> None:
        """The head is not a byte of an answer yet."""
        self._sink.begin(status, headers)

    async def body(self, data: bytes) -> None:
        """Pass bytes on, unless the step has been taken away already."""
        if not self._answered:
            await trio.lowlevel.checkpoint_if_cancelled()
            self._ticket.answer_begins()
            self._answered = True
        await self._sink.body(data)


class Seat:
    """A job's ticket together with the exchange it answers."""

    __slots__ = (
        "_granted_at",
        "_last",
        "_queue_seconds",
        "_submitted_at",
        "_wanted_class",
        "exchange",
        "house",
        "tally",
        "ticket",
    )

    def __init__(
        self, house: House, exchange: Exchange, ticket: Ticket, tally: Tally, wanted_class: JobClass | None = None
    ) -> None:
        """`wanted_class` is the one before its key lowered it; the answer says so."""
        self.house = house
        self.exchange = exchange
        self.ticket = ticket
        self.tally = tally
        self._wanted_class = wanted_class
        self._submitted_at = trio.current_time()
        self._queue_seconds: float | None = None
        self._last: Grant | None = None
        self._granted_at: float | None = None

    async def grant(self) -> Grant | Problem:
        """Wait for the next grant; a problem is the end of the job."""
        self._granted_at = None
        self.tally.trace.waits()
        answer = await self.ticket.answer()
        if isinstance(answer, Rejection):
            if self._queue_seconds is None:
                self._queue_seconds = trio.current_time() - self._submitted_at
            problem = of_rejection(self._with_log(answer))
            self.tally.trace.failed(problem.code)
            return problem
        self._last = answer
        self.tally.trace.granted(answer)
        self.tally.model = answer.model
        self._granted_at = trio.current_time()
        if self._queue_seconds is None:
            self._queue_seconds = answer.queue_seconds
            tally = self.tally
            self.house.observer.queue_waited(
                tally.job_class, answer.queue_seconds, job=tally.job, trace_id=tally.trace.id
            )
        return answer

    def _with_log(self, rejection: Rejection) -> Rejection:
        """P7: an engine that failed under this job left its last lines; the scheduler may not know them."""
        detail = rejection.detail
        if rejection.code is not RejectionCode.UPSTREAM_ERROR or self._last is None or detail.get("log_tail"):
            return rejection
        log_tail = self.house.runtime.parts.engine.log_tail(self._last.instance_id)
        return replace(rejection, detail={**detail, "log_tail": log_tail})

    async def run(self, grant: Grant, body: bytes, sink: Sink, content_type: bytes = JSON) -> Outcome:
        """Run the granted step on the engine, unless it is taken away for a chat before a byte is answered (S11)."""
        step, outcome = self.tally.trace.step(grant), None
        way, path = self.house.way(), self.exchange.path
        timed = Timed(sink, step) if step.recorded else sink
        try:
            if self._can_be_taken_away():
                with self.ticket.until_aborted():
                    held = UntilAnswered(timed, self.ticket)
                    outcome = await run_step(way, grant, path, body, held, content_type, step.headers)
            else:
                outcome = await run_step(way, grant, path, body, timed, content_type, step.headers)
        finally:
            step.ended(outcome)
        return outcome or TAKEN_AWAY

    def _can_be_taken_away(self) -> bool:
        job = self.ticket.job
        return job.job_class.is_low and job.kind is not JobKind.EMBEDDINGS and job.steps == 1

    def broken(self, grant: Grant, outcome: Outcome) -> Problem:
        """What a client is told of a step that the engine did not finish."""
        log_tail = self.house.runtime.parts.engine.log_tail(grant.instance_id)
        problem = of_outcome(outcome, grant.model, log_tail)
        self.tally.trace.failed(problem.code)
        return problem

    def began_answering(self, at: float | None) -> None:
        """Count when the first byte of an answer went out, if one did."""
        if at is not None:
            tally = self.tally
            self.house.observer.first_byte(
                tally.job_class, tally.model, at - tally.began, job=tally.job, trace_id=tally.trace.id
            )

    def headers(self) -> list[Header]:
        """The headers that name the job; how long it queued is among them once it has been granted, or refused. The
        model is the one that serves it, and until then what was asked for (R10)."""
        job = self.ticket.job
        headers = [
            (b"x-gridsched-job-id", b"%d" % job.id),
            (b"x-gridsched-class", job.job_class.label.encode()),
            (b"x-gridsched-model", self._model.encode()),
        ]
        if self._wanted_class is not None and self._wanted_class is not job.job_class:
            headers.append((b"x-gridsched-class-capped", self._wanted_class.label.encode()))
        if self._queue_seconds is not None:
            headers.append((b"x-gridsched-queue-ms", b"%d" % round(self._queue_seconds * 1000)))
        return headers

    @property
    def _model(self) -> ModelName:
        return self.ticket.job.model if self._last is None else self._last.model

    def say(self, *, answering: bool) -> str:
        """What the job waits for, in a comment line's words (H3, S9b)."""
        job, runtime = self.ticket.job, self.house.runtime
        if self._granted_at is not None:
            verb = "generating" if answering else "prefilling"
            return f"{verb} {self._model} ({trio.current_time() - self._granted_at:.0f}s)"
        return runtime.said(job.id) or "queued"
