"""What is written is what the client library would write, to the byte, and what its parsers read."""

from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client import Counter as TheirCounter
from prometheus_client import Gauge as TheirGauge
from prometheus_client import Histogram as TheirHistogram
from prometheus_client.openmetrics import exposition as openmetrics

from gridsched.metrics.catalog import Family, Kind
from gridsched.metrics.series import Counts, Exemplar, Histogram, read_lines

COUNTER = Family("an_events_total", Kind.COUNTER, ("model", "class"), "What happened; all of it.")
TIMES = Family("a_wait_seconds", Kind.HISTOGRAM, ("model",), "How long.")
LEVEL = Family("a_level_bytes", Kind.GAUGE, ("model", "kind"), "How much.")
BOUNDS = (0.005, 0.5, 30.0)


@dataclass(frozen=True)
class Event:
    """One thing that happens to one model, seen of a job or of none."""

    model: str
    job_class: str
    seconds: float
    job: int | None


class Theirs:
    """The same families, kept and written by the library."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.counter = TheirCounter(COUNTER.name, COUNTER.help, COUNTER.labels, registry=self.registry)
        self.times = TheirHistogram(TIMES.name, TIMES.help, TIMES.labels, registry=self.registry, buckets=BOUNDS)
        self.level = TheirGauge(LEVEL.name, LEVEL.help, LEVEL.labels, registry=self.registry)

    def hear(self, event: Event) -> None:
        """Count it."""
        exemplar = {"job": str(event.job)} if event.job is not None else None
        self.counter.labels(event.model, event.job_class).inc(1, exemplar)
        self.times.labels(event.model).observe(event.seconds, exemplar)
        self.level.labels(event.model, event.job_class).set(event.seconds)


class Ours:
    """The families as they are here."""

    def __init__(self) -> None:
        self.counter = Counts(COUNTER)
        self.times = Histogram(TIMES, BOUNDS)
        self.level: dict[tuple[str, ...], float] = {}

    def hear(self, event: Event) -> None:
        """Count it."""
        exemplar = Exemplar(event.job, "", 12.25) if event.job is not None else None
        self.counter.of(event.model, event.job_class).add(exemplar)
        self.times.of(event.model).add(event.seconds, exemplar)
        self.level[event.model, event.job_class] = event.seconds

    def lines(self, *, examples: bool) -> Iterator[str]:
        """All of it."""
        yield from self.counter.lines(examples=examples)
        yield from self.times.lines(examples=examples)
        yield from read_lines(LEVEL, self.level, openmetrics=examples)


MODELS = st.sampled_from(("m", "publisher/m", 'a "b" \\ c\n', "50 %", "%s", "größe"))
SECONDS = st.floats(0, 1e12) | st.sampled_from((0.0, 0.005, 0.5, 30.0, 1e6, 999999.5, 1234567.0))
EVENTS = st.builds(Event, MODELS, st.sampled_from(("interactive", "batch")), SECONDS, st.none() | st.integers(1, 99))


@pytest.mark.parametrize("examples", [False, True], ids=["text", "openmetrics"])
@given(events=st.lists(EVENTS, max_size=12))
@settings(max_examples=15, deadline=None)
def test_every_byte_is_as_the_library_would_write_it(
    examples: bool,
    events: list[Event],
) -> None:
    """Labels, numbers, buckets, examples, in both formats, whatever happened."""
    theirs, ours = Theirs(), Ours()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("prometheus_client.metrics.time.time", lambda: 12.25)
        patch.setattr("prometheus_client.metrics._use_created", False)
        for event in events:
            theirs.hear(event)
            ours.hear(event)
            assert len(list(ours.lines(examples=examples))) > len(ours.level)  # a page in between changes none after it
        expected = (openmetrics.generate_latest if examples else generate_latest)(theirs.registry)
    assert "".join(ours.lines(examples=examples)).encode() == expected.removesuffix(b"# EOF\n")


def test_a_million_is_written_as_the_library_does() -> None:
    """In a bucket, too."""
    ours = Histogram(TIMES, BOUNDS)
    ours.of("m").counts[0] = 2_500_000
    assert 'a_wait_seconds_count{model="m"} 2.5e+06\n' in "".join(ours.lines(examples=False))


def test_what_is_forgotten_begins_again_at_nothing() -> None:
    """And nothing else is touched."""
    counter = Counts(COUNTER)
    for model in ("gone", "there", "there"):
        counter.of(model, "batch").add()
    counter.keep_only("model", {"there"})
    counter.keep_only("no_such_label", set())
    assert [line for line in counter.lines(examples=False) if not line.startswith("#")] == [
        'an_events_total{class="batch",model="there"} 2.0\n'
    ]
    counter.of("gone", "batch").add()
    assert 'an_events_total{class="batch",model="gone"} 1.0\n' in set(counter.lines(examples=False))
