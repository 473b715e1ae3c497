"""`gridsched config get·set·reload`: the configuration of a running server, and its file.

Owns how a person writes a key and a value. What they mean, and whether they may be so, is the server's to say.
"""

import argparse
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import httpx

from gridsched.cli.client import add_client_arguments, ask, preview, run
from gridsched.cli.failures import CONFIGURATION
from gridsched.cli.show import say, table
from gridsched.cli.streams import tell
from gridsched.cli.words import word
from gridsched.library.names import printable

_PLAIN = re.compile(r"true|false|null|-?\d+(\.\d+)?|[\[{\"].*", re.DOTALL)

EXAMPLES = """\
examples:
  gridsched config get models.tiny
  gridsched config set models.tiny.ctx_size=8192 scheduler.hot_window=10m
  gridsched config set 'models.tiny.aliases=["gpt-4o"]' --unset models.old --dry-run
  gridsched config set 'models["qwen2.5"].ctx_size=8192'

A value is true, false, null, a number, JSON, or else a text. The file keeps its comments; a backup stays beside it.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.epilog = EXAMPLES
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    get = _verb(verbs, "get", "what is configured, defaults too, and whether what runs is what is on disk")
    get.add_argument("key", metavar="KEY", nargs="?", type=_way, help="only this, and what is below it")
    get.add_argument("--text", action="store_true", help="the file itself, secrets hidden; for admins")
    put = _verb(verbs, "set", "change the file, and take the change over")
    put.add_argument("pairs", metavar="KEY=VALUE", nargs="*", type=_pair, help="this key is this from now on")
    put.add_argument("--unset", action="append", default=[], metavar="KEY", type=_way, help="take this key out")
    again = _verb(verbs, "reload", "have the file read again, and taken over where it is right")
    for each in (put, again):
        each.add_argument("--dry-run", action="store_true", help="only say what would change")


def _verb(
    verbs: "argparse._SubParsersAction[argparse.ArgumentParser]", name: str, text: str
) -> argparse.ArgumentParser:
    parser = verbs.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
    add_client_arguments(parser)
    return parser


def main(args: argparse.Namespace) -> int:
    """Do what the verb says. 0; 1 where the server refuses it, or does not answer."""
    return VERBS[args.verb](args)


def _get(args: argparse.Namespace) -> int:
    def show(told: Mapping[str, Any]) -> None:
        if args.text:
            tell(str(told["text"] or "# the file is shown to admins only, and only where it is one").rstrip("\n"))
            return
        place = told["path"] if told["exists"] else f"{told['path']} is not there: all of it is default"
        say(f"{place}{'' if told['runs_as_written'] else '; what runs is another'}")
        if told["error"]:
            say(str(told["error"]))
        rows = [(_dotted(way), json.dumps(value)) for way, value in _leaves((), told["settings"]) if _under(way, args)]
        table(("key", "value"), rows)

    return run(args, lambda client: ask(client, "get_config"), show)


def _under(way: Sequence[str], args: argparse.Namespace) -> bool:
    return args.key is None or tuple(way[: len(args.key)]) == tuple(args.key)


def _leaves(way: tuple[str, ...], value: object) -> Iterator[tuple[tuple[str, ...], object]]:
    if isinstance(value, Mapping) and value:
        for key, below in value.items():
            yield from _leaves((*way, str(key)), below)
    else:
        yield way, value


def _set(args: argparse.Namespace) -> int:
    put: dict[str, Any] = {}
    try:
        for way, value in args.pairs:
            _put(put, way, value)
    except TypeError:
        say("one key cannot be a value and have keys below it")
        return CONFIGURATION

    def asked(client: httpx.Client) -> Mapping[str, Any]:
        do = preview if args.dry_run else ask
        return do(client, "set_config", set=put or None, unset=args.unset or None)

    return run(args, asked, _changed)


def _reload(args: argparse.Namespace) -> int:
    return run(args, lambda client: ask(client, "reload_config", dry_run=args.dry_run or None), _changed)


def _changed(told: Mapping[str, Any]) -> None:
    """Print what has changed, or would."""
    changes = told["changes"] if "changes" in told else told["details"].get("changes", ())  # of a plan
    rows = [(str(one["key"]), _short(one["before"]), _short(one["after"])) for one in changes]
    if rows:
        table(("key", "before", "after"), rows)
    tell(printable(str(told["text"])))
    if told.get("needs_restart"):
        tell(printable(f"after a restart only: {', '.join(told['needs_restart'])}"))


def _short(value: object) -> str:
    return "-" if value is None else value if isinstance(value, str) else json.dumps(value)


VERBS = {"get": _get, "set": _set, "reload": _reload}


# --- what a person writes -------------------------------------------------------------------------------------------

_PART = re.compile(r'\.?(?:\["((?:[^"\\]|\\.)*)"\]|([^.\[\]="]+))')


def _way(text: str) -> list[str]:
    """The parts of `models.tiny.ctx_size`, or of `models["qwen2.5"].ctx_size`. Raises ArgumentTypeError."""
    parts: list[str] = []
    at = 0
    while at < len(word(text)):
        match = _PART.match(text, at)
        if match is None or (at == 0 and text.startswith(".")):
            raise argparse.ArgumentTypeError(f'{printable(text)} is no key such as models.tiny or models["qwen2.5"]')
        parts.append(match[2] if match[1] is None else json.loads(f'"{match[1]}"'))
        at = match.end()
    return parts


def _pair(text: str) -> tuple[list[str], object]:
    """A key and its value. Raises ArgumentTypeError."""
    match = re.fullmatch(r'((?:\["(?:[^"\\]|\\.)*"\]|[^=\["])+)=(.*)', text, re.DOTALL)
    if match is None:
        raise argparse.ArgumentTypeError(f"{printable(text)} is no KEY=VALUE")
    value: object = match[2]
    if _PLAIN.fullmatch(match[2]):
        try:
            value = json.loads(match[2])
        except ValueError:
            raise argparse.ArgumentTypeError(f"{printable(match[2])} begins like JSON, and is none") from None
    return _way(match[1]), value


def _put(into: dict[str, Any], way: Sequence[str], value: object) -> None:
    """Raises TypeError where a key is below a value."""
    *above, last = way
    for key in above:
        into = into.setdefault(key, {})
    into[last] = value


def _dotted(way: Sequence[str]) -> str:
    told = ""
    for part in way:
        told += f".{part}" if re.fullmatch(r"[^.\[\]=\"]+", part) else f"[{json.dumps(part)}]"
    return told.removeprefix(".")
