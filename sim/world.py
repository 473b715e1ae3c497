"""The fast runner: a heap of moments, a desk, processes and cards in plain objects, the real scheduler in the middle.

Owns the simulated outside and virtual time. Every random choice comes from generators named by the seed. What happens
outside reaches the scheduler through an inbox with a lag, so that news cross each other as they do in life. It never
judges: every step's event and commands go to the watchers. Free of trio, so that a run costs microseconds an event.
"""

import heapq
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol

from gridsched.core.commands import ArmTimer, Command, Grant, GrantStep, RejectJob, StartInstance, StopInstance
from gridsched.core.events import (
    DeviceRead,
    DevicesChanged,
    DrainBegan,
    Event,
    Failure,
    FailureCause,
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
    TimerFired,
)
from gridsched.core.ids import DeviceName, InstanceId, JobId
from gridsched.core.job import Job, JobKind, Outcome, OutcomeKind
from gridsched.core.model import ModelSpec
from gridsched.core.policy import Policy
from sim.faults import STALL_LIMIT_SECONDS, FaultPlan
from sim.workload import Client, Scenario, chance, generator

POLL_SECONDS = 1.0
REST_SECONDS = 120.0  # after the last job: long enough for every slot to be let go of, and for what hangs to be stopped
OK = 200
OOM = Failure(FailureCause.DEVICE_OOM, "the card has not enough free memory")
CRASH = Failure(FailureCause.CRASHED, "the process died")
GONE = Outcome(OutcomeKind.CLIENT_GONE, status=499, answered=False)


class Steps(Protocol):
    """What the world needs of a scheduler."""

    def step(self, event: Event, now: float) -> tuple[Command, ...]:
        """Hear one event, decide."""


class Watcher(Protocol):
    """Whoever looks on: checkers, the digest, a trace."""

    def saw(self, event: Event, commands: tuple[Command, ...], now: float) -> None:
        """One step has been made."""


@dataclass(slots=True)
class Seat:
    """One job at the desk. `left` is final; `grant` is the one that was delivered and not yet finished."""

    job: Job
    client: Client
    left: bool = False
    grant: Grant | None = None
    taken: bool = False


@dataclass(slots=True)
class Process:
    """One simulated llama-server."""

    start: StartInstance
    factor: float
    state: str = "loading"
    stopping: bool = False
    hangs: bool = False
    held: dict[DeviceName, int] = field(default_factory=dict)
    running: dict[JobId, Seat] = field(default_factory=dict)

    @property
    def id(self) -> InstanceId:
        """The instance it is for the scheduler."""
        return self.start.instance_id

    def wants(self, share: float) -> dict[DeviceName, int]:
        """Bytes it takes on each card when it has loaded a share of itself."""
        parts = self.start.option.footprint
        return {part.device: int(part.total_bytes * self.factor * share) for part in parts}


class World:
    """One run. `watchers` see every step, in order; the run ends before its time when `stop_early` says so."""

    def __init__(
        self,
        scenario: Scenario,
        scheduler: Steps,
        watchers: Iterable[Watcher] = (),
        stop_early: Callable[[], bool] = lambda: False,
    ) -> None:
        self.scenario = scenario
        self.faults = FaultPlan(scenario)
        self.now = 0.0
        self.steps = 0
        self.seats: dict[JobId, Seat] = {}
        self.processes: dict[InstanceId, Process] = {}
        self._scheduler = scheduler
        self._watchers = tuple(watchers)
        self._stop_early = stop_early
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._inbox: deque[Event] = deque()
        self._made = 0
        self._jobs = 0
        self._timer = 0
        self._open = True
        self._healed = False
        self._silent_until = 0.0
        self._unreleased: dict[InstanceId, dict[DeviceName, int]] = {}
        self._foreign = dict.fromkeys((device.name for device in scenario.devices), 0)
        self._models = scenario.models
        self._lag = generator(scenario.seed, "lag")
        self._rngs = {client.name: generator(scenario.seed, "client", client.name) for client in scenario.clients}

    # --- the run ------------------------------------------------------------------------------------------------------

    def run(self, events: int, patience_seconds: float = 1500.0) -> None:
        """Two thirds of the events with faults, the rest healed; then no new job, and time for every job to end."""
        self._begin()
        self._play(lambda: self.steps >= events * 2 // 3)
        self._heal()
        self._play(lambda: self.steps >= events)
        self._open = False
        if self.scenario.drain:
            self._post(DrainBegan())
        limit = self.now + patience_seconds
        self._play(lambda: self.now > limit or not self.seats)
        rest = self.now + REST_SECONDS
        self._play(lambda: self.now > rest)

    def _begin(self) -> None:
        self._post(DevicesChanged(self.scenario.devices), lag=False)
        self._post(PolicyChanged(self.scenario.policy), lag=False)
        self._post(ModelsChanged(self.scenario.models), lag=False)
        self._poll()
        for kind, happen in (("crash", self._crash), ("external", self._intrude), ("silence", self._go_silent)):
            self._recur(kind, happen)
        self._recur("reload", self._reload)
        for client in self.scenario.clients:
            self._later(self._rngs[client.name].uniform(0, 5), partial(self._ask, client))

    def _play(self, done: Callable[[], bool]) -> None:
        while self._heap and not self._stop_early() and not done():
            self.now, _, act = heapq.heappop(self._heap)
            act()

    def _heal(self) -> None:
        """Nothing goes wrong from now on, and what went wrong is put right."""
        self._healed = True
        self.faults.heal()
        self._foreign = dict.fromkeys(self._foreign, 0)
        self._silent_until = self.now
        self._change_models(self.scenario.models)

    def _later(self, seconds: float, act: Callable[[], None]) -> None:
        self._made += 1
        heapq.heappush(self._heap, (self.now + seconds, self._made, act))

    def _recur(self, kind: str, happen: Callable[[], None]) -> None:
        """Let a fault come back again and again, until the world is healed."""
        seconds = self.faults.next_seconds(kind)
        if seconds is None:
            return

        def strike() -> None:
            if self.faults.happens(kind):
                happen()
                self._recur(kind, happen)

        self._later(seconds, strike)

    def _post(self, event: Event, *, lag: bool = True) -> None:
        """Put an event into the inbox: it is heard in order, and mostly at once."""
        self._inbox.append(event)
        seconds = self._lag.uniform(0, 0.002) if lag and chance(self._lag, 0.2) else 0.0
        self._later(seconds, self._hear)

    def _hear(self) -> None:
        self._step(self._inbox.popleft())

    def _step(self, event: Event) -> None:
        commands = self._scheduler.step(event, self.now)
        self.steps += 1
        for watcher in self._watchers:
            watcher.saw(event, commands, self.now)
        for command in commands:
            self._carry_out(command)

    def _carry_out(self, command: Command) -> None:
        match command:
            case GrantStep(grant):
                self._deliver(grant)
            case RejectJob(job_id):
                self._close(job_id)
            case StartInstance():
                self._spawn(command)
            case StopInstance(instance_id):
                self._stop(instance_id)
            case ArmTimer(at):
                self._timer += 1
                if at is not None:
                    self._later(max(0.0, at - self.now), partial(self._ring, self._timer))
            case _:
                pass

    def _ring(self, number: int) -> None:
        if number == self._timer:
            self._step(TimerFired())

    # --- clients and the desk -----------------------------------------------------------------------------------------

    def _ask(self, client: Client) -> None:
        """A client asks; what becomes of the job decides when it asks again."""
        if not self._open:
            return
        self._jobs += 1
        rng = self._rngs[client.name]
        job = Job(
            id=JobId(self._jobs),
            model=client.model,
            job_class=client.job_class,
            kind=client.kind,
            steps=rng.randint(*client.steps),
            max_wait_seconds=client.max_wait_seconds,
            warm_only=client.warm_only,
            no_evict=client.no_evict,
        )
        seat = self.seats[job.id] = Seat(job, client)
        self._post(JobSubmitted(job))
        patience = self.faults.leaves_after()
        if patience is not None:
            self._later(patience, lambda: self._leave(seat))

    def _close(self, job_id: JobId) -> None:
        """The job is over for the desk; its client thinks and asks again."""
        seat = self.seats.pop(job_id, None)
        if seat is None:
            return
        seat.left = True
        think = self._rngs[seat.client.name].uniform(*seat.client.think_seconds)
        self._later(max(think, 0.001), lambda: self._ask(seat.client))

    def _leave(self, seat: Seat) -> None:
        """The client goes away, in whatever state its ticket is."""
        if seat.left:
            return
        grant, taken = seat.grant, seat.taken
        self._close(seat.job.id)
        if grant is None:
            self._post(JobAbandoned(seat.job.id))
        elif not taken:
            self._post(GrantReturned(grant.id))
        else:
            self._post(JobEnded(grant.id, GONE, settled=False))
            process = self.processes.get(grant.instance_id)
            if process is not None:
                self._settle_later(process, seat, grant)

    def _settle_later(self, process: Process, seat: Seat, grant: Grant) -> None:
        """The engine notices the closed connection after a while, unless it hangs or ends first."""

        def settle() -> None:
            if process.state == "ready" and not process.hangs and seat.job.id in process.running:
                del process.running[seat.job.id]
                self._post(SlotSettled(grant.id))

        self._later(self._lag.uniform(0.01, 1.0), settle)

    def _deliver(self, grant: Grant) -> None:
        """A ticket is answered; the handler takes its grant a moment later."""
        seat = self.seats.get(grant.job_id)
        if seat is None:
            return
        seat.grant, seat.taken = grant, False
        if self.faults.leaves_on_grant():
            self._later(0.0, lambda: self._leave(seat))
        self._later(self._lag.uniform(0, 0.001), lambda: self._take(seat, grant))

    def _take(self, seat: Seat, grant: Grant) -> None:
        if seat.left:
            return
        seat.taken = True
        process = self.processes.get(grant.instance_id)
        if process is None or process.state != "ready":
            self._later(0.001, lambda: self._fail(seat, grant, OutcomeKind.ENGINE_DIED))
            return
        process.running[seat.job.id] = seat
        if self.faults.stalls():
            process.hangs = True
        if process.hangs:
            self._later(STALL_LIMIT_SECONDS, lambda: self._fail(seat, grant, OutcomeKind.STALLED))
            return
        rng = self._rngs[seat.client.name]
        seconds = rng.uniform(*seat.client.step_seconds) * (1 + 0.2 * (len(process.running) - 1))
        self._later(seconds, lambda: self._finish(process, seat, grant))

    def _finish(self, process: Process, seat: Seat, grant: Grant) -> None:
        """A step comes to its end, if its process still lives and sends."""
        if seat.left or seat.grant is not grant or process.state != "ready":
            return
        if process.hangs:
            self._later(STALL_LIMIT_SECONDS, lambda: self._fail(seat, grant, OutcomeKind.STALLED))
            return
        process.running.pop(seat.job.id, None)
        outcome = Outcome(OutcomeKind.DONE, status=self.faults.status())
        self._end(seat, grant, outcome, over=grant.step == grant.steps or outcome.status != OK)

    def _fail(self, seat: Seat, grant: Grant, kind: OutcomeKind) -> None:
        """A step breaks. The job of a process that died waits to be run again unless a byte of an answer was sent; a
        stalled one is over."""
        if seat.left or seat.grant is not grant:
            return
        answered = seat.job.kind is not JobKind.EMBEDDINGS and chance(self._lag, 0.5)
        over = answered or kind is OutcomeKind.STALLED
        self._end(seat, grant, Outcome(kind, status=502, answered=answered), over=over)

    def _end(self, seat: Seat, grant: Grant, outcome: Outcome, *, over: bool) -> None:
        """The step is over; the job too, or it waits for its next grant."""
        seat.grant = None
        if not over:
            self._post(StepEnded(grant.id, outcome))
            return
        self._close(seat.job.id)
        self._post(JobEnded(grant.id, outcome))

    # --- processes ----------------------------------------------------------------------------------------------------

    def _spawn(self, start: StartInstance) -> None:
        process = Process(start, self.faults.memory_factor())
        self.processes[process.id] = process
        spec = next((one for one in self.scenario.models if one.name == start.model), None)
        seconds = (spec.load_seconds if spec else 1.0) * self.faults.load_factor()
        failure = self.faults.load_failure()
        if not self._grow(process, 0.5):
            self._later(seconds / 4, lambda: self._exit(process, OOM))
        elif failure is not None:
            self._later(seconds / 2, lambda: self._exit(process, failure))
        else:
            self._later(seconds, lambda: self._become_ready(process))

    def _become_ready(self, process: Process) -> None:
        if process.state != "loading" or process.stopping:
            return
        if not self._grow(process, 1.0):
            self._exit(process, OOM)
            return
        process.state = "ready"
        self._post(InstanceReady(process.id))

    def _grow(self, process: Process, share: float) -> bool:
        """Take memory; False where a card has not enough."""
        wants = process.wants(share)
        if any(self._free(name) < wanted - process.held.get(name, 0) for name, wanted in wants.items()):
            return False
        process.held = wants
        return True

    def _stop(self, instance_id: InstanceId) -> None:
        process = self.processes.get(instance_id)
        if process is not None and not process.stopping:
            process.stopping = True
            self._later(self.faults.stop_seconds(), lambda: self._exit(process, None))

    def _exit(self, process: Process, failure: Failure | None) -> None:
        """The process is gone: said at once, its steps break, its memory comes back later."""
        if self.processes.pop(process.id, None) is None:
            return
        process.state = "gone"
        self._unreleased[process.id] = process.held
        for seat in process.running.values():
            if seat.grant is not None and seat.grant.instance_id == process.id:
                breaks = partial(self._fail, seat, seat.grant, OutcomeKind.ENGINE_DIED)
                self._later(self._lag.uniform(0, 0.02), breaks)
        told = self._lag.uniform(0, 0.02)
        self._later(told, lambda: self._post(InstanceExited(process.id, failure)))
        self._later(told + self.faults.release_seconds(), lambda: self._release(process.id))

    def _release(self, instance_id: InstanceId) -> None:
        held = self._unreleased.pop(instance_id)
        self._read(held)
        self._post(MemoryReleased(instance_id))

    # --- cards --------------------------------------------------------------------------------------------------------

    def _free(self, name: DeviceName) -> int:
        return self._total(name) - self._used(name)

    def _total(self, name: DeviceName) -> int:
        return next(device.total_bytes for device in self.scenario.devices if device.name == name)

    def _used(self, name: DeviceName) -> int:
        """What the card says is used: by us, by the gone whose memory lags, and by programs outside."""
        ours = sum(process.held.get(name, 0) for process in self.processes.values())
        lagging = sum(held.get(name, 0) for held in self._unreleased.values())
        return min(ours + lagging + self._foreign[name], self._total(name))

    def _read(self, names: Iterable[DeviceName]) -> None:
        for name in names:
            held = tuple(
                (process.id, process.held[name]) for process in self.processes.values() if name in process.held
            )
            self._post(DeviceRead(name, self._total(name), self._used(name), held), lag=False)

    def _poll(self) -> None:
        if self.now >= self._silent_until:
            self._read(self._foreign)
        self._later(POLL_SECONDS, self._poll)

    # --- faults that come by themselves -------------------------------------------------------------------------------

    def _crash(self) -> None:
        ready = [process for process in self.processes.values() if not process.stopping]
        if ready:
            self._exit(self.faults.pick("crash").choice(ready), CRASH)

    def _intrude(self) -> None:
        """A program outside takes what it can get, and gives it back."""
        name = self.faults.pick("external").choice(sorted(self._foreign))
        wanted, seconds = self.faults.external()
        taken = min(wanted, self._free(name))
        self._foreign[name] += taken

        def go() -> None:
            self._foreign[name] = max(0, self._foreign[name] - taken)

        self._later(seconds, go)

    def _go_silent(self) -> None:
        self._silent_until = self.now + self.faults.silence_seconds()

    def _reload(self) -> None:
        """A model leaves the configuration for a while, or a figure changes."""
        rng = self.faults.pick("reload")
        if chance(rng, 0.5):
            gone = rng.choice(self.scenario.models).name
            self._change_models(tuple(model for model in self.scenario.models if model.name != gone))
            self._later(rng.uniform(1, 20), lambda: self._change_models(self.scenario.models))
            return
        policy: Policy = replace(self.scenario.policy, interactive_cooldown_seconds=rng.choice((0.0, 1.0, 3.0)))
        self._post(PolicyChanged(policy))

    def _change_models(self, models: tuple[ModelSpec, ...]) -> None:
        if models != self._models:
            self._models = models
            self._post(ModelsChanged(self._models))
