"""A `gridsched serve` for a benchmark: its settings, its start, its end.

Owns one process and its folder. Must never leave it behind: it is ended by its pid however the block is left, and by
the kernel where the benchmark itself is gone.
"""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import trio

CHAT, WRITER, EMBEDDER = "chat", "writer", "embedder"
START_SECONDS = 60.0
END_SECONDS = 20.0
POLL_SECONDS = 0.1
TAIL_LINES = 10

_PROGRAM = """
import ctypes, os, signal, sys
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != int(sys.argv[1]):
        sys.exit(1)
from gridsched.cli.main import main
sys.exit(main(sys.argv[2:]))
"""
"""The server as a process that the kernel tells to end when its parent has gone."""


class ServerFault(Exception):
    """A server that did not come up; the sentence has its last lines."""


@dataclass(frozen=True, slots=True)
class Machine:
    """What every server of a run shares: the files of both models, the slots for people, an engine (None: the one that
    a server finds), the threads of each process (0: as many as the engine takes by itself, which is all cores), and how
    long the background holds off after a chat."""

    chat_path: Path
    embed_path: Path
    people: int
    engine: Path | None = None
    threads: int = 0
    cool_down_seconds: float = 2.0

    def settings(self, scheduler: Mapping[str, object]) -> dict[str, object]:
        """A configuration file. Three processes: people's, a second one of the same file that writes in the background,
        and an embedder."""
        flags = ["--threads", str(self.threads)] if self.threads else []
        chat, embed = (str(path).replace("$", "$$") for path in (self.chat_path, self.embed_path))
        found = {"engine": {"path": str(self.engine)}} if self.engine else {}
        return found | {
            "library": {"dirs": [], "default_model": CHAT},
            "scheduler": {"interactive_cooldown": f"{self.cool_down_seconds:g}s", **scheduler},
            "models": {
                CHAT: {"path": chat, "ctx_size": 1024 * self.people, "parallel": self.people, "flags": flags},
                WRITER: {"path": chat, "ctx_size": 1024, "parallel": 1, "class": "background", "flags": flags},
                EMBEDDER: {"path": embed, "parallel": 1, "class": "background", "flags": flags},
            },
        }


@dataclass(frozen=True, slots=True)
class Server:
    """One that was started. `log` is what it printed."""

    process: "subprocess.Popen[bytes]"
    url: str
    log: Path

    async def comes_up(self) -> None:
        """Wait until it can serve. Raises ServerFault."""
        async with httpx.AsyncClient(base_url=self.url, trust_env=False, timeout=5.0) as http:
            with trio.move_on_after(START_SECONDS):
                while self.process.poll() is None:
                    if await _can_serve(http):
                        return
                    await trio.sleep(POLL_SECONDS)
        tail = self.log.read_text(errors="replace").splitlines()[-TAIL_LINES:]
        raise ServerFault("the server did not come up. Its last lines:\n" + "\n".join(tail))


@contextmanager
def started(folder: Path, settings: Mapping[str, object]) -> Iterator[Server]:
    """A server with those settings, not waited for; ended when the block is left."""
    folder.mkdir(parents=True)
    config, log, port = folder / "gridsched.yaml", folder / "server.log", _free_port()
    config.write_text(json.dumps(settings), encoding="utf-8")  # JSON is YAML
    command = [sys.executable, "-c", _PROGRAM, str(os.getpid()), "serve", "--config", str(config)]
    command += ["--host", "127.0.0.1", "--port", str(port), "--data-dir", str(folder / "data")]
    with log.open("wb") as output:
        # A session of its own keeps the terminal's Ctrl-C away from it: it is told to end once, by us.
        process = subprocess.Popen(  # noqa: S603 - the program that is measured
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
    try:
        yield Server(process, f"http://127.0.0.1:{port}", log)
    finally:
        _end(process)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def _can_serve(http: httpx.AsyncClient) -> bool:
    try:
        return bool((await http.get("/health")).json().get("can_serve"))
    except (httpx.HTTPError, ValueError):
        return False


def _end(process: "subprocess.Popen[bytes]") -> None:
    """Ask it to end, then kill it."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
    process.wait()
