"""How often the kernel has killed a process for want of memory: what tells such a death from a person's kill -9.

Owns where the kernel counts them: the control group that we share with our processes (version 2, then 1), else the
whole machine. Reads files; knows nothing of processes but that one of them was killed.
"""

import re
from dataclasses import dataclass, field
from pathlib import Path

_COUNT = re.compile(r"^oom_kill (\d+)$", re.MULTILINE)


def _counters(root: Path) -> tuple[Path, ...]:
    """Files that may hold the count, the closest first."""
    try:
        groups = (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        groups = []
    paths: list[Path] = []
    for controllers, _, group in (line.partition(":")[2].partition(":") for line in groups):
        place = root / "sys/fs/cgroup"
        if not controllers:
            paths.append(place / group.lstrip("/") / "memory.events")
        elif "memory" in controllers.split(","):
            paths.append(place / "memory" / group.lstrip("/") / "memory.oom_control")
    return (*paths, root / "proc/vmstat")


@dataclass(slots=True)
class OomKills:
    """The count, and how many of those deaths have been told of a process of ours."""

    root: Path = Path("/")
    _told: int = field(default=0, init=False)

    def count(self) -> int | None:
        """How many there have been until now; None where the kernel does not say."""
        for path in _counters(self.root):
            try:
                found = _COUNT.search(path.read_text(encoding="ascii"))
            except (OSError, UnicodeDecodeError):
                continue
            if found is not None:
                return int(found[1])
        return None

    def took_one(self, before: int | None) -> bool | None:
        """Whether a process that was killed, and began at a count of `before`, was taken by one that has not been told
        of another yet; None where that is not known."""
        now = self.count()
        if before is None or now is None:
            return None
        first = max(before, self._told)
        if now <= first:
            return False
        self._told = first + 1
        return True
