"""`gridsched plan MODEL`: what a load of a model would do now, without doing it; or the refusal with its arithmetic.

Asks the running server. Where none answers, and none was named, the same is worked out for a server that had just been
started here, with the configuration and the devices as they are.
"""

import argparse
import json
from collections.abc import Mapping
from typing import Any

import httpx

from gridsched.cli.arguments import add_machine_arguments
from gridsched.cli.client import ask, connect
from gridsched.cli.failures import FAILURES, NotOurs, Refused, explain
from gridsched.cli.planned import rows
from gridsched.cli.show import say
from gridsched.cli.where import add_server_arguments, choose
from gridsched.cli.words import add_model_argument
from gridsched.library.names import printable

LOADS, NOT_NOW, CONFIGURATION = 0, 1, 2
_ASKED_WRONGLY = frozenset(("model_not_found", "model_unavailable", "invalid_request"))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.epilog = "--config, --models-dir, --data-dir and --sim count where no server answers and none was named."
    add_server_arguments(parser, data_dir=False)
    add_machine_arguments(parser)
    add_model_argument(parser, "a model or family, by any of its names")
    parser.add_argument("--ctx", type=int, metavar="N", help="with so many tokens for all slots, not as configured")
    parser.add_argument("--json", action="store_true", help="the answer as it is")


def main(args: argparse.Namespace) -> int:
    """Print the plan. 0 where it loads or is loaded, 1 where it does not now, or no server answers that was named, 2
    for a model or context that cannot be, and for a configuration that is wrong."""
    try:
        choose(args)
        is_named = args.server is not None
        told, server, asked = _ask(args), args.server, f"asked    {args.server}"
    except httpx.ConnectError as error:
        if is_named:
            return explain(args, error)
        found = _here(args)
        if isinstance(found, int):
            say(f"no server answers at {args.server}: this was about one that would be started here")
            return found
        told, server = found, None
        asked = (
            f"note     no server answers at {args.server}: this is what one would do that had just been started here"
        )
    except FAILURES as error:
        code = explain(args, error)
        return CONFIGURATION if isinstance(error, Refused) and error.code in _ASKED_WRONGLY else code
    try:
        lines = [json.dumps({**told, "server": server})] if args.json else [*map(printable, rows(told)), asked]
        loads = bool(told["loads"])
    except (KeyError, TypeError, ValueError, AttributeError):
        return explain(args, NotOurs("it sends no plan"))
    print("\n".join(lines))
    return LOADS if loads else NOT_NOW


def _ask(args: argparse.Namespace) -> Mapping[str, Any]:
    """What the server says. Raises httpx.HTTPError, Refused and NotOurs."""
    with connect(args) as client:
        return ask(client, "plan_load", model=args.model, ctx=args.ctx)


def _here(args: argparse.Namespace) -> Mapping[str, Any] | int:
    """What a server would say that had just been started here; or, said already, why there could be none."""
    from gridsched.app import StartError, plan_here  # noqa: PLC0415 - whoever asks a server does not wait for one
    from gridsched.cli.options import machine, refuse, settings_of  # noqa: PLC0415 - the same

    try:
        settings, _ = settings_of(args)
        with machine(args, settings, or_visit=True) as found:
            return plan_here(found.parts, settings, args.model, args.ctx)
    except StartError as error:
        return refuse(error)
