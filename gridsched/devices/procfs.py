"""What Linux says about memory and processes under /proc.

Owns the reading of those files: numbers out, no policy. Must never signal a process, and never decides what a
figure means for planning. Every function takes the root it reads, so that a test can lay one out in a folder.
"""

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from gridsched.devices import groups
from gridsched.devices.groups import CGROUP
from gridsched.ports import MemoryPressure

PROC = Path("/proc")


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
    return min([_meminfo_bytes(proc, "MemAvailable"), *groups.room_bytes(proc, cgroup)])


def total_bytes(proc: Path = PROC, cgroup: Path = CGROUP) -> int:
    """The memory there is, or the least that a control group above this process allows of it.

    Raises MemoryUnreadable as `available_bytes` does.
    """
    return min([_meminfo_bytes(proc, "MemTotal"), *groups.limits_bytes(proc, cgroup)])


def memory_pressure(proc: Path = PROC, cgroup: Path = CGROUP) -> MemoryPressure | None:
    """How much of the last ten seconds was lost in waiting for memory, in the whole machine or in our control group,
    whichever is worse. None where the kernel does not tell."""
    files = [proc / "pressure" / "memory", *groups.pressure_files(proc, cgroup)]
    found = [pressure for path in files if (pressure := _pressure_in(path)) is not None]
    if not found:
        return None
    return MemoryPressure(max(each.some for each in found), max(each.full for each in found))


def _pressure_in(path: Path) -> MemoryPressure | None:
    """A file's lines are `some avg10=1.23 avg60=… avg300=… total=…` and the same for `full`, in per cent."""
    shares = {}
    try:
        for line in path.read_text(errors="replace").splitlines():
            kind, first = line.split()[:2]
            shares[kind] = float(first.removeprefix("avg10=")) / 100
        return MemoryPressure(shares["some"], shares["full"])
    except (OSError, ValueError, KeyError):
        return None


def _meminfo_bytes(proc: Path, name: str) -> int:
    try:
        fields = _kib_fields(proc / "meminfo")
    except OSError as error:
        raise MemoryUnreadable(f"free memory cannot be read from {proc / 'meminfo'}: {error.strerror}") from error
    if name not in fields:
        raise MemoryUnreadable(f"{proc / 'meminfo'} has no {name} line")
    return fields[name]


def process_trees(pids: Collection[int], proc: Path = PROC) -> Mapping[int, frozenset[int]]:
    """Each pid with all its descendants, as /proc names them: an engine behind a wrapper script is a grandchild. One
    pass over /proc."""
    children: defaultdict[int, list[int]] = defaultdict(list)
    if pids:
        for pid, parent in _parents(proc):
            children[parent].append(pid)
    names = _names_in(proc, pids)
    return {pid: frozenset(_descend(names[pid], children)) if pid in names else frozenset() for pid in pids}


def _names_in(proc: Path, pids: Collection[int]) -> Mapping[int, int]:
    """What /proc calls these processes: the same, where it is of our own pid namespace, as it nearly always is.

    In a container that sees its host's /proc, a process has a number in each namespace from there down to its own: the
    last one is what we know it by, if it is in the namespace that we are in (D4).
    """
    depth = len(_namespaced(proc / "self"))
    home = _namespace(proc / "self")
    if not pids or depth < 2 or home is None:  # noqa: PLR2004 - one number: no namespace lies between
        return {pid: pid for pid in pids}
    names = {}
    for folder in proc.glob("[0-9]*"):
        numbers = _namespaced(folder)
        if len(numbers) == depth and numbers[-1] in pids and _namespace(folder) == home:
            names[numbers[-1]] = int(folder.name)
    return names


def _namespaced(folder: Path) -> tuple[int, ...]:
    """A process's numbers, from the namespace of /proc down to its own; none where that cannot be read."""
    try:
        lines = (folder / "status").read_text(errors="replace").splitlines()
        return next((tuple(map(int, line.split()[1:])) for line in lines if line.startswith("NSpid:")), ())
    except (OSError, ValueError):
        return ()


def _namespace(folder: Path) -> str | None:
    try:
        return str((folder / "ns" / "pid").readlink())
    except OSError:
        return None


def name_of(pid: int, proc: Path = PROC) -> str:
    """What the system calls a process, in characters that can be printed; empty when it is not there."""
    try:
        text = (proc / str(pid) / "comm").read_text(errors="replace").strip()
    except OSError:
        return ""
    return "".join(each if each.isprintable() else "?" for each in text) or "?"


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
