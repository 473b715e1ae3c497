"""The bridge: a gateway's tools and its watchdog's as one list, whether they answer or not."""

import socket
from collections.abc import Callable
from typing import Any

import pytest
import trio
from mcp.client.client import Client
from mcp.shared.exceptions import MCPError
from trio.testing import MockClock

from gridsched.api.listen import listen
from gridsched.credentials import Scope
from gridsched.mcp import bridge
from gridsched.mcp.bridge import Address, Away, Bridge, Peer, merged_name, watchdogs_name
from gridsched.mcp.tools import TOOLS
from gridsched.watchdog.tools import Toolbox
from tests.mcp.clients import keep_keys, leaves_generators_behind, url_of
from tests.support.front import serving

pytestmark = leaves_generators_behind

MODEL = "sim-chat-4b"


def gone() -> Address:
    """Nobody."""
    raise Away("no watchdog runs here")


def bridge_to(find: Callable[[], Address]) -> Client:
    """A client of a bridge without a watchdog. It speaks as over stdio: without a wire there is no progress."""
    return Client(Bridge(Peer("gateway", find), Peer("watchdog", gone)).server("how it is"), mode="legacy")


async def test_a_gateways_tools_pass_as_they_are(autojump_clock: MockClock) -> None:
    """With schemas, answers, errors, progress, tokens and resources."""
    seen: list[str | None] = []

    async def note(_: float, __: float | None, text: str | None) -> None:
        seen.append(text)

    async with serving(autojump_clock) as house, bridge_to(lambda: Address(url_of(house))) as client:
        tools = (await client.list_tools()).tools
        assert [each.name for each in tools] == list(TOOLS)
        assert all("does not answer" not in str(each.description) for each in tools)
        info = await client.call_tool("connection_info", {})
        assert info.structured_content["openai_base_url"] == f"{url_of(house)}/v1"
        planned = await client.call_tool("load_model", {"model": MODEL, "dry_run": True})
        token = planned.structured_content["token"]
        loaded = await client.call_tool("load_model", {"model": MODEL, "token": token}, progress_callback=note)
        assert loaded.structured_content["model"] == MODEL
        assert any(text.startswith(f"loading {MODEL}: ") for text in seen)
        failed = await client.call_tool("pin_model", {"model": "sim-chat-4x"})
        assert failed.structured_content["error"]["code"] == "model_not_found"
        with pytest.raises(MCPError) as refused:
            await client.call_tool("chat", {})
        assert refused.value.code == -32602
        status = await client.read_resource("gridsched://status")
        assert MODEL in status.contents[0].text
        assert len((await client.list_resources()).resources) == 2
        assert len((await client.list_resource_templates()).resource_templates) == 1


async def test_a_gateway_that_is_down_is_listed_and_says_what_to_do(autojump_clock: MockClock) -> None:
    """Its tools are there with a note; a call is an error that says so, and works when the gateway is there again."""
    where = [Address(f"http://127.0.0.1:{unused()}")]
    async with bridge_to(lambda: where[0]) as client:
        tools = (await client.list_tools()).tools
        assert [each.name for each in tools] == list(TOOLS)
        assert all("does not answer now" in str(each.description) for each in tools)
        told = await client.call_tool("server_status", {})
        error = told.structured_content["error"]
        assert (told.is_error, error["code"]) == (True, "unreachable")
        assert "gridsched serve" in error["message"]
        assert where[0].url in error["message"]
        with pytest.raises(MCPError):
            await client.read_resource("gridsched://status")
        async with serving(autojump_clock) as house:
            where[0] = Address(url_of(house))
            assert not (await client.call_tool("server_status", {})).is_error


def unused() -> int:
    """A port that nobody listens on."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return int(held.getsockname()[1])


async def test_a_gateway_that_hangs_is_listed_as_well(autojump_clock: MockClock) -> None:
    """It takes connections and says nothing: the list comes all the same, and a call's error, in bounded time."""
    assert trio.current_time() >= autojump_clock.current_time()
    with listen("127.0.0.1", 0) as silent:
        silent.listen()
        async with bridge_to(lambda: Address(f"http://127.0.0.1:{silent.getsockname()[1]}")) as client:
            began = trio.current_time()
            tools = (await client.list_tools()).tools
            assert trio.current_time() - began <= 2 * bridge.LIST_SECONDS
            assert "does not answer now" in str(tools[0].description)
            began = trio.current_time()
            told = await client.call_tool("list_models", {})
            assert trio.current_time() - began <= bridge.GREETING_SECONDS + bridge.LIST_SECONDS
            assert told.structured_content["error"]["code"] == "unreachable"


async def test_H6_the_bridge_is_let_in_by_its_key_alone(autojump_clock: MockClock) -> None:
    """A key's scope shows through it; without one the gateway's own words say what is wanted."""
    async with serving(autojump_clock) as house:
        keep_keys(house, reader=Scope.READ)
        async with bridge_to(lambda: Address(url_of(house), "readerreader")) as client:
            assert "load_model" not in {each.name for each in (await client.list_tools()).tools}
            assert not (await client.call_tool("list_models", {})).is_error
        async with bridge_to(lambda: Address(url_of(house), "sk-wrong")) as client:
            told = await client.call_tool("list_models", {})
            assert told.is_error
            assert told.content[0].text.endswith("x-api-key: KEY.")  # no word of starting what is there
            assert "this API key is not known here" in told.content[0].text


async def test_a_watchdog_that_is_away_is_said_so(autojump_clock: MockClock) -> None:
    """Its tools are not listed, and one that is called all the same says where to start it."""
    async with serving(autojump_clock) as house, bridge_to(lambda: Address(url_of(house))) as client:
        for name in ("recovery_health", "restart_server"):
            told = await client.call_tool(name, {})
            assert told.is_error
            assert told.content[0].text.startswith("no watchdog runs here. Start it")


def test_names_that_both_have_are_told_apart() -> None:
    """By the watchdog's table, and the contract's."""
    names = set(tools_of_the_watchdog())
    assert names == bridge.WATCHDOGS
    merged = {merged_name(name) for name in names}
    assert not merged & TOOLS.keys()
    assert {name for name in merged if name.startswith("recovery_")} == {
        f"recovery_{name}" for name in {"health"} | (names & TOOLS.keys())
    }
    assert {watchdogs_name(name) for name in merged} == names
    assert {watchdogs_name(name) for name in TOOLS} == {None}
    assert watchdogs_name("recovery_restart_server") is None


def tools_of_the_watchdog() -> list[str]:
    """Their names, of a watchdog that watches nothing."""
    nothing: Any = None
    return list(Toolbox(nothing, nothing, nothing, nothing, nothing).tools)
