"""Section M: what a server does to its machine over time: logs, memory, others that want its place."""

import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.faults.bench import Bench, Served, serve
from tests.faults.conftest import Start

pytestmark = pytest.mark.slow

MIB = 1 << 20
LIMIT_BYTES = 80 * MIB
LOG_BYTES = 4 * MIB
LOGS_KEPT = 4
"""Of each model: the one that is written to, and three before it."""


@pytest.fixture(scope="module")
def bench(benches: list[Bench], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """A gateway with a model that will flood it, one that will grow, and one that people use meanwhile."""
    models = dict.fromkeys(("m3", "m11", "quiet"), Served())
    limit = {"engine": {"host_memory_limit": f"{LIMIT_BYTES >> 20}MiB"}}
    running = serve(tmp_path_factory.mktemp("service"), models, settings=limit)
    benches.append(running)
    yield running
    assert running.gateway.stop() == 0


def test_M3_a_flood_of_output_stays_within_bounds_and_hinders_nobody(bench: Bench) -> None:
    """M3: a process prints on and on; its files are no more than they may be, the gateway does not grow, people are
    answered."""
    bench.tell("m3", print_rate_bytes=50 * MIB)
    assert bench.chat("quiet").status == 200
    before = resident_bytes(bench)
    assert bench.chat("m3").status == 200
    for _ in range(30):
        assert bench.chat("quiet").status == 200
        threading.Event().wait(0.02)
    files = list((bench.folder / "data" / "logs").glob("m3.log*"))
    assert len(files) <= LOGS_KEPT
    assert MIB < sum(path.stat().st_size for path in files) <= LOGS_KEPT * LOG_BYTES + MIB
    assert resident_bytes(bench) - before < 24 * MIB


def test_M11_a_process_that_grows_with_every_request_is_started_anew_in_a_quiet_moment(bench: Bench) -> None:
    """M11: beyond its limit, while nobody uses it; how much it holds is shown, and nobody is refused."""
    bench.tell("m11", grow_bytes=10 * MIB)
    assert [bench.chat("m11").status for _ in range(10)] == [200] * 10
    first = bench.pid("m11")
    assert b'gridsched_model_host_memory_bytes{model="m11"}' in bench.ask("/metrics").body
    bench.until(lambda: first not in bench.pids("m11"), "it is told to go")
    assert bench.chat("m11").status == 200


def test_P8_K6_a_second_signal_waits_for_nobody_and_leaves_nothing(start: Start) -> None:
    """One answer would go on for minutes, one model loads, one chat waits: the first signal drains, the second ends it,
    with all of its engines."""
    bench = start({"streams": Served(), "loads": Served()})
    bench.tell("streams", tokens_per_second=10)
    bench.tell("loads", start_delay_seconds=15.0)
    with bench.streamed("streams", max_tokens=10_000) as lines, ThreadPoolExecutor() as pool:
        next(lines)
        waiting = [pool.submit(bench.chat, model) for model in ("loads", "streams")]
        bench.until_event("load", "loads")
        bench.until(lambda: len(bench.status()["waiting"]) == 2, "both wait")
        bench.gateway.process.send_signal(signal.SIGTERM)
        assert [asked.result().error["code"] for asked in waiting] == ["draining", "draining"]
        assert bench.ask("/health").json["draining"] is True
        bench.gateway.process.send_signal(signal.SIGTERM)
        assert bench.gateway.process.wait(20) == 0  # the drain alone would take 30
        assert b"data: [DONE]" not in list(lines)


def resident_bytes(bench: Bench) -> int:
    """The gateway's own memory."""
    words = Path(f"/proc/{bench.gateway.process.pid}/status").read_text(encoding="utf-8").split()
    return int(words[words.index("VmRSS:") + 1]) << 10
