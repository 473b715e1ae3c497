"""Processes in plain objects: loading, serving, standing still, dying.

Owns the life of each simulated llama-server and the time that its work takes. Work stands while its process stands
(S10): a piece of it is given its time again for as long as it stood. It knows steps as pieces of work only.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from gridsched.core.commands import StartInstance
from gridsched.core.events import (
    Failure,
    FailureCause,
    HostMemoryRead,
    InstanceExited,
    InstanceReady,
    MemoryReleased,
    ProbeDue,
)
from gridsched.core.ids import DeviceName, GrantId, InstanceId
from sim.cards import Cards, Held
from sim.faults import FaultPlan
from sim.moments import Act, Moments
from sim.workload import GIB, Scenario, generator

OOM = Failure(FailureCause.DEVICE_OOM, "the card has not enough free memory")
CRASH = Failure(FailureCause.CRASHED, "the process died")
LOST_CARD = Failure(FailureCause.DRIVER_FAULT, "the device is gone")
NEWS_SECONDS = 0.02  # at most, until a death is noticed


@dataclass(slots=True, eq=False)
class Process:
    """One simulated llama-server. `running` maps the grants it works on to what is done when it dies; `stood` is how
    long it has stood in all, `frozen` what is to go on when it does."""

    start: StartInstance
    factor: float
    state: str = "loading"  # loading, ready, gone
    stopping: bool = False
    hangs: bool = False
    faulty: bool = False
    served: int = 0
    running: dict[GrantId, Act] = field(default_factory=dict)
    paused_at: float | None = None
    stood: float = 0.0
    frozen: list[Act] = field(default_factory=list)

    @property
    def id(self) -> InstanceId:
        """The instance it is for the scheduler."""
        return self.start.instance_id

    def wants(self, share: float) -> Held:
        """Bytes it takes on each card when it has loaded a share of itself."""
        parts = self.start.option.footprint
        return {part.device: int(part.total_bytes * self.factor * share) for part in parts}


class Processes:
    """All processes of a run. `on_death` is told of each that dies with work in flight."""

    def __init__(self, scenario: Scenario, moments: Moments, cards: Cards, faults: FaultPlan) -> None:
        self.alive: dict[InstanceId, Process] = {}
        self._moments = moments
        self._cards = cards
        self._faults = faults
        self._lag = generator(scenario.seed, "processes")
        self._load_seconds = {spec.name: spec.load_seconds for spec in scenario.models}
        cards.on_vanish = self._lose_card

    # --- coming -------------------------------------------------------------------------------------------------------

    def spawn(self, start: StartInstance) -> None:
        """Begin a load. It takes half of its memory at once and the rest when it is done."""
        process = self.alive[start.instance_id] = Process(start, self._faults.memory_factor())
        expected = self._load_seconds.get(start.model, 1.0)
        seconds = expected * self._lag.uniform(0.85, 1.15) * self._faults.load_factor()
        failure = self._faults.load_failure()
        if not self._cards.take(process.id, process.wants(0.5)):
            self._moments.later(seconds / 4, partial(self.exit, process, OOM))
        elif failure is not None:
            self._moments.later(seconds / 2, partial(self.exit, process, failure))
        else:
            self._moments.later(seconds, partial(self._become_ready, process))

    def _become_ready(self, process: Process) -> None:
        if process.state != "loading" or process.stopping:
            return
        if not self._cards.take(process.id, process.wants(1.0)):
            self.exit(process, OOM)
            return
        process.state = "ready"
        self._moments.post(InstanceReady(process.id))

    # --- working ------------------------------------------------------------------------------------------------------

    def work(self, process: Process, seconds: float, act: Act) -> None:
        """Do something when the process has run for so long."""
        stood = process.stood

        def due() -> None:
            nonlocal stood
            if process.state == "gone":
                return
            if process.paused_at is not None:
                process.frozen.append(due)
                return
            missing, stood = process.stood - stood, process.stood
            if missing > 0:
                self._moments.later(missing, due)
            else:
                act()

        # What begins while the process stands has not run at all when it goes on.
        if process.paused_at is not None:
            process.frozen.append(lambda: self.work(process, seconds, act))
        else:
            self._moments.later(seconds, due)

    def pause(self, instance_id: InstanceId) -> None:
        """S10: it stands still."""
        process = self.alive.get(instance_id)
        if process is not None and process.paused_at is None:
            process.paused_at = self._moments.now

    def resume(self, instance_id: InstanceId) -> None:
        """S10: it goes on."""
        process = self.alive.get(instance_id)
        if process is None or process.paused_at is None:
            return
        process.stood += self._moments.now - process.paused_at
        process.paused_at = None
        frozen, process.frozen = process.frozen, []
        for act in frozen:
            act()

    # --- going --------------------------------------------------------------------------------------------------------

    def stop(self, instance_id: InstanceId) -> None:
        """Ask it to end."""
        process = self.alive.get(instance_id)
        if process is not None and not process.stopping:
            if process.state == "loading" and self._faults.ready_crosses_stop():
                self._become_ready(process)  # the news of it and the stop have crossed
            process.stopping = True
            self._moments.later(self._faults.stop_seconds(), partial(self.exit, process, None))

    def exit(self, process: Process, failure: Failure | None) -> None:
        """It is gone: said soon, its steps break, its memory comes back later."""
        if self.alive.pop(process.id, None) is None:
            return
        process.state = "gone"
        self._cards.let_go(process.id)
        for breaks in process.running.values():
            self._moments.later(self._lag.uniform(0, NEWS_SECONDS), breaks)
        told = self._lag.uniform(0, NEWS_SECONDS)
        self._moments.later(told, partial(self._moments.post, InstanceExited(process.id, failure)))
        self._moments.later(told + self._faults.release_seconds(), partial(self._release, process.id))

    def _release(self, instance_id: InstanceId) -> None:
        if not self._cards.can_verify(instance_id):
            self._cards.on_answer.append(partial(self._release, instance_id))
            return
        self._cards.give_back(instance_id)
        self._moments.post(MemoryReleased(instance_id))

    # --- faults that come by themselves -------------------------------------------------------------------------------

    def crash(self) -> None:
        """Any of them dies, whether it loads or serves."""
        self._kill("crash", CRASH, lambda process: not process.stopping)

    def run_out_of_memory(self) -> None:
        """One that serves asks for more than there is."""
        self._kill("oom", OOM, lambda process: process.state == "ready" and not process.stopping)

    def _kill(self, kind: str, failure: Failure, may: Callable[[Process], bool]) -> None:
        candidates = [process for process in self.alive.values() if may(process)]
        if candidates:
            self.exit(self._faults.pick(kind).choice(candidates), failure)

    def _lose_card(self, name: DeviceName) -> None:
        for process in list(self.alive.values()):
            if name in process.start.option.devices:
                self.exit(process, LOST_CARD)

    def read_host(self) -> None:
        """What each holds of host memory: more with every step that it has served (M11)."""
        held = {one.id: int((0.5 + 0.2 * one.served) * GIB) for one in self.alive.values()}
        self._moments.post(HostMemoryRead(tuple(held.items())), lag=False)

    def probe(self) -> None:
        """One that serves is about to be asked how it is (P6)."""
        ready = [process for process in self.alive.values() if process.state == "ready" and not process.stopping]
        if ready:
            self._moments.post(ProbeDue(self._lag.choice(ready).id))
