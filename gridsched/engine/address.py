"""Where an engine listens: a Unix socket in a private folder, else a port of the loopback address (P1).

Owns the choice of a port, and the proof that whoever listens there is ours (B13). A port is nobody's before it is
listened to: it is chosen anew for each spawn, held in no list, and never believed for its number.
"""

import socket
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from gridsched.threads import SHORTAGES

LOOPBACK = "127.0.0.1"
_LISTENING = "0A"  # the kernel's word for it, in /proc/net/tcp
_EXACT = "0100007F"  # 127.0.0.1, as it is written there


@dataclass(frozen=True, slots=True)
class Port:
    """A port of 127.0.0.1. `key` is what the engine there wants to be told with every request, "" where it cannot ask
    for one: then any program of this machine may talk to it."""

    number: int
    key: str = ""


Address = Path | Port


def free_port() -> int:
    """A port that nobody listened to a moment ago. Raises OSError when there is none."""
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        number: int = probe.getsockname()[1]
    return number


class Listener(Enum):
    """Who listens at a port."""

    NOBODY = "nobody"
    OURS = "ours"
    FOREIGN = "foreign"


def listener(number: int, group: int, proc: Path = Path("/proc")) -> Listener:
    """Whether it is a process of this group, and nobody else, whom a connection to the port reaches.

    Reads files of all processes: milliseconds, for a thread. Raises OSError where there is no descriptor to read with.
    """
    sockets = _listening(number, proc)
    if not sockets:
        return Listener.NOBODY
    return Listener.OURS if sockets <= _sockets_of(group, proc) else Listener.FOREIGN


def _listening(number: int, proc: Path) -> set[str]:
    """The sockets that a connection may reach: those of the very address; where there are none, those of all."""
    exact: set[str] = set()
    others: set[str] = set()
    for table in ("net/tcp", "net/tcp6"):
        try:
            lines = (proc / table).read_text(encoding="ascii").splitlines()[1:]
        except FileNotFoundError:
            continue
        for fields in (line.split() for line in lines):
            host, _, port = fields[1].partition(":")
            if fields[3] == _LISTENING and int(port, 16) == number:
                (exact if host == _EXACT else others).add(fields[9])
    return exact or others


def _sockets_of(group: int, proc: Path) -> set[str]:
    found: set[str] = set()
    for process in (path for path in proc.iterdir() if path.name.isdecimal()):
        try:
            if int((process / "stat").read_bytes().rpartition(b")")[2].split()[2]) != group:
                continue
            for descriptor in (process / "fd").iterdir():
                kind, _, rest = str(descriptor.readlink()).partition(":[")
                if kind == "socket":
                    found.add(rest.rstrip("]"))
        except OSError as error:
            if error.errno in SHORTAGES:
                raise
        except (ValueError, IndexError):
            continue  # it has ended meanwhile, or is none of ours
    return found
