"""What Linux says about memory and processes under /proc and in the control group.

Owns the reading of those files: numbers out, no policy. Must never signal a process, and never decides what a
figure means for planning. Every function takes the root it reads, so that a test can lay one out in a folder.
"""

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
CGROUP = Path("/sys/fs/cgroup")


class MemoryUnreadable(Exception):
    """The system does not say how much memory is free; the sentence says what was tried."""


@dataclass(frozen=True, slots=True)
class ProcessMemory:
    """What one process holds. `file_bytes` is its share of mapped files, which the kernel calls available too."""

    total_bytes: int
    file_bytes: int

    def __add__(self, other: "ProcessMemory") -> "ProcessMemory":
        return ProcessMemory(self.total_bytes + other.total_bytes, self.file_bytes + other.file_bytes)


def available_bytes(proc: Path = PROC, cgroup: Path = CGROUP) -> int:
    """Memory that new work could take: the kernel's MemAvailable, or less where a control group allows less.

    Raises MemoryUnreadable where there is no /proc/meminfo (another system than Linux).
    """
    return min([_meminfo_bytes(proc, "MemAvailable"), *_group_room_bytes(proc, cgroup)])


def total_bytes(proc: Path = PROC, cgroup: Path = CGROUP) -> int:
    """The memory there is, or the least that a control group above this process allows of it.

    Raises MemoryUnreadable as `available_bytes` does.
    """
    return min([_meminfo_bytes(proc, "MemTotal"), *(limit for _, limit in _limited_groups(proc, cgroup))])


def _meminfo_bytes(proc: Path, name: str) -> int:
    try:
        fields = _kib_fields(proc / "meminfo")
    except OSError as error:
        raise MemoryUnreadable(f"free memory cannot be read from {proc / 'meminfo'}: {error.strerror}") from error
    if name not in fields:
        raise MemoryUnreadable(f"{proc / 'meminfo'} has no {name} line")
    return fields[name]


def process_trees(pids: Collection[int], proc: Path = PROC) -> Mapping[int, frozenset[int]]:
    """Each pid with all its descendants: an engine behind a wrapper script is a grandchild. One pass over /proc."""
    children: defaultdict[int, list[int]] = defaultdict(list)
    if pids:
        for pid, parent in _parents(proc):
            children[parent].append(pid)
    return {pid: frozenset(_descend(pid, children)) for pid in pids}


def memory_of(pids: Collection[int], proc: Path = PROC) -> ProcessMemory | None:
    """The resident memory of these processes together, None where none of them can be read.

    A weights file that two engines map is charged to each: either may be left alone with it, and a measurement is kept
    for a start at which it is (L2). Of mapped files each has its share (PSS), all of it where smaps_rollup is closed.
    """
    readings = [reading for pid in pids if (reading := _one_memory(proc / str(pid))) is not None]
    return sum(readings[1:], start=readings[0]) if readings else None


def unshared_bytes(pids: Collection[int], proc: Path = PROC) -> int | None:
    """What these processes hold that nobody else can have: anonymous pages, and what is swapped out. None where none of
    them can be read."""
    known = [fields for pid in pids if "RssAnon" in (fields := _status(proc / str(pid)))]
    return sum(fields["RssAnon"] + fields.get("VmSwap", 0) for fields in known) if known else None


def _status(folder: Path) -> Mapping[str, int]:
    try:
        return _kib_fields(folder / "status")
    except OSError:
        return {}  # it has ended


def _one_memory(folder: Path) -> ProcessMemory | None:
    try:
        fields = _kib_fields(folder / "smaps_rollup")
        return ProcessMemory(fields["Rss"], fields.get("Pss_File", 0))
    except (OSError, KeyError):
        pass  # closed to us, an old kernel, or a process that is just ending: the status file is tried
    try:
        fields = _kib_fields(folder / "status")
        return ProcessMemory(fields["VmRSS"], fields.get("RssFile", 0))
    except (OSError, KeyError):
        return None  # gone, or a zombie: it holds nothing


def _kib_fields(path: Path) -> dict[str, int]:
    """The `Name:  123 kB` lines of a file, in bytes. Other lines are passed over."""
    fields = {}
    for line in path.read_text(errors="replace").splitlines():
        name, _, rest = line.partition(":")
        words = rest.split()
        if len(words) == 2 and words[1] == "kB" and words[0].isdigit():  # noqa: PLR2004 - a number and its unit
            fields[name] = int(words[0]) * 1024
    return fields


def _parents(proc: Path) -> Iterator[tuple[int, int]]:
    """Every process that there is, with its parent; nobody on a system without /proc."""
    for stat in proc.glob("[0-9]*/stat"):
        try:
            # The command name may hold spaces and brackets: the fields begin after its last bracket.
            yield int(stat.parent.name), int(stat.read_text(errors="replace").rpartition(")")[2].split()[1])
        except (OSError, IndexError, ValueError):
            continue  # ended while we looked


def _descend(pid: int, children: Mapping[int, list[int]]) -> Iterator[int]:
    waiting = [pid]
    while waiting:
        current = waiting.pop()
        yield current
        waiting.extend(children.get(current, ()))


def _group_room_bytes(proc: Path, cgroup: Path) -> Iterator[int]:
    """What each limited control group above this process leaves: limit - use + reclaimable file pages."""
    for group, limit in _limited_groups(proc, cgroup):
        try:
            current = int((group / "memory.current").read_text())
            stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
            yield max(0, limit - current + int(stat.get("inactive_file", "0")))
        except (OSError, ValueError):
            continue


def _limited_groups(proc: Path, cgroup: Path) -> Iterator[tuple[Path, int]]:
    """Each control group (version 2) above this process that has a limit, with it in bytes."""
    try:
        lines = (proc / "self" / "cgroup").read_text().splitlines()
    except OSError:
        return
    own = next((line.removeprefix("0::/") for line in lines if line.startswith("0::/")), None)
    if own is None:
        return
    folder = cgroup / own
    for group in (folder, *folder.parents):
        if not group.is_relative_to(cgroup):
            return
        try:
            limit = (group / "memory.max").read_text().strip()
            if limit != "max":
                yield group, int(limit)
        except (OSError, ValueError):
            continue  # the root group has no limits, and a group may be hidden from us
