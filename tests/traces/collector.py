"""A collector on loopback, as real as a test needs it: it takes spans over HTTP and reads them, or hangs."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, Span


@dataclass
class Collector:
    """What has come. While `open` is not set, requests hang."""

    url: str = ""
    taken: list[ResourceSpans] = field(default_factory=list)
    came: threading.Event = field(default_factory=threading.Event)
    open: threading.Event = field(default_factory=threading.Event)

    def spans(self) -> Sequence[Span]:
        """All spans so far."""
        return [span for one in self.taken for scope in one.scope_spans for span in scope.spans]

    def resource(self) -> dict[str, str]:
        """Who sent them."""
        return {each.key: each.value.string_value for each in self.taken[0].resource.attributes}


@contextmanager
def collecting(*, hangs: bool = False) -> Iterator[Collector]:
    """For the length of a block."""
    collector = Collector()
    if not hangs:
        collector.open.set()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            collector.came.set()
            collector.open.wait(30)
            if self.path == "/v1/traces" and self.headers["content-type"] == "application/x-protobuf":
                collector.taken.extend(ExportTraceServiceRequest.FromString(body).resource_spans)
                self.send_response(200)
            else:
                self.send_response(400)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the library's name
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    collector.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield collector
    finally:
        collector.open.set()
        server.shutdown()
        thread.join()
        server.server_close()
