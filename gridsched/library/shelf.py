"""The folder that gridsched keeps its downloads in: where each file goes, what lies there, what may be deleted.

Owns the names of partial files and the record of what was downloaded. Only what is in that record, at the very place,
is ever deleted: a file that a person put there is his. Must never touch a file outside of its folder.

Blocks for as long as the disk does. Raises OSError where that refuses, NotOurs for what is not to be touched.
"""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

from gridsched.files import atomic_write
from gridsched.library.hub import HubFile, Repo
from gridsched.library.offers import is_safe

PARTIAL = ".incomplete"
RECORD = ".gridsched.json"
MOST_PARTIALS = 1_000
_CHECKSUM_LETTERS = 12


class NotOurs(Exception):
    """A file that this server did not download; the sentence names it."""


@dataclass(frozen=True, slots=True)
class Partial:
    """What is there of a file: `id` is `PUBLISHER/REPO/PATH`."""

    id: str
    path: Path
    size_bytes: int


class Shelf:
    """One folder: `PUBLISHER/REPO/` and in it the repository's own paths."""

    def __init__(self, folder: Path) -> None:
        """Makes nothing: the folder comes with the first download."""
        self.folder = folder
        self._turn = Lock()
        """For the records: two downloads of one repository end in threads of their own."""

    def home(self, repo_id: str) -> Path:
        """A repository's folder."""
        return self.folder / repo_id

    def target(self, repo_id: str, path: str) -> Path:
        """Where a file of a repository goes. Raises NotOurs for a path that leads out."""
        if not is_safe(path):
            raise NotOurs(f"{path!r} is no path that a file of a repository can have here")
        return self.home(repo_id) / path

    def partial(self, repo_id: str, file: HubFile) -> Path:
        """Where it is until it is whole. It has a part of the checksum in its name: what came of one version is not
        taken for the beginning of another."""
        target = self.target(repo_id, file.path)
        return target.with_name(f"{target.name}.{(file.sha256 or file.blob_id)[:_CHECKSUM_LETTERS]}{PARTIAL}")

    def partials(self) -> tuple[Partial, ...]:
        """What is left of downloads that broke off, or are under way."""
        return tuple(self._partials())

    def _partials(self) -> Iterator[Partial]:
        found = 0
        for folder, _, names in os.walk(self.folder):
            for name in sorted(names):
                if name.endswith(PARTIAL) and found < MOST_PARTIALS:
                    found += 1
                    path = Path(folder) / name
                    stem = name.removesuffix(PARTIAL).rpartition(".")[0]
                    with suppress(OSError):
                        size = path.stat().st_size
                        yield Partial(str((Path(folder) / stem).relative_to(self.folder)), path, size)

    def put(self, repo: Repo, files: Sequence[HubFile]) -> None:
        """Give files that are whole their names, the first part of a set last: it is what makes a model of them."""
        with self._turn:
            self._note(repo.id, {**self._record(repo.id), **{file.path: _noted(repo, file) for file in files}})
        for file in sorted(files, key=lambda file: file.path, reverse=True):
            try:
                self.partial(repo.id, file).replace(self.target(repo.id, file.path))
            except FileNotFoundError:
                if not self.has(repo, file):  # another download of this repository had it, too: its projector
                    raise

    def has(self, repo: Repo, file: HubFile) -> bool:
        """Whether this very version is here, whole. Raises NotOurs where something else has its name."""
        target = self.target(repo.id, file.path)
        if not os.path.lexists(target):
            return False
        noted = self._record(repo.id).get(file.path)
        wanted = _noted(repo, file)
        same = noted is not None and all(noted.get(key) == wanted[key] for key in ("size_bytes", "checksum"))
        if same and not target.is_symlink() and target.stat().st_size == file.size_bytes:
            return True
        what = "another version of it" if noted is not None else "a file that this server did not download"
        raise NotOurs(f"{target} is there already, and is {what}; delete it first")

    def check_ours(self, path: Path) -> None:
        """Raises NotOurs for a file that was not downloaded by this server, into this folder."""
        real = Path(os.path.realpath(path))
        root = Path(os.path.realpath(self.folder))
        if root not in real.parents or path.is_symlink():
            raise NotOurs(f"{path} does not lie in {self.folder}, and only what this server downloaded is deleted")
        parts = real.relative_to(root).parts
        here = len(parts) > 2 and self._record("/".join(parts[:2])).get("/".join(parts[2:]))  # noqa: PLR2004 - the repo
        if not here:
            raise NotOurs(f"{path} was not downloaded by this server, and only what it downloaded is deleted")

    def remove(self, paths: Sequence[Path]) -> int:
        """Delete files that were downloaded; how many bytes that frees. Raises NotOurs before any of them goes."""
        for path in paths:
            self.check_ours(path)
        freed = 0
        for path in paths:
            real = Path(os.path.realpath(path))
            repo_id, inside = self._place(real)
            freed += real.stat().st_blocks * 512
            real.unlink()
            with self._turn:
                self._note(repo_id, {name: each for name, each in self._record(repo_id).items() if name != inside})
            self._tidy(real.parent)
        return freed

    def projectors_left_alone(self, paths: Sequence[Path]) -> tuple[Path, ...]:
        """Downloaded projectors that no model goes with once these files are gone."""
        found: list[Path] = []
        going = {Path(os.path.realpath(path)) for path in paths}
        for repo_id in {self._place(path)[0] for path in going}:
            root = Path(os.path.realpath(self.home(repo_id)))
            there = {root / name for name in self._record(repo_id)} - going
            projectors = {path for path in there if "mmproj" in path.name.lower()}
            if there == projectors:
                found += sorted(path for path in projectors if path.is_file())
        return tuple(found)

    def drop_partials(self, download_id: str) -> int:
        """Remove what is left of a download, and say how many bytes that was."""
        freed = 0
        for each in self.partials():
            if each.id == download_id:
                each.path.unlink(missing_ok=True)
                self._tidy(each.path.parent)
                freed += each.size_bytes
        return freed

    def _place(self, real: Path) -> tuple[str, str]:
        parts = real.relative_to(os.path.realpath(self.folder)).parts
        return "/".join(parts[:2]), "/".join(parts[2:])

    def _tidy(self, folder: Path) -> None:
        """Take away folders that are empty now, up to our own."""
        root = Path(os.path.realpath(self.folder))
        folder = Path(os.path.realpath(folder))
        with suppress(OSError):
            while root in folder.parents:
                folder.rmdir()
                folder = folder.parent

    def _note(self, repo_id: str, noted: Mapping[str, Mapping[str, object]]) -> None:
        record = self.home(repo_id) / RECORD
        if noted:
            atomic_write(record, json.dumps(noted, indent=1).encode(), 0o644)
        else:
            record.unlink(missing_ok=True)

    def _record(self, repo_id: str) -> Mapping[str, Mapping[str, object]]:
        """What of a repository was downloaded; nothing where its record cannot be read: then nothing is ours."""
        try:
            told = json.loads((self.home(repo_id) / RECORD).read_bytes())
        except (OSError, ValueError, RecursionError):
            return {}
        return told if isinstance(told, dict) and all(isinstance(each, dict) for each in told.values()) else {}


def _noted(repo: Repo, file: HubFile) -> dict[str, object]:
    return {"commit": repo.commit, "size_bytes": file.size_bytes, "checksum": file.sha256 or file.blob_id}
