"""Which server a command is for, and by what it knows us: `--server`, else `GRIDSCHED_URL`, else a `--data-dir` that is
named, else the one that `gridsched servers use` chose, else that of the data directory, else port 1234.

Owns that order, and that a secret goes to its own server alone (H6): a key that is kept with a server to that address,
the admin token to the owner of its data directory.
"""

import argparse
import os
import re
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import urlsplit

import httpx

from gridsched.cli import known
from gridsched.cli.arguments import a_path
from gridsched.cli.show import say
from gridsched.library.names import printable
from gridsched.settings.admin_token import read_admin_token
from gridsched.settings.paths import DataDirError, Holder, data_dir_path, owner_of

DEFAULT_URL = "http://127.0.0.1:1234"

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}")
"""What a server may be called: nothing that could be an address with a port, or a host with a domain."""

_BARE = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9_.-]+):[0-9]{1,5}(/.*)?")


def add_server_arguments(parser: argparse.ArgumentParser, *, data_dir: bool = True) -> None:
    """Declare `--server`, None where none is named, which leaves it to be found; and `--api-key`. Not `--data-dir`
    where the command has one of its own."""
    url = os.environ.get("GRIDSCHED_URL") or None
    shown = (url or "the one in use, else the data directory's").replace("%", "%%")
    text = f"the server, or its name among gridsched servers (GRIDSCHED_URL; {shown})"
    parser.add_argument("--server", metavar="URL", type=server, default=url, help=text)
    parser.add_argument("--api-key", metavar="KEY", help="sent as a bearer token (GRIDSCHED_API_KEY)")
    if data_dir:
        text = "of the server, where it is one of this machine (GRIDSCHED_DATA_DIR)"
        parser.add_argument("--data-dir", type=a_path, metavar="DIR", help=text)


def server(text: str) -> str:
    """A server's address, or the name of one that is known. Raises ArgumentTypeError."""
    if not NAME.fullmatch(text):
        return address(text)
    try:
        names = known.read().servers
    except known.KnownError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if text in names:
        return text
    there_are = f"; named are {', '.join(names)}" if names else ""
    raise argparse.ArgumentTypeError(f"{text} is no address such as {DEFAULT_URL}, and no named server{there_are}")


def address(text: str) -> str:
    """A server's address, as people write it: `host:port` is HTTP, and what clients of models are given (`/v1`) is not
    ours to ask at. Raises ArgumentTypeError."""
    whole = f"http://{text}" if _BARE.fullmatch(text) else text
    try:
        url = httpx.URL(whole)
        is_one = url.scheme in ("http", "https") and url.host and (url.port or 0) < 2**16
        if is_one and not url.userinfo and not url.query and "#" not in whole:
            parts = urlsplit(whole)
            return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/').removesuffix('/v1').rstrip('/')}"
    except (httpx.InvalidURL, ValueError):
        pass
    hint = "; a key is named with --api-key" if "@" in text else ""
    raise argparse.ArgumentTypeError(f"{printable(text) or 'nothing'} is no address such as {DEFAULT_URL}{hint}")


def choose(args: argparse.Namespace) -> None:
    """Put the named server that is meant down in the arguments, with its key and `ca`, where one is; and a key of the
    environment. Raises KnownError."""
    args.ca = None
    named, told = args.server, known.read()
    if named is None and getattr(args, "data_dir", None) is None:
        named = told.used
    found = told.servers.get(named or "") or (told.at(named) if named and not NAME.fullmatch(named) else None)
    if found is not None:
        args.ca = found.ca
        args.api_key = args.api_key or found.key
        args.server = found.url if named in told.servers else named
    args.api_key = args.api_key or os.environ.get("GRIDSCHED_API_KEY") or None


def usual_server(data_dir: Path | None = None, named: str | None = None) -> tuple[str, str | None]:
    """Where the server of the data directory listens, unless another was named, and the admin token that it knows us
    by, which goes nowhere else (H6); else the one that was named, or where one listens that was told nothing, and
    none."""
    with suppress(DataDirError):
        path = data_dir_path(data_dir, os.environ)
        if (owner := owner_of(path)) is not None and owner.port and (named is None or is_at(owner, named)):
            return owner.url, read_admin_token(path)
    return named or DEFAULT_URL, None


def is_here(args: argparse.Namespace) -> bool:
    """Whether the server that is asked is that of the data directory, and so sees this machine's processes."""
    with suppress(DataDirError):
        owner = owner_of(data_dir_path(args.data_dir, os.environ))
        return owner is not None and bool(owner.port) and is_at(owner, args.server)
    return False


def is_at(owner: Holder, server: str) -> bool:
    """Whether an address is that of the server of a data directory, which has told another name of it."""
    url = httpx.URL(server)
    return url.port == owner.port and (_is_loopback(url.host) or url.host == owner.host)


def is_loopback(url: str) -> bool:
    """Whether an address is one of this machine that no network sees."""
    return _is_loopback(httpx.URL(url).host)


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def say_what_was_cut(text: str, url: str) -> None:
    """That an address was taken for another one."""
    if text.rstrip("/").endswith("/v1"):
        say(f"taken as {url}: clients of models go to /v1, commands do not")
