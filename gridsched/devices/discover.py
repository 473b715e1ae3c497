"""What there is to compute on, found once at start: the cards, else a budget of host memory.

Owns that choice and the sentences that say it. Never loads or runs anything on a device.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gridsched.devices.headroom import Headroom
from gridsched.devices.host import HostBesideCards, HostMonitor, default_budget_bytes
from gridsched.devices.nvml import Usable, all_of, find_cards
from gridsched.devices.procfs import CGROUP, PROC, MemoryUnreadable
from gridsched.ports import DeviceMonitor, HostMemory


class NoDevice(Exception):
    """There is nothing to plan with; the sentence says what to set."""


@dataclass(frozen=True, slots=True)
class Found:
    """The monitor to use, and one sentence for each thing a person should know about the choice. `host`: the memory
    beside cards, where the system tells it."""

    monitor: DeviceMonitor
    notes: tuple[str, ...]
    host: HostMemory | None = None


def discover(
    headroom: Headroom,
    host_budget_bytes: int | None = None,
    ignore: Sequence[str] = (),
    *,
    usable: Usable = all_of,
    proc: Path = PROC,
    cgroup: Path = CGROUP,
) -> Found:
    """Find the devices. Blocks for as long as the driver takes to open (a second where cards sleep).

    `usable` says which cards the engine can compute on; where it can use none, the host is planned, and that is said.

    Raises NoDevice where there is no card and the system does not tell its free memory either.
    """
    cards = find_cards(headroom, ignore, usable)
    if cards.monitor is not None:
        notes = cards.notes
        if host_budget_bytes is not None:
            notes += ("devices.host_budget is not used, because there is a GPU.",)
        try:
            return Found(cards.monitor, notes, HostBesideCards(headroom, proc, cgroup))
        except MemoryUnreadable as error:
            return Found(cards.monitor, (*notes, f"What launches take of host memory is not checked: {error}."))
    if host_budget_bytes is not None:
        budget_bytes, origin = host_budget_bytes, "as configured"
    else:
        try:
            budget_bytes = default_budget_bytes(proc, cgroup)
        except MemoryUnreadable as error:
            raise NoDevice(f"No GPU was found, and {error}. Set devices.host_budget, for example 8GiB.") from error
        origin = "half of what is free now; devices.host_budget changes it"
    note = f"No GPU in use: models run on the processor, in {budget_bytes / 2**30:.1f} GiB of host memory ({origin})."
    return Found(HostMonitor(budget_bytes, headroom, proc, cgroup), (*cards.notes, note))
