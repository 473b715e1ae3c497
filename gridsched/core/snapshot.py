"""A frozen picture of the scheduler for those who only look: status, metrics, comment lines.

A stale picture may inform, it must never gate a decision. Built on request by `Scheduler.snapshot`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from gridsched.core.commands import Rejection
from gridsched.core.events import Foreign
from gridsched.core.ids import DeviceName, InstanceId, JobId, ModelName
from gridsched.core.instance import InstanceState
from gridsched.core.job import JobClass, JobKind
from gridsched.core.model import LaunchOption, Tier
from gridsched.core.standing import OwnerProcess
from gridsched.core.transitions import LeaseState


@dataclass(frozen=True, slots=True)
class LeaseView:
    """R8: whose a device is for now. `until_seconds` is None until it is released, and while it is not held yet.
    `process`: it ends with this one. `displaced` are the models that come back at its end."""

    state: LeaseState
    owner: str
    until_seconds: float | None
    process: OwnerProcess | None = None
    displaced: tuple[ModelName, ...] = ()


@dataclass(frozen=True, slots=True)
class DeviceView:
    """Bytes of one device. `reserved` is what the ledger holds for living instances, `freeing` what draining and
    stopping ones give back, `lost` what a gone process never gave back (L5). `lost_since_seconds`: the device itself
    does not answer since then, for the reason `lost_why` (D6). `foreign` are the largest programs outside."""

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
    lease: LeaseView | None = None
    lost_since_seconds: float | None = None
    lost_why: str = ""
    foreign: tuple[Foreign, ...] = ()


@dataclass(frozen=True, slots=True)
class InstanceView:
    """One process, or one that is being started or stopped. Times are the actor's clock, in seconds. `paused`: it
    stands still while people chat (S10). `option_key` is of the launch that it is (L2). `reserved_bytes`: what its
    devices reserve for it, which is what one like it took where that was measured; `device_bytes` says it by device.
    `host_held_bytes`: of host memory, as `HostMemoryRead` says. `load_seconds` is what its load is expected to take,
    `expires_at_seconds` when it is unloaded if it stays idle (R6); None for never, and while it works."""

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
    paused: bool = False
    option_key: str = ""
    reserved_bytes: int = 0
    device_bytes: Mapping[DeviceName, int] = field(default_factory=dict)
    host_held_bytes: int | None = None
    load_seconds: float = 0.0
    expires_at_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Keeper:
    """Who keeps bytes of a device that a waiting job's model could use; `model` None for programs outside, and for a
    whole device that is leased or does not answer.

    `why` are the reasons in words, plainest first: pinned, hot, cold; loading, draining, stopping, lost; busy, idle; or
    to whom it is leased, or that it does not answer. Programs outside need none.
    """

    model: ModelName | None
    device: DeviceName
    bytes: int
    why: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class WaitingView:
    """One waiting job: `position` counts from 1 within its class, `rule` is what holds it, `reason` says it in words.

    `loading_seconds`: for how long its model has been loading, None where it is not. `estimate_seconds`: when it will
    be granted, from now; None where nothing honest can be said. `keepers`: who keeps the memory that its model needs;
    empty where that is ready or loading.
    """

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
    loading_seconds: float | None = None
    estimate_seconds: float | None = None
    keepers: tuple[Keeper, ...] = ()


@dataclass(frozen=True, slots=True)
class RunningView:
    """One job whose step runs, or is on its way to run. `rest_seconds`: what the step still needs by its model's pace,
    None where that was never measured."""

    id: JobId
    model: ModelName
    job_class: JobClass
    kind: JobKind
    instance: InstanceId
    step: int
    steps: int
    running_seconds: float
    rest_seconds: float | None


@dataclass(frozen=True, slots=True)
class VictimView:
    """One instance that a plan wants to go. `terms` are what it was chosen by (R5), in seconds, and `why` says how it
    stands, in a keeper's words."""

    instance: InstanceId
    model: ModelName
    bytes: int
    steps: int
    terms: Mapping[str, float]
    why: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PlanView:
    """The plan to make a job's model ready: what is launched, what it takes of each device, who goes for it. `live`
    plans drain and claim."""

    ctx_size: int
    parallel: int
    needs: Mapping[DeviceName, int]
    live: bool
    victims: tuple[VictimView, ...]


@dataclass(frozen=True, slots=True)
class LoadView:
    """What a person's load of a model would come to now (R7). `instance`: its process, where it has one.

    `plan` is how it would be launched, by `option`; with a `rule` it begins later, for that `reason`, without one at
    once. Without a plan `reason` is why there is none now, and `refusal` is given where nothing that runs could make
    room (L7), or no load is taken on at all. `load_seconds` is what the load is expected to take.
    """

    model: ModelName
    instance: InstanceView | None
    option: LaunchOption | None = None
    plan: PlanView | None = None
    rule: str = ""
    reason: str = ""
    refusal: Rejection | None = None
    load_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Explanation:
    """How one job stands: exactly one of `waiting` and `running` while it lives, neither when it is over."""

    job: JobId
    waiting: WaitingView | None
    running: RunningView | None
    plan: PlanView | None


@dataclass(frozen=True, slots=True)
class Jobs:
    """All living jobs at one moment: those that wait, by class and place, and those that run."""

    waiting: tuple[WaitingView, ...]
    running: tuple[RunningView, ...]


@dataclass(frozen=True, slots=True)
class PinDown:
    """R7: why a pinned model is down: the rule, in words, the sums where memory is what it lacks (L7), and when it is
    tried again where time alone decides that."""

    rule: str
    reason: str
    retry_at_seconds: float | None = None
    arithmetic: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything at one moment but the jobs, which are told one by one (`Jobs`). `failed` maps a model in back-off to
    when it may be tried again and why, `pins_down` a pinned model that is not there to what it waits for.
    `oldest_wait_seconds`: for how long the job has waited that has waited longest in its class, 0 where none waits."""

    at: float
    devices: tuple[DeviceView, ...]
    instances: tuple[InstanceView, ...]
    queue_lengths: Mapping[JobClass, int]
    running: Mapping[JobClass, int]
    failed: Mapping[ModelName, tuple[float, str]]
    draining: bool
    pins_down: Mapping[ModelName, PinDown] = field(default_factory=dict)
    oldest_wait_seconds: Mapping[JobClass, float] = field(default_factory=dict)
