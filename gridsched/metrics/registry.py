"""Counts what happens and shows what there is, for Prometheus. A registry of its own; nothing global but one switch.

Owns the values of the families in `catalog`. It is told of requests by the front (`api.observe.Observer`), of steps
and processes by the decision log's lines, of decisions by the actor; gauges are read from a snapshot when asked for.
Must never slow a request: children are bound once for each set of labels, and nothing here waits.
"""

from collections.abc import Callable, Iterable, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, disable_created_metrics
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gridsched import __version__
from gridsched.core.ids import ModelName
from gridsched.core.instance import InstanceState
from gridsched.core.job import JobClass
from gridsched.core.measuring import COMPONENTS
from gridsched.core.snapshot import Snapshot
from gridsched.metrics import catalog
from gridsched.metrics.catalog import DECISION_BUCKETS, REQUEST_BUCKETS, Family
from gridsched.ports import Catalog, EngineInfo, MemoryPressure
from gridsched.runtime.decisions import Line

# `_created` doubles the series and nothing reads it; the library has this switch only, and it has no types.
disable_created_metrics()  # type: ignore[no-untyped-call]

RELIEF_RULE = "S5"
MOVE_RULE = "R9"
"""Under which a process is begun beside the one that it replaces."""

ANEW_RULES = frozenset(("P5", "L6b"))
"""Under which a process is stopped because it is of no use any more: dead, stalled, failing, grown."""

STATES = ("ready", "loading", "draining", "cold", "failed", "unavailable")
_STATE_OF: Mapping[InstanceState, str] = {
    InstanceState.READY: "ready",
    InstanceState.STARTING: "loading",
    InstanceState.DRAINING: "draining",
    InstanceState.STOPPING: "draining",
}


class Metrics:
    """All families. `watch` gives it what the gauges are read from, once that exists."""

    def __init__(self, engine: EngineInfo) -> None:
        self._registry = CollectorRegistry(auto_describe=False)
        self._requests = self._counter(catalog.REQUESTS)
        self._request_seconds = self._histogram(catalog.REQUEST_SECONDS)
        self._queue_wait = self._histogram(catalog.QUEUE_WAIT)
        self._first_byte = self._histogram(catalog.FIRST_BYTE)
        self._nan_embeddings = self._counter(catalog.NAN_EMBEDDINGS)
        self._steps = self._counter(catalog.STEPS)
        self._relief = self._counter(catalog.RELIEF_STEPS)
        self._loads = self._counter(catalog.MODEL_LOADS)
        self._load_seconds = self._histogram(catalog.LOAD_SECONDS)
        self._evictions = self._counter(catalog.EVICTIONS)
        self._thrash = self._counter(catalog.THRASH)
        self._needless = self._counter(catalog.NEEDLESS_LOADS)
        self._pauses = self._counter(catalog.PAUSES)
        self._aborts = self._counter(catalog.ABORTS)
        self._restarts = self._counter(catalog.CHILD_RESTARTS)
        self._refused = self._counter(catalog.MEASUREMENTS_REFUSED)
        self._batch_lines = self._counter(catalog.BATCH_LINES)
        error = catalog.ESTIMATE_ERROR
        self._error = Gauge(error.name, error.help, error.labels, registry=self._registry)
        self._architectures: dict[str, str] = {}
        self._decisions = self._histogram(catalog.DECISION_SECONDS, DECISION_BUCKETS)
        self._loading: set[object] = set()
        self._anew: set[object] = set()
        self._staying: dict[str, set[object]] = {}
        self._counters: dict[tuple[Counter, tuple[str, ...]], Counter] = {}
        self._histograms: dict[tuple[Histogram, tuple[str, ...]], Histogram] = {}
        self._heard: Mapping[str, Callable[[Line, str], None]] = {
            "dispatch": self._granted,
            "load": self._load_begins,
            "ready": self._became_ready,
            "measure": self._measured,
            "exit": self._exited,
            "pause": self._paused,
            "abort": self._aborted,
            "thrash": self._alternate,
            "stop": self._stopped,
            "evict": self._evicted,
        }
        self._lost_decisions: Callable[[], int] = lambda: 0
        self._config_valid: Callable[[], bool] = lambda: True
        self._registry.register(BuildInfo(engine))
        self._registry.register(Beside(self._of_configuration, self._of_decision_log))
        ProcessCollector(registry=self._registry)

    def watch(
        self,
        snapshot: Callable[[], Snapshot],
        models: Catalog,
        pressure: Callable[[], MemoryPressure | None] = lambda: None,
    ) -> None:
        """Where the gauges are read from. Called once."""
        self._registry.register(SnapshotGauges(snapshot, models, pressure))
        self._architectures = {model.name: model.architecture for model in models.models()}
        for model in models.models():
            for family in (self._thrash, self._needless, self._pauses, self._aborts, self._restarts):
                family.labels(model.name)

    def watch_configuration(self, is_valid: Callable[[], bool]) -> None:
        """Where it is asked whether the configuration on the disk is what runs."""
        self._config_valid = is_valid

    def watch_decision_log(self, lost_lines: Callable[[], int]) -> None:
        """Where the count of lines is read from that are in no file."""
        self._lost_decisions = lost_lines

    def watch_logs(self, lost_lines: Callable[[], Mapping[ModelName, int]]) -> None:
        """Where the count of lost lines is read from. Called once."""
        self._registry.register(LostLogLines(lost_lines))

    def _of_configuration(self) -> bool:
        return self._config_valid()

    def _of_decision_log(self) -> int:
        return self._lost_decisions()

    # --- api.observe.Observer ---------------------------------------------------------------------------------------

    def request_ended(self, job_class: str, model: str, endpoint: str, code: int, seconds: float) -> None:
        """An answer is over."""
        self._count(self._requests, job_class, model, endpoint, str(code))
        self._time(self._request_seconds, seconds, job_class, model)

    def queue_waited(self, job_class: str, seconds: float) -> None:
        """A job's first step was granted."""
        self._time(self._queue_wait, seconds, job_class)

    def first_byte(self, job_class: str, model: str, seconds: float) -> None:
        """The first byte of an answer went out."""
        self._time(self._first_byte, seconds, job_class, model)

    def vector_not_finite(self, model: str) -> None:
        """An embedding that was refused."""
        self._count(self._nan_embeddings, model)

    def batch_line_ended(self, outcome: str) -> None:
        """A line of a batch has its answer."""
        self._count(self._batch_lines, outcome)

    def watch_batches(self, by_status: Callable[[], Mapping[str, int]], lines_remaining: Callable[[], int]) -> None:
        """Where the gauges of batches are read from. Called once."""
        self._registry.register(BatchGauges(by_status, lines_remaining))

    def exposition(self, accept: str) -> tuple[str, bytes]:
        """The page and its content type: OpenMetrics for whoever accepts it, else Prometheus' text."""
        encode, content_type = choose_encoder(accept)
        return content_type, encode(self._registry)

    # --- runtime ----------------------------------------------------------------------------------------------------

    def decided(self, seconds: float) -> None:
        """The scheduler took this long for one event."""
        self._decisions.observe(seconds)

    def saw(self, line: Line) -> None:
        """Count what a line of the decision log says. Lines about processes carry the process's number."""
        hear = self._heard.get(str(line["event"]))
        if hear is not None:
            hear(line, str(line.get("model", "")))

    def _became_ready(self, line: Line, model: str) -> None:
        self._load_ended(line, model, "ready")
        if isinstance(seconds := line.get("load_s"), float):
            self._time(self._load_seconds, seconds, model)

    def _paused(self, line: Line, model: str) -> None:  # noqa: ARG002 - it says all by being there
        self._count(self._pauses, model)

    def _aborted(self, line: Line, model: str) -> None:  # noqa: ARG002 - it says all by being there
        self._count(self._aborts, model)

    def _stopped(self, line: Line, model: str) -> None:
        self._goes(line, model)
        if not self._load_ended(line, model, "aborted") and line.get("rule") in ANEW_RULES:
            self._anew.add(line.get("instance"))
            self._count(self._restarts, model)

    def _evicted(self, line: Line, model: str) -> None:
        self._goes(line, model)
        self._load_ended(line, model, "aborted")
        self._count(self._evictions, model, str(line.get("rule", "")))

    def _load_begins(self, line: Line, model: str) -> None:
        number = line.get("instance")
        staying = self._staying.setdefault(model, set())
        if staying and line.get("rule") != MOVE_RULE:
            self._count(self._needless, model)
        staying.add(number)
        self._loading.add(number)

    def _goes(self, line: Line, model: str) -> None:
        """A process is gone or has been told to go: another of its model is no excess."""
        staying = self._staying.get(model, set())
        staying.discard(line.get("instance"))
        if not staying:
            self._staying.pop(model, None)

    def _alternate(self, line: Line, model: str) -> None:  # noqa: ARG002 - it names them all
        models = line.get("models")
        for each in models if isinstance(models, list) else ():
            self._count(self._thrash, str(each))

    def _exited(self, line: Line, model: str) -> None:
        """A process is gone: a load that failed, a death in service, or the end that it was told. One that died before
        it was told is counted once."""
        self._goes(line, model)
        known = line.get("instance") in self._anew
        self._anew.discard(line.get("instance"))
        if "cause" in line and not self._load_ended(line, model, str(line["cause"])) and not known:
            self._count(self._restarts, model)

    def _granted(self, line: Line, model: str) -> None:
        self._count(self._steps, str(line.get("class", "")), model)
        if line.get("rule") == RELIEF_RULE:
            self._relief.inc()

    def _measured(self, line: Line, model: str) -> None:
        """How far off an estimate was: of each component that is known on all devices."""
        errors, measured = line.get("error_bytes"), line.get("measured_bytes")
        if not isinstance(errors, Mapping) or not isinstance(measured, Mapping):
            self._count(self._refused, model)
            return
        total = sum(measured.values())
        architecture = self._architectures.get(model, "")
        for component in COMPONENTS:
            if total and all(component in found for found in errors.values()):
                off = sum(found[component] for found in errors.values())
                self._error.labels(architecture, component).set(off / total)

    def _load_ended(self, line: Line, model: str, outcome: str) -> bool:
        """Count the end of a load, if the process of this line was loading."""
        number = line.get("instance")
        if number not in self._loading:
            return False
        self._loading.discard(number)
        self._count(self._loads, model, outcome)
        return True

    # --- children ---------------------------------------------------------------------------------------------------

    def _counter(self, family: Family) -> Counter:
        return Counter(family.name, family.help, family.labels, registry=self._registry)

    def _histogram(self, family: Family, buckets: tuple[float, ...] = REQUEST_BUCKETS) -> Histogram:
        return Histogram(family.name, family.help, family.labels, registry=self._registry, buckets=buckets)

    def _count(self, family: Counter, *labels: str) -> None:
        child = self._counters.get((family, labels))
        if child is None:
            child = self._counters[family, labels] = family.labels(*labels)
        child.inc()

    def _time(self, family: Histogram, seconds: float, *labels: str) -> None:
        child = self._histograms.get((family, labels))
        if child is None:
            child = self._histograms[family, labels] = family.labels(*labels)
        child.observe(seconds)


class BuildInfo(Collector):
    """What is running, as labels of a gauge that is always 1."""

    def __init__(self, engine: EngineInfo) -> None:
        self._labels = (__version__, engine.version, engine.backend)

    def collect(self) -> Iterable[Metric]:
        """One sample."""
        yield _gauge(catalog.BUILD_INFO, {self._labels: 1})


class Beside(Collector):
    """What the configuration and the decision log say of themselves."""

    def __init__(self, config_valid: Callable[[], bool], lost_decisions: Callable[[], int]) -> None:
        self._config_valid = config_valid
        self._lost_decisions = lost_decisions

    def collect(self) -> Iterable[Metric]:
        """One sample each."""
        yield _gauge(catalog.CONFIG_VALID, {(): int(self._config_valid())})
        lost = catalog.DECISION_LOG_LOST
        yield CounterMetricFamily(lost.name, lost.help, self._lost_decisions())


class LostLogLines(Collector):
    """What the engine counts itself."""

    def __init__(self, lost_lines: Callable[[], Mapping[ModelName, int]]) -> None:
        self._lost_lines = lost_lines

    def collect(self) -> Iterable[Metric]:
        """One sample a model."""
        family = catalog.LOST_LOG_LINES
        metric = CounterMetricFamily(family.name, family.help, labels=family.labels)
        for model, lines in self._lost_lines().items():
            metric.add_metric((model,), lines)
        yield metric


class BatchGauges(Collector):
    """What whoever runs batches says of them."""

    def __init__(self, by_status: Callable[[], Mapping[str, int]], lines_remaining: Callable[[], int]) -> None:
        self._by_status = by_status
        self._lines_remaining = lines_remaining

    def collect(self) -> Iterable[Metric]:
        """One sample a status, and the lines."""
        yield _gauge(catalog.BATCHES, {(status,): count for status, count in self._by_status().items()})
        yield _gauge(catalog.BATCH_LINES_REMAINING, {(): self._lines_remaining()})


class SnapshotGauges(Collector):
    """The gauges, from one snapshot for each page."""

    def __init__(
        self, snapshot: Callable[[], Snapshot], models: Catalog, pressure: Callable[[], MemoryPressure | None]
    ) -> None:
        self._snapshot = snapshot
        self._models = models
        self._pressure = pressure

    def collect(self) -> Iterable[Metric]:
        """All gauges at one moment."""
        now = self._snapshot()
        yield _gauge(catalog.QUEUE_LENGTH, {(one.label,): now.queue_lengths.get(one, 0) for one in JobClass})
        yield _gauge(catalog.RUNNING, {(one.label,): now.running.get(one, 0) for one in JobClass})
        yield _gauge(catalog.OLDEST_WAIT, {(one.label,): now.oldest_wait_seconds.get(one, 0) for one in JobClass})
        yield _gauge(catalog.DRAINING, {(): int(now.draining)})
        yield _gauge(catalog.SLOTS, _slots(now))
        yield _gauge(catalog.MODE, {(view.name,): int(view.interactive_mode) for view in now.devices})
        yield _gauge(catalog.DEVICE_MEMORY, _device_memory(now))
        yield _gauge(catalog.DEVICE_AVAILABLE, _available(now))
        yield _gauge(catalog.HOST_PRESSURE, _pressure(self._pressure()))
        yield _gauge(catalog.MODEL_MEMORY, _model_memory(now))
        yield _gauge(catalog.MODEL_HOST_MEMORY, _host_memory(now))
        yield _gauge(catalog.MODEL_STATE, self._states(now))

    def _states(self, now: Snapshot) -> Mapping[tuple[str, ...], float]:
        current: dict[ModelName, str] = {}
        for model in self._models.models():
            current[model.name] = "unavailable" if model.spec is None else "cold"
            if model.name in now.failed:
                current[model.name] = "failed"
        for state, word in list(_STATE_OF.items())[::-1]:  # the best state of a model's processes is written last
            current.update((view.model, word) for view in now.instances if view.state is state)
        return {(model, state): int(state == now_in) for model, now_in in current.items() for state in STATES}


def _slots(now: Snapshot) -> Mapping[tuple[str, ...], float]:
    values: dict[tuple[str, ...], float] = {}
    for view in now.instances:
        if view.state in {InstanceState.READY, InstanceState.DRAINING}:
            for state, count in (("busy", view.slots_busy), ("free", view.parallel - view.slots_busy)):
                values[view.model, state] = values.get((view.model, state), 0) + count
    return values


def _pressure(told: MemoryPressure | None) -> Mapping[tuple[str, ...], float]:
    return {} if told is None else {("some",): told.some, ("full",): told.full}


def _device_memory(now: Snapshot) -> Mapping[tuple[str, ...], float]:
    return {
        (view.name, kind): amount
        for view in now.devices
        for kind, amount in (
            ("total", view.total_bytes),
            ("used", view.used_bytes),
            ("external", view.external_bytes),
            ("reserved", view.reserved_bytes),
            ("freeing", view.freeing_bytes),
            ("lost", view.lost_bytes),
            ("headroom", view.headroom_bytes),
        )
    }


def _available(now: Snapshot) -> Mapping[tuple[str, ...], float]:
    return {(view.name,): int(view.lost_since_seconds is None) for view in now.devices}


def _model_memory(now: Snapshot) -> Mapping[tuple[str, ...], float]:
    values: dict[tuple[str, ...], float] = {}
    for view in now.instances:
        for kind, amount in (("estimated", view.estimated_bytes), ("measured", view.measured_bytes)):
            if amount is not None:
                values[view.model, kind] = values.get((view.model, kind), 0) + amount
    return values


def _host_memory(now: Snapshot) -> Mapping[tuple[str, ...], float]:
    values: dict[tuple[str, ...], float] = {}
    for view in now.instances:
        if view.host_held_bytes is not None:
            values[view.model,] = values.get((view.model,), 0) + view.host_held_bytes
    return values


def _gauge(family: Family, values: Mapping[tuple[str, ...], float]) -> GaugeMetricFamily:
    metric = GaugeMetricFamily(family.name, family.help, labels=family.labels)
    for labels, value in values.items():
        metric.add_metric(labels, value)
    return metric
