"""What our processes hold of host memory that nobody else can have (M11).

Owns the thread in which /proc is read for it. Must never count mapped files: the kernel may drop them, and
weights are such.
"""

from collections.abc import Mapping
from functools import partial
from pathlib import Path

import trio

from gridsched.core.ids import InstanceId
from gridsched.devices.procfs import PROC, process_trees, unshared_bytes
from gridsched.threads import in_thread


class HostHeld:
    """A `ports.HeldOnHost`."""

    def __init__(self, proc: Path = PROC) -> None:
        self._proc = proc
        self._limiter = trio.CapacityLimiter(1)

    async def __call__(self, processes: Mapping[InstanceId, int]) -> Mapping[InstanceId, int]:
        """Bytes of each process and its descendants."""
        work = partial(self._read, dict(processes))
        return await in_thread(work, limiter=self._limiter, abandon_on_cancel=True)

    def _read(self, processes: Mapping[InstanceId, int]) -> Mapping[InstanceId, int]:
        trees = process_trees(set(processes.values()), self._proc)
        held = {instance: unshared_bytes(trees[pid], self._proc) for instance, pid in processes.items()}
        return {instance: size for instance, size in held.items() if size is not None}
