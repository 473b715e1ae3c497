"""The engine's living processes on disk, `run/children.json`: for the next start's sweep, and for whoever repairs (P2).

Owns the file's format, both ways, and what is believed of it: nothing that does not make sense, and of what does, only
that somebody once wrote it. Must never raise for what the disk does: a full one is said once.

    {"boot_id": "…", "owner": {"pid": 1, "start_ticks": 2},
     "children": [{"pid": 3, "start_ticks": 4, "model": "…", "spawn": "gridsched-…"}]}

The token that every process of an engine carries is the first proof of whose it is. This file is the second, for an
engine whose environment nobody may read, as that of a program with file capabilities.
"""

import json
import logging
import os
import signal
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from gridsched.engine.guard import guard
from gridsched.engine.identity import PROC, VARIABLE, ProcessId, Token, directory_id
from gridsched.files import atomic_write

NAME = "children.json"
LONGEST_BYTES = 1024 * 1024
"""A thousand processes take a tenth of it; what is longer is not ours."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Entry:
    """One process as it was noted, and the server that noted it."""

    process: ProcessId
    owner: ProcessId
    model: str
    spawn: str


class Roster:
    """The living children of one engine. `run_dir` lies in the data directory; methods may be called on any thread."""

    def __init__(self, run_dir: Path) -> None:
        self._path = run_dir / NAME
        self._directory = directory_id(run_dir.parent)
        self._owner = ProcessId.of_child(os.getpid())
        self._entries: dict[ProcessId, Mapping[str, object]] = {}
        self._lock = threading.Lock()
        self._said = False

    def environment(self, spawn: str) -> Mapping[str, str]:
        """What a spawn's processes carry."""
        return {VARIABLE: str(self._token(spawn))}

    def _token(self, spawn: str) -> Token:
        return Token(self._directory, self._owner.pid, self._owner.start_ticks, spawn)

    def enter(self, model: str, spawn: str, child: ProcessId) -> Callable[[], None]:
        """Note a child that was just forked, here and with the guard. Gives what is to be called at its end."""
        forget = guard().watch(child)
        facts = {"pid": child.pid, "start_ticks": child.start_ticks, "model": model, "spawn": spawn}
        with self._lock:
            self._entries[child] = facts
            self.write()

        def leave() -> None:
            self._end_strays(spawn)
            forget()
            with self._lock:
                del self._entries[child]
                self.write()

        return leave

    def _end_strays(self, spawn: str) -> None:
        """A process of this spawn that has left its group, as a script's daemon does, ends with the others. One that
        cannot be seen now, for want of descriptors, is the guard's."""
        token, found = self._token(spawn), list[int]()
        with suppress(OSError):
            found += (int(folder.name) for folder in PROC.glob("[1-9]*"))
        for pid in found:
            if Token.of(pid) != token:
                continue
            stray = ProcessId.of(pid)
            if stray is not None and Token.of(pid) == token:  # asked again: what is signalled is what carries it
                with suppress(PermissionError):
                    stray.signal(signal.SIGKILL)

    def write(self) -> None:
        """Say what runs now. A disk that refuses is said once, until it does not."""
        owner = {"pid": self._owner.pid, "start_ticks": self._owner.start_ticks}
        said = {"boot_id": self._owner.boot_id, "owner": owner, "children": [*self._entries.values()]}
        try:
            atomic_write(self._path, json.dumps(said).encode())
            self._said = False
        except OSError as error:
            if not self._said:
                _log.warning("%s cannot be written (%s): it does not say what runs now", self._path, error.strerror)
            self._said = True


def empty_roster(run_dir: Path) -> None:
    """What was noted before is dealt with; at the start, by the directory's owner."""
    Roster(run_dir).write()


def read_roster(run_dir: Path) -> tuple[tuple[Entry, ...], tuple[str, ...]]:
    """What the server before this one has noted, and a sentence for each thing in the file that makes no sense."""
    path = run_dir / NAME
    try:
        with open(path, "rb", opener=_without_waiting) as file:
            text = file.read(LONGEST_BYTES + 1)
        if len(text) > LONGEST_BYTES:
            return (), (f"{path} is longer than any of ours ({LONGEST_BYTES} bytes) and is not believed",)
        said = json.loads(text)
        boot_id = str(said["boot_id"])
        owner = ProcessId(*_numbers(said["owner"]), boot_id)
        children = list(said["children"])
    except FileNotFoundError:
        return (), ()
    except OSError as error:
        return (), (f"{path} cannot be read ({error.strerror}): nothing is known by it",)
    except (ValueError, KeyError, TypeError, RecursionError):
        return (), (f"{path} is damaged: nothing is known by it",)
    entries, nonsense = [], 0
    for child in children:
        try:
            process = ProcessId(*_numbers(child), boot_id)
            entries.append(Entry(process, owner, str(child["model"]), str(child["spawn"])))
        except (ValueError, KeyError, TypeError):
            nonsense += 1
    told = (f"{path}: {nonsense} of {len(children)} entries make no sense and are dropped",) if nonsense else ()
    return tuple(entries), told


def _without_waiting(path: str, flags: int) -> int:
    """A pipe in the file's place would have its reader wait for a writer, and the start with it."""
    return os.open(path, flags | os.O_NONBLOCK)


def _numbers(facts: Mapping[str, object]) -> tuple[int, int]:
    """Number and start of a process that could be one. Raises ValueError, KeyError, TypeError."""
    pid, ticks = facts["pid"], facts["start_ticks"]
    if type(pid) is not int or type(ticks) is not int or pid <= 1 or ticks < 0 or max(pid, ticks) >= 2**63:
        raise ValueError("no process of anybody's")
    return pid, ticks
