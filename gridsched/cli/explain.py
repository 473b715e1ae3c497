"""`gridsched explain JOB`: why a job waits and for how long, what would go for it, and what was decided about it."""

import argparse
import json
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote

import httpx

from gridsched.cli.client import NotOurs, Refused, add_server_arguments, connect, explain, fetch
from gridsched.cli.events import sentence
from gridsched.cli.table import size
from gridsched.library.names import printable


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    add_server_arguments(parser)
    parser.add_argument("job", metavar="JOB", help="its number: X-Gridsched-Job-Id of the answer, or from `jobs`")
    parser.add_argument("--json", action="store_true", help="the server's answer as it is")


def rows(told: Mapping[str, Any]) -> Iterator[str]:
    """The lines for a person. Raises NotOurs where the answer is none of gridsched's."""
    try:
        yield (
            f"job {told['job']} {told['state']}: {told['text']}"
            if told["text"] != "over"
            else f"job {told['job']} is over"
        )
        if told["plan"] is not None:
            yield from _plan(told["plan"])
        yield from (f"  {sentence(line)}" for line in told["story"])
    except (KeyError, TypeError, ValueError, AttributeError):
        raise NotOurs("it sends no job") from None


def _plan(plan: Mapping[str, Any]) -> Iterator[str]:
    needs = ", ".join(f"{size(need)} of {device}" for device, need in plan["needs"].items())
    live = "" if plan["live"] else ", not yet"
    yield f"plan{live}: {plan['ctx_size']} tokens, {plan['parallel']} slots, {needs}"
    for one in plan["victims"]:
        terms = " ".join(f"{name}={value}" for name, value in one["terms"].items())
        steps = f", {one['steps']} steps end first" if one["steps"] else ""
        yield f"  {one['model']} goes: {size(one['bytes'])}{steps}{' ' if terms else ''}{terms}"


def main(args: argparse.Namespace) -> int:
    """Print what is known of the job. 0, or 1 when nobody knows it, or no server answers."""
    try:
        with connect(args) as client:
            told = fetch(client, f"/api/jobs/{quote(args.job, safe='')}")
        lines = [json.dumps(told)] if args.json else [printable(row) for row in rows(told)]
    except (httpx.HTTPError, NotOurs, Refused) as error:
        return explain(args, error)
    print("\n".join(lines))
    return 0
