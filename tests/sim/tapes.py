"""Hand-made tapes for the checkers' tests: what was heard and done, step by step, without a scheduler."""

from gridsched.core.commands import (
    Command,
    Grant,
    GrantStep,
    Rejection,
    RejectionCode,
    RejectJob,
    StartInstance,
    StopInstance,
)
from gridsched.core.events import (
    DeviceRead,
    DevicesChanged,
    Event,
    InstanceReady,
    JobSubmitted,
    ModelsChanged,
    PolicyChanged,
)
from gridsched.core.ids import DeviceName, GrantId, InstanceId, JobId, ModelName
from gridsched.core.job import Job, JobClass, JobKind, Outcome, OutcomeKind
from gridsched.core.model import DeviceFootprint, DeviceSpec, LaunchOption, ModelSpec
from gridsched.core.policy import Policy
from sim.checkers import Watch

CARD = DeviceName("gpu0")
DONE = Outcome(OutcomeKind.DONE)
GONE = Outcome(OutcomeKind.CLIENT_GONE, status=499, answered=False)
CHAT, BACKGROUND, BATCH = JobClass.INTERACTIVE, JobClass.BACKGROUND, JobClass.BATCH


def model(name: str, size: int = 40, parallel: int = 2, *, pinned: bool = False, reserved: int = 0) -> ModelSpec:
    """A model of `size` of the card's 100 bytes."""
    option = LaunchOption(f"{name}/full", 1024, parallel, (DeviceFootprint(CARD, weights_bytes=size),))
    return ModelSpec(ModelName(name), (option,), pinned=pinned, reserved_slots=reserved)


def job(number: int, name: str = "a", job_class: JobClass = CHAT, steps: int = 1, wait: float | None = None) -> Job:
    """A job for a model."""
    kind = JobKind.EMBEDDINGS if steps > 1 else JobKind.CHAT
    return Job(JobId(number), ModelName(name), job_class, kind, steps, max_wait_seconds=wait)


class Tape:
    """Events and the answers to them, as a scheduler might have given them."""

    def __init__(self, *models: ModelSpec, policy: Policy | None = None) -> None:
        self.watch = Watch()
        self.now = 0.0
        self.models = {one.name: one for one in models or (model("a"), model("b"))}
        self.hear(DevicesChanged((DeviceSpec(CARD, 100),)))
        self.hear(PolicyChanged(policy or Policy()))
        self.hear(ModelsChanged(tuple(self.models.values())))
        self.read(0)

    def hear(self, event: Event, *commands: Command, at: float | None = None) -> None:
        """One step."""
        self.now = self.now if at is None else at
        self.watch.saw(event, commands, self.now)

    def read(self, used: int, *held: tuple[int, int]) -> None:
        """A reading of the card."""
        self.hear(DeviceRead(CARD, 100, used, tuple((InstanceId(one), size) for one, size in held)))

    def start(self, number: int, name: str = "a") -> StartInstance:
        """The command that starts a model."""
        spec = self.models[ModelName(name)]
        return StartInstance(InstanceId(number), spec.name, spec.options[0])

    def ready(self, number: int, name: str, *waiting: Job) -> None:
        """Jobs arrive, their model is loaded for them and each is granted; job n gets grant n."""
        self.hear(JobSubmitted(waiting[0]), self.start(number, name))
        for one in waiting[1:]:
            self.hear(JobSubmitted(one))
        self.hear(InstanceReady(InstanceId(number)), *(grant(one, number) for one in waiting))

    @property
    def rules(self) -> set[str]:
        """The rules that were broken."""
        return {one.rule for one in self.watch.found}


def grant(one: Job, instance: int, step: int = 1) -> GrantStep:
    """A grant for a job; its number is the job's and the step's."""
    number = GrantId(int(one.id) if step == 1 else int(one.id) * 100 + step)
    return GrantStep(Grant(number, one.id, InstanceId(instance), one.model, step, one.steps, 0.0))


def reject(number: int, code: RejectionCode, message: str = "because") -> RejectJob:
    """A rejection."""
    return RejectJob(JobId(number), Rejection(code, message))


def stop(number: int) -> StopInstance:
    """A stop."""
    return StopInstance(InstanceId(number), "for a test")
