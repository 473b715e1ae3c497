"""Devices whose headroom (L4) may become another while they are read: everybody sees the one that is set now.

Owns nothing but that figure. Must never change what a device says of itself.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from gridsched.core.events import DeviceRead
from gridsched.core.ids import DeviceName, InstanceId
from gridsched.core.model import DeviceSpec
from gridsched.devices.headroom import Headroom
from gridsched.ports import DeviceInfo, DeviceMonitor, HostMemory


@dataclass(slots=True)
class Margin:
    """What is never planned, of each device."""

    headroom: Headroom

    def of(self, spec: DeviceSpec) -> DeviceSpec:
        """A device with so much kept free."""
        return replace(spec, headroom_bytes=self.headroom.of(spec.total_bytes))


class MonitorWithin:
    """A `ports.DeviceMonitor` over another."""

    def __init__(self, monitor: DeviceMonitor, margin: Margin) -> None:
        self._monitor = monitor
        self._margin = margin

    def devices(self) -> tuple[DeviceInfo, ...]:
        """The devices, each with the headroom of now."""
        return tuple(replace(info, spec=self._margin.of(info.spec)) for info in self._monitor.devices())

    async def read(self, processes: Mapping[InstanceId, int]) -> tuple[DeviceRead, ...]:
        """As the other reads."""
        return await self._monitor.read(processes)

    def lost(self) -> Mapping[DeviceName, str]:
        """As the other says."""
        return self._monitor.lost()

    def settled(self, instance_id: InstanceId) -> None:
        """The other is told."""
        self._monitor.settled(instance_id)


class HostWithin:
    """A `ports.HostMemory` over another."""

    def __init__(self, host: HostMemory, margin: Margin) -> None:
        self._host = host
        self._margin = margin

    @property
    def spec(self) -> DeviceSpec:
        """Its size now, with the headroom of now."""
        return self._margin.of(self._host.spec)

    def available_bytes(self) -> int | None:
        """As the other says."""
        return self._host.available_bytes()
