"""What a stranger can know of the scheduler from its events and commands alone.

Owns the reconstruction that every checker reads: jobs, grants, processes, readings. It is written without looking at
the scheduler's own books, so that a mistake there cannot hide here. It judges nothing.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from gridsched.core.commands import (
    ArmTimer,
    Command,
    Grant,
    GrantStep,
    KeepMeasurement,
    RejectJob,
    StartInstance,
    StopInstance,
)
from gridsched.core.events import (
    DeviceRead,
    DevicesChanged,
    DrainBegan,
    Event,
    GrantReturned,
    InstanceExited,
    InstanceReady,
    JobAbandoned,
    JobEnded,
    JobSubmitted,
    MemoryReleased,
    ModelsChanged,
    PolicyChanged,
    SlotSettled,
    StepEnded,
)
from gridsched.core.ids import DeviceName, GrantId, InstanceId, JobId, ModelName
from gridsched.core.job import Job, JobClass, OutcomeKind
from gridsched.core.model import DeviceSpec, LaunchOption, ModelSpec
from gridsched.core.policy import Policy

LONG_AGO = float("-inf")


@dataclass(slots=True, eq=False)
class JobNote:
    """A job from its arrival to its end. `progress_at`: the later of its arrival and the end of its last step that was
    done; one whose engine died was no progress, the job is run again at its old place (P5)."""

    job: Job
    arrived_at: float
    progress_at: float
    steps_done: int = 0
    deaths: int = 0
    grant: "GrantNote | None" = None
    first_granted_at: float | None = None
    ended: str = ""

    @property
    def waiting(self) -> bool:
        """Whether it wants a grant."""
        return not self.ended and self.grant is None


@dataclass(slots=True, eq=False)
class GrantNote:
    """A grant until its slot is free again. `over`: its job has ended or gone on, only the slot is still taken."""

    id: GrantId
    job: JobNote
    instance: "InstanceNote"
    step: int
    at: float
    over: bool = False
    over_at: float = LONG_AGO
    stalled: bool = False


@dataclass(slots=True, eq=False)
class InstanceNote:
    """A process from its start until its memory is back. `for_class`: the highest class that waited for it then.
    `need` is what was to be reserved for it, `held` what the last reading of each device says it holds."""

    start: StartInstance
    started_at: float
    for_class: JobClass | None
    need: dict[DeviceName, int]
    state: str = "starting"  # starting, ready, stopping, exited
    ready_at: float = LONG_AGO
    stopped_at: float = LONG_AGO
    served: bool = False
    suspect: bool = False
    used_at: float = LONG_AGO
    chatted_at: float = LONG_AGO
    slots: dict[GrantId, GrantNote] = field(default_factory=dict)
    held: dict[DeviceName, int] = field(default_factory=dict)

    @property
    def model(self) -> ModelName:
        """Its model."""
        return self.start.model

    @property
    def free_slots(self) -> int:
        """Slots that nobody holds."""
        return self.start.option.parallel - len(self.slots)

    def needs(self, device: DeviceName) -> int:
        """What was reserved for it on a device."""
        return self.need.get(device, 0)


class Book:
    """The state of the world as the scheduler was told it, and of the scheduler as it said."""

    def __init__(self) -> None:
        self.now = 0.0
        self.policy = Policy()
        self.devices: dict[DeviceName, DeviceSpec] = {}
        self.models: dict[ModelName, ModelSpec] = {}
        self.jobs: dict[JobId, JobNote] = {}
        self.closed: dict[JobId, JobNote] = {}
        self.grants: dict[GrantId, GrantNote] = {}
        self.instances: dict[InstanceId, InstanceNote] = {}
        self.readings: dict[DeviceName, DeviceRead] = {}
        self.read_at: dict[DeviceName, float] = {}
        self.stop_at: dict[DeviceName, float] = {}
        self.tail_from: dict[DeviceName, tuple[float, float]] = {}
        self.failed_at: dict[ModelName, float] = {}
        self.measured: dict[str, tuple[int, ...]] = {}
        self.shrunk_at = LONG_AGO
        self.timer_at: float | None = None
        self.draining = False

    # --- questions ----------------------------------------------------------------------------------------------------

    def waiting(self) -> Iterator[JobNote]:
        """Jobs that want a grant, oldest first."""
        return (note for note in self.jobs.values() if note.grant is None)

    def living(self) -> Iterator[InstanceNote]:
        """Processes that are not known to be gone."""
        return (one for one in self.instances.values() if one.state != "exited")

    def instance_of(self, model: ModelName) -> InstanceNote | None:
        """The living process of a model, if there is one that has not been given up."""
        return next((one for one in self.living() if one.model == model and not self.lost(one)), None)

    def open_instance(self, model: ModelName) -> InstanceNote | None:
        """A ready process of a model that nobody has a reason to spare."""
        one = self.instance_of(model)
        return one if one is not None and one.state == "ready" and not self.condemned(one) else None

    def need_of(self, option: LaunchOption) -> dict[DeviceName, int]:
        """Bytes that a launch takes: as measured in this run, as measured before, or as estimated (L2)."""
        if option.key in self.measured:
            return dict(zip(option.devices, self.measured[option.key], strict=True))
        return dict(option.need_bytes)

    def lost(self, one: InstanceNote) -> bool:
        """Whether a process that was told to stop is overdue and given up (L5)."""
        grace = self.policy.stop_grace_seconds + self.policy.release_timeout_seconds
        return one.state in ("stopping", "exited") and self.now >= one.stopped_at + grace - 1e-6

    def condemned(self, one: InstanceNote) -> bool:
        """Whether a process is known to be dead or stalled: by a step that said so, or by one whose client has left
        and which the engine does not let go of (S8, S9)."""
        overdue = self.now - self.policy.settle_limit_seconds + 1e-6
        return one.suspect or any(grant.over and grant.over_at <= overdue for grant in one.slots.values())

    def starved_for(self, note: JobNote) -> float:
        """Seconds without progress."""
        return self.now - note.progress_at

    def interactive_mode(self, device: DeviceName) -> str:
        """Why the device is surely in interactive mode at this moment, "" where it may not be."""
        for one in self.living():
            if device not in one.start.option.devices:
                continue
            for grant in one.slots.values():
                if not grant.over and not grant.job.job.job_class.is_low:
                    return f"job {grant.job.job.id} runs there"
            if one.state == "starting" or (one.state == "ready" and not self.condemned(one)):
                for note in self.waiting():
                    if note.job.model == one.model and not note.job.job_class.is_low and not note.job.warm_only:
                        return f"job {note.job.id} waits for {one.model} there"
        return "the tail after a chat" if self.now < min(self.tails(device)) - 1e-6 else ""

    def maybe_interactive(self, device: DeviceName) -> bool:
        """Whether the device may be in interactive mode: a plan that holds it cannot be seen from outside."""
        chats = any(not note.job.job_class.is_low for note in self.jobs.values())
        return chats or self.now <= self.tail_until(device)

    def may_be_drained(self, note: JobNote) -> bool:
        """Whether the model that a job waits for may have to go for another: for one that an older job of the class,
        or a job of a higher class, waits for. A job of several steps is as old as its last progress, at most."""
        mine = (note.job.job_class, note.progress_at, note.job.id)
        return any(
            other.job.model != note.job.model and (self.highest_class(other), other.arrived_at, other.job.id) < mine
            for other in self.waiting()
        )

    def highest_class(self, note: JobNote) -> JobClass:
        """The class a job may compete as: a starved batch job as background (S5, S5b)."""
        limits = (self.policy.background_max_starvation_seconds, self.policy.batch_max_starvation_seconds)
        starved = any(0 < limit <= self.starved_for(note) + 1e-6 for limit in limits)
        return min(note.job.job_class, JobClass.BACKGROUND) if starved else note.job.job_class

    def tails(self, device: DeviceName) -> tuple[float, float]:
        """When the tail after the last chat on a device ends: by the figure of that moment, and by the present one."""
        began, by_then = self.tail_from.get(device, (LONG_AGO, LONG_AGO))
        return by_then, began + self.policy.interactive_cooldown_seconds

    def tail_until(self, device: DeviceName) -> float:
        """When the tail on a device is surely over."""
        return max(self.tails(device))

    # --- events -------------------------------------------------------------------------------------------------------

    def hear(self, event: Event, now: float) -> None:
        """Note what has happened outside."""
        self.now = now
        self._hear_of_jobs(event)
        self._hear_of_world(event)

    def _hear_of_jobs(self, event: Event) -> None:
        match event:
            case JobSubmitted(job):
                self.jobs[job.id] = JobNote(job, self.now, self.now)
            case JobAbandoned(job_id):
                self._abandon(job_id)
            case GrantReturned(grant_id):
                self._end_step(grant_id, None, settled=True, over="returned")
            case StepEnded(grant_id, outcome):
                self._end_step(grant_id, outcome.kind, settled=True)
            case JobEnded(grant_id, outcome, settled):
                self._end_step(grant_id, outcome.kind, settled=settled, over=outcome.kind.value)
            case SlotSettled(grant_id):
                self._free_slot(grant_id)

    def _hear_of_world(self, event: Event) -> None:
        match event:
            case InstanceReady(instance_id):
                one = self.instances[instance_id]
                if one.state == "starting":
                    one.state, one.ready_at = "ready", self.now
            case InstanceExited(instance_id, failure):
                self._exit(self.instances[instance_id], failed=failure is not None)
            case MemoryReleased(instance_id):
                self.instances.pop(instance_id, None)
            case DeviceRead():
                self._read(event)
            case DevicesChanged(devices):
                self.devices = {device.name: device for device in devices}
            case ModelsChanged(models):
                self.models = {model.name: model for model in models}
            case PolicyChanged(policy):
                self.policy = policy
            case DrainBegan():
                self.draining = True

    def _end_step(self, grant_id: GrantId, kind: OutcomeKind | None, *, settled: bool, over: str = "") -> None:
        grant = self.grants.get(grant_id)
        if grant is None:
            return
        note, instance = grant.job, grant.instance
        grant.over, grant.over_at = True, self.now
        if note.grant is grant:
            note.grant = None
        if kind is OutcomeKind.DONE:
            note.progress_at = self.now
            note.steps_done = max(note.steps_done, grant.step)
            instance.served = True
        note.deaths += kind in (OutcomeKind.ENGINE_DIED, OutcomeKind.STALLED)
        if kind is OutcomeKind.STALLED:
            grant.stalled = instance.suspect = True
        if kind is OutcomeKind.ENGINE_DIED:
            instance.suspect = True
        if kind is not None:
            self._mark_use(instance, note)
        if over:
            self._close(note.job.id, over)
        if settled:
            self._free_slot(grant_id)

    def _abandon(self, job_id: JobId) -> None:
        """The client has left. If that crossed a grant on its way, the grant never was taken and its slot is free."""
        note = self.jobs.get(job_id)
        if note is not None and note.grant is not None:
            self._end_step(note.grant.id, None, settled=True)
        self._close(job_id, "abandoned")

    def _mark_use(self, instance: InstanceNote, note: JobNote) -> None:
        """A step that ran has ended: the tail and the last use begin now."""
        instance.used_at = self.now
        if not note.job.job_class.is_low:
            instance.chatted_at = self.now
            for device in instance.start.option.devices:
                self.tail_from[device] = self.now, self.now + self.policy.interactive_cooldown_seconds

    def _free_slot(self, grant_id: GrantId) -> None:
        grant = self.grants.pop(grant_id, None)
        if grant is not None:
            grant.instance.slots.pop(grant_id, None)

    def _close(self, job_id: JobId, how: str) -> None:
        note = self.jobs.pop(job_id, None)
        if note is not None:
            note.ended = how
            self.closed[job_id] = note

    def _exit(self, one: InstanceNote, *, failed: bool) -> None:
        if failed or self.condemned(one):
            self.failed_at[one.model] = self.now
        if one.stopped_at == LONG_AGO:
            self._going(one)
        one.state = "exited"
        self.shrunk_at = self.now
        for grant in one.slots.values():
            if grant.over:
                self.grants.pop(grant.id, None)
        one.slots.clear()

    def _going(self, one: InstanceNote) -> None:
        """A process goes away, told to or not."""
        one.stopped_at = self.shrunk_at = self.now
        for device in one.start.option.devices:
            self.stop_at[device] = self.now

    def _read(self, read: DeviceRead) -> None:
        self.readings[read.device] = read
        self.read_at[read.device] = self.now
        for instance_id, held in read.held:
            if instance_id in self.instances:
                self.instances[instance_id].held[read.device] = held

    # --- commands -----------------------------------------------------------------------------------------------------

    def note(self, command: Command) -> None:
        """Note what the scheduler has asked for."""
        match command:
            case GrantStep(grant):
                self._note_grant(grant)
            case RejectJob(job_id, rejection):
                self._close(job_id, rejection.code.value)
            case StartInstance(instance_id, model, option):
                wanted = [note.job.job_class for note in self.waiting() if note.job.model == model]
                for_class = min(wanted, default=None)
                self.instances[instance_id] = InstanceNote(command, self.now, for_class, self.need_of(option))
            case KeepMeasurement(_, key, measured):
                self.measured[key] = measured
            case StopInstance(instance_id):
                if one := self.instances.get(instance_id):
                    if one.state != "exited":
                        one.state = "stopping"
                    self._going(one)
            case ArmTimer(at):
                self.timer_at = at
            case _:
                pass

    def _note_grant(self, grant: Grant) -> None:
        job, instance = self.jobs.get(grant.job_id), self.instances.get(grant.instance_id)
        if job is None or instance is None:
            return
        note = GrantNote(grant.id, job, instance, grant.step, self.now)
        job.grant = self.grants[grant.id] = instance.slots[grant.id] = note
        job.first_granted_at = self.now if job.first_granted_at is None else job.first_granted_at
