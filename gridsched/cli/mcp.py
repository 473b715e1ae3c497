"""`gridsched mcp`: a server's tools, and its watchdog's, for programs that speak MCP over stdio.

Owns where the two are. The gateway is found as by every client command, anew for each call, because it may have been
started since. The watchdog is that of the data directory, where the gateway is that directory's too; its credential
goes to the process alone that holds the watchdog's lock there.
"""

import argparse
import fcntl
import json
import logging
import os
import signal
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from gridsched.cli.failures import CONFIGURATION
from gridsched.cli.known import KnownError
from gridsched.cli.show import say
from gridsched.cli.where import add_server_arguments, choose, is_at, usual_server
from gridsched.settings.paths import DataDirError, data_dir_path, owner_of

if TYPE_CHECKING:
    from gridsched.mcp.bridge import Address

LOCK = Path("watchdog") / "watchdog.lock"
TOKEN = "watchdog.token"  # noqa: S105 - the name of the file


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    add_server_arguments(parser)


def main(args: argparse.Namespace) -> int:
    """Serve on the standard streams until the client has gone."""
    import anyio  # noqa: PLC0415 - with the next it takes a second, which no other command should

    from gridsched.mcp.bridge import Bridge, Peer  # noqa: PLC0415 - the same

    logging.basicConfig(format="gridsched: %(message)s", level=logging.ERROR, stream=sys.stderr)
    try:
        choose(argparse.Namespace(**vars(args)))
    except KnownError as error:
        say(str(error))
        return CONFIGURATION
    # The thread that waits for the next line cannot be interrupted; the signal ends the process as it ends any other.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    bridge = Bridge(Peer("gateway", partial(gateway_of, args)), Peer("watchdog", partial(watchdog_of, args)))
    anyio.run(bridge.run, backend="trio")
    return 0


def gateway_of(args: argparse.Namespace) -> "Address":
    """Where the gateway is now. Raises Away."""
    from gridsched.mcp.bridge import Address, Away  # noqa: PLC0415 - as in main

    asked = argparse.Namespace(**vars(args))
    try:
        choose(asked)
    except KnownError as error:
        raise Away(str(error)) from None
    if not asked.server or not asked.api_key:
        asked.server, token = usual_server(asked.data_dir, asked.server)
        asked.api_key = asked.api_key or token
    return Address(asked.server.rstrip("/"), asked.api_key, asked.ca)


def watchdog_of(args: argparse.Namespace) -> "Address":
    """Where the watchdog is now. Raises Away."""
    from gridsched.mcp.bridge import Address, Away  # noqa: PLC0415 - as in main

    asked = argparse.Namespace(**vars(args))
    try:
        choose(asked)
        data_dir = data_dir_path(asked.data_dir, os.environ)
    except (DataDirError, KnownError) as error:
        raise Away(str(error)) from None
    owner = owner_of(data_dir)
    if asked.server is not None and (owner is None or not is_at(owner, asked.server)):
        raise Away(
            f"the gateway at {asked.server} is not that of the data directory {data_dir}, so its watchdog is not"
        )
    port = port_in(data_dir)
    if not port:
        raise Away(f"no watchdog runs on the data directory {data_dir}")
    try:
        token = (data_dir / TOKEN).read_text(encoding="ascii").strip()
    except (OSError, ValueError) as error:
        raise Away(f"the watchdog's credential cannot be read: {error}") from None
    return Address(f"http://127.0.0.1:{port}", token)


def port_in(data_dir: Path) -> int:
    """Where the watchdog of a data directory listens, as the process has written that holds its lock; 0 for none."""
    try:
        lock = os.open(data_dir / LOCK, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return 0
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _port_said(os.pread(lock, 4096, 0))
    finally:
        os.close(lock)
    return 0


def _port_said(data: bytes) -> int:
    try:
        port = json.loads(data)["port"]
    except (ValueError, KeyError, TypeError):
        return 0
    return port if isinstance(port, int) and 0 < port < 2**16 else 0
