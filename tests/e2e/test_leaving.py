"""A client that leaves a real engine's answer: its slot is at work no longer, by its own word, and says why."""

import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import httpx
import pytest

from tests.support.gateway import Gateway

pytestmark = pytest.mark.slow

LOOKS, PAUSE_SECONDS = 2400, 0.025
"""A minute in all; on an idle machine nothing here takes five seconds."""


@pytest.mark.parametrize("stream", ["true", "false"], ids=["stream", "plain"])
def test_S8_A1_A4_A11_a_real_engine_stops_for_whoever_leaves(server: Gateway, stream: str) -> None:
    """A1, 1; A4, 4; A11, 8: asked at its own address. The answer would take many times as long; the engine cancels it,
    and when our slot is free its own is at rest."""
    asked = {"model": "smollm2", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}
    assert server.post("/v1/chat/completions", asked).status_code == 200
    child = child_of(server, "smollm2")
    log = server.log.parent / "data" / "logs" / "smollm2.log"
    cancelled = log.read_text(encoding="utf-8", errors="replace").count("cancel task")
    body = f'{{"model":"smollm2","prompt":"One, two,","max_tokens":1900,"ignore_eos":true,"stream":{stream}}}'
    with slots_of(child) as at_work:
        host, _, port = server.url.removeprefix("http://").partition(":")
        with closing(socket.create_connection((host, int(port)), timeout=60.0)) as client:
            head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
            client.sendall((head + body).encode())
            until(server, at_work)
        until(server, lambda: busy_slots(server, "smollm2") == 0)
        assert not at_work()
    until(server, lambda: log.read_text(encoding="utf-8", errors="replace").count("cancel task") > cancelled)
    assert child_of(server, "smollm2") == child
    assert server.post("/v1/chat/completions", asked).status_code == 200


def child_of(server: Gateway, model: str) -> int:
    """The process of a model."""
    (pid,) = [pid for pid in server.children() if model in words_of(pid)]
    return pid


def words_of(pid: int) -> list[str]:
    """Its command line."""
    return Path(f"/proc/{pid}/cmdline").read_text(encoding="utf-8").split("\0")


@contextmanager
def slots_of(pid: int) -> Iterator[Callable[[], bool]]:
    """What asks an engine whether any of its slots is at work."""
    words = words_of(pid)
    socket_path = words[words.index("--host") + 1]
    limits = httpx.Limits(max_keepalive_connections=0)  # the engine has a thread for each connection, and few
    with httpx.Client(transport=httpx.HTTPTransport(uds=socket_path, limits=limits)) as engine:
        yield lambda: any(slot["is_processing"] for slot in engine.get("http://engine/slots").json())


def busy_slots(server: Gateway, model: str) -> int:
    """How many of a model's slots are counted as busy."""
    instances = server.get("/api/status").json()["instances"]
    return sum(item["slots"]["busy"] for item in instances if item["model"] == model)


def until(server: Gateway, holds: Callable[[], bool]) -> None:
    """Ask until it is so, as long as the gateway lives."""
    for _ in range(LOOKS):
        if holds():
            return
        with suppress(subprocess.TimeoutExpired):
            server.process.wait(PAUSE_SECONDS)
    pytest.fail("it never was")
