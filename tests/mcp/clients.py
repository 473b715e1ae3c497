"""The SDK's own client against a server of these tests, and a client that is no SDK."""

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from hashlib import sha256
from typing import Any

import httpx2
import pytest
from mcp.client.client import Client
from mcp.client.streamable_http import streamable_http_client

import gridsched.mcp.server  # noqa: F401 - so that no server here imports it in a thread, for which no clock waits
from gridsched.credentials import ApiKey, Scope
from tests.support.front import Answer, House

MODES = ("auto", "legacy")
"""The revision without a handshake, and those with one."""

JSON = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}

leaves_generators_behind = pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning"  # the SDK's client does not close its own on trio
)


@asynccontextmanager
async def connected(url: str, mode: str = "auto", key: str = "") -> AsyncIterator[Client]:
    """A client of the SDK. It asks for no proxy."""
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    async with (
        httpx2.AsyncClient(headers=headers, trust_env=False, timeout=60) as http,
        Client(streamable_http_client(f"{url}/mcp", http_client=http), mode=mode) as client,
    ):
        yield client


def url_of(house: House) -> str:
    """Where a server in this process is."""
    return f"http://127.0.0.1:{house.port}"


def keep_keys(house: House, **scopes: Scope) -> None:
    """The server has these keys, each with one scope; a key's secret is its name twice."""
    keys = [ApiKey(name, sha256(f"{name}{name}".encode()).hexdigest(), (scope,)) for name, scope in scopes.items()]
    house.authority.keep(keys)


async def post(
    house: House, method: str, params: Mapping[str, Any] | None = None, headers: Mapping[str, str] | None = None
) -> Answer:
    """One message, as a client that is no SDK sends it."""
    message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": dict(params or {})}
    return await house.ask("POST", "/mcp", message, JSON | dict(headers or {}))


def message_of(answer: Answer) -> dict[str, Any]:
    """The last message of an answer, streamed or not."""
    text = answer.body.decode()
    if "event-stream" in answer.headers.get("content-type", ""):
        text = [line for line in text.splitlines() if line.startswith("data:")][-1].removeprefix("data:")
    told: dict[str, Any] = json.loads(text)
    return told
