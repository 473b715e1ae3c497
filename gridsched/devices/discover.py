"""What there is to compute on, found once at start: the cards, else a budget of host memory.

Owns that choice and the sentences that say it. Never loads or runs anything on a device.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from threading import Thread

from gridsched.devices import amd, nvml
from gridsched.devices.cards import CardMonitor
from gridsched.devices.choice import Card, Usable, Wanted, all_of, choose
from gridsched.devices.groups import CGROUP
from gridsched.devices.host import HostBesideCards, HostMonitor, default_budget_bytes
from gridsched.devices.procfs import PROC, MemoryUnreadable
from gridsched.devices.together import Together
from gridsched.ports import DeviceMonitor, HostMemory
from gridsched.threads import begin

OPEN_SECONDS = 30.0
"""A driver that does not list its cards in this time hangs, and is not used. Cards that sleep take a second each."""

Listed = tuple[list[Card], list[str]]


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
    beside cards, where the system tells it. `silent`: those of the notes that are of a driver or a card that is there
    and did not answer. `holders`: who has memory on the cards that are planned, bytes by pid, 0 where that is not
    told."""

    monitor: DeviceMonitor
    notes: tuple[str, ...]
    host: HostMemory | None = None
    silent: tuple[str, ...] = ()
    holders: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Cards:
    """What the drivers tell: of `monitor` and `holders` as in `Found`, and what is said, with what does not answer
    apart."""

    monitor: DeviceMonitor | None
    silent: tuple[str, ...]
    said: tuple[str, ...]
    holders: Mapping[int, int]


def discover(
    wanted: Wanted, host_budget_bytes: int | None = None, usable: Usable = all_of, roots: Roots | None = None
) -> Found:
    """Find the devices. Blocks for as long as a driver takes to open (a second where cards sleep).

    `usable` says which cards the engine can compute on; where it can use none, the host is planned, and that is said.

    Raises NoDevice where there is no card and the system does not tell its free memory either.
    """
    roots = roots or Roots()
    cards = _find_cards(wanted, usable, roots, OPEN_SECONDS)
    silent, notes = cards.silent, (*cards.silent, *cards.said)
    if cards.monitor is not None:
        if host_budget_bytes is not None:
            notes += ("devices.host_budget is not used, because there is a GPU.",)
        host: HostMemory | None = None
        try:
            host = HostBesideCards(wanted.headroom, roots.proc, roots.cgroup)
        except MemoryUnreadable as error:
            notes += (f"What launches take of host memory is not checked: {error}.",)
        return Found(cards.monitor, notes, host, silent, cards.holders)
    if host_budget_bytes is not None:
        budget_bytes, origin = host_budget_bytes, "as configured"
    else:
        try:
            budget_bytes = default_budget_bytes(roots.proc, roots.cgroup)
        except MemoryUnreadable as error:
            raise NoDevice(f"No GPU was found, and {error}. Set devices.host_budget, for example 8GiB.") from error
        origin = "half of what is free now; devices.host_budget changes it"
    note = f"No GPU in use: models run on the processor, in {budget_bytes / 2**30:.1f} GiB of host memory ({origin})."
    monitor = HostMonitor(budget_bytes, wanted.headroom, roots.proc, roots.cgroup)
    return Found(monitor, (*notes, note), silent=silent)


def find_cards(
    wanted: Wanted, usable: Usable = all_of, roots: Roots | None = None, open_seconds: float = OPEN_SECONDS
) -> tuple[DeviceMonitor | None, tuple[str, ...]]:
    """The cards to plan with, of all drivers, and a sentence for each thing that a person should know; no monitor where
    there is none to plan with. The drivers of those that are used stay open."""
    cards = _find_cards(wanted, usable, roots or Roots(), open_seconds)
    return cards.monitor, (*cards.silent, *cards.said)


def _find_cards(wanted: Wanted, usable: Usable, roots: Roots, open_seconds: float) -> _Cards:
    nvidia, notes = _in_time("NVIDIA", nvml.list_cards, open_seconds)
    radeon, more = _in_time("AMD", partial(amd.list_cards, roots.sys, roots.proc), open_seconds)
    infos, said = choose([*nvidia, *radeon], wanted, usable)
    ours = {card.uuid for card in nvidia}
    green = tuple(info for info in infos if info.uuid in ours)
    red = tuple(info for info in infos if info.uuid not in ours)
    monitors: list[DeviceMonitor] = []
    if green:
        monitors.append(CardMonitor(green, nvml.NvmlDriver(), roots.proc, roots.cgroup))
    elif nvidia:
        nvml.close()
    if red:
        monitors.append(CardMonitor(red, amd.AmdDriver(roots.sys, roots.proc), roots.proc, roots.cgroup))
    monitor = Together(monitors) if len(monitors) > 1 else next(iter(monitors), None)
    return _Cards(monitor, (*notes, *more), tuple(said), _holders(nvidia, {info.uuid for info in infos}))


def _holders(cards: Iterable[Card], uuids: Collection[str]) -> Mapping[int, int]:
    """Over all of these cards: a process may have memory on several."""
    held: Counter[int] = Counter()
    for card in cards:
        if card.uuid in uuids:
            held.update(card.holders)
    return held


def _in_time(maker: str, listing: Callable[[], Listed], seconds: float) -> Listed:
    """What a driver lists. One that hangs is left to a thread that keeps nobody from ending."""
    listed: Future[Listed] = Future()

    def work() -> None:
        try:
            listed.set_result(listing())
        except BaseException as error:  # noqa: BLE001 - raised again where it is waited for
            listed.set_exception(error)

    try:
        begin(Thread(target=work, name=f"{maker} cards", daemon=True))
        return listed.result(seconds)
    except TimeoutError:
        return [], [f"The {maker} driver did not list its cards within {seconds:g} s: none of them is used."]
    except OSError as error:  # no thread, or no descriptor
        return [], [f"The {maker} driver could not be asked for its cards: {error.strerror}. None of them is used."]
