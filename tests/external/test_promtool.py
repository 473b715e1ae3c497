"""Prometheus's own checker reads our metrics page."""

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.gateway import simulated_gateway

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


def promtool() -> str:
    """Where `install.sh` has put it, unless the system has one."""
    return shutil.which("promtool") or str(ROOT / ".cache/external/usr/bin/promtool")


def test_promtool_finds_nothing_wrong_with_the_metrics_page(tmp_path: Path) -> None:
    """`promtool check metrics` on the page of a server that has answered, refused and queued."""
    with simulated_gateway(tmp_path) as gateway:
        for model in ("sim-chat-4b", "nobody"):
            gateway.post("/v1/chat/completions", {"model": model, "messages": [{"role": "user", "content": "hi"}]})
        gateway.post("/v1/embeddings", {"model": "sim-embed", "input": ["a", "b"]})
        page = gateway.get("/metrics").text
    assert "gridsched_requests_total" in page
    done = subprocess.run([promtool(), "check", "metrics"], input=page, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
