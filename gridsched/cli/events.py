"""`gridsched events`: the decision log of a running server, a line a decision."""

import argparse
import json
import re
from collections.abc import Iterator, Mapping
from datetime import datetime, time, timedelta
from time import sleep
from typing import Any, cast

import httpx

from gridsched.cli.client import answered, connect
from gridsched.cli.failures import FAILURES, NotOurs, Refused, explain
from gridsched.cli.show import say
from gridsched.cli.streams import expect_reader
from gridsched.cli.where import add_server_arguments
from gridsched.cli.words import word
from gridsched.library.names import printable

LONGEST_SHOWN = 60
"""Characters of what is not ours that a sentence repeats."""

_AS_IT_IS = re.compile(r"\d+|\d+(\.\d+)?(ms|s|m|h|d)|start")
"""A number, a duration, or the word for the server's run."""

NOTHING: Mapping[str, object] = {}

SILENT_SECONDS = 45.0
"""A server that hangs says nothing for so long; one that is well says every 15 s that there is nothing new."""

AGAIN_SECONDS = 1.0
"""Between two tries to reach a server that has gone."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    add_server_arguments(parser)
    parser.add_argument("--follow", "-f", action="store_true", help="go on as decisions are made")
    text = "only since then: 5m ago, 11:20, 2026-12-01T11:20:27Z, start of the server's run, or after a line (its seq)"
    parser.add_argument("--since", type=since, metavar="WHEN", help=text)
    text = "only these (load, evict, lease …); may be given several times"
    parser.add_argument("--event", dest="events", action="append", metavar="EVENT", type=word, help=text)
    parser.add_argument("--class", dest="job_class", metavar="CLASS", type=word, help="only what is about this class")
    parser.add_argument("--model", metavar="MODEL", type=word, help="only what is about this model")
    parser.add_argument("--job", metavar="JOB", type=word, help="only what is about this job")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")


def since(text: str) -> str:
    """As the server takes it: a time that has no zone is one of this machine, the last one where it has no day. Raises
    ArgumentTypeError."""
    told = word(text)
    if _AS_IT_IS.fullmatch(told):
        return told
    try:
        now = datetime.now().astimezone()
        if "-" in told:
            return datetime.fromisoformat(told).astimezone().isoformat()
        at = datetime.combine(now.date(), time.fromisoformat(told)).astimezone()
        return (at if at <= now else at - timedelta(days=1)).isoformat()
    except (ValueError, OverflowError):
        raise argparse.ArgumentTypeError(
            f"{printable(text)} is no time such as 5m, 11:20 or 2026-12-01T11:20Z"
        ) from None


def sentence(line: Mapping[str, object]) -> str:
    """One decision for a person: `11:20:27.194 dispatch background step 1/32 -> nomic-embed`."""
    at = datetime.fromisoformat(str(line["time"])).astimezone()
    words = [at.strftime("%H:%M:%S.") + f"{at.microsecond // 1000:03d}", str(line["event"])]
    if line["event"] == "gap":
        return printable(f"{' '.join(words)}: {line.get('lost', 'some')} lines are kept no more, and were not read")
    words += [str(line[key]) for key in ("class", "kind") if key in line and not (key == "kind" and "step" in line)]
    if "step" in line:
        words.append(f"step {line['step']}/{line.get('steps', '?')}")
    if "model" in line:
        words.append(f"-> {line['model']}")
    if "device" in line:
        words.append(f"on {line['device']}")
    shown = {"seq", "time", "event", "class", "kind", "step", "steps", "model", "device"}
    words += [f"{key}={_plain(value)}" for key, value in line.items() if key not in shown]
    return printable(" ".join(words))


def _plain(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.3f}".rstrip("0").rstrip(".")
    return value if isinstance(value, str) else json.dumps(value, default=str)


def read_events(
    client: httpx.Client, *, since: str, follow: bool, only: Mapping[str, object] = NOTHING
) -> Iterator[Mapping[str, object]]:
    """The server's lines, oldest first; for ever with `follow`. `only` are its filters. Raises httpx.HTTPError,
    Refused, NotOurs, and BrokenPipeError where the server has nothing to say and nobody reads what is printed."""
    named = {**only, "since": since or None, "follow": "1" if follow else "0"}
    asked = {name: value for name, value in named.items() if value is not None}
    patience = httpx.Timeout(10.0, read=SILENT_SECONDS)
    told = cast("dict[str, Any]", asked)
    with client.stream("GET", "/api/events", params=told, timeout=patience) as answer:
        if answer.is_error:
            answer.read()
            answered(answer)
        if not answer.headers.get("content-type", "").startswith("text/event-stream"):
            raise NotOurs("it sends no events")
        for text in answer.iter_lines():
            if text.startswith("data:"):
                yield _decision(text[5:])
            elif text.startswith(":"):
                expect_reader()


def _decision(text: str) -> Mapping[str, object]:
    """One line of the log. Raises NotOurs."""
    try:
        line = json.loads(text)
        datetime.fromisoformat(line["time"])
        return {"event": line["event"], **line}
    except (ValueError, KeyError, TypeError):
        raise NotOurs(f"it sends {text.strip()[:LONGEST_SHOWN]}") from None


def lines(args: argparse.Namespace) -> Iterator[Mapping[str, object]]:
    """All lines that are wanted. With `--follow` a server that has gone is waited for, and taken up after its last
    line. Raises what `read_events` does."""
    since, has_begun, is_gone = args.since or "", False, False
    only = {"event": args.events, "class": args.job_class, "model": args.model, "job": args.job}
    while True:
        try:
            with connect(args) as client:
                for line in read_events(client, since=since, follow=args.follow, only=only):
                    since, has_begun, is_gone = _seq(line, since), True, False
                    yield line
        except (httpx.TransportError, Refused) as error:
            if not (args.follow and has_begun and _may_pass(error)):
                raise
        if not args.follow:
            return
        if not is_gone:
            is_gone = True
            say(f"the server at {args.server} has gone; this goes on when it is back")
        expect_reader()
        sleep(AGAIN_SECONDS)


def _may_pass(error: Exception) -> bool:
    return not isinstance(error, Refused) or error.code in ("starting", "draining")


def _seq(line: Mapping[str, object], before: str) -> str:
    seq = line.get("seq")
    return str(seq) if isinstance(seq, int) else before


def main(args: argparse.Namespace) -> int:
    """Print the log. 0 when it ends, 1 when no server answers, or another program."""
    try:
        for line in lines(args):
            print(json.dumps(line) if args.json else sentence(line), flush=True)
    except FAILURES as error:
        return explain(args, error)
    return 0
