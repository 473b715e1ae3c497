"""`gridsched watchdog`: puts the parts together. Owns the credential, the lock of the one watchdog, the exit codes.

0 told to stop, or the gateway ended as it was told · 1 failed · 2 the command line · 3 port taken · 4 another watchdog
"""

import errno
import fcntl
import json
import os
import re
import secrets
import signal
import stat
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from gridsched import __version__
from gridsched.watchdog import files
from gridsched.watchdog.commands import Commands
from gridsched.watchdog.configuration import GRIDSCHED, Configuration
from gridsched.watchdog.keeper import Keeper, Limits
from gridsched.watchdog.metrics import page
from gridsched.watchdog.places import NoPlace, Places, find_data
from gridsched.watchdog.processes import shows_us
from gridsched.watchdog.starting import Launch
from gridsched.watchdog.tools import Toolbox
from gridsched.watchdog.units import Units
from gridsched.watchdog.watch import Watch, moment
from gridsched.watchdog.web import HOST, PortTaken, Server

PORT = 1235
FAILED, USAGE, PORT_TAKEN, IN_USE = 1, 2, 3, 4
TOKEN_BYTES = 32
SHORTEST_TOKEN = 32
_PORT = re.compile(r"[\s{,]*port:\s*(\d{1,5})\s*(?:[,}#].*)?")
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
    port: int | None,
    *,
    runs: bool,
    wedged_seconds: float,
    serve_words: Sequence[str],
    environ: Mapping[str, str],
) -> int:
    """Run the watchdog until it is told to stop; no `port` is the configuration's. The exit code."""
    try:
        _require_apart(serve_words)
        _require_our_proc()
        places = Places(find_data(data_flag, environ), config_flag, environ, _current_folder())
        credential = prepare(places)
        with only_one(places) as lock:
            port = port_told(places) if port is None else port
            return _serve(places, credential, port, lock, runs, wedged_seconds, serve_words)
    except (CannotWatch, NoPlace) as error:
        say(f"gridsched watchdog: {error}")
        return error.code if isinstance(error, CannotWatch) else USAGE
    except PortTaken as error:
        say(f"gridsched watchdog: {error}")
        return PORT_TAKEN


def _serve(
    places: Places,
    credential: "Credential",
    port: int,
    lock: "only_one",
    runs: bool,
    wedged_seconds: float,
    serve_words: Sequence[str],
) -> int:
    commands = Commands(places.environ)
    configuration = Configuration(places, serve_words, commands)
    seen = Watch(places, wedged_seconds)
    limits = Limits(wedged_seconds=wedged_seconds, turn_seconds=min(1.0, wedged_seconds / 10))
    launch = Launch(serve_command(places, serve_words), places.environ, places.cwd)
    keeper = Keeper(
        places,
        configuration,
        seen,
        launch=launch,
        runs=runs,
        say=say,
        limits=limits,
        units=Units(commands, places.data),
    )
    began = time.time()

    def health() -> dict[str, Any]:
        last = seen.last()
        gateway = {"state": last.state.value, "since": moment(last.since), "why": last.sentence}
        return {"status": "ok", "version": __version__, "uptime_s": round(time.time() - began), "gateway": gateway}

    try:
        tools = Toolbox(places, configuration, seen, keeper, commands)
        server = Server(port, credential.current, tools, health, lambda: page(seen, keeper))
    except (OSError, OverflowError) as error:
        raise CannotWatch(f"cannot listen on {HOST} port {port}: {error}", FAILED) from None
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        if number is not signal.SIGHUP or signal.getsignal(number) is signal.SIG_DFL:  # else it is under nohup
            signal.signal(number, lambda *_: keeper.stop())
    threading.Thread(target=server.serve_forever, name="watchdog-http", daemon=True).start()
    lock.tell(server.server_port)
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


def _require_our_proc() -> None:
    """Raises CannotWatch where the processes that we see are not those that we would signal."""
    if not shows_us():
        raise CannotWatch("/proc shows another namespace of processes than ours; mount it anew", FAILED)


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


def port_told(places: Places) -> int:
    """`watchdog.port` of the configuration as a person writes it, also of a broken one; 1235 where it is not found.

    No YAML is read here: a line `port: N` below a line `watchdog:`, or on it.
    """
    path = places.config()
    try:
        text = files.read(path, follow=True).decode("utf-8-sig", "replace") if path is not None else ""
    except OSError:
        text = ""
    inside = False
    for line in text.splitlines():
        if not line.startswith((" ", "\t", "#")) and line:
            inside = line.startswith("watchdog:")
        found = _PORT.fullmatch(line.removeprefix("watchdog:")) if inside else None
        if found is not None and 0 < int(found[1]) < 2**16:
            return int(found[1])
    return PORT


class Credential:
    """What every tool asks for: what the file says now, so that whoever replaces the file has replaced it."""

    def __init__(self, path: Path) -> None:
        """Makes it where there is none that is a secret. Raises OSError."""
        self._path = path
        self._token = _read_token(path)
        if not self._token:
            if path.exists():
                say(f"watchdog   {path} is no secret (others could read it, or it is short): it is made anew")
            self._token = secrets.token_urlsafe(TOKEN_BYTES)
            self._write()

    def current(self) -> str:
        """It; put back where its file has gone, because nobody could be let in then. Never raises."""
        self._token = _read_token(self._path) or self._token
        if not os.path.lexists(self._path):
            with suppress(OSError):
                files.require_ours(self._path.parent)
                self._write()
        return self._token

    def _write(self) -> None:
        files.write(self._path, f"{self._token}\n".encode())


def prepare(places: Places) -> Credential:
    """Make what is missing, and give the credential. Raises CannotWatch."""
    try:
        for folder in (places.data, places.own):
            files.require_ours(folder)
        return Credential(places.token)
    except OSError as error:
        where = error.filename or places.data
        raise CannotWatch(f"{where} cannot be used: {error.strerror}; choose another with --data-dir", FAILED) from None


def _read_token(path: Path) -> str:
    """The credential that is there, if nobody else can have read it and it is long enough; else empty."""
    with suppress(OSError, UnicodeDecodeError):
        found = path.lstat()
        told = files.read(path, 4096).decode("ascii").strip()
        is_private = not found.st_mode & (stat.S_IRWXG | stat.S_IRWXO) and found.st_uid == os.geteuid()
        if is_private and len(told) >= SHORTEST_TOKEN and told.isprintable() and " " not in told:
            return told
    return ""


class only_one:  # noqa: N801 - used as a function
    """One watchdog a data directory, for as long as it lives. Raises CannotWatch."""

    def __init__(self, places: Places) -> None:
        self._path = places.own / "watchdog.lock"

    def __enter__(self) -> Self:
        flags = os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
        try:
            try:
                self._descriptor = os.open(self._path, flags | os.O_RDWR, 0o600)
            except OSError as error:
                if error.errno not in (errno.EACCES, errno.EROFS):
                    raise
                self._descriptor = os.open(self._path, flags & ~os.O_CREAT)  # one that can only be read locks as well
        except OSError as error:
            raise CannotWatch(f"{self._path} cannot be used as a lock: {error.strerror}", FAILED) from None
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pid = files.read_object(self._path).get("pid")
            os.close(self._descriptor)
            raise CannotWatch(f"another watchdog (process {pid}) watches this data directory", IN_USE) from None
        self.tell(None)
        return self

    def tell(self, port: int | None) -> None:
        """Write into the lock who holds it, and where that listens: whoever brings the credential asks nobody else."""
        told = {"pid": os.getpid()} | ({"port": port} if port else {})
        with suppress(OSError):  # on a full disk nobody is told; the lock holds
            os.ftruncate(self._descriptor, os.pwrite(self._descriptor, json.dumps(told).encode(), 0))

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)
