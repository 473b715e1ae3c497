"""The figures of a refusal in lines for a person: who needs, has and holds what, and what would fit (L7). Pure.

Owns these lines. Whatever is missing, or is of a later version, is left out.
"""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from gridsched.cli.words import size

LOG_LINES = 8
"""Of an engine that has failed: its last ones say why."""


def lines(detail: Mapping[str, Any]) -> list[str]:
    """All that is told under `error.gridsched`, or of a plan's refusal."""
    told: list[str] = []
    for part in (_faults, _devices, _holders, _most, _advice):
        with suppress(KeyError, TypeError, ValueError, AttributeError):
            told += part(detail)
    return told


def _faults(detail: Mapping[str, Any]) -> Iterator[str]:
    faults = tuple(detail.get("faults") or ())
    yield from (f"fault    {one}" for one in faults if len(faults) > 1)


def _devices(detail: Mapping[str, Any]) -> Iterator[str]:
    for row in detail.get("per_device", ()):
        held = [
            f"{name} {size(row[key])}"
            for name, key in (("others", "external_bytes"), ("pinned", "pinned_bytes"), ("lost", "lost_bytes"))
            if row.get(key)
        ]
        beside = f" ({', '.join(held)})" if held else ""
        yield (
            f"  {row['device']}: needs {size(row['required_bytes'])}, {size(row['available_bytes'])} can be had{beside}"
        )


def _holders(detail: Mapping[str, Any]) -> Iterator[str]:
    for one in detail.get("holders", ()):
        yield f"held     {one['model'] or 'programs outside'}: {size(one['bytes'])} of {one['device']}, {one['state']}"


def _most(detail: Mapping[str, Any]) -> Iterator[str]:
    if "max_ctx_that_fits" in detail:
        tokens, slots = detail["max_ctx_that_fits"], detail["max_parallel_that_fits"]
        most = " or ".join(f"{count} {what}" for count, what in ((tokens, "tokens in all"), (slots, "slots")) if count)
        yield f"at most  {most or 'nothing: not even the shortest context with one slot'}"


def _advice(detail: Mapping[str, Any]) -> Iterator[str]:
    yield from (f"log      {line}" for line in tuple(detail.get("log_tail") or ())[-LOG_LINES:])
    suggestions = tuple(detail.get("suggestions") or ())
    yield from (f"try      {one}" for one in suggestions)
    if not suggestions and detail.get("do"):
        yield f"try      {detail['do']}"
    yield from (f"note     {one}" for one in detail.get("notes") or ())
