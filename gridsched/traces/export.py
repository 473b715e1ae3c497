"""Where spans go: the SDK's provider, its exporter over HTTP on a thread of its own, and what is said when it fails.

Everything is configured by OpenTelemetry's own environment variables, which the SDK reads itself. Must never hold a
request up: the thread's queue is bounded, and what does not fit into it is dropped.
"""

import logging
import threading
import time
from collections.abc import Callable

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from gridsched import __version__
from gridsched.control.masking import masked_sentence
from gridsched.library.names import printable
from gridsched.traces.tracing import Tracing

SAY_SECONDS = 300.0
"""A collector that is down is told of once in this time, and whatever else is wrong once, too."""

UNNAMED = "unknown_service"
"""What the SDK calls a service that nobody has named."""

_LIBRARY = "opentelemetry"
_OF_EXPORT = ("opentelemetry.exporter", "opentelemetry.sdk")
"""Who of it speaks of what goes wrong here; the rest speaks of what clients send."""


class Seldom(logging.Handler):
    """What the library has to say, one line of it now and then, and no traceback."""

    def __init__(self, say: Callable[[str], None]) -> None:
        super().__init__(logging.WARNING)
        self._say = say
        self._said_at: dict[str, float] = {}

    def emit(self, record: logging.LogRecord) -> None:
        """Say it, unless the same part of the library has said something lately."""
        now, who = time.monotonic(), record.name
        if who.startswith(_OF_EXPORT) and now - self._said_at.get(who, -SAY_SECONDS) >= SAY_SECONDS:
            self._said_at[who] = now
            self._say(f"traces: {masked_sentence(printable(record.getMessage()))}")


class Export:
    """The provider and its thread, until `close`."""

    def __init__(self, say: Callable[[str], None]) -> None:
        """Raises ValueError and others for an environment that the SDK refuses."""
        logger = logging.getLogger(_LIBRARY)
        self._handler, self._logger, self._propagated = Seldom(say), logger, logger.propagate
        logger.addHandler(self._handler)
        logger.propagate = False
        try:
            self._provider = TracerProvider(resource=_resource(), shutdown_on_exit=False)
            self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        except BaseException:
            self._restore()
            raise
        self.tracing = Tracing(self._provider.get_tracer("gridsched", __version__))

    def close(self, seconds: float) -> None:
        """Send what is left, for so long at most; the thread that still tries ends with the process."""
        last = threading.Thread(target=self._provider.shutdown, name="last spans", daemon=True)
        last.start()
        last.join(seconds)
        self._restore()

    def _restore(self) -> None:
        self._logger.removeHandler(self._handler)
        self._logger.propagate = self._propagated


def _resource() -> Resource:
    """Who sends the spans: as the environment names it, else by our name."""
    found = Resource.create({SERVICE_VERSION: __version__})
    if str(found.attributes.get(SERVICE_NAME, UNNAMED)).startswith(UNNAMED):
        return found.merge(Resource({SERVICE_NAME: "gridsched"}))
    return found
