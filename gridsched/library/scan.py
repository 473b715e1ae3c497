"""The GGUF files in the folders where models lie: found, read, told apart, never copied or moved.

Owns how far to look. A file that cannot be used becomes an entry with its reason, and the rest go on.
Blocks while it reads: the caller makes the call in a thread.
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from gridsched.library.llama_cache import origin_of, origins
from gridsched.library.names import presentable
from gridsched.library.projectors import why_no_model
from gridsched.library.read import Unreadable, real_path
from gridsched.library.shards import SUFFIX, ModelFile, first_part, is_later_part, read_model, stem_of

MAX_DEPTH = 6  # the hub's cache needs five: models--X--Y/snapshots/REVISION/FOLDER/FILE
MAX_FOLDERS = 5_000
MAX_FILES = 2_000
"""Bounds on one scan, so that `dirs: [/]` ends. A library of 2000 models takes about a minute to read."""


@dataclass(frozen=True, slots=True)
class Indexed:
    """A model found in a folder. `problem` says why it cannot be served (then `file` is None).

    `publisher` and `repo` are "" where the folders do not tell.
    """

    path: Path
    stem: str
    publisher: str = ""
    repo: str = ""
    file: ModelFile | None = None
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class Index:
    """What a scan found, in a stable order, and sentences about what it did not look at."""

    models: tuple[Indexed, ...]
    notes: tuple[str, ...] = ()


def scan_folders(folders: Sequence[Path]) -> Index:
    """Read every model under these folders. What cannot be looked at becomes a note."""
    notes: list[str] = []
    models: dict[tuple[str, str, str], Indexed] = {}
    seen: set[Path] = set()
    for root in folders:
        flat = origins(root)
        for path in _gguf_files(root, notes):
            if is_later_part(path) and os.access(first_part(path), os.F_OK):
                continue
            real = real_path(path)
            if real in seen:
                continue  # the same file by another link
            seen.add(real)
            found = _read(root, path, flat)
            if found.file is None or why_no_model(found.file) is None:
                _keep_newest(models, found, notes)
    return Index(tuple(models.values()), tuple(notes))


def _read(root: Path, path: Path, flat: tuple[tuple[str, str], ...]) -> Indexed:
    publisher, repo = _origin(root, path)
    stem = presentable(stem_of(path))
    if path.parent == root and (known := origin_of(path.name, flat)) is not None:
        publisher, repo, stem = known.publisher, known.repo, presentable(stem_of(Path(known.name)))
    try:
        file = read_model(path)
    except Unreadable as error:
        return Indexed(path, stem, publisher, repo, problem=str(error))
    return Indexed(path, stem, publisher, repo, file)


def _origin(root: Path, path: Path) -> tuple[str, str]:
    """Publisher and repository, told by `PUBLISHER/REPO/…/FILE` or the hub cache's `models--PUBLISHER--REPO/…`."""
    folders = [presentable(part) for part in path.relative_to(root).parts[:-1]]
    for folder in folders:
        if folder.startswith("models--") and folder.count("--") == 2:  # noqa: PLR2004 - both separators
            _, publisher, repo = folder.split("--")
            return publisher, repo
    return (folders[0], folders[1]) if len(folders) >= 2 else ("", "")  # noqa: PLR2004 - the two names


def _keep_newest(models: dict[tuple[str, str, str], Indexed], found: Indexed, notes: list[str]) -> None:
    """One name, one file: of two with the same origin and name (two revisions in a cache) the newer one serves."""
    key = (found.publisher, found.repo, found.stem)
    other = models.get(key)
    if other is None:
        models[key] = found
        return
    newest = max((other, found), key=lambda one: one.file.created if one.file else -1)
    models[key] = newest
    dropped = found if newest is other else other
    notes.append(f"{dropped.path} is not served: {newest.path} has the same name and is newer.")


def _gguf_files(root: Path, notes: list[str]) -> Iterator[Path]:
    """GGUF files under a folder, breadth first, in order of their names; what is hidden is passed over."""
    waiting = [(root, 0)]
    entered: set[Path] = set()
    files = 0
    while waiting:
        folder, depth = waiting.pop(0)
        real = real_path(folder)
        if real in entered:
            continue  # a link that leads back
        entered.add(real)
        if len(entered) > MAX_FOLDERS:
            notes.append(f"{root} holds more than {MAX_FOLDERS} folders: the rest was not looked at.")
            return
        for entry in _entries(folder, notes):
            if entry.name.startswith("."):
                continue
            if _is_folder(entry):
                if depth < MAX_DEPTH:
                    waiting.append((Path(entry.path), depth + 1))
            elif entry.name.lower().endswith(SUFFIX):
                files += 1
                if files > MAX_FILES:
                    notes.append(f"{root} holds more than {MAX_FILES} GGUF files: the rest was not looked at.")
                    return
                yield Path(entry.path)


def _entries(folder: Path, notes: list[str]) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return sorted(entries, key=lambda entry: entry.name)
    except OSError as error:
        notes.append(f"{folder} cannot be looked into: {error.strerror}.")
        return []


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False  # a link that leads back to itself: left to the reading of files, if it is named like one
