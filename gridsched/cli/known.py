"""The user's named servers: a file in the user's configuration folder, with what each is known by (H6).

Owns the file. It holds keys, so it is the user's alone: one that others could read is mended, and that is said; one
that others could have written is not believed. Must never send a key: who takes one from here takes its server's.
"""

import fcntl
import json
import os
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import httpx
import platformdirs

from gridsched.cli.show import say
from gridsched.files import atomic_write

FILE: Final = "servers.json"
VERSION: Final = 1
_PRIVATE_FILE, _PRIVATE_FOLDER, _OTHERS_READ, _OTHERS_WRITE = 0o600, 0o700, 0o077, 0o022


class KnownError(Exception):
    """The file cannot be used; one sentence."""


@dataclass(frozen=True, slots=True)
class Server:
    """One named server: where it is, the key that it knows us by, and the file of the authority that its certificate
    is from, where that is nobody's that this machine trusts."""

    url: str
    key: str | None = field(default=None, repr=False)
    ca: str | None = None


@dataclass(frozen=True, slots=True)
class Known:
    """All of them, by name, and the one that is asked where none is named."""

    servers: Mapping[str, Server] = field(default_factory=dict)
    used: str | None = None

    def at(self, url: str) -> Server | None:
        """The server at an address, whatever path of it was named."""
        return next((each for each in self.servers.values() if origin(each.url) == origin(url)), None)

    def with_server(self, name: str, server: Server, *, use: bool) -> "Known":
        """The same, and this one."""
        return replace(self, servers={**self.servers, name: server}, used=name if use else self.used)

    def without(self, name: str) -> "Known":
        """The same without this one."""
        left = {each: server for each, server in self.servers.items() if each != name}
        return replace(self, servers=left, used=None if self.used == name else self.used)


def origin(url: str) -> tuple[str, str, int | None]:
    """Whom an address is of: a key is for no other."""
    told = httpx.URL(url)
    return told.scheme, told.host, told.port or {"http": 80, "https": 443}.get(told.scheme)


def place() -> Path:
    """Where the file is. Raises KnownError."""
    try:
        return platformdirs.user_config_path("gridsched") / FILE
    except RuntimeError:
        raise KnownError("there is no home folder for this user, so no named servers") from None


def read() -> Known:
    """What is known; nothing where there is no file. Raises KnownError."""
    path = place()
    try:
        with path.open("rb") as file:
            _require_private(path, file.fileno())
            return _understood(path, json.load(file))
    except FileNotFoundError:
        return Known()
    except json.JSONDecodeError as error:
        raise KnownError(f"{path}:{error.lineno}:{error.colno}: {error.msg}; mend it, or remove the file") from None
    except (OSError, ValueError) as error:
        raise KnownError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from None


def change(how: Callable[[Known], Known]) -> None:
    """Keep what this makes of what is known: one command at a time, whole or not at all. Raises KnownError."""
    folder = place().parent
    try:
        folder.mkdir(mode=_PRIVATE_FOLDER, parents=True, exist_ok=True)
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise KnownError(f"{place()} cannot be written: {error.strerror}; nothing was changed") from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        write(how(read()))
    finally:
        os.close(descriptor)


def write(known: Known) -> None:
    """Keep this, whole or not at all. Raises KnownError."""
    path = place()
    told = {
        "version": VERSION,
        "use": known.used,
        "servers": {
            name: {key: value for key, value in (("url", each.url), ("key", each.key), ("ca", each.ca)) if value}
            for name, each in sorted(known.servers.items())
        },
    }
    try:
        path.parent.mkdir(mode=_PRIVATE_FOLDER, parents=True, exist_ok=True)
        atomic_write(path.resolve(), (json.dumps(told, indent=2) + "\n").encode(), _PRIVATE_FILE)
    except OSError as error:
        raise KnownError(f"{path} cannot be written: {error.strerror}; nothing was changed") from None


def _require_private(path: Path, descriptor: int) -> None:
    """Raises KnownError for a file, or a folder, in which somebody else may have written an address for our keys."""
    found = os.fstat(descriptor)
    folder = path.resolve().parent.stat()
    if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
        raise KnownError(f"{path} is not a file of this user, so it is not believed")
    if found.st_mode & _OTHERS_WRITE or folder.st_mode & stat.S_IWOTH:
        raise KnownError(
            f"other users may write {path}, so it is not believed; look what is in it, then: chmod go-w on it and its"
            " folder"
        )
    if found.st_mode & _OTHERS_READ:
        os.fchmod(descriptor, _PRIVATE_FILE)
        say(f"other users could read {path}: it is for this user alone now; keys in it may be known to them")


def _understood(path: Path, told: Any) -> Known:
    """Raises KnownError."""
    try:
        if told["version"] != VERSION:
            raise KnownError(f"{path} is of another version of gridsched ({told['version']})")
        servers = {name: _server(each) for name, each in told["servers"].items()}
        used = told.get("use")
    except (KeyError, TypeError, AttributeError, httpx.InvalidURL):
        raise KnownError(f"{path} is no list of servers; mend it, or remove the file") from None
    return Known(servers, used if used in servers else None)


def _server(told: Mapping[str, Any]) -> Server:
    """Raises KeyError, TypeError and httpx.InvalidURL."""
    url, key, ca = told["url"], told.get("key"), told.get("ca")
    if not all(each is None or isinstance(each, str) for each in (key, ca)):
        raise TypeError
    httpx.URL(url)
    return Server(url, key, ca)
