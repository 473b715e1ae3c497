"""`gridsched ps`: what is loaded at a running server, and how much of it is busy. A row a process, the queues below."""

import argparse
from collections.abc import Iterator, Mapping
from typing import Any

from gridsched.cli.client import add_client_arguments, ask, run
from gridsched.cli.show import table
from gridsched.cli.words import size_or_none, span
from gridsched.library.names import printable

HEADS = ("model", "state", "tier", "slots", "devices", "measured", "estimated", "idle", "expires")
FIGURES = ("slots", "measured", "estimated", "idle", "expires")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    add_client_arguments(parser)


def rows(told: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    """A row a process."""
    for one in told["instances"]:
        slots = one["slots"]
        is_idle = one["state"] == "ready" and not slots["busy"]
        yield (
            str(one["model"]),
            str(one["state"]) + (", paused" if one["paused"] else ""),
            str(one["tier"]),
            f"{slots['busy']}/{slots['total']}",
            "+".join(map(str, one["devices"])),
            size_or_none(one["measured_bytes"]),
            size_or_none(one["estimated_bytes"]),
            span(one["idle_s"]) if is_idle else "-",
            span(one.get("expires_s")) if is_idle else "-",
        )


def queues(told: Mapping[str, Any]) -> str:
    """How many run and wait, in one line."""
    counts = (f"{name} {queue['running']} running, {queue['length']} waiting" for name, queue in told["queues"].items())
    return "; ".join(counts)


def show(told: Mapping[str, Any]) -> None:
    """Print it."""
    found = list(rows(told))
    if found:
        table(HEADS, found, right=FIGURES)
    else:
        print("nothing is loaded")
    print(printable(queues(told)))
    for name, failed in told["failed"].items():
        print(printable(f"{name} failed: {failed['reason']}; tried again in {span(failed['retry_after_s'])}"))
    for device in told["devices"]:
        if not device["available"]:
            print(printable(f"{device['name']} does not answer: {device['why']}"))
    if error := told.get("config_error"):
        print(printable(f"the configuration on disk is refused, and what was before runs on: {error.splitlines()[0]}"))
    if waiting := told.get("config_needs_restart"):
        print(printable(f"waits for a start of the server: {', '.join(waiting)}"))
    if told["draining"]:
        print("the server takes nobody new: it is draining")


def main(args: argparse.Namespace) -> int:
    """Print what is loaded. 0, or 1 when no server answers, or another program."""
    return run(args, lambda client: ask(client, "server_status"), show)
