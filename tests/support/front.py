"""A whole server inside a test: simulated hardware, the real runtime, the real front on a real loopback socket.

Server and client share one trio loop, so a jumping clock is safe: a byte on loopback is there before it jumps.
"""

import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from typing import Self, cast

import h11
import trio
from trio.testing import MockClock

import gridsched.api.admin  # noqa: F401 - imported by a server while it serves: a clock that jumps would not wait for it
from gridsched.api.app import Doors, Front
from gridsched.api.listen import listen
from gridsched.api.resolve import Resolver, look_up
from gridsched.api.settings import FrontSettings
from gridsched.api.tracing import UNTRACED
from gridsched.app.beside import Beside
from gridsched.control.authority import Authority
from gridsched.control.downloads import Downloads
from gridsched.control.services import Services
from gridsched.core.policy import Policy
from gridsched.mcp.door import Agents
from gridsched.metrics.registry import Metrics
from gridsched.panel.pages import blueprint
from gridsched.ports import Clock, DeviceMonitor, HeldOnHost, MemoryPressure, StandingStore
from gridsched.runtime.decisions import DecisionLog, Line
from gridsched.runtime.runtime import Parts, Runtime
from gridsched.runtime.tape import Recorder
from gridsched.store.batches import BatchStore
from gridsched.store.memory import MemoryStore
from gridsched.traces.tracing import Tracing
from sim import SimWorld, build
from tests.support.fakes import ScriptedUpstream, StandingClock

Head = dict[str, str]

ADMIN_WORD = "the admin token of every server in a test"


@dataclass
class Answer:
    """A whole answer. `complete` is False where the connection broke inside it."""

    status: int
    headers: Head
    body: bytes = b""
    complete: bool = False
    arrived: list[tuple[float, bytes]] = field(default_factory=list)

    @property
    def json(self) -> dict[str, object]:
        """The body's object."""
        value = json.loads(self.body)
        assert isinstance(value, dict)
        return value

    @property
    def error(self) -> dict[str, object]:
        """The body's `error`."""
        value = self.json["error"]
        assert isinstance(value, dict)
        return value


class Client:
    """One HTTP/1.1 connection, as raw as a test needs it."""

    def __init__(self, stream: trio.SocketStream, port: int) -> None:
        self.stream = stream
        self._port = port
        self._h11 = h11.Connection(h11.CLIENT)

    async def send(self, method: str, target: str, body: bytes = b"", headers: Mapping[str, str] | None = None) -> None:
        """Send a request whole."""
        named = {"Host": f"127.0.0.1:{self._port}"} | dict(headers or {})
        if body and "Transfer-Encoding" not in named:
            named["Content-Length"] = str(len(body))
        request = h11.Request(method=method, target=target, headers=list(named.items()))
        await self.stream.send_all(self._h11.send(request) or b"")
        if body:
            await self.stream.send_all(self._h11.send(h11.Data(data=body)) or b"")
        await self.stream.send_all(self._h11.send(h11.EndOfMessage()) or b"")

    async def event(self) -> object:
        """The next h11 event. Raises h11.RemoteProtocolError where the answer breaks off."""
        while True:
            event = self._h11.next_event()
            if event is not h11.NEED_DATA:
                return event
            try:
                self._h11.receive_data(await self.stream.receive_some(65536))
            except trio.BrokenResourceError:
                self._h11.receive_data(b"")

    async def head(self) -> Answer:
        """The head of the answer."""
        event = await self.event()
        while isinstance(event, h11.InformationalResponse):
            event = await self.event()
        assert isinstance(event, h11.Response), event
        return Answer(event.status_code, {name.decode(): value.decode() for name, value in event.headers})

    async def rest(self, answer: Answer) -> Answer:
        """The body to its end, with the times at which its pieces came."""
        parts: list[bytes] = []
        try:
            while isinstance(event := await self.event(), h11.Data):
                parts.append(bytes(event.data))
                answer.arrived.append((trio.current_time(), bytes(event.data)))
            answer.complete = isinstance(event, h11.EndOfMessage)
        except h11.RemoteProtocolError:
            pass
        answer.body = b"".join(parts)
        if answer.complete and self._h11.states[h11.SERVER] is h11.DONE:
            self._h11.start_next_cycle()
        return answer

    async def ask(
        self, method: str, target: str, body: object = None, headers: Mapping[str, str] | None = None
    ) -> Answer:
        """One exchange from its first byte to its last."""
        sent = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        await self.send(method, target, sent, headers)
        return await self.rest(await self.head())

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        with trio.CancelScope(shield=True):
            await self.stream.aclose()


@dataclass
class House:
    """A running server and what a test asks of its inside."""

    port: int
    runtime: Runtime
    world: SimWorld
    upstream: ScriptedUpstream
    metrics: Metrics
    authority: Authority
    lines: list[Line]
    ended: trio.Event

    async def connect(self) -> Client:
        """A new connection."""
        return Client(await trio.open_tcp_stream("127.0.0.1", self.port), self.port)

    async def ask(
        self, method: str, target: str, body: object = None, headers: Mapping[str, str] | None = None
    ) -> Answer:
        """One exchange on a connection of its own."""
        async with await self.connect() as client:
            return await client.ask(method, target, body, headers)

    def logged(self, event: str) -> list[Line]:
        """The lines of the decision log with this event."""
        return [line for line in self.lines if line["event"] == event]

    async def until_logged(self, event: str, count: int = 1) -> None:
        """Wait until that many lines say so."""
        async with aclosing(cast("AsyncGenerator[object]", self.runtime.log.follow(0))) as lines:
            async for _ in lines:
                if len(self.logged(event)) >= count:
                    return


@asynccontextmanager
async def serving(  # noqa: PLR0913 - every part that a test may want to be another
    clock: MockClock,
    figures: FrontSettings | None = None,
    policy: Policy | None = None,
    recorder: Recorder | None = None,
    *,
    monitor: Callable[[DeviceMonitor], DeviceMonitor] = lambda cards: cards,
    host: tuple[HeldOnHost | None, Callable[[], MemoryPressure | None]] = (None, lambda: None),
    resolve: Resolver = look_up,
    world: SimWorld | None = None,
    batches: BatchStore | None = None,
    wall: Clock | None = None,
    standing: StandingStore | None = None,
    authority: Authority | None = None,
    hub: Downloads | None = None,
    beside: Beside | None = None,
    tracing: Tracing | None = None,
) -> AsyncIterator[House]:
    """A server for the length of a block, under the test's jumping clock; its end is checked to be clean.

    `host` is what processes hold of its memory, and its pressure. `world` is made inside trio, where it is not the
    usual one.
    """
    assert trio.lowlevel.current_clock() is clock
    world = world or build()
    upstream = ScriptedUpstream(world.upstream)
    metrics = Metrics(world.engine.info())
    lines: list[Line] = []

    def sink(line: Line) -> None:
        lines.append(line)
        metrics.saw(line)
        if tracing is not None:
            tracing.saw(line)

    parts = Parts(
        catalog=world.catalog,
        engine=world.engine,
        upstream=upstream,
        monitor=monitor(world.monitor),
        store=MemoryStore(),
        clock=wall or StandingClock(),
        held_on_host=host[0],
        pressure=host[1],
        standing=standing,
    )
    runtime = Runtime(
        parts,
        policy or Policy(),
        log=DecisionLog(sink, beside.past if beside is not None else None),
        timed=metrics.decided,
        check=True,
        recorder=recorder,
    )
    metrics.watch(runtime.snapshot, world.catalog, parts.pressure)
    listener = listen("127.0.0.1", 0)
    port = int(listener.getsockname()[1])
    ended = trio.Event()
    authority = authority or Authority(ADMIN_WORD)

    def services(runtime: Runtime) -> Services:
        kept = beside or Beside()
        return Services(
            runtime, authority, hub=hub, audit=kept.audit, configuration=kept.configuration, keyring=kept.keyring
        )

    doors = Doors(Agents(), blueprint, tracer=tracing or UNTRACED)
    front = Front(listener, figures or FrontSettings(), metrics, authority, resolve, batches, services, doors)

    async def serve() -> None:
        await runtime.serve(front)
        ended.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve)
        yield House(port, runtime, world, upstream, metrics, authority, lines, ended)
        runtime.end()
        await ended.wait()
    assert runtime.desk.open_tickets == 0
    assert not world.engine.processes()
