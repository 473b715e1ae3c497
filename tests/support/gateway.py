"""A running gateway as a process of its own: the real console script, with real or simulated hardware."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

import httpx
import pytest

from tests.support.processes import engines_of

START_TRIES = 600
"""Tries of 0.1 s: a cold start of two engines on a busy machine."""


class Plain(TypedDict):
    """What every request over plain HTTP on this machine is told."""

    trust_env: bool
    verify: bool


PLAIN: Plain = {"trust_env": False, "verify": False}
"""No proxy of the environment; and no reading of the machine's authorities, which for each request would cost more of
the processor than the request."""


def free_port() -> int:
    """A loopback port that nobody has just now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def clean_environment() -> dict[str, str]:
    """Ours without the settings of whoever runs the tests."""
    return {name: value for name, value in os.environ.items() if not name.startswith("GRIDSCHED_")}


def command(*words: str) -> list[str]:
    """The console script, as this interpreter runs it."""
    return [sys.executable, "-m", "gridsched", *words]


@dataclass
class Gateway:
    """One that was started by a test, and what a test asks it."""

    process: subprocess.Popen[str]
    url: str
    log: Path

    def get(self, path: str, **params: str) -> httpx.Response:
        """One plain GET."""
        return httpx.get(self.url + path, params=params, timeout=10.0, **PLAIN)

    def post(self, path: str, body: object, headers: Mapping[str, str] | None = None) -> httpx.Response:
        """One JSON POST."""
        return httpx.post(self.url + path, json=body, headers=headers, timeout=60.0, **PLAIN)

    def events(self) -> list[dict[str, object]]:
        """The decision log so far."""
        text = self.get("/api/events", since="0", follow="0").text
        return [json.loads(line[5:]) for line in text.splitlines() if line.startswith("data:")]

    def children(self) -> list[int]:
        """The engines' processes that the gateway has started and that live."""
        return engines_of(self.process.pid)

    def wait_until_up(self) -> None:
        """Wait for `can_serve`, or fail with what the server printed."""
        for _ in range(START_TRIES):
            try:
                if self.get("/health").json()["can_serve"]:
                    return
            except httpx.HTTPError:
                pass
            try:
                self.process.wait(0.1)
                break
            except subprocess.TimeoutExpired:
                continue
        self.stop()
        pytest.fail(self.log.read_text(encoding="utf-8"))

    def comes_to(self, question: Callable[[], bool]) -> bool:
        """Whether it comes to be so while the gateway lives, within the time that a start may take."""
        for _ in range(START_TRIES):
            if question():
                return True
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(0.1)
                return False
        return False

    def stop(self) -> int:
        """End it as a service manager would, and give the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(10)
            raise


def start(folder: Path, *words: str, env: Mapping[str, str] | None = None, port: int | None = None) -> Gateway:
    """`gridsched serve` with these words, on this port or a free one, its data under `folder`; returns when it can
    serve. `env` is put over ours."""
    gateway = begin(folder, *words, env=env, port=port)
    gateway.wait_until_up()
    return gateway


def begin(folder: Path, *words: str, env: Mapping[str, str] | None = None, port: int | None = None) -> Gateway:
    """The same, returned at once."""
    port = port or free_port()
    log = folder / "serve.log"
    with log.open("w", encoding="utf-8") as output:
        process = subprocess.Popen(
            command("serve", "--port", str(port), "--data-dir", str(folder / "data"), *words),
            stdout=output,
            stderr=subprocess.STDOUT,
            text=True,
            env={**clean_environment(), **(env or {})},
        )
    return Gateway(process, f"http://127.0.0.1:{port}", log)


@contextmanager
def simulated_gateway(folder: Path) -> Iterator[Gateway]:
    """A gateway on simulated hardware; must end well."""
    gateway = start(folder, "--sim")
    try:
        yield gateway
    finally:
        code = gateway.stop()
    assert code == 0
