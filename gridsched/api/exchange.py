"""One request and its answer, as the handlers see them: a small Protocol, so that they know no server and no framework.

A handler reads the request, sends a head once and then body bytes, and returns whether the answer is whole. The last
message of an answer is the server's to send, after the handler and its watcher have ended.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from gridsched.api.dialects import whole
from gridsched.api.routes import dialect_of
from gridsched.control.authority import Caller
from gridsched.control.problems import Header, Problem


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
