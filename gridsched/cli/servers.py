"""`gridsched servers add·list·use·remove`: servers by name, for all commands that ask one.

Owns the words. Must never print a key.
"""

import argparse
import json
import ssl
import sys
from pathlib import Path

from gridsched.cli import known
from gridsched.cli.known import Known, KnownError, Server
from gridsched.cli.show import say, table
from gridsched.cli.streams import tell
from gridsched.cli.where import NAME, address, is_loopback, say_what_was_cut
from gridsched.library.names import printable

FAILED, CONFIGURATION = 1, 2

EXAMPLES = """\
examples:
  gridsched servers add rig http://10.0.0.7:1234 --use --key-stdin < key
  gridsched ps                                    asks rig from now on
  gridsched ps --server http://127.0.0.1:1234     asks another one, this once

The key of a server is sent to that server alone. It is kept in the user's configuration folder, in a file for this
user alone; --key shows it to whoever lists this machine's processes, --key-stdin does not.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.epilog = EXAMPLES
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    add = _verb(verbs, "add", "name a server, or change what is known of one")
    add.add_argument("name", metavar="NAME", type=_name, help="letters, digits, - and _")
    add.add_argument("url", metavar="URL", help="its address: http://HOST:PORT, https://HOST, HOST:PORT")
    key = add.add_mutually_exclusive_group()
    key.add_argument("--key", metavar="KEY", help="the API key, or admin token, that it knows us by")
    key.add_argument("--key-stdin", action="store_true", help="the same, read from standard input")
    text = "the certificate of the authority that its own is from, where that is a private one"
    add.add_argument("--ca", metavar="FILE", type=Path, help=text)
    add.add_argument("--use", action="store_true", help="ask it where no server is named")
    shown = _verb(verbs, "list", "the servers that are named; * is the one in use")
    shown.add_argument("--json", action="store_true", help="as JSON, without the keys")
    use = _verb(verbs, "use", "ask this one where no server is named; none of them without a name")
    use.add_argument("name", metavar="NAME", nargs="?")
    _verb(verbs, "remove", "forget a server and its key").add_argument("name", metavar="NAME")


def _verb(
    verbs: "argparse._SubParsersAction[argparse.ArgumentParser]", name: str, text: str
) -> argparse.ArgumentParser:
    return verbs.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")


def _name(text: str) -> str:
    if NAME.fullmatch(text):
        return text
    raise argparse.ArgumentTypeError(f"{printable(text) or 'nothing'} is no name: letters, digits, - and _")


def main(args: argparse.Namespace) -> int:
    """Do what the verb says. 0; 1 when it cannot be done; 2 where the file that keeps it is damaged."""
    try:
        return VERBS[args.verb](known.read(), args)
    except KnownError as error:
        say(str(error))
        return CONFIGURATION


def _add(kept: Known, args: argparse.Namespace) -> int:
    try:
        url = address(args.url)
        key = _key(args)
        ca = _authority(args.ca)
    except (argparse.ArgumentTypeError, ValueError) as error:
        say(str(error))
        return CONFIGURATION
    say_what_was_cut(args.url, url)
    before = kept.servers.get(args.name)
    if before is not None and known.origin(before.url) == known.origin(url):  # its key is for no other address
        key, ca = key or before.key, ca or before.ca
    known.change(lambda now: now.with_server(args.name, Server(url, key, ca), use=args.use))
    if key and url.startswith("http:") and not is_loopback(url):
        say("its key goes over the network as it is; https:// would hide it")
    in_use = "; it is asked where no server is named" if args.use else f"; gridsched ps --server {args.name}"
    tell(printable(f"{args.name} is {url}{', with a key' if key else ''}{in_use}"))
    return 0


def _key(args: argparse.Namespace) -> str | None:
    """The key that was named. Raises ValueError for one that no header can carry."""
    key: str | None = args.key
    if args.key_stdin:
        key = sys.stdin.readline().strip()
    if key is not None and (not key or not key.isprintable()):
        raise ValueError("that is no key: it is empty, or has letters that cannot be sent")
    return key


def _authority(path: Path | None) -> str | None:
    """A certificate's file, whole. Raises ValueError where it is none."""
    if path is None:
        return None
    try:
        ssl.create_default_context(cafile=path)
    except OSError as error:
        raise ValueError(f"{path} is no certificate of an authority: {error.strerror or error}") from None
    return str(path.expanduser().absolute())


def _list(kept: Known, args: argparse.Namespace) -> int:
    if args.json:
        rows = [
            {"name": name, "url": each.url, "has_key": each.key is not None, "ca": each.ca, "used": name == kept.used}
            for name, each in sorted(kept.servers.items())
        ]
        tell(json.dumps({"servers": rows}))
        return 0
    found = [
        ("*" if name == kept.used else "", name, each.url, "yes" if each.key else "-", each.ca or "-")
        for name, each in sorted(kept.servers.items())
    ]
    if found:
        table(("use", "name", "url", "key", "ca"), found)
    else:
        tell("no servers are named; gridsched servers add NAME URL does it")
    return 0


def _use(kept: Known, args: argparse.Namespace) -> int:
    if args.name is not None and args.name not in kept.servers:
        return _unknown(kept, args.name)
    known.change(lambda now: Known(now.servers, args.name))
    told = f"{args.name} ({kept.servers[args.name].url})" if args.name else "that of the data directory"
    tell(printable(f"where no server is named, it is {told} from now on"))
    return 0


def _remove(kept: Known, args: argparse.Namespace) -> int:
    if args.name not in kept.servers:
        return _unknown(kept, args.name)
    known.change(lambda now: now.without(args.name))
    tell(f"{args.name} is forgotten, and its key")
    return 0


def _unknown(kept: Known, name: str) -> int:
    say(f"no server is named {name}; there are {', '.join(sorted(kept.servers)) or 'none'}")
    return FAILED


VERBS = {"add": _add, "list": _list, "use": _use, "remove": _remove}
