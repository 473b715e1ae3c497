"""`gridsched benchmark MODEL`: how fast it is at one answer and at several, and how many slots are worth running."""

import argparse
from collections.abc import Iterator, Mapping
from typing import Any

from gridsched.cli.client import add_client_arguments
from gridsched.cli.show import table
from gridsched.cli.streams import tell
from gridsched.cli.waiting import add_wait_arguments, until_done
from gridsched.cli.words import add_model_argument
from gridsched.library.names import printable

HEADS = ("devices", "at once", "each tokens/s", "in sum", "first token")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    add_client_arguments(parser)
    add_model_argument(parser)
    text = "only on these together; else on each way to place it"
    parser.add_argument("--device", dest="devices", action="append", metavar="DEVICE", help=text)
    add_wait_arguments(parser)


def main(args: argparse.Namespace) -> int:
    """Measure. 0 when it is done, 1 when it is refused or fails."""
    return until_done(args, "benchmark_model", show, model=args.model, devices=args.devices)


def show(told: Mapping[str, Any]) -> None:
    """Print what was measured."""
    table(HEADS, list(_rows(told)), right=HEADS[1:])
    slots = told["slots_worth_running"]
    tell(printable(f"{told['model']}: {'1 slot is' if slots == 1 else f'{slots} slots are'} worth running"))


def _rows(told: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    for result in told["results"]:
        devices = "+".join(map(str, result["devices"]))
        if result["inputs_per_s"] is not None:
            yield devices, "-", "-", f"{result['inputs_per_s']:g} texts/s", "-"
        for level in result["levels"]:
            yield (
                devices,
                str(level["streams"]),
                f"{level['tokens_per_s']:.1f}",
                f"{level['total_tokens_per_s']:.1f}",
                f"{level['first_token_s']:.2f}s",
            )
