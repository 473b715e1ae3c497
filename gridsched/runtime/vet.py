"""Whether a process that answers holds of its cards what a launch like it must: one that quietly computes on the
processor instead holds next to nothing there (B16).

Owns the question and its sentence. Must never fail a launch for what nobody can tell: a driver without a figure, a card
that is lost, a reading that takes too long.
"""

from collections.abc import Mapping
from contextlib import suppress

import trio

from gridsched.core.events import DeviceRead
from gridsched.core.ids import InstanceId
from gridsched.core.model import LaunchOption
from gridsched.core.reservation import PLAUSIBLE_PART
from gridsched.ports import Backend, DeviceMonitor

VET_SECONDS = 2.0
"""A driver that takes longer is not waited for: people may be."""


async def too_little(
    monitor: DeviceMonitor, processes: Mapping[InstanceId, int], instance_id: InstanceId, option: LaunchOption
) -> str | None:
    """A sentence where the driver knows of an instance and of far less memory than its launch was estimated to take on
    its cards; else None. `processes` are all that live (pid by instance), because a monitor is asked for them all."""
    cards = {info.spec.name for info in monitor.devices() if info.backend is not Backend.CPU}
    reads: tuple[DeviceRead, ...] = ()
    with suppress(OSError), trio.move_on_after(VET_SECONDS):
        reads = await monitor.read(processes)
    told = [read for read in reads if instance_id not in read.by_difference]
    held = {read.device: size for read in told for each, size in read.held if each == instance_id}
    known = [part for part in option.footprint if part.device in cards and part.device in held]
    held_bytes = sum(held[part.device] for part in known)
    estimated_bytes = sum(part.total_bytes for part in known)
    if held_bytes * PLAUSIBLE_PART >= estimated_bytes:
        return None
    where = ", ".join(part.device for part in known)
    return (
        f"the engine answers, but holds {_size(held_bytes)} on {where}, where this launch takes about"
        f" {_size(estimated_bytes)}: it computes on the processor, or in memory that the driver moves about"
    )


def _size(size: int) -> str:
    return f"{size / 2**20:.0f} MiB"
