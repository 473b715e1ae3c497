"""`gridsched downloads`: what the server fetches from the hub, what it has fetched, and what was broken off."""

import argparse
from collections.abc import Mapping
from typing import Any

from gridsched.cli.client import add_client_arguments, run, whole
from gridsched.cli.show import table
from gridsched.cli.streams import tell
from gridsched.cli.words import size_or_none, span

HEADS = ("download", "state", "repository", "done", "size", "left", "what")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    add_client_arguments(parser)


def main(args: argparse.Namespace) -> int:
    """List them. 0, or 1 when no server answers."""
    return run(args, lambda client: whole(client, "list_downloads", "downloads"), show)


def show(told: Mapping[str, Any]) -> None:
    """Print them."""
    rows = [
        (
            str(one["id"]),
            str(one["state"]),
            str(one["repo"]),
            size_or_none(one["done_bytes"]),
            size_or_none(one["size_bytes"]),
            span(one["rest_s"]),
            str(one["text"]),
        )
        for one in told["downloads"]
    ]
    if rows:
        table(HEADS, rows, right=("done", "size", "left"))
    else:
        tell("no downloads")
