"""A request as spans: `queue` and `step` below its own, `load` below the queue, `first_byte` and `answer` below a step.

Fits `api.tracing.Tracer`. Owns the spans' names and attributes: numbers, names of models and the contract's words.
Must never put a text of a request or an answer, or a key, into one; and never make more than `MOST_STEPS` steps' spans
for a request: the further ones are counted.
"""

import time
from collections.abc import Callable, Mapping

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.types import AttributeValue

from gridsched.core.commands import Grant
from gridsched.core.job import Job, JobKind, Outcome, OutcomeKind
from gridsched.runtime.decisions import Line
from gridsched.traces.loads import Loads

MOST_STEPS = 128
ERROR_STATUS, SERVER_ERROR = 400, 500
_OPERATIONS: Mapping[JobKind, str] = {
    JobKind.CHAT: "chat",
    JobKind.RESPONSES: "chat",
    JobKind.MESSAGES: "chat",
    JobKind.COMPLETION: "text_completion",
    JobKind.INFILL: "text_completion",
    JobKind.EMBEDDINGS: "embeddings",
}
"""OpenTelemetry's words for what a model is asked; the other kinds have none."""

_W3C = TraceContextTextMapPropagator()
_HEADERS = ("traceparent", "tracestate")
LONGEST_SAID = 512
"""Of each: an engine, which is told of the second, refuses a request for a header that is too long."""

Headers = tuple[tuple[bytes, bytes], ...]


def _told(context: Context) -> Headers:
    """What an engine is told of the span that is in it."""
    carrier: dict[str, str] = {}
    _W3C.inject(carrier, context)
    return tuple((name.encode(), value.encode("latin-1")) for name, value in carrier.items())


class StepSpans:
    """Fits `api.tracing.StepTrace`."""

    recorded = True

    def __init__(self, of: "RequestSpans", grant: Grant, attributes: Mapping[str, AttributeValue]) -> None:
        self._of = of
        self._began_at = of.now()
        self._answered_at: int | None = None
        self._span = of.child("step", self._began_at, kind=SpanKind.CLIENT)
        self._context = trace.set_span_in_context(self._span, Context())
        self._span.set_attributes(
            {
                "gridsched.job": grant.job_id,
                "gridsched.step": grant.step,
                "gridsched.instance": grant.instance_id,
                "gridsched.model": grant.model,
                "gen_ai.provider.name": "llama.cpp",
                **attributes,
            }
        )
        self.headers = _told(self._context)

    def first_byte(self) -> None:
        """The first byte of the answer's body."""
        self._answered_at = self._of.now()

    def ended(self, outcome: Outcome | None) -> None:
        """It is over."""
        now = self._of.now()
        self._of.child("first_byte", self._began_at, self._context).end(self._answered_at or now)
        if self._answered_at is not None:
            self._of.child("answer", self._answered_at, self._context).end(now)
        kind = outcome.kind if outcome is not None else OutcomeKind.CLIENT_GONE
        if outcome is not None and outcome.kind is OutcomeKind.DONE:
            self._span.set_attribute("http.response.status_code", outcome.status)
        if kind is not OutcomeKind.DONE or (outcome is not None and outcome.status >= ERROR_STATUS):
            word = kind.value if kind is not OutcomeKind.DONE or outcome is None else str(outcome.status)
            self._span.set_attribute("error.type", word)
            self._span.set_status(Status(StatusCode.ERROR, word))
        self._span.end(now)


class Passing:
    """A step whose span is not kept: the engine is told of the request's. Fits `api.tracing.StepTrace`."""

    recorded = False

    def __init__(self, headers: Headers) -> None:
        self.headers = headers

    def first_byte(self) -> None:
        """Nobody asked."""

    def ended(self, outcome: Outcome | None) -> None:
        """Nobody asked."""


class RequestSpans:
    """Fits `api.tracing.Trace`."""

    def __init__(self, tracer: trace.Tracer, loads: Loads, now: Callable[[], int], span: Span) -> None:
        self._tracer = tracer
        self._loads = loads
        self.now = now
        self._span = span
        self._context = trace.set_span_in_context(span, Context())
        self._queue: Span | None = None
        self._queued_at = 0
        self._model = ""
        self._asked: Mapping[str, AttributeValue] = {}
        self._steps = self._waits = 0
        self._error = ""

    @property
    def id(self) -> str:
        """The trace's."""
        return trace.format_trace_id(self._span.get_span_context().trace_id)

    def child(
        self, name: str, at: int, parent: Context | None = None, link: Link | None = None, kind: SpanKind | None = None
    ) -> Span:
        """A span below this one, or below `parent`."""
        links = [link] if link is not None else None
        context = self._context if parent is None else parent
        return self._tracer.start_span(name, context, kind or SpanKind.INTERNAL, links=links, start_time=at)

    def meant(self, job: Job, *, streamed: bool) -> None:
        """What it is."""
        self._model = job.model
        self._asked = {"gen_ai.request.model": job.model}
        if (operation := _OPERATIONS.get(job.kind)) is not None:
            self._asked = {**self._asked, "gen_ai.operation.name": operation}
        self._span.set_attributes(
            {
                "gridsched.job": job.id,
                "gridsched.class": job.job_class.label,
                "gridsched.model": job.model,
                "gridsched.steps": job.steps,
                "gridsched.streamed": streamed,
                **self._asked,
            }
        )

    def waits(self) -> None:
        """In the queue, from now on."""
        if self._waits < MOST_STEPS:
            self._queued_at = self.now()
            self._queue = self.child("queue", self._queued_at)
        self._waits += 1

    def granted(self, grant: Grant) -> None:
        """Out of it."""
        if self._waits == 1:
            self._span.set_attribute("gridsched.queue_seconds", grant.queue_seconds)
        self._span.set_attributes({"gridsched.model": grant.model, "gen_ai.response.model": grant.model})
        self._model = grant.model
        self._end_queue()

    def failed(self, code: str) -> None:
        """Why there is no answer."""
        self._error = code
        self._end_queue()

    def step(self, grant: Grant) -> StepSpans | Passing:
        """A granted step."""
        self._steps += 1
        if self._steps > MOST_STEPS:
            return Passing(_told(self._context))
        return StepSpans(self, grant, self._asked)

    def ended(self, code: int | None) -> None:
        """The answer is over."""
        self._end_queue()
        if code is None:
            self._span.add_event("client_gone", timestamp=self.now())
            self._span.set_attribute("error.type", "client_gone")
            self._span.set_status(Status(StatusCode.ERROR, "the client left before the end"))
        else:
            self._span.set_attribute("http.response.status_code", code)
        if code is not None and (code >= ERROR_STATUS or self._error):
            self._span.set_attribute("error.type", self._error or str(code))
        if code is not None and (code >= SERVER_ERROR or (self._error and code < ERROR_STATUS)):
            self._span.set_status(Status(StatusCode.ERROR, self._error or str(code)))
        if self._steps > MOST_STEPS:
            self._span.set_attribute("gridsched.steps_without_span", self._steps - MOST_STEPS)
        self._span.end(self.now())

    def _end_queue(self) -> None:
        """With the part of the wait in which the model was loading."""
        if self._queue is None:
            return
        now, context = self.now(), trace.set_span_in_context(self._queue, Context())
        for load, begun, ended in self._loads.during(self._model, self._queued_at):
            self.child("load", begun, context, Link(load)).end(ended)
        self._queue.end(now)
        self._queue = None


class Unsampled:
    """A request that is left out, by its client's word or by the sampler: engines are told the same. Fits
    `api.tracing.Trace`."""

    id = ""

    def __init__(self, span: Span) -> None:
        self._step = Passing(_told(trace.set_span_in_context(span, Context())))

    def meant(self, job: Job, *, streamed: bool) -> None:
        """Nobody asked."""

    def waits(self) -> None:
        """Nobody asked."""

    def granted(self, grant: Grant) -> None:
        """Nobody asked."""

    def failed(self, code: str) -> None:
        """Nobody asked."""

    def step(self, grant: Grant) -> Passing:  # noqa: ARG002 - every step is alike
        """The same for each."""
        return self._step

    def ended(self, code: int | None) -> None:
        """Nobody asked."""


class Tracing:
    """Makes spans; told of requests by the front, of loads by the decision log's lines. Fits `api.tracing.Tracer`."""

    def __init__(self, tracer: trace.Tracer, now: Callable[[], int] = time.time_ns) -> None:
        self._tracer = tracer
        self._now = now
        self._loads = Loads(tracer, now)

    def saw(self, line: Line) -> None:
        """A line of the decision log."""
        self._loads.saw(line)

    def begin(self, path: str, headers: Mapping[bytes, bytes], request_id: str) -> RequestSpans | Unsampled:
        """A request has come: below its client's span, if it named one."""
        said = ((name, headers.get(name.encode(), b"")) for name in _HEADERS)
        carrier = {name: value.decode("latin-1") for name, value in said if 0 < len(value) <= LONGEST_SAID}
        span = self._tracer.start_span(
            f"POST {path}",
            _W3C.extract(carrier, Context()),
            SpanKind.SERVER,
            attributes={
                "http.request.method": "POST",
                "http.route": path,
                "url.path": path,
                "gridsched.request_id": request_id,
            },
            start_time=self._now(),
        )
        return RequestSpans(self._tracer, self._loads, self._now, span) if span.is_recording() else Unsampled(span)
