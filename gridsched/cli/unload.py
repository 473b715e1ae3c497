"""`gridsched unload MODEL`: it goes when its running steps have ended; with `--force` at once, which asks first."""

import argparse
import sys
from collections.abc import Mapping
from typing import Any

from gridsched.cli.client import add_client_arguments, connect, preview
from gridsched.cli.failures import FAILED, FAILURES, explain
from gridsched.cli.show import agrees, say
from gridsched.cli.streams import tell
from gridsched.cli.waiting import add_wait_arguments, until_done
from gridsched.cli.words import add_model_argument, size
from gridsched.library.names import printable


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    add_client_arguments(parser)
    add_model_argument(parser)
    parser.add_argument("--force", action="store_true", help="break off what runs there, and let what waits load it")
    parser.add_argument("--yes", "-y", action="store_true", help="do not ask before --force")
    add_wait_arguments(parser)


def main(args: argparse.Namespace) -> int:
    """Have it go. 0 when its memory is back, 1 when it is refused, or nobody agreed to force it."""
    if args.force and not args.yes and sys.stdin.isatty():
        if code := _told(args):
            return code
        if not agrees(f"Break off what {args.model} is answering?"):
            say("nothing was done")
            return FAILED
    return until_done(args, "unload_model", show, **_given(args))


def _given(args: argparse.Namespace) -> Mapping[str, Any]:
    return {"model": args.model, "force": args.force or None}


def _told(args: argparse.Namespace) -> int:
    """Say what it would come to, beside the output; the exit code."""
    try:
        with connect(args) as client:
            say(str(preview(client, "unload_model", **_given(args)).get("text", "")))
    except FAILURES as error:
        return explain(args, error)
    return 0


def show(told: Mapping[str, Any]) -> None:
    """Say that it is gone."""
    if told.get("was") == "cold":
        tell(printable(f"{told['model']} was not loaded"))
        return
    freed = told.get("freed_bytes")
    back = f"; {size(sum(freed.values()) if isinstance(freed, dict) else freed)} are free again" if freed else ""
    tell(printable(f"{told['model']} is unloaded{back}"))
