"""What spans a request leaves: who is whose child, what they carry, and what the engine is told."""

import json
from collections.abc import Callable, Mapping, Sequence

import trio
import trio.testing
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from trio.testing import MockClock

from gridsched.core.ids import JobId
from gridsched.ports import UpstreamFailureKind
from gridsched.traces.loads import KEPT
from gridsched.traces.tracing import MOST_STEPS, Tracing
from tests.support.fakes import EVENTS, Script
from tests.support.front import House, serving

CHAT = "/v1/chat/completions"
PROMPT = "a word of the prompt"
HELLO = {"model": "sim-chat-4b", "messages": [{"role": "user", "content": PROMPT}], "max_tokens": 3}
TRACE_ID, PARENT_ID = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
SAMPLED, LEFT_OUT = (f"00-{TRACE_ID}-{PARENT_ID}-{flags}" for flags in ("01", "00"))
ONE = b'data: {"n":1}\n\n'


class Spans:
    """Everything that was traced, by a clock that is the test's."""

    def __init__(self) -> None:
        self._kept = InMemorySpanExporter()
        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(self._kept))
        self.tracing = Tracing(provider.get_tracer("test"), lambda: round(trio.current_time() * 1e9))

    def all(self) -> Sequence[ReadableSpan]:
        """In the order of their ends."""
        return self._kept.get_finished_spans()

    def root(self) -> ReadableSpan:
        """The one of the one request."""
        (span,) = [span for span in self.all() if span.kind is SpanKind.SERVER]
        return span

    def below(self, parent: ReadableSpan, name: str) -> list[ReadableSpan]:
        """The children of that name, in order of their beginnings."""
        found = [each for each in self.all() if each.parent is not None and each.parent.span_id == number(parent)]
        return sorted((each for each in found if each.name == name), key=lambda each: each.start_time or 0)


def number(span: ReadableSpan) -> int:
    assert span.context is not None
    return span.context.span_id


def seconds(span: ReadableSpan) -> float:
    assert span.start_time is not None
    assert span.end_time is not None
    return (span.end_time - span.start_time) / 1e9


def of(span: ReadableSpan) -> Mapping[str, object]:
    return dict(span.attributes or {})


def told(house: House) -> list[Mapping[bytes, bytes]]:
    """The headers of each request to an engine."""
    return [dict(asked.headers) for asked in house.upstream.asked]


async def test_a_request_that_waits_for_a_load_is_told_span_by_span(autojump_clock: MockClock) -> None:
    """Below the client's span: the queue with the load in it, then the step with its first byte and its answer. The
    times are those of the request, and the engine is told of the step."""
    spans = Spans()
    async with serving(autojump_clock, tracing=spans.tracing) as house:
        began = trio.current_time()
        answer = await house.ask("POST", CHAT, HELLO, {"traceparent": SAMPLED, "X-Request-Id": "mine-7"})
        took = trio.current_time() - began
        assert answer.status == 200
        root = spans.root()
        assert root.name == f"POST {CHAT}"
        assert root.context is not None
        assert format(root.context.trace_id, "032x") == TRACE_ID
        assert root.parent is not None
        assert format(root.parent.span_id, "016x") == PARENT_ID
        (queue,), (step,) = spans.below(root, "queue"), spans.below(root, "step")
        (waited,), (first,), (rest,) = (
            spans.below(queue, "load"),
            spans.below(step, "first_byte"),
            spans.below(step, "answer"),
        )
        assert queue.end_time == step.start_time == first.start_time
        assert (first.end_time, rest.end_time) == (rest.start_time, step.end_time)
        assert abs(seconds(queue) + seconds(step) - took) < 0.01
        assert abs(seconds(queue) * 1000 - int(answer.headers["x-gridsched-queue-ms"])) < 10
        asked = {"gen_ai.request.model": "sim-chat-4b", "gen_ai.operation.name": "chat", "gridsched.job": 1}
        assert of(root).items() >= asked.items()
        assert of(step).items() >= (asked | {"gridsched.step": 1, "http.response.status_code": 200}).items()
        of_root = {"gridsched.class": "interactive", "gridsched.streamed": False, "gridsched.request_id": "mine-7"}
        assert of(root).items() >= (of_root | {"http.response.status_code": 200, "gridsched.steps": 1}).items()
        (load,) = [span for span in spans.all() if span.name == "load" and span.parent is None]
        assert [link.context for link in waited.links] == [load.context]
        assert of(load)["gridsched.devices"] == ("sim0",)
        assert 1 < seconds(load) == of(load)["gridsched.load_seconds"]
        assert seconds(waited) <= seconds(load)
        (sent,) = told(house)
        assert sent[b"traceparent"].decode() == f"00-{TRACE_ID}-{number(step):016x}-01"
        accept = {"Accept": "application/openmetrics-text"}
        page = (await house.ask("GET", "/metrics", headers=accept)).body.decode()
        assert f'# {{job="1",trace_id="{TRACE_ID}"}}' in page
        assert PROMPT not in "".join(span.to_json() for span in spans.all())


async def test_each_step_of_a_job_has_its_spans(autojump_clock: MockClock) -> None:
    """Embeddings run step by step, and may wait before each."""
    spans = Spans()
    async with serving(autojump_clock, tracing=spans.tracing) as house:
        inputs = [str(each) for each in range(70)]
        assert (await house.ask("POST", "/v1/embeddings", {"model": "sim-embed", "input": inputs})).status == 200
        root = spans.root()
        steps = spans.below(root, "step")
        assert of(root).items() >= {"gridsched.steps": 3, "gen_ai.operation.name": "embeddings"}.items()
        assert [of(step)["gridsched.step"] for step in steps] == [1, 2, 3]
        assert len(spans.below(root, "queue")) == 3
        assert [sent[b"traceparent"].split(b"-")[2].decode() for sent in told(house)] == [
            f"{number(step):016x}" for step in steps
        ]


async def test_a_job_of_very_many_steps_does_not_grow_without_end(autojump_clock: MockClock) -> None:
    """A list of prompts is a step each; further ones are counted, their engine is told of the request's span."""
    spans, steps = Spans(), MOST_STEPS + 2
    async with serving(autojump_clock, tracing=spans.tracing) as house:
        house.upstream.scripts.extend(
            Script([json.dumps({"choices": [{"index": 0, "text": "a"}], "usage": {}}).encode()]) for _ in range(steps)
        )
        body = {"model": "sim-chat-4b", "prompt": ["a"] * steps, "max_tokens": 1}
        answer = await house.ask("POST", "/v1/completions", body)
        assert answer.status == 200
        root = spans.root()
        assert len(spans.below(root, "step")) == len(spans.below(root, "queue")) == MOST_STEPS
        assert of(root)["gridsched.steps_without_span"] == 2
        assert told(house)[-1][b"traceparent"].split(b"-")[2] == f"{number(root):016x}".encode()


async def test_a_client_that_leaves_ends_every_span_at_once(autojump_clock: MockClock) -> None:
    """In the queue, and in mid-answer."""
    spans = Spans()
    async with serving(autojump_clock, tracing=spans.tracing) as house:
        house.upstream.scripts.append(Script([ONE, 1000.0], headers=EVENTS))
        for waits_for in ("load", "dispatch"):
            client = await house.connect()
            await client.send("POST", CHAT, json.dumps(HELLO | {"stream": True}).encode())
            await house.until_logged(waits_for)
            await trio.sleep(0.1)
            async with client:
                pass
            with trio.fail_after(1.0):
                await house.runtime.desk.wait_idle()
        await trio.testing.wait_all_tasks_blocked()
    roots = [span for span in spans.all() if span.kind is SpanKind.SERVER]
    assert [of(root)["error.type"] for root in roots] == ["client_gone"] * 2
    assert {root.status.status_code for root in roots} == {StatusCode.ERROR}
    assert [[event.name for event in root.events] for root in roots] == [["client_gone"]] * 2
    assert [len(spans.below(root, "step")) for root in roots] == [0, 1]
    (step,) = spans.below(roots[1], "step")
    assert of(step)["error.type"] == "client_gone"
    assert len(spans.below(step, "answer")) == 1


async def test_P5_a_step_whose_engine_dies_is_a_span_and_its_second_run_another(autojump_clock: MockClock) -> None:
    """The client sees neither; a load that failed is told as an error of the load."""
    spans = Spans()
    async with serving(autojump_clock, tracing=spans.tracing) as house:
        house.upstream.scripts.append(Script([UpstreamFailureKind.BROKEN]))
        answer = await house.ask("POST", CHAT, HELLO)
        assert answer.status == 200
        root = spans.root()
        first, second = spans.below(root, "step")
        assert (of(first)["error.type"], first.status.status_code) == ("engine_died", StatusCode.ERROR)
        assert second.status.status_code is StatusCode.UNSET
        assert root.status.status_code is StatusCode.UNSET
        assert len(spans.below(root, "queue")) == 2


async def test_a_refusal_is_told_in_the_contracts_word(autojump_clock: MockClock) -> None:
    """A client's fault is no error of the server's; what the server cannot do is one."""
    spans = Spans()
    async with serving(autojump_clock, tracing=spans.tracing) as house:
        assert (await house.ask("POST", CHAT, HELLO | {"model": "nobody"})).status == 404
        warm = HELLO | {"gridsched": {"warm_only": True}}
        refused = await house.ask("POST", CHAT, warm)
        unknown, cold = (span for span in spans.all() if span.kind is SpanKind.SERVER)
        assert of(unknown).items() >= {"error.type": "model_not_found", "http.response.status_code": 404}.items()
        assert unknown.status.status_code is StatusCode.UNSET
        assert of(cold)["error.type"] == refused.error["code"] == "not_resident"


async def test_what_a_person_cancels_is_told_so(autojump_clock: MockClock) -> None:
    """Its wait ends with it."""
    spans = Spans()
    async with serving(autojump_clock, tracing=spans.tracing) as house, await house.connect() as client:
        await client.send("POST", CHAT, json.dumps(HELLO).encode())
        await house.until_logged("load")
        house.runtime.desk.cancel(JobId(1))
        assert (await client.head()).status == 502
        await trio.testing.wait_all_tasks_blocked()
        root = spans.root()
        assert of(root)["error.type"] == "cancelled"
        assert root.status.status_code is StatusCode.ERROR
        assert len(spans.below(root, "queue")) == 1


async def test_only_the_latest_loads_are_kept(autojump_clock: MockClock) -> None:
    """Each span of a load ends once, also of one that is never heard of again."""
    assert trio.lowlevel.current_clock() is autojump_clock
    spans = Spans()
    for number in range(KEPT + 2):
        spans.tracing.saw({"event": "load", "model": "m", "instance": number, "bytes": {"gpu0": 1}})
        if number:
            spans.tracing.saw({"event": "ready", "model": "m", "instance": number})
    assert len(spans.all()) == KEPT + 2
    spans.tracing.saw({"event": "exit", "model": "m", "instance": 0, "cause": "crash"})
    assert len(spans.all()) == KEPT + 2


async def test_a_client_that_is_not_sampled_is_left_out_and_the_engine_told_so(autojump_clock: MockClock) -> None:
    """By its own word; what is no trace context begins a trace of its own."""
    spans = Spans()
    async with serving(autojump_clock, tracing=spans.tracing) as house:
        assert (await house.ask("POST", CHAT, HELLO, {"traceparent": LEFT_OUT})).status == 200
        assert [span for span in spans.all() if span.name != "load"] == []
        assert told(house)[0][b"traceparent"].decode().startswith(f"00-{TRACE_ID}-")
        assert told(house)[0][b"traceparent"].endswith(b"-00")
        for nonsense in (SAMPLED + "-more", "00-" + "0" * 32 + f"-{PARENT_ID}-01", "nonsense", f"{SAMPLED}, {SAMPLED}"):
            assert (await house.ask("POST", CHAT, HELLO, {"traceparent": nonsense})).status == 200
        roots = [span for span in spans.all() if span.kind is SpanKind.SERVER]
        assert [root.parent for root in roots] == [None] * 4


async def test_without_traces_a_clients_context_passes_as_it_came(autojump_clock: MockClock) -> None:
    """If it can be one; nothing else of the client's goes up with it."""
    state = "vendor=a,other=b"
    cases: list[tuple[dict[str, str], dict[bytes, bytes]]] = [
        (
            {"traceparent": SAMPLED, "tracestate": state},
            {b"traceparent": SAMPLED.encode(), b"tracestate": state.encode()},
        ),
        ({"traceparent": LEFT_OUT, "baggage": "user=7"}, {b"traceparent": LEFT_OUT.encode()}),
        (
            {"traceparent": SAMPLED.replace("00-", "01-", 1) + "-x"},
            {b"traceparent": b"01" + SAMPLED[2:].encode() + b"-x"},
        ),
        ({"traceparent": SAMPLED + "-x"}, {}),
        ({"traceparent": "ff" + SAMPLED[2:]}, {}),
        ({"traceparent": SAMPLED.upper()}, {}),
        ({"tracestate": state}, {}),
        ({"traceparent": SAMPLED, "tracestate": "a" * 513}, {b"traceparent": SAMPLED.encode()}),
        ({"traceparent": "01" + SAMPLED[2:] + "-" + "x" * 513}, {}),
    ]
    usual: Callable[[Mapping[bytes, bytes]], dict[bytes, bytes]] = lambda headers: {  # noqa: E731 - read beside its use
        name: value for name, value in headers.items() if name not in {b"content-type", b"accept-encoding"}
    }
    async with serving(autojump_clock) as house:
        for headers, _ in cases:
            assert (await house.ask("POST", CHAT, HELLO, headers)).status == 200
        assert [usual(headers) for headers in told(house)] == [expected for _, expected in cases]


async def test_a_long_state_of_a_trace_is_not_passed_on(autojump_clock: MockClock) -> None:
    """An engine would refuse the request for it; the trace goes on without."""
    spans = Spans()
    async with serving(autojump_clock, tracing=spans.tracing) as house:
        for state in ("v=" + "a" * 200, ",".join(f"v{each}={'a' * 200}" for each in range(32))):
            answer = await house.ask("POST", CHAT, HELLO, {"traceparent": SAMPLED, "tracestate": state})
            assert answer.status == 200
        short, long = told(house)
        assert short[b"tracestate"].decode() == "v=" + "a" * 200
        assert b"tracestate" not in long
        assert long[b"traceparent"].decode().startswith(f"00-{TRACE_ID}-")
