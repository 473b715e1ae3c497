"""Simulated cards behind `ports.DeviceMonitor`: sizes, who holds what, and memory that comes back late.

Owns the bytes of each card: what each simulated process holds, what a gone process has not given back yet, and what
programs outside take. It never decides anything, reads no wall clock (trio's clock only, so a jumping clock works) and
draws no randomness but from the generator it is given.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random

import trio

from gridsched.core.events import DeviceRead
from gridsched.core.ids import DeviceName, InstanceId
from gridsched.core.model import DeviceSpec
from gridsched.ports import Backend, DeviceInfo

GIB = 1 << 30
DEFAULT_CARDS = (16 * GIB,)
HEADROOM_SHARE = 0.03  # the first four simulated models, 15.5 GiB together, just live side by side on one card


class CardFull(Exception):
    """The card has less free memory than a process asks for: what the engine calls out of memory."""

    def __init__(self, device: DeviceName, asked_bytes: int, free_bytes: int) -> None:
        super().__init__(f"{device}: asked for {asked_bytes} bytes, {free_bytes} are free")
        self.device = device
        self.asked_bytes = asked_bytes
        self.free_bytes = free_bytes


@dataclass(slots=True)
class _Holding:
    """Bytes of one process on one card; once the process is gone, until when the card still counts them."""

    instance_id: InstanceId
    device: DeviceName
    held_bytes: int
    until: float | None = None


class SimulatedCards:
    """The device monitor of the simulation. `cards` are sizes in bytes, named sim0, sim1, … in order, or whole
    descriptions.

    `release_seconds` is the range that a gone process's memory lags behind its exit.
    """

    def __init__(
        self,
        cards: Sequence[int | DeviceSpec] = DEFAULT_CARDS,
        rng: Random | None = None,
        release_seconds: tuple[float, float] = (0.05, 0.4),
    ) -> None:
        self._rng = rng or Random(0)  # noqa: S311 - a simulation wants repeatable numbers, not secrets
        self.release_seconds = release_seconds
        self._infos = tuple(_info(index, card) for index, card in enumerate(cards))
        self._totals = {info.spec.name: info.spec.total_bytes for info in self._infos}
        self._foreign = dict.fromkeys(self._totals, 0)
        self._holdings: list[_Holding] = []

    # --- the port -----------------------------------------------------------------------------------------------

    def devices(self) -> tuple[DeviceInfo, ...]:
        """The cards, in order."""
        return self._infos

    async def read(self, processes: Mapping[InstanceId, int]) -> tuple[DeviceRead, ...]:
        """One reading of every card; what gone processes have not given back counts as used and is nobody's."""
        await trio.lowlevel.checkpoint()
        return tuple(
            DeviceRead(
                device=device,
                total_bytes=total,
                used_bytes=total - self.free_bytes(device),
                held=tuple((one, self._held(one, device)) for one in processes if self._lives(one)),
            )
            for device, total in self._totals.items()
        )

    def lost(self) -> Mapping[DeviceName, str]:
        """Simulated cards always answer."""
        return {}

    def settled(self, instance_id: InstanceId) -> None:
        """Simulated cards tell what each process holds: nothing depends on it."""

    # --- what the simulated engine and tests do to the cards ----------------------------------------------------

    def free_bytes(self, device: DeviceName) -> int:
        """What nobody holds at this moment."""
        now = trio.current_time()
        self._holdings = [one for one in self._holdings if one.until is None or one.until > now]
        used = sum(one.held_bytes for one in self._holdings if one.device == device)
        return self._totals[device] - self._foreign[device] - used

    def take(self, instance_id: InstanceId, device: DeviceName, taken_bytes: int) -> None:
        """Give a process more memory. Raises CardFull and changes nothing where it is not there."""
        free = self.free_bytes(device)
        if taken_bytes > free:
            raise CardFull(device, taken_bytes, free)
        self._holdings.append(_Holding(instance_id, device, taken_bytes))

    def let_go(self, instance_id: InstanceId) -> None:
        """The process is gone: its memory comes back after the lag, drawn once for the process."""
        until = trio.current_time() + self._rng.uniform(*self.release_seconds)
        for one in self._holdings:
            if one.instance_id == instance_id and one.until is None:
                one.until = until

    def set_foreign(self, device: DeviceName, foreign_bytes: int) -> None:
        """What programs outside hold, from now on. Their memory may exceed what is free: then free is negative."""
        self._foreign[device] = foreign_bytes

    def _held(self, instance_id: InstanceId, device: DeviceName) -> int:
        """Bytes of a living process on a card."""
        own = (one for one in self._holdings if one.instance_id == instance_id and one.device == device)
        return sum(one.held_bytes for one in own if one.until is None)

    def _lives(self, instance_id: InstanceId) -> bool:
        """Whether the driver still lists the process."""
        return any(one.instance_id == instance_id and one.until is None for one in self._holdings)


def _info(index: int, card: int | DeviceSpec) -> DeviceInfo:
    """The description of one simulated card."""
    spec = card if isinstance(card, DeviceSpec) else _spec(index, card)
    label = f"simulated card, {spec.total_bytes / GIB:.1f} GiB"
    return DeviceInfo(spec=spec, label=label, backend=Backend.SIMULATED, index=index, uuid=f"SIM-{index}")


def _spec(index: int, total_bytes: int) -> DeviceSpec:
    name = DeviceName(f"sim{index}")
    return DeviceSpec(name=name, total_bytes=total_bytes, headroom_bytes=int(total_bytes * HEADROOM_SHARE))
