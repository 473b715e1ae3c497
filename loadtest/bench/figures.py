"""From rounds to figures: medians, spreads, and pairs of one round.

Owns the arithmetic of a benchmark. Pure. Must never compare values of different rounds: what the machine did beside is
the same only within one. A round without a value counts in no figure, and where no round has one the figure is None.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

NOISE = 0.03
"""Two sides that differ by less are called the same, however steady the rounds: a ratio, from what a program compared
with itself shows here."""
SAME_SPREAD = 0.1
"""And only if no round says more than this: rounds that contradict one another show nothing, not even sameness."""
LEAST_ROUNDS = 5
"""With fewer nothing is decided: that four of a pair's rounds agree by chance happens to one figure in eight."""
DISSENT = 10
"""One round in so many may say the opposite."""


@dataclass(frozen=True, slots=True)
class Figure:
    """The median of some rounds, and the lowest and the highest of them."""

    median: float
    lowest: float
    highest: float


def figure(values: Sequence[float | None]) -> Figure | None:
    """Of the rounds that have a value; None where none has."""
    known = [value for value in values if value is not None]
    return Figure(median(known), min(known), max(known)) if known else None


def middle(values: Sequence[float | None]) -> float | None:
    """The median of the rounds that have a value."""
    found = figure(values)
    return found.median if found else None


def ratios(values: Sequence[float | None], reference: Sequence[float | None]) -> list[float | None]:
    """Round by round, value over reference. Raises ValueError where there are not as many of both."""
    return [value / base if value is not None and base else None for value, base in zip(values, reference, strict=True)]


def added(values: Sequence[float | None], reference: Sequence[float | None]) -> list[float | None]:
    """Round by round, value less reference. Raises ValueError where there are not as many of both."""
    return [
        value - base if value is not None and base is not None else None
        for value, base in zip(values, reference, strict=True)
    ]


def verdict(paired: Sequence[float | None], *, lower_is_better: bool) -> str:
    """What the ratios of two revisions say: "better", "worse", "same" or "undecided".

    Better or worse is what all rounds say, but for one in DISSENT, with a median beyond NOISE; the same is a median
    within NOISE and no round beyond SAME_SPREAD. Else, and with fewer than LEAST_ROUNDS, it is undecided.
    """
    known = [value for value in paired if value is not None]
    if len(known) < LEAST_ROUNDS:
        return "undecided"
    found = median(known)
    if abs(found - 1.0) <= NOISE:
        return "same" if all(abs(value - 1.0) <= SAME_SPREAD for value in known) else "undecided"
    against = sum((value > 1.0) != (found > 1.0) for value in known)
    if against > len(known) // DISSENT:
        return "undecided"
    return "better" if (found < 1.0) == lower_is_better else "worse"


def knee(loads: Sequence[float], values: Sequence[float | None], limit: float) -> float | None:
    """The first load at which the value is over twice its value at the lowest one, or over `limit`; None: nowhere.

    `limit` is in the values' own unit. A load without a value is one that could not be carried, and is the knee.
    """
    first = next((value for value in values if value is not None), None)
    for load, value in zip(loads, values, strict=True):
        if value is None or value > limit or (first is not None and first > 0 and value > 2 * first):
            return load
    return None


def saturation(loads: Sequence[float], rates: Sequence[float | None], share: float = 0.95) -> float | None:
    """The first load that carries `share` of the highest rate: beyond it, more only wait. None without a rate."""
    highest = max((rate for rate in rates if rate is not None), default=None)
    if highest is None:
        return None
    return next(load for load, rate in zip(loads, rates, strict=True) if rate is not None and rate >= share * highest)
