"""From measured requests to figures: one row for each kind of traffic, and the table of them.

Owns the arithmetic and the table. Must never leave a failed request out: it counts among the requests and the errors,
and only its times are not mixed into those of the answered ones.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from loadtest.clients import Measured

EMBEDDINGS_ROW = "embeddings"
"""Embedding jobs of any class share this row: their times are those of many steps and fit no class's."""
ROWS = ("interactive", "background", "batch", EMBEDDINGS_ROW)
"""The classes in their order, and that row."""

ALWAYS = ("", "requests", "errors", "p50 s")
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
    columns = {
        "": list(rows),
        "requests": [str(row.requests) for row in rows.values()],
        "errors": [str(row.errors) for row in rows.values()],
        "p50 s": [_seconds(row.p50_s) for row in rows.values()],
        "p95 s": [_seconds(row.p95_s) for row in rows.values()],
        "p99 s": [_seconds(row.p99_s) for row in rows.values()],
        "queue p50 ms": [_milliseconds(row.queue_p50_s) for row in rows.values()],
        "queue p95 ms": [_milliseconds(row.queue_p95_s) for row in rows.values()],
        "first token p50 ms": [_milliseconds(row.ttft_p50_s) for row in rows.values()],
        "next token p50 ms": [_milliseconds(row.inter_token_p50_s) for row in rows.values()],
        "tokens/s": ["-" if row.tokens_per_s is None else f"{row.tokens_per_s:.1f}" for row in rows.values()],
    }
    head = [name for name, cells in columns.items() if name in ALWAYS or set(cells) != {"-"}]
    body = list(zip(*(columns[name] for name in head), strict=True))
    widths = [max(map(len, column)) for column in zip(head, *body, strict=True)]
    return "\n".join(_line(cells, widths) for cells in (head, *body))


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    name, *figures = (
        cell.rjust(width) if place else cell.ljust(width)
        for place, (cell, width) in enumerate(zip(cells, widths, strict=True))
    )
    return "  ".join((name, *figures)).rstrip()


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _milliseconds(value: float | None) -> str:
    return "-" if value is None else f"{value * 1000.0:.1f}"
