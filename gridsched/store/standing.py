"""What persons asked for that outlives the server, in one small file: pins, and leases with their ends in wall time.

Owns the file's format and what damage means. Must never raise for what the disk does: what cannot be kept is said, and
the server goes on. A file that is damaged goes to `NAME.damaged`; one of a newer version is left alone.

    {"gridsched_standing": 1, "words": [{"model": …, "pin": true, …}], "leases": [{"device": "gpu0", "owner": …}]}
"""

from collections.abc import Callable
from functools import partial
from math import inf
from pathlib import Path

import msgspec
import trio

from gridsched.core.standing import KeptLease, Standing, Word
from gridsched.files import atomic_write
from gridsched.threads import in_thread

VERSION = 1
LONGEST_BYTES = 4 * 2**20
"""What is longer was not written here: ten thousand models take less than one."""

LATEST = 2.0**37
"""Wall seconds of the year 6325: what is later is no time at which a lease ends."""

Say = Callable[[str], None]


class _Head(msgspec.Struct):
    gridsched_standing: int


class _File(msgspec.Struct):
    gridsched_standing: int
    words: tuple[Word, ...] = ()
    leases: tuple[KeptLease, ...] = ()


class StandingFile:
    """A `ports.StandingStore` in a file, which is read when this is made. `owned`: by this process, which may write."""

    def __init__(self, path: Path, say: Say, *, owned: bool = True) -> None:
        self._path = path
        self._say = say
        self._turn = trio.Lock()
        self._why_not = "" if owned else f"{path} is another server's"
        self._read = self._found() or Standing()
        self._latest = self._written = self._read

    def standing(self) -> Standing:
        """As it was read."""
        return self._read

    def take(self, standing: Standing) -> None:
        """What there is now, to be written."""
        self._latest = standing

    async def write(self) -> str:
        """Write what was taken last, unless it has been: "" once the disk has it, else why it has not."""
        async with self._turn:
            latest = self._latest
            if self._why_not or latest is self._written:
                return self._why_not
            data = msgspec.json.encode(_File(VERSION, latest.words, latest.leases))
            with trio.CancelScope(shield=True):
                try:
                    await in_thread(partial(atomic_write, self._path, data))
                except OSError as error:
                    why = f"{self._path} cannot be written ({error.strerror})"
                    self._say(f"{why}: pins and leases may not outlive this server")
                    return why
            self._written = latest
        return ""

    def _found(self) -> Standing | None:
        try:
            with self._path.open("rb") as file:
                data = file.read(LONGEST_BYTES + 1)
        except FileNotFoundError:
            return None
        except OSError as error:
            self._why_not = f"{self._path} cannot be read ({error.strerror})"
            self._say(f"{self._why_not}: pins and leases of before are not known, and none are kept")
            return None
        try:
            version = msgspec.json.decode(data, type=_Head).gridsched_standing
            if version > VERSION:
                self._why_not = f"{self._path} was written by a newer version"
                self._say(f"{self._why_not}; it is left alone, and this one goes on without")
                return None
            found = msgspec.json.decode(data, type=_File)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            self._set_aside(str(error))
            return None
        if any(not _can_be(lease) for lease in found.leases):
            self._set_aside("a lease in it is none that is given here")
            return None
        return Standing(found.words, found.leases)

    def _set_aside(self, why: str) -> None:
        aside = self._path.with_name(f"{self._path.name}.damaged")
        try:
            self._path.replace(aside)
            self._say(
                f"{self._path} is damaged ({why}); it is now {aside}, and pins and leases of before are forgotten"
            )
        except OSError as error:
            self._why_not = f"{self._path} is damaged and cannot be set aside ({error.strerror})"
            self._say(self._why_not)


def _can_be(lease: KeptLease) -> bool:
    """Whether it ends by itself, as each does that is given (R8), at a moment that can be told."""
    ends = lease.process is not None or (lease.seconds is not None and 0 < lease.seconds < inf)
    return ends and lease.owner.isprintable() and (lease.until is None or 0 <= lease.until < LATEST)
