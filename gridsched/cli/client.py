"""What the client commands share: where the server is, and how to say that it is not there, or is something else."""

import argparse
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import httpx

from gridsched.library.names import printable
from gridsched.settings.admin_token import read_admin_token
from gridsched.settings.paths import DataDirError, Holder, data_dir_path, owner_of

DEFAULT_URL = "http://127.0.0.1:1234"


ANSWER_SECONDS = 20.0
"""What a command asks takes a server no second; a script must not wait for ever on one that hangs."""


class NotOurs(Exception):
    """What answers is no gridsched; the sentence says how that is known."""


class Refused(Exception):
    """The server answers that it will not, or cannot; the sentence and the code are its own."""

    def __init__(self, message: str, code: str = "") -> None:
        super().__init__(message)
        self.code = code


def add_server_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare `--server`, None where none is named, which leaves it to be found; and `--api-key`."""
    url = os.environ.get("GRIDSCHED_URL") or None
    shown = (url or "the data directory's").replace("%", "%%")
    parser.add_argument("--server", metavar="URL", type=_url, default=url, help=f"the server (GRIDSCHED_URL; {shown})")
    key = os.environ.get("GRIDSCHED_API_KEY")
    parser.add_argument("--api-key", metavar="KEY", default=key, help="sent as a bearer token (GRIDSCHED_API_KEY)")


def _url(text: str) -> str:
    """A server's address. Raises ArgumentTypeError."""
    try:
        url = httpx.URL(text)
        if url.scheme in ("http", "https") and url.host and (url.port or 0) < 2**16:
            return text
    except httpx.InvalidURL:
        pass
    raise argparse.ArgumentTypeError(f"{printable(text) or 'nothing'} is no address such as {DEFAULT_URL}")


def usual_server(data_dir: Path | None = None, named: str | None = None) -> tuple[str, str | None]:
    """Where the server of the data directory listens, unless another was named, and the admin token that it knows us
    by, which goes nowhere else (H6); else the one that was named, or where one listens that was told nothing, and
    none."""
    with suppress(DataDirError):
        path = data_dir_path(data_dir, os.environ)
        if (owner := owner_of(path)) is not None and owner.port and (named is None or is_at(owner, named)):
            return owner.url, read_admin_token(path)
    return named or DEFAULT_URL, None


def is_at(owner: Holder, server: str) -> bool:
    """Whether an address is that of the server of a data directory, which has told another name of it."""
    url = httpx.URL(server)
    return url.port == owner.port and (_is_loopback(url.host) or url.host == owner.host)


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def connect(args: argparse.Namespace) -> httpx.Client:
    """A client for the server that the arguments name, else the usual one, which is put down in them. Never through a
    proxy of the environment."""
    if not args.server or not args.api_key:
        args.server, token = usual_server(getattr(args, "data_dir", None), args.server)
        args.api_key = args.api_key or token
    headers = {b"Authorization": f"Bearer {args.api_key}".encode()} if args.api_key else {}
    return httpx.Client(base_url=args.server, headers=headers, trust_env=False, timeout=httpx.Timeout(10.0, read=None))


def fetch(client: httpx.Client, path: str, method: str = "GET") -> Mapping[str, Any]:
    """The JSON object at a path, or that is answered there. Raises httpx.HTTPError, Refused and NotOurs."""
    answer = client.request(method, path, timeout=ANSWER_SECONDS)
    try:
        told = answer.json()
    except ValueError:
        told = None
    if answer.is_success and isinstance(told, dict):
        return told
    if answer.status_code not in (401, 403) and isinstance(told, dict) and isinstance(told.get("error"), dict):
        raise Refused(str(told["error"].get("message", "")), str(told["error"].get("code", "")))
    answer.raise_for_status()
    raise NotOurs("it sends no JSON object")


def explain(args: argparse.Namespace, error: httpx.HTTPError | NotOurs | Refused) -> int:
    """Say why there is no answer, or none of ours, and what to do; the exit code."""
    match error:
        case httpx.HTTPStatusError(response=answer) if answer.status_code in (401, 403):
            sentence = f"the server at {args.server} wants another key ({answer.status_code}); name it with --api-key"
        case httpx.HTTPStatusError(response=answer):
            sentence = f"the server at {args.server} answers {answer.status_code} here; is it a gridsched?"
        case Refused():
            sentence = str(error)
        case httpx.ReadTimeout():
            sentence = f"the server at {args.server} does not answer within {ANSWER_SECONDS:g} s: it hangs"
        case NotOurs():
            sentence = f"what answers at {args.server} is no gridsched: {error}"
        case _:
            sentence = (
                f"no server answers at {args.server} ({error}); start one (gridsched serve) or name it (--server)"
            )
    print(f"gridsched: {printable(sentence)}", file=sys.stderr)
    return 1
