"""`gridsched unpin MODEL`: it stays loaded as long as nothing else needs its place."""

import argparse
from collections.abc import Mapping
from typing import Any

from gridsched.cli.client import ask, run
from gridsched.cli.pin import add_arguments
from gridsched.cli.streams import tell
from gridsched.library.names import printable

__all__ = ["add_arguments", "main"]


def main(args: argparse.Namespace) -> int:
    """Unpin it. 0 when the server has agreed, 1 when it refuses."""
    return run(args, lambda client: ask(client, "unpin_model", model=args.model), show)


def show(told: Mapping[str, Any]) -> None:
    """Say how it stands."""
    tell(printable(f"{told['model']} is no longer pinned; it is {told['state']}"))
