"""The last lines of what was printed: an engine's log, or the gateway's own.

Must never open a file by a name that somebody else has given: names are looked for in what the folder lists.
"""

import hashlib
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

from gridsched.watchdog import files
from gridsched.watchdog.commands import CannotRun, Commands
from gridsched.watchdog.places import Places
from gridsched.watchdog.processes import PROC
from gridsched.watchdog.units import ASK_SECONDS, UNIT
from gridsched.watchdog.watch import Owner, owner_of

GATEWAY = "gateway"
MOST_LINES = 1000
MOST_BYTES = 1024 * 1024
SHOWN_NAMES = 100
LONGEST_NAME = 180


class NoLog(Exception):
    """There is no such log; one sentence that names those that there are."""


def tail(places: Places, commands: Commands, name: str, lines: int) -> dict[str, Any]:
    """The last lines of one log, oldest first. Raises NoLog."""
    if name == GATEWAY:
        return _of_gateway(places, commands, lines)
    logs = _logs(places.logs)
    called = file_name(name)
    folded = (called.casefold(), name.casefold())  # the second for one that was read in the list below
    path = logs.get(called) or next((logs[each] for each in logs if each.casefold() in folded), None)
    if path is None:
        there = ", ".join([GATEWAY, *sorted(logs)][:SHOWN_NAMES])
        raise NoLog(f"there is no log of {name[:100]!r}; there are: {there}")
    return _read((path, path.with_name(f"{path.name}.1")), lines)


def file_name(name: str) -> str:
    """What the gateway calls the log of a model, without the ending: with a mark where a file cannot be called so."""
    plain = re.sub(r"[^\w.@+-]", "_", name, flags=re.ASCII).lstrip(".")[:LONGEST_NAME]
    mark = hashlib.blake2s(name.encode("utf-8", "replace"), digest_size=4).hexdigest()
    return plain if plain == name != "" else f"{plain}-{mark}"


def _logs(folder: Path) -> dict[str, Path]:
    """The engines' logs by the names of their files."""
    with suppress(OSError):
        return {path.stem: path for path in folder.iterdir() if path.suffix == ".log"}
    return {}


def _of_gateway(places: Places, commands: Commands, lines: int) -> dict[str, Any]:
    """What was caught here, of a gateway that prints here or was the last one; else what the service manager has."""
    log = places.gateway_log
    if log.exists() and _is_the_gateway_s(log, owner_of(places)):
        return _read((log, log.with_name(f"{log.name}.1")), lines)
    argv = ("journalctl", "--user", "--unit", UNIT, "--lines", str(lines), "--no-pager", "--output", "cat")
    with suppress(CannotRun):
        ran = commands.run(argv, ASK_SECONDS)
        if ran.code == 0 and ran.output.strip():
            return {"source": " ".join(argv[:4]), "lines": ran.output.splitlines()[-lines:]}
    raise NoLog("the gateway was not started by this watchdog, and the journal has nothing: look where it was started")


def _is_the_gateway_s(log: Path, owner: Owner | None) -> bool:
    """Whether a file is the standard output of the gateway that runs; of the last one where none does."""
    if owner is None or owner.process is None:
        return True
    try:
        return (PROC / str(owner.process.pid) / "fd" / "1").samefile(log)
    except OSError:
        return False


def _read(newest_first: tuple[Path, ...], lines: int) -> dict[str, Any]:
    """The last lines of a log and of the one before it. Raises NoLog."""
    found: list[str] = []
    for path in newest_first:
        try:
            text = files.read_tail(path, MOST_BYTES).decode("utf-8", "replace")
        except FileNotFoundError:
            continue
        except OSError as error:
            raise NoLog(f"{path} cannot be read: {error.strerror}") from None
        found = [*text.splitlines()[-(lines - len(found)) :], *found]
        if len(found) >= lines:
            break
    return {"source": str(newest_first[0]), "lines": found}
