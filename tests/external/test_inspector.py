"""The protocol's official Inspector, by its command line: over HTTP, and over stdio through the bridge."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gridsched.mcp.tools import TOOLS
from tests.support.gateway import Gateway, clean_environment, command, start

pytestmark = pytest.mark.slow

INSPECTOR = Path(__file__).parents[2] / ".cache/external/node/node_modules/.bin/mcp-inspector"
MODEL = "sim-chat-4b"
WAYS = ("http", "stdio")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """Simulated hardware is enough: no model is asked."""
    running = start(tmp_path_factory.mktemp("inspector"), "--sim")
    yield running
    assert running.stop() == 0


def asked(server: Gateway, way: str, method: str, *words: str) -> dict[str, Any]:
    """What the Inspector shows of one request."""
    data = server.log.parent / "data"
    config = f"XDG_CONFIG_HOME={data.parent / 'config'}"
    target = (
        [f"{server.url}/mcp", "--transport", "http"]
        if way == "http"
        else ["-e", config, *command("mcp", "--data-dir", str(data))]
    )
    done = subprocess.run(
        [INSPECTOR, "--cli", *target, "--method", method, *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env=clean_environment(),
    )
    assert done.returncode == 0, done.stderr + done.stdout
    said: dict[str, Any] = json.loads(done.stdout[done.stdout.index("{") :])
    return said


@pytest.mark.parametrize("way", WAYS)
def test_it_lists_the_tools(server: Gateway, way: str) -> None:
    """All of them, with schemas that it can read."""
    listed = asked(server, way, "tools/list")["tools"]
    assert [each["name"] for each in listed] == list(TOOLS)
    assert all(each["inputSchema"]["type"] == each["outputSchema"]["type"] == "object" for each in listed)
    assert {each["name"] for each in listed if each["annotations"]["readOnlyHint"]} >= {"server_status", "list_models"}


@pytest.mark.parametrize("way", WAYS)
def test_it_calls_tools(server: Gateway, way: str) -> None:
    """It holds each answer against the tool's schema: an answer, a plan and an error pass."""
    info = asked(server, way, "tools/call", "--tool-name", "connection_info")
    assert info["structuredContent"]["openai_base_url"] == f"{server.url}/v1"
    words = ("--tool-name", "unload_model", "--tool-arg", f"model={MODEL}", "--tool-arg", "dry_run=true")
    planned = asked(server, way, "tools/call", *words)
    assert planned["structuredContent"]["token"]
    failed = asked(server, way, "tools/call", "--tool-name", "explain", "--tool-arg", "job=none")
    assert (failed["isError"], failed["structuredContent"]["error"]["code"]) == (True, "not_found")


@pytest.mark.parametrize("way", WAYS)
def test_it_reads_a_resource(server: Gateway, way: str) -> None:
    """The status is JSON."""
    read = asked(server, way, "resources/read", "--uri", "gridsched://status")
    assert "devices" in json.loads(read["contents"][0]["text"])
