"""Two results of the load test beside one another: what became slower, and whether the second is worse.

Owns what is compared and what counts as worse: more failed requests, or more needless loads. Times are shown and never
judged: two runs on a busy machine differ. Must never hide that the runs were not alike: every setting that differs is
said.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

import msgspec

from loadtest import report
from loadtest.report import Row
from loadtest.result import Result

COUNTS = ("loads", "needless_loads", "evictions", "relief_steps", "thrash")
NOTHING = Row(0, 0, None, None, None, None, None, None)
RATIO = "B/A"


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Two runs with the files they are from. A is the one before, B the one after."""

    a: Result
    b: Result
    a_path: str
    b_path: str

    @classmethod
    def read(cls, a: Path, b: Path) -> Self:
        """Raises ResultFault, which names the file and the key."""
        return cls(a=Result.read(a), b=Result.read(b), a_path=str(a), b_path=str(b))

    @property
    def classes(self) -> Mapping[str, tuple[Row, Row]]:
        """Both rows of every class that one of the two has."""
        names = dict.fromkeys((*self.a.classes, *self.b.classes))
        return {name: (self.a.classes.get(name, NOTHING), self.b.classes.get(name, NOTHING)) for name in names}

    @property
    def counts(self) -> Mapping[str, tuple[int | None, int | None]]:
        """What the servers did."""
        return {what: (getattr(self.a, what), getattr(self.b, what)) for what in COUNTS}

    @property
    def differences(self) -> Mapping[str, tuple[str, str]]:
        """What the runs were told, or were run on, where it is not the same."""
        a, b = dict(_told(self.a)), dict(_told(self.b))
        pairs = {name: (a.get(name, "-"), b.get(name, "-")) for name in dict.fromkeys((*a, *b))}
        return {name: (before, after) for name, (before, after) in pairs.items() if before != after}

    @property
    def problems(self) -> Sequence[str]:
        """In what B is worse, a sentence each."""
        pairs = {
            "failed requests": (self.a.errors, self.b.errors),
            "needless loads": (self.a.needless_loads or 0, self.b.needless_loads or 0),
        }
        return [f"more {what}: {before}, then {after}" for what, (before, after) in pairs.items() if after > before]

    def table(self) -> Mapping[str, Sequence[str]]:
        """Cells by column: for every class a line of A, of B, and of B's figures over A's."""
        rows = {
            f"{name} {side}": row for name, pair in self.classes.items() for side, row in zip("AB", pair, strict=True)
        }
        columns = report.columns(rows)
        del columns[""]
        told: dict[str, list[str]] = {"": [], **{title: [] for title in columns}}
        for place, (name, (a, b)) in enumerate(self.classes.items()):
            told[""] += [f"{name} A", f"{name} B", f"{name} {RATIO}"]
            for title, cells in columns.items():
                key, _ = report.COLUMNS[title]
                over = ratio(getattr(a, key), getattr(b, key))
                told[title] += [*cells[2 * place : 2 * place + 2], "-" if over is None else f"{over:.2f}"]
        return told

    def lines(self) -> Iterator[str]:
        """All of it for a person, a line each."""
        yield f"A: {self.a_path}"
        yield f"B: {self.b_path}"
        yield from ("", *report.aligned(self.table()).splitlines(), "")
        for what, (a, b) in self.counts.items():
            yield f"{what.replace('_', ' ')}: {number(a)}, then {number(b)}"
        for name, (before, after) in self.differences.items():
            yield f"not the same: {name}: {before}, then {after}"

    def as_json(self) -> bytes:
        """One JSON object."""
        classes = {
            name: {"a": a, "b": b, "ratio": {key: ratio(value, getattr(b, key)) for key, value in asdict(a).items()}}
            for name, (a, b) in self.classes.items()
        }
        told = {
            "a": self.a_path,
            "b": self.b_path,
            "classes": classes,
            "counts": {what: {"a": a, "b": b} for what, (a, b) in self.counts.items()},
            "differences": {name: {"a": a, "b": b} for name, (a, b) in self.differences.items()},
            "problems": self.problems,
        }
        return msgspec.json.encode(told)


def ratio(a: float | None, b: float | None) -> float | None:
    """How many times A's figure B's is; None where that says nothing."""
    return b / a if a and b is not None else None


def number(value: int | None) -> str:
    """A count that may not be known."""
    return "unknown" if value is None else str(value)


def flat(told: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, str]]:
    """Settings as words, those inside others behind a dot."""
    for name, value in told.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{above}{name}.")
        else:
            yield f"{above}{name}", "-" if value in (None, "") else str(value)


def _told(result: Result) -> Iterator[tuple[str, str]]:
    """All that two runs should have alike."""
    server = {"version": result.server.version, "engine": result.server.engine, "backend": result.server.backend}
    yield "seed", str(result.seed)
    yield from flat(result.settings)
    yield from flat({"server": server | {"devices": result.server.devices}, "machine": result.machine})
    yield "ended early", "yes" if result.interrupted else "no"
    for role, why in result.left_out.items():
        yield f"left out.{role}", why
