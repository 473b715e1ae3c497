"""`gridsched release DEVICE…`: leased devices come back, and the models that had to go with them."""

import argparse
from collections.abc import Mapping
from typing import Any

import httpx

from gridsched.cli.client import add_client_arguments, ask, run
from gridsched.cli.streams import tell
from gridsched.cli.words import word
from gridsched.library.names import printable


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    add_client_arguments(parser)
    parser.add_argument("device", metavar="DEVICE", type=word, help="its name; all: every one that is leased")


def main(args: argparse.Namespace) -> int:
    """Give it back. 0, or 1 when it is not leased."""

    def asked(client: httpx.Client) -> Mapping[str, Any]:
        return ask(client, "release_gpus", device=args.device)

    return run(args, asked, show)


def show(told: Mapping[str, Any]) -> None:
    """Say what is back."""
    again = f"; loads again: {', '.join(told['loads_again'])}" if told["loads_again"] else ""
    tell(printable(f"{', '.join(told['devices']) or 'nothing'}: given back{again}"))
