"""One client: a request from its first byte to its outcome, and what it says of the answer.

Owns what a right answer is: the words of a stream in order and its end, every vector in its place.
"""

import http.client
import json
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from math import inf
from typing import Any

from tests.faults.bench import Bench, chat_body
from tests.soak.plan import REAL, Ask

ANSWERED, LEFT = "answered", "left"
LEAVERS = ("leaves", "breaks off")
PATIENCE_SECONDS = 60.0
SLOWLY_SECONDS = 0.02

KILLED_CLIENT = """
import socket, sys
with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as connection:
    connection.sendall(sys.stdin.buffer.read())
    while connection.recv(4096):
        pass
"""


def ask(bench: Bench, asked: Ask) -> str:
    """Carry one request out: `answered`, `left`, `error CODE`, or what is wrong with the answer."""
    path, body = _request(asked)
    if asked.end == "is killed":
        _be_killed(bench, asked, path, body)
        return LEFT
    patience = asked.until_seconds + 0.001 if asked.end in LEAVERS else PATIENCE_SECONDS
    connection = bench.connect(patience)
    try:
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        if asked.end == "breaks off":
            connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        return _read(asked, connection.getresponse())
    except TimeoutError:
        return LEFT if patience < PATIENCE_SECONDS else f"no answer within {PATIENCE_SECONDS:g} s"
    except (http.client.HTTPException, OSError) as error:
        return f"broken: {type(error).__name__} {error}"
    finally:
        connection.close()


def _request(asked: Ask) -> tuple[str, dict[str, object]]:
    if asked.kind == "embeddings":
        return "/v1/embeddings", {"model": asked.model, "input": [str(number) for number in range(asked.size)]}
    stream = asked.kind == "stream"
    return "/v1/chat/completions", chat_body(asked.model, stream=stream, max_tokens=asked.size)


def _be_killed(bench: Bench, asked: Ask, path: str, body: dict[str, object]) -> None:
    """Ask from a process of its own, which is killed."""
    content = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(content)}\r\n\r\n".encode()
    port = bench.gateway.url.rpartition(":")[2]
    with subprocess.Popen([sys.executable, "-ISc", KILLED_CLIENT, port], stdin=subprocess.PIPE) as client:
        with suppress(subprocess.TimeoutExpired):
            client.communicate(head + content, timeout=asked.until_seconds + 0.1)
        client.kill()


def _read(asked: Ask, answer: http.client.HTTPResponse) -> str:
    if answer.status != 200:
        return _error(answer.status, answer.read())
    if asked.kind == "stream":
        return _read_stream(asked, answer)
    try:
        text = answer.read()
    except http.client.IncompleteRead:
        return "error cut"
    value = json.loads(text)
    if asked.kind == "embeddings":
        numbers = [int(item["embedding"][0]) for item in value["data"]]
        return ANSWERED if numbers == list(range(asked.size)) else f"wrong: vectors {numbers}"
    words = value["choices"][0]["message"]["content"]
    return ANSWERED if asked.model == REAL or words.split() == _words(asked.size) else f"wrong: {words!r}"


def _read_stream(asked: Ask, answer: http.client.HTTPResponse) -> str:
    words: list[str] = []
    pause = threading.Event()
    goes_at = time.monotonic() + (asked.until_seconds if asked.end in LEAVERS else inf)
    for line in _lines(answer):
        if time.monotonic() > goes_at:
            return LEFT
        if asked.end == "reads slowly":
            pause.wait(SLOWLY_SECONDS)
        if line == b"[DONE]":
            whole = asked.model == REAL or words == _words(asked.size)
            return ANSWERED if whole else f"wrong: {len(words)} words of {asked.size}"
        event = json.loads(line)
        if "error" in event:
            return _told(event["error"])
        words += [str(choice["delta"].get("content") or "").strip() for choice in event["choices"]]
    return "error cut"


def _lines(answer: http.client.HTTPResponse) -> Iterator[bytes]:
    """The data of each event; a connection that breaks is an end like any other."""
    with suppress(http.client.HTTPException, ConnectionError):
        for line in answer:
            if line.startswith(b"data: "):
                yield line[6:].strip()


def _words(count: int) -> list[str]:
    return [f"word{number}" for number in range(count)]


def _error(status: int, body: bytes) -> str:
    try:
        return _told(json.loads(body)["error"])
    except (ValueError, KeyError, TypeError, AttributeError):
        return f"error {status} without a word"


def _told(error: dict[str, Any]) -> str:
    """Code, and cause where one is given."""
    cause = (error.get("gridsched") or {}).get("cause")
    return f"error {error.get('code')}" + (f" {cause}" if cause else "")
