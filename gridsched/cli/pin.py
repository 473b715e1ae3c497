"""`gridsched pin MODEL`: it is loaded, and loaded again whenever it is down (R7)."""

import argparse
from collections.abc import Mapping
from typing import Any

from gridsched.cli.client import add_client_arguments, ask, run
from gridsched.cli.streams import tell
from gridsched.cli.words import add_model_argument
from gridsched.library.names import printable


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    add_client_arguments(parser)
    add_model_argument(parser)


def main(args: argparse.Namespace) -> int:
    """Pin it. 0 when the server has agreed, 1 when it refuses."""
    return run(args, lambda client: ask(client, "pin_model", model=args.model), show)


def show(told: Mapping[str, Any]) -> None:
    """Say how it stands."""
    loads = "" if told.get("state") == "ready" else f"; it is {told['state']} and loads by itself"
    tell(printable(f"{told['model']} is pinned{loads}"))
