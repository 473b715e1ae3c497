"""`gridsched models`: what a running server has; with `--errors` how far off its estimates were, by architecture; with
`--options` what could be loaded (`catalogue`)."""

import argparse
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from gridsched.cli import catalogue
from gridsched.cli.client import add_client_arguments, run, whole
from gridsched.cli.components import COMPONENTS
from gridsched.cli.show import table
from gridsched.cli.words import size, size_or_none
from gridsched.library.names import printable

WORDS = {key.removesuffix("_bytes"): word for word, key in COMPONENTS}
SIGNS = "+ is planned beyond what was taken, - short of it; in per cent of what was taken"

HEADS = ("model", "state", "fits", "size", "quant", "arch", "trained", "estimated", "measured")
FIGURES = ("size", "trained", "estimated", "measured", "launches", "median", "least", "most")

Rows = Callable[[Mapping[str, Any]], Iterator[tuple[str, ...]]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    add_client_arguments(parser)
    parser.add_argument("--errors", action="store_true", help="how far off estimates were, by architecture")
    parser.add_argument("--options", action="store_true", help="what could be loaded: a row for each context")
    parser.add_argument("--names", action="store_true", help="the names alone, one a line")


def models(told: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    """A row a model, and one for a name over another, whose figures stand with its base."""
    yield HEADS
    for model in told["models"]:
        if base := model.get("base"):
            yield str(model["id"]), str(model["state"]), f"served by {base}", *("-" for _ in HEADS[3:])
            continue
        yield (
            str(model["id"]),
            str(model["state"]),
            str(model["fits"]),
            size_or_none(model["size_bytes"] or None),
            str(model["quantization"] or "-"),
            str(model["architecture"] or "-"),
            str(model["ctx_train"] or "-"),
            size_or_none(model["estimated_bytes"]),
            size_or_none(model["measured_bytes"]),
        )


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


def show(told: Mapping[str, Any], chosen: Rows) -> None:
    """Print the table for a person."""
    heads, *rows = chosen(told)
    table(heads, rows, right=FIGURES)


def main(args: argparse.Namespace) -> int:
    """Print the models, the errors or the catalogue. 0, or 1 when no server answers, or another program."""
    if args.options:
        return run(args, lambda client: whole(client, "model_options", "models"), catalogue.show)

    def shown(told: Mapping[str, Any]) -> None:
        if args.names:
            print("\n".join(printable(str(model["id"])) for model in told["models"]))
        elif not args.errors and not told["models"]:
            print(
                "there is no model: put a GGUF file where the server looks, or gridsched download PUBLISHER/NAME QUANT"
            )
        elif not args.errors:
            show(told, models)
        elif told["errors"]:
            show(told, errors)
            print(SIGNS)
        else:
            print("nothing was measured yet: a model is, once it has served a request")

    return run(
        args, lambda client: whole(client, "list_models", "models"), shown, part="errors" if args.errors else None
    )
