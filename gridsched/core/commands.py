"""Everything the scheduler can ask for (door 4, outward). Owns the vocabulary, no behaviour.

Commands are carried out in order. None of them is answered: what comes of it arrives as an event.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from gridsched.core.ids import DeviceName, GrantId, InstanceId, JobId, ModelName, RequestId
from gridsched.core.job import JobClass, JobKind
from gridsched.core.model import DeviceFootprint, LaunchOption
from gridsched.core.record import record
from gridsched.core.standing import Standing


@record
class Grant:
    """The permission for one step of one job to run on one slot of one instance. `step` counts from 1."""

    id: GrantId
    job_id: JobId
    instance_id: InstanceId
    model: ModelName
    step: int
    steps: int
    queue_seconds: float


class RejectionCode(Enum):
    """Ordinary refusals: values, never exceptions. `api.problems` turns each into a status."""

    QUEUE_FULL = "queue_full"
    QUEUE_TIMEOUT = "queue_timeout"
    NOT_RESIDENT = "not_resident"
    NOT_FOUND = "not_found"
    MODEL_NOT_FOUND = "model_not_found"
    MODEL_NOT_SUPPORTED = "model_not_supported"
    MODEL_FAILED = "model_failed"
    INSUFFICIENT_VRAM = "insufficient_vram"
    GPU_UNAVAILABLE = "gpu_unavailable"
    UPSTREAM_ERROR = "upstream_error"
    DRAINING = "draining"
    CONFLICT = "conflict"
    UNLOAD_UNVERIFIED = "unload_unverified"


@dataclass(frozen=True, slots=True)
class Rejection:
    """Why a job will not be served. `detail` travels to the client under `error.gridsched`, keys as in the contract."""

    code: RejectionCode
    message: str
    retry_after_seconds: float | None = None
    detail: Mapping[str, object] = field(default_factory=dict)


@record
class GrantStep:
    """Answer the job's ticket with a grant."""

    grant: Grant


@dataclass(frozen=True, slots=True)
class RejectJob:
    """Answer the job's ticket with a rejection. The job is over."""

    job_id: JobId
    rejection: Rejection


@dataclass(frozen=True, slots=True)
class StartInstance:
    """Spawn a process. Its memory is already reserved (L1)."""

    instance_id: InstanceId
    model: ModelName
    option: LaunchOption


@dataclass(frozen=True, slots=True)
class StopInstance:
    """End a process that has no step in flight (R2), or abort one that is starting."""

    instance_id: InstanceId
    reason: str


@dataclass(frozen=True, slots=True)
class PauseInstance:
    """S10: let a process stand still. Nothing of it is lost, and its clients are not told."""

    instance_id: InstanceId


@dataclass(frozen=True, slots=True)
class ResumeInstance:
    """S10: let it go on. Comes before any other command about the same process."""

    instance_id: InstanceId


@dataclass(frozen=True, slots=True)
class AbortStep:
    """S11: take a step away of which nothing has been answered. What comes of it is `StepEnded` with ABORTED, or the
    end that has crossed it."""

    grant_id: GrantId
    reason: str


@dataclass(frozen=True, slots=True)
class AnswerRequest:
    """What came of a person's wish: done, or refused. `detail` travels to the person, keys as in the contract."""

    request: RequestId
    rejection: Rejection | None = None
    detail: Mapping[str, object] = field(default_factory=dict)


@record
class ArmTimer:
    """Post `TimerFired` at this time; replaces the time before it. None: nothing to wait for."""

    at: float | None


@dataclass(frozen=True, slots=True)
class KeepMeasurement:
    """Keep on disk what a launch really takes, by device in the order of its footprint (L2).

    `option` and `allocated` are what it was measured of: the launch with its estimate, and what the engine says of its
    buffers. No bytes: what was measured before is not believed any more (L6a). `by_difference`: some of it is no
    driver's figure, but what a device's use grew by (D2).
    """

    model: ModelName
    option_key: str
    measured_bytes: tuple[int, ...]
    option: LaunchOption | None = field(default=None, compare=False)
    allocated: tuple[DeviceFootprint, ...] = field(default=(), compare=False)
    by_difference: bool = False


@dataclass(frozen=True, slots=True)
class KeepLoadTime:
    """Keep on disk how long a load took."""

    model: ModelName
    option_key: str
    load_seconds: float


@dataclass(frozen=True, slots=True)
class KeepStanding:
    """Keep on disk what persons asked for that outlives the server (R7, R8): all of it, in place of what was kept."""

    standing: Standing


class LogEvent(Enum):
    """The words of the decision log."""

    ENQUEUE = "enqueue"
    DISPATCH = "dispatch"
    STEP = "step"
    COMPLETE = "complete"
    CANCEL = "cancel"
    REJECT = "reject"
    LOAD = "load"
    READY = "ready"
    MEASURE = "measure"
    DRAIN = "drain"
    STOP = "stop"
    RELEASED = "released"
    EXIT = "exit"
    MODE = "mode"
    EVICT = "evict"
    RELIEF = "relief"
    PAUSE = "pause"
    RESUME = "resume"
    ABORT = "abort"
    THRASH = "thrash"
    STARVATION = "starvation"
    LEASE = "lease"
    PRESSURE = "pressure"
    DEVICE = "device"
    CLOCK = "clock"
    CONFIG = "config"
    START = "start"
    END = "end"


@record
class Log:
    """One line of the decision log: what was decided and the rule behind it. The actor adds `seq` and `time`."""

    event: LogEvent
    job_id: JobId | None = None
    job_class: JobClass | None = None
    kind: JobKind | None = None
    model: ModelName | None = None
    device: DeviceName | None = None
    step: int | None = None
    steps: int | None = None
    rule: str | None = None
    figures: Mapping[str, object] = field(default_factory=dict)


Command = (
    GrantStep
    | RejectJob
    | StartInstance
    | StopInstance
    | PauseInstance
    | ResumeInstance
    | AbortStep
    | AnswerRequest
    | ArmTimer
    | KeepMeasurement
    | KeepLoadTime
    | KeepStanding
    | Log
)
