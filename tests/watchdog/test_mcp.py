"""The protocol: one message in, one reply out."""

import json
from typing import Any

import pytest

from gridsched.watchdog import mcp


class Bench:
    """Tools as the protocol sees them."""

    def listed(self) -> list[dict[str, Any]]:
        return [{"name": "look", "inputSchema": {"type": "object"}}]

    def call(self, name: str, given: object) -> dict[str, Any]:
        match name:
            case "look":
                return {"seen": given}
            case "refuse":
                raise mcp.ToolFailure("not today")
        raise mcp.UnknownTool


def ask(message: object, version: str = "") -> mcp.Reply:
    return mcp.answer(json.dumps(message).encode(), version, Bench())


def request(method: str, params: object = None, number: object = 7) -> dict[str, object]:
    said = {"jsonrpc": "2.0", "id": number, "method": method}
    return said if params is None else said | {"params": params}


def result(reply: mcp.Reply) -> Any:
    assert reply.status == 200
    assert reply.message is not None
    return reply.message["result"]


def error(reply: mcp.Reply) -> tuple[int, int]:
    assert reply.message is not None
    return reply.status, reply.message["error"]["code"]


@pytest.mark.parametrize(
    ("asked", "spoken"),
    [
        ("2025-03-26", "2025-03-26"),
        ("2025-06-18", "2025-06-18"),
        ("2025-11-25", "2025-11-25"),
        ("2024-11-05", "2025-11-25"),
        ("2026-07-28", "2025-11-25"),
        (None, "2025-11-25"),
        ([1], "2025-11-25"),
    ],
)
def test_the_revision_that_is_asked_for_is_spoken_or_else_the_latest(asked: object, spoken: str) -> None:
    """Negotiation as the protocol has it: the client decides whether the answer suits it."""
    said = result(ask(request("initialize", {"protocolVersion": asked, "capabilities": {}})))
    assert said["protocolVersion"] == spoken
    assert said["serverInfo"]["name"] == "gridsched-watchdog"
    assert said["capabilities"] == {"tools": {"listChanged": False}}


def test_tools_are_listed_and_called() -> None:
    """A result comes as text, and as an object for clients that take it."""
    assert result(ask(request("tools/list")))["tools"][0]["name"] == "look"
    said = result(ask(request("tools/call", {"name": "look", "arguments": {"at": "ü"}})))
    assert said["structuredContent"] == {"seen": {"at": "ü"}}
    assert json.loads(said["content"][0]["text"]) == said["structuredContent"]
    assert said["isError"] is False
    assert result(ask(request("ping", number="p"))) == {}


def test_what_a_tool_refuses_is_an_error_of_the_tool() -> None:
    """A model that calls a tool reads the sentence; the protocol's own errors are for the client's programmer."""
    said = result(ask(request("tools/call", {"name": "refuse"})))
    assert said == {"content": [{"type": "text", "text": "not today"}], "isError": True}
    assert error(ask(request("tools/call", {"name": "no such"}))) == (200, mcp.INVALID_PARAMS)
    assert error(ask(request("tools/call", {}))) == (200, mcp.INVALID_PARAMS)


def test_notifications_and_answers_are_taken_and_nothing_comes_back() -> None:
    """202 without a body."""
    for message in (
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}},
        {"jsonrpc": "2.0", "id": 1, "result": {}},
    ):
        assert ask(message) == mcp.Reply(202, None)


@pytest.mark.parametrize(
    ("message", "code"),
    [
        ([request("ping"), request("ping")], mcp.INVALID_REQUEST),
        ("ping", mcp.INVALID_REQUEST),
        ({"id": 1, "method": "ping"}, mcp.INVALID_REQUEST),
        (request("ping", number=None), mcp.INVALID_REQUEST),
        (request("ping", number=True), mcp.INVALID_REQUEST),
        (request("ping", number=1.5), mcp.INVALID_REQUEST),
        ({"jsonrpc": "2.0", "id": 1, "method": 5}, mcp.INVALID_REQUEST),
    ],
)
def test_what_is_no_message_is_refused(message: object, code: int) -> None:
    """Batches too, which the later revisions have abolished."""
    assert error(ask(message)) == (400, code)


def test_bytes_that_are_no_json_are_refused() -> None:
    """Also such as would nest for ever."""
    for body in (b"", b"{", b"\xff\xfe", b"[" * 100_000):
        assert error(mcp.answer(body, "", Bench())) == (400, mcp.PARSE_ERROR)


def test_a_later_revision_is_told_which_are_spoken() -> None:
    """A client that begins with `server/discover` finds out that it has to initialize."""
    reply = ask(request("server/discover", {}), "2026-07-28")
    assert error(reply) == (400, mcp.UNSUPPORTED_VERSION)
    assert reply.message is not None
    assert reply.message["error"]["data"]["supported"] == list(mcp.VERSIONS)
    assert error(ask(request("server/discover"))) == (200, mcp.METHOD_NOT_FOUND)
    assert result(ask(request("initialize", {"protocolVersion": "2026-07-28"}), "2026-07-28"))
