"""Clients that behave badly on real sockets: they leave in every way there is, read nothing, send byte after byte."""

import json
import socket
import struct
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from tests.faults.bench import Bench, chat_body

CHAT = "/v1/chat/completions"
WAYS = ("closed", "reset", "half closed")
CONNECTIONS = ("fresh", "kept alive", "more sent behind")
MODELS = b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n"
PATIENCE_SECONDS = 60.0


def chat_request(model: str, **more: object) -> bytes:
    """A chat, as it goes over the wire."""
    body = json.dumps(chat_body(model, **more)).encode()
    return b"POST %b HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%b" % (CHAT.encode(), len(body), body)


class Visitor:
    """One raw connection."""

    def __init__(self, bench: Bench) -> None:
        host, _, port = bench.gateway.url.removeprefix("http://").partition(":")
        self.socket = socket.create_connection((host, int(port)), timeout=PATIENCE_SECONDS)
        self.heard = b""

    def say(self, data: bytes) -> None:
        """Send it all."""
        self.socket.sendall(data)

    def hear(self, until: bytes) -> bytes:
        """What comes, to the first time that it says so; or to its end, where it never does."""
        while until not in self.heard:
            part = self.socket.recv(1 << 16)
            if not part:
                break
            self.heard += part
        found, word, self.heard = self.heard.partition(until)
        return found + word

    def leave(self, way: str) -> None:
        """FIN, RST, or the end of what it says while it would still listen."""
        if way == "half closed":
            self.socket.shutdown(socket.SHUT_WR)
            return
        if way == "reset":
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()


@contextmanager
def visitor(bench: Bench, connection: str = "fresh") -> Iterator[Visitor]:
    """One that has asked something before, or has not; closed at the block's exit."""
    one = Visitor(bench)
    try:
        if connection == "kept alive":
            one.say(MODELS)
            head = one.hear(b"\r\n\r\n")
            length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
            while len(one.heard) < length:
                one.heard += one.socket.recv(1 << 16)
            one.heard = b""
        yield one
    finally:
        one.socket.close()


def ask(one: Visitor, connection: str, model: str, **more: object) -> None:
    """Send a chat, and where the connection is such a one, the next request behind it."""
    one.say(chat_request(model, **more) + (MODELS if connection == "more sent behind" else b""))


def codes(bench: Bench, model: str) -> Counter[str]:
    """How many requests for a model have ended with which code, as the metrics tell."""
    found: Counter[str] = Counter()
    for line in bench.ask("/metrics").body.decode().splitlines():
        if line.startswith("gridsched_requests_total{") and f'model="{model}"' in line:
            found[line.partition('code="')[2][:3]] += int(float(line.rpartition(" ")[2]))
    return found
