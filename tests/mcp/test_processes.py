"""Real processes and the SDK's own client, on both of its event loops: over HTTP, and over stdio through the bridge."""

import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
from mcp.client.client import Client
from mcp.client.stdio import StdioServerParameters

from gridsched.cli.mcp import port_in
from gridsched.mcp.bridge import WATCHDOGS, merged_name
from gridsched.mcp.tools import TOOLS
from tests.mcp.clients import connected, leaves_generators_behind
from tests.mcp.test_server import carried_out
from tests.support.gateway import PLAIN, Gateway, clean_environment, command, free_port, start

LOOPS = ("asyncio", "trio")
MODEL = "sim-chat-2b"

pytestmark = [
    pytest.mark.slow,
    leaves_generators_behind,
    pytest.mark.filterwarnings(
        "ignore::ResourceWarning"
    ),  # the SDK's client leaves streams of its own to the collector
]


@dataclass
class Machine:
    """A gateway with its watchdog, and where they keep their data."""

    gateway: Gateway
    data: Path

    def bridge(self, *words: str) -> StdioServerParameters:
        """What a client starts."""
        program, *rest = command("mcp", "--data-dir", str(self.data), *words)
        return StdioServerParameters(command=program, args=rest, env=environment(self.data))


def environment(data: Path) -> dict[str, str]:
    """Ours, with a configuration folder of its own."""
    return clean_environment() | {"XDG_CONFIG_HOME": str(data.parent / "config")}


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """Simulated hardware, real processes."""
    folder = tmp_path_factory.mktemp("mcp")
    running = start(folder, "--sim")
    data = folder / "data"
    words = command("watchdog", "--data-dir", str(data), "--port", str(free_port()))
    with (folder / "watchdog.log").open("w", encoding="utf-8") as log:
        watchdog = subprocess.Popen(words, stderr=log, env=environment(data))
    try:
        assert running.comes_to(lambda: port_in(data) != 0)
        yield Machine(running, data)
    finally:
        watchdog.send_signal(signal.SIGTERM)
        assert watchdog.wait(30) == 0
        assert running.stop() == 0


def on(loop: str, work: Callable[[], Awaitable[Any]]) -> Any:
    """What comes of it on one of the event loops, within a time that only something broken takes."""

    async def bounded() -> Any:
        with anyio.fail_after(60):
            return await work()

    return anyio.run(bounded, backend=loop)


async def worked_through(client: Client) -> None:
    """What an agent does: look, ask first, load and hear of it, err, unload."""
    seen: list[str | None] = []

    async def note(_: float, __: float | None, text: str | None) -> None:
        seen.append(text)

    listed = [each.name for each in (await client.list_tools()).tools]
    assert listed[: len(TOOLS)] == list(TOOLS)
    loaded = await carried_out(client, "load_model", {"model": MODEL}, note)
    assert loaded.structured_content["model"] == MODEL
    assert any(str(text).startswith(f"loading {MODEL}") for text in seen)
    planned = await client.call_tool("unload_model", {"model": MODEL})
    assert planned.structured_content["plan"]["harms"] is True
    failed = await client.call_tool("explain", {"job": "999999"})
    assert failed.structured_content["error"]["code"] == "not_found"
    token = planned.structured_content["token"]
    assert not (await client.call_tool("unload_model", {"model": MODEL, "token": token})).is_error
    assert '"instances":[]' in (await client.read_resource("gridsched://status")).contents[0].text


@pytest.mark.parametrize("mode", ["auto", "legacy"])
@pytest.mark.parametrize("loop", LOOPS)
def test_an_agent_works_over_http(machine: Machine, loop: str, mode: str) -> None:
    """With a client on either event loop; the server's is trio's."""

    async def work() -> None:
        token = (machine.data / "admin.token").read_text(encoding="ascii").strip()
        async with connected(machine.gateway.url, mode, token) as client:
            await worked_through(client)

    on(loop, work)
    assert machine.gateway.get("/health").json()["can_serve"]


@pytest.mark.parametrize("loop", LOOPS)
def test_an_agent_works_over_stdio(machine: Machine, loop: str) -> None:
    """The bridge is a process of the client's; both servers' tools are one list."""

    async def work() -> None:
        async with Client(machine.bridge()) as client:
            await worked_through(client)
            names = {each.name for each in (await client.list_tools()).tools}
            assert names == TOOLS.keys() | {merged_name(name) for name in WATCHDOGS}
            health = await client.call_tool("recovery_health", {})
            assert health.structured_content["gateway"]["state"] == "serving"
            assert "recovery_health says so" in str(client.instructions)

    on(loop, work)


def test_the_watchdogs_credential_goes_to_the_holder_of_its_lock_alone(machine: Machine, tmp_path: Path) -> None:
    """A folder that says a port, and nobody who holds its lock: the watchdog is away."""
    (tmp_path / "watchdog").mkdir()
    (tmp_path / "watchdog/watchdog.lock").write_text('{"pid": 1, "port": 1235}', encoding="ascii")
    assert port_in(tmp_path) == 0
    assert port_in(tmp_path / "absent") == 0
    assert port_in(machine.data) > 0


def test_the_bridge_says_nothing_but_the_protocol(tmp_path: Path) -> None:
    """With no server anywhere: what is no message is answered by one, and its end is the client's."""
    program = [sys.executable, "-m", "gridsched", "mcp", "--data-dir", str(tmp_path / "data")]
    asked = b'no json\n{"jsonrpc":"2.0","id":1,"method":"ping"}\n'
    done = subprocess.run(
        [*program, "--server", f"http://127.0.0.1:{free_port()}"],
        input=asked,
        capture_output=True,
        check=False,
        timeout=60,
        env=environment(tmp_path / "data"),
    )
    assert done.returncode == 0, done.stderr
    for line in done.stdout.splitlines():
        assert line.startswith(b'{"jsonrpc":"2.0"'), done.stdout
    assert b"Traceback" not in done.stderr


def test_L3_a_client_process_that_is_killed_in_mid_load_costs_nothing(machine: Machine) -> None:
    """The load has its end, and half of a second of the processor's time is more than the server takes until then."""

    def state() -> str:
        return str(machine.gateway.get(f"/api/models/{LARGE}").json()["state"])

    process = subprocess.Popen([sys.executable, "-c", KILLED, machine.gateway.url], env=dict(os.environ))
    try:
        assert machine.gateway.comes_to(lambda: state() == "loading")
        process.kill()
        process.wait(10)
        before = processor_seconds(machine.gateway)
        assert machine.gateway.comes_to(lambda: state() == "ready")
        assert processor_seconds(machine.gateway) - before < 0.5 + 0.02 * 10
    finally:
        process.kill()
    assert httpx.get(f"{machine.gateway.url}/health", **PLAIN).json()["can_serve"]


LARGE = "sim-chat-4b"
KILLED = f"""
import asyncio, sys
from mcp.client.client import Client
async def main():
    async with Client(sys.argv[1] + "/mcp") as client:
        planned = await client.call_tool("load_model", {{"model": "{LARGE}", "dry_run": True}})
        token = planned.structured_content["token"]
        await client.call_tool("load_model", {{"model": "{LARGE}", "token": token}})
asyncio.run(main())
"""


def processor_seconds(gateway: Gateway) -> float:
    """What the gateway's process has used so far."""
    fields = Path(f"/proc/{gateway.process.pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
