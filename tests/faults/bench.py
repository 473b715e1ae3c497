"""A real `gridsched serve` with the stand-in engine behind it, for faults that only whole processes can show.

Owns how such a gateway is started, what a test asks it, and `leavings`: all that may be left wrong behind a test. Every
process that it starts carries a mark in its environment, and so do theirs: nobody gets lost.
"""

import http.client
import json
import os
import secrets
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.library.models import CHAT, EMBEDDER, VOCAB, WIDTH, write_model
from tests.support.gateway import Gateway, start
from tests.support.gguf_header import Tensor
from tests.support.processes import children_of

FAKE = Path(__file__).parent.parent / "support" / "fake_llama_server.py"
MARK = "FAULTS_MARK"
GIB = 1 << 30
TRIES, PAUSE_SECONDS = 2400, 0.025
"""A minute in all; on an idle machine nothing here takes five seconds."""

Status = dict[str, Any]


@dataclass(frozen=True)
class Reply:
    """One answer, whole. `complete` is False where the connection broke inside it."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    complete: bool = True

    @property
    def json(self) -> Any:
        """The body's value."""
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        """The body's `error`."""
        found = self.json["error"]
        assert isinstance(found, dict)
        return found


@dataclass(frozen=True)
class Served:
    """One model of a bench: settings and environment of its own, and what of its file matters."""

    embeds: bool = False
    weights_bytes: int = 0
    env: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, object] = field(default_factory=dict)


@dataclass
class Bench:
    """A gateway on the stand-in engine, and what a test asks it."""

    gateway: Gateway
    folder: Path
    mark: str
    open_at_start: int = 0

    # --- what the engine does -----------------------------------------------------------------------------------

    def tell(self, model: str, **switches: object) -> None:
        """What the stand-in does for this model from its next request or start on."""
        tell(self.folder, model, **switches)

    def recorded(self, model: str, key: str) -> list[Any]:
        """What the stand-ins of a model wrote down under a key."""
        path = self.folder / f"{model}.record"
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        return [fact[key] for fact in map(json.loads, lines) if key in fact]

    def starts(self, model: str) -> int:
        """How many processes a model has had."""
        return len(self.recorded(model, "argv"))

    def pids(self, model: str) -> list[int]:
        """The living processes of a model."""
        word = f"--alias\0{model}\0".encode()
        return [pid for pid in self.gateway.children() if word in _read(pid, "cmdline")]

    def pid(self, model: str) -> int:
        """The one process of a model."""
        (found,) = self.pids(model)
        return found

    # --- what clients do ----------------------------------------------------------------------------------------

    def connect(self, timeout_seconds: float = 30.0) -> http.client.HTTPConnection:
        """A client's connection."""
        return http.client.HTTPConnection(self.gateway.url.removeprefix("http://"), timeout=timeout_seconds)

    def ask(self, path: str, body: object = None, headers: Mapping[str, str] | None = None) -> Reply:
        """One exchange on a connection of its own."""
        connection = self.connect()
        try:
            content = None if body is None else json.dumps(body)
            method, more = ("GET", {}) if body is None else ("POST", {"Content-Type": "application/json"})
            connection.request(method, path, content, {**more, **(headers or {})})
            answer = connection.getresponse()
            try:
                text, complete = answer.read(), True
            except http.client.IncompleteRead as broken:
                text, complete = broken.partial, False
            return Reply(answer.status, {key.lower(): value for key, value in answer.getheaders()}, text, complete)
        finally:
            connection.close()

    def chat(self, model: str, **more: object) -> Reply:
        """One chat."""
        return self.ask("/v1/chat/completions", chat_body(model, **more))

    @contextmanager
    def streamed(self, model: str, **more: object) -> Iterator[Iterator[bytes]]:
        """One streamed chat: its lines, as they come; left at the block's exit."""
        connection = self.connect()
        try:
            connection.request("POST", "/v1/chat/completions", json.dumps(chat_body(model, stream=True, **more)))
            answer = connection.getresponse()
            assert answer.status == 200, answer.read()
            yield (line.strip() for line in answer if line.strip())
        finally:
            connection.close()

    def status(self) -> Status:
        """`/api/status`."""
        found = self.ask("/api/status").json
        assert isinstance(found, dict)
        return found

    def instances(self, model: str) -> list[Status]:
        """The processes of a model, as the gateway tells of them."""
        return [item for item in self.status()["instances"] if item["model"] == model]

    def is_in(self, model: str, state: str) -> bool:
        """Whether a process of a model is in a state."""
        return any(item["state"] == state for item in self.instances(model))

    def events(self, event: str, model: str | None = None) -> list[Status]:
        """The lines of the decision log that say so."""
        text = self.ask("/api/events?since=0&follow=0").body.decode()
        lines = [json.loads(line[5:]) for line in text.splitlines() if line.startswith("data:")]
        return [line for line in lines if line["event"] == event and model in (None, line.get("model"))]

    # --- what a test waits for ----------------------------------------------------------------------------------

    def until(self, holds: Callable[[], object], what: str = "") -> None:
        """Wait for something, as long as the gateway lives; fails after some seconds."""
        for _ in range(TRIES):
            if holds():
                return
            with suppress(subprocess.TimeoutExpired):
                self.gateway.process.wait(PAUSE_SECONDS)
        raise AssertionError(f"still not: {what or holds}; {self.gateway.log.read_text(encoding='utf-8')[-2000:]}")

    def until_event(self, event: str, model: str | None = None, count: int = 1) -> Status:
        """Wait for a line of the decision log, the how manieth of its kind, and give it."""
        self.until(lambda: len(self.events(event, model)) >= count, f"{count} {event} of {model}")
        return self.events(event, model)[count - 1]


def chat_body(model: str, **more: object) -> dict[str, object]:
    """What a client asks."""
    return {"model": model, "messages": [{"role": "user", "content": "hello"}], "max_tokens": 4, **more}


def tell(folder: Path, model: str, **switches: object) -> None:
    """Write a model's switches, whole at any moment."""
    path = folder / f"{model}.switches"
    new = path.with_suffix(".new")
    new.write_text(json.dumps({"record": str(folder / f"{model}.record"), "tokens": 4, **switches}), encoding="utf-8")
    new.replace(path)


def engine_program(folder: Path) -> Path:
    """The stand-in, run by this interpreter without what it does not need: its start is most of a test's time. Where
    a model's environment names a REAL_ENGINE, it is that one."""
    program = folder / "llama-server"
    real = "import os, sys\nif real := os.environ.get('REAL_ENGINE'): os.execv(real, [real, *sys.argv[1:]])\n"
    program.write_text(f"#!{sys.executable} -IS\n{real}{FAKE.read_text(encoding='utf-8')}", encoding="utf-8")
    program.chmod(0o755)
    return program


def serve(
    folder: Path,
    models: Mapping[str, Served],
    *,
    settings: Mapping[str, Mapping[str, object]] | None = None,
    env: Mapping[str, str] | None = None,
) -> Bench:
    """A gateway with these models. Settings are JSON, which is YAML; `settings` are put over those of every bench."""
    sections: dict[str, Mapping[str, object]] = {
        "library": {"dirs": []},
        "engine": {"path": str(engine_program(folder)), "startup_timeout": "20s", "stop_grace": "1s"},
        "models": {name: _entry(folder, name, served) for name, served in models.items()},
    }
    for name, section in (settings or {}).items():
        sections[name] = {**sections.get(name, {}), **section}
    config = folder / "gridsched.yaml"
    config.write_text(json.dumps(sections), encoding="utf-8")
    for name in models:
        tell(folder, name)
    return begin(folder, env)


def begin(folder: Path, env: Mapping[str, str] | None = None) -> Bench:
    """A gateway, anew, in a folder where one was served before."""
    mark = secrets.token_hex(8)
    gateway = start(folder, "--config", str(folder / "gridsched.yaml"), env={MARK: mark, **(env or {})})
    bench = Bench(gateway, folder, mark)
    bench.until(lambda: _has_settled(bench), "its files stay as many")
    return bench


def _has_settled(bench: Bench) -> bool:
    """Whether it has as many files open as at the last look: the connection of whoever asked it is closed."""
    before, bench.open_at_start = bench.open_at_start, descriptors(bench.gateway.process.pid)
    return before == bench.open_at_start


def _entry(folder: Path, name: str, served: Served) -> Mapping[str, object]:
    tensors: list[Tensor] = [("token_embd.weight", (WIDTH, VOCAB), "Q8_0")]
    if served.weights_bytes:
        tensors.append(("blk.0.attn_q.weight", (4096, served.weights_bytes // 8192), "F16"))
    path = write_model(folder / f"{name}.gguf", EMBEDDER if served.embeds else CHAT, tensors)
    env = {"FAKE_LLAMA_FILE": str(folder / f"{name}.switches"), **served.env}
    return {"path": str(path), "ctx_size": 2048, "parallel": 1, **served.settings, "env": env}


# --- what must not be left behind ---------------------------------------------------------------------------------


def descriptors(pid: int) -> int:
    """How many files a process has open."""
    return len(os.listdir(f"/proc/{pid}/fd"))  # noqa: PTH208 - names alone, in one call


def leavings(bench: Bench) -> list[str]:
    """A sentence for all that a gateway, idle by now, should not have: work, memory, processes, files, tracebacks."""
    status = bench.status() if bench.gateway.process.poll() is None else None
    wrong = list(_wrong_with_processes(bench, status))
    if status is not None:
        wrong += _wrong_with_status(status)
    if "Traceback" in bench.gateway.log.read_text(encoding="utf-8", errors="replace"):
        wrong.append("its log has a traceback")
    return wrong


def _wrong_with_status(status: Status) -> Iterator[str]:
    for job_class, queue in status["queues"].items():
        if queue["running"]:
            yield f"{queue['running']} jobs of {job_class} are still in flight"
        if queue["length"]:
            yield f"{queue['length']} jobs of {job_class} still wait"
    for item in status["instances"]:
        if item["state"] != "ready" or item["slots"]["busy"]:
            yield f"{item['model']} is {item['state']} with {item['slots']['busy']} slots busy"
    held = sum(item["reserved_bytes"] for item in status["instances"])
    for item in status["instances"]:
        if not item["reserved_bytes"]:
            yield f"nothing is reserved for {item['model']}"
    booked = sum(device["reserved_bytes"] + device["freeing_bytes"] for device in status["devices"])
    if held != booked:
        yield f"{booked} bytes are reserved for processes that hold {held}"


def _wrong_with_processes(bench: Bench, status: Status | None) -> Iterator[str]:
    """`status`: of a gateway that lives."""
    gateway = bench.gateway.process
    children = bench.gateway.children() if status is not None else []
    engines = [pid for pid in children if b"--alias\0" in _read(pid, "cmdline")]
    known = {gateway.pid, *children} if status is not None else set()
    for pid in marked(bench.mark):
        if pid not in known and not _descends(pid, known):
            yield f"process {pid} ({_command(pid)}) is nobody's"
    for pid in known - {gateway.pid}:
        if _state(pid) == "Z":
            yield f"process {pid} is a zombie"
        elif pid not in engines:
            yield f"process {pid} ({_command(pid)}) is no engine"
    if status is None:
        return
    if len(engines) != len(status["instances"]):
        yield f"{len(engines)} engines live, {len(status['instances'])} are told of"
    extra = descriptors(gateway.pid) - bench.open_at_start
    if not extra <= ENGINE_DESCRIPTORS * len(engines) + FEW_DESCRIPTORS:
        yield f"{extra} more files are open than at the start, with {len(engines)} engines"


ENGINE_DESCRIPTORS, FEW_DESCRIPTORS = 3, 3
"""What an engine that runs takes (its output, its life, and a word to its reader), and what may come once."""


def marked(mark: str) -> list[int]:
    """Every living process with a mark in its environment."""
    word = f"{MARK}={mark}".encode()
    return [int(folder.name) for folder in Path("/proc").glob("[0-9]*") if word in _read(int(folder.name), "environ")]


def settle(bench: Bench) -> list[str]:
    """The leavings, after the time that ends take."""
    wrong: list[str] = []

    def clean() -> bool:
        wrong[:] = leavings(bench)
        return not wrong

    with suppress(AssertionError):
        bench.until(clean)
    return wrong


def own_children(known: set[int]) -> list[int]:
    """The children of the test's own process that no bench knows of, zombies too."""
    return [pid for pid in children_of("self") if pid not in known]


def _read(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""


def _command(pid: int) -> str:
    return _read(pid, "cmdline").replace(b"\0", b" ").decode(errors="replace")[:200]


def _stat(pid: int) -> list[str]:
    return _read(pid, "stat").decode(errors="replace").rpartition(")")[2].split() or ["X", "0"]


def _state(pid: int) -> str:
    return _stat(pid)[0]


def _descends(pid: int, known: set[int]) -> bool:
    while pid > 1:
        pid = int(_stat(pid)[1])
        if pid in known:
            return True
    return False
