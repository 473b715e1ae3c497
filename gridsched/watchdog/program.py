"""`gridsched watchdog`: puts the parts together. Owns the credential, the lock of the one watchdog, the exit codes.

0 told to stop, or the gateway ended as it was told · 1 failed · 2 the command line · 3 port taken · 4 another watchdog
"""

import fcntl
import json
import os
import secrets
import signal
import stat
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from gridsched import __version__
from gridsched.watchdog import files
from gridsched.watchdog.commands import Commands
from gridsched.watchdog.configuration import GRIDSCHED, Configuration
from gridsched.watchdog.keeper import Keeper, Limits
from gridsched.watchdog.places import NoPlace, Places, find_data
from gridsched.watchdog.starting import Launch
from gridsched.watchdog.tools import Toolbox
from gridsched.watchdog.units import Units
from gridsched.watchdog.watch import Watch, moment
from gridsched.watchdog.web import HOST, PortTaken, Server

PORT = 1235
FAILED, USAGE, PORT_TAKEN, IN_USE = 1, 2, 3, 4
TOKEN_BYTES = 32
SHORTEST_TOKEN = 32
_OURS = ("--config", "--data-dir")
"""What both the watchdog and the gateway must know, and is therefore told to the watchdog."""


class CannotWatch(Exception):
    """There is no watchdog; one sentence, and the exit code."""

    def __init__(self, sentence: str, code: int) -> None:
        super().__init__(sentence)
        self.code = code


def say(sentence: str) -> None:
    """A sentence for whoever runs us; printing must never be what ends us."""
    with suppress(OSError, ValueError):
        print(sentence, file=sys.stderr, flush=True)


def watch(
    data_flag: Path | None,
    config_flag: Path | None,
    port: int,
    *,
    runs: bool,
    wedged_seconds: float,
    serve_words: Sequence[str],
    environ: Mapping[str, str],
) -> int:
    """Run the watchdog until it is told to stop. The exit code."""
    try:
        _require_apart(serve_words)
        places = Places(find_data(data_flag, environ), config_flag, environ, _current_folder())
        token = prepare(places)
        with only_one(places):
            return _serve(places, token, port, runs, wedged_seconds, serve_words)
    except (CannotWatch, NoPlace) as error:
        say(f"gridsched watchdog: {error}")
        return error.code if isinstance(error, CannotWatch) else USAGE
    except PortTaken as error:
        say(f"gridsched watchdog: {error}")
        return PORT_TAKEN


def _serve(places: Places, token: str, port: int, runs: bool, wedged_seconds: float, serve_words: Sequence[str]) -> int:
    commands = Commands(places.environ)
    configuration = Configuration(places, serve_words, commands)
    seen = Watch(places, wedged_seconds)
    limits = Limits(wedged_seconds=wedged_seconds, turn_seconds=min(1.0, wedged_seconds / 10))
    launch = Launch(serve_command(places, serve_words), places.environ, places.cwd)
    keeper = Keeper(
        places, configuration, seen, launch=launch, runs=runs, say=say, limits=limits, units=Units(commands)
    )
    began = time.time()

    def health() -> dict[str, Any]:
        last = seen.last()
        gateway = {"state": last.state.value, "since": moment(last.since), "why": last.sentence}
        return {"status": "ok", "version": __version__, "uptime_s": round(time.time() - began), "gateway": gateway}

    try:
        server = Server(port, token, Toolbox(places, configuration, seen, keeper, commands), health)
    except (OSError, OverflowError) as error:
        raise CannotWatch(f"cannot listen on {HOST} port {port}: {error}", FAILED) from None
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        if number is not signal.SIGHUP or signal.getsignal(number) is signal.SIG_DFL:  # else it is under nohup
            signal.signal(number, lambda *_: keeper.stop())
    threading.Thread(target=server.serve_forever, name="watchdog-http", daemon=True).start()
    say(f"watchdog   http://{HOST}:{server.server_port}/mcp, the credential is in {places.token}")
    try:
        return keeper.run()
    finally:
        server.shutdown()
        server.server_close()


def _require_apart(serve_words: Sequence[str]) -> None:
    """Raises CannotWatch where the gateway is told what we must know too."""
    for word in serve_words:
        if word.partition("=")[0] in _OURS:
            raise CannotWatch(f"{word} concerns the watchdog too: name it before the --", USAGE)


def _current_folder() -> Path:
    """Raises CannotWatch."""
    try:
        return Path.cwd()
    except OSError as error:
        raise CannotWatch(f"the current folder cannot be used ({error.strerror}); go to another one", FAILED) from None


def serve_command(places: Places, serve_words: Sequence[str]) -> tuple[str, ...]:
    """The gateway's command line."""
    config = ("--config", str(places.cwd / places.config_flag)) if places.config_flag else ()
    return (*GRIDSCHED, "serve", "--data-dir", str(places.data), *config, *serve_words)


def prepare(places: Places) -> str:
    """Make what is missing, and give the credential. Raises CannotWatch."""
    try:
        for folder in (places.data, places.own):
            files.require_ours(folder)
        return _token(places.token)
    except OSError as error:
        where = error.filename or places.data
        raise CannotWatch(f"{where} cannot be used: {error.strerror}; choose another with --data-dir", FAILED) from None


def _token(path: Path) -> str:
    """The credential that is there, if nobody else can have read it and it is long enough; else a new one."""
    with suppress(OSError, UnicodeDecodeError):
        found = path.lstat()
        told = files.read(path, 4096).decode("ascii").strip()
        if found.st_mode & (stat.S_IRWXG | stat.S_IRWXO) or found.st_uid != os.geteuid():
            say(f"watchdog   others could read {path}: it is made anew")
        elif len(told) >= SHORTEST_TOKEN and told.isprintable() and " " not in told:
            return told
    token = secrets.token_urlsafe(TOKEN_BYTES)
    files.write(path, f"{token}\n".encode())
    return token


class only_one:  # noqa: N801 - used as a function
    """One watchdog a data directory, for as long as it lives. Raises CannotWatch."""

    def __init__(self, places: Places) -> None:
        self._path = places.own / "watchdog.lock"

    def __enter__(self) -> None:
        self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pid = files.read_object(self._path).get("pid")
            os.close(self._descriptor)
            raise CannotWatch(f"another watchdog (process {pid}) watches this data directory", IN_USE) from None
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, json.dumps({"pid": os.getpid()}).encode(), 0)

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)
