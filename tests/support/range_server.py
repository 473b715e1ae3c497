"""A web server on loopback that gives files by ranges, as it should or in one of the ways that servers get wrong.

Owns real sockets and real HTTP. What it does depends on the path's first folder; what it was asked is in `asked`.
"""

import ssl
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote


@dataclass
class RangeServer:
    """What a test sees of it. `files` are by name, `moved` tells where a name's redirect leads."""

    files: dict[str, bytes] = field(default_factory=dict)
    moved: dict[str, str] = field(default_factory=dict)
    token: str = ""
    asked: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    sent_bytes: int = 0
    url: str = ""
    stopping: threading.Event = field(default_factory=threading.Event)

    @property
    def ranges(self) -> list[str]:
        """The ranges that were asked for, in order."""
        return [headers.get("range", "") for _, headers in self.asked]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    world: RangeServer

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        """Answer in the manner of the path's first folder."""
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.world.asked.append((self.path, headers))
        _, manner, name = unquote(self.path).split("?")[0].split("/", 2)
        if manner.isdigit():
            self._answer(int(manner), b"")
        else:
            getattr(self, f"_{manner}")(name)

    def _answer(self, status: int, body: bytes, headers: Mapping[str, str] | None = None) -> None:
        self.send_response(status)
        for key, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(key, value)
        self.end_headers()
        self._write(body)

    def _write(self, body: bytes) -> None:
        try:
            self.wfile.write(body)
            self.world.sent_bytes += len(body)
        except OSError:
            self.close_connection = True

    def _range(self, name: str) -> tuple[int, int, bytes]:
        """First and last byte that were asked for, as far as there are, and the file."""
        data = self.world.files[name]
        first, last = self.headers["Range"].removeprefix("bytes=").split("-")
        return int(first), min(int(last), len(data) - 1), data

    def _good(self, name: str, **headers: str) -> None:
        if name not in self.world.files:
            return self._answer(404, b"")
        first, last, data = self._range(name)
        if first >= len(data):
            return self._answer(416, b"", {"Content-Range": f"bytes */{len(data)}"})
        told = {"Content-Range": f"bytes {first}-{last}/{len(data)}", "ETag": '"one"', **headers}
        told.setdefault("Last-Modified", "Thu, 01 Jan 2026 00:00:00 GMT")
        return self._answer(206, data[first : last + 1], told)

    def _locked(self, name: str) -> None:
        if self.headers.get("Authorization") != f"Bearer {self.world.token}":
            return self._answer(401, b"")
        return self._good(name)

    def _whole(self, name: str) -> None:
        data = self.world.files[name]
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        for start in range(0, len(data), 1 << 16):
            self._write(data[start : start + (1 << 16)])
            if self.close_connection:
                break

    def _page(self, _: str) -> None:
        self._answer(200, b"<html></html>", {"Content-Type": "text/html; charset=utf-8"})

    def _elsewhere(self, name: str) -> None:
        first, last, data = self._range(name)
        self._answer(206, data[first : last + 1], {"Content-Range": f"bytes {first + 1}-{last + 1}/{len(data) + 9}"})

    def _unsaid(self, name: str) -> None:
        first, last, data = self._range(name)
        self._answer(206, data[first : last + 1])

    def _endless(self, name: str) -> None:
        first, last, data = self._range(name)
        self._answer(206, data[first : last + 1], {"Content-Range": f"bytes {first}-{last}/*"})

    def _less(self, name: str) -> None:
        first, last, data = self._range(name)
        self._good(name, **{"Content-Range": f"bytes {first}-{last - 9}/{len(data)}"})

    def _encoded(self, name: str) -> None:
        self._good(name, **{"Content-Encoding": "gzip"})

    def _changing(self, name: str) -> None:
        self._good(name, ETag=f'"{len(self.world.asked)}"')

    def _broken(self, name: str) -> None:
        first, last, data = self._range(name)
        self.send_response(206)
        self.send_header("Content-Range", f"bytes {first}-{last}/{len(data)}")
        self.send_header("Content-Length", str(last - first + 1))
        self.end_headers()
        self._write(data[first:last][:100])
        self.close_connection = True

    def _cut(self, name: str) -> None:
        """Half of the range, its length given as that of the half."""
        first, last, data = self._range(name)
        self._answer(206, data[first:last][:100], {"Content-Range": f"bytes {first}-{last}/{len(data)}"})

    def _more(self, name: str) -> None:
        first, last, data = self._range(name)
        self._answer(
            206, data[first : last + 1] + bytes(1 << 20), {"Content-Range": f"bytes {first}-{last}/{len(data)}"}
        )

    def _moved(self, name: str) -> None:
        self._answer(302, b"", {"Location": self.world.moved[name]})

    def _circle(self, name: str) -> None:
        self._answer(307, b"", {"Location": f"/circle/{name}"})

    def _silent(self, _: str) -> None:
        self.world.stopping.wait(30)
        self.close_connection = True

    def _drip(self, name: str) -> None:
        first, last, data = self._range(name)
        self.send_response(206)
        self.send_header("Content-Range", f"bytes {first}-{last}/{len(data)}")
        self.send_header("Content-Length", str(last - first + 1))
        self.end_headers()
        for index in range(first, last):
            self._write(data[index : index + 1])
            if self.close_connection or self.world.stopping.wait(0.02):
                break
        self.close_connection = True


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that leaves in the middle is what the tests are about; anything else is told."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)  # type: ignore[arg-type] # whatever the base class takes


@contextmanager
def serving(certificate: Path | None = None) -> Iterator[RangeServer]:
    """Run one for a while, with TLS where it is given a certificate and key in one file."""
    world = RangeServer()
    handler = type("Handler", (_Handler,), {"world": world})
    with _Server(("127.0.0.1", 0), handler) as server:
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            server.socket = context.wrap_socket(server.socket, server_side=True)
        world.url = f"{'https' if certificate else 'http'}://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield world
        finally:
            world.stopping.set()
            server.shutdown()
            thread.join()
