"""Cards behind `ports.DeviceMonitor`, whichever driver reads them.

Owns what is the same for all drivers: one call at a time in a thread that may be given up, the loss of cards and the
pauses until they are asked again, one line for each change, and whose a process is. What a driver says of a card is
the driver's (`nvml`, `amd`). Must never keep anything of a driver between two readings.
"""

import logging
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Protocol

import trio

from gridsched.core.events import DeviceRead, Foreign
from gridsched.core.ids import DeviceName, InstanceId
from gridsched.devices.difference import Difference, Seen
from gridsched.devices.groups import CGROUP
from gridsched.devices.procfs import PROC, MemoryUnreadable, available_bytes, name_of, process_trees
from gridsched.ports import DeviceInfo
from gridsched.threads import in_thread

CALL_SECONDS = 4.0
"""A reading that takes longer is given up: the cards are lost until the call returns. Less than the sampler waits.
Opening a card that sleeps was seen to take a second."""

RETRY_FIRST_SECONDS = 1.0
RETRY_LONGEST_SECONDS = 60.0
"""How long a lost card is left alone between attempts to open its driver again; doubled each time. A guess: a driver
update takes minutes, and opening costs a card that sleeps about a second."""

FLAP_LINES, FLAP_SECONDS = 10, 600.0
"""So many lines about one card in so long are enough."""

MOST_FOREIGN = 16
"""So many programs outside are told of a card: on a desktop dozens draw, and hold a few megabytes each."""

HANGS = f"its driver did not answer for {CALL_SECONDS:g} s"

_log = logging.getLogger(__name__)


class Silent(Exception):
    """A card gave no reading; the driver's words say why."""


@dataclass(frozen=True, slots=True)
class Glimpse:
    """What a driver says of a card: `used_bytes` of everybody, None where its memory is the host's; `by_pid`, who is
    on it, with None where the driver tells no figure."""

    used_bytes: int | None
    by_pid: Mapping[int, int | None] = field(default_factory=dict)


class CardDriver(Protocol):
    """One kind of card. Called in a thread, one call at a time."""

    def reopen(self) -> str | None:
        """Close and open the driver. None when it is open, else why not."""

    def look(self, info: DeviceInfo, pids: frozenset[int]) -> Glimpse:
        """One card now; `pids` are ours, for a driver that has to be asked of each. Raises Silent."""


@dataclass(frozen=True, slots=True)
class _Looked:
    """What a thread brings back: the cards that answer, why others do not, whose pid is whose, and what the system
    calls the others."""

    glimpses: Mapping[DeviceName, Glimpse] = field(default_factory=dict)
    silent: Mapping[DeviceName, str] = field(default_factory=dict)
    families: Mapping[InstanceId, frozenset[int]] = field(default_factory=dict)
    living: frozenset[InstanceId] = frozenset()
    available_bytes: int | None = None
    names: Mapping[int, str] = field(default_factory=dict)


class CardMonitor:
    """A `ports.DeviceMonitor` over the cards of one driver. The driver is open when it is made."""

    def __init__(
        self, infos: tuple[DeviceInfo, ...], driver: CardDriver, proc: Path = PROC, cgroup: Path = CGROUP
    ) -> None:
        self._infos = infos
        self._driver = driver
        self._proc = proc
        self._cgroup = cgroup
        self._turn = trio.Lock()
        self._limiter = trio.CapacityLimiter(1)  # has no token while a call that was given up still hangs
        self._called_at = 0.0
        self._retry_at = 0.0
        self._retry_seconds = RETRY_FIRST_SECONDS
        self._silent: Mapping[DeviceName, str] = {}
        self._said: dict[DeviceName, deque[float]] = {}
        self._differences = {info.spec.name: Difference() for info in infos}
        self._pids: dict[InstanceId, int] = {}  # of all that were asked about and may live
        self._tells = False  # whether the driver ever told what one of ours holds: one it does not list is not there

    def devices(self) -> tuple[DeviceInfo, ...]:
        """The cards, as found at start. One that is lost later stays listed and is missing from the readings."""
        return self._infos

    def lost(self) -> Mapping[DeviceName, str]:
        """The cards that did not answer at the last reading, and why."""
        return self._silent

    def settled(self, instance_id: InstanceId) -> None:
        """An instance's launch is over."""
        for difference in self._differences.values():
            difference.settled(instance_id, trio.current_time())

    async def read(self, processes: Mapping[InstanceId, int]) -> tuple[DeviceRead, ...]:
        """One reading of each card that answers. A process of which neither the driver nor the growth of the card's use
        tells is missing from `held`."""
        async with self._turn:
            now = trio.current_time()
            self._pids.update(processes)
            looked = await self._look(now)
            self._note(looked.silent, now)
            self._pids = {one: pid for one, pid in self._pids.items() if one in looked.living or not looked.families}
            sights = {name: _sight(glimpse, looked.families) for name, glimpse in looked.glimpses.items()}
            self._tells = self._tells or any(sight.held for sight in sights.values())
            known = [info for info in self._infos if info.spec.name in sights]
            return tuple(self._told(info, sights, looked, processes, now) for info in known)

    async def _look(self, now: float) -> _Looked:
        """Ask those cards that answered last time, and the lost ones when it is time. A call that hangs is left to
        itself, and nothing is asked until it has returned."""
        if self._limiter.available_tokens == 0:  # somebody waited for it no longer, or it was given up
            return self._unanswered(now)
        again = bool(self._silent) and now >= self._retry_at
        asked = tuple(info for info in self._infos if again or info.spec.name not in self._silent)
        if not asked:
            return _Looked(silent=self._silent)
        if again:
            self._retry_seconds = min(self._retry_seconds * 2, RETRY_LONGEST_SECONDS)
            self._retry_at = now + self._retry_seconds
        work = partial(self._look_now, asked, dict(self._pids), reopen=again)
        self._called_at = now
        with trio.move_on_after(CALL_SECONDS):
            looked = await in_thread(work, limiter=self._limiter, abandon_on_cancel=True)
            return replace(looked, silent={**({} if again else self._silent), **looked.silent})
        return self._unanswered(trio.current_time())

    def _unanswered(self, now: float) -> _Looked:
        """Nothing is seen, and all cards are lost where a call hangs: one that has not begun, for want of a thread,
        does not."""
        hangs = self._limiter.available_tokens == 0 and now >= self._called_at + CALL_SECONDS
        return _Looked(silent={info.spec.name: HANGS for info in self._infos} if hangs else self._silent)

    def _look_now(self, asked: tuple[DeviceInfo, ...], processes: Mapping[InstanceId, int], *, reopen: bool) -> _Looked:
        """In the thread."""
        if reopen and (problem := self._driver.reopen()) is not None:
            return _Looked(silent={info.spec.name: problem for info in self._infos})
        trees = process_trees(set(processes.values()), self._proc)
        families = {instance: trees[pid] for instance, pid in processes.items()}
        ours = frozenset().union(*families.values())
        glimpses, silent = {}, {}
        for info in asked:
            try:
                glimpses[info.spec.name] = self._driver.look(info, ours)
            except Silent as error:
                silent[info.spec.name] = str(error)
        living = (one for one, pids in families.items() if any((self._proc / str(pid)).exists() for pid in pids))
        shared = any(glimpse.used_bytes is None for glimpse in glimpses.values())
        others = {pid for glimpse in glimpses.values() for pid in glimpse.by_pid} - ours
        names = {pid: name_of(pid, self._proc) for pid in others}
        spare_bytes = self._available_bytes() if shared else None
        return _Looked(glimpses, silent, families, frozenset(living), spare_bytes, names)

    def _available_bytes(self) -> int | None:
        try:
            return available_bytes(self._proc, self._cgroup)
        except MemoryUnreadable:
            return None

    def _note(self, silent: Mapping[DeviceName, str], now: float) -> None:
        """One line when a card goes silent and one when it is back, never one for each poll."""
        new, back = silent.keys() - self._silent.keys(), self._silent.keys() - silent.keys()
        for name in sorted(new):
            self._say(name, f"{name} cannot be read any more: {silent[name]}. Its last figures are kept.", now)
        for name in sorted(back):
            self._say(name, f"{name} can be read again.", now)
        if new or not silent:
            self._retry_seconds = RETRY_FIRST_SECONDS
            self._retry_at = now + self._retry_seconds
        self._silent = dict(silent)

    def _say(self, name: DeviceName, line: str, now: float) -> None:
        """A card that comes and goes every second does not fill the log."""
        said = self._said.setdefault(name, deque(maxlen=FLAP_LINES))
        if len(said) == FLAP_LINES and now < said[0] + FLAP_SECONDS:
            return
        said.append(now)
        if len(said) == FLAP_LINES and now < said[0] + FLAP_SECONDS:
            line += f" It comes and goes: of more than {FLAP_LINES} changes in {FLAP_SECONDS:g} s the rest is not told."
        _log.warning("%s", line)

    def _told(
        self,
        info: DeviceInfo,
        sights: "Mapping[DeviceName, _Sight]",
        looked: _Looked,
        processes: Mapping[InstanceId, int],
        now: float,
    ) -> DeviceRead:
        """A card's reading, of what was looked at."""
        name, total_bytes, sight = info.spec.name, info.spec.total_bytes, sights[info.spec.name]
        grown: Mapping[InstanceId, int] = {}
        if sight.used_bytes is None:
            used_bytes = _used_of_host(total_bytes, sum(sight.held.values()), looked.available_bytes)
        else:
            used_bytes = sight.used_bytes
            nameless = self._nameless(name, sights, looked.living)
            seen = Seen(used_bytes, sight.held, nameless, sight.listed, sight.others)
            grown = self._differences[name].read(seen, looked.living, now)
        held = {**grown, **sight.held}
        return DeviceRead(
            device=name,
            total_bytes=total_bytes,
            used_bytes=used_bytes,
            held=tuple((one, held[one]) for one in processes if one in held),
            by_difference=frozenset(grown.keys() & processes.keys()),
            foreign=_foreign(sight.others, looked.names),
        )

    def _nameless(
        self, name: DeviceName, sights: "Mapping[DeviceName, _Sight]", living: frozenset[InstanceId]
    ) -> frozenset[InstanceId]:
        """The living of ours that may be on a card and of which the driver tells no figure there.

        One that is listed somewhere is nowhere else. One that is listed nowhere may be anywhere, where the driver
        has never told a figure of ours: else it has not come to a card yet.
        """
        told = frozenset().union(*(sight.held for sight in sights.values()))
        somewhere = frozenset().union(*(sight.listed for sight in sights.values()))
        anywhere = frozenset() if self._tells else living - told - somewhere
        return (sights[name].listed & living - told) | anywhere


@dataclass(frozen=True, slots=True)
class _Sight:
    """A glimpse, with names: what each of ours holds, those that are listed without a figure, and everybody else."""

    used_bytes: int | None
    held: Mapping[InstanceId, int]
    listed: frozenset[InstanceId]
    others: Mapping[int, int | None]


def _sight(glimpse: Glimpse, families: Mapping[InstanceId, frozenset[int]]) -> _Sight:
    held, listed = {}, set()
    for instance, pids in families.items():
        rows = [glimpse.by_pid[pid] for pid in pids if pid in glimpse.by_pid]
        figures = [size for size in rows if size is not None]
        if figures and len(figures) == len(rows):
            held[instance] = sum(figures)
        elif rows:
            listed.add(instance)
    ours = frozenset().union(*families.values())
    others = {pid: size for pid, size in glimpse.by_pid.items() if pid not in ours}
    return _Sight(glimpse.used_bytes, held, frozenset(listed), others)


def _foreign(others: Mapping[int, int | None], names: Mapping[int, str]) -> tuple[Foreign, ...]:
    """The largest of the others first, those without a figure last. What has no name has ended meanwhile."""
    found = [Foreign(pid, names[pid], size) for pid, size in others.items() if names.get(pid)]
    found.sort(key=lambda one: (-(one.bytes or 0), one.pid))
    return tuple(found[:MOST_FOREIGN])


def _used_of_host(total_bytes: int, held_bytes: int, available_bytes: int | None) -> int:
    """The use of a card whose memory is the host's: ours, and what the host could not give us of the rest now."""
    unused_bytes = max(0, total_bytes - held_bytes)
    spare_bytes = unused_bytes if available_bytes is None else min(unused_bytes, available_bytes)
    return total_bytes - spare_bytes
