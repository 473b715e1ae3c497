"""Counts what happens and shows what there is, for Prometheus.

Owns the page and the families in `catalog`. It is told of requests by the front (`api.observe.Observer`), of steps and
processes by the decision log's lines, of decisions by the actor; gauges are read from a snapshot when asked for. Must
never slow a request, and never change what it looks at: a page loads, wakes and marks nothing.
"""

from collections.abc import Callable, Iterator, Mapping
from time import time

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.openmetrics import exposition as openmetrics

from gridsched import __version__
from gridsched.core.ids import ModelName
from gridsched.core.job import JobClass
from gridsched.core.snapshot import Snapshot
from gridsched.metrics import catalog
from gridsched.metrics.catalog import BATCH_OUTCOMES, DECISION_BUCKETS, REQUEST_BUCKETS, Family
from gridsched.metrics.decided import Decided
from gridsched.metrics.gauges import Values, gauges, pressure
from gridsched.metrics.series import Counts, Exemplar, Histogram, read_lines
from gridsched.ports import EngineInfo, MemoryPressure, Names
from gridsched.runtime.decisions import Line

OPENMETRICS = "application/openmetrics-text"
_OPENMETRICS_TYPE = f"{OPENMETRICS}; version=1.0.0; charset=utf-8"
PLAIN = "text/plain"
_TEXT_TYPE = f"{PLAIN}; version=0.0.4; charset=utf-8"

NOBODY = ""
"""What stands for the model of a request that named none that there is."""


class Metrics:
    """All families. The `watch_…` tell it where the gauges are read from, once that exists."""

    def __init__(self, engine: EngineInfo, wall_seconds: Callable[[], float] = time) -> None:
        self._engine = engine
        self._wall_seconds = wall_seconds
        self._process = CollectorRegistry()
        ProcessCollector(registry=self._process)
        self._requests = Counts(catalog.REQUESTS)
        self._request_seconds = Histogram(catalog.REQUEST_SECONDS, REQUEST_BUCKETS)
        self._queue_wait = Histogram(catalog.QUEUE_WAIT, REQUEST_BUCKETS)
        self._first_byte = Histogram(catalog.FIRST_BYTE, REQUEST_BUCKETS)
        self._nan_embeddings = Counts(catalog.NAN_EMBEDDINGS)
        self._batch_lines = Counts(catalog.BATCH_LINES)
        self._decisions = Histogram(catalog.DECISION_SECONDS, DECISION_BUCKETS)
        self._decided = Decided(self._architecture)
        self._snapshot: Callable[[], Snapshot] | None = None
        self._models: Names | None = None
        self._begun: set[ModelName] = set()
        self._pressure: Callable[[], MemoryPressure | None] = lambda: None
        self._lost_lines: Callable[[], Mapping[ModelName, int]] = dict
        self._lost_decisions: Callable[[], int] = int
        self._config_valid: Callable[[], bool] = lambda: True
        self._batches: Callable[[], Mapping[str, int]] = dict
        self._lines_remaining: Callable[[], int] = int
        for each in JobClass:
            self._queue_wait.of(each.label)
        for outcome in BATCH_OUTCOMES:
            self._batch_lines.of(outcome)

    def watch(
        self,
        snapshot: Callable[[], Snapshot],
        models: Names,
        pressure: Callable[[], MemoryPressure | None] = lambda: None,
    ) -> None:
        """Where the gauges are read from, and which models there are."""
        self._snapshot, self._models, self._pressure = snapshot, models, pressure

    def watch_logs(self, lost_lines: Callable[[], Mapping[ModelName, int]]) -> None:
        """Where the count of lines is read from that a model's processes printed in vain."""
        self._lost_lines = lost_lines

    def watch_configuration(self, is_valid: Callable[[], bool]) -> None:
        """Where it is asked whether the configuration on the disk is not refused."""
        self._config_valid = is_valid

    def watch_decision_log(self, lost_lines: Callable[[], int]) -> None:
        """Where the count of its lines is read from that are in no file."""
        self._lost_decisions = lost_lines

    # --- api.observe.Observer ---------------------------------------------------------------------------------------

    def request_ended(
        self,
        job_class: str,
        model: str,
        endpoint: str,
        code: int,
        seconds: float,
        *,
        job: int | None = None,
        trace_id: str = "",
    ) -> None:
        """An answer is over."""
        exemplar = self._exemplar(job, trace_id)
        self._requests.of(job_class, model, endpoint, str(code)).add(exemplar)
        self._request_seconds.of(job_class, model).add(seconds, exemplar)

    def queue_waited(self, job_class: str, seconds: float, *, job: int | None = None, trace_id: str = "") -> None:
        """A job's first step was granted."""
        self._queue_wait.of(job_class).add(seconds, self._exemplar(job, trace_id))

    def first_byte(
        self, job_class: str, model: str, seconds: float, *, job: int | None = None, trace_id: str = ""
    ) -> None:
        """The first byte of an answer went out."""
        self._first_byte.of(job_class, model).add(seconds, self._exemplar(job, trace_id))

    def vector_not_finite(self, model: str) -> None:
        """An embedding that was refused."""
        self._nan_embeddings.of(model).add()

    def batch_line_ended(self, outcome: str) -> None:
        """A line of a batch has its answer."""
        self._batch_lines.of(outcome).add()

    def watch_batches(self, by_status: Callable[[], Mapping[str, int]], lines_remaining: Callable[[], int]) -> None:
        """Where the gauges of batches are read from."""
        self._batches, self._lines_remaining = by_status, lines_remaining

    def exposition(self, accept: str) -> tuple[str, bytes]:
        """The page and its content type: OpenMetrics for whoever accepts it, else Prometheus' text."""
        asked = _prefers_openmetrics(accept)
        of_process: Callable[[CollectorRegistry], bytes] = openmetrics.generate_latest if asked else generate_latest
        page = "".join(self._lines(openmetrics=asked)).encode() + of_process(self._process)
        return (_OPENMETRICS_TYPE if asked else _TEXT_TYPE), page

    # --- runtime ----------------------------------------------------------------------------------------------------

    def decided(self, seconds: float) -> None:
        """The scheduler took this long for one event."""
        self._decisions.of().add(seconds)

    def saw(self, line: Line) -> None:
        """Count what a line of the decision log says."""
        self._decided.saw(line)

    # --- the page ---------------------------------------------------------------------------------------------------

    def _counted(self) -> Iterator[Counts | Histogram]:
        yield from (self._requests, self._request_seconds, self._queue_wait, self._first_byte, self._nan_embeddings)
        yield from self._decided.families()
        yield from (self._batch_lines, self._decisions)

    def _lines(self, *, openmetrics: bool) -> Iterator[str]:
        read = dict(self._read())
        for counted in self._counted():
            yield from counted.lines(examples=openmetrics)
        for family, values in read.items():
            yield from read_lines(family, values, openmetrics=openmetrics)

    def _read(self) -> Iterator[tuple[Family, Values]]:
        """What is read this moment. Whatever is counted of models that are gone is forgotten first."""
        lost_lines = self._lost_lines()
        if self._snapshot is not None and self._models is not None:
            now, models = self._snapshot(), self._models.models()
            there = {model.name for model in models}
            alive = {view.model for view in now.instances}
            self._keep_step(there, there | alive | {family.name for family in self._models.families()})
            self._keep_architectures({model.architecture for model in models})
            lost_lines = {name: lost_lines.get(name, 0) for name in sorted(there | alive)}
            yield from gauges(now, models)
        yield catalog.HOST_PRESSURE, pressure(self._pressure())
        yield catalog.LOST_LOG_LINES, {(model,): lines for model, lines in lost_lines.items()}
        yield catalog.ESTIMATE_ERROR, self._decided.errors
        yield catalog.BATCHES, {(status,): count for status, count in self._batches().items()}
        yield catalog.BATCH_LINES_REMAINING, {(): self._lines_remaining()}
        yield catalog.CONFIG_VALID, {(): self._config_valid()}
        yield catalog.DECISION_LOG_LOST, {(): self._lost_decisions()}
        yield catalog.BUILD_INFO, {(__version__, self._engine.version, self._engine.backend): 1}

    def _keep_step(self, there: set[ModelName], named: set[ModelName]) -> None:
        """With the catalog: a model that is there has its counters from 0 on, and one that is gone has none once its
        last process is gone. `named` are those that may have some."""
        if there != self._begun:
            self._begun = there
            for name in there:
                self._decided.begin(name)
                self._nan_embeddings.of(name)
        for counted in self._counted():
            counted.keep_only("model", named | {NOBODY})

    def _keep_architectures(self, there: set[str]) -> None:
        errors = self._decided.errors
        for key in [each for each in errors if each[0] not in there]:
            del errors[key]

    def _architecture(self, model: str) -> str:
        models = self._models.models() if self._models is not None else ()
        return next((each.architecture for each in models if each.name == model), "")

    def _exemplar(self, job: int | None, trace_id: str) -> Exemplar | None:
        """What leads from a figure to the request behind it."""
        return Exemplar(job, trace_id, self._wall_seconds()) if job is not None else None


def _prefers_openmetrics(accept: str) -> bool:
    """Whether a client takes it, and likes plain text no better."""
    from werkzeug.http import parse_accept_header  # noqa: PLC0415 - with who asks for pages, not with the start

    liked = {OPENMETRICS: 0.0, PLAIN: 0.0}
    for named, quality in parse_accept_header(accept):
        kind = named.partition(";")[0].strip().lower()
        if kind in liked:
            liked[kind] = max(liked[kind], quality)
    return liked[OPENMETRICS] > 0 and liked[OPENMETRICS] >= liked[PLAIN]
