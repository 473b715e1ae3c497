"""Host memory: as the one device there is where no GPU was found, and beside the cards where there are some.

Owns what "used" means for the first, and the size of the second. Must never kill, limit or move a
process: it only reads. Processes are read in a thread, because the kernel walks page tables for smaps_rollup
(milliseconds for each gigabyte).

The one device's total is the budget, not the machine's memory. *Used* is what our processes hold, and besides that only
what the rest of the machine has taken *out of the budget*: as long as the machine could still give us all of the
budget we have not used, programs outside cost us nothing. Which programs those are is not told: what the machine
lacks is nobody's more than anybody else's, and nearly all of them hold host memory.
"""

from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path

import trio

from gridsched.core.events import DeviceRead
from gridsched.core.ids import DeviceName, InstanceId
from gridsched.core.model import DeviceSpec
from gridsched.devices.groups import CGROUP
from gridsched.devices.headroom import Headroom
from gridsched.devices.procfs import (
    PROC,
    MemoryUnreadable,
    available_bytes,
    memory_of,
    process_trees,
    total_bytes,
)
from gridsched.ports import Backend, DeviceInfo
from gridsched.threads import in_thread

HOST = DeviceName("host")


def default_budget_bytes(proc: Path = PROC, cgroup: Path = CGROUP) -> int:
    """Half of the memory that is free now. Half, so that the person's own programs and the page cache keep the rest.

    Raises MemoryUnreadable.
    """
    return available_bytes(proc, cgroup) // 2


class HostBesideCards:
    """A `ports.HostMemory`: the machine's memory, or what a control group allows of it. Raises MemoryUnreadable."""

    def __init__(self, headroom: Headroom, proc: Path = PROC, cgroup: Path = CGROUP) -> None:
        self._headroom = headroom
        self._proc = proc
        self._cgroup = cgroup
        self._size_bytes = total_bytes(proc, cgroup)

    @property
    def spec(self) -> DeviceSpec:
        """Its size now; the last one that was read, where it cannot be read any more."""
        with suppress(MemoryUnreadable):
            self._size_bytes = total_bytes(self._proc, self._cgroup)
        return DeviceSpec(HOST, self._size_bytes, self._headroom.of(self._size_bytes))

    def available_bytes(self) -> int | None:
        """What new work could take now; None where it cannot be read. Three small files: it needs no thread."""
        try:
            return available_bytes(self._proc, self._cgroup)
        except MemoryUnreadable:
            return None


class HostMonitor:
    """A `ports.DeviceMonitor` of one device named `host`."""

    def __init__(self, budget_bytes: int, headroom: Headroom, proc: Path = PROC, cgroup: Path = CGROUP) -> None:
        spec = DeviceSpec(HOST, budget_bytes, headroom.of(budget_bytes), held_as_touched=True)
        self._info = DeviceInfo(spec=spec, label="host memory", backend=Backend.CPU)
        self._proc = proc
        self._cgroup = cgroup
        self._limiter = trio.CapacityLimiter(1)

    def devices(self) -> tuple[DeviceInfo, ...]:
        """The host, alone."""
        return (self._info,)

    async def read(self, processes: Mapping[InstanceId, int]) -> tuple[DeviceRead, ...]:
        """One reading. An instance whose process cannot be read is missing from `held`."""
        work = partial(self._read, dict(processes))
        return (await in_thread(work, limiter=self._limiter, abandon_on_cancel=True),)

    def lost(self) -> Mapping[DeviceName, str]:
        """Host memory is never lost."""
        return {}

    def settled(self, instance_id: InstanceId) -> None:
        """Host memory is told for each process: nothing depends on it."""

    def _read(self, processes: Mapping[InstanceId, int]) -> DeviceRead:
        trees = process_trees(set(processes.values()), self._proc)
        memories = {instance: memory_of(trees[pid], self._proc) for instance, pid in processes.items()}
        known = {instance: memory for instance, memory in memories.items() if memory is not None}
        held_bytes = sum(memory.total_bytes for memory in known.values())
        file_bytes = sum(memory.file_bytes for memory in known.values())
        budget_bytes = self._info.spec.total_bytes
        return DeviceRead(
            device=HOST,
            total_bytes=budget_bytes,
            used_bytes=held_bytes + self._lack_bytes(budget_bytes - held_bytes, file_bytes),
            held=tuple((instance, memory.total_bytes) for instance, memory in known.items()),
        )

    def _lack_bytes(self, unused_bytes: int, file_bytes: int) -> int:
        """How much of the unused budget the machine could not give us now.

        Our engines' mapped weights are page cache, which MemAvailable counts as free for the asking. They are needed
        where they are, so they are taken off before the comparison.
        """
        try:
            spare_bytes = available_bytes(self._proc, self._cgroup) - file_bytes
        except MemoryUnreadable:
            return 0  # a budget given by hand on a system that tells nothing: the budget is taken at its word
        return max(0, unused_bytes - max(0, spare_bytes))
