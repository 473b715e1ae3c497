"""An engine that is well in the morning: what becomes of answers when it dies, hangs or dawdles behind them."""

import os
import signal
from collections.abc import Iterator

import pytest

from tests.faults.bench import Bench, Served, serve

pytestmark = pytest.mark.slow

MODELS = ("health", "hang", "short")


@pytest.fixture(scope="module")
def bench(benches: list[Bench], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """A gateway that calls an engine stalled that is silent for 4 s; a healthy one is not, on the busiest machine."""
    models = dict.fromkeys(MODELS, Served(settings={"parallel": 2}))
    settings = {"scheduler": {"stall_limit": "4s"}}
    running = serve(tmp_path_factory.mktemp("answers"), models, settings=settings)
    benches.append(running)
    yield running
    assert running.gateway.stop() == 0


def test_B7_an_engine_is_ready_when_it_says_so_whatever_it_said_before(bench: Bench) -> None:
    """B7: refused, in trouble, still loading: asked again, and nobody's request is sent before."""
    bench.tell("health", health=[(500, "oops"), (503, '{"status":"loading"}'), (200, "{}")])
    assert bench.chat("health").status == 200
    asked = bench.recorded("health", "path")
    assert asked.count("/health") == 3
    assert asked.index("/v1/chat/completions") > max(at for at, path in enumerate(asked) if path == "/health")


def test_S9_a_request_that_is_never_answered_ends_and_takes_its_process_with_it(bench: Bench) -> None:
    """S9: the third one hangs, and is told so; the next ones are answered by a new process."""
    bench.tell("hang", hang_at_request=3)
    answers = [bench.chat("hang") for _ in range(5)]
    assert [answer.status for answer in answers] == [200, 200, 502, 200, 200]
    assert answers[2].error["code"] == "upstream_error"
    assert bench.starts("hang") == 2


def test_B2_a_process_that_ends_by_itself_between_requests_is_seen_to(bench: Bench) -> None:
    """B2: while nobody asks it anything; its end is told as a crash, and the next chat is answered."""
    bench.tell("short", exit_status=7)
    assert bench.chat("short").status == 200
    os.kill(bench.pid("short"), signal.SIGUSR2)
    assert bench.until_event("exit", "short")["cause"] == "crashed"
    assert bench.chat("short").status == 200
