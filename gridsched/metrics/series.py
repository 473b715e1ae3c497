"""Counters and histograms with a value for every set of labels, and how values are written on the page.

What is written is the client library's own text, to the byte, and a test holds it against that. It is made here because
the library takes 130 ms for the page of 100 models, and 240 with exemplars, on the loop that every client waits for.
Owns the values. Must never bound the labels: whoever counts does.
"""

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from itertools import accumulate
from typing import Generic, NamedTuple, TypeVar

from prometheus_client.utils import floatToGoString

from gridsched.metrics.catalog import Family, Kind

Labels = tuple[str, ...]
"""A value for each label of a family, in the family's order."""

PLAIN_BELOW = 1_000_000
"""From here on the library writes numbers with an exponent."""

T = TypeVar("T")

_written: Callable[[float], str] = floatToGoString
"""The library's function has no types."""


class Exemplar(NamedTuple):
    """Of which request one value was: its job, its trace ("" for none), and the wall time in seconds. Nothing is
    written of it before a page asks: most are another request's by then."""

    job: int
    trace_id: str
    at: float

    def beside(self, value: float) -> str:
        """What stands behind a sample of which it is an example."""
        trace = f',trace_id="{self.trace_id}"' if self.trace_id else ""
        return f' # {{job="{self.job}"{trace}}} {number(value)} {round(self.at, 3)}'


class Series(Generic[T]):
    """One family: what is kept for each set of labels, from when it is first asked for. One without labels is there at
    once."""

    def __init__(self, family: Family, begin: Callable[[Labels], T]) -> None:
        self.family = family
        self._begin = begin
        self._kept: dict[Labels, T] = {}
        if not family.labels:
            self.of()

    def of(self, *labels: str) -> T:
        """What is kept for these labels."""
        kept = self._kept.get(labels)
        if kept is None:
            kept = self._kept[labels] = self._begin(labels)
        return kept

    def keep_only(self, label: str, values: Collection[str]) -> None:
        """Forget what has another value of a label, if there is such a label."""
        if label not in self.family.labels:
            return
        place = self.family.labels.index(label)
        for labels in [each for each in self._kept if each[place] not in values]:
            del self._kept[labels]


@dataclass(slots=True)
class Count:
    """One series of a counter."""

    head: str
    value: int = 0
    example: Exemplar | None = None

    def add(self, exemplar: Exemplar | None = None) -> None:
        """One more."""
        self.value += 1
        if exemplar is not None:
            self.example = exemplar


class Counts(Series[Count]):
    """A counter."""

    def __init__(self, family: Family) -> None:
        super().__init__(family, lambda labels: Count(head(family.name, family.labels, labels)))

    def lines(self, *, examples: bool) -> Iterator[str]:
        """What the page says of it."""
        yield about(self.family, openmetrics=examples)
        for each in self._kept.values():
            example = each.example.beside(1) if examples and each.example is not None else ""
            yield f"{each.head}{number(each.value)}{example}\n"


@dataclass(slots=True)
class Times:
    """One series of a histogram: of `counts`, the last is of what is beyond every bound. `form` are its lines, with a
    place for each bucket, the number of all and their sum: filling it in at once takes a quarter of the time. `texts`
    are what was made of it, without examples and with, until there is one more: most are as they were a page ago."""

    bounds: tuple[float, ...]
    form: str
    counts: list[int]
    seconds: float = 0.0
    examples: dict[int, tuple[Exemplar, float]] = field(default_factory=dict)
    texts: dict[bool, str] = field(default_factory=dict)

    def add(self, seconds: float, exemplar: Exemplar | None = None) -> None:
        """One more that took so long."""
        bucket = bisect_left(self.bounds, seconds)
        self.counts[bucket] += 1
        self.seconds += seconds
        if self.texts:
            self.texts.clear()
        if exemplar is not None:
            self.examples[bucket] = exemplar, seconds

    def text(self, *, examples: bool) -> str:
        """Its lines."""
        if examples in self.texts:
            return self.texts[examples]
        sums = list(accumulate(self.counts))
        values = [f"{each}.0" for each in sums] if sums[-1] < PLAIN_BELOW else [number(each) for each in sums]
        values += (values[-1], number(self.seconds))
        if examples:
            for place, (example, seconds) in self.examples.items():
                values[place] += example.beside(seconds)
        text = self.texts[examples] = self.form % tuple(values)
        return text


class Histogram(Series[Times]):
    """A histogram of seconds."""

    def __init__(self, family: Family, bounds: tuple[float, ...]) -> None:
        buckets = [_written(bound) for bound in (*bounds, float("inf"))]
        name, names = family.name, family.labels

        def begin(labels: Labels) -> Times:
            heads = [head(f"{name}_bucket", (*names, "le"), (*labels, bound)) for bound in buckets]
            heads += [head(f"{name}_count", names, labels), head(f"{name}_sum", names, labels)]
            form = "".join(f"{each.replace('%', '%%')}%s\n" for each in heads)
            return Times(bounds, form, [0] * len(buckets))

        super().__init__(family, begin)

    def lines(self, *, examples: bool) -> Iterator[str]:
        """What the page says of it."""
        yield about(self.family, openmetrics=examples)
        for each in self._kept.values():
            yield each.text(examples=examples)


def read_lines(family: Family, values: Mapping[Labels, float], *, openmetrics: bool) -> Iterator[str]:
    """What the page says of a family whose values were read this moment."""
    yield about(family, openmetrics=openmetrics)
    for labels, value in values.items():
        yield f"{head(family.name, family.labels, labels)}{number(value)}\n"


def about(family: Family, *, openmetrics: bool) -> str:
    """The two lines over a family. OpenMetrics calls a counter by its name without the ending."""
    name = family.name.removesuffix("_total") if openmetrics and family.kind is Kind.COUNTER else family.name
    return f"# HELP {name} {family.help}\n# TYPE {name} {family.kind.value}\n"


def head(name: str, names: Labels, labels: Labels) -> str:
    """A sample's name and labels, in the order of their names, with the space before its value."""
    form, order = _form(name, names)
    return form % tuple([_escaped(labels[place]) for place in order])


@cache
def _form(name: str, names: Labels) -> tuple[str, tuple[int, ...]]:
    """A head with a place for each label's value, and which label stands where. As many as there are samples' names."""
    order = tuple(sorted(range(len(names)), key=names.__getitem__))
    pairs = ",".join(f'{names[place]}="%s"' for place in order)
    return f"{name}{{{pairs}}} " if names else f"{name} ", order


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def number(value: float) -> str:
    """As the library writes it."""
    return repr(float(value)) if 0 <= value < PLAIN_BELOW else _written(value)
