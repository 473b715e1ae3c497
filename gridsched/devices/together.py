"""Several monitors as one: cards of two drivers in one machine. Owns nothing but the order of their devices."""

from collections.abc import Mapping, Sequence
from contextlib import suppress

import trio

from gridsched.core.events import DeviceRead
from gridsched.core.ids import DeviceName, InstanceId
from gridsched.devices.choice import pci_address
from gridsched.ports import DeviceInfo, DeviceMonitor


class Together:
    """A `ports.DeviceMonitor` over others, which are read at the same time. Devices are in the order of their names'
    numbers, as they would be with one driver."""

    def __init__(self, monitors: Sequence[DeviceMonitor]) -> None:
        self._monitors = tuple(monitors)
        infos = (info for monitor in monitors for info in monitor.devices())
        self._infos = tuple(sorted(infos, key=lambda info: pci_address(info.pci_bus)))

    def devices(self) -> tuple[DeviceInfo, ...]:
        """All devices."""
        return self._infos

    async def read(self, processes: Mapping[InstanceId, int]) -> tuple[DeviceRead, ...]:
        """One reading of each device that answers; none of those whose monitor is out of descriptors."""
        reads: dict[DeviceName, DeviceRead] = {}

        async def read_one(monitor: DeviceMonitor) -> None:
            with suppress(OSError):
                reads.update((read.device, read) for read in await monitor.read(processes))

        async with trio.open_nursery() as nursery:
            for monitor in self._monitors:
                nursery.start_soon(read_one, monitor)
        return tuple(reads[info.spec.name] for info in self._infos if info.spec.name in reads)

    def lost(self) -> Mapping[DeviceName, str]:
        """All that are lost."""
        return {name: why for monitor in self._monitors for name, why in monitor.lost().items()}

    def settled(self, instance_id: InstanceId) -> None:
        """Each of them is told."""
        for monitor in self._monitors:
            monitor.settled(instance_id)
