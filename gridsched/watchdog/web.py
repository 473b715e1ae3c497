"""The watchdog's port: loopback, one path for MCP, one to see that it lives, one for Prometheus. On the standard
library's server.

Must never answer a browser that a page from elsewhere has sent here (a foreign Host, any foreign Origin, `null` too),
never run a tool without the credential, and never give one client more than its share of time, memory or threads.
"""

import errno
import hmac
import io
import json
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, HTTPServer
from socketserver import ThreadingMixIn
from typing import Any, cast
from urllib.parse import urlsplit

from gridsched.watchdog import mcp
from gridsched.watchdog.front import holder_of
from gridsched.watchdog.metrics import CONTENT_TYPE
from gridsched.watchdog.timed import TimedReader

HOST = "127.0.0.1"
MOST_BODY_BYTES = 1024 * 1024
LONGEST_LENGTH = 20
"""Digits of a length that are read at all."""

MOST_CONNECTIONS = 16
REQUEST_SECONDS = 15.0
"""From one request's end to the next one's end: also how long an idle connection is kept."""

THERE_ARE = "there are POST /mcp, GET /health and GET /metrics"
_LOCAL_NAMES = frozenset(("127.0.0.1", "localhost", "::1"))

_WHY_FULL = f'{{"error": {{"message": "{MOST_CONNECTIONS} clients are connected; try again soon", "code": 503}}}}'
_FULL = (
    "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nRetry-After: 1\r\nConnection: close\r\n"
    f"Content-Length: {len(_WHY_FULL)}\r\n\r\n{_WHY_FULL}"
).encode()


class PortTaken(Exception):
    """Somebody else listens there; one sentence."""


class Server(ThreadingMixIn, HTTPServer):
    """Serves in threads, so many and no more. `health` and `metrics` are what anybody on this machine may know."""

    daemon_threads = True
    request_queue_size = 32

    def __init__(
        self,
        port: int,
        token: Callable[[], str],
        tools: mcp.Tools,
        health: Callable[[], dict[str, Any]],
        metrics: Callable[[], str],
    ) -> None:
        """Listens already. Raises PortTaken, and OSError for a port that cannot be listened on."""
        self.token, self.tools, self.health, self.metrics = token, tools, health, metrics
        self._free = threading.BoundedSemaphore(MOST_CONNECTIONS)
        try:
            super().__init__((HOST, port), _Handler)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise PortTaken(
                    f"port {port} is taken by {holder_of(port)}; stop it, or name another with --port"
                ) from None
            raise

    def server_bind(self) -> None:
        """Bind, without asking a name server what this machine is called."""
        socket.socket.setsockopt(self.socket, socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = HOST, self.server_address[1]

    def process_request(self, request: Any, client_address: Any) -> None:
        """One thread a connection; whoever is one too many is told to come back."""
        if self._free.acquire(blocking=False):
            try:
                super().process_request(request, client_address)
            except RuntimeError:  # this machine has no thread left; the place is given back for when it has
                self._free.release()
                raise
            return
        try:
            request.settimeout(1.0)
            request.sendall(_FULL)
        except OSError:
            pass
        self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """In its thread."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002 - as the base class has it
        """A client that has gone is none; a bug of ours is said."""
        if not isinstance(sys.exception(), OSError):
            traceback.print_exc()


class _Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    server_version, sys_version = "gridsched-watchdog", ""

    def setup(self) -> None:
        super().setup()
        self._timed = TimedReader(self.connection)
        self.rfile = io.BufferedReader(self._timed)  # the base class closes it

    def handle_one_request(self) -> None:
        self._timed.deadline = time.monotonic() + REQUEST_SECONDS
        super().handle_one_request()

    def do_GET(self) -> None:
        """`/health` and `/metrics` are for everybody on this machine."""
        if self._is_foreign():
            return
        match self._where():
            case "/health":
                self._send(200, self._server.health())
            case "/metrics":
                self._write(200, CONTENT_TYPE, self._server.metrics().encode())
            case "/mcp":
                self._refuse(405, "POST a message; there is no stream of ours to listen to", Allow="POST")
            case _:
                self._refuse(404, THERE_ARE)

    def do_POST(self) -> None:
        """One message, one answer."""
        if self._is_foreign():
            return
        path = self._where()
        if path != "/mcp":
            self._refuse(405 if path in {"/health", "/metrics"} else 404, THERE_ARE, Allow="GET")
        elif not self._is_authorized():
            told = "every tool needs the credential in watchdog.token of the data directory: Authorization: Bearer …"
            self._refuse(401, told, **{"WWW-Authenticate": "Bearer"})
        elif (body := self._body()) is not None:
            self._answer(body)

    def do_DELETE(self) -> None:
        """There are no sessions to end."""
        if not self._is_foreign():
            self._refuse(405, "there is no session to end", Allow="POST")

    do_PUT = do_PATCH = do_HEAD = do_OPTIONS = do_DELETE  # noqa: N815 - the same

    def _answer(self, body: bytes) -> None:
        version = self.headers.get("MCP-Protocol-Version", "").strip()
        try:
            reply = mcp.answer(body, version, self._server.tools)
        except Exception:  # noqa: BLE001 - a bug in one tool must not leave its caller without an answer
            traceback.print_exc()
            self._refuse(500, "an error of this watchdog; what it printed has the details")
            return
        self._send(reply.status, reply.message)

    def _where(self) -> str:
        """The path that was asked for; empty for what is no URL at all."""
        try:
            return urlsplit(self.path).path
        except ValueError:
            return ""

    def _is_foreign(self) -> bool:
        """Refuse what a page from elsewhere can make a browser send: a rebound name, another origin."""
        host, origin = self.headers.get("Host", ""), self.headers.get("Origin")
        if not self._is_ours(f"//{host}"):
            self._refuse(403, f"this server does not answer for the host {host[:100]!r}")
            return True
        if origin is not None and not (origin.startswith("http://") and self._is_ours(origin)):
            self._refuse(403, f"requests from the origin {origin[:100]!r} are not taken")
            return True
        return False

    def _is_ours(self, url: str) -> bool:
        try:
            said = urlsplit(url)
            port = said.port
        except ValueError:
            return False
        return said.hostname in _LOCAL_NAMES and port == self._server.server_port

    def _is_authorized(self) -> bool:
        scheme, _, given = self.headers.get("Authorization", "").partition(" ")
        is_right = hmac.compare_digest(given.strip().encode("utf-8", "replace"), self._server.token().encode())
        return is_right and scheme.lower() == "bearer"

    def _body(self) -> bytes | None:
        """The body, or None when it was refused."""
        length = self.headers.get("Content-Length", "")
        if not length.isascii() or not length.isdecimal() or "Transfer-Encoding" in self.headers:
            self._refuse(411, "a body has a Content-Length here")
        elif len(length) > LONGEST_LENGTH or int(length) > MOST_BODY_BYTES:
            self._refuse(413, f"a body has at most {MOST_BODY_BYTES} bytes")
        elif self.headers.get_content_type() != "application/json":
            self._refuse(415, "a body is application/json")
        else:
            body = self.rfile.read(int(length))
            if len(body) == int(length):
                return body
            self.close_connection = True
        return None

    def _refuse(self, status: int, sentence: str, **headers: str) -> None:
        """The connection ends with it: what is still to come of the request is not read."""
        self.close_connection = True
        self._send(status, {"error": {"message": sentence, "code": status}}, Connection="close", **headers)

    def _send(self, status: int, said: dict[str, Any] | None, **headers: str) -> None:
        data = json.dumps(said).encode() if said is not None else b""
        self._write(status, "application/json" if said is not None else "", data, **headers)

    def _write(self, status: int, content_type: str, data: bytes, **headers: str) -> None:
        self.connection.settimeout(REQUEST_SECONDS)
        self.send_response(status)
        if content_type:
            self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(data)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data if self.command != "HEAD" else b"")

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:  # noqa: ARG002 - as the base class has it
        """What the base class refuses: a head that is none, or too long."""
        self._refuse(code, message or HTTPStatus(code).phrase)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - as the base class has it
        """Nothing: whoever asks is not kept."""

    @property
    def _server(self) -> Server:
        return cast("Server", self.server)
