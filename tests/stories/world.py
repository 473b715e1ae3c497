"""A small world to tell stories in: cards, models, and an engine that does what it is told.

Owns a virtual clock and a heap of what is going to happen. The scheduler under test checks its invariants after every
step. Its timer is fired at exactly the time it asked for, never before, so a rule that polls would be seen.
"""

import heapq
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from itertools import count

from gridsched.core.commands import (
    AnswerRequest,
    ArmTimer,
    Command,
    Grant,
    GrantStep,
    Log,
    LogEvent,
    Rejection,
    RejectJob,
    StartInstance,
    StopInstance,
)
from gridsched.core.events import (
    DeviceBack,
    DeviceLost,
    DeviceRead,
    DevicesChanged,
    Event,
    Failure,
    InstanceExited,
    InstanceReady,
    JobAbandoned,
    JobEnded,
    JobSubmitted,
    LeaseAsked,
    LeaseReleased,
    LoadAsked,
    MemoryReleased,
    ModelsChanged,
    PinAsked,
    StepEnded,
    TimerFired,
    UnloadAsked,
)
from gridsched.core.ids import DeviceName, InstanceId, JobId, ModelName, RequestId
from gridsched.core.job import Job, JobClass, JobKind, Outcome, OutcomeKind
from gridsched.core.model import DeviceFootprint, DeviceSpec, LaunchOption, ModelSpec
from gridsched.core.policy import Policy
from gridsched.core.scheduler import Scheduler

GB = 10**9
CHAT, BACKGROUND, BATCH = JobClass
DONE = Outcome(OutcomeKind.DONE)
DIED = Outcome(OutcomeKind.ENGINE_DIED, status=0, answered=False)


def ticks(seconds: float) -> float:
    """Seconds in whole parts of 1/1024 s: sums of them are exact, so that a story can speak of the very moment."""
    return round(seconds * 1024) / 1024


def option(size_gb: float, parallel: int = 1, device: str = "gpu0", key: str = "", ctx: int = 8192) -> LaunchOption:
    """A launch on one card."""
    return spanning({device: size_gb}, parallel, key or f"{device}/{size_gb}/{parallel}/{ctx}", ctx)


def spanning(sizes_gb: Mapping[str, float], parallel: int = 1, key: str = "span", ctx: int = 8192) -> LaunchOption:
    """A launch on several cards."""
    parts = tuple(DeviceFootprint(DeviceName(name), weights_bytes=int(size * GB)) for name, size in sizes_gb.items())
    return LaunchOption(key, ctx, parallel, parts)


def model(name: str, *options: LaunchOption, load: float = 10.0, **more: object) -> ModelSpec:
    """A model with its ladder. Keys are told apart by the model's name."""
    named = tuple(replace(each, key=f"{name}:{each.key}") for each in options)
    return ModelSpec(ModelName(name), named, load_seconds=load, **more)  # type: ignore[arg-type]  # the tests' keywords


@dataclass
class World:
    """`cards` are sizes in GB by name. `step_seconds`: how long a step of a model takes; a model that is not named runs
    until the test ends its steps. `stop_seconds` None: processes never end. `lag_seconds`: memory after the exit, None
    for never. `broken`: what loads of a model fail with."""

    models: tuple[ModelSpec, ...]
    cards: Mapping[str, float] = field(default_factory=lambda: {"gpu0": 16.0})
    policy: Policy = field(default_factory=Policy)
    step_seconds: dict[str, float] = field(default_factory=dict)
    stop_seconds: float | None = 0.5
    lag_seconds: float | None = 0.25
    broken: dict[str, Failure] = field(default_factory=dict)
    now: float = 0.0

    def __post_init__(self) -> None:
        self.scheduler = Scheduler(self.policy, check_invariants=True)
        self.heard: list[tuple[float, Command]] = []
        self.last: tuple[Command, ...] = ()
        self.timer_at: float | None = None
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._ties = count()
        self._jobs = count(1)
        self._wishes = count(1)
        self._names: dict[InstanceId, str] = {}
        self.tell(DevicesChanged(tuple(DeviceSpec(DeviceName(n), int(size * GB)) for n, size in self.cards.items())))
        self.tell(ModelsChanged(self.models))

    # --- telling ------------------------------------------------------------------------------------------------

    def tell(self, event: Event) -> tuple[Command, ...]:
        """One event, now; the engine takes up the commands."""
        self.last = self.scheduler.step(event, self.now)
        for command in self.last:
            self.heard.append((self.now, command))
            match command:
                case StartInstance():
                    self._starts(command)
                case StopInstance():
                    self._stops(command.instance_id)
                case GrantStep(grant):
                    self._runs(grant)
                case ArmTimer(at):
                    self.timer_at = at
                case _:
                    pass
        return self.last

    def submit(
        self, name: str, job_class: JobClass = CHAT, *, steps: int = 1, max_wait: float | None = None, **more: object
    ) -> JobId:
        """A client asks. `more`: what else a job may carry (warm_only, no_evict, ttl_seconds, key …)."""
        job_id = JobId(next(self._jobs))
        kind = JobKind.EMBEDDINGS if steps > 1 else JobKind.CHAT
        job = Job(job_id, ModelName(name), job_class, kind, steps, max_wait, **more)  # type: ignore[arg-type]  # keywords
        self.tell(JobSubmitted(job))
        return job_id

    def leave(self, job_id: JobId) -> tuple[Command, ...]:
        """The client goes away before it took a grant."""
        return self.tell(JobAbandoned(job_id))

    def finish(self, job_id: JobId, outcome: Outcome = DONE, *, settled: bool = True) -> tuple[Command, ...]:
        """The job's step ends and the job with it."""
        return self.tell(JobEnded(self.grant(job_id).id, outcome, settled))

    def step_ends(self, job_id: JobId, outcome: Outcome = DONE) -> tuple[Command, ...]:
        """The job's step ends and the job waits on."""
        return self.tell(StepEnded(self.grant(job_id).id, outcome))

    def read(
        self, used_gb: float, held_gb: Mapping[str, float], card: str = "gpu0", by_difference: Collection[str] = ()
    ) -> tuple[Command, ...]:
        """A reading of a card; what our models hold there by name, and whose figure is no driver's."""
        ids = {name: instance_id for instance_id, name in self._names.items()}
        held = tuple((ids[name], int(size * GB)) for name, size in held_gb.items())
        grown = frozenset(ids[name] for name in by_difference)
        return self.tell(DeviceRead(DeviceName(card), int(self.cards[card] * GB), int(used_gb * GB), held, grown))

    def lose(self, card: str = "gpu0", why: str = "GPU is lost") -> tuple[Command, ...]:
        """A card does not answer any more."""
        return self.tell(DeviceLost(DeviceName(card), why))

    def find(self, card: str = "gpu0") -> tuple[Command, ...]:
        """It answers again."""
        return self.tell(DeviceBack(DeviceName(card)))

    # --- persons ------------------------------------------------------------------------------------------------

    def _wish(self) -> RequestId:
        return RequestId(next(self._wishes))

    def load(self, name: str, *options: LaunchOption, ttl: float | None = None) -> RequestId:
        """A person wants a model loaded, by its ladder or by other launches."""
        request = self._wish()
        named = tuple(replace(each, key=f"{name}:{each.key}") for each in options)
        self.tell(LoadAsked(request, ModelName(name), named, ttl))
        return request

    def unload(self, name: str, *, force: bool = False) -> RequestId:
        """A person wants a model gone."""
        request = self._wish()
        self.tell(UnloadAsked(request, ModelName(name), force))
        return request

    def pin(self, name: str, *, pinned: bool = True, keep: bool = False) -> RequestId:
        """A person wants a model kept loaded, or no longer."""
        request = self._wish()
        self.tell(PinAsked(request, ModelName(name), pinned, keep))
        return request

    def lease(
        self, card: str = "gpu0", *others: str, owner: str = "a training run", seconds: float | None = None
    ) -> RequestId:
        """Somebody wants a whole card, or several."""
        request = self._wish()
        self.tell(LeaseAsked(request, (DeviceName(card), *map(DeviceName, others)), owner, seconds))
        return request

    def release(self, card: str = "gpu0") -> RequestId:
        """The lease of a card is over."""
        request = self._wish()
        self.tell(LeaseReleased(request, DeviceName(card)))
        return request

    def answer(self, request: RequestId) -> AnswerRequest | None:
        """What came of a wish; None while it is open. No wish is answered twice."""
        found = [item for _, item in self.heard if isinstance(item, AnswerRequest) and item.request == request]
        assert len(found) <= 1, f"{request} was answered {len(found)} times"
        return found[0] if found else None

    def done(self, request: RequestId) -> bool:
        """Whether a wish was fulfilled."""
        answer = self.answer(request)
        return answer is not None and answer.rejection is None

    def refused(self, request: RequestId) -> str:
        """The code with which a wish was refused; "" where it was not."""
        answer = self.answer(request)
        return answer.rejection.code.value if answer is not None and answer.rejection is not None else ""

    # --- time ---------------------------------------------------------------------------------------------------

    def advance(self, seconds: float) -> None:
        """Let time pass: the engine's deeds and the timer, each at its moment."""
        until = self.now + ticks(seconds)
        while True:
            engine_at = self._heap[0][0] if self._heap else None
            moments = [at for at in (engine_at, self.timer_at) if at is not None and at <= until]
            if not moments:
                break
            self.now = max(self.now, min(moments))
            if engine_at is not None and engine_at <= self.now:
                heapq.heappop(self._heap)[2]()
            else:
                self.timer_at = None
                self.tell(TimerFired())
        self.now = until

    def later(self, seconds: float, deed: Callable[[], object]) -> None:
        """Something is going to happen."""
        heapq.heappush(self._heap, (self.now + ticks(seconds), next(self._ties), lambda: deed() and None))

    # --- the engine ---------------------------------------------------------------------------------------------

    def _starts(self, command: StartInstance) -> None:
        instance_id = command.instance_id
        self._names[instance_id] = command.model
        spec = self.scheduler.state.models[command.model].spec
        failure = self.broken.get(command.model)
        if failure is not None:
            self.later(spec.load_seconds / 2, lambda: self.dies(instance_id, failure))
        else:
            self.later(spec.load_seconds, lambda: self._alive(instance_id) and self.tell(InstanceReady(instance_id)))

    def _stops(self, instance_id: InstanceId) -> None:
        if self.stop_seconds is not None:
            self.later(self.stop_seconds, lambda: self.dies(instance_id))

    def dies(self, instance_id: InstanceId, failure: Failure | None = None) -> None:
        """A process is gone; its memory comes back a little later."""
        if self._alive(instance_id):
            printed = () if failure is not None else (f"last line of {self._names[instance_id]}",)
            self.tell(InstanceExited(instance_id, failure, printed))
            if self.lag_seconds is not None:
                self.later(self.lag_seconds, lambda: self.tell(MemoryReleased(instance_id)))

    def _alive(self, instance_id: InstanceId) -> bool:
        instance = self.scheduler.state.instances.get(instance_id)
        return instance is not None and not instance.exited

    def _runs(self, grant: Grant) -> None:
        seconds = self.step_seconds.get(grant.model)
        if seconds is None:
            return
        event = StepEnded(grant.id, DONE) if grant.step < grant.steps else JobEnded(grant.id, DONE)
        self.later(seconds, lambda: grant.id in self.scheduler.state.grants and self.tell(event))

    # --- looking ------------------------------------------------------------------------------------------------

    def grants(self, job_id: JobId) -> list[tuple[float, Grant]]:
        """All grants of a job, with their times."""
        return [
            (at, item.grant) for at, item in self.heard if isinstance(item, GrantStep) and item.grant.job_id == job_id
        ]

    def grant(self, job_id: JobId) -> Grant:
        """The job's last grant."""
        return self.grants(job_id)[-1][1]

    def granted_at(self, job_id: JobId) -> float | None:
        """When the job got its first grant; None while it waits."""
        found = self.grants(job_id)
        return found[0][0] if found else None

    def waits(self, job_id: JobId) -> bool:
        """Whether the job waits now."""
        return self.scheduler.waiting(job_id, self.now) is not None

    def why(self, job_id: JobId) -> str:
        """The rule that holds a waiting job."""
        view = self.scheduler.waiting(job_id, self.now)
        return view.rule if view is not None else ""

    def rejection(self, job_id: JobId) -> Rejection | None:
        """How the job was refused; None where it was not."""
        found = [item for _, item in self.heard if isinstance(item, RejectJob) and item.job_id == job_id]
        return found[0].rejection if found else None

    def running(self, name: str) -> int:
        """Slots taken on a model."""
        instance = self.scheduler.state.models[ModelName(name)].instance
        return len(instance.grants) if instance is not None else 0

    def state(self, name: str) -> str:
        """The state of a model's instance, "cold" for none."""
        instance = self.scheduler.state.models[ModelName(name)].instance
        return instance.state.value if instance is not None else "cold"

    def instance(self, name: str) -> InstanceId:
        """The model's instance."""
        found = self.scheduler.state.models[ModelName(name)].instance
        assert found is not None, f"{name} has no instance"
        return found.id

    def loads(self, name: str) -> list[float]:
        """When loads of a model began."""
        return [at for at, item in self.heard if isinstance(item, StartInstance) and item.model == name]

    def stops(self, name: str) -> list[float]:
        """When instances of a model were told to stop."""
        return [
            at for at, item in self.heard if isinstance(item, StopInstance) and self._names[item.instance_id] == name
        ]

    def logged(self, event: LogEvent) -> list[tuple[float, Log]]:
        """The decision log's lines of one kind."""
        return [(at, item) for at, item in self.heard if isinstance(item, Log) and item.event is event]

    def warm(self, *names: str, job_class: JobClass = CHAT) -> None:
        """Have models loaded and idle, one after the other, each by one job of a class; then let 10 s pass."""
        for name in names:
            job_id = self.submit(name, job_class)
            for _ in range(600):
                if self.grants(job_id):
                    break
                self.advance(0.1)
            if not self.step_seconds.get(name):
                self.finish(job_id)
        self.advance(10.0)
