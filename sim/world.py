"""The fast runner: clients, persons, processes and cards in plain objects, the real scheduler in the middle.

Owns the run: its phases, what goes to whom, and the changes of configuration. Every random choice comes from generators
named by the seed. It never judges: every step's event and commands go to the watchers. Free of trio, so that a run
costs microseconds an event.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Protocol

from gridsched.core.commands import (
    AbortStep,
    AnswerRequest,
    ArmTimer,
    Command,
    GrantStep,
    PauseInstance,
    RejectJob,
    ResumeInstance,
    StartInstance,
    StopInstance,
)
from gridsched.core.events import (
    DevicesChanged,
    DrainBegan,
    Event,
    FamiliesChanged,
    ModelsChanged,
    PolicyChanged,
    TimerFired,
)
from gridsched.core.model import ModelSpec
from sim.cards import IDLE_POLL_SECONDS, QUIET_POLL_SECONDS, Cards
from sim.clients import Clients
from sim.faults import FaultPlan
from sim.moments import Act, Moments
from sim.persons import Persons
from sim.processes import Processes
from sim.workload import Scenario, chance, generator

REST_SECONDS = 120.0  # after the last job: long enough for every slot to be let go of, and for what hangs to be stopped
LONGEST_WAIT_SECONDS = 25 * 3600.0  # S9: low work is sent away after a day
HOST_POLLS = 5  # polls of the cards between two looks at host memory
PATIENCE_SECONDS = 1500.0  # longer than the longest back-off, for jobs to end and for pins to be back


class Steps(Protocol):
    """What the world needs of a scheduler."""

    def step(self, event: Event, now: float) -> tuple[Command, ...]:
        """Hear one event, decide."""


class Watcher(Protocol):
    """Whoever looks on: checkers, the digest, a trace."""

    def saw(self, event: Event, commands: tuple[Command, ...], now: float) -> None:
        """One step has been made."""


class World:
    """One run. `watchers` see every step, in order; one that raises ends it."""

    def __init__(self, scenario: Scenario, scheduler: Steps, watchers: Iterable[Watcher] = ()) -> None:
        self.scenario = scenario
        self.faults = FaultPlan(scenario)
        self.steps = 0
        self.moments = Moments(generator(scenario.seed, "lag"), self._step)
        self.cards = Cards(scenario, self.moments, self.faults)
        self.processes = Processes(scenario, self.moments, self.cards, self.faults)
        self.clients = Clients(scenario, self.moments, self.processes, self.faults)
        self.persons = Persons(scenario, self.moments)
        self._decide = scheduler.step
        self._saw = tuple(watcher.saw for watcher in watchers)
        self._timer = 0
        self._models = scenario.models
        self._carrying: dict[type, Callable[..., object]] = {
            GrantStep: lambda command: self.clients.deliver(command.grant),
            RejectJob: lambda command: self.clients.close(command.job_id),
            AbortStep: lambda command: self.clients.abort(command.grant_id),
            StartInstance: self.processes.spawn,
            StopInstance: lambda command: self.processes.stop(command.instance_id),
            PauseInstance: lambda command: self.processes.pause(command.instance_id),
            ResumeInstance: lambda command: self.processes.resume(command.instance_id),
            AnswerRequest: self.persons.answer,
            ArmTimer: self._arm,
        }

    @property
    def now(self) -> float:
        """Seconds since the run's beginning."""
        return self.moments.now

    # --- the run ------------------------------------------------------------------------------------------------------

    def run(self, events: int, patience_seconds: float = PATIENCE_SECONDS) -> None:
        """Two thirds of the events with faults, the rest healed; then no new job, and time for everything to end."""
        self._begin()
        self.moments.play(lambda: self.steps >= events * 2 // 3)
        self._heal()
        self.moments.play(lambda: self.steps >= events)
        self.clients.open = False
        self.cards.poll_seconds = QUIET_POLL_SECONDS
        if self.scenario.drain:
            self.moments.post(DrainBegan())
        self._wait_for(patience_seconds, lambda: not self.clients.seats)
        if self.clients.seats:  # who waits for what pins keep away is sent away when the longest wait is over
            self.cards.poll_seconds = IDLE_POLL_SECONDS
            self._wait_for(LONGEST_WAIT_SECONDS, lambda: not self.clients.seats)
        rest = self.now + REST_SECONDS
        self.moments.play(lambda: self.now > rest)
        self._wait_for(patience_seconds, self._all_is_back)
        # What persons have pinned is known to the scheduler alone: its longest back-off, and then the load, may pass.
        self.cards.poll_seconds = IDLE_POLL_SECONDS
        self._wait_for(patience_seconds, lambda: False)
        self._wait_for(patience_seconds, lambda: all(one.state != "loading" for one in self.processes.alive.values()))

    def _begin(self) -> None:
        post = self.moments.post
        post(DevicesChanged(self.scenario.devices), lag=False)
        post(PolicyChanged(self.scenario.policy), lag=False)
        self.cards.poll()  # before there are models: what is pinned loads at once
        post(ModelsChanged(self.scenario.models), lag=False)
        if self.scenario.families:
            post(FamiliesChanged(self.scenario.families), lag=False)
        for kind, happen in (
            ("crash", self.processes.crash),
            ("oom", self.processes.run_out_of_memory),
            ("external", self.cards.intrude),
            ("silence", self.cards.fall_silent),
            ("lies", self.cards.begin_to_lie),
            ("vanish", self.cards.vanish),
            ("reload", self._reload),
            ("probe", self.processes.probe),
            ("lost", self.cards.lose),
        ):
            self._recur(kind, happen)
        if self.scenario.policy.host_memory_limit_bytes is not None:
            self._read_host()
        self.clients.arrive()
        self.persons.begin()

    def _read_host(self) -> None:
        self.processes.read_host()
        self.moments.later(HOST_POLLS * self.cards.poll_seconds, self._read_host)

    def _wait_for(self, seconds: float, done: Callable[[], bool]) -> None:
        """Wait for something, but not for longer."""
        limit = self.moments.now + seconds
        self.moments.play(lambda: self.moments.now > limit or done())

    def _heal(self) -> None:
        """Nothing goes wrong from now on, and what went wrong is put right."""
        self.faults.heal()
        self.cards.heal()
        self.persons.be_content()
        self._change_models(self.scenario.models)

    def _all_is_back(self) -> bool:
        """Whether every pin of the configuration is there, and no wish is open: then there is nothing to wait for."""
        there = {process.start.model for process in self.processes.alive.values() if process.state == "ready"}
        return not self.persons.open_wishes and all(spec.name in there for spec in self._models if spec.pinned)

    def _recur(self, kind: str, happen: Act) -> None:
        """Let a fault come back again and again, until the world is healed."""
        seconds = self.faults.next_seconds(kind)
        if seconds is None:
            return

        def strike() -> None:
            if self.faults.happens(kind):
                happen()
                self._recur(kind, happen)

        self.moments.later(seconds, strike)

    # --- steps --------------------------------------------------------------------------------------------------------

    def _step(self, event: Event) -> None:
        now = self.moments.now
        commands = self._decide(event, now)
        self.steps += 1
        for saw in self._saw:
            saw(event, commands, now)
        carrying = self._carrying
        for command in commands:
            carry_out = carrying.get(type(command))
            if carry_out is not None:
                carry_out(command)

    def _arm(self, command: ArmTimer) -> None:
        self._timer += 1
        if command.at is not None:
            self.moments.at(command.at, partial(self._ring, self._timer))

    def _ring(self, number: int) -> None:
        if number == self._timer:
            self._step(TimerFired())

    # --- configuration ------------------------------------------------------------------------------------------------

    def _reload(self) -> None:
        """A model or a family leaves the configuration for a while, or is launched otherwise, or a figure changes."""
        rng = self.faults.pick("reload")
        if self.scenario.families and chance(rng, 0.3):
            self.moments.post(FamiliesChanged(()))
            self.moments.later(rng.uniform(1, 10), self._bring_families_back)
            return
        if chance(rng, 0.5):
            gone = rng.choice(self.scenario.models).name
            self._change_models(tuple(model for model in self.scenario.models if model.name != gone))
            self.moments.later(rng.uniform(1, 20), partial(self._change_models, self.scenario.models))
            return
        if chance(rng, 0.5):
            changed = rng.choice(self.scenario.models).name
            self._change_models(tuple(map(partial(_launched_otherwise, changed), self.scenario.models)))
            self.moments.later(rng.uniform(1, 20), partial(self._change_models, self.scenario.models))
            return
        policy = replace(self.scenario.policy, interactive_cooldown_seconds=rng.choice((0.0, 1.0, 3.0)))
        self.moments.post(PolicyChanged(policy))

    def _bring_families_back(self) -> None:
        self.moments.post(FamiliesChanged(self.scenario.families))

    def _change_models(self, models: tuple[ModelSpec, ...]) -> None:
        if models != self._models:
            self._models = models
            self.moments.post(ModelsChanged(self._models))


def _launched_otherwise(name: str, spec: ModelSpec) -> ModelSpec:
    """A model with other flags, where it is the one."""
    return replace(spec, launched_with="other flags") if spec.name == name else spec
