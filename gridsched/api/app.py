"""The front: one listening socket, hypercorn, and which application answers what.

Owns the server's own figures and its end: listeners close at once, the decision log's followers have ended by then,
open answers get their grace. `Front` fits `runtime.runtime.Front`.
"""

import logging
import socket

import trio
from hypercorn.config import Config
from hypercorn.trio import serve
from hypercorn.typing import ASGIReceiveCallable, ASGISendCallable, Scope
from quart_trio import QuartTrio

from gridsched.api import admin
from gridsched.api.asgi import DataPlane
from gridsched.api.observe import Observer
from gridsched.api.seat import House
from gridsched.api.settings import FrontSettings
from gridsched.runtime.runtime import Runtime

LONGEST_HEAD_BYTES = 64 * 1024
REQUESTS_PER_CONNECTION = 1_000_000
LAST_WORDS_SECONDS = 1.0
"""After their grace, streams are told that the server ends; this is the time to say it before connections are cut."""


class Front:
    """Serves clients on `listener`, which it takes over, until it is told to stop. One object serves once."""

    def __init__(self, listener: socket.socket, settings: FrontSettings, observer: Observer) -> None:
        self._listener = listener
        self._settings = settings
        self._observer = observer

    async def __call__(self, runtime: Runtime, stop: trio.Event) -> None:
        """Serve until `stop` is set and open answers have ended, within their grace."""
        house = House(runtime, self._settings, self._observer, stop)
        app = Dispatch(DataPlane(house), admin.build(house))
        await serve(app, self._config(), shutdown_trigger=stop.wait)

    def _config(self) -> Config:
        config = Config()
        config.bind = [f"fd://{self._listener.detach()}"]
        config.graceful_timeout = self._settings.graceful_seconds + LAST_WORDS_SECONDS
        config.keep_alive_timeout = self._settings.keep_alive_seconds
        config.keep_alive_max_requests = REQUESTS_PER_CONNECTION
        config.h11_max_incomplete_size = LONGEST_HEAD_BYTES
        config.include_server_header = False
        config.accesslog = None
        config.errorlog = logging.getLogger("gridsched.http")
        config.errorlog.setLevel(logging.WARNING)  # where it listens is said by whoever made the socket
        return config


class Dispatch:
    """The outermost ASGI application: `/v1` to the data plane, the rest to Quart."""

    def __init__(self, data_plane: DataPlane, rest: QuartTrio) -> None:
        self._data_plane = data_plane
        self._rest = rest

    async def __call__(self, scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        """Answer one request, or run one lifespan."""
        if scope["type"] == "http" and (scope["path"] == "/v1" or scope["path"].startswith("/v1/")):
            await self._data_plane(scope, receive, send)
        else:
            await self._rest(scope, receive, send)
