"""A server that is not gridsched, or says what a test wants said: one answer to every request."""

import json
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@contextmanager
def answering(
    body: object,
    status: int = 200,
    seen: list[tuple[str, str, str]] | None = None,
    bodies: list[bytes] | None = None,
    tls: ssl.SSLContext | None = None,
) -> Iterator[str]:
    """Its address. `seen` gets method, target and credential of each request, `bodies` its body."""

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            if seen is not None:
                seen.append((self.command, self.path, self.headers.get("Authorization", "")))
            told = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            if bodies is not None:
                bodies.append(told)
            data = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = do_DELETE = do_PATCH = answer  # noqa: N815 - as http.server calls them

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - as http.server calls it
            """Nobody reads it."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.handle_error = lambda *_: None  # type: ignore[method-assign]  # a client that trusts it not breaks off
        if tls is not None:
            server.socket = tls.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"{'http' if tls is None else 'https'}://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()
