"""The loads of late, told by the decision log, each a span of its own: a request that waited for one links to it.

Must never grow: only the latest are kept.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanContext, Status, StatusCode, Tracer

from gridsched.core.commands import LogEvent
from gridsched.runtime.decisions import Line

KEPT = 64


@dataclass(slots=True, eq=False)
class Load:
    """One process on its way; times in nanoseconds since the epoch, `ended_at` None while it loads."""

    instance: object
    model: object
    span: Span
    began_at: int
    ended_at: int | None = None


class Loads:
    """Those that go on, and the latest that are over."""

    def __init__(self, tracer: Tracer, now: Callable[[], int]) -> None:
        self._tracer = tracer
        self._now = now
        self._kept: deque[Load] = deque(maxlen=KEPT)

    def saw(self, line: Line) -> None:
        """A line of the decision log."""
        match line["event"]:
            case LogEvent.LOAD.value:
                self._begin(line)
            case LogEvent.READY.value:
                self._end(line, Status(StatusCode.UNSET))
            case LogEvent.EXIT.value | LogEvent.STOP.value:
                self._end(line, Status(StatusCode.ERROR, str(line.get("cause", "ended while it loaded"))))

    def during(self, model: str, since: int) -> Iterator[tuple[SpanContext, int, int]]:
        """The loads of a model that have gone on since then: their spans, and from when to when of that time."""
        for load in self._kept:
            if load.model == model and (load.ended_at is None or load.ended_at > since):
                yield load.span.get_span_context(), max(load.began_at, since), load.ended_at or self._now()

    def _begin(self, line: Line) -> None:
        now = self._now()
        held = line.get("bytes")
        by_device: Mapping[str, object] = held if isinstance(held, dict) else {}
        span = self._tracer.start_span(
            "load",
            Context(),
            start_time=now,
            attributes={
                "gridsched.model": str(line.get("model", "")),
                "gridsched.instance": _number(line.get("instance")),
                "gridsched.devices": list(by_device),
                "gridsched.device_bytes": [_number(each) for each in by_device.values()],
                "gridsched.ctx_size": _number(line.get("ctx")),
                "gridsched.slots": _number(line.get("parallel")),
                "gridsched.rule": str(line.get("rule", "")),
            },
        )
        if len(self._kept) == KEPT and self._kept[0].ended_at is None:
            self._kept[0].span.end(now)
        self._kept.append(Load(line.get("instance"), line.get("model"), span, now))

    def _end(self, line: Line, status: Status) -> None:
        number = line.get("instance")
        load = next((each for each in self._kept if each.instance == number and each.ended_at is None), None)
        if load is not None:
            load.ended_at = self._now()
            load.span.set_attribute("gridsched.load_seconds", (load.ended_at - load.began_at) / 1e9)
            load.span.set_status(status)
            load.span.end(load.ended_at)


def _number(value: object) -> int:
    return value if isinstance(value, int) else 0
