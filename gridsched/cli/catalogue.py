"""`gridsched models --options`: what could be loaded, a row for each model and context, as the server plans it."""

from collections.abc import Iterator, Mapping
from typing import Any

from gridsched.cli.show import table
from gridsched.cli.words import size

HEADS = ("model", "context", "slots", "fits", "devices", "cache", "memory", "tokens/s", "would go")
FIGURES = ("context", "slots", "memory", "tokens/s")
SIGNS = (
    "context is of each slot, * as configured; ~ is an estimate; a row is loaded by its load_args (--json), with"
    " gridsched load MODEL --ctx CONTEXT*SLOTS --parallel SLOTS"
)


def rows(told: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    """The catalogue, the smallest context of each model first."""
    for model in told["models"]:
        if not model["rows"]:
            why = str(model["unavailable"] or "no row is as asked for")
            yield str(model["model"]), "-", "-", f"no: {why}", *("-" for _ in HEADS[4:])
        for row in model["rows"]:
            marks = "*" if row["configured"] else ""
            yield (
                str(model["model"]),
                f"{row['ctx']}{marks}",
                str(row["parallel"]),
                _fits(row),
                "+".join(row["devices"]),
                str(row["cache_type"]),
                size(int(row["total_bytes"])),
                _speed(row["speed"]),
                ", ".join(str(one["model"]) for one in row["evictions"]) or "-",
            )


def _fits(row: Mapping[str, Any]) -> str:
    if row["loaded"]:
        return "loaded"
    if row["fits_now"]:
        return "now"
    if row["evictions"]:
        return "by eviction"
    return "if idle" if row["fits_if_idle"] else "never"


def _speed(speed: Mapping[str, Any]) -> str:
    """Measured, else estimated, else unknown."""
    measured, estimated = speed["measured_tokens_per_s"], speed["estimated_tokens_per_s"]
    if measured is not None:
        return f"{'' if speed['confidence'] == 'measured here' else '~'}{measured:.0f}"
    return "-" if estimated is None else f"~{estimated:.0f}"


def show(told: Mapping[str, Any]) -> None:
    """Print it for a person."""
    table(HEADS, list(rows(told)), right=FIGURES)
    print(SIGNS)
