"""The server of this machine's data directory: where it listens, and the admin token that it knows us by (H6).

Must never send the token anywhere else: only to the address that the directory's owner has written there. At the same
port of another address of this machine somebody else may listen.
"""

import argparse
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from gridsched.cli.client import ask as client_ask
from gridsched.cli.client import run
from gridsched.cli.failures import explain
from gridsched.cli.known import KnownError
from gridsched.cli.show import say
from gridsched.cli.where import choose, is_at
from gridsched.settings.admin_token import FILE, read_admin_token
from gridsched.settings.paths import DataDirError, Holder, data_dir_path, owner_of


class NotHere(Exception):
    """There is no such server here, or no credential for it; one sentence."""


def ask(args: argparse.Namespace, verb: str, shown: Callable[[Mapping[str, Any]], None]) -> int:
    """Have the server do what changes it, and show what is answered; the exit code."""
    try:
        _find(args)
    except (NotHere, DataDirError) as error:
        say(str(error))
        return 1
    except KnownError as error:
        return explain(args, error)
    return run(args, lambda client: client_ask(client, verb), shown)


def until_done(in_flight: int) -> str:
    """When what was asked for has come about."""
    return "" if not in_flight else f" once {in_flight} request{'s have' if in_flight > 1 else ' has'} ended"


def _find(args: argparse.Namespace) -> None:
    """Complete `server` and `api_key` from the data directory. Raises NotHere, DataDirError, KnownError."""
    choose(args)
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
