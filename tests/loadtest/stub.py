"""A small HTTP server for the load test's clients: a function gives its answers, and it keeps what it was asked.

Every answer ends with its connection. Speaks just enough HTTP/1.1 for one request at a time.
"""

import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import trio


@dataclass(frozen=True)
class Asked:
    """One request: header names in lower case, the body as it came."""

    path: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def fields(self) -> dict[str, object]:
        """The body as JSON."""
        parsed: dict[str, object] = json.loads(self.body)
        return parsed


@dataclass(frozen=True)
class Reply:
    """One answer. `pieces` are sent one by one, `hold` keeps the connection open after them."""

    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    pieces: tuple[bytes, ...] = ()
    hold: bool = False


Answer = Callable[[Asked], Reply]


def as_json(value: object, status: int = 200, **headers: str) -> Reply:
    """An answer in JSON."""
    return Reply(status, {"Content-Type": "application/json", **headers}, (json.dumps(value).encode(),))


def frames(*values: object, end: str = "data: [DONE]\n\n") -> tuple[bytes, ...]:
    """Stream frames, a piece each."""
    return (*(f"data: {json.dumps(value)}\n\n".encode() for value in values), end.encode())


def delta(text: str) -> dict[str, object]:
    """The content of a chat stream's frame."""
    return {"choices": [{"index": 0, "delta": {"content": text}}]}


@dataclass
class Stub:
    """A running stub."""

    url: str
    asked: list[Asked] = field(default_factory=list)


@asynccontextmanager
async def serving(answer: Answer) -> AsyncIterator[Stub]:
    """A stub on a free loopback port for as long as the block lasts."""
    async with trio.open_nursery() as nursery:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        stub = Stub(f"http://127.0.0.1:{listeners[0].socket.getsockname()[1]}")

        async def serve(stream: trio.SocketStream) -> None:
            async with stream:
                asked = await _read(stream)
                stub.asked.append(asked)
                await _write(stream, answer(asked))

        nursery.start_soon(trio.serve_listeners, serve, listeners)
        yield stub
        nursery.cancel_scope.cancel()


async def _read(stream: trio.SocketStream) -> Asked:
    raw = b""
    while b"\r\n\r\n" not in raw:
        raw += await stream.receive_some()
    head, _, body = raw.partition(b"\r\n\r\n")
    first, *rest = head.decode().split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in rest)}
    while len(body) < int(headers.get("content-length", 0)):
        body += await stream.receive_some()
    return Asked(first.split(" ")[1], headers, body)


async def _write(stream: trio.SocketStream, reply: Reply) -> None:
    lines = [f"HTTP/1.1 {reply.status} Stub", "Connection: close", *(f"{n}: {v}" for n, v in reply.headers.items())]
    try:
        await stream.send_all(("\r\n".join(lines) + "\r\n\r\n").encode())
        for piece in reply.pieces:
            await stream.send_all(piece)
        if reply.hold:
            await trio.sleep_forever()
    except trio.BrokenResourceError:
        pass  # the client has seen enough
