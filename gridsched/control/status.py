"""`GET /api/status`: one snapshot in words, for people and panels. Durations end at its moment.

Owns the types of this answer.
"""

from collections.abc import Mapping
from typing import Annotated, Final

from msgspec import Meta

from gridsched import __version__
from gridsched.control.jobs import RunningJob, WaitingJob, running, waiting
from gridsched.control.reloading import Reloader
from gridsched.control.verb import Answer
from gridsched.core.ids import DeviceName
from gridsched.core.job import JobClass
from gridsched.core.snapshot import DeviceView, InstanceView, Snapshot
from gridsched.runtime.decisions import rfc3339
from gridsched.runtime.runtime import Runtime

MOST_SHOWN: Final = 50
"""Waiting jobs of each class: a glance, and whoever watches is told twice a second."""


class ForeignProgram(Answer, frozen=True, kw_only=True):
    """A program that is none of ours."""

    pid: int
    name: str
    bytes: Annotated[int | None, Meta(description="What it holds; null where the driver does not tell.")]


class LeaseStatus(Answer, frozen=True, kw_only=True):
    """A device that is somebody else's for now."""

    owner: str
    state: Annotated[str, Meta(description="requested, draining or held.")]
    left_s: Annotated[float | None, Meta(description="How long it still is; null where time alone does not end it.")]


class DeviceStatus(Answer, frozen=True, kw_only=True):
    """One device, and who holds its memory."""

    name: str
    total_bytes: int
    used_bytes: Annotated[int, Meta(description="All that is taken, by whomever.")]
    external_bytes: Annotated[int, Meta(description="What programs outside hold.")]
    reserved_bytes: Annotated[int, Meta(description="What is kept for processes that live.")]
    freeing_bytes: Annotated[int, Meta(description="What those that end will give back.")]
    lost_bytes: Annotated[int, Meta(description="What a process that is gone never gave back.")]
    headroom_bytes: Annotated[int, Meta(description="What is never planned.")]
    mode: Annotated[str, Meta(description="interactive while people chat there, else open.")]
    pressure: Annotated[bool, Meta(description="Whether programs outside take so much that models must go.")]
    available: Annotated[bool, Meta(description="Whether it answers.")]
    unavailable_since: Annotated[str | None, Meta(description="Since when it does not, a time.")]
    why: Annotated[str | None, Meta(description="Its driver's word for that.")]
    foreign: Annotated[tuple[ForeignProgram, ...], Meta(description="Programs outside that hold it, largest first.")]
    lease: Annotated[LeaseStatus | None, Meta(description="Whose it is for now.")]


class MemoryPressure(Answer, frozen=True, kw_only=True):
    """Shares (0 to 1) of the last ten seconds in which work waited for memory."""

    some: float
    full: float


class HostStatus(Answer, frozen=True, kw_only=True):
    """The machine."""

    memory_pressure: Annotated[MemoryPressure | None, Meta(description="Null where the system does not tell.")]


class Slots(Answer, frozen=True, kw_only=True):
    """What a process can do at once."""

    total: int
    busy: int


class InstanceStatus(Answer, frozen=True, kw_only=True):
    """One process of a model."""

    id: int
    model: str
    state: Annotated[str, Meta(description="starting, ready, draining, stopping or lost.")]
    tier: Annotated[str, Meta(description="pinned, hot or cold.")]
    devices: tuple[str, ...]
    ctx_size: Annotated[int, Meta(description="Tokens of context for all slots together.")]
    slots: Slots
    paused: Annotated[bool, Meta(description="It stands still while people chat (S10).")]
    reserved_bytes: int
    device_bytes: Annotated[Mapping[DeviceName, int], Meta(description="What each device reserves for it.")]
    estimated_bytes: int
    measured_bytes: Annotated[int | None, Meta(description="What it really takes; null until that is known.")]
    host_held_bytes: Annotated[int | None, Meta(description="What it holds of host memory; null where nobody tells.")]
    since_s: Annotated[float, Meta(description="For how long it is there.")]
    idle_s: Annotated[float, Meta(description="For how long it was not used.")]
    expires_s: Annotated[float | None, Meta(description="When it is unloaded if it stays idle; null for never.")]


class QueueStatus(Answer, frozen=True, kw_only=True):
    """One class of jobs."""

    length: Annotated[int, Meta(description="How many wait.")]
    running: int
    oldest_wait_s: Annotated[float | None, Meta(description="How long the longest has waited; null where none waits.")]


class BackOff(Answer, frozen=True, kw_only=True):
    """Why a model does not load, and when that is tried again."""

    retry_after_s: float
    reason: str


class Status(Answer, frozen=True, kw_only=True):
    """What there is at one moment."""

    time: Annotated[str, Meta(description="This moment, by the server's clock.")]
    version: Annotated[str, Meta(description="The server's.")]
    draining: Annotated[bool, Meta(description="Whether it takes nobody new.")]
    devices: tuple[DeviceStatus, ...]
    host: HostStatus
    instances: tuple[InstanceStatus, ...]
    queues: Annotated[Mapping[str, QueueStatus], Meta(description="By class.")]
    waiting: Annotated[
        tuple[WaitingJob, ...],
        Meta(description=f"The first {MOST_SHOWN} of each class, and what they wait for; list_jobs has them all."),
    ]
    running: Annotated[tuple[RunningJob, ...], Meta(description="Whose step runs, and on which process.")]
    failed: Annotated[Mapping[str, BackOff], Meta(description="Models whose loads fail.")]
    config_error: Annotated[str | None, Meta(description="Why the configuration on disk is not what runs.")]
    config_needs_restart: Annotated[
        tuple[str, ...], Meta(description="Its settings that hold only once the server is started again.")
    ]


def status(runtime: Runtime, reloader: Reloader | None = None) -> Status:
    """What there is at this moment: devices, processes, queues, who waits and why, models in back-off."""
    now, jobs = runtime.snapshot(), runtime.jobs(MOST_SHOWN)
    return Status(
        time=rfc3339(runtime.wall_seconds_at(now.at)),
        version=__version__,
        draining=now.draining,
        devices=tuple(_device(runtime, view, now.at) for view in now.devices),
        host=HostStatus(memory_pressure=_pressure(runtime)),
        instances=tuple(_instance(view, now.at) for view in now.instances),
        queues={job_class.label: _queue(now, job_class) for job_class in JobClass},
        waiting=tuple(map(waiting, jobs.waiting)),
        running=tuple(map(running, jobs.running)),
        failed={
            name: BackOff(retry_after_s=round(max(0.0, retry_at - now.at), 3), reason=why)
            for name, (retry_at, why) in now.failed.items()
        },
        config_error=reloader.error if reloader is not None else None,
        config_needs_restart=reloader.needs_restart if reloader is not None else (),
    )


def _queue(now: Snapshot, job_class: JobClass) -> QueueStatus:
    length = now.queue_lengths.get(job_class, 0)
    return QueueStatus(
        length=length,
        running=now.running.get(job_class, 0),
        oldest_wait_s=round(now.oldest_wait_seconds.get(job_class, 0.0), 3) if length else None,
    )


def _pressure(runtime: Runtime) -> MemoryPressure | None:
    told = runtime.parts.pressure()
    return None if told is None else MemoryPressure(some=told.some, full=told.full)


def availability(runtime: Runtime, view: DeviceView) -> dict[str, object]:
    """Whether a device answers; since when it does not, by the wall clock, and the driver's word for it (D6)."""
    return {
        "available": view.lost_since_seconds is None,
        "unavailable_since": _since(runtime, view),
        "why": view.lost_why or None,
    }


def _since(runtime: Runtime, view: DeviceView) -> str | None:
    lost_since = view.lost_since_seconds
    return None if lost_since is None else rfc3339(runtime.wall_seconds_at(lost_since))


def _device(runtime: Runtime, view: DeviceView, at: float) -> DeviceStatus:
    return DeviceStatus(
        name=view.name,
        total_bytes=view.total_bytes,
        used_bytes=view.used_bytes,
        external_bytes=view.external_bytes,
        reserved_bytes=view.reserved_bytes,
        freeing_bytes=view.freeing_bytes,
        lost_bytes=view.lost_bytes,
        headroom_bytes=view.headroom_bytes,
        mode="interactive" if view.interactive_mode else "open",
        pressure=view.pressure,
        available=view.lost_since_seconds is None,
        unavailable_since=_since(runtime, view),
        why=view.lost_why or None,
        foreign=tuple(ForeignProgram(pid=one.pid, name=one.name, bytes=one.bytes) for one in view.foreign),
        lease=_lease(view, at),
    )


def _lease(view: DeviceView, at: float) -> LeaseStatus | None:
    lease = view.lease
    if lease is None:
        return None
    left_s = None if lease.until_seconds is None else round(max(0.0, lease.until_seconds - at), 3)
    return LeaseStatus(owner=lease.owner, state=lease.state.value, left_s=left_s)


def _instance(view: InstanceView, at: float) -> InstanceStatus:
    return InstanceStatus(
        id=view.id,
        model=view.model,
        state=view.state.value,
        tier=view.tier.value,
        devices=view.devices,
        ctx_size=view.ctx_size,
        slots=Slots(total=view.parallel, busy=view.slots_busy),
        paused=view.paused,
        reserved_bytes=view.reserved_bytes,
        device_bytes=view.device_bytes,
        estimated_bytes=view.estimated_bytes,
        measured_bytes=view.measured_bytes,
        host_held_bytes=view.host_held_bytes,
        since_s=round(at - view.since_seconds, 3),
        idle_s=round(at - view.last_used_seconds, 3),
        expires_s=None if view.expires_at_seconds is None else round(max(0.0, view.expires_at_seconds - at), 3),
    )
