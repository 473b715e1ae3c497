"""The questions put to devices while the server runs: what is held now, are they there at all, and is a dead process's
memory back?

Owns the rhythm of reading. Never decides: a reading is posted as it came. A monitor that does not answer within
READ_LIMIT_SECONDS, fails, or gives no reading of a device, posts nothing: the scheduler keeps its last figures, and is
told after BLIND_SECONDS that the device is lost.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

import trio

from gridsched.core.events import DeviceBack, DeviceLost, DeviceRead, HostMemoryRead, MemoryReleased
from gridsched.core.ids import DeviceName, InstanceId
from gridsched.core.model import LaunchOption
from gridsched.ports import Backend, DeviceMonitor, HeldOnHost, Post

READ_LIMIT_SECONDS = 5.0
"""A driver that takes longer is not answering; the reading is given up and the next one tried."""

BLIND_SECONDS = 30.0
"""A device that has given no reading for so long is lost: a guess, six readings that were given up."""

HOST_MEMORY_SECONDS = 5.0
"""Host memory leaks by requests, not by seconds; reading it takes a pass over /proc."""

RELEASE_FIRST_SECONDS = 0.05
"""The first pause between two looks for released memory; it grows to the interval. Drivers give memory back while the
process exits, so the first look is nearly always the last, and a swap is not held up by the rhythm of polling."""


@dataclass(slots=True)
class Recent:
    """What the polling loop saw last, for whoever must judge a release: shared by `Sampler` and `verify_release`.

    `living`: the processes at the last poll. `pids`: every process seen whose release is not yet proved.
    `held`: for each of those and each device, the bytes used there and the bytes it held, when it was last seen.
    """

    living: dict[InstanceId, int] = field(default_factory=dict)
    pids: dict[InstanceId, int] = field(default_factory=dict)
    held: dict[tuple[InstanceId, DeviceName], tuple[int, int]] = field(default_factory=dict)

    def note(self, processes: Mapping[InstanceId, int], reads: tuple[DeviceRead, ...]) -> None:
        """Remember one poll."""
        self.living = dict(processes)
        self.pids.update(processes)
        for read in reads:
            for instance, held_bytes in read.held:
                self.held[instance, read.device] = (read.used_bytes, held_bytes)

    def living_and(self, instance_id: InstanceId) -> Mapping[InstanceId, int]:
        """The processes at the last poll, and one that has ended since, if it was ever seen."""
        ended = {instance_id: self.pids[instance_id]} if instance_id in self.pids else {}
        return {**self.living, **ended}

    def forget(self, instance_id: InstanceId) -> None:
        """An instance's memory is back: nothing about it is needed any more."""
        self.living.pop(instance_id, None)
        self.pids.pop(instance_id, None)
        for key in [key for key in self.held if key[0] == instance_id]:
            del self.held[key]

    def has_dropped(self, instance_id: InstanceId, read: DeviceRead) -> bool:
        """At least half of what the instance held is gone from what is used; the rest may be others' growth."""
        used_bytes, held_bytes = self.held.get((instance_id, read.device), (0, 0))
        return held_bytes > 0 and read.used_bytes <= used_bytes - held_bytes // 2


class Sampler:
    """One reading of every device in an interval, posted as it came, and which of them are lost (D6).

    A device is lost when its monitor says so, or when it has given no reading for BLIND_SECONDS, whatever the reason.
    """

    def __init__(
        self,
        monitor: DeviceMonitor,
        engine_processes: Callable[[], Mapping[InstanceId, int]],
        post: Post,
        recent: Recent,
        interval_seconds: float = 1.0,
    ) -> None:
        self._monitor = monitor
        self._engine_processes = engine_processes
        self._post = post
        self._recent = recent
        self._interval_seconds = interval_seconds
        self._seen_at: dict[DeviceName, float] = {}
        self._lost: set[DeviceName] = set()
        self._hurry = trio.Event()

    async def run(self) -> None:
        """Read and post until cancelled."""
        while True:
            await self.read()
            with trio.move_on_after(self._interval_seconds):
                await self._hurry.wait()
            self._hurry = trio.Event()

    def hurry(self) -> None:
        """Read again at once: what was read last is older than it looks."""
        self._hurry.set()

    async def read(self) -> None:
        """One reading. The first is made before anything of ours runs: what others hold, and what there is at all, has
        to be known when the first model is planned."""
        for info in self._monitor.devices():
            self._seen_at.setdefault(info.spec.name, trio.current_time())
        processes = dict(self._engine_processes())
        reads = await _read(self._monitor, processes)
        self._recent.note(processes, reads)
        for read in reads:
            self._seen_at[read.device] = trio.current_time()
            self._post(read)
        self._tell(self._find_lost())

    def _find_lost(self) -> Mapping[DeviceName, str]:
        """The devices that are lost now, and why."""
        blind_since = trio.current_time() - BLIND_SECONDS
        why = f"it has given no reading for {BLIND_SECONDS:.0f} s"
        silent = {name: why for name, seen_at in self._seen_at.items() if seen_at <= blind_since}
        return {**silent, **self._monitor.lost()}

    def _tell(self, lost: Mapping[DeviceName, str]) -> None:
        """Once for each change. A device is back with its fresh figures posted before."""
        for name in sorted(lost.keys() - self._lost):
            self._post(DeviceLost(name, lost[name]))
        for name in sorted(self._lost - lost.keys()):
            self._post(DeviceBack(name))
        self._lost = set(lost)


class HostSampler:
    """What each process holds of host memory, posted once in an interval while there are any (M11)."""

    def __init__(
        self, held_on_host: HeldOnHost, engine_processes: Callable[[], Mapping[InstanceId, int]], post: Post
    ) -> None:
        self._held_on_host = held_on_host
        self._engine_processes = engine_processes
        self._post = post
        self._hurry = trio.Event()

    async def run(self) -> None:
        """Read and post until cancelled."""
        while True:
            with trio.move_on_after(HOST_MEMORY_SECONDS):
                await self._hurry.wait()
            self._hurry = trio.Event()
            if processes := dict(self._engine_processes()):
                with suppress(OSError):  # out of descriptors: the next reading may succeed
                    held = await self._held_on_host(processes)
                    self._post(HostMemoryRead(tuple(sorted(held.items()))))

    def hurry(self) -> None:
        """Read again at once: a process has become ready, and what it grows to is held against what it holds now."""
        self._hurry.set()


async def verify_release(
    monitor: DeviceMonitor,
    instance_id: InstanceId,
    option: LaunchOption,
    post: Post,
    recent: Recent,
    interval_seconds: float = 1.0,
) -> None:
    """Wait until an exited instance's memory is back on all devices of its launch, then post `MemoryReleased` (L5).

    The readings that proved it are posted first, so that the next load is planned with fresh figures. A process that
    stays listed is never released: the scheduler counts its memory as lost after its own time, and hears it if the
    memory comes back later. Runs until then or until cancelled.
    """
    proof = _Proof(monitor, instance_id, option, recent, interval_seconds)
    pause_seconds = RELEASE_FIRST_SECONDS
    while not proof.given(reads := await _read(monitor, recent.living_and(instance_id))):
        await trio.sleep(pause_seconds)
        pause_seconds = min(pause_seconds * 2, interval_seconds)
    recent.forget(instance_id)
    for read in reads:
        post(read)
    post(MemoryReleased(instance_id))


class _Proof:
    """Whether the readings so far prove that one instance's memory is back.

    A device has it back when a reading no longer lists the process there and either what is used has dropped by what
    the process held, or a whole interval has passed in which no reading listed it: with no figures for the process
    that is all that can be known, and memory that then stays used belongs to nobody of ours (L3). On the host the
    kernel takes memory back before a process can be waited for: its exit is the proof.
    """

    def __init__(
        self, monitor: DeviceMonitor, instance_id: InstanceId, option: LaunchOption, recent: Recent, wait_seconds: float
    ) -> None:
        cards = {info.spec.name for info in monitor.devices() if info.backend is not Backend.CPU}
        self._waiting = cards & set(option.devices)
        self._instance_id = instance_id
        self._recent = recent
        self._wait_seconds = wait_seconds
        self._unlisted_since: dict[DeviceName, float] = {}

    def given(self, reads: tuple[DeviceRead, ...]) -> bool:
        """Take one poll's readings into account."""
        now = trio.current_time()
        for read in reads:
            if self._instance_id in dict(read.held):
                self._unlisted_since.pop(read.device, None)
                continue
            since = self._unlisted_since.setdefault(read.device, now)
            if self._recent.has_dropped(self._instance_id, read) or now - since >= self._wait_seconds:
                self._waiting.discard(read.device)
        return not self._waiting


async def _read(monitor: DeviceMonitor, processes: Mapping[InstanceId, int]) -> tuple[DeviceRead, ...]:
    """One reading, none where it cannot be had now: out of descriptors or memory, the next one may succeed."""
    with suppress(OSError), trio.move_on_after(READ_LIMIT_SECONDS):
        return await monitor.read(processes)
    return ()
