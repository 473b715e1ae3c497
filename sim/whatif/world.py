"""One run: the real scheduler, fluid cards and clients in closed loops, on a heap of moments.

Owns virtual time and the only randomness: each client draws from a generator of its own, so that leaving some out (the
`alone` run) changes nothing about the others. Nothing goes wrong here and news have no lag; that is the fast runner's
part. The run begins with the models in memory that the scenario says, and is counted from then on.
"""

import heapq
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from math import ceil, inf
from random import Random

from gridsched.core.commands import (
    AbortStep,
    ArmTimer,
    Command,
    Grant,
    GrantStep,
    PauseInstance,
    RejectJob,
    ResumeInstance,
    StartInstance,
    StopInstance,
)
from gridsched.core.events import (
    DeviceRead,
    DevicesChanged,
    Event,
    InstanceExited,
    InstanceReady,
    JobEnded,
    JobSubmitted,
    MemoryReleased,
    ModelsChanged,
    StepEnded,
    TimerFired,
)
from gridsched.core.ids import DeviceName, GrantId, InstanceId, JobId, ModelName
from gridsched.core.job import Job, JobClass, JobKind, Outcome, OutcomeKind
from gridsched.core.scheduler import Scheduler
from sim.whatif.fluid import FluidCard, Process, Stream
from sim.whatif.scenario import Clients, Model, PolicyRun, Scenario
from sim.whatif.tally import Request, Result, Tally

POLL_SECONDS = 1.0
STOP_SECONDS, RELEASE_SECONDS = 0.5, 0.25  # what ending takes an idle process, and its memory to come back (guesses)
WARM_SECONDS = 0.001  # the step of the request that has a model loaded before the clock starts
WARM_LIMIT_SECONDS = 600.0
SETTLE_SECONDS = 10.0  # between the last load and the start of the clock: longer than any cooldown that is in use
LEAST_PART = 0.2  # no step is shorter than this part of the mean, however wide the spread
DONE = Outcome(OutcomeKind.DONE)
ABORTED = Outcome(OutcomeKind.ABORTED, status=0, answered=False)


@dataclass(slots=True, eq=False)
class Seat:
    """One request under way. `steps_seconds` is the work of each step; `client` None for one that only warms."""

    job: Job
    asked_at: float
    steps_seconds: tuple[float, ...]
    client: "Client | None" = None
    queue_seconds: float | None = None
    first_at: float | None = None


class Client:
    """One closed loop and its generator."""

    def __init__(self, clients: Clients, number: int, seed: int, chunk: float) -> None:
        self.clients = clients
        self._chunk = chunk if clients.kind is JobKind.EMBEDDINGS else 1.0
        self._random = Random(f"{seed}:{clients.name}:{number}")  # noqa: S311 - repeatable numbers, not secrets

    def think_seconds(self) -> float:
        """The pause before the next request."""
        spread = self.clients.think_spread
        return self.clients.think_seconds * self._random.uniform(1.0 - spread, 1.0 + spread)

    def steps_seconds(self) -> tuple[float, ...]:
        """The work of each step of the next request."""
        drawn, spread = self._random.choice(self.clients.steps), self.clients.solo_spread
        count = ceil(drawn / self._chunk)
        mean = self.clients.solo_seconds * drawn / count
        return tuple(mean * max(LEAST_PART, self._random.gauss(1.0, spread)) for _ in range(count))


@dataclass(slots=True, eq=False)
class Loading:
    """A process from its start until its memory is back."""

    process: Process
    card: DeviceName
    started_at: float
    state: str = "loading"

    def held_bytes(self, now: float) -> int:
        """What it takes of its card: more and more while it loads."""
        model = self.process.model
        if self.state != "loading" or not model.load_seconds:
            return model.memory_bytes
        return int(model.memory_bytes * min(1.0, (now - self.started_at) / model.load_seconds))


class Run:
    """One policy, one seed."""

    def __init__(self, scenario: Scenario, policy: PolicyRun, seed: int, *, check_invariants: bool = False) -> None:
        self.now = 0.0
        self._scenario = scenario
        self._policy = policy
        self._models: dict[ModelName, Model] = {model.name: model for model in scenario.models}
        self._clients = [Client(each, n, seed, policy.chunk) for each in scenario.clients for n in range(each.count)]
        self._scheduler = Scheduler(policy.policy, check_invariants=check_invariants)
        self._tally = Tally()
        self._cards = {card.name: FluidCard(scenario.engine) for card in scenario.cards}
        self._processes: dict[InstanceId, Loading] = {}
        self._seats: dict[JobId, Seat] = {}
        self._grants: dict[GrantId, Grant] = {}
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._made = 0
        self._jobs = 0
        self._timer = 0
        self._due: dict[DeviceName, int] = dict.fromkeys(self._cards, 0)

    def play(self) -> Result:
        """The whole run."""
        self._warm_up()
        started_at, busy_before = self.now, self._busy_seconds()
        self._tally.counting = True
        for client in self._clients:
            self._later(client.think_seconds(), partial(self._ask, client))
        self._play_until(started_at + self._scenario.seconds)
        busy = (self._busy_seconds() - busy_before) / (self._scenario.seconds * len(self._cards))
        unanswered = [seat.client.clients.row for seat in self._seats.values() if seat.client is not None]
        return self._tally.result(self._scenario.rows, unanswered, busy)

    # --- time ---------------------------------------------------------------------------------------------------

    def _later(self, seconds: float, act: Callable[[], None]) -> None:
        self._made += 1
        heapq.heappush(self._heap, (self.now + seconds, self._made, act))

    def _play_until(self, end: float, done: Callable[[], bool] = lambda: False) -> None:
        while self._heap[0][0] <= end and not done():
            self.now, _, act = heapq.heappop(self._heap)
            act()
        if not done():
            self.now = end

    def _warm_up(self) -> None:
        """Have the models loaded that are in memory at the start, each by a request of a class that uses it."""
        self._tell(DevicesChanged(self._scenario.cards))
        self._tell(ModelsChanged(self._scenario.specs(self._policy.reserved_slots)))
        self._poll()
        for model in self._scenario.models:
            if not model.loaded:
                continue
            users = [each.job_class for each in self._scenario.clients if each.model == model.name]
            seat = self._seat(model.name, min(users, default=JobClass.BACKGROUND), JobKind.CHAT, (WARM_SECONDS,))
            self._tell(JobSubmitted(seat.job))
            self._play_until(self.now + WARM_LIMIT_SECONDS, lambda: not self._seats)
        self._play_until(self.now + SETTLE_SECONDS)

    def _busy_seconds(self) -> float:
        for card in self._cards.values():
            card.advance(self.now)
        return sum(card.busy_seconds for card in self._cards.values())

    # --- the scheduler ------------------------------------------------------------------------------------------

    def _tell(self, event: Event) -> None:
        commands = self._scheduler.step(event, self.now)
        self._tally.saw(commands)
        for command in commands:
            self._carry_out(command)

    def _carry_out(self, command: Command) -> None:
        match command:
            case GrantStep(grant):
                self._begin(grant)
            case ArmTimer(at):
                self._timer += 1
                if at is not None:
                    self._later(max(0.0, at - self.now), partial(self._ring, self._timer))
            case RejectJob(job_id):
                self._close(job_id, refused=True)
            case StartInstance():
                self._start(command)
            case StopInstance(instance_id):
                self._later(STOP_SECONDS, partial(self._exit, instance_id))
            case PauseInstance(instance_id):
                self._pause(instance_id, paused=True)
            case ResumeInstance(instance_id):
                self._pause(instance_id, paused=False)
            case AbortStep(grant_id):
                self._later(0.0, partial(self._abort, grant_id))
            case _:
                pass

    def _ring(self, number: int) -> None:
        if number == self._timer:
            self._tell(TimerFired())

    # --- clients ------------------------------------------------------------------------------------------------

    def _seat(self, model: ModelName, job_class: JobClass, kind: JobKind, steps_seconds: tuple[float, ...]) -> Seat:
        self._jobs += 1
        job = Job(JobId(self._jobs), model, job_class, kind, len(steps_seconds))
        seat = self._seats[job.id] = Seat(job, self.now, steps_seconds)
        return seat

    def _ask(self, client: Client) -> None:
        clients = client.clients
        seat = self._seat(clients.model, clients.job_class, clients.kind, client.steps_seconds())
        seat.client = client
        self._tell(JobSubmitted(seat.job))

    def _close(self, job_id: JobId, *, refused: bool = False) -> None:
        """A request is over; its client thinks and asks again."""
        seat = self._seats.pop(job_id)
        if seat.client is None:
            return
        streamed = seat.first_at is not None and seat.job.kind is not JobKind.EMBEDDINGS
        first_seconds = seat.first_at - seat.asked_at if streamed and seat.first_at is not None else None
        self._tally.requests.append(
            Request(
                seat.client.clients.row, self.now - seat.asked_at, seat.queue_seconds or 0.0, first_seconds, refused
            )
        )
        self._later(seat.client.think_seconds(), partial(self._ask, seat.client))

    # --- steps --------------------------------------------------------------------------------------------------

    def _begin(self, grant: Grant) -> None:
        seat = self._seats[grant.job_id]
        self._grants[grant.id] = grant
        if seat.queue_seconds is None:
            seat.queue_seconds = grant.queue_seconds
        work = seat.steps_seconds[grant.step - 1]
        rest_after_prompt = work * (1.0 - self._scenario.engine.prompt_share)
        home = self._processes[grant.instance_id]
        with_stream = Stream(grant.id, work, rest_after_prompt, seat.job.job_class.is_low)
        self._change(home.card, lambda: home.process.streams.update({grant.id: with_stream}))

    def _change(self, card_name: DeviceName, deed: Callable[[], object]) -> None:
        """Something about a card changes now: its rates do, and so does the next end of a step there."""
        card = self._cards[card_name]
        card.advance(self.now)
        deed()
        card.share_out()
        self._due[card_name] += 1
        at = card.next_end()
        if at < inf:
            self._later(max(0.0, at - self.now), partial(self._steps_end, card_name, self._due[card_name]))

    def _steps_end(self, card_name: DeviceName, number: int) -> None:
        if number != self._due[card_name]:
            return
        over: list[Stream] = []
        self._change(card_name, lambda: over.extend(self._cards[card_name].ended()))
        for stream in over:
            self._end(stream)

    def _end(self, stream: Stream) -> None:
        grant = self._grants.pop(stream.grant_id)
        seat = self._seats[grant.job_id]
        if seat.first_at is None:
            seat.first_at = stream.first_at
        if grant.step < grant.steps:
            self._tell(StepEnded(grant.id, DONE))
            return
        self._close(grant.job_id)
        self._tell(JobEnded(grant.id, DONE))

    def _abort(self, grant_id: GrantId) -> None:
        """S11: the step is taken away, unless its end was quicker. Low answers are not streamed here, so its client has
        seen nothing of it."""
        grant = self._grants.pop(grant_id, None)
        if grant is None:
            return
        home = self._processes[grant.instance_id]
        self._change(home.card, lambda: home.process.streams.pop(grant_id))
        self._tell(StepEnded(grant_id, ABORTED))

    # --- processes and memory -----------------------------------------------------------------------------------

    def _start(self, start: StartInstance) -> None:
        model = self._models[start.model]
        card = start.option.devices[0]
        home = self._processes[start.instance_id] = Loading(Process(start.instance_id, model), card, self.now)
        self._later(model.load_seconds, partial(self._ready, home))

    def _ready(self, home: Loading) -> None:
        if home.state == "loading" and home.process.id in self._processes:
            home.state = "ready"
            self._cards[home.card].processes[home.process.id] = home.process
            self._tell(InstanceReady(home.process.id))

    def _exit(self, instance_id: InstanceId) -> None:
        home = self._processes[instance_id]
        home.state = "gone"
        self._change(home.card, lambda: self._cards[home.card].processes.pop(instance_id, None))
        self._tell(InstanceExited(instance_id))
        self._later(RELEASE_SECONDS, partial(self._release, instance_id))

    def _release(self, instance_id: InstanceId) -> None:
        card = self._processes.pop(instance_id).card
        self._read((card,))
        self._tell(MemoryReleased(instance_id))

    def _pause(self, instance_id: InstanceId, *, paused: bool) -> None:
        home = self._processes[instance_id]
        self._change(home.card, lambda: setattr(home.process, "paused", paused))

    def _read(self, names: Iterable[DeviceName]) -> None:
        for card in self._scenario.cards:
            if card.name not in names:
                continue
            homes = [home for home in self._processes.values() if home.card == card.name]
            held = tuple((home.process.id, home.held_bytes(self.now)) for home in homes)
            used_bytes = sum(held_bytes for _, held_bytes in held)
            alive = tuple(one for one, home in zip(held, homes, strict=True) if home.state != "gone")
            self._tell(DeviceRead(card.name, card.total_bytes, used_bytes, alive))

    def _poll(self) -> None:
        self._read(tuple(self._cards))
        self._later(POLL_SECONDS, self._poll)
