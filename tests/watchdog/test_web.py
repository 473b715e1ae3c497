"""The port: who is let in, what is bounded, and a client of the real SDK."""

import http.client
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from typing import Any

import httpx2
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError

from gridsched.watchdog import web
from gridsched.watchdog.metrics import page
from gridsched.watchdog.places import Places
from tests.watchdog.conftest import Bench, until

TOKEN = "a-credential-of-more-than-32-characters"  # noqa: S105 - for these tests


@pytest.fixture
def server(places: Places) -> Iterator[web.Server]:
    """A watchdog's port with all of its tools; no gateway runs."""
    bench = Bench(places, runs=False)
    metrics = lambda: page(bench.watch, bench.keeper)  # noqa: E731 - so it is seen to be a page made anew each time
    made = web.Server(0, lambda: TOKEN, bench.tools, lambda: {"status": "ok"}, metrics)
    thread = threading.Thread(target=lambda: made.serve_forever(0.01))
    thread.start()
    yield made
    made.shutdown()
    thread.join()
    made.server_close()


def ask(server: web.Server, method: str, path: str, body: bytes = b"", **headers: str) -> tuple[int, dict[str, Any]]:
    """One request as it is given here; `_` in a header's name is `-`."""
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=10)
    said = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
    said |= {name.replace("_", "-"): value for name, value in headers.items()}
    with closing(connection):
        connection.request(method, path, body, {name: value for name, value in said.items() if value})
        answer = connection.getresponse()
        data = answer.read()
    return answer.status, json.loads(data) if data else {}


PING = b'{"jsonrpc": "2.0", "id": 1, "method": "ping"}'


def test_a_message_gets_its_answer(server: web.Server) -> None:
    """On one connection as many as one likes; a notification gets none."""
    assert ask(server, "POST", "/mcp", PING) == (200, {"jsonrpc": "2.0", "id": 1, "result": {}})
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=10)
    for _ in range(3):
        connection.request(
            "POST",
            "/mcp",
            PING,
            {"Authorization": f"bearer {TOKEN}", "Content-Type": "application/json; charset=utf-8"},
        )
        assert json.loads(connection.getresponse().read())["result"] == {}
    connection.close()
    body = b'{"jsonrpc": "2.0", "method": "notifications/initialized"}'
    assert ask(server, "POST", "/mcp", body) == (202, {})


@pytest.mark.parametrize(
    ("method", "path", "headers", "status"),
    [
        ("POST", "/mcp", {"Authorization": ""}, 401),
        ("POST", "/mcp", {"Authorization": "Bearer wrong"}, 401),
        ("POST", "/mcp", {"Authorization": f"Basic {TOKEN}"}, 401),
        ("POST", "/mcp", {"Authorization": "Bearer \xfc"}, 401),
        ("POST", "/mcp", {"Host": "evil.example"}, 403),
        ("POST", "/mcp", {"Host": "localhost:1"}, 403),
        ("POST", "/mcp", {"Origin": "http://evil.example"}, 403),
        ("POST", "/mcp", {"Origin": "null"}, 403),
        ("POST", "/mcp", {"Origin": "http://127.0.0.1:1"}, 403),
        ("POST", "/mcp", {"Content_Type": "text/plain"}, 415),
        ("POST", "/mcp", {"Content_Length": "1048577"}, 413),
        ("POST", "/mcp", {"Content_Length": "0" * 20 + "1048577"}, 413),
        ("POST", "/mcp", {"Content_Length": "9" * 5000}, 413),
        ("POST", "/mcp", {"Content_Length": "-1"}, 411),
        ("POST", "/mcp", {"Transfer_Encoding": "chunked"}, 411),
        ("GET", "/mcp", {}, 405),
        ("DELETE", "/mcp", {}, 405),
        ("PUT", "/mcp", {}, 405),
        ("POST", "/health", {}, 405),
        ("GET", "/", {}, 404),
        ("GET", "x://[", {}, 404),
        ("POST", "x://[", {}, 404),
        ("POST", "/mcp/", {}, 404),
        ("POST", "/metrics", {}, 405),
        ("GET", "/health", {"Host": "evil.example"}, 403),
        ("GET", "/metrics", {"Host": "evil.example"}, 403),
        ("GET", "/metrics", {"Origin": "http://evil.example"}, 403),
        ("BREW", "/mcp", {}, 501),
    ],
)
def test_whatever_is_wrong_is_said_by_its_status(
    server: web.Server,
    method: str,
    path: str,
    headers: dict[str, str],
    status: int,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Rebound names, pages from elsewhere, wrong credentials, wrong bodies: an answer in JSON, and nothing is done."""
    answered, said = ask(server, method, path, b"" if headers.get("Content_Length") else PING, **headers)
    assert answered == status
    assert said["error"]["code"] == status
    assert capsys.readouterr().err == "", "nobody without the credential can make it print"


def test_the_watchdog_s_own_health_needs_no_credential_and_gives_none(server: web.Server) -> None:
    """Tools do, even those that only look."""
    assert ask(server, "GET", "/health", Authorization="") == (200, {"status": "ok"})
    origin = f"http://localhost:{server.server_port}"
    assert ask(server, "GET", "/health", Host=f"localhost:{server.server_port}", Origin=origin)[0] == 200


def test_the_metrics_page_needs_no_credential_and_no_gateway(server: web.Server) -> None:
    """Prometheus' text, of a gateway that does not run and of a watchdog that has not looked yet."""
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=10)
    with closing(connection):
        connection.request("GET", "/metrics?since=ever")
        answer = connection.getresponse()
        lines = answer.read().decode().splitlines()
    assert (answer.status, answer.getheader("Content-Type")) == (200, "text/plain; version=0.0.4; charset=utf-8")
    assert "gridsched_watchdog_gateway_up 0" in lines
    assert 'gridsched_watchdog_gateway_state{state="not_running"} 1' in lines
    assert "gridsched_watchdog_last_check_timestamp_seconds 0.0" in lines


def test_a_client_that_sends_slowly_is_given_up(server: web.Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """A byte now and then keeps nobody's thread."""
    monkeypatch.setattr(web, "REQUEST_SECONDS", 0.1)
    with socket.create_connection(("127.0.0.1", server.server_port), timeout=10) as slow:
        slow.sendall(b"POST /mcp HTTP/1.1\r\n")
        assert slow.recv(100) == b""


def test_no_more_clients_than_there_is_room_for(server: web.Server) -> None:
    """One too many is told to come back; when one has gone there is room again."""
    held = [
        socket.create_connection(("127.0.0.1", server.server_port), timeout=10) for _ in range(web.MOST_CONNECTIONS)
    ]
    with socket.create_connection(("127.0.0.1", server.server_port), timeout=10) as late:
        head, _, body = late.recv(1000).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 503")
        assert "try again" in json.loads(body)["error"]["message"]
    for each in held:
        each.close()
    until(lambda: answers(server))


def answers(server: web.Server) -> bool:
    """Whether there is room for one more. Whoever is one too many may find the connection reset."""
    with suppress(OSError, http.client.HTTPException):
        return ask(server, "GET", "/health")[0] == 200
    return False


def test_a_place_is_given_back_where_no_thread_could_be_started(
    server: web.Server, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A machine at its limit of processes is one that somebody has to repair, soon."""

    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as full:
        full.setattr(threading.Thread, "start", start)
        assert not any(answers(server) for _ in range(web.MOST_CONNECTIONS))
    assert answers(server)
    assert "can't start new thread" in capsys.readouterr().err


def test_a_port_that_is_taken_names_its_holder() -> None:
    """By process, as well as it can be seen."""
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(web.PortTaken, match="is taken by"):
        web.Server(taken.getsockname()[1], lambda: TOKEN, None, dict, str)  # type: ignore[arg-type]  # nobody gets that far


ALL_TOOLS = {
    "health": (True, False),
    "get_config": (True, False),
    "tail_logs": (True, False),
    "gpu_status": (True, False),
    "set_config": (False, True),
    "rollback_config": (False, True),
    "restart_server": (False, True),
    "kill_model": (False, True),
    "nuke_all_models": (False, True),
    "reclaim_orphan_engines": (False, True),
}


@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_a_client_of_the_real_sdk_finds_and_uses_the_tools(server: web.Server, mode: str) -> None:
    """Both ways to begin; names and hints of all tools; a result, a refusal, an unknown tool."""
    url = f"http://127.0.0.1:{server.server_port}/mcp"
    headers = {"Authorization": f"Bearer {TOKEN}"}
    async with (
        httpx2.AsyncClient(headers=headers, trust_env=False) as http_client,
        Client(streamable_http_client(url, http_client=http_client), mode=mode) as client,
    ):
        listed = (await client.list_tools()).tools
        hints = {tool.name: tool.annotations for tool in listed}
        assert {name: (hint.read_only_hint, hint.destructive_hint) for name, hint in hints.items() if hint} == ALL_TOOLS
        assert all(tool.input_schema["type"] == "object" and tool.description for tool in listed)
        health = await client.call_tool("health", {})
        assert health.structured_content is not None
        assert health.structured_content["gateway"]["state"] == "not_running"
        assert health.structured_content["engines"] == []
        refused = await client.call_tool("tail_logs", {"model": "../../etc/passwd"})
        assert refused.is_error
        assert client.session.protocol_version == "2025-11-25"


async def test_without_the_credential_the_sdk_gets_nowhere(server: web.Server) -> None:
    """Not even the names of the tools."""
    url = f"http://127.0.0.1:{server.server_port}/mcp"
    told: list[BaseException] = []
    try:
        async with httpx2.AsyncClient(trust_env=False) as bare, Client(streamable_http_client(url, http_client=bare)):
            pytest.fail("it is let in")
    except* MCPError as refused:
        told += refused.exceptions
    assert "error response" in str(told)


@pytest.mark.parametrize(
    ("name", "given", "words"),
    [
        ("health", {"x": 1}, "takes no 'x'"),
        ("kill_model", {}, "needs 'model'"),
        ("kill_model", {"model": ""}, "must not be empty"),
        ("kill_model", {"model": 5}, "of type string"),
        ("tail_logs", {"model": "gateway", "lines": 1001}, "1 to 1000"),
        ("tail_logs", {"model": "gateway", "lines": True}, "of type integer"),
        ("nuke_all_models", {"dry_run": "yes"}, "of type boolean"),
        ("health", [], "must be an object"),
    ],
)
def test_arguments_are_checked_against_what_the_tool_says_it_takes(
    server: web.Server, name: str, given: object, words: str
) -> None:
    """A sentence for whoever called, and nothing is done."""
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": name, "arguments": given}}
    status, said = ask(server, "POST", "/mcp", json.dumps(body).encode())
    assert status == 200
    assert said["result"]["isError"] is True
    assert words in said["result"]["content"][0]["text"]
