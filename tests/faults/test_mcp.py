"""What others have met with MCP servers inside a program that does something else (section L)."""

import json
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from mcp.client.client import Client
from trio.testing import MockClock

from gridsched.api.app import Doors, Front
from gridsched.api.listen import listen
from gridsched.api.settings import FrontSettings
from gridsched.mcp.door import Agents
from gridsched.metrics.registry import Metrics
from tests.mcp.clients import JSON, MODES, connected, leaves_generators_behind, message_of, post, url_of
from tests.support.front import House, serving

pytestmark = leaves_generators_behind

MODEL = "sim-chat-4b"
MODERN = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
}


@pytest.mark.parametrize("session", ["0c3b2f6e5d7a4b1e9f8a7c6d5e4f3a2b", "made up", ""])
async def test_L1_a_session_of_a_server_that_is_gone_is_not_known(autojump_clock: MockClock, session: str) -> None:
    """A 404, on which a client begins anew; without one every request is served, before and after a restart."""
    for _ in range(2):
        async with serving(autojump_clock) as house:
            stale = await post(house, "tools/list", headers={"Mcp-Session-Id": session})
            assert (stale.status, stale.error["code"]) == (404, -32600)
            assert "initialize" in str(stale.error["message"])
            hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "c", "version": "1"}}
            begun = await post(house, "initialize", hello)
            assert (begun.status, "mcp-session-id" in begun.headers) == (200, False)
            assert (await post(house, "tools/list")).status == 200


@pytest.mark.parametrize("mode", MODES)
async def test_L3_a_client_that_is_killed_in_mid_load_leaves_nothing_behind(
    autojump_clock: MockClock, mode: str
) -> None:
    """The load has its end. Half a minute later as many tasks live as before; a task that spun would have kept this
    clock, which jumps only when all wait, from ever coming there."""
    async with serving(autojump_clock) as house:
        assert (await post(house, "ping")).status == 200
        token = await token_for(house)
        before = trio.lowlevel.current_statistics().tasks_living
        given = {"name": "load_model", "arguments": {"model": MODEL, "token": token}}
        meta: dict[str, Any] = {"progressToken": 1} | (MODERN if mode == "auto" else {})
        named = {"MCP-Protocol-Version": "2026-07-28", "Mcp-Method": "tools/call", "Mcp-Name": "load_model"}
        message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": given | {"_meta": meta}}
        client = await house.connect()
        await client.send("POST", "/mcp", json.dumps(message).encode(), JSON | (named if mode == "auto" else {}))
        head = await client.head()
        assert (head.status, head.headers["content-type"].partition(";")[0]) == (200, "text/event-stream")
        await trio.sleep(1)
        assert not house.logged("ready")
        client.stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        await client.stream.aclose()
        await house.until_logged("ready")
        await trio.sleep(30)
        assert trio.lowlevel.current_statistics().tasks_living <= before
        assert (await house.ask("GET", f"/api/models/{MODEL}")).json["state"] == "ready"
        assert (await post(house, "ping")).status == 200


async def token_for(house: House) -> str:
    """A token of the plan to load the model."""
    given = {"name": "load_model", "arguments": {"model": MODEL, "dry_run": True}}
    planned = message_of(await post(house, "tools/call", given))["result"]["structuredContent"]
    return str(planned["token"])


@pytest.mark.parametrize("mode", MODES)
async def test_L6_twenty_calls_at_once_on_trio_one_of_which_fails(autojump_clock: MockClock, mode: str) -> None:
    """Nineteen are answered, one is an error of its own, and the client goes on."""
    came: dict[int, bool] = {}

    async def call(client: Client, number: int) -> None:
        name, given = ("explain", {"job": "no number"}) if number == 7 else ("server_status", {})
        came[number] = (await client.call_tool(name, given)).is_error

    async with serving(autojump_clock) as house, connected(url_of(house), mode) as client:
        async with trio.open_nursery() as nursery:
            for number in range(20):
                nursery.start_soon(call, client, number)
        assert [number for number, failed in sorted(came.items()) if failed] == [7]
        assert len(came) == 20
        assert not (await client.call_tool("list_jobs", {})).is_error


@pytest.mark.parametrize("mode", MODES)
async def test_L7_a_server_can_begin_again_in_one_process(autojump_clock: MockClock, mode: str) -> None:
    """Also with the same door."""
    agents = Agents()
    async with serving(autojump_clock) as house:
        for _ in range(2):
            async with another_front(house, agents) as url, connected(url, mode) as client:
                assert not (await client.call_tool("server_status", {})).is_error


@asynccontextmanager
async def another_front(house: House, agents: Agents) -> AsyncIterator[str]:
    """A second front of a running server, behind a door that may have been used before."""
    listener, stop = listen("127.0.0.1", 0), trio.Event()
    metrics = Metrics(house.world.engine.info())
    front = Front(listener, FrontSettings(), metrics, house.authority, doors=Doors(agents))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(front, house.runtime, stop)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        stop.set()
