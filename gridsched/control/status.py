"""`GET /api/status`: one snapshot in words, for people and panels. Durations end at its moment."""

from collections.abc import Mapping

from gridsched.control.jobs import waiting
from gridsched.core.job import JobClass
from gridsched.core.snapshot import DeviceView, InstanceView
from gridsched.ports import MemoryPressure
from gridsched.runtime.decisions import rfc3339
from gridsched.runtime.runtime import Runtime


def status(runtime: Runtime) -> dict[str, object]:
    """What there is at this moment: devices, processes, queues, who waits and why, models in back-off."""
    now = runtime.snapshot()
    return {
        "draining": now.draining,
        "devices": [_device(view) | availability(runtime, view) for view in now.devices],
        "host": {"memory_pressure": _pressure(runtime.parts.pressure())},
        "instances": [_instance(view, now.at) for view in now.instances],
        "queues": {
            job_class.label: {
                "length": now.queue_lengths.get(job_class, 0),
                "running": now.running.get(job_class, 0),
            }
            for job_class in JobClass
        },
        "waiting": [waiting(view) for view in runtime.jobs().waiting],
        "failed": {
            name: {"retry_after_s": round(max(0.0, retry_at - now.at), 3), "reason": why}
            for name, (retry_at, why) in now.failed.items()
        },
    }


def _pressure(told: MemoryPressure | None) -> Mapping[str, float] | None:
    return None if told is None else {"some": told.some, "full": told.full}


def availability(runtime: Runtime, view: DeviceView) -> dict[str, object]:
    """Whether a device answers; since when it does not, by the wall clock, and the driver's word for it (D6)."""
    lost_since = view.lost_since_seconds
    return {
        "available": lost_since is None,
        "unavailable_since": None if lost_since is None else rfc3339(runtime.wall_seconds_at(lost_since)),
        "why": view.lost_why or None,
    }


def _device(view: DeviceView) -> dict[str, object]:
    return {
        "name": view.name,
        "total_bytes": view.total_bytes,
        "used_bytes": view.used_bytes,
        "external_bytes": view.external_bytes,
        "reserved_bytes": view.reserved_bytes,
        "freeing_bytes": view.freeing_bytes,
        "lost_bytes": view.lost_bytes,
        "headroom_bytes": view.headroom_bytes,
        "mode": "interactive" if view.interactive_mode else "open",
        "pressure": view.pressure,
    }


def _instance(view: InstanceView, at: float) -> Mapping[str, object]:
    return {
        "id": view.id,
        "model": view.model,
        "state": view.state.value,
        "tier": view.tier.value,
        "devices": view.devices,
        "ctx_size": view.ctx_size,
        "slots": {"total": view.parallel, "busy": view.slots_busy},
        "paused": view.paused,
        "reserved_bytes": view.reserved_bytes,
        "estimated_bytes": view.estimated_bytes,
        "measured_bytes": view.measured_bytes,
        "host_held_bytes": view.host_held_bytes,
        "since_s": round(at - view.since_seconds, 3),
        "idle_s": round(at - view.last_used_seconds, 3),
    }
