"""From measured requests to figures: one row for each kind of traffic, and the table of them.

Owns the arithmetic and the table. Must never leave a failed request out: it counts among the requests and the errors,
and only its times are not mixed into those of the answered ones.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from loadtest.clients import Measured

EMBEDDINGS_ROW = "embeddings"
"""Embedding jobs of any class share this row: their times are those of many steps and fit no class's."""
ROWS = ("interactive", "background", "batch", EMBEDDINGS_ROW)
"""The classes in their order, and that row."""


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _milliseconds(value: float | None) -> str:
    return "-" if value is None else f"{value * 1000.0:.1f}"


def _rate(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


COLUMNS: Mapping[str, tuple[str, Callable[[Any], str]]] = {
    "requests": ("requests", str),
    "errors": ("errors", str),
    "p50 s": ("p50_s", _seconds),
    "p95 s": ("p95_s", _seconds),
    "p99 s": ("p99_s", _seconds),
    "queue p50 ms": ("queue_p50_s", _milliseconds),
    "queue p95 ms": ("queue_p95_s", _milliseconds),
    "first token p50 ms": ("ttft_p50_s", _milliseconds),
    "next token p50 ms": ("inter_token_p50_s", _milliseconds),
    "tokens/s": ("tokens_per_s", _rate),
}
"""What a table shows of a row, under which head and how."""

ALWAYS = ("requests", "errors", "p50 s")
"""Columns that are shown where nothing was measured, too."""


@dataclass(frozen=True, slots=True)
class Row:
    """One kind of traffic. Times in seconds over the answered requests; None where nothing was measured. `tokens_per_s`
    is what they generated together, over the time in which requests were counted."""

    requests: int
    errors: int
    p50_s: float | None
    p95_s: float | None
    p99_s: float | None
    queue_p50_s: float | None
    queue_p95_s: float | None
    ttft_p50_s: float | None
    ttft_p95_s: float | None = None
    ttft_p99_s: float | None = None
    inter_token_p50_s: float | None = None
    inter_token_p95_s: float | None = None
    inter_token_p99_s: float | None = None
    queue_p99_s: float | None = None
    tokens_per_s: float | None = None


def percentile(values: Iterable[float], share: float) -> float | None:
    """The smallest value that at least `share` (0 to 1) of the values do not exceed (nearest rank); None for none."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else None


def row_of(measured: Sequence[Measured], seconds: float | None = None) -> Row:
    """The figures of some requests together, which were counted for so long."""
    answered = [one for one in measured if not one.error]
    times = {
        "": [one.latency_seconds for one in answered],
        "queue_": [one.queue_seconds for one in answered if one.queue_seconds is not None],
        "ttft_": [one.first_token_seconds for one in answered if one.first_token_seconds is not None],
        "inter_token_": list(chain.from_iterable(one.gaps for one in answered)),
    }
    tokens = sum(one.tokens for one in answered)
    return Row(
        requests=len(measured),
        errors=len(measured) - len(answered),
        tokens_per_s=tokens / seconds if tokens and seconds else None,
        **{f"{name}p{share}_s": percentile(of, share / 100) for name, of in times.items() for share in (50, 95, 99)},
    )


def rows_of(measured: Iterable[Measured]) -> dict[str, Row]:
    """A row for each name that the requests carry, in the order the names first appear."""
    groups: dict[str, list[Measured]] = {}
    for one in measured:
        groups.setdefault(one.row, []).append(one)
    return {name: row_of(group) for name, group in groups.items()}


def table(rows: Mapping[str, Row]) -> str:
    """The rows for a person: seconds for answers, milliseconds for waits. What no row has is left out."""
    return aligned(columns(rows))


def columns(rows: Mapping[str, Row]) -> dict[str, list[str]]:
    """The same as cells by column: the rows' names, then their figures."""
    cells = {title: [shown(getattr(row, key)) for row in rows.values()] for title, (key, shown) in COLUMNS.items()}
    return {"": list(rows)} | {title: those for title, those in cells.items() if title in ALWAYS or set(those) != {"-"}}


def aligned(columns: Mapping[str, Sequence[str]]) -> str:
    """Columns under their heads, the first to the left and figures to the right."""
    body = list(zip(*columns.values(), strict=True))
    widths = [max(map(len, column)) for column in zip(columns, *body, strict=True)]
    return "\n".join(_line(cells, widths) for cells in (tuple(columns), *body))


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    name, *figures = (
        cell.rjust(width) if place else cell.ljust(width)
        for place, (cell, width) in enumerate(zip(cells, widths, strict=True))
    )
    return "  ".join((name, *figures)).rstrip()
