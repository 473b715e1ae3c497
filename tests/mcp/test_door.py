"""`/mcp` for clients that are no SDK: curl, a browser, whatever sends something else than a message."""

import json
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from gridsched.api.settings import FrontSettings
from tests.mcp.clients import JSON, message_of, post
from tests.support.front import serving

PING = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
CURL = {"Content-Type": "application/json", "Accept": "*/*"}
HELLO = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "curl", "version": "8"}}


@pytest.mark.parametrize("version", ["2025-03-26", "2025-06-18", "2025-11-25"])
async def test_every_revision_with_a_handshake_is_spoken(autojump_clock: MockClock, version: str) -> None:
    """As curl would ask: each request by itself, and no session is given out."""
    async with serving(autojump_clock) as house:
        answer = await post(house, "initialize", HELLO | {"protocolVersion": version}, {"Accept": "*/*"})
        told = message_of(answer)["result"]
        assert (told["protocolVersion"], told["serverInfo"]["name"]) == (version, "gridsched")
        assert "mcp-session-id" not in answer.headers
        assert set(told["capabilities"]) == {"tools", "resources"}
        done = await house.ask("POST", "/mcp", {"jsonrpc": "2.0", "method": "notifications/initialized"}, CURL)
        assert (done.status, done.body) == (202, b"")
        named = {"MCP-Protocol-Version": version}
        assert message_of(await post(house, "ping", headers=named))["result"] == {}
        listed = message_of(await post(house, "tools/list", headers=named))["result"]["tools"]
        assert "server_status" in {each["name"] for each in listed}
        given = {"name": "explain", "arguments": {"job": "1"}}
        assert message_of(await post(house, "tools/call", given, named))["result"]["isError"] is True
        assert message_of(await post(house, "tools/nothing", {}, named))["error"]["code"] == -32601
        assert message_of(await post(house, "tools/call", {}, named))["error"]["code"] == -32602


@pytest.mark.parametrize(
    ("method", "body", "headers", "status", "code"),
    [
        ("GET", b"", {"Accept": "text/event-stream"}, 405, -32600),
        ("DELETE", b"", {}, 405, -32600),
        ("PUT", PING, JSON, 405, -32600),
        ("POST", b"", CURL, 400, -32700),
        ("POST", b"{", CURL, 400, -32700),
        ("POST", b"\xff\xfe", CURL, 400, -32700),
        ("POST", b"[" * 100_000, CURL, 400, -32700),
        ("POST", [PING, PING], CURL, 400, -32600),
        ("POST", 7, CURL, 400, -32600),
        ("POST", {"id": 1, "method": "ping"}, CURL, 400, -32600),
        ("POST", PING | {"method": 7}, CURL, 400, -32600),
        ("POST", {"jsonrpc": "2.0", "id": 1}, CURL, 400, -32600),
        ("POST", PING | {"params": [1]}, CURL, 400, -32600),
        ("POST", PING | {"id": 1.5}, CURL, 400, -32600),
        ("POST", PING | {"id": True}, CURL, 400, -32600),
        ("POST", PING, {"Content-Type": "text/plain"}, 415, -32600),
        ("POST", PING, {}, 415, -32600),
        ("POST", PING, CURL | {"Accept": "application/json"}, 406, -32600),
        ("POST", PING, CURL | {"Accept": "text/html"}, 406, -32600),
    ],
)
async def test_what_is_no_message_is_told_so(
    autojump_clock: MockClock, method: str, body: object, headers: dict[str, str], status: int, code: int
) -> None:
    """A JSON-RPC error with a sentence, and the connection can be used again."""
    async with serving(autojump_clock) as house, await house.connect() as client:
        answer = await client.ask(method, "/mcp", body, headers)
        assert (answer.status, answer.complete) == (status, True)
        told = answer.json
        assert (told["jsonrpc"], told["id"], answer.error["code"]) == ("2.0", None, code)
        assert len(str(answer.error["message"])) > 10
        assert answer.headers.get("allow") == ("POST" if status == 405 else None)
        assert (await client.ask("POST", "/mcp", PING, CURL)).status == 200


async def test_a_body_that_is_too_large_is_refused_in_a_way_that_can_be_read(autojump_clock: MockClock) -> None:
    """Two megabytes: a 413, whole."""
    async with serving(autojump_clock) as house:
        answer = await house.ask("POST", "/mcp", b" " * 2_000_000, CURL)
        assert (answer.status, answer.complete, answer.error["code"]) == (413, True, "request_too_large")


@pytest.mark.parametrize("headers", [{"Host": "evil.example"}, {"Origin": "http://evil.example"}, {"Origin": "null"}])
async def test_H6_L5_a_page_from_elsewhere_calls_no_tool(autojump_clock: MockClock, headers: dict[str, str]) -> None:
    """As on every other route, and before any work; any name of this machine will do, whatever the SDK thinks of it."""
    async with serving(autojump_clock) as house:
        refused = await post(house, "ping", headers=headers)
        assert (refused.status, refused.error["code"]) == (403, "cross_origin")
        for name in (f"127.0.0.1:{house.port}", f"localhost:{house.port}", f"[::1]:{house.port}"):
            assert (await post(house, "ping", headers={"Host": name, "Origin": f"http://{name}"})).status == 200


async def test_an_idle_connection_ends_by_itself(autojump_clock: MockClock) -> None:
    """The timer that hypercorn arms behind an answer is armed, streamed or not, and holds no server's end."""
    figures = FrontSettings(keep_alive_seconds=7)
    async with serving(autojump_clock, figures) as house, await house.connect() as client:
        for headers in ({}, {"MCP-Protocol-Version": "2026-07-28"}):
            answer = await client.ask("POST", "/mcp", PING, CURL | headers)
            assert answer.complete
        with trio.fail_after(8):
            assert await client.stream.receive_some() == b""


async def test_names_of_a_client_are_said_back_no_longer_than_is_of_use(autojump_clock: MockClock) -> None:
    """A tool's name of a megabyte makes no answer of one."""
    async with serving(autojump_clock) as house:
        for method, params in (
            ("tools/call", {"name": "x" * 500_000, "arguments": {}}),
            ("resources/read", {"uri": "gridsched://" + "x" * 500_000}),
        ):
            answer = await post(house, method, params)
            assert message_of(answer)["error"]["code"] == -32602
            assert len(answer.body) < 2_000


async def test_each_request_is_named(autojump_clock: MockClock) -> None:
    """By the client's id or ours, as everywhere."""
    async with serving(autojump_clock) as house:
        assert (await post(house, "ping", headers={"X-Request-Id": "mine"})).headers["x-request-id"] == "mine"
        refused: Any = await house.ask("GET", "/mcp")
        assert json.loads(refused.body)["error"]["message"].startswith("POST a message")
        assert refused.headers["x-request-id"]
