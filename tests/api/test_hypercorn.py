"""What this server uses of hypercorn's inside: an update that changes it fails here, and says where."""

import inspect
import itertools
import re
from collections.abc import Callable

import h11
import pytest
import trio
from h11 import _readers
from h11._abnf import chunk_header, header_field
from hypercorn.app_wrappers import ASGIWrapper
from hypercorn.config import Config
from hypercorn.events import Closed, Event, RawData, Updated
from hypercorn.protocol.h11 import H11Protocol
from hypercorn.trio.task_group import TaskGroup
from hypercorn.trio.worker_context import TrioSingleTask, WorkerContext
from hypercorn.typing import ASGIReceiveCallable, ASGISendCallable, ConnectionState, Scope
from hypercorn.utils import parse_socket_addr

from gridsched.api.connection import _Client

TAKEN: dict[Callable[..., object], str] = {
    H11Protocol.__init__: "self app config context task_group connection_state ssl client server send",
    H11Protocol.handle: "self event",
    H11Protocol._check_protocol: "self event",
    H11Protocol._create_stream: "self request",
    H11Protocol._send_error_response: "self status_code",
    H11Protocol._send_h11_event: "self event",
    TrioSingleTask.restart: "self task_group action",
    TrioSingleTask.stop: "self",
    WorkerContext.__init__: "self max_requests",
    ASGIWrapper.__init__: "self app",
    RawData.__init__: "self data address",
    Updated.__init__: "self idle",
    Closed.__init__: "self",
    parse_socket_addr: "family address",
}


@pytest.mark.parametrize(("used", "names"), TAKEN.items(), ids=lambda value: getattr(value, "__qualname__", ""))
def test_what_is_called_takes_what_it_is_given(used: Callable[..., object], names: str) -> None:
    """By these names, in this order."""
    assert list(inspect.signature(used).parameters) == names.split()


def test_the_figures_that_are_set_are_there() -> None:
    """Setting one that is not would be no error."""
    config = Config()
    for name in (
        *("keep_alive_timeout", "keep_alive_max_requests", "h11_max_incomplete_size"),
        *("include_server_header", "include_date_header", "accesslog", "errorlog"),
    ):
        assert hasattr(config, name), name
    config.include_server_header = False
    (date,) = config.response_headers("h11")
    assert date[0] == b"date"
    assert date[1].endswith(b" GMT")


class Turn:
    """Stands where hypercorn waits until the next request may be read."""

    def __init__(self, said: list[str]) -> None:
        self._said = said

    async def clear(self) -> None:
        """It must wait."""
        self._said.append("clear")

    async def set(self) -> None:
        """It may be read."""
        self._said.append("set")

    async def wait(self) -> None:
        """Wait for that."""
        self._said.append("wait")

    def is_set(self) -> bool:
        """Whether it may."""
        return True


async def test_a_request_passes_as_the_connection_counts_on() -> None:
    """Idle is said before and behind each request, the answer goes down through `send`, and what comes behind a request
    waits at `can_read`; the end of the connection reaches the application as its client's."""
    said: list[str] = []
    sent = bytearray()
    left = trio.Event()

    async def app(scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        assert scope["type"] == "http"
        said.append(f"{scope['method']} {scope['path']} {scope['client']}")
        message = await receive()
        while message["type"] == "http.request" and message["more_body"]:
            message = await receive()
        if scope["path"] == "/waits":
            message = await receive()
            said.append(message["type"])
            left.set()
            return
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"ok", "more_body": False})

    async def obey(event: Event) -> None:
        if isinstance(event, RawData):
            sent.extend(event.data)
        else:
            said.append("idle" if isinstance(event, Updated) and event.idle else type(event).__name__)

    async with TaskGroup() as tasks:
        protocol = H11Protocol(
            ASGIWrapper(app), Config(), WorkerContext(None), tasks, ConnectionState({}), False, ("::1", 7), None, obey
        )
        protocol.can_read = Turn(said)
        assert isinstance(protocol.connection, h11.Connection)
        await protocol.handle(RawData(b"GET /a HTTP/1.1\r\nhost: x\r\n\r\n"))
        await trio.testing.wait_all_tasks_blocked()
        assert sent.startswith(b"HTTP/1.1 200 \r\ncontent-length: 2\r\n")
        assert said == ["Updated", "GET /a ('::1', 7)", "set", "idle"]
        await protocol.handle(RawData(b"GET /waits HTTP/1.1\r\nhost: x\r\n\r\n"))
        await protocol.handle(Closed())
        await left.wait()
        assert said[4:6] == ["Updated", "GET /waits ('::1', 7)"]
        assert "http.disconnect" in said


LINES = ("a", ":", " ", "\t", "\r", "\n", "\0", "\x0b", "\x7f", "\xff", ";", "5", "\r\n", "(")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("theirs", "ours"),
    [(header_field, _readers.header_field_re), (chunk_header, _readers.chunk_header_re)],
    ids=["header", "chunk"],
)
def test_the_patterns_in_place_of_h11s_match_the_same(theirs: str, ours: re.Pattern[bytes]) -> None:
    """Every line of up to four pieces, also behind a beginning that is right: the same parts of it."""
    pattern = re.compile(theirs.encode())
    for pieces in itertools.chain.from_iterable(itertools.product(LINES, repeat=size) for size in range(5)):
        line = "".join(pieces).encode("latin-1")
        for each in (line, b"a:" + line, b"5" + line + b"\r\n"):
            expected, found = pattern.fullmatch(each), ours.fullmatch(each)
            assert (expected and expected.groupdict()) == (found and found.groupdict()), each


HEAD = b"POST / HTTP/1.1\r\nHost: localhost\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
BLANKS = b" " * 60_000
SPOILT = {
    "header": HEAD + b"A:" + BLANKS + b"\0\r\n\r\n",
    "header that goes on": HEAD + b"A:" + b"\r\n " * 20_000 + b"\0\r\n\r\n",
    "trailer": CHUNKED + b"0\r\nA:" + BLANKS + b"\0\r\n\r\n",
    "chunk": CHUNKED + b"5;" + BLANKS + b"\n\r\n",
}


@pytest.mark.parametrize("sent", SPOILT.values(), ids=SPOILT.keys())
def test_H6_a_spoilt_line_is_refused_without_trying_it_in_all_ways(sent: bytes) -> None:
    """Blanks and what may not stand behind them, as many as a head may have: half a minute for h11's own patterns."""
    connection = _Client(h11.SERVER, max_incomplete_event_size=65_536)
    connection.receive_data(sent)
    with pytest.raises(h11.RemoteProtocolError):
        [*iter(connection.next_event, h11.NEED_DATA)]
