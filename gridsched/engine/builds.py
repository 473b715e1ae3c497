"""Engine builds side by side, a folder each, and which program is pinned. Owns those folders and the pin's file.

    engines/NAME/…             one build, as it was unpacked; never changed afterwards
    engines/NAME/build.json    what it is and where it came from
    engines/pinned.json        the pinned program, and those that were pinned before it, latest first

A build comes into its place by one rename, when it is whole. Must never run a program (`find` does), and never change
or remove a build that is there.
"""

import fcntl
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from gridsched.engine.locate import PROGRAM
from gridsched.files import atomic_write

AUTO = "auto"
"""The word for no pin."""

ABOUT, PIN, LOCK = "build.json", "pinned.json", ".lock"
REMEMBERED = 20
"""So many earlier pins can be gone back to."""

LONGEST_NAME = 100
_NAME = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._+-]{{0,{LONGEST_NAME - 1}}}")
_UNFINISHED = ".new-"


class BuildError(Exception):
    """What was asked for cannot be done; one sentence."""


@dataclass(frozen=True, slots=True)
class Installed:
    """One build. `program` lies in its folder; `checksum` is SHA-256 of what it was made from; `installed` a date."""

    name: str
    program: Path
    source: str
    checksum: str
    version: str
    backend: str
    installed: str


class Builds:
    """The builds of one data directory. Nothing is made before something is installed or pinned."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def all(self) -> tuple[Installed, ...]:
        """Every build that is whole, by name."""
        abouts = sorted(self.folder.glob(f"*/{ABOUT}"))
        read = (self._read(about) for about in abouts if not about.parent.name.startswith("."))
        return tuple(build for build in read if build is not None)

    def get(self, name: str) -> Installed | None:
        """The build of that name."""
        return next((build for build in self.all() if build.name == name), None)

    def _read(self, about: Path) -> Installed | None:
        try:
            said = json.loads(about.read_text(encoding="utf-8"))
            words = {key: str(said[key]) for key in ("source", "checksum", "version", "backend", "installed")}
            program = about.parent / str(said["program"])
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return None  # half a build, or somebody else's folder
        return Installed(name=about.parent.name, program=program, **words) if program.is_file() else None

    # --- the pin ----------------------------------------------------------------------------------------------------

    def pinned(self) -> Path | None:
        """The pinned program, there or not; None where the choice is automatic. Raises BuildError."""
        return next(iter(self._pins()), None)

    def pin(self, program: Path | None) -> None:
        """Pin a program, or none; what was pinned stays in mind, where it can be read. Raises BuildError."""
        with self._alone():
            try:
                before = self._pins()
            except BuildError:
                before = []
            self._write([program, *(each for each in before if each != program)])

    def rollback(self) -> Path | None:
        """Pin what was pinned before, and give it; None where that was nothing. Raises BuildError where there is none
        before."""
        with self._alone():
            before = self._pins()[1:]
            if not before:
                raise BuildError("nothing was pinned before: there is nothing to go back to")
            self._write(before)
            return before[0]

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """No other process changes the pin meanwhile. Raises BuildError for what the disk does."""
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            folder = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                fcntl.flock(folder, fcntl.LOCK_EX)
                yield
            finally:
                os.close(folder)
        except OSError as error:
            raise BuildError(
                f"{self.folder / PIN} cannot be written ({error.strerror}): the pin is as it was"
            ) from None

    def _pins(self) -> list[Path | None]:
        try:
            said = json.loads((self.folder / PIN).read_text(encoding="utf-8"))
            return [None if word is None else self.folder / str(word) for word in list(said["pins"])]
        except FileNotFoundError:
            return [None]  # the choice is automatic
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise BuildError(
                f"{self.folder / PIN} cannot be read ({error}); remove it, or pin an engine anew"
            ) from None

    def _write(self, pins: list[Path | None]) -> None:
        """Inside our folder by its place there, so that a data directory can be moved."""
        words = [self._word(pin) for pin in pins[:REMEMBERED]]
        atomic_write(self.folder / PIN, json.dumps({"pins": words}, indent=2).encode())

    def _word(self, program: Path | None) -> str | None:
        if program is None:
            return None
        inside = program.is_relative_to(self.folder)
        return str(program.relative_to(self.folder) if inside else program)

    # --- coming and going -------------------------------------------------------------------------------------------

    @contextmanager
    def staging(self) -> Iterator[Path]:
        """A folder beside the builds in which one may be made; gone afterwards, also those that were left when somebody
        pulled the plug. One at a time. Raises BuildError."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with (self.folder / LOCK).open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise BuildError("another gridsched engine command is at work in this data directory") from None
            for left in self.folder.glob(f"{_UNFINISHED}*"):
                shutil.rmtree(left, ignore_errors=True)
            place = Path(tempfile.mkdtemp(prefix=_UNFINISHED, dir=self.folder))
            try:
                yield place
            finally:
                shutil.rmtree(place, ignore_errors=True)

    def check_name(self, name: str) -> None:
        """Raises BuildError where a build cannot be called so."""
        if _NAME.fullmatch(name) is None or name.startswith(PIN) or name == AUTO:
            raise BuildError(
                f"{name!r} is no name for a build: at most {LONGEST_NAME} letters, digits, dots, dashes, beginning with"
                " a letter or digit; choose one with --name"
            )
        if (self.folder / name).exists():
            raise BuildError(
                f"there is a build {name} already: gridsched engine use {name} pins it. For another of that name choose"
                f" one with --name, or remove {self.folder / name}"
            )

    def add(self, tree: Path, build: Installed) -> Installed:
        """Move a finished tree to its place under its name. `build.program` lies in the tree. Raises BuildError."""
        self.check_name(build.name)
        program = build.program.relative_to(tree)
        about = {key: value for key, value in asdict(build).items() if key != "name"} | {"program": str(program)}
        atomic_write(tree / ABOUT, json.dumps(about, indent=2).encode())
        place = self.folder / build.name
        tree.rename(place)
        return Installed(**{**asdict(build), "program": place / program})


def program_in(tree: Path) -> Path | None:
    """The engine's program in an unpacked tree: the one that lies least deep, in there itself; made executable, which
    some archives do not tell."""
    whole = tree.resolve()
    ours = (path for path in tree.rglob(PROGRAM) if path.is_file() and path.resolve().is_relative_to(whole))
    found = sorted(ours, key=lambda path: (len(path.parts), path))
    if not found:
        return None
    found[0].chmod(found[0].stat().st_mode | 0o755)
    return found[0]
