"""What the program holds: at rest, for each of a thousand streams that wait, and after many requests.

Owns the streams that wait: each has its own connection, asks for a model whose few slots are busy, and is read by
nobody. Paired with Python that has imported trio, h11 and hypercorn and rests, in the same round. Figures are resident
memory as the kernel counts it; that of files which other programs share is in it.
"""

import http.client
import json
import socket
import sys
import time
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path

from loadtest.bench.processes import LOOPBACK, ROOT, Child, Processes, free_port, wait_until_answers
from loadtest.bench.result import BenchFault, Plan, Row, row_of
from loadtest.bench.tools import compiled
from loadtest.bench.variants import MODEL, PROBE, START_SECONDS, make_models

STREAMS = 1000
SLOTS = 4
REST_SECONDS = 3.0
"""After which nothing moves that a start has set going."""
FIRST_REQUESTS, MORE_REQUESTS = 4000, 2000
"""Growth counts from after the first ones: by then the lines of the decision log that are kept in memory are full."""
LONGEST_QUEUE = 10 * STREAMS
ENDLESS_US = 600_000_000
"""Between two events of the stub engine."""
LIMIT_SECONDS = 120.0
POLL_SECONDS = 0.1
REFERENCE = "python with trio, h11, hypercorn"
_RESTS = "import trio, h11, hypercorn.config, hypercorn.trio, time; print(flush=True); time.sleep(600)"


def measure(plan: Plan) -> Iterable[Row]:
    """Three rows. Raises BenchFault."""
    folder = plan.folder / "memory"
    folder.mkdir()
    models, stub = make_models(folder), compiled("engine_stub", folder)
    rest: dict[str, list[float | None]] = {"rest_bytes": [], "reference_bytes": []}
    waiting: dict[str, list[float | None]] = {"bytes_per_stream": []}
    after: dict[str, list[float | None]] = {"growth_bytes_per_request": []}
    for number in range(plan.rounds):
        plan.say(f"memory: round {number + 1}")
        with Processes(folder) as processes:
            reference = processes.start("reference", (sys.executable, "-c", _RESTS))
            port = free_port()
            server = _server(processes, folder / f"data-{number}", models, stub, port)
            time.sleep(REST_SECONDS)
            rest["rest_bytes"].append(server.memory_bytes())
            rest["reference_bytes"].append(reference.memory_bytes())
            after["growth_bytes_per_request"].append(_growth(server, port))
            waiting["bytes_per_stream"].append(_per_stream(server, port))
    both = {"case": "memory", "variant": "gridsched"}
    yield row_of(rest, **both, reference=REFERENCE, setting="at rest")
    yield row_of(waiting, **both, reference="at rest", streams=STREAMS, setting=f"{STREAMS} waiting streams")
    setting = f"{MORE_REQUESTS} requests after the first {FIRST_REQUESTS}"
    yield row_of(after, **both, reference="at rest", clients=1, setting=setting)


def _server(processes: Processes, data: Path, models: Path, stub: Path, port: int) -> Child:
    chat = {"path": str(models / f"{MODEL}.gguf"), "parallel": SLOTS, "ctx_size": SLOTS * 512}
    settings = {
        "engine": {"path": str(stub)},
        "defaults": {"idle_ttl": "never"},
        "scheduler": {"queues": {"interactive": {"max_length": LONGEST_QUEUE}}},
        "models": {MODEL: {**chat, "capabilities": ["chat", "completion"]}},
    }
    config = data.with_suffix(".yaml")
    config.write_text(json.dumps(settings), encoding="utf-8")  # JSON is YAML
    words = (sys.executable, "-m", "gridsched", "serve", "--config", str(config), "--models-dir", str(models))
    argv = (*words, "--data-dir", str(data), "--port", str(port))
    server = processes.start("gridsched", argv, {"PYTHONPATH": str(ROOT)}, ROOT)
    wait_until_answers(server, port, "/v1/chat/completions", PROBE, START_SECONDS)
    return server


def _growth(server: Child, port: int) -> float:
    """Bytes for each request, over many of them one behind the other. Raises BenchFault."""
    _ask(port, FIRST_REQUESTS)
    before = server.memory_bytes()
    _ask(port, MORE_REQUESTS)
    return (server.memory_bytes() - before) / MORE_REQUESTS


def _ask(port: int, count: int) -> None:
    connection = http.client.HTTPConnection(LOOPBACK, port, timeout=LIMIT_SECONDS)
    try:
        for _ in range(count):
            connection.request("POST", "/v1/chat/completions", PROBE, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            answer.read()
            if answer.status != http.client.OK:
                raise BenchFault(f"a small request got {answer.status}")
    except (OSError, http.client.HTTPException) as error:
        raise BenchFault(f"a small request failed: {error}") from None
    finally:
        connection.close()


def _per_stream(server: Child, port: int) -> float:
    """What each of them takes while all but a few wait. Raises BenchFault."""
    before = server.memory_bytes()
    with ExitStack() as opened:
        for _ in range(STREAMS):
            client = opened.enter_context(socket.create_connection((LOOPBACK, port), LIMIT_SECONDS))
            client.sendall(_request(port))
        _wait_for(port, STREAMS - SLOTS)
        return (server.memory_bytes() - before) / STREAMS


def _request(port: int) -> bytes:
    messages = [{"role": "user", "content": "Say hello."}]
    body = json.dumps({"model": MODEL, "messages": messages, "stream": True, "max_tokens": 2, "seed": ENDLESS_US})
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: {LOOPBACK}:{port}\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode()


def _wait_for(port: int, waiting: int) -> None:
    until, found = time.monotonic() + LIMIT_SECONDS, 0
    while time.monotonic() < until:
        connection = http.client.HTTPConnection(LOOPBACK, port, timeout=LIMIT_SECONDS)
        try:
            connection.request("GET", "/api/status")
            told = json.loads(connection.getresponse().read())
        except (OSError, http.client.HTTPException) as error:
            raise BenchFault(f"/api/status failed: {error}") from None
        finally:
            connection.close()
        found = told["queues"]["interactive"]["length"]
        if found >= waiting:
            return
        time.sleep(POLL_SECONDS)
    raise BenchFault(f"{found} streams wait, and not {waiting}")
