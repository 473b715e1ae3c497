"""What there is to compute on, found once at start: the cards, else a budget of host memory.

Owns that choice and the sentences that say it. Never loads or runs anything on a device.
"""

from dataclasses import dataclass
from pathlib import Path

from gridsched.devices import amd, nvml
from gridsched.devices.cards import CardMonitor
from gridsched.devices.choice import Usable, Wanted, all_of, choose
from gridsched.devices.groups import CGROUP
from gridsched.devices.host import HostBesideCards, HostMonitor, default_budget_bytes
from gridsched.devices.procfs import PROC, MemoryUnreadable
from gridsched.devices.together import Together
from gridsched.ports import DeviceMonitor, HostMemory


class NoDevice(Exception):
    """There is nothing to plan with; the sentence says what to set."""


@dataclass(frozen=True, slots=True)
class Roots:
    """Where the system tells what there is; tests lay out their own."""

    proc: Path = PROC
    cgroup: Path = CGROUP
    sys: Path = amd.SYS


@dataclass(frozen=True, slots=True)
class Found:
    """The monitor to use, and one sentence for each thing a person should know about the choice. `host`: the memory
    beside cards, where the system tells it."""

    monitor: DeviceMonitor
    notes: tuple[str, ...]
    host: HostMemory | None = None


def discover(
    wanted: Wanted, host_budget_bytes: int | None = None, usable: Usable = all_of, roots: Roots | None = None
) -> Found:
    """Find the devices. Blocks for as long as a driver takes to open (a second where cards sleep).

    `usable` says which cards the engine can compute on; where it can use none, the host is planned, and that is said.

    Raises NoDevice where there is no card and the system does not tell its free memory either.
    """
    roots = roots or Roots()
    monitor, notes = find_cards(wanted, usable, roots)
    if monitor is not None:
        if host_budget_bytes is not None:
            notes += ("devices.host_budget is not used, because there is a GPU.",)
        try:
            return Found(monitor, notes, HostBesideCards(wanted.headroom, roots.proc, roots.cgroup))
        except MemoryUnreadable as error:
            return Found(monitor, (*notes, f"What launches take of host memory is not checked: {error}."))
    if host_budget_bytes is not None:
        budget_bytes, origin = host_budget_bytes, "as configured"
    else:
        try:
            budget_bytes = default_budget_bytes(roots.proc, roots.cgroup)
        except MemoryUnreadable as error:
            raise NoDevice(f"No GPU was found, and {error}. Set devices.host_budget, for example 8GiB.") from error
        origin = "half of what is free now; devices.host_budget changes it"
    note = f"No GPU in use: models run on the processor, in {budget_bytes / 2**30:.1f} GiB of host memory ({origin})."
    return Found(HostMonitor(budget_bytes, wanted.headroom, roots.proc, roots.cgroup), (*notes, note))


def find_cards(
    wanted: Wanted, usable: Usable = all_of, roots: Roots | None = None
) -> tuple[DeviceMonitor | None, tuple[str, ...]]:
    """The cards to plan with, of all drivers, and a sentence for each thing that a person should know; no monitor where
    there is none to plan with. The drivers of those that are used stay open."""
    roots = roots or Roots()
    nvidia, notes = nvml.list_cards()
    radeon, more = amd.list_cards(roots.sys, roots.proc)
    infos, said = choose([*nvidia, *radeon], wanted, usable)
    ours = {card.uuid for card in nvidia}
    green = tuple(info for info in infos if info.uuid in ours)
    red = tuple(info for info in infos if info.uuid not in ours)
    monitors: list[DeviceMonitor] = []
    if green:
        monitors.append(CardMonitor(green, nvml.NvmlDriver(), roots.proc, roots.cgroup))
    else:
        nvml.close()
    if red:
        monitors.append(CardMonitor(red, amd.AmdDriver(roots.sys, roots.proc), roots.proc, roots.cgroup))
    told = (*notes, *more, *said)
    if not monitors:
        return None, told
    return (monitors[0] if len(monitors) == 1 else Together(monitors)), told
