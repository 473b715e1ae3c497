"""Real processes and what becomes of them: a child killed, the gateway killed, the gateway told to stop."""

import os
import signal
import subprocess

import httpx
import pytest

from tests.support.gateway import PLAIN, Gateway, clean_environment, command
from tests.support.processes import gone, watched

pytestmark = pytest.mark.slow

CHAT = {"model": "smollm2", "messages": [{"role": "user", "content": "Count to one hundred."}], "max_tokens": 4}


def chat(server: Gateway, **changes: object) -> httpx.Response:
    return httpx.post(f"{server.url}/v1/chat/completions", json=CHAT | changes, timeout=60.0, **PLAIN)


def test_P5_a_killed_child_is_started_again_and_the_next_chat_answered(own_server: Gateway) -> None:
    """Kill -9 of the engine's process: the gateway lives, and the next request gets an answer."""
    assert chat(own_server).status_code == 200
    (child,) = own_server.children()
    os.kill(child, signal.SIGKILL)
    assert chat(own_server).status_code == 200
    assert child not in own_server.children()
    assert "exit" in {line["event"] for line in own_server.events()}


def test_P5_a_stream_that_has_begun_ends_with_an_error_frame(own_server: Gateway) -> None:
    """The client is told; there is no `[DONE]` that pretends."""
    request = CHAT | {"stream": True, "max_tokens": 400, "ignore_eos": True}
    url = f"{own_server.url}/v1/chat/completions"
    with httpx.stream("POST", url, json=request, timeout=60.0, **PLAIN) as answer:
        lines = answer.iter_lines()
        first = next(line for line in lines if '"content"' in line)
        os.kill(own_server.children()[0], signal.SIGKILL)
        rest = list(lines)
    assert first.startswith("data: ")
    assert any('"error"' in line and "upstream_error" in line for line in rest)
    assert not any("[DONE]" in line for line in rest)


def test_P2_a_killed_gateway_leaves_no_child(own_server: Gateway) -> None:
    """Kill -9 of the gateway."""
    assert chat(own_server).status_code == 200
    with watched(own_server.children()) as children:
        assert children
        own_server.process.kill()
        own_server.process.wait(10)
        assert gone(children, 10.0)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_P8_a_gateway_that_is_told_to_stop_ends_its_children(own_server: Gateway, number: signal.Signals) -> None:
    """By a service manager, or by Ctrl-C. A terminal that is closed has the configuration read again (J11)."""
    assert chat(own_server).status_code == 200
    with watched(own_server.children()) as children:
        own_server.process.send_signal(number)
        assert own_server.process.wait(30) == 0
        assert gone(children, 0.0)
    assert "Traceback" not in own_server.log.read_text(encoding="utf-8")


def test_P8_a_running_answer_is_finished_before_the_gateway_goes(own_server: Gateway) -> None:
    """A stream that is under way when SIGTERM comes ends with `[DONE]`."""
    chat(own_server)
    request = CHAT | {"stream": True, "max_tokens": 60, "ignore_eos": True}
    url = f"{own_server.url}/v1/chat/completions"
    with httpx.stream("POST", url, json=request, timeout=60.0, **PLAIN) as answer:
        lines = answer.iter_lines()
        next(line for line in lines if '"content"' in line)
        own_server.process.send_signal(signal.SIGTERM)
        rest = list(lines)
    assert "data: [DONE]" in rest
    assert own_server.process.wait(20) == 0


def test_P1_who_looks_around_beside_a_server_does_not_cut_it_off_from_its_engines(server: Gateway) -> None:
    """`gridsched check` on its data directory: the process that runs goes on serving, and none is started."""
    assert chat(server).status_code == 200
    folder, before = server.log.parent, server.children()
    words = ("check", "--data-dir", str(folder / "data"), "--config", str(folder / "gridsched.yaml"))
    checked = subprocess.run(command(*words), env=clean_environment(), capture_output=True, text=True, check=False)
    assert f"in use by process {server.process.pid}" in checked.stdout
    assert chat(server).status_code == 200
    assert server.children() == before
