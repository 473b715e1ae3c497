"""`gridsched load MODEL`: a model loaded as for a person, with a bar until it is ready; or what that would do."""

import argparse
from collections.abc import Mapping
from typing import Any

import httpx

from gridsched.cli.client import add_client_arguments, ask, run
from gridsched.cli.planned import rows
from gridsched.cli.streams import tell
from gridsched.cli.waiting import add_wait_arguments, until_done
from gridsched.cli.words import add_model_argument, duration, tokens
from gridsched.library.names import printable

EXAMPLES = """\
examples:
  gridsched load qwen3-8b                     stay until it is ready
  gridsched load qwen3-8b --ctx 16384 --ttl 2h
  gridsched load qwen3-8b --dry-run           who would go for it; exit code 1 where it does not load now

Ctrl-C leaves the load going on; gridsched cancel ends it.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.epilog = EXAMPLES
    add_client_arguments(parser)
    add_model_argument(parser, "a model or family, by any of its names")
    text = "tokens of context for all slots together, not as configured"
    parser.add_argument("--ctx", type=tokens, metavar="N", help=text)
    parser.add_argument("--parallel", type=tokens, metavar="N", help="how many slots share that context")
    parser.add_argument("--ttl", type=duration, metavar="2h", help="how long it stays when nobody uses it")
    parser.add_argument("--dry-run", action="store_true", help="say what it would do, and do nothing")
    add_wait_arguments(parser)


def main(args: argparse.Namespace) -> int:
    """Load it. 0 when it is ready, 1 when it is refused or fails."""
    if args.dry_run:
        return _dry(args)

    def show(told: Mapping[str, Any]) -> None:
        tell(printable(f"{told['model']} is ready"))

    return until_done(args, "load_model", show, model=args.model, ctx=args.ctx, parallel=args.parallel, ttl_s=args.ttl)


def _dry(args: argparse.Namespace) -> int:
    loads = False

    def asked(client: httpx.Client) -> Mapping[str, Any]:
        nonlocal loads
        told = ask(client, "plan_load", model=args.model, ctx=args.ctx, parallel=args.parallel)
        loads = bool(told.get("loads"))
        return told

    return run(args, asked, lambda told: tell("\n".join(map(printable, rows(told))))) or int(not loads)
