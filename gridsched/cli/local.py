"""The server of this machine's data directory: where it listens, and the admin token that it knows us by (H6).

Must never send the token anywhere else: only to the address that the directory's owner has written there. At the same
port of another address of this machine somebody else may listen.
"""

import argparse
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import httpx

from gridsched.cli.client import NotOurs, Refused, add_server_arguments, connect, explain, fetch, is_at
from gridsched.cli.options import a_path, say
from gridsched.settings.admin_token import FILE, read_admin_token
from gridsched.settings.paths import DataDirError, Holder, data_dir_path, owner_of


class NotHere(Exception):
    """There is no such server here, or no credential for it; one sentence."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of a command for whoever may change a server."""
    add_server_arguments(parser)
    parser.add_argument("--data-dir", type=a_path, metavar="DIR", help="of the server (GRIDSCHED_DATA_DIR)")


def ask(args: argparse.Namespace, path: str, tell: Callable[[Mapping[str, Any]], None]) -> int:
    """Post to a path, and tell what is answered; the exit code."""
    try:
        _find(args)
        with connect(args) as client:
            tell(fetch(client, path, "POST"))
    except (NotHere, DataDirError) as error:
        say(str(error))
        return 1
    except (httpx.HTTPError, NotOurs, Refused) as error:
        return explain(args, error)
    return 0


def until_done(in_flight: int) -> str:
    """When what was asked for has come about."""
    return "" if not in_flight else f" once {in_flight} request{'s have' if in_flight > 1 else ' has'} ended"


def _find(args: argparse.Namespace) -> None:
    """Complete `server` and `api_key` from the data directory. Raises NotHere, DataDirError."""
    data_dir = data_dir_path(args.data_dir, os.environ)
    owner = owner_of(data_dir)
    if args.server is None:
        if owner is None or not owner.port:
            raise NotHere(
                f"no server runs on the data directory {data_dir}; name another with --data-dir, or a server (--server)"
            )
        args.server = owner.url
    if not args.api_key:
        args.server, args.api_key = _address_and_token(data_dir, owner, args.server)


def _address_and_token(data_dir: Path, owner: Holder | None, server: str) -> tuple[str, str]:
    if owner is None:
        raise NotHere(
            f"no server runs on the data directory {data_dir}, so there is no admin token for the one at {server}; name"
            " its data directory (--data-dir) or its token (--api-key)"
        )
    if not is_at(owner, server):
        raise NotHere(
            f"the server at {server} is not that of the data directory {data_dir}, so the admin token there is not for"
            " it; name its data directory (--data-dir) or its token (--api-key)"
        )
    token = read_admin_token(data_dir)
    if token is None:
        raise NotHere(f"there is no {data_dir / FILE} that this user, and nobody else, can read")
    return owner.url, token
