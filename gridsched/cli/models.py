"""`gridsched models`: what a running server has; with `--errors` how far off its estimates were, by architecture."""

import argparse
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import httpx

from gridsched.cli.client import NotOurs, Refused, add_server_arguments, connect, explain, fetch
from gridsched.cli.components import COMPONENTS
from gridsched.cli.table import size
from gridsched.library.names import printable

WORDS = {key.removesuffix("_bytes"): word for word, key in COMPONENTS}
SIGNS = "+ is planned beyond what was taken, - short of it; in per cent of what was taken"

Rows = Callable[[Mapping[str, Any]], Iterator[tuple[str, ...]]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    add_server_arguments(parser)
    parser.add_argument("--errors", action="store_true", help="how far off estimates were, by architecture")
    parser.add_argument("--json", action="store_true", help="the server's answer as it is")


def models(told: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    """A row a model, and one for a name over another, whose figures stand with its base."""
    yield "model", "state", "architecture", "device", "estimated", "measured"
    for model in told["models"]:
        first = (str(model["id"]), str(model["state"]), str(model["architecture"]) or "-")
        if base := model.get("base"):
            yield (*first[:2], f"served by {base}", "-", "-", "-")
            continue
        devices = model["devices"] or [{"name": "-", "estimated_bytes": None, "measured_bytes": None}]
        for device in devices:
            figures = (device["estimated_bytes"], device["measured_bytes"])
            yield (*first, str(device["name"]), *("-" if each is None else size(int(each)) for each in figures))
            first = ("", "", "")


def errors(told: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    """A row an architecture: how far off the whole was, then each component's farthest error."""
    yield "architecture", "launches", "median", "least", "most", "farthest error of each component"
    for row in told["errors"]:
        ratios = (f"{row[f'{name}_ratio']:+.2%}" for name in ("median", "least", "most"))
        parts = (
            f"{WORDS.get(name, name)} {_signed(int(part['worst_bytes']))}" for name, part in row["components"].items()
        )
        yield str(row["architecture"]) or "-", str(row["launches"]), *ratios, ", ".join(parts)


def _signed(count: int) -> str:
    return f"{'-' if count < 0 else '+'}{size(abs(count))}"


def table(rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    """Columns as wide as they need."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield printable("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def lines(told: Mapping[str, Any], chosen: Rows) -> list[str]:
    """The table for a person. Raises NotOurs where the answer is none of gridsched's."""
    try:
        return list(table(list(chosen(told))))
    except (KeyError, TypeError, ValueError, AttributeError):
        raise NotOurs("it sends no models") from None


def main(args: argparse.Namespace) -> int:
    """Print the models, or the errors. 0, or 1 when no server answers, or another program."""
    try:
        with connect(args) as client:
            told = fetch(client, "/api/models")
        if args.json:
            shown = [json.dumps(told["errors"] if args.errors else told)]
        elif args.errors and not told.get("errors"):
            shown = ["nothing was measured yet: a model is, once it has served a request"]
        else:
            shown = [*lines(told, errors), SIGNS] if args.errors else lines(told, models)
    except (httpx.HTTPError, NotOurs, Refused) as error:
        return explain(args, error)
    print("\n".join(shown))
    return 0
