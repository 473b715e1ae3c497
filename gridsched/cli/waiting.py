"""What commands share that wait until something is done: its progress, and Ctrl-C, after which it goes on without us.

Owns no verb. Must never end what was begun: `gridsched cancel` does.
"""

import argparse
from collections.abc import Callable, Mapping
from typing import Any

import httpx

from gridsched.cli.client import ask, follow, is_operation, run
from gridsched.cli.show import progress, say

Shown = Callable[[Mapping[str, Any]], None]


def add_wait_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the option not to wait."""
    parser.add_argument("--no-wait", action="store_true", help="come back at once; the answer names the operation")


def until_done(args: argparse.Namespace, verb: str, shown: Shown, **given: object) -> int:
    """Use a verb, and stay until it is done; show what it then says."""

    def asked(client: httpx.Client) -> Mapping[str, Any]:
        begun = ask(client, verb, **given)
        return begun if args.no_wait else stay(client, begun)

    def done(told: Mapping[str, Any]) -> None:
        if args.no_wait and is_operation(told):
            print(f"{told['id']} has begun; how it stands: gridsched explain {told['id']}")
        else:
            shown(result(told))

    return run(args, asked, done)


def follow_shown(client: httpx.Client, begun: Mapping[str, Any]) -> Mapping[str, Any]:
    """The end of what has begun, shown how far it comes."""
    with progress() as heard:
        return follow(client, begun, heard)


def result(told: Mapping[str, Any]) -> Mapping[str, Any]:
    """What the verb answers, be it of an operation that has ended."""
    return (told.get("result") or {}) if is_operation(told) else told


def stay(client: httpx.Client, begun: Mapping[str, Any]) -> Mapping[str, Any]:
    """The end of what has begun, shown how far it comes; Ctrl-C says that it goes on."""
    try:
        return follow_shown(client, begun)
    except KeyboardInterrupt:
        say(f"it goes on; gridsched explain {begun['id']} shows how it stands, gridsched cancel {begun['id']} ends it")
        raise
