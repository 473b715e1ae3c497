"""Tools on a real gateway with engines: what one writes the other reads, also while the gateway stands."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from gridsched.watchdog.places import Places
from tests.faults import bench as faults
from tests.support.gateway import clean_environment
from tests.watchdog.conftest import Bench, until

pytestmark = pytest.mark.slow


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[faults.Bench]:
    """A real gateway with two models on the stand-in engine."""
    served = faults.serve(tmp_path, {"chat": faults.Served(), "other": faults.Served()})
    yield served
    served.gateway.process.send_signal(signal.SIGCONT)
    served.gateway.stop()


def test_engines_of_a_real_gateway_are_known_and_ended_while_it_stands(gateway: faults.Bench) -> None:
    """By name, each with its model; the gateway goes on, and serves a model whose processes were ended again."""
    folder = gateway.folder
    bench = Bench(Places(folder / "data", folder / "gridsched.yaml", clean_environment(), folder), runs=False)
    assert [gateway.chat(model).status for model in ("chat", "other")] == [200, 200]
    health = bench.tools.call("health", {})
    assert health["gateway"]["state"] == "serving"
    assert health["gateway"]["pid"] == gateway.gateway.process.pid
    engines = {each["model"]: each for each in health["engines"]}
    assert {model: each["pid"] for model, each in engines.items()} == {
        model: gateway.pid(model) for model in ("chat", "other")
    }
    assert {each["started_by"] for each in engines.values()} == {gateway.gateway.process.pid}
    assert not any(each["orphan"] for each in engines.values())
    assert bench.tools.call("reclaim_orphan_engines", {})["ended"] == []

    said = bench.tools.call("kill_model", {"model": "chat"})
    assert [each["pid"] for each in said["ended"]] == [engines["chat"]["pid"]]
    gateway.until(lambda: gateway.pids("chat") == [])
    assert gateway.chat("chat").status == 200, "loaded again"
    assert gateway.pid("other") == engines["other"]["pid"], "the other one was left alone"

    os.kill(gateway.gateway.process.pid, signal.SIGSTOP)
    until(lambda: "stopped by a signal" in bench.watch.look().sentence)
    said = bench.tools.call("nuke_all_models", {})
    assert {each["model"] for each in said["ended"]} == {"chat", "other"}
    assert said["still_alive"] == []
    assert bench.tools.call("health", {})["engines"] == []
    os.kill(gateway.gateway.process.pid, signal.SIGCONT)
    assert gateway.chat("chat").status == 200
