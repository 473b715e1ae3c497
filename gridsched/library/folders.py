"""Whether other model files lie in the library's folders than were read last. Looks at names, sizes and times alone.

Owns what counts as a change: a file that is gone, and one that is new or another and has stood still between two
looks; one that is still being copied does not count yet, and a folder that is away as a whole (a disk that is not
mounted, a host of files that does not answer) has a while to come back. Must never open a file. Blocks: the caller
makes the call in a thread.
"""

import os
import stat
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gridsched.library.scan import MAX_DEPTH, MAX_FILES, MAX_FOLDERS
from gridsched.library.shards import SUFFIX

Seen = Mapping[str, tuple[int, int, int]]
"""Each file by its path: which it is, its size, and its time."""

SURE_NS = 1_000_000_000
"""A folder that changed this recently is listed again, whatever its time says: clocks of file systems are coarse."""

AWAY_LOOKS = 30
"""So many looks a library's folder may be away before its files count as gone: a minute, as a server looks."""

_NOWHERE = -1
"""The disk of a folder that cannot be read."""


@dataclass(frozen=True, slots=True)
class _Listing:
    """A folder as it was at a time of its own: its folders and its model files."""

    changed_ns: int
    folders: tuple[str, ...]
    files: tuple[str, ...]


@dataclass(slots=True)
class Folders:
    """What was seen of the folders. `seen` at the last look, `served` when the library was read last."""

    served: Seen = field(default_factory=dict)
    seen: Seen = field(default_factory=dict)
    _known: dict[str, _Listing] = field(default_factory=dict)
    _disks: dict[str, int] = field(default_factory=dict)
    _away: dict[str, int] = field(default_factory=dict)

    def look(self, roots: Sequence[Path], files: Sequence[Path]) -> Seen:
        """What is there now, under these folders and of these single files."""
        before, self._known = self._known, {}
        found: dict[str, tuple[int, int, int]] = {}
        for root in roots:
            self._note_away(str(root))
            for path in self._under(root, before):
                _add(found, path)
        for file in files:
            _add(found, str(file))
        return found

    def read(self, seen: Seen) -> None:
        """The library was read, as of that look."""
        self.served = self.seen = seen

    def changed(self, found: Seen) -> bool:
        """Whether the library is to be read again; then what was found counts as read. To be asked at each look."""
        before, self.seen = self.seen, found
        away = tuple(f"{root}/" for root, looks in self._away.items() if looks <= AWAY_LOOKS)
        gone = {path for path in self.served if path not in found and not path.startswith(away)}
        rested = {path: file for path, file in found.items() if before.get(path) == file != self.served.get(path)}
        if not gone and not rested:
            return False
        self.served = {path: file for path, file in self.served.items() if path not in gone} | rested
        return True

    def _note_away(self, root: str) -> None:
        """Whether a folder is there to be read, and on the disk it was on; else for how many looks it was not."""
        try:
            disk = os.stat(root).st_dev if os.access(root, os.R_OK | os.X_OK) else _NOWHERE  # noqa: PTH116 - as below
        except OSError:
            disk = _NOWHERE
        known = self._disks.get(root, disk)
        if known in (disk, _NOWHERE) or self._away.get(root, 0) > AWAY_LOOKS:
            self._away.pop(root, None)
            self._disks[root] = disk
        else:
            self._away[root] = self._away.get(root, 0) + 1

    def _under(self, root: Path, before: Mapping[str, _Listing]) -> Iterator[str]:
        """The model files under a folder, as far as a scan looks."""
        waiting, entered, files = [(str(root), 0)], set[tuple[int, int]](), 0
        for folder, depth in waiting:  # grows meanwhile
            try:
                found = os.stat(folder)  # noqa: PTH116 - thousands of them, and no Path is needed
            except OSError:
                continue
            if (found.st_dev, found.st_ino) in entered:
                continue
            entered.add((found.st_dev, found.st_ino))
            if len(entered) > MAX_FOLDERS:
                return
            listing = before.get(folder)
            if listing is None or listing.changed_ns != found.st_mtime_ns:
                listing = _listed(folder, found.st_mtime_ns)
            self._known[folder] = listing
            if depth < MAX_DEPTH:
                waiting += [(each, depth + 1) for each in listing.folders]
            for file in listing.files:
                files += 1
                if files > MAX_FILES:
                    return
                yield file


def _add(found: dict[str, tuple[int, int, int]], path: str) -> None:
    try:
        it = os.stat(path)  # noqa: PTH116 - the same
    except OSError:
        return
    if stat.S_ISREG(it.st_mode):
        found[path] = (it.st_ino, it.st_size, it.st_mtime_ns)


def _listed(folder: str, changed_ns: int) -> _Listing:
    folders, files = [], []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name.startswith("."):
                    continue
                if entry.name.lower().endswith(SUFFIX):
                    files.append(entry.path)
                elif entry.is_dir():
                    folders.append(entry.path)
    except OSError:
        pass  # the scan says so
    is_sure = time.time_ns() - changed_ns > SURE_NS
    return _Listing(changed_ns if is_sure else -1, tuple(sorted(folders)), tuple(sorted(files)))
