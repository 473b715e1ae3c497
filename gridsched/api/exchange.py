"""One request and its answer, as the handlers see them: a small Protocol, so that they know no server and no framework.

A handler reads the request, sends a head once and then body bytes, and returns whether the answer is whole. The last
message of an answer is the server's to send, after the handler and its watcher have ended.
"""

import secrets
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Final, Protocol

from gridsched.api.body import Incoming
from gridsched.api.dialects import whole
from gridsched.api.routes import dialect_of
from gridsched.control.authority import Caller
from gridsched.control.problems import Header, Problem

LONGEST_REQUEST_ID: Final = 128


class Exchange(Protocol):
    """A request that has been read whole, and the way back to its client."""

    @property
    def method(self) -> str:
        """In upper case."""

    @property
    def path(self) -> str:
        """Without query, percent-decoded."""

    @property
    def query(self) -> bytes:
        """What is behind the path's question mark, as it came."""

    @property
    def headers(self) -> Mapping[bytes, bytes]:
        """Names in lower case, each once: see `joined`."""

    @property
    def body(self) -> bytes:
        """All of it."""

    @property
    def request_id(self) -> str:
        """The client's `X-Request-Id`, or ours."""

    @property
    def caller(self) -> Caller:
        """Who asks, and what that allows."""

    @property
    def started(self) -> bool:
        """Whether a head has been sent."""

    async def send_start(self, status: int, headers: Sequence[Header], first: bytes = b"") -> None:
        """Send the head, once, and the `first` bytes of the body with it, in one piece where the way down can.
        `X-Request-Id` is added here."""

    async def send_body(self, data: bytes) -> None:
        """Send body bytes, after the head."""


class Asking(Exchange, Protocol):
    """A request as its door hands it on: the body has not been read, and the end of the answer is still to be sent."""

    body: bytes
    """Set by whoever has read it."""

    @property
    def incoming(self) -> Incoming:
        """The body as it comes."""

    async def while_there(self, answer: Callable[[], Awaitable[bool]]) -> bool:
        """What `answer` says. It is cancelled, and this returns False or is cancelled itself, once the client has
        left."""

    async def finish(self) -> None:
        """The end of the answer. Outside `while_there`."""


def joined(headers: Iterable[Header]) -> dict[bytes, bytes]:
    """Each name once, the values of a repeated one as one list (RFC 9110, section 5.3), so that none is overlooked."""
    found: dict[bytes, bytes] = {}
    for name, value in headers:
        found[name] = found[name] + b", " + value if name in found else value
    return found


async def send_whole(exchange: Exchange, status: int, headers: Sequence[Header], body: bytes) -> None:
    """A head and a body of known length."""
    await exchange.send_start(status, [*headers, (b"content-length", b"%d" % len(body))], body)


async def send_problem(exchange: Exchange, problem: Problem, headers: Sequence[Header] = ()) -> None:
    """An error before any byte of an answer (H1)."""
    body = whole(dialect_of(exchange.path), problem.body())
    await send_whole(exchange, problem.status, [*headers, *problem.head()], body)


async def refuse_unread(asking: Asking, problem: Problem) -> None:
    """Answer before the body has come whole, and see to it that the client can read that."""
    await send_problem(asking, problem)
    await asking.incoming.drop()
    await asking.finish()


def request_id_of(headers: Mapping[bytes, bytes]) -> str:
    """The client's own, if it is short and printable, else a new one."""
    text = headers.get(b"x-request-id", b"").decode("latin-1")
    if 0 < len(text) <= LONGEST_REQUEST_ID and text.isascii() and text.isprintable():
        return text
    return f"req-{secrets.token_hex(8)}"
