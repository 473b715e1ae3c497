"""The gateway's configuration file: read, checked and replaced, and the last ones it has run well with.

Must never write what `gridsched check` refuses unless it is told to, never touch a comment, and never lose what was
there: what is replaced is kept beside it. It understands no YAML: only the gateway does.
"""

import hashlib
import os
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gridsched.watchdog import files
from gridsched.watchdog.commands import CannotRun, Commands
from gridsched.watchdog.places import NoPlace, Places
from gridsched.watchdog.watch import moment

GRIDSCHED = (sys.executable, "-P", "-m", "gridsched")
"""The command line, whatever lies in the current folder: a person's `queue.py` there is not Python's."""

CHECK_SECONDS = 120.0
"""For the engine's trial and every model's header on a cold disk."""

CONFIGURATION = 2
"""The exit code of the contract for a configuration that is wrong, of `check` and of `serve`."""

KEPT_GOOD = 5
KEPT_BEFORE = 10
MODE = 0o600
_CHECK_TAKES = {"--models-dir": 1, "--sim": 0, "--host": 1, "--port": 1}
"""What of a command line for `serve` concerns `check` too, and how many words follow each."""


class Refused(Exception):
    """The configuration stays as it is; why, in a sentence or more."""


@dataclass(frozen=True, slots=True)
class Good:
    """A configuration that the gateway has run well with, kept as a copy."""

    copy: Path
    sha256: str
    milliseconds: int

    @property
    def time(self) -> str:
        """When it was kept."""
        return moment(self.milliseconds / 1000)


class Configuration:
    """The file of one gateway. `serve_words` is what the gateway is started with, beside what `places` says."""

    def __init__(self, places: Places, serve_words: Sequence[str], commands: Commands) -> None:
        self._places = places
        self._serve_words = tuple(serve_words)
        self._commands = commands
        self._folder = places.own / "good"
        self._checking, self._changing = threading.Lock(), threading.Lock()
        self.passed: set[str] = set()
        """What `gridsched check` had nothing against."""

    def fingerprint(self) -> str:
        """The hash of what the gateway would read now; empty where there is no file, or none that can be read."""
        path = self._places.config()
        try:
            return digest(files.read(path, follow=True)) if path is not None else ""
        except OSError:
            return ""

    def touched_seconds_ago(self) -> float | None:
        """When the file was last written, moved or linked; None where there is none."""
        path = self._places.config()
        try:
            return time.time() - path.stat().st_ctime if path is not None else None
        except OSError:
            return None

    def told(self) -> dict[str, Any]:
        """The file, what it says, and the last good one, as JSON. Raises Refused for a file that cannot be read."""
        path = self._places.config()
        good = self.good()
        said: dict[str, Any] = {
            "path": str(path) if path else None,
            "last_good": {"sha256": good[0].sha256, "time": good[0].time} if good else None,
        }
        if path is None:
            return said | {"text": None, "note": "there is no configuration: the gateway runs with its defaults"}
        try:
            data = files.read(path, follow=True)
        except FileNotFoundError:
            return said | {"text": None, "note": f"there is no {path}, though it was named: the gateway cannot start"}
        except OSError as error:
            raise Refused(f"{path} cannot be read: {error.strerror}") from None
        sha256 = digest(data)
        is_good = any(each.sha256 == sha256 for each in good)
        return said | {"text": data.decode("utf-8", "replace"), "sha256": sha256, "is_known_good": is_good}

    def set(self, text: str, expected_sha256: str | None, *, force: bool) -> dict[str, Any]:
        """Check a text, and put it in the file's place; the old file is kept. Raises Refused."""
        try:
            data = text.encode()
        except UnicodeEncodeError:
            raise Refused("the text holds half a character (a lone surrogate), which no file can") from None
        if len(data) > files.MOST_BYTES:
            raise Refused(f"more than {files.MOST_BYTES} bytes: no configuration")
        path = self._path()
        try:
            # Not under the lock of changes: a check may take minutes, and a roll-back must not wait for it.
            with self._checking:
                self._require_unchanged(path, expected_sha256)
                path.parent.mkdir(parents=True, exist_ok=True)
                checked = self._check(path, data)
            if not checked:
                self.passed.add(digest(data))
            if checked and not force:
                raise Refused(checked)
            with self._changing:
                self._require_unchanged(path, expected_sha256)
                backup = self._replace(path, data, ".before")
        except OSError as error:
            raise Refused(f"{path} cannot be written: {error.strerror}") from None
        said = {"path": str(path), "sha256": digest(data), "backup": str(backup) if backup else None}
        return said | {"checked": checked or "gridsched check finds nothing wrong with it", "forced": bool(checked)}

    def _path(self) -> Path:
        """The file, or where it would be. Raises Refused for a user who has no folder for one."""
        try:
            return self._places.config_to_write()
        except NoPlace as error:
            raise Refused(str(error)) from None

    def _require_unchanged(self, path: Path, expected_sha256: str | None) -> None:
        if expected_sha256 is not None and self.fingerprint() != expected_sha256:
            raise Refused(f"{path} has changed since it was read: get it again")

    def roll_back(self, suffix: str = ".before") -> dict[str, Any]:
        """Put the newest good one back that is not there already; what was there is kept. Raises Refused."""
        with self._changing:
            path = self._path()
            now = self.fingerprint()
            good = next((each for each in self.good() if each.sha256 != now), None)
            if good is None:
                raise Refused(f"{path} stays: no other configuration is known that the gateway has run well with")
            try:
                backup = self._replace(path, files.read(good.copy), suffix)
            except OSError as error:
                raise Refused(f"{path} cannot be written: {error.strerror}") from None
        said = {"path": str(path), "sha256": good.sha256, "good_since": good.time}
        return said | {"kept": str(backup) if backup else None}

    def put_back(self, told: dict[str, Any]) -> bool:
        """Undo a roll-back that has not helped; False where the file has been changed since. Raises OSError."""
        with self._changing:
            if self.fingerprint() != told["sha256"]:
                return False
            target = self._target(self._path())
            if told["kept"] is None:
                target.unlink()
            else:
                files.write(target, files.read(Path(told["kept"])), target.stat().st_mode & 0o777)
            return True

    def keep_good(self, sha256: str) -> bool:
        """Keep a copy of what is there as good, if it is still what has run well. Whether it is new. Raises OSError."""
        path = self._places.config()
        if path is None or any(each.sha256 == sha256 for each in self.good()[:1]):
            return False
        data = files.read(path, follow=True)
        if digest(data) != sha256:
            return False
        files.require_ours(self._folder)
        newest = next((each.milliseconds for each in self.good()), 0)
        stamp = max(round(time.time() * 1000), newest + 1)  # the newest, also where the clock was set back
        files.write(self._folder / f"{stamp:015d}-{sha256}.yaml", data)
        for older in self.good()[KEPT_GOOD:]:
            with suppress(OSError):
                older.copy.unlink()
        return True

    def is_good(self, sha256: str) -> bool:
        """Whether the gateway is known to have run well with it."""
        return any(each.sha256 == sha256 for each in self.good())

    def good(self) -> list[Good]:
        """The good ones, newest first. A copy that was tampered with, or damaged, is none."""
        found = []
        with suppress(OSError):
            for path in sorted(self._folder.glob("*-*.yaml"), reverse=True)[: 4 * KEPT_GOOD]:
                stamp, _, sha256 = path.stem.partition("-")
                with suppress(OSError, ValueError):
                    if digest(files.read(path)) == sha256:
                        found.append(Good(path, sha256, int(stamp)))
        return found

    def _check(self, path: Path, data: bytes) -> str:
        """What `gridsched check` has against a text; empty for nothing. The text lies beside the file meanwhile,
        because paths in it are meant from there. Raises OSError."""
        beside = path.with_name(f".{path.stem}-to-check-{os.getpid()}.yaml")
        words = [*_for_check(self._serve_words), "--data-dir", str(self._places.data)]
        try:
            files.write(beside, data, MODE)
            argv = (*GRIDSCHED, "check", "--config", str(beside), *words)
            ran = self._commands.run(argv, CHECK_SECONDS)
        except CannotRun as error:
            return f"it could not be checked: {error}. With force it is written unchecked"
        finally:
            beside.unlink(missing_ok=True)
        output = ran.output.replace(str(beside), str(path)).strip()
        if ran.code == 0:
            return ""
        if ran.code == CONFIGURATION:
            return f"gridsched check refuses it:\n{output}"
        last = output.rpartition("\n")[2]
        return (
            f"it could not be checked, gridsched check itself has failed ({ran.code}: {last}). With force it is written"
        )

    def _replace(self, path: Path, data: bytes, suffix: str) -> Path | None:
        """Write the file whole, the old one kept beside it; where, None where there was none. Raises OSError."""
        target = self._target(path)
        backup, mode = None, MODE
        if os.path.lexists(target):
            backup = _free_name(target, suffix)
            try:
                old = files.read(target)
            except OSError:  # a folder, a pipe, something huge in its place: moved aside as it is
                target.rename(backup)
            else:
                mode = target.stat().st_mode & 0o777
                files.write(backup, old, mode)
        files.write(target, data, mode)
        return backup

    def _target(self, path: Path) -> Path:
        """The file itself, where a link was named: a link to a folder under version control stays one."""
        return Path(os.path.realpath(path))  # `resolve` raises for a link that leads back to itself


def digest(data: bytes) -> str:
    """The hash by which a configuration is known."""
    return hashlib.sha256(data).hexdigest()


def _free_name(path: Path, suffix: str) -> Path:
    """`gridsched.yaml.before-3`: the number after the last. Of these copies the last ten are kept."""
    prefix = f"{path.name}{suffix}-"
    numbers = {name[len(prefix) :] for name in os.listdir(path.parent) if name.startswith(prefix)}  # noqa: PTH208 - names
    last = max((int(number) for number in numbers if number.isdecimal()), default=0)
    with suppress(OSError):  # a folder that was moved aside stays, and is no reason to change nothing any more
        path.with_name(f"{prefix}{last - KEPT_BEFORE + 1}").unlink()
    return path.with_name(f"{prefix}{last + 1}")


def _for_check(words: Sequence[str]) -> list[str]:
    """The words of a `serve` that `check` knows too."""
    found: list[str] = []
    for at, word in enumerate(words):
        name, equals, _ = word.partition("=")
        if name in _CHECK_TAKES:
            found += [word] if equals else words[at : at + 1 + _CHECK_TAKES[name]]
    return found
