"""`gridsched jobs`: who waits at a running server and why, who runs, and what else goes on. A row each."""

import argparse
from collections.abc import Iterator, Mapping
from typing import Any

from gridsched.cli.client import add_client_arguments, run, whole
from gridsched.cli.show import table

HEADS = ("state", "class", "job", "model", "what")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    add_client_arguments(parser)


def rows(told: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    """The rows for a person: those that run, those that wait, operations that run."""
    for state in ("running", "waiting"):
        for job in told[state]:
            yield state, str(job["class"]), str(job["job"]), str(job["model"]), str(job["text"])
    for one in told.get("operations", ()):
        if one["state"] != "running":
            continue
        model = (one.get("arguments") or {}).get("model", "-")
        yield str(one["state"]), "-", str(one["id"]), str(model), f"{one['verb']}: {one['text']}".rstrip(": ")


def show(told: Mapping[str, Any]) -> None:
    """Print the jobs."""
    found = list(rows(told))
    if found:
        table(HEADS, found, right=("job",))
    else:
        print("no jobs")


def main(args: argparse.Namespace) -> int:
    """Print the jobs. 0, or 1 when no server answers, or another program."""
    return run(args, lambda client: whole(client, "list_jobs", "waiting", "running", "operations"), show)
