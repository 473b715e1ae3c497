"""What is counted, from which facts, under which labels."""

from collections.abc import Iterator, Mapping
from dataclasses import replace

import pytest
from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client.parser import text_string_to_metric_families

from gridsched.core.events import FailureCause
from gridsched.core.ids import DeviceName, InstanceId, ModelName
from gridsched.core.instance import InstanceState
from gridsched.core.job import JobClass
from gridsched.core.model import Tier
from gridsched.core.snapshot import DeviceView, InstanceView, Snapshot
from gridsched.metrics.catalog import FAMILIES, Kind
from gridsched.metrics.registry import OPENMETRICS, Metrics
from gridsched.ports import CatalogFamily, CatalogModel, EngineInfo, MemoryPressure
from sim import build

Samples = Mapping[tuple[str, tuple[tuple[str, str], ...]], float]


def instance(number: int, model: str, state: InstanceState, busy: int = 0, measured: int | None = None) -> InstanceView:
    """One process with four slots."""
    return InstanceView(
        InstanceId(number),
        ModelName(model),
        state,
        Tier.COLD,
        (DeviceName("sim0"),),
        8192,
        4,
        busy,
        100,
        measured,
        0,
        0,
    )


LOST = DeviceView(
    DeviceName("sim1"),
    0,
    0,
    0,
    0,
    0,
    0,
    0,
    interactive_mode=False,
    pressure=False,
    lost_since_seconds=4.0,
    lost_why="x",
)
SNAPSHOT = Snapshot(
    at=5.0,
    devices=(
        DeviceView(DeviceName("sim0"), 1000, 30, 600, 50, 400, 100, 7, interactive_mode=True, pressure=False),
        LOST,
    ),
    instances=(
        replace(instance(1, "sim-chat-4b", InstanceState.DRAINING, busy=1, measured=90), host_held_bytes=30),
        replace(instance(2, "sim-chat-4b", InstanceState.READY, busy=3), host_held_bytes=12),
        instance(3, "sim-embed", InstanceState.STARTING),
        instance(4, "sim-chat-2b", InstanceState.STOPPED),
    ),
    queue_lengths={JobClass.BATCH: 7},
    oldest_wait_seconds={JobClass.BATCH: 12.5},
    running={JobClass.INTERACTIVE: 2},
    failed={ModelName("sim-chat-12b"): (9.0, "no")},
    draining=False,
)


EMPTY = Snapshot(5.0, (), (), {}, {}, {}, draining=False)


@pytest.fixture
def metrics() -> Metrics:
    """Counts nothing yet."""
    return Metrics(EngineInfo(ok=True, version="b1", backend="cpu"), lambda: 1000.5)


def samples(metrics: Metrics) -> Samples:
    """Every sample of the page."""
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(metrics.exposition("")[1].decode())
        for sample in family.samples
    }


def value(metrics: Metrics, name: str, **labels: str) -> float | None:
    """One sample, None where it is not there."""
    named = {"class" if key == "job_class" else key: word for key, word in labels.items()}
    return samples(metrics).get((name, tuple(sorted(named.items()))))


def full_watch(metrics: Metrics) -> None:
    """Everything to be read from."""
    metrics.watch(lambda: SNAPSHOT, build().catalog, lambda: MemoryPressure(0.25, 0.125))
    metrics.watch_logs(lambda: {ModelName("sim-chat-4b"): 7})
    metrics.watch_batches(lambda: {"in_progress": 2}, lambda: 70)


def full(metrics: Metrics) -> Metrics:
    """With something counted in every family."""
    full_watch(metrics)
    metrics.batch_line_ended("completed")
    metrics.request_ended("interactive", "sim-chat-4b", "/v1/chat/completions", 200, 0.02)
    metrics.queue_waited("interactive", 0.004)
    metrics.first_byte("interactive", "sim-chat-4b", 0.1)
    metrics.decided(0.00004)
    for line in LOG:
        metrics.saw(line)
    return metrics


def about(event: str, number: int, **more: object) -> dict[str, object]:
    """A line about a process."""
    return {"seq": 1, "time": "", "event": event, "model": "sim-chat-4b", "instance": number, **more}


LOG: tuple[dict[str, object], ...] = (
    about("load", 1),
    about("ready", 1, load_s=3.2),
    {"event": "dispatch", "class": "background", "model": "sim-chat-4b", "rule": "S7", "instance": 1},
    {"event": "dispatch", "class": "background", "model": "sim-chat-4b", "rule": "S5", "instance": 1},
    about("exit", 1, cause="crashed"),
    about("load", 2),
    about("exit", 2, cause="device_oom"),
    about("load", 3),
    about("stop", 3),
    about("exit", 3),
    about("load", 4),
    about("ready", 4, load_s=1.0),
    about(
        "measure",
        4,
        measured_bytes={"a": 100, "b": 300},
        error_bytes={"a": {"weights": 0, "total": 20}, "b": {"total": -60}},
    ),
    about("measure", 4, refused_on="a", why="nothing"),
    about("evict", 4, rule="R5"),
    about("exit", 4),
    {"event": "mode", "device": "sim0"},
    {"event": "enqueue", "class": "background", "job": 1},
)


def test_M3_lines_that_no_log_has_are_counted_by_model(metrics: Metrics) -> None:
    """As the engine counts them."""
    assert value(full(metrics), "gridsched_child_log_lines_lost_total", model="sim-chat-4b") == 7


def test_the_page_has_exactly_the_families_of_the_catalog(metrics: Metrics) -> None:
    """Kind, labels and help; no `_created`. Beside them the library's own figures of this process."""
    page = full(metrics).exposition("")[1].decode()
    listed = {family.name: family for family in FAMILIES}
    found, beside = set(), set()
    for family in text_string_to_metric_families(page):
        if not family.name.startswith("gridsched_"):
            beside.add(family.name)
            continue
        name = family.name + ("_total" if family.type == "counter" else "")
        found.add(name)
        assert (listed[name].kind.value, listed[name].help) == (family.type, family.documentation)
        for sample in family.samples:
            assert set(sample.labels) - {"le"} == set(listed[name].labels)
    assert found == set(listed)
    assert {"process_open_fds", "process_max_fds", "process_resident_memory_bytes"} <= beside
    assert all(name.startswith("process_") for name in beside)
    assert "_created" not in page


def test_L2_the_last_measured_load_says_how_far_off_its_estimate_was(metrics: Metrics) -> None:
    """Over all devices, by architecture; a component that one device does not tell is left out. Doubts are counted."""
    full(metrics)
    error, refused = "gridsched_estimate_error_ratio", "gridsched_measurements_refused_total"
    assert value(metrics, error, architecture="simulated", component="total") == -0.1
    assert value(metrics, error, architecture="simulated", component="weights") is None
    assert value(metrics, refused, model="sim-chat-4b") == 1


def test_requests_are_counted_and_timed(metrics: Metrics) -> None:
    """By class, model, endpoint and code; buckets from 5 ms to 10 min."""
    for code in (200, 200, 499):
        metrics.request_ended("batch", "m", "/v1/embeddings", code, 700.0)
    labels = {"job_class": "batch", "model": "m", "endpoint": "/v1/embeddings"}
    assert value(metrics, "gridsched_requests_total", **labels, code="200") == 2
    assert value(metrics, "gridsched_requests_total", **labels, code="499") == 1
    seconds = "gridsched_request_seconds"
    assert value(metrics, f"{seconds}_count", job_class="batch", model="m") == 3
    assert value(metrics, f"{seconds}_sum", job_class="batch", model="m") == 2100.0
    edges = [float(dict(labels)["le"]) for name, labels in samples(metrics) if name == f"{seconds}_bucket"]
    assert (min(edges), sorted(edges)[-2]) == (0.005, 600.0)


def test_steps_and_relief_are_counted_from_the_log(metrics: Metrics) -> None:
    """A dispatch is a step; S5 makes it a relief step."""
    full(metrics)
    assert value(metrics, "gridsched_steps_total", job_class="background", model="sim-chat-4b") == 2
    assert value(metrics, "gridsched_relief_steps_total") == 1


def test_loads_end_in_one_way_each(metrics: Metrics) -> None:
    """Ready, failed with a cause, or aborted; a death in service is a restart."""
    full(metrics)
    loads = {
        outcome: value(metrics, "gridsched_model_loads_total", model="sim-chat-4b", outcome=outcome)
        for outcome in ("ready", "device_oom", "aborted", "crashed")
    }
    assert loads == {"ready": 2, "device_oom": 1, "aborted": 1, "crashed": 0}
    assert value(metrics, "gridsched_child_restarts_total", model="sim-chat-4b") == 1
    assert value(metrics, "gridsched_evictions_total", model="sim-chat-4b", reason="R5") == 1
    assert value(metrics, "gridsched_model_load_seconds_sum", model="sim-chat-4b") == 4.2


def gauges() -> Iterator[tuple[str, dict[str, str], float]]:
    """What the snapshot says."""
    yield "gridsched_queue_length", {"job_class": "batch"}, 7
    yield "gridsched_queue_length", {"job_class": "interactive"}, 0
    yield "gridsched_slots", {"model": "sim-chat-4b", "state": "busy"}, 4
    yield "gridsched_slots", {"model": "sim-chat-4b", "state": "free"}, 4
    yield "gridsched_mode", {"device": "sim0"}, 1
    yield "gridsched_mode", {"device": "sim1"}, 0
    yield "gridsched_running", {"job_class": "interactive"}, 2
    yield "gridsched_running", {"job_class": "batch"}, 0
    yield "gridsched_oldest_wait_seconds", {"job_class": "batch"}, 12.5
    yield "gridsched_oldest_wait_seconds", {"job_class": "background"}, 0
    yield "gridsched_draining", {}, 0
    memory = {"total": 1000, "used": 600, "external": 50, "reserved": 400, "freeing": 100, "lost": 7, "headroom": 30}
    for kind, amount in memory.items():
        yield "gridsched_device_memory_bytes", {"device": "sim0", "kind": kind}, amount
    yield "gridsched_model_memory_bytes", {"model": "sim-chat-4b", "kind": "estimated"}, 200
    yield "gridsched_model_memory_bytes", {"model": "sim-chat-4b", "kind": "measured"}, 90
    yield "gridsched_model_host_memory_bytes", {"model": "sim-chat-4b"}, 42
    yield "gridsched_device_available", {"device": "sim0"}, 1
    yield "gridsched_device_available", {"device": "sim1"}, 0
    yield "gridsched_host_memory_pressure_ratio", {"kind": "some"}, 0.25
    yield "gridsched_host_memory_pressure_ratio", {"kind": "full"}, 0.125
    for model, state in (("12b", "failed"), ("4b", "ready"), ("2b", "cold")):
        yield "gridsched_model_state", {"model": f"sim-chat-{model}", "state": state}, 1
    yield "gridsched_model_state", {"model": "sim-chat-4b", "state": "draining"}, 0
    yield "gridsched_model_state", {"model": "sim-embed", "state": "loading"}, 1


@pytest.mark.parametrize("cause", FailureCause, ids=lambda cause: cause.value)
def test_P6a_a_load_that_fails_is_counted_by_its_cause(metrics: Metrics, cause: FailureCause) -> None:
    """The outcomes are as many as there are causes: a death in service is none of them, but a restart."""
    for line in (about("load", 1), about("exit", 1, cause=cause.value), about("load", 2), about("ready", 2)):
        metrics.saw(line)
    metrics.saw(about("exit", 2, cause=cause.value))
    loads = "gridsched_model_loads_total"
    assert value(metrics, loads, model="sim-chat-4b", outcome=cause.value) == 1
    assert value(metrics, "gridsched_child_restarts_total", model="sim-chat-4b") == 1
    assert len([name for name, _ in samples(metrics) if name == loads]) == 2


@pytest.mark.parametrize(
    ("ending", "restarts"),
    [
        ((about("exit", 1, cause="crashed"),), 1),
        ((about("stop", 1, rule="P5"), about("exit", 1, cause="crashed")), 1),
        ((about("stop", 1, rule="P5"), about("exit", 1)), 1),
        ((about("stop", 1, rule="L6b"), about("exit", 1)), 1),
        ((about("stop", 1, rule="R6"), about("exit", 1)), None),
        ((about("evict", 1, rule="R1"), about("exit", 1)), None),
    ],
    ids=["died", "died and was told", "stalled", "grown", "idle", "evicted"],
)
def test_P5_a_process_that_is_started_anew_is_counted_once(
    metrics: Metrics, ending: tuple[dict[str, object], ...], restarts: float | None
) -> None:
    """Whether its death is seen before it is told to go or after; one that goes for others' sake is none."""
    for line in (about("load", 1), about("ready", 1), *ending):
        metrics.saw(line)
    assert value(metrics, "gridsched_child_restarts_total", model="sim-chat-4b") == restarts


@pytest.mark.parametrize(
    ("lines", "needless"),
    [
        ((about("load", 1), about("load", 2)), 1),
        ((about("load", 1), about("ready", 1), about("drain", 1), about("load", 2)), 1),
        ((about("load", 1), about("ready", 1), about("load", 2, rule="R9"), about("stop", 1, rule="R9")), 0),
        ((about("load", 1), about("ready", 1), about("evict", 1, rule="R1"), about("load", 2)), 0),
        ((about("load", 1), about("ready", 1), about("stop", 1, rule="L6b"), about("load", 2)), 0),
        ((about("load", 1), about("exit", 1, cause="crashed"), about("load", 2)), 0),
        ((about("load", 1), about("load", 2) | {"model": "sim-embed"}), 0),
    ],
    ids=["beside one that loads", "beside one that drains", "moves", "evicted", "grown", "died", "another model"],
)
def test_a_load_is_needless_beside_a_process_that_nobody_told_to_go(
    metrics: Metrics, lines: tuple[dict[str, object], ...], needless: float
) -> None:
    """What is begun in place of one that goes, or to replace it, is none."""
    metrics.watch(lambda: EMPTY, build().catalog)
    for line in lines:
        metrics.saw(line)
    assert value(metrics, "gridsched_needless_loads_total", model="sim-chat-4b") == needless


def test_what_is_done_for_chats_and_against_alternation_is_counted(metrics: Metrics) -> None:
    """S10, S11, R4a: a pause and a step taken away once each, an alternation for each model of it."""
    metrics.watch(lambda: EMPTY, build().catalog)
    names = ("gridsched_pauses_total", "gridsched_aborts_total", "gridsched_thrash_total")
    assert [value(metrics, name, model="sim-chat-4b") for name in names] == [0, 0, 0]
    alternation: dict[str, object] = {"models": ["sim-chat-4b", "sim-embed"], "rule": "R4a"}
    for line in (about("pause", 1), about("abort", 1), about("thrash", 1) | alternation):
        metrics.saw(line)
    assert [value(metrics, name, model="sim-chat-4b") for name in names] == [1, 1, 1]
    assert [value(metrics, name, model="sim-embed") for name in names] == [0, 0, 1]


def test_the_configuration_and_the_decision_log_say_how_they_are(metrics: Metrics) -> None:
    """Both are there before anybody is asked."""
    valid, lost = "gridsched_config_valid", "gridsched_decision_log_lines_lost_total"
    assert (value(metrics, valid), value(metrics, lost)) == (1, 0)
    metrics.watch_configuration(lambda: False)
    metrics.watch_decision_log(lambda: 3)
    assert (value(metrics, valid), value(metrics, lost)) == (0, 3)


@pytest.mark.parametrize(("name", "labels", "expected"), list(gauges()))
def test_gauges_show_the_snapshot(metrics: Metrics, name: str, labels: dict[str, str], expected: float) -> None:
    """Read when the page is asked for."""
    metrics.watch(lambda: SNAPSHOT, build().catalog, lambda: MemoryPressure(0.25, 0.125))
    assert value(metrics, name, **labels) == expected


def test_what_runs_is_named(metrics: Metrics) -> None:
    """Version and engine, as labels of a 1."""
    (labels,) = [dict(labels) for name, labels in samples(metrics) if name == "gridsched_build_info"]
    assert (labels["engine_version"], labels["backend"]) == ("b1", "cpu")


def test_two_registries_do_not_meet(metrics: Metrics) -> None:
    """Nothing of a value is global."""
    metrics.queue_waited("batch", 1.0)
    other = Metrics(EngineInfo(ok=True, version="b2", backend="cpu"))
    assert value(other, "gridsched_queue_wait_seconds_count", job_class="batch") == 0


class Changing:
    """Models of which some may be taken away, and families."""

    def __init__(self) -> None:
        self._catalog = build().catalog
        self.gone: set[str] = set()

    def models(self) -> tuple[CatalogModel, ...]:
        """Those that are there."""
        return tuple(model for model in self._catalog.models() if model.name not in self.gone)

    def families(self) -> tuple[CatalogFamily, ...]:
        """As they are."""
        return self._catalog.families()


def of_model(metrics: Metrics, model: str) -> Samples:
    """All that the page says of a model."""
    return {key: value for key, value in samples(metrics).items() if ("model", model) in key[1]}


def test_M7_a_model_that_is_gone_has_no_series_and_begins_anew_at_nothing(metrics: Metrics) -> None:
    """Gauges, counters and histograms; what is counted of others stays. It keeps them while a process of it lives."""
    shown, now = Changing(), [SNAPSHOT]
    metrics.watch(lambda: now[0], shown)  # type: ignore[arg-type]  # what is asked of it
    for line in LOG:
        metrics.saw(line)
        metrics.saw(line | {"model": "sim-embed"})
    for model in ("sim-chat-4b", "sim-embed", ""):
        metrics.request_ended("batch", model, "/v1/embeddings", 200, 1.0, job=7)
        metrics.first_byte("batch", model, 1.0)
    before, other, nobody = (of_model(metrics, model) for model in ("sim-chat-4b", "sim-embed", ""))
    assert {name.split("_")[1] for name, _ in before} >= {"requests", "request", "time", "slots", "model", "evictions"}
    shown.gone.add("sim-chat-4b")
    assert of_model(metrics, "sim-chat-4b").keys() == before.keys()
    now[0] = replace(SNAPSHOT, instances=SNAPSHOT.instances[2:])
    assert of_model(metrics, "sim-chat-4b") == {}
    metrics.request_ended("batch", "sim-chat-4b", "/v1/embeddings", 499, 1.0)
    assert of_model(metrics, "sim-chat-4b") == {}
    assert of_model(metrics, "sim-embed") == other
    assert of_model(metrics, "") == nobody
    shown.gone.clear()
    again = of_model(metrics, "sim-chat-4b")
    assert {value for (name, _), value in again.items() if name != "gridsched_model_state"} == {0}
    metrics.saw(about("dispatch", 1) | {"class": "batch"})
    assert value(metrics, "gridsched_steps_total", job_class="batch", model="sim-chat-4b") == 1


def test_M7_what_is_watched_anew_makes_no_series_twice(metrics: Metrics) -> None:
    """Ten times over, as a reload might; what was counted is still there."""
    full(metrics)
    before = metrics.exposition("")[1]
    for _ in range(10):
        full_watch(metrics)
    assert metrics.exposition("")[1].count(b"\n") == before.count(b"\n")
    assert value(metrics, "gridsched_steps_total", job_class="background", model="sim-chat-4b") == 2


def test_counters_of_models_and_classes_begin_at_nothing(metrics: Metrics) -> None:
    """Whoever looks for an increase would miss that from no series to the first count."""
    metrics.watch(lambda: EMPTY, build().catalog)
    told = samples(metrics)
    counted = {name for (name, labels), value in told.items() if value == 0 and ("model", "sim-chat-12b") in labels}
    of_models = {family.name for family in FAMILIES if "model" in family.labels and family.kind is Kind.COUNTER}
    assert counted >= of_models - {"gridsched_requests_total"}
    for name in ("running", "queue_length", "oldest_wait_seconds", "queue_wait_seconds_count"):
        assert [told[f"gridsched_{name}", (("class", each.label),)] for each in JobClass] == [0, 0, 0]
    assert told["gridsched_batch_lines_total", (("outcome", "damaged"),)] == 0
    assert told["gridsched_relief_steps_total", ()] == 0


def test_M5_the_page_is_as_long_after_many_requests_of_the_same_kinds(metrics: Metrics) -> None:
    """Numbers of jobs and traces are no labels: 10,000 requests leave as many series as ten."""
    metrics.watch(lambda: EMPTY, build().catalog)

    def ask(number: int) -> None:
        job_class = ("interactive", "background")[number % 2]
        metrics.request_ended(job_class, "sim-embed", "/v1/embeddings", 200, 0.1, job=number, trace_id=f"{number:032x}")
        metrics.first_byte(job_class, "sim-embed", 0.1, job=number)
        metrics.queue_waited(job_class, 0.1, job=number)

    for number in range(10):
        ask(number)
    few = set(samples(metrics))
    for number in range(10_000):
        ask(number)
    assert set(samples(metrics)) == few


def test_a_page_is_read_once_and_grows_by_the_same_for_each_model(metrics: Metrics) -> None:
    """One snapshot a page, whatever there is; a model's lines are as many with 100 models as with ten."""
    taken: list[int] = []

    def snapshot() -> Snapshot:
        taken.append(1)
        return EMPTY

    models = build().catalog.models()
    lines = []
    for count in (10, 20, 100):
        there = tuple(replace(models[0], name=ModelName(f"m{number}")) for number in range(count))
        shown = Changing()
        shown.models = lambda there=there: there  # type: ignore[method-assign, misc]  # these models
        metrics.watch(snapshot, shown)  # type: ignore[arg-type]  # what is asked of it
        for model in there:
            for each in JobClass:
                metrics.request_ended(each.label, model.name, "/v1/completions", 200, 0.3, job=1)
        lines.append(metrics.exposition("")[1].count(b"\n"))
    assert len(taken) == 3
    assert (lines[2] - lines[1]) == 8 * (lines[1] - lines[0]) > 0


@pytest.mark.parametrize(
    "accept",
    [
        "",
        "*/*",
        "text/plain;version=1.0.0",
        "application/json",
        "text/plain; version=x",
        ";,=;",
        "application/openmetrics-text;q=0",
        "application/openmetrics-text;version=1.0.0;q=0, */*",
        "text/plain, application/openmetrics-text;q=0.1",
        "application/openmetrics-text;q=nonsense",
    ],
)
def test_whoever_asks_for_nothing_else_gets_text_without_examples(metrics: Metrics, accept: str) -> None:
    """Also who asks in a way that nobody understands."""
    metrics.queue_waited("batch", 1.0, job=5)
    content_type, page = metrics.exposition(accept)
    assert content_type == "text/plain; version=0.0.4; charset=utf-8"
    assert b" # {" not in page


@pytest.mark.parametrize(
    "accept",
    [
        "application/openmetrics-text",
        "application/openmetrics-text; version=1.0.0; charset=utf-8",
        "application/openmetrics-text; version=nonsense",
        "application/openmetrics-text;version=0.0.1,text/plain",
        "Application/OpenMetrics-Text;q=0.001",
        "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,text/plain;version=0.0.4;q=0.3,*/*;q=0.2",
    ],
)
def test_openmetrics_is_given_to_whoever_accepts_it(metrics: Metrics, accept: str) -> None:
    """Whole, and as its own parser reads it; what it says is what the text says."""
    content_type, page = full(metrics).exposition(accept)
    assert content_type == "application/openmetrics-text; version=1.0.0; charset=utf-8"
    assert page.endswith(b"# EOF\n")
    assert page.count(b"# EOF") == 1
    families = list(openmetrics.text_string_to_metric_families(page.decode()))
    told = {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in families
        if family.name.startswith("gridsched_")
        for sample in family.samples
    }
    assert told == {key: value for key, value in samples(metrics).items() if key[0].startswith("gridsched_")}


def test_an_example_leads_from_a_figure_to_its_job(metrics: Metrics) -> None:
    """On the counter of requests and on the buckets of the three histograms; its trace too, where there is one. One
    without a job leaves the last one there."""
    metrics.queue_waited("interactive", 0.004, job=12)
    metrics.queue_waited("interactive", 0.003)
    metrics.first_byte("interactive", "m", 0.1, job=12)
    metrics.request_ended("interactive", "m", "/v1/completions", 200, 0.2, job=12, trace_id="ab" * 16)
    found = {
        (sample.name, sample.labels.get("le")): sample.exemplar
        for family in openmetrics.text_string_to_metric_families(metrics.exposition(OPENMETRICS)[1].decode())
        for sample in family.samples
        if sample.exemplar is not None
    }
    trace = {"job": "12", "trace_id": "ab" * 16}
    assert {key: (each.labels, each.value, float(each.timestamp)) for key, each in found.items()} == {
        ("gridsched_queue_wait_seconds_bucket", "0.005"): ({"job": "12"}, 0.004, 1000.5),
        ("gridsched_time_to_first_byte_seconds_bucket", "0.1"): ({"job": "12"}, 0.1, 1000.5),
        ("gridsched_request_seconds_bucket", "0.25"): (trace, 0.2, 1000.5),
        ("gridsched_requests_total", None): (trace, 1.0, 1000.5),
    }


def test_L2_an_architecture_that_is_gone_has_no_estimate_error(metrics: Metrics) -> None:
    """A model that came with a reload is known by its architecture; with the last of that the figures go."""
    shown = Changing()
    shown.gone.add("sim-chat-4b")
    metrics.watch(lambda: EMPTY, shown)  # type: ignore[arg-type]  # what is asked of it
    shown.gone.clear()
    for line in LOG:
        metrics.saw(line)
    error = "gridsched_estimate_error_ratio"
    assert value(metrics, error, architecture="simulated", component="total") == -0.1
    shown.gone.update(model.name for model in build().catalog.models())
    assert value(metrics, error, architecture="simulated", component="total") is None


def test_histograms_have_their_own_buckets() -> None:
    """Every histogram of the catalog is one of seconds."""
    assert all(family.name.endswith("_seconds") for family in FAMILIES if family.kind is Kind.HISTOGRAM)
