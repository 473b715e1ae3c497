"""A frozen picture of the scheduler for those who only look: status, metrics, comment lines.

A stale picture may inform, it must never gate a decision. Built on request by `Scheduler.snapshot`.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from gridsched.core.ids import DeviceName, InstanceId, JobId, ModelName
from gridsched.core.instance import InstanceState
from gridsched.core.job import JobClass, JobKind
from gridsched.core.model import Tier


@dataclass(frozen=True, slots=True)
class DeviceView:
    """Bytes of one device. `reserved` is what the ledger holds for living instances, `freeing` what draining and
    stopping ones give back, `lost` what a gone process never gave back (L5)."""

    name: DeviceName
    total_bytes: int
    headroom_bytes: int
    used_bytes: int
    external_bytes: int
    reserved_bytes: int
    freeing_bytes: int
    lost_bytes: int
    interactive_mode: bool
    pressure: bool


@dataclass(frozen=True, slots=True)
class InstanceView:
    """One process, or one that is being started or stopped. Times are the actor's clock, in seconds."""

    id: InstanceId
    model: ModelName
    state: InstanceState
    tier: Tier
    devices: tuple[DeviceName, ...]
    ctx_size: int
    parallel: int
    slots_busy: int
    estimated_bytes: int
    measured_bytes: int | None
    since_seconds: float
    last_used_seconds: float


@dataclass(frozen=True, slots=True)
class WaitingView:
    """One waiting job: `position` counts from 1 within its class, `rule` is what holds it, `reason` says it in
    words."""

    id: JobId
    model: ModelName
    job_class: JobClass
    kind: JobKind
    position: int
    waited_seconds: float
    step: int
    steps: int
    rule: str
    reason: str


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything at one moment. `failed` maps a model in back-off to when it may be tried again and why."""

    at: float
    devices: tuple[DeviceView, ...]
    instances: tuple[InstanceView, ...]
    queue_lengths: Mapping[JobClass, int]
    running: Mapping[JobClass, int]
    waiting: tuple[WaitingView, ...]
    failed: Mapping[ModelName, tuple[float, str]]
    draining: bool
