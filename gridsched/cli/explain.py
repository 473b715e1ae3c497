"""`gridsched explain JOB`: why a job waits and for how long, what would go for it, and what was decided about it."""

import argparse
from collections.abc import Iterator, Mapping
from typing import Any

from gridsched.cli.client import add_client_arguments, ask, is_operation, run
from gridsched.cli.events import sentence
from gridsched.cli.words import size, word
from gridsched.library.names import printable


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    add_client_arguments(parser)
    text = "its number: X-Gridsched-Job-Id of the answer, or from `jobs`; op-N is an operation"
    parser.add_argument("job", metavar="JOB", type=word, help=text)


def rows(told: Mapping[str, Any]) -> Iterator[str]:
    """The lines for a person."""
    if is_operation(told):
        yield from _operation(told)
        return
    yield f"job {told['job']} ({' '.join(_what(told))}) {told['state']}: {told['text']}"
    if told["plan"] is not None:
        yield from _plan(told["plan"])
    past = told.get("history")
    if past is not None:
        yield from _history(past)
    yield from (f"  {sentence(line)}" for line in told["story"])


def _what(told: Mapping[str, Any]) -> Iterator[str]:
    yield from (told[name] for name in ("class", "kind") if told.get(name))
    if told.get("model"):
        yield f"-> {told['model']}"


def _history(past: Mapping[str, Any]) -> Iterator[str]:
    """Each wait by the rule that held it, where there is more than the first line has told."""
    for one in past["held"]:
        times = f" in {one['waits']} waits" if one["waits"] > 1 else ""
        why = f": {one['why']}" if one["why"] else ""
        yield f"  waited {one['seconds']:g}s{times}, begun by {one['rule']}{why}"


def _operation(told: Mapping[str, Any]) -> Iterator[str]:
    yield f"{told['id']} {told['verb']} {told['state']}: {told['text']}".rstrip(": ")
    error = told.get("error")
    if error:
        yield f"  {error['message']}"


def _plan(plan: Mapping[str, Any]) -> Iterator[str]:
    needs = ", ".join(f"{size(need)} of {device}" for device, need in plan["needs"].items())
    live = "" if plan["live"] else ", not yet"
    yield f"plan{live}: {plan['ctx_size']} tokens, {plan['parallel']} slots, {needs}"
    for one in plan["victims"]:
        terms = " ".join(f"{name}={value}" for name, value in one["terms"].items())
        steps = f", {one['steps']} steps end first" if one["steps"] else ""
        yield f"  {one['model']} goes: {size(one['bytes'])}{steps}{' ' if terms else ''}{terms}"


def show(told: Mapping[str, Any]) -> None:
    """Print what is known of a job."""
    print("\n".join(printable(row) for row in rows(told)))


def main(args: argparse.Namespace) -> int:
    """Print what is known of the job. 0, or 1 when nobody knows it, or no server answers."""
    return run(args, lambda client: ask(client, "explain", job=args.job), show)
