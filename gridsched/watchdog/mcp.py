"""The Model Context Protocol, as much of it as a server with tools and nothing else needs. A pure function of messages.

Stateless: no session, no stream, one JSON answer for each request. Revisions from 2025-03-26 to 2025-11-25 are spoken;
clients of later ones ask `server/discover` first, are told what is spoken, and fall back to `initialize`.
"""

import json
from dataclasses import dataclass
from typing import Any, Protocol

from gridsched import __version__

VERSIONS = ("2025-03-26", "2025-06-18", "2025-11-25")
LATEST = VERSIONS[-1]
PARSE_ERROR, INVALID_REQUEST, METHOD_NOT_FOUND, INVALID_PARAMS, INTERNAL_ERROR = -32700, -32600, -32601, -32602, -32603
UNSUPPORTED_VERSION = -32022
LONGEST_SAID = 100

INSTRUCTIONS = (
    "The recovery sidecar of gridsched, a gateway that schedules local language models. Ask health first. "
    "It works when the gateway is down or wedged; inference is not here but at the gateway."
)


class Tools(Protocol):
    """What is behind the protocol."""

    def listed(self) -> list[dict[str, Any]]:
        """Every tool, as `tools/list` gives it."""

    def call(self, name: str, given: object) -> dict[str, Any]:
        """Use one. Raises UnknownTool, and ToolFailure for what is refused."""


class ToolFailure(Exception):
    """A tool has not done it; one sentence, or a few, for whoever asked."""


class UnknownTool(Exception):
    """There is no tool of that name."""


@dataclass(frozen=True, slots=True)
class Reply:
    """What goes back: the HTTP status, and the message, None for none."""

    status: int
    message: dict[str, Any] | None


def answer(body: bytes, version: str, tools: Tools) -> Reply:
    """The reply to the body of one POST; `version` is the header `MCP-Protocol-Version`, empty where there is none."""
    try:
        message = _message(body)
    except _NoMessage as error:
        return _refuse(None, error.code, str(error))
    if "method" not in message or "id" not in message:
        return Reply(202, None)  # an answer that nobody has asked for, or a notification: none changes anything here
    number, method, params = message["id"], message["method"], message.get("params", {})
    if version and version not in VERSIONS and method != "initialize":
        said = {"supported": list(VERSIONS), "requested": version[:LONGEST_SAID]}
        return _refuse(number, UNSUPPORTED_VERSION, "this protocol version is not spoken here; initialize", said)
    if not isinstance(params, dict):
        return _refuse(number, INVALID_PARAMS, "params must be an object", status=200)
    return _dispatch(method, number, params, tools)


class _NoMessage(Exception):
    """The body is no message of the protocol; the sentence says why, the code is the protocol's."""

    def __init__(self, code: int, sentence: str) -> None:
        super().__init__(sentence)
        self.code = code


def _message(body: bytes) -> dict[str, Any]:
    """One message. Raises _NoMessage."""
    try:
        message = json.loads(body)
    except (ValueError, RecursionError):
        raise _NoMessage(PARSE_ERROR, "the body is no JSON") from None
    if isinstance(message, list):
        raise _NoMessage(INVALID_REQUEST, "batches are not taken: send one message a request")
    if not isinstance(message, dict) or message.get("jsonrpc") != "2.0":
        raise _NoMessage(INVALID_REQUEST, 'a message is a JSON object with "jsonrpc": "2.0"')
    if not isinstance(message.get("method", ""), str):
        raise _NoMessage(INVALID_REQUEST, "method must be a string")
    if isinstance(message.get("id", 0), bool) or not isinstance(message.get("id", 0), str | int):
        raise _NoMessage(INVALID_REQUEST, "id must be a string or a whole number")
    return message


def _dispatch(method: str, number: str | int, params: dict[str, Any], tools: Tools) -> Reply:
    match method:
        case "initialize":
            return _result(number, _initialized(params))
        case "ping":
            return _result(number, {})
        case "tools/list":
            return _result(number, {"tools": tools.listed()})
        case "tools/call":
            return _called(number, params, tools)
    return _refuse(number, METHOD_NOT_FOUND, f"there is no method {method[:LONGEST_SAID]!r} here", status=200)


def _initialized(params: dict[str, Any]) -> dict[str, Any]:
    """The revision that was asked for if it is spoken, else the latest that is."""
    asked = params.get("protocolVersion")
    return {
        "protocolVersion": asked if asked in VERSIONS else LATEST,
        "capabilities": {"tools": {"listChanged": False}},
        "serverInfo": {"name": "gridsched-watchdog", "title": "gridsched watchdog", "version": __version__},
        "instructions": INSTRUCTIONS,
    }


def _called(number: str | int, params: dict[str, Any], tools: Tools) -> Reply:
    name = params.get("name")
    if not isinstance(name, str):
        return _refuse(number, INVALID_PARAMS, "name must be a string", status=200)
    try:
        said = tools.call(name, params.get("arguments"))
    except UnknownTool:
        return _refuse(number, INVALID_PARAMS, f"there is no tool {name[:LONGEST_SAID]!r}", status=200)
    except ToolFailure as failure:
        return _result(number, {"content": [{"type": "text", "text": str(failure)}], "isError": True})
    text = json.dumps(said, indent=1, ensure_ascii=False)
    return _result(number, {"content": [{"type": "text", "text": text}], "structuredContent": said, "isError": False})


def _result(number: str | int, result: dict[str, Any]) -> Reply:
    return Reply(200, {"jsonrpc": "2.0", "id": number, "result": result})


def _refuse(number: str | int | None, code: int, sentence: str, data: object = None, status: int = 400) -> Reply:
    error: dict[str, Any] = {"code": code, "message": sentence} | ({"data": data} if data is not None else {})
    return Reply(status, {"jsonrpc": "2.0", "id": number, "error": error})
