"""What a benchmark leaves behind: the machine, and a row for each case, variant and load, as types and as JSON.

Owns the shape. The fields of a row up to `rounds` are public and keep their names; the others may grow. Must never
hold a host's name or a path. What is unknown is None, never 0. Units end the names: `us` microseconds, `s` seconds.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import msgspec

from loadtest.bench.figures import middle

CASES = ("small_request", "stream", "large_up", "large_down", "cancel", "grant", "memory", "startup", "contention")
"""In the order in which they are run and shown."""
LONG_CASES = ("contention",)
"""Run when they are asked for by name: minutes each, on a machine that has nothing else to do."""


class BenchFault(Exception):
    """The benchmark cannot go on, or a file is no result of one; the sentence says why and what to do."""


class LeftOut(Exception):
    """A variant or a case cannot be measured here; the sentence says what is missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One variant under one load. `upstream`: "stub", "engine", or "" where there is none.

    Ratios are to the reference in the same round, `added` is what is on top of it: for `stream` the delay of an event
    from the moment it was made. `each` has every round of every figure by its name, `figures` the medians of those
    that have no field of their own. `errors`: requests that failed in all rounds.
    """

    case: str
    variant: str
    reference: str = "direct"
    clients: int | None = None
    streams: int | None = None
    rps_ratio: float | None = None
    added_p50_us: float | None = None
    added_p99_us: float | None = None
    tokens_ratio: float | None = None
    chunks_per_s: float | None = None
    rounds: int = 0

    upstream: str = ""
    setting: str = ""
    errors: int = 0
    figures: Mapping[str, float | None] = field(default_factory=dict)
    each: Mapping[str, Sequence[float | None]] = field(default_factory=dict)
    notes: Sequence[str] = ()


_FIELDS = ("rps_ratio", "added_p50_us", "added_p99_us", "tokens_ratio", "chunks_per_s")


def row_of(each: Mapping[str, Sequence[float | None]], *, case: str, variant: str, **more: Any) -> Row:
    """A row from its rounds: figures by name, all with as many rounds; medians go where they belong."""
    medians = {name: middle(values) for name, values in each.items()}
    public: dict[str, Any] = {name: medians.get(name) for name in _FIELDS}
    return Row(
        case=case,
        variant=variant,
        rounds=max((len(values) for values in each.values()), default=0),
        each={name: list(values) for name, values in each.items()},
        figures={name: value for name, value in medians.items() if name not in _FIELDS},
        **public,
        **more,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Where it ran. `load_before`, `load_after`: the machine's load average over a minute; `versions` by name."""

    cpu: str = ""
    cpus: int = 0
    memory_bytes: int = 0
    kernel: str = ""
    python: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    load_before: float | None = None
    load_after: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchResult:
    """A whole run. `revision` is the commit, with `+` behind it where files differ from it. `left_out`: what was not
    measured, and why; `curves` are rows like those of `cases`, one for each load of a cost curve."""

    machine: Machine
    revision: str
    cases: Sequence[Row]
    curves: Sequence[Row] = ()
    left_out: Mapping[str, str] = field(default_factory=dict)
    notes: Sequence[str] = ()
    began: str = ""
    took_s: float = 0.0
    settings: Mapping[str, Any] = field(default_factory=dict)

    def as_json(self) -> bytes:
        """One JSON object, indented: it is checked in, and its changes are read."""
        return msgspec.json.format(msgspec.json.encode(self), indent=1) + b"\n"

    @classmethod
    def from_json(cls, raw: bytes) -> Self:
        """Raises BenchFault, which names the key."""
        try:
            return msgspec.json.decode(raw, type=cls)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise BenchFault(f"no result of a benchmark: {error}") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How a case is to be measured: rounds, seconds of load in each, a folder for what it needs, and whom to
    tell; `step` is for what was counted beforehand."""

    rounds: int
    seconds: float
    folder: Path
    say: Callable[[str], None] = lambda _: None
    step: Callable[[str], None] = lambda _: None


Measure = Callable[[Plan], Iterable[Row]]
"""What the module of a case has under the name `measure`. Raises LeftOut for all of it, or notes what it lacks."""
