"""The data directory: where it is, that it is ours, and that one server at a time owns it.

Must never remove anything of a person's, and never trust a directory that another user can write to: engines' sockets
and the store lie in it.
"""

import fcntl
import json
import logging
import os
import stat
import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import platformdirs

VARIABLE = "GRIDSCHED_DATA_DIR"
"""The environment variable that names the data directory."""

_LOCK = "owner.lock"
_AGAIN_SECONDS = 0.01
_LOOKS = 100
"""A look takes microseconds; on a busy machine it may be put off in the middle of it."""

_OWNER_LOOKS = 10
"""Whoever has just come or is about to go owns it, and the file does not say who: it may be for a moment, too."""

_BRIEF_LOOKS = 6000
"""A command that owns the directory for as long as it looks around: it tries the engine, and reads every model."""

_log = logging.getLogger(__name__)


LOOPBACK = "127.0.0.1"
_ANY = {"0.0.0.0": LOOPBACK, "::": "::1"}  # noqa: S104 - what a server that listens everywhere is reached at from here


@dataclass(frozen=True, slots=True)
class Holder:
    """The server that owns a data directory, or a command that does `briefly`; 0 where it could not be read, or was not
    yet said."""

    pid: int = 0
    port: int = 0
    host: str = LOOPBACK
    briefly: bool = False

    @property
    def url(self) -> str:
        """Where programs of this machine reach it."""
        host = _ANY.get(self.host, self.host)
        return f"http://[{host}]:{self.port}" if ":" in host else f"http://{host}:{self.port}"

    def __str__(self) -> str:
        who = f"process {self.pid}" if self.pid else "another process"
        return f"{who} on port {self.port}" if self.port else who


class DataDirError(Exception):
    """The data directory cannot be used; one sentence."""


class DataDirInUse(DataDirError):
    """Another server owns it."""

    def __init__(self, path: Path, holder: Holder) -> None:
        super().__init__(f"the data directory {path} is in use by {holder}; stop it, or choose another with --data-dir")
        self.holder = holder


def data_dir_path(flag: Path | None, environ: Mapping[str, str], user_folder: Path | None = None) -> Path:
    """Where the data directory is. `user_folder` replaces the platform's user data folder. Raises DataDirError."""
    told = flag or (Path(environ[VARIABLE]) if environ.get(VARIABLE) else None)
    try:
        return (told or user_folder or platformdirs.user_data_path("gridsched")).expanduser().absolute()
    except RuntimeError:
        whose = told.parts[0] if told else "this user"
        raise DataDirError(f"there is no home folder for {whose}; name a data directory with --data-dir") from None
    except FileNotFoundError:
        raise DataDirError(f"{told} is told from the current folder, which is gone; go to another one") from None


class DataDir:
    """A data directory that this process owns until it closes it or ends, or only visits."""

    def __init__(self, path: Path, lock_fd: int | None, holder: Holder | None = None, *, briefly: bool = False) -> None:
        """`holder` is whom a visitor finds there; `briefly` is told to those who want to own it."""
        self.path = path
        self.holder = holder
        self.run = path / "run"
        self.logs = path / "logs"
        self._lock_fd = lock_fd
        self._briefly = briefly

    @classmethod
    def own(cls, path: Path, *, briefly: bool = False) -> Self:
        """Make what is missing and take ownership; whoever owns it `briefly` is waited for, but not by its like. Raises
        DataDirInUse, and DataDirError for anything else."""
        try:
            with ExitStack() as undo:
                _require_ours(path)
                lock_fd = os.open(path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
                undo.callback(os.close, lock_fd)
                _lock(lock_fd, path, waits=not briefly)
                owned = cls(path, lock_fd, briefly=briefly)
                for folder in (owned.run, owned.logs):
                    _require_ours(folder)
                    folder.chmod(0o700)
                owned.say_port(0)
                undo.pop_all()
                return owned
        except OSError as error:
            sentence = f"the data directory {path} cannot be used: {error.strerror}; choose another with --data-dir"
            raise DataDirError(sentence) from None

    @classmethod
    def own_or_visit(cls, path: Path) -> Self:
        """The same for a while, or where another owns it, a visit: nothing is locked then, and nothing said there.

        Raises DataDirError.
        """
        try:
            return cls.own(path, briefly=True)
        except DataDirInUse as error:
            return cls(path, None, error.holder)

    def say_port(self, port: int, host: str = LOOPBACK) -> None:
        """Tell those who find the directory in use which port its owner serves, and at which address. On a full disk
        they are told less."""
        if self._lock_fd is None:
            return
        said = json.dumps({"pid": os.getpid(), "port": port, "host": host, "briefly": self._briefly}).encode()
        try:
            os.ftruncate(self._lock_fd, os.pwrite(self._lock_fd, said, 0))
        except OSError as error:
            sentence = "%s cannot be written (%s): who finds the data directory in use is not told by whom"
            _log.warning(sentence, self.path / _LOCK, error.strerror)

    def close(self) -> None:
        """Give ownership up. The lock's file stays: removing it would let two owners in at once."""
        if self._lock_fd is not None:
            with suppress(OSError):
                os.ftruncate(self._lock_fd, 0)
            os.close(self._lock_fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def owner_of(path: Path) -> Holder | None:
    """The server that owns a data directory at this moment; None where nobody does, or it is none."""
    try:
        lock_fd = os.open(path / _LOCK, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        # Shared, and given back at once: a server that starts in this very moment waits for that.
        fcntl.flock(lock_fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _read_holder(lock_fd)
    finally:
        os.close(lock_fd)
    return None


def _require_ours(path: Path) -> None:
    """Make the directory if it is missing. Raises DataDirError for one that is not ours alone to write, and OSError."""
    if path.is_symlink():
        raise DataDirError(f"{path} is a symbolic link; name the directory itself")
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = path.lstat()
    if found.st_uid != os.geteuid():
        raise DataDirError(f"{path} belongs to another user (uid {found.st_uid}); choose another with --data-dir")
    if found.st_mode & stat.S_IWOTH:
        raise DataDirError(f"every user may write to {path}; take that right away (chmod o-w), or choose another")


def _lock(lock_fd: int, path: Path, *, waits: bool) -> None:
    """Take the lock. Whoever looks for an owner shares it for a moment: that is none, and is waited for. So is, by who
    `waits`, one that owns it briefly: a server that gave up for it would stay down (exit code 4)."""
    left = {None: _LOOKS, True: _BRIEF_LOOKS * waits, False: _OWNER_LOOKS * waits}
    while True:
        with suppress(BlockingIOError):
            fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        found = _is_owned_briefly(lock_fd)
        if not left[found]:
            raise DataDirInUse(path, _read_holder(lock_fd))
        left[found] -= 1
        time.sleep(_AGAIN_SECONDS)


def _is_owned_briefly(lock_fd: int) -> bool | None:
    """As its owner says; None where nobody owns it."""
    try:
        fcntl.flock(lock_fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _read_holder(lock_fd).briefly
    fcntl.flock(lock_fd, fcntl.LOCK_UN)
    return None


def _read_holder(lock_fd: int) -> Holder:
    """Who owns the lock; its owner may be in the middle of saying so."""
    try:
        said = json.loads(os.pread(lock_fd, 200, 0))
        return Holder(int(said["pid"]), int(said["port"]), str(said.get("host", LOOPBACK)), said.get("briefly") is True)
    except (OSError, ValueError, KeyError, TypeError):
        return Holder()
