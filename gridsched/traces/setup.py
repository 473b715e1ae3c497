"""Whether there are traces, by OpenTelemetry's own environment variables, and their life.

Owns the sentences about what is in the way; none of it keeps a server from starting. The SDK is imported here alone,
and only where traces are wanted. Must never wait longer for a collector than `FLUSH_SECONDS`.
"""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from gridsched.control.masking import masked_sentence
from gridsched.library.names import printable

if TYPE_CHECKING:  # which is the SDK
    from gridsched.traces.tracing import Tracing

FLUSH_SECONDS = 2.0
"""How long the server's end waits for spans that are on their way."""

ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
SPOKEN = "http/protobuf"
NONE, OTLP = "none", "otlp"
INSTALL = f"{sys.executable} -m pip install 'gridsched[otel]'"
"""With the Python that runs this: another's pip would put it where nobody looks."""

Say = Callable[[str], None]


def wanted_by(environ: Mapping[str, str]) -> str:
    """The variable that asks for traces, "" where none does."""
    if environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return ""
    exporters = {each.strip() for each in environ.get("OTEL_TRACES_EXPORTER", "").split(",")} - {""}
    if NONE in exporters:
        return ""
    asks = next((name for name in ENDPOINTS if environ.get(name, "").strip()), "")
    return asks or ("OTEL_TRACES_EXPORTER" if exporters else "")


def obstacle(environ: Mapping[str, str]) -> str:
    """What keeps traces from being sent as the environment wants it, in a sentence; "" if nothing does."""
    exporters = {each.strip() for each in environ.get("OTEL_TRACES_EXPORTER", "").split(",")} - {""}
    if exporters and OTLP not in exporters:
        return f"OTEL_TRACES_EXPORTER is {', '.join(sorted(exporters))}, and only {OTLP} is known"
    name = next((name for name in _PROTOCOLS if environ.get(name, "").strip()), "")
    if name and environ[name].strip() != SPOKEN:
        return f"{name} is {environ[name].strip()}, and only {SPOKEN} is spoken (a collector's port for it is 4318)"
    return ""


@contextmanager
def tracing(environ: Mapping[str, str], say: Say) -> Iterator["Tracing | None"]:
    """Traces for the length of a block, where they are wanted and can be; else None, and a line says why not."""
    asks = wanted_by(environ)
    if not asks:
        yield None
        return
    why = obstacle(environ)
    if not why:
        try:
            from gridsched.traces.export import Export  # noqa: PLC0415 - the SDK, which may not be installed

            export = Export(say)
        except ModuleNotFoundError:
            why = f"{asks} is set, but OpenTelemetry's SDK is not installed: {INSTALL}"
        except Exception as error:  # noqa: BLE001 - it reads its environment where it likes, also while it is imported
            why = masked_sentence(f"OpenTelemetry refuses its configuration: {printable(str(error))}")
    if why:
        say(f"there are no traces: {why}")
        yield None
        return
    try:
        yield export.tracing
    finally:
        export.close(FLUSH_SECONDS)
