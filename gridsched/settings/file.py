"""The configuration file as something that a program may replace: read whole, replaced whole, the old one kept beside.

Owns how a replacement lies on the disk: in the same folder, flushed, renamed over the old file, with its mode and
owner; a link stays, what it leads to is replaced. Must never look at what the text means. Everything here blocks.
"""

import hashlib
import os
import re
import stat
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from gridsched.files import sync_folder
from gridsched.settings.load import read_text
from gridsched.settings.refusals import Changed

KEPT = 10
"""Copies of what was replaced. The recovery sidecar counts with the same names."""

SUFFIX = ".before-"
BEGUN = ".new"
LEFT_SECONDS = 60.0
"""What a writer that was killed has left is taken away by a later one, when it is this old: nobody writes so long."""

NEW_MODE = 0o600
BOM = "\ufeff"


@dataclass(frozen=True, slots=True)
class Contents:
    """What the file says at a moment; `sha256` is of its bytes, "" where there is no file."""

    text: str = ""
    sha256: str = ""
    has_bom: bool = False

    @property
    def exists(self) -> bool:
        """Whether there is a file."""
        return bool(self.sha256)


def read(path: Path) -> Contents:
    """What a file says. Raises SettingsError for what cannot be a configuration."""
    if not os.path.lexists(path):
        return Contents()
    text = read_text(path)
    data = path.read_bytes()
    return Contents(text, digest(data), data.startswith(BOM.encode()))


def replace(path: Path, text: str, before: Contents) -> Path | None:
    """Put a text in the file's place, if that still is what it was: the copy of what was there. Raises Changed, and
    OSError where nothing was changed."""
    target = Path(os.path.realpath(path))  # `resolve` raises for a link that leads back to itself
    data = ((BOM if before.has_bom else "") + text).encode()
    if not before.exists:
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = target.stat() if before.exists else None
    beside = _written_beside(target, data, found)
    try:
        backup = _backup(target, _unchanged(target, before), found) if before.exists else None
        # Again, because the copy took its time: whoever saves by hand meanwhile loses nothing.
        if before.exists:
            _unchanged(target, before)
        else:
            _require_none(target)
        beside.replace(target)
    except BaseException:
        with suppress(OSError):
            beside.unlink()
        raise
    sync_folder(target.parent)
    _tidy(target)
    return backup


def _unchanged(target: Path, before: Contents) -> bytes:
    """What the file holds. Raises Changed where that is not what it was, and OSError."""
    data = target.read_bytes()
    if digest(data) != before.sha256:
        raise Changed
    return data


def _require_none(target: Path) -> None:
    """Raises Changed where there is a file by now."""
    if os.path.lexists(target):
        raise Changed


def digest(data: bytes) -> str:
    """The hash by which a configuration is known."""
    return hashlib.sha256(data).hexdigest()


def _written_beside(target: Path, data: bytes, like: os.stat_result | None) -> Path:
    """A new file in the same folder, with the rights of another. Raises OSError, and leaves none then."""
    descriptor, name = tempfile.mkstemp(prefix=f".{target.name}.", suffix=BEGUN, dir=target.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            if like is not None:
                made = os.fstat(file.fileno())
                if (made.st_uid, made.st_gid) != (like.st_uid, like.st_gid):
                    os.fchown(file.fileno(), like.st_uid, like.st_gid)
            os.fchmod(file.fileno(), NEW_MODE if like is None else stat.S_IMODE(like.st_mode))
            os.fsync(file.fileno())
    except BaseException:
        with suppress(OSError):
            Path(name).unlink()
        raise
    return Path(name)


def _tidy(target: Path) -> None:
    """Take away what writers of this file have left that were killed, the recovery sidecar among them."""
    name, copy = re.escape(target.name), re.escape(SUFFIX)
    begun = re.compile(rf"\.{name}(?:{copy}\d{{1,9}})?\.[a-z0-9_]{{8}}{re.escape(BEGUN)}")
    with suppress(OSError):
        for each in target.parent.iterdir():
            if begun.fullmatch(each.name) and abs(time.time() - each.lstat().st_mtime) > LEFT_SECONDS:
                each.unlink()


def _backup(target: Path, old: bytes, like: os.stat_result | None) -> Path:
    """Keep what was there, under the number after the last; of these copies so many are kept. Raises OSError."""
    pattern = re.compile(re.escape(f"{target.name}{SUFFIX}") + r"(\d{1,9})")
    found = (pattern.fullmatch(name) for name in os.listdir(target.parent))  # noqa: PTH208 - names
    numbers = sorted(int(each[1]) for each in found if each is not None)
    backup = target.with_name(f"{target.name}{SUFFIX}{(numbers or [0])[-1] + 1}")
    beside = _written_beside(target, old, like)
    try:
        beside.replace(backup)
    except OSError:
        beside.unlink(missing_ok=True)
        raise
    for number in numbers[: max(0, len(numbers) + 1 - KEPT)]:
        with suppress(OSError):  # a folder that somebody put there stays
            target.with_name(f"{target.name}{SUFFIX}{number}").unlink()
    return backup
