"""`gridsched jobs`: who waits at a running server and why, and who runs. One line a job."""

import argparse
import json
from collections.abc import Iterator, Mapping

import httpx

from gridsched.cli.client import NotOurs, Refused, add_server_arguments, connect, explain, fetch
from gridsched.library.names import printable


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    add_server_arguments(parser)
    parser.add_argument("--json", action="store_true", help="the server's answer as it is")


def rows(told: Mapping[str, object]) -> Iterator[str]:
    """The lines for a person. Raises NotOurs where the answer is none of gridsched's."""
    try:
        for state in ("running", "waiting"):
            for job in told[state]:  # type: ignore[attr-defined]  # JSON
                yield printable(f"{state} {job['class']:<11} job {job['job']:<6} {job['model']}: {job['text']}")
    except (KeyError, TypeError, ValueError):
        raise NotOurs("it sends no jobs") from None


def main(args: argparse.Namespace) -> int:
    """Print the jobs. 0, or 1 when no server answers, or another program."""
    try:
        with connect(args) as client:
            told = fetch(client, "/api/jobs")
        lines = [json.dumps(told)] if args.json else list(rows(told)) or ["no jobs"]
    except (httpx.HTTPError, NotOurs, Refused) as error:
        return explain(args, error)
    print("\n".join(lines))
    return 0
