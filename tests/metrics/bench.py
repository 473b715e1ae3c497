"""How long a page of metrics takes: `python -m tests.metrics.bench`. Nothing else is served while it is made.

As full as it gets: 100 models that are all loaded, all classes, two endpoints, every bucket hit, with an example each.
The best of five is shown, in both formats, where all of it has changed since the last page and where none has, beside
what the client library takes for as many histograms alone.
"""

from collections.abc import Callable
from dataclasses import replace
from time import perf_counter

from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.openmetrics.exposition import generate_latest

from gridsched.core.ids import ModelName
from gridsched.core.job import JobClass
from gridsched.metrics.catalog import REQUEST_BUCKETS
from gridsched.metrics.registry import OPENMETRICS, Metrics
from gridsched.ports import CatalogFamily, CatalogModel, EngineInfo
from sim import build
from tests.metrics.test_registry import LOG, SNAPSHOT

MODELS = 100
ENDPOINTS = ("/v1/chat/completions", "/v1/embeddings")
ROUNDS = 5


class Many:
    """A catalog of so many models."""

    def __init__(self) -> None:
        model = build().catalog.models()[0]
        names = [ModelName(f"publisher/model-{number}-instruct-q4") for number in range(MODELS)]
        self._models = tuple(replace(model, name=name) for name in names)

    def models(self) -> tuple[CatalogModel, ...]:
        """All of them."""
        return self._models

    def families(self) -> tuple[CatalogFamily, ...]:
        """None."""
        return ()


def fresh() -> Metrics:
    """Of so many models, all loaded."""
    metrics, many = Metrics(EngineInfo(ok=True, version="b1", backend="cpu")), Many()
    names = [model.name for model in many.models()]
    now = replace(SNAPSHOT, instances=tuple(replace(SNAPSHOT.instances[1], model=name) for name in names))
    metrics.watch(lambda: now, many)  # type: ignore[arg-type]  # what is asked of it
    return metrics


def fill(metrics: Metrics) -> None:
    """Have everything counted of every model."""
    for job, name in enumerate([model.name for model in Many().models()], 1):
        for line in LOG:
            metrics.saw({**line, "model": name})
        for each in JobClass:
            for seconds in REQUEST_BUCKETS:
                metrics.queue_waited(each.label, seconds, job=job)
                metrics.first_byte(each.label, name, seconds, job=job)
                for endpoint in ENDPOINTS:
                    metrics.request_ended(each.label, name, endpoint, 200, seconds, job=job)


def libraries() -> Callable[[], bytes]:
    """As many histograms as the client library's own, to be written by it."""
    registry = CollectorRegistry()
    for family in ("request_seconds", "first_byte_seconds"):
        histogram = Histogram(family, "How long.", ("class", "model"), registry=registry, buckets=REQUEST_BUCKETS)
        for model in Many().models():
            for each in JobClass:
                for seconds in REQUEST_BUCKETS:
                    histogram.labels(each.label, model.name).observe(seconds, {"job": "1"})
    return lambda: generate_latest(registry)  # type: ignore[no-any-return, no-untyped-call]  # it has no types


def best_ms(write: Callable[[], bytes], before: Callable[[], None] = lambda: None) -> tuple[float, int]:
    """The shortest of some rounds, each after what is done `before`, and how many lines were written."""
    found = []
    for _ in range(ROUNDS):
        before()
        began = perf_counter()
        page = write()
        found.append((perf_counter() - began) * 1000)
    return min(found), page.count(b"\n")


def main() -> None:
    """Measure, and say so."""
    metrics = fresh()
    fill(metrics)
    rows = {}
    for name, accept in (("text", ""), ("openmetrics", OPENMETRICS)):
        rows[f"{name}, all anew"] = best_ms(lambda accept=accept: metrics.exposition(accept)[1], lambda: fill(metrics))
        rows[f"{name}, as before"] = best_ms(lambda accept=accept: metrics.exposition(accept)[1])
    rows["the library's histograms"] = best_ms(libraries())
    print(f"a page of metrics with {MODELS} models, in ms, best of {ROUNDS}")
    for name, (milliseconds, lines) in rows.items():
        print(f"  {name:26} {milliseconds:7.1f}   {lines} lines")


if __name__ == "__main__":
    main()
