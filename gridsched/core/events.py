"""Everything that can happen, as the scheduler hears it (door 4, inward). Owns the vocabulary, no behaviour.

An event is a fact that has already happened outside. Each is posted synchronously, and the actor stamps the time.
"""

from dataclasses import dataclass
from enum import Enum

from gridsched.core.ids import DeviceName, GrantId, InstanceId, JobId, ModelName, RequestId
from gridsched.core.job import Job, Outcome
from gridsched.core.model import DeviceFootprint, DeviceSpec, FamilySpec, LaunchOption, ModelSpec
from gridsched.core.policy import Policy
from gridsched.core.record import record
from gridsched.core.standing import OwnerProcess, Standing


class FailureCause(Enum):
    """P6a: why a load or a process failed. The words are the contract's `gridsched.cause`."""

    DEVICE_OOM = "device_oom"
    HOST_OOM = "host_oom"
    BAD_FLAGS = "bad_flags"
    MISSING_FILE = "missing_file"
    DAMAGED_FILE = "damaged_file"
    UNKNOWN_ARCHITECTURE = "unknown_architecture"
    DRIVER_FAULT = "driver_fault"
    CRASHED = "crashed"
    KILLED = "killed"
    START_TIMEOUT = "start_timeout"
    CPU_FALLBACK = "cpu_fallback"


@dataclass(frozen=True, slots=True)
class Failure:
    """A cause, one sentence about it, the engine log's last lines, and the file that has them all (P7)."""

    cause: FailureCause
    message: str
    log_tail: tuple[str, ...] = ()
    log_path: str = ""


# --- jobs: what the desk says -----------------------------------------------------------------------------------


@record
class JobSubmitted:
    """A client's request has become a job and waits for a grant or a rejection."""

    job: Job


@dataclass(frozen=True, slots=True)
class JobAbandoned:
    """Closing event: the client left while no grant of its job was outstanding (S8)."""

    job_id: JobId


@dataclass(frozen=True, slots=True)
class GrantReturned:
    """Closing event: the client left after the grant was made and before it was taken (S7). The job is over."""

    grant_id: GrantId


@record
class StepEnded:
    """A step has ended and its job waits on: for its next step, to be run again (P5, S11), or for a rejection.

    `settled` is False where the engine may still be busy with the step (it was aborted): the slot then counts as taken
    until `SlotSettled` (S8).
    """

    grant_id: GrantId
    outcome: Outcome
    settled: bool = True


@dataclass(frozen=True, slots=True)
class AnswerBegan:
    """A byte of an answer has been sent to the client: the step can no longer be aborted (S11)."""

    grant_id: GrantId


@record
class JobEnded:
    """Closing event: the job's last granted step has ended and the handler is done with the job.

    `settled` is False where the engine may still be busy with the step (the client left in mid-step): the slot then
    counts as taken until `SlotSettled` (S8).
    """

    grant_id: GrantId
    outcome: Outcome
    settled: bool = True


@dataclass(frozen=True, slots=True)
class SlotSettled:
    """The engine has really stopped working on a step whose job has ended before (S8)."""

    grant_id: GrantId


# --- instances: what the engine says ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class InstanceReady:
    """The process answered its health check and served a probe (P6). `allocated` is what the engine says itself of its
    buffers on the devices of the launch, without what lies outside of them; empty where it says nothing."""

    instance_id: InstanceId
    allocated: tuple[DeviceFootprint, ...] = ()


@dataclass(frozen=True, slots=True)
class InstanceExited:
    """The process is gone, verified: asked to stop, failed while it started, or dead in service.

    `failure` is None exactly when it ended because it was told to; `log_tail` are then its log's last lines, because it
    may have been told for what it did (D13, P5).
    """

    instance_id: InstanceId
    failure: Failure | None = None
    log_tail: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class MemoryReleased:
    """The memory of an exited instance is verified back on every device of it (L5)."""

    instance_id: InstanceId


@dataclass(frozen=True, slots=True)
class ProbeDue:
    """A process is about to be probed or measured and has to run for that (S10)."""

    instance_id: InstanceId


# --- persons: what control says. Each is answered once, by an `AnswerRequest` with its number -----------------------


@dataclass(frozen=True, slots=True)
class LoadAsked:
    """A person wants a model loaded. Answered when it is ready, or refused. Beats an earlier unload, closes a back-off
    (R7, L6d). With `options` by one of these instead of its ladder, in place of a process that is none of them;
    `ttl_seconds` is how long it may be idle (R6). Where `may_go` is said, it is refused rather than that any other
    model goes for it, then or later."""

    request: RequestId
    model: ModelName
    options: tuple[LaunchOption, ...] = ()
    ttl_seconds: float | None = None
    may_go: tuple[ModelName, ...] | None = None


@dataclass(frozen=True, slots=True)
class UnloadAsked:
    """A person wants a model gone. Its running steps end first, unless `force` (R2). Answered when its memory is back,
    or is lost. A pinned model stays down until a person loads it (R7)."""

    request: RequestId
    model: ModelName
    force: bool = False


@dataclass(frozen=True, slots=True)
class PinAsked:
    """A person wants a model kept loaded, or no longer (R7). Answered at once. `keep`: after a restart, too."""

    request: RequestId
    model: ModelName
    pinned: bool
    keep: bool = False


@dataclass(frozen=True, slots=True)
class LeaseAsked:
    """Somebody wants whole devices (R8): all or none of them. Answered when all are held, or refused. `seconds` None:
    until they are released, which whoever watches the owner's `process` says too. `may_go`: as of a load."""

    request: RequestId
    devices: tuple[DeviceName, ...]
    owner: str
    seconds: float | None = None
    process: OwnerProcess | None = None
    may_go: tuple[ModelName, ...] | None = None


@dataclass(frozen=True, slots=True)
class LeaseReleased:
    """The lease of a device is over, held or not yet (R8). Answered at once."""

    request: RequestId
    device: DeviceName
    why: str = "released"


@dataclass(frozen=True, slots=True)
class WishWithdrawn:
    """Who made a wish wants it no more. Never answered, and nor is the wish; one that was fulfilled stays so."""

    request: RequestId


@dataclass(frozen=True, slots=True)
class RebalanceAsked:
    """A person wants it looked now whether an idle model had better be elsewhere (R9). Answered at once."""

    request: RequestId


@dataclass(frozen=True, slots=True)
class StandingTold:
    """What persons asked for before the server was started (R7, R8). Told before the first models are, or never."""

    standing: Standing


# --- devices, configuration, time -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Foreign:
    """A program that is none of ours and holds memory of a device: its process, what the system calls it, and how much
    it holds, None where the driver does not tell."""

    pid: int
    name: str
    bytes: int | None = None


@dataclass(frozen=True, slots=True)
class DeviceRead:
    """One reading of a device (L3). `held` is what each of our processes holds there; an instance that is missing
    could not be read. `used_bytes` includes what ours hold. `by_difference` are those of `held` whose driver tells no
    figure of them: theirs is what the device's use grew by while they came (D2). `foreign` are the largest of the
    others, as far as the driver tells who they are.
    """

    device: DeviceName
    total_bytes: int
    used_bytes: int
    held: tuple[tuple[InstanceId, int], ...] = ()
    by_difference: frozenset[InstanceId] = frozenset()
    foreign: tuple[Foreign, ...] = ()


@dataclass(frozen=True, slots=True)
class DeviceLost:
    """A device does not answer any more: what runs there serves on, and nothing is loaded there (D6). `why` is the
    driver's word for it."""

    device: DeviceName
    why: str


@dataclass(frozen=True, slots=True)
class DeviceBack:
    """A device that was lost answers again."""

    device: DeviceName


@dataclass(frozen=True, slots=True)
class HostMemoryRead:
    """What each of our processes holds of host memory that nobody else can have, in bytes: anonymous pages and what is
    swapped out (M11). One that is missing could not be read."""

    held: tuple[tuple[InstanceId, int], ...]


@dataclass(frozen=True, slots=True)
class DevicesChanged:
    """The devices there are, all of them. Sent once before anything else. `host`: host memory beside them, where it is
    no device and its size is known; a launch that takes more of it never fits (L7), and nothing there is reserved."""

    devices: tuple[DeviceSpec, ...]
    host: DeviceSpec | None = None


@dataclass(frozen=True, slots=True)
class ModelsChanged:
    """The models there are, all of them. One that is gone takes no new job and is unloaded when idle."""

    models: tuple[ModelSpec, ...]


@dataclass(frozen=True, slots=True)
class FamiliesChanged:
    """The families there are, all of them (R10). A name that is also a model's is the family's."""

    families: tuple[FamilySpec, ...]


@dataclass(frozen=True, slots=True)
class PolicyChanged:
    """New figures for the rules."""

    policy: Policy


@dataclass(frozen=True, slots=True)
class DrainBegan:
    """P8: the server is going away. Waiting jobs and new ones are rejected with `draining`; running steps finish."""


@dataclass(frozen=True, slots=True)
class TimerFired:
    """The time of the last `ArmTimer` has come. Firing early or twice is harmless."""


Event = (
    JobSubmitted
    | JobAbandoned
    | GrantReturned
    | StepEnded
    | AnswerBegan
    | JobEnded
    | SlotSettled
    | InstanceReady
    | InstanceExited
    | MemoryReleased
    | ProbeDue
    | LoadAsked
    | UnloadAsked
    | PinAsked
    | LeaseAsked
    | LeaseReleased
    | WishWithdrawn
    | RebalanceAsked
    | StandingTold
    | DeviceRead
    | DeviceLost
    | DeviceBack
    | HostMemoryRead
    | DevicesChanged
    | ModelsChanged
    | FamiliesChanged
    | PolicyChanged
    | DrainBegan
    | TimerFired
)
