"""The two questions put to a device while the server runs: what is held now, and is a dead process's memory back?

Owns the rhythm of reading. Never decides: a reading is posted as it came. A monitor that does not answer within
READ_LIMIT_SECONDS, fails, or gives no reading of a device, posts nothing: the scheduler keeps its last figures.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

import trio

from gridsched.core.events import DeviceRead, MemoryReleased
from gridsched.core.ids import DeviceName, InstanceId
from gridsched.core.model import LaunchOption
from gridsched.ports import Backend, DeviceMonitor, Post

READ_LIMIT_SECONDS = 5.0
"""A driver that takes longer is not answering; the reading is given up and the next one tried."""

RELEASE_FIRST_SECONDS = 0.05
"""The first pause between two looks for released memory; it grows to the interval. Drivers give memory back while the
process exits, so the first look is nearly always the last, and a swap is not held up by the rhythm of polling."""


@dataclass(slots=True)
class Recent:
    """What the polling loop saw last, for whoever must judge a release: shared by `sample` and `verify_release`.

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


async def sample(
    monitor: DeviceMonitor,
    engine_processes: Callable[[], Mapping[InstanceId, int]],
    post: Post,
    interval_seconds: float,
    recent: Recent,
) -> None:
    """Read every device once in an interval and post what was read, until cancelled."""
    while True:
        processes = dict(engine_processes())
        reads = await _read(monitor, processes)
        recent.note(processes, reads)
        for read in reads:
            post(read)
        await trio.sleep(interval_seconds)


async def read_first(monitor: DeviceMonitor, post: Post) -> None:
    """Post one reading of every device before anything of ours runs: what others hold has to be known when the first
    model is planned."""
    for read in await _read(monitor, {}):
        post(read)


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
    processes = dict(recent.living)
    if instance_id in recent.pids:
        processes[instance_id] = recent.pids[instance_id]
    proof = _Proof(monitor, instance_id, option, recent, interval_seconds)
    pause_seconds = RELEASE_FIRST_SECONDS
    while not proof.given(reads := await _read(monitor, processes)):
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
