"""The front: its listening sockets, their connections, and which application answers what.

Owns the server's own figures and its end: the listeners close at once, the decision log's followers have ended by then,
open answers get their grace. `Front` fits `runtime.runtime.Front`.
"""

import importlib
import logging
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Protocol

import trio
from hypercorn.app_wrappers import ASGIWrapper
from hypercorn.config import Config
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import (
    ASGIReceiveCallable,
    ASGIReceiveEvent,
    ASGISendCallable,
    ASGISendEvent,
    HTTPScope,
    Scope,
)

from gridsched.api.asgi import AsgiExchange
from gridsched.api.body import LONGEST_BESIDE_BYTES
from gridsched.api.connection import Connection, turn_away
from gridsched.api.entrance import Entrance, Preflight
from gridsched.api.exchange import joined, refuse_unread
from gridsched.api.fast import FastConnection, Hall
from gridsched.api.gate import LOOKING, Address, stamped
from gridsched.api.health import PATH as HEALTH
from gridsched.api.health import Health
from gridsched.api.later import MODULE, Later
from gridsched.api.listen import accept_all
from gridsched.api.observe import Observer
from gridsched.api.plane import DataPlane
from gridsched.api.resolve import Resolver, look_up
from gridsched.api.routes import in_data_plane
from gridsched.api.seat import House
from gridsched.api.settings import FrontSettings
from gridsched.api.tracing import UNTRACED, Tracer
from gridsched.api.watch import HangUps, IdleTimes
from gridsched.control.audit import Audit
from gridsched.control.authority import NOBODY, Authority, Caller
from gridsched.control.leases import watch_owners
from gridsched.control.problems import Header, Problem, RequestError
from gridsched.control.services import Services
from gridsched.control.verb import Asker
from gridsched.runtime.runtime import Runtime
from gridsched.store.batches import BatchStore

if TYPE_CHECKING:  # see `later`
    from quart import Blueprint
    from quart_trio import QuartTrio

LONGEST_HEAD_BYTES = 64 * 1024
REQUESTS_PER_CONNECTION = 1_000_000
LAST_WORDS_SECONDS = 1.0
"""After their grace, clients are told that the server ends; this is the time to say it before connections are cut."""

AGENTS = frozenset({"/mcp", "/mcp/"})
"""Where agents ask."""


class Agents(Protocol):
    """Whoever answers there. `run` runs from before the first request until after the last."""

    async def run(self, services: Services, task_status: trio.TaskStatus[None] = ...) -> None:
        """Until cancelled."""

    async def __call__(
        self,
        scope: HTTPScope,
        receive: ASGIReceiveCallable,
        send: ASGISendCallable,
        body: bytes,
        asker: Asker,
    ) -> None:
        """Answer one request, whose body has been read whole."""


@dataclass(frozen=True, slots=True)
class Doors:
    """What else answers: `agents` at `/mcp`; `panel` makes what has the files that everybody may have. `listeners` are
    further sockets on which all is served. `tracer` is told of each request of the data plane."""

    agents: Agents | None = None
    panel: "Callable[[], Blueprint] | None" = None
    listeners: tuple[socket.socket, ...] = ()
    tracer: Tracer = UNTRACED


NO_DOORS = Doors()

MANAGED = "/api/"
"""Where the verbs are."""


class Front:
    """Serves clients on `listener` and those of `doors`, which it takes over, until it is told to stop. One object
    serves once."""

    def __init__(
        self,
        listener: socket.socket,
        settings: FrontSettings,
        observer: Observer,
        authority: Authority,
        resolve: Resolver = look_up,
        store: BatchStore | None = None,
        services: Callable[[Runtime], Services] | None = None,
        doors: Doors = NO_DOORS,
    ) -> None:
        """`store` has the files and batches, where there is a data directory; `services` are what the verbs work
        on."""
        self._listeners = (listener, *doors.listeners)
        self._settings = settings
        self._observer = observer
        self._authority = authority
        self._resolve = resolve
        self._store = store
        self._services = services or (lambda runtime: Services(runtime, authority))
        self._agents = doors.agents
        self._panel = doors.panel
        self._tracer = doors.tracer
        self._house: House | None = None

    def go_by(self, settings: FrontSettings) -> None:
        """Take these figures for requests and connections that come from now on."""
        self._settings = settings
        if self._house is not None:
            self._house.settings = settings

    async def __call__(self, runtime: Runtime, stop: trio.Event) -> None:
        """Serve until `stop` is set and open answers have ended, within their grace."""
        house = self._house = House(
            runtime, self._settings, self._observer, self._authority, stop, self._resolve, self._tracer
        )
        services = self._services(runtime)
        data_plane = DataPlane(house, self._store, Health(house, trio.current_time(), services.reloader))
        entrance = Entrance(house)
        rest = Later(partial(self._make_rest, house, services))
        app = ASGIWrapper(Dispatch(house, entrance, data_plane, rest, self._agents, services.audit))
        idle = IdleTimes(self._settings.keep_alive_seconds)
        with HangUps() as hang_ups:
            await self._stay(app, Hall(house, entrance, data_plane, hang_ups, idle), rest, services, stop)

    def _make_rest(self, house: House, services: Services) -> "QuartTrio":
        panel = self._panel() if self._panel is not None else None
        made: QuartTrio = importlib.import_module(MODULE).build(house, services, panel)
        return made

    async def _stay(self, app: ASGIWrapper, hall: Hall, rest: Later, services: Services, stop: trio.Event) -> None:
        async with trio.open_nursery() as beside:
            beside.start_soon(rest.run)
            if self._agents is not None:
                await beside.start(self._agents.run, services)
            beside.start_soon(hall.idle.run)
            await self._listen(app, hall, services, stop)
            beside.cancel_scope.cancel()

    async def _listen(self, app: ASGIWrapper, hall: Hall, services: Services, stop: trio.Event) -> None:
        """Serve connections until `stop` is set, and then for as long as their answers may take."""
        config, context = self._config(), WorkerContext(None)

        def take(sock: socket.socket) -> None:
            if len(connections.child_tasks) >= self._settings.most_connections:
                turn_away(sock)
            else:
                connections.start_soon(self._serve, app, config, context, hall, sock)

        async with trio.open_nursery() as watching:
            watching.start_soon(hall.hang_ups.run)
            async with trio.open_nursery() as connections:
                async with trio.open_nursery() as accepting:
                    for listener in self._listeners:
                        accepting.start_soon(accept_all, listener, take)
                    accepting.start_soon(hall.data_plane.batches.run)
                    await accepting.start(services.operations.run)
                    accepting.start_soon(watch_owners, services.runtime)
                    await stop.wait()
                    accepting.cancel_scope.cancel()
                await context.terminated.set()
                hall.idle.stop()
                cut_off_at = trio.current_time() + self._settings.graceful_seconds
                hall.house.cut_off(cut_off_at)
                watching.cancel_scope.deadline = cut_off_at + LAST_WORDS_SECONDS
            watching.cancel_scope.cancel()

    async def _serve(
        self, app: ASGIWrapper, config: Config, context: WorkerContext, hall: Hall, sock: socket.socket
    ) -> None:
        """One client's connection, from accept to close."""
        read: bytes | None = b""
        settings = self._settings
        if settings.certificate is None:
            read = await FastConnection(hall, sock).run()
        if read is not None:
            stall_seconds = settings.write_stall_seconds
            await Connection(app, config, context, sock, stall_seconds, settings.certificate, read).run()

    def _config(self) -> Config:
        config = Config()
        config.keep_alive_timeout = self._settings.keep_alive_seconds
        config.keep_alive_max_requests = REQUESTS_PER_CONNECTION
        config.h11_max_incomplete_size = LONGEST_HEAD_BYTES
        config.include_server_header = False
        config.accesslog = None
        config.errorlog = logging.getLogger("gridsched.http")
        config.errorlog.setLevel(logging.WARNING)  # where it listens is said by whoever made the socket
        return config


class Dispatch:
    """The ASGI application of what comes through hypercorn: who may ask at all (H6), then the data plane, the rest to
    Quart.

    Quart answers an unknown path before the body is read, which resets the connection under the client's upload; so
    what goes there is read whole first, as on the data plane.
    """

    def __init__(
        self,
        house: House,
        entrance: Entrance,
        data_plane: DataPlane,
        rest: Later,
        agents: Agents | None,
        audit: Audit | None = None,
    ) -> None:
        self._house = house
        self._entrance = entrance
        self._data_plane = data_plane
        self._audit = audit
        self._agents = agents
        self._rest = rest

    async def __call__(self, scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        """Answer one request. A connection makes no other kind of scope."""
        assert scope["type"] == "http"  # noqa: S101 - for the type checker
        headers = joined(scope["headers"])
        entered = self._entrance.look(scope["method"], scope["path"], headers, scope["client"])
        answer = _adding(entered.for_browsers, send)
        stall_seconds = self._house.settings.upload_stall_seconds
        match entered.found:
            case Preflight(answered):
                await send({"type": "http.response.start", "status": 204, "headers": answered})
                await send({"type": "http.response.body", "body": b"", "more_body": False})
            case Problem() as problem:
                self._note(scope, headers, str(entered.address or ""), problem)
                await refuse_unread(AsgiExchange(scope, headers, receive, answer, NOBODY, stall_seconds), problem)
            case Caller() as caller:
                exchange = AsgiExchange(scope, headers, receive, answer, caller, stall_seconds)
                if in_data_plane(scope["path"]) or scope["path"] == HEALTH:
                    await self._data_plane.serve(exchange)
                else:
                    await self._beside(exchange, scope, receive, answer, entered.address)

    def _note(self, scope: HTTPScope, headers: Mapping[bytes, bytes], address: str, problem: Problem) -> None:
        """A change that was refused before anybody looked at what was to be changed."""
        if self._audit is not None and scope["path"].startswith(MANAGED) and scope["method"] not in LOOKING:
            asker = Asker(NOBODY, address, "rest", headers.get(b"x-request-id", b"").decode("latin-1"))
            self._audit.note(f"{scope['method']} {scope['path']}", {}, asker, "refused", problem)

    async def _beside(
        self,
        exchange: AsgiExchange,
        scope: HTTPScope,
        receive: ASGIReceiveCallable,
        send: ASGISendCallable,
        address: Address | None,
    ) -> None:
        """What is beside the data plane, once its body has come; whoever left meanwhile is not answered."""
        try:
            body = await exchange.incoming.read(LONGEST_BESIDE_BYTES)
        except RequestError as error:
            await refuse_unread(exchange, error.problem)
            return
        if body is None:
            return
        named = _adding(((b"x-request-id", exchange.request_id.encode()),), send)
        if self._agents is not None and scope["path"] in AGENTS:
            asker = Asker(exchange.caller, str(address or ""), "mcp", exchange.request_id, exchange.headers)
            await self._agents(scope, receive, named, body, asker)
        else:
            stamp = stamped(scope, exchange.caller, address, exchange.request_id)
            await self._rest(stamp, _replay(body, receive), named)


def _adding(headers: tuple[Header, ...], send: ASGISendCallable) -> ASGISendCallable:
    """The way out, with these in every head."""
    if not headers:
        return send

    async def send_with_them(message: ASGISendEvent) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message["headers"], *headers]
        await send(message)

    return send_with_them


def _replay(body: bytes, receive: ASGIReceiveCallable) -> ASGIReceiveCallable:
    """A body that has been read, then whatever else comes."""
    messages: list[ASGIReceiveEvent] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive_again() -> ASGIReceiveEvent:
        return messages.pop() if messages else await receive()

    return receive_again
