"""When there are traces, by OpenTelemetry's own environment variables; what is said where there are none."""

import logging
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from gridsched.traces.setup import FLUSH_SECONDS, obstacle, tracing, wanted_by
from tests.support.gateway import clean_environment, free_port, start
from tests.traces.collector import collecting

ENDPOINT, OF_TRACES = "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
HERE = {ENDPOINT: "http://127.0.0.1:4318"}
CHAT = "/v1/chat/completions"
HELLO = {"model": "sim-chat-4b", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}


def test_what_is_odd_at_the_start_hides_no_collector_that_is_down(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each part of the library has its own line. The first of this file: an exporter of another test may still have a
    word to say after its end."""
    monkeypatch.setenv(ENDPOINT, "nowhere://me:hush@host")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "nonsense")
    said: list[str] = []
    with tracing(HERE, said.append) as traces:
        assert traces is not None
        traces.begin(CHAT, {}, "req-1").ended(200)
    odd, down = said
    assert "nonsense" in odd
    assert "nowhere" in down
    assert "hush" not in down


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, ""),
        ({ENDPOINT: " "}, ""),
        ({"OTEL_SERVICE_NAME": "rig"}, ""),
        (HERE, ENDPOINT),
        ({**HERE, OF_TRACES: "http://a/v1/traces"}, OF_TRACES),
        ({"OTEL_TRACES_EXPORTER": "otlp"}, "OTEL_TRACES_EXPORTER"),
        ({**HERE, "OTEL_TRACES_EXPORTER": "none"}, ""),
        ({**HERE, "OTEL_SDK_DISABLED": "TRUE"}, ""),
    ],
)
def test_the_environment_says_whether_there_are_traces(environ: Mapping[str, str], expected: str) -> None:
    """By the variables that OpenTelemetry's own SDKs read; nothing of ours is needed."""
    assert wanted_by(environ) == expected
    assert not expected or not obstacle(environ)


@pytest.mark.parametrize(
    ("environ", "word"),
    [
        ({**HERE, "OTEL_TRACES_EXPORTER": "zipkin"}, "zipkin"),
        ({**HERE, "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, "4318"),
        ({**HERE, "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/json"}, "http/protobuf"),
    ],
)
def test_what_cannot_be_sent_as_asked_is_said_in_one_line(environ: Mapping[str, str], word: str) -> None:
    """And the server goes on without."""
    said: list[str] = []
    with tracing(environ, said.append) as traces:
        assert traces is None
    (line,) = said
    assert line.startswith("there are no traces: ")
    assert word in line


_ASKED = """
from gridsched.traces.setup import tracing
with tracing({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318"}, print) as traces:
    assert traces is None
"""
_WITHOUT = f"""
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "opentelemetry":
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Missing())
{_ASKED}"""
_OFF = """
import sys
import gridsched.cli.serve, gridsched.app, gridsched.api.inference
from gridsched.traces.setup import tracing
with tracing({}, print) as traces:
    assert traces is None
print(sorted(name for name in sys.modules if name.partition(".")[0] in ("opentelemetry", "google", "requests")))
"""


def _python(program: str) -> str:
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    return ran.stdout


@pytest.mark.slow
def test_without_the_extra_a_line_says_what_to_install() -> None:
    """Once, at the start; nothing fails."""
    (line,) = _python(_WITHOUT).splitlines()
    assert "OTEL_EXPORTER_OTLP_ENDPOINT is set" in line
    assert f"{sys.executable} -m pip install 'gridsched[otel]'" in line


@pytest.mark.slow
def test_an_environment_that_the_sdk_cannot_even_be_imported_in_is_said() -> None:
    """It reads some of it while it is imported; a server starts all the same."""
    program = f"import os; os.environ['OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT'] = 'https://me:hush@host'{_ASKED}"
    (line,) = _python(program).splitlines()
    assert line.startswith("there are no traces: OpenTelemetry refuses its configuration: ")
    assert "hush" not in line


@pytest.mark.slow
def test_where_nobody_asks_for_traces_nothing_of_the_sdk_is_imported() -> None:
    """A server that does not trace pays nothing for it."""
    assert _python(_OFF) == "[]\n"


def test_a_configuration_that_the_sdk_refuses_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """A queue of no length is none."""
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "-1")
    said: list[str] = []
    with tracing(HERE, said.append) as traces:
        assert traces is None
    assert "OpenTelemetry refuses its configuration" in said[-1]
    assert logging.getLogger("opentelemetry").propagate


@pytest.mark.slow
def test_a_collector_that_hangs_holds_nobody_up_and_the_end_not_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spans are made without waiting, and the end waits for its bound alone."""
    with collecting(hangs=True) as collector:
        monkeypatch.setenv(ENDPOINT, collector.url)
        monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "10")
        with tracing({ENDPOINT: collector.url}, print) as traces:
            assert traces is not None
            traces.begin(CHAT, {}, "req-1").ended(200)
            assert collector.came.wait(30)
            for _ in range(5000):
                traces.begin(CHAT, {}, "req-1").ended(200)
            ends_at = time.monotonic()
        assert time.monotonic() - ends_at < FLUSH_SECONDS + 5


def test_a_collector_that_is_down_is_told_of_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a line, whatever the library has to say of it."""
    monkeypatch.setenv(ENDPOINT, f"http://127.0.0.1:{free_port()}")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "0.1")
    said: list[str] = []
    with tracing(HERE, said.append) as traces:
        assert traces is not None
        parent = b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
        traces.begin(CHAT, {b"traceparent": parent, b"tracestate": b"nonsense"}, "req-1").ended(200)
    assert len(said) == 1, said
    assert "nonsense" not in said[0]
    assert said[0].startswith("traces: ")


@pytest.mark.slow
def test_a_collector_gets_the_spans_of_a_server_that_ends(tmp_path: Path) -> None:
    """Over HTTP, in protobuf; those of the last moment too, under the name that the environment gives."""
    with collecting() as collector:
        env = {ENDPOINT: collector.url, "OTEL_SERVICE_NAME": "rig"}
        gateway = start(tmp_path, "--sim", env={**clean_environment(), **env})
        try:
            parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
            assert gateway.post(CHAT, HELLO, {"traceparent": parent}).status_code == 200
        finally:
            assert gateway.stop() == 0
        assert collector.resource()["service.name"] == "rig"
        mine = [span for span in collector.spans() if span.trace_id.hex() == parent.split("-")[1]]
        by_id = {span.span_id: span for span in mine}
        of_parent = sorted(
            (by_id[span.parent_span_id].name, span.name) for span in mine if span.parent_span_id in by_id
        )
        server = f"POST {CHAT}"
        assert [span.parent_span_id.hex() for span in mine if span.name == server] == [parent.split("-")[2]]
        assert of_parent == [
            (server, "queue"),
            (server, "step"),
            ("queue", "load"),
            ("step", "answer"),
            ("step", "first_byte"),
        ]
