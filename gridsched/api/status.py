"""`GET /api/status`: one snapshot in words, for people and panels. Durations end at its moment."""

from collections.abc import Mapping

from gridsched.api.jobs import waiting
from gridsched.api.seat import House
from gridsched.core.job import JobClass
from gridsched.core.snapshot import DeviceView, InstanceView


def status(house: House) -> dict[str, object]:
    """What there is at this moment: devices, processes, queues, who waits and why, models in back-off."""
    now = house.runtime.snapshot()
    return {
        "draining": now.draining,
        "devices": [_device(view) for view in now.devices],
        "instances": [_instance(view, now.at) for view in now.instances],
        "queues": {
            job_class.label: {
                "length": now.queue_lengths.get(job_class, 0),
                "running": now.running.get(job_class, 0),
            }
            for job_class in JobClass
        },
        "waiting": [waiting(view) for view in house.runtime.jobs().waiting],
        "failed": {
            name: {"retry_after_s": round(max(0.0, retry_at - now.at), 3), "reason": why}
            for name, (retry_at, why) in now.failed.items()
        },
    }


def _device(view: DeviceView) -> Mapping[str, object]:
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
        "estimated_bytes": view.estimated_bytes,
        "measured_bytes": view.measured_bytes,
        "since_s": round(at - view.since_seconds, 3),
        "idle_s": round(at - view.last_used_seconds, 3),
    }
