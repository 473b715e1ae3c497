"""Control groups, version 2 and 1: what they allow of memory, and what they leave.

Owns the reading of their files, from our own group up to the root that we see. A group that is hidden from us, as in a
container, is passed over: what is mounted as the root there is the container's own. Must never change a group.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

CGROUP = Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True)
class _Words:
    """What a version calls its files, and file pages that can be had back."""

    limits: tuple[str, ...]
    current: str
    reclaimable: str


_SECOND = _Words(("memory.max", "memory.high"), "memory.current", "inactive_file")
_FIRST = _Words(("memory.limit_in_bytes",), "memory.usage_in_bytes", "total_inactive_file")


def limits_bytes(proc: Path, cgroup: Path = CGROUP) -> Iterator[int]:
    """The limit of each group above this process that has one."""
    return (limit for _, _, limit in _limited(proc, cgroup))


def room_bytes(proc: Path, cgroup: Path = CGROUP) -> Iterator[int]:
    """What each of them leaves: limit - use + reclaimable file pages."""
    for group, words, limit in _limited(proc, cgroup):
        try:
            current = int((group / words.current).read_text())
            stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
            yield max(0, limit - current + int(stat.get(words.reclaimable, "0")))
        except (OSError, ValueError):
            continue


def pressure_files(proc: Path, cgroup: Path = CGROUP) -> Iterator[Path]:
    """Where our own group tells how its processes wait for memory; version 1 does not."""
    return (cgroup / own.lstrip("/") / "memory.pressure" for own, words in _own(proc) if words is _SECOND)


def _limited(proc: Path, cgroup: Path) -> Iterator[tuple[Path, _Words, int]]:
    """Each group above this process that has a limit, with it in bytes."""
    for own, words in _own(proc):
        root = cgroup if words is _SECOND else cgroup / "memory"
        folder = root / own.lstrip("/")
        for group in (folder, *folder.parents):
            if not group.is_relative_to(root):
                break
            limits = [limit for name in words.limits if (limit := _limit(group / name)) is not None]
            if limits:
                yield group, words, min(limits)


def _own(proc: Path) -> Iterator[tuple[str, _Words]]:
    """Our own groups. A line is `number:controllers:path`; version 2 has number 0 and no controllers."""
    try:
        lines = (proc / "self" / "cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            yield path, _SECOND
        elif "memory" in controllers.split(","):
            yield path, _FIRST


def _limit(path: Path) -> int | None:
    """None where there is none: the root group has no file, and the word for none is `max` (version 1 has a number that
    no machine reaches)."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None
