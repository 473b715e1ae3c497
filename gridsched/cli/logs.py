"""`gridsched logs MODEL`: the last lines that a model's engine has written, also when it is gone."""

import argparse
from collections.abc import Mapping
from typing import Any

import httpx

from gridsched.cli.client import add_client_arguments, ask, run
from gridsched.cli.show import say
from gridsched.cli.streams import tell
from gridsched.cli.words import add_model_argument, count
from gridsched.library.names import printable


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    add_client_arguments(parser)
    add_model_argument(parser, "by any of its names; gateway for what the server itself has warned of")
    parser.add_argument("--lines", "-n", type=count, metavar="N", help="the last so many")


def main(args: argparse.Namespace) -> int:
    """Print them. 0, or 1 when there are none, or no server answers."""

    def asked(client: httpx.Client) -> Mapping[str, Any]:
        return ask(client, "tail_logs", model=args.model, lines=args.lines)

    return run(args, asked, show)


def show(told: Mapping[str, Any]) -> None:
    """Print the lines, which do nothing to a terminal."""
    if not told["lines"]:
        say(f"{told['model']} has written nothing yet")
    for line in told["lines"]:
        tell(printable(str(line["text"] if isinstance(line, Mapping) else line)))
