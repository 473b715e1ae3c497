"""A checker is trusted because it catches a planted bug: the scheduler is broken on purpose, one rule at a time.

The scheduler's own invariants are switched off here, so that what speaks are the independent checkers.
"""

from collections.abc import Callable
from dataclasses import replace
from math import inf

import pytest

from gridsched.core import (
    aborts,
    admission,
    eviction,
    failures,
    families,
    growth,
    keys,
    leases,
    lifecycle,
    losses,
    pause,
    persons,
    pins,
    serving,
)
from gridsched.core.commands import (
    AnswerRequest,
    ArmTimer,
    Command,
    GrantStep,
    KeepMeasurement,
    RejectJob,
    StopInstance,
)
from gridsched.core.events import DeviceRead, Event, HostMemoryRead, JobEnded, StepEnded
from gridsched.core.failures import Deaths
from gridsched.core.job import JobClass, OutcomeKind
from gridsched.core.ledger import DeviceBook, Ledger, Needs
from gridsched.core.model import DeviceFootprint, LaunchOption
from gridsched.core.modes import DeviceMode, Turn
from gridsched.core.placement import Draft
from gridsched.core.queues import JobRecord, ModelQueue
from gridsched.core.residency import Instance, ModelState
from gridsched.core.scheduler import Scheduler
from gridsched.core.starts import Starts
from gridsched.core.state import State
from sim.faults import KINDS
from sim.run import run_seed
from sim.workload import GIB, Scenario, draw

SEEDS = range(1, 61)
EVENTS = 600
Patch = pytest.MonkeyPatch


def tail_is_forgotten(patch: Patch) -> None:
    """A chat that has ended leaves nothing behind."""

    def active(self: DeviceMode, now: float) -> bool:
        del now
        return self.chats_running > 0 or self.chats_waiting > 0

    patch.setattr(DeviceMode, "active", active)


def low_work_ignores_chats(patch: Patch) -> None:
    """No device is ever in interactive mode."""
    patch.setattr(Instance, "interactive_mode", lambda _self, _now: False)


def turns_are_not_counted(patch: Patch) -> None:
    """A relief turn is over as soon as it has begun."""

    def step_over(self: Turn, _now: float, _share: float) -> bool:
        self.outstanding -= 1
        return self.outstanding == 0

    patch.setattr(Turn, "step_over", step_over)
    patch.setattr(DeviceMode, "turn", property(lambda _self: None, lambda _self, _turn: None), raising=False)


def share_is_ignored(patch: Patch) -> None:
    """The next turn may begin at once."""
    patch.setattr(DeviceMode, "next_turn_at", property(lambda _self: 0.0, lambda _self, _at: None), raising=False)


def one_slot_too_many(patch: Patch) -> None:
    """Low work sees one more slot than there is."""
    before = Instance.low_slots
    patch.setattr(Instance, "low_slots", lambda self, now: before(self, now) + 1)


def kept_slots_are_given_away(patch: Patch) -> None:
    """No slot is kept for chats."""
    patch.setattr(Instance, "reserved_slots", lambda _self, _now: 0)


def last_in_first_out(patch: Patch) -> None:
    """The youngest of a class goes first."""

    def last(self: ModelQueue, job_class: int) -> JobRecord | None:
        queue = self.by_class[job_class]
        return next(reversed(queue.values())) if queue else None

    patch.setattr(ModelQueue, "head", last)
    patch.setattr(ModelQueue, "due", last)


def batch_before_background(patch: Patch) -> None:
    """The two low classes are mixed up."""
    patch.setattr(serving, "_is_lifted", lambda *_: True)


def anybody_may_be_evicted(patch: Patch) -> None:
    """Nothing protects a model: neither its heat nor a pin nor its turn."""
    patch.setattr(eviction, "obstacle_to", lambda *_: None)


def turns_are_over_at_once(patch: Patch) -> None:
    """Low work takes the memory of what was loaded a moment ago for its like."""
    patch.setattr(eviction, "_obstacle_of_turns", lambda *_: None)


def memory_is_never_full(patch: Patch) -> None:
    """The ledger says yes to everything."""
    yes: Callable[..., bool] = lambda *_: True  # noqa: E731 - one word for three methods
    patch.setattr(Ledger, "fits", yes)
    patch.setattr(Ledger, "really_free", yes)
    patch.setattr(Draft, "fits_now", yes)
    patch.setattr(Draft, "lacking", lambda _self, _needs: {})


def others_hold_nothing(patch: Patch) -> None:
    """What programs outside hold is never believed."""
    before = Ledger.read

    def read(self: Ledger, event: DeviceRead, now: float) -> None:
        before(self, event, now)
        if event.device in self.books:
            self.books[event.device].external_bytes = 0

    patch.setattr(Ledger, "read", read)
    patch.setattr(Ledger, "really_free", lambda *_: True)


def estimates_are_halved(patch: Patch) -> None:
    """Half of what a launch takes is reserved."""

    def taken(_self: Ledger, option: LaunchOption) -> Needs:
        return tuple((device, need // 2) for device, need in option.need_bytes)

    patch.setattr(Ledger, "taken", taken)


def old_processes_are_not_waited_for(patch: Patch) -> None:
    """A model is loaded while its old process is still ending."""
    patch.setattr(ModelState, "old_process_lives", lambda self: self.instance is not None)


def loads_reserve_nothing(patch: Patch) -> None:
    """The memory of a load is nobody's."""
    patch.setattr(Ledger, "reserve", lambda *_: None)


def a_victim_is_stopped_while_it_drains(patch: Patch) -> None:
    """Its steps are not waited for."""
    before = lifecycle.drain

    def drain(state: State, instance: Instance, rule: str, reason: str) -> None:
        before(state, instance, rule, reason)
        state.out.append(StopInstance(instance.id, reason))

    patch.setattr(lifecycle, "drain", drain)


def a_cancelled_waiter_is_forgotten(patch: Patch) -> None:
    """Who left while it waited is served all the same."""
    patch.setattr(serving, "abandon", lambda *_: None)


def freed_memory_is_counted_twice(patch: Patch) -> None:
    """What a stop will give back is free at once, and free again when it has come."""
    before = DeviceBook.add_up

    def add_up(self: DeviceBook) -> None:
        before(self)
        self.free_bytes += self.going_bytes

    patch.setattr(DeviceBook, "add_up", add_up)
    patch.setattr(Ledger, "really_free", lambda *_: True)


def a_paused_process_is_forgotten(patch: Patch) -> None:
    """What stands may stand for as long as people chat."""
    before = pause.stands_until

    def stands_until(state: State, instance: Instance) -> float:
        return -inf if before(state, instance) == -inf else inf

    patch.setattr(pause, "stands_until", stands_until)


def steps_are_taken_away_again_and_again(patch: Patch) -> None:
    """A third time too."""
    patch.setattr(aborts, "MAX_ABORTS", 3)


def a_crashed_pin_is_forgotten(patch: Patch) -> None:
    """A pin is loaded once, and never again."""
    before, seen = pins.tend, set[ModelState]()  # which are held, so that none is taken for one that is gone

    def tend(state: State) -> None:
        known = {name: model for name, model in state.pins.items() if model not in seen}
        seen.update(model for model in known.values() if model.instance is not None)
        state.pins = known
        before(state)

    patch.setattr(pins, "tend", tend)


def a_leased_device_does_not_drain(patch: Patch) -> None:
    """Those who are there stay, and go on serving."""
    patch.setattr(leases, "_must_be_told", lambda _instance: False)


def a_lease_is_held_before_it_is_empty(patch: Patch) -> None:
    """Somebody gets the device while others are on it."""
    before = State.instances_on
    patch.setattr(State, "instances_on", lambda self, device: [] if device in self.leases else before(self, device))


def a_lost_device_is_planned_with(patch: Patch) -> None:
    """As if it answered."""
    patch.setattr(losses, "bar", lambda *_: None)


def starts_are_not_counted(patch: Patch) -> None:
    """As many a minute as anybody wants."""
    patch.setattr(Starts, "bar", lambda *_, **__: None)


def what_failed_is_tried_at_once(patch: Patch) -> None:
    """No back-off."""
    patch.setattr(failures, "back_off_seconds", lambda *_: 0.0)


def any_number_of_deaths_will_do(patch: Patch) -> None:
    """As long as something is served between them."""
    patch.setattr(Deaths, "too_many", lambda *_: False)


def any_host_memory_is_too_much(patch: Patch) -> None:
    """Whatever idles is begun anew at each reading."""

    def host_read(state: State, event: HostMemoryRead) -> None:
        for instance_id, _ in event.held:
            instance = state.instances.get(instance_id)
            if instance is not None and growth._quiet(state, instance):
                growth._begin_anew(state, instance, "it holds some")

    patch.setattr(growth, "host_read", host_read)


def differences_are_kept_as_figures(patch: Patch) -> None:
    """As if the driver had said so."""
    patch.setattr(Ledger, "by_difference", lambda *_: [])


def unloads_are_answered_at_once(patch: Patch) -> None:
    """Before the memory is back."""
    before = persons._end

    def end(state: State, instance: Instance, *, force: bool) -> None:
        before(state, instance, force=force)
        state.out.extend(AnswerRequest(request) for request in instance.unload_requests)
        instance.unload_requests.clear()

    patch.setattr(persons, "_end", end)


def one_key_goes_last(patch: Patch) -> None:
    """Whoever asks with this key waits until nobody else does."""
    before = keys.Lines.due

    def due(self: keys.Lines) -> JobRecord | None:
        heads = [record for record in self.heads() if record.job.key != "red"]
        return min(heads, key=keys.in_turn) if heads else before(self)

    patch.setattr(keys.Lines, "due", due)


def shares_are_not_counted(patch: Patch) -> None:
    """A key may have the whole of a queue, whatever its share."""
    patch.setattr(admission, "length_of_share", lambda share, max_length: max_length)  # noqa: ARG005 - that is the bug


def any_variant_will_do(patch: Patch) -> None:
    """A family's quality and media are nobody's business."""
    patch.setattr(families, "qualifying", lambda family, *_: list(family.variants))


class Wrapped(Scheduler):
    """The scheduler with a fault at its door."""

    def __init__(self, scenario: Scenario) -> None:
        super().__init__(scenario.policy)

    def step(self, event: Event, now: float) -> tuple[Command, ...]:
        """Spoil what comes, step, spoil what goes."""
        return tuple(command for command in super().step(self.hear(event), now) if self.keeps(command))

    def hear(self, event: Event) -> Event:
        """What is heard in place of an event."""
        return event

    def keeps(self, command: Command) -> bool:
        """Whether a command gets out."""
        del command
        return True


class SettlesTooSoon(Wrapped):
    """Takes a slot for free as soon as its client has left."""

    def hear(self, event: Event) -> Event:
        """Every end is settled."""
        return replace(event, settled=True) if isinstance(event, JobEnded) else event


class NeverWakes(Wrapped):
    """Forgets to say when to wake."""

    def keeps(self, command: Command) -> bool:
        """No timer."""
        return not isinstance(command, ArmTimer)


class LosesRejections(Wrapped):
    """Tells nobody that they are refused."""

    def keeps(self, command: Command) -> bool:
        """No rejection."""
        return not isinstance(command, RejectJob)


class CountsStepsTwice(Wrapped):
    """Believes that a step that died was done."""

    def hear(self, event: Event) -> Event:
        """Dead is done."""
        if isinstance(event, StepEnded) and event.outcome.kind is OutcomeKind.ENGINE_DIED:
            return replace(event, outcome=replace(event.outcome, kind=OutcomeKind.DONE))
        return event


class LosesGrants(Wrapped):
    """Every seventh grant never reaches its client."""

    count = 0

    def keeps(self, command: Command) -> bool:
        """Not the seventh."""
        self.count += isinstance(command, GrantStep)
        return not (isinstance(command, GrantStep) and self.count % 7 == 0)


class KeepsMeasurementsToItself(Wrapped):
    """Harmless: what is kept on disk is nobody's rule here."""

    def keeps(self, command: Command) -> bool:
        """No measurement."""
        return not isinstance(command, KeepMeasurement)


def as_drawn(scenario: Scenario) -> Scenario:
    """What the seed says."""
    return scenario


def with_pauses(scenario: Scenario) -> Scenario:
    """Low work stands while people chat."""
    return replace(scenario, policy=replace(scenario.policy, background_pause=True))


def with_aborts(scenario: Scenario) -> Scenario:
    """Chats take low steps away at once."""
    return replace(scenario, policy=replace(scenario.policy, abort_after_seconds=0.0))


def with_persons(scenario: Scenario) -> Scenario:
    """Persons load, unload, pin and lease."""
    return replace(scenario, features=scenario.features | {"persons"})


def with_few_starts(scenario: Scenario) -> Scenario:
    """Two processes a minute."""
    return replace(scenario, policy=replace(scenario.policy, starts_per_minute=2))


def with_host_limit(scenario: Scenario) -> Scenario:
    """Host memory is read, and limited."""
    return replace(scenario, policy=replace(scenario.policy, host_memory_limit_bytes=2 * GIB))


def with_differences(scenario: Scenario) -> Scenario:
    """No driver tells what a process holds, and nothing lies."""
    return replace(scenario, features=scenario.features | {"differences"}, faults=scenario.faults - {"lies"})


def with_rivals(scenario: Scenario) -> Scenario:
    """Low work wants two models of which a card carries one, and nobody chats."""
    card = scenario.devices[0]
    part = DeviceFootprint(card.name, weights_bytes=card.total_bytes * 3 // 5)
    models = [
        replace(spec, options=(replace(spec.options[0], footprint=(part,)),), pinned=False) for spec in scenario.models
    ]
    clients = [replace(one, job_class=JobClass.BACKGROUND, warm_only=False, no_evict=False) for one in scenario.clients]
    return replace(
        scenario,
        devices=(card,),
        models=tuple(models[:2]),
        clients=tuple(replace(one, model=models[number % 2].name) for number, one in enumerate(clients)),
        features=frozenset(),
        families=(),
        policy=replace(scenario.policy, min_residency_seconds=30.0, hot_yield_after_seconds=None),
    )


def with_deaths(scenario: Scenario) -> Scenario:
    """Everybody wants one model, whose process dies again and again, and nothing else goes wrong."""
    model = scenario.models[0].name
    clients = tuple(replace(one, model=model, steps=(1, 1), warm_only=False) for one in scenario.clients)
    return replace(scenario, clients=clients, families=(), features=frozenset(), faults=frozenset({"crash"}))


def with_losses(scenario: Scenario) -> Scenario:
    """Devices stop answering."""
    return replace(scenario, faults=scenario.faults | {"lost"})


def with_pins(scenario: Scenario) -> Scenario:
    """The two smallest models are pinned and have room; processes die."""
    small = sorted(scenario.models, key=lambda spec: sum(need for _, need in spec.options[0].need_bytes))[:1]
    models = tuple(replace(spec, pinned=spec in small) for spec in scenario.models)
    return replace(scenario, models=models, faults=scenario.faults | {"crash"}, drain=False)


def with_keys(scenario: Scenario) -> Scenario:
    """Everybody wants one model, with one of two keys."""
    model = scenario.models[0].name
    clients = [replace(one, model=model, steps=(1, 1), warm_only=False, queue_share=None) for one in scenario.clients]
    return replace(
        scenario,
        clients=tuple(replace(one, key=("red", "green")[number % 2]) for number, one in enumerate(clients)),
        features=frozenset({"keys"}),
        families=(),
    )


def with_shares(scenario: Scenario) -> Scenario:
    """The same in short queues, of which each key has a quarter."""
    shaped = with_keys(scenario)
    queues = {job_class: replace(limits, max_length=4) for job_class, limits in scenario.policy.queues.items()}
    clients = tuple(replace(one, queue_share=0.25) for one in shaped.clients)
    return replace(shaped, policy=replace(scenario.policy, queues=queues), clients=clients)


SHAPES = (
    with_pauses, with_aborts, with_persons, with_pins, with_keys, with_shares, with_losses, with_few_starts,
    with_deaths, with_host_limit, with_differences, with_rivals,
)  # fmt: skip


def rules_found(
    make: Callable[[Scenario], Scheduler], wanted: set[str], shape: Callable[[Scenario], Scenario] = as_drawn
) -> set[str]:
    """The rules that some runs find broken; stops at the first that was wanted. `shape` sees to it that the rule is in
    use at all."""
    found: set[str] = set()
    for seed in SEEDS:
        report = run_seed(seed, EVENTS, make=make, scenario=shape(draw(seed, KINDS)), own_checks=False)
        found |= {violation.rule for violation in report.violations}
        if found & wanted:
            break
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("plant", "rules"),
    [
        (tail_is_forgotten, {"S4"}),
        (low_work_ignores_chats, {"S4"}),
        (turns_are_not_counted, {"S5"}),
        (share_is_ignored, {"S5a"}),
        (one_slot_too_many, {"S6"}),
        (kept_slots_are_given_away, {"S6"}),
        (last_in_first_out, {"S2"}),
        (batch_before_background, {"S1"}),
        (anybody_may_be_evicted, {"R1", "R4a"}),
        (memory_is_never_full, {"L1"}),
        (others_hold_nothing, {"L1", "L3"}),
        (estimates_are_halved, {"L1", "L3"}),
        (old_processes_are_not_waited_for, {"S6c"}),
        (loads_reserve_nothing, {"L1"}),
        (a_victim_is_stopped_while_it_drains, {"R2"}),
        (a_cancelled_waiter_is_forgotten, {"S7"}),
        (freed_memory_is_counted_twice, {"L1"}),
        (any_variant_will_do, {"R10"}),
    ],
)
def test_a_scheduler_that_is_broken_inside_is_caught(
    plant: Callable[[Patch], None], rules: set[str], monkeypatch: Patch
) -> None:
    """By the checker of the rule that was broken."""
    plant(monkeypatch)
    assert rules_found(lambda scenario: Scheduler(scenario.policy), rules) & rules


@pytest.mark.slow
@pytest.mark.parametrize(
    ("plant", "shape", "rules"),
    [
        (a_paused_process_is_forgotten, with_pauses, {"S10"}),
        (steps_are_taken_away_again_and_again, with_aborts, {"S11"}),
        (a_crashed_pin_is_forgotten, with_pins, {"liveness"}),
        (a_leased_device_does_not_drain, with_persons, {"R8", "liveness"}),
        (a_lease_is_held_before_it_is_empty, with_persons, {"R8"}),
        (unloads_are_answered_at_once, with_persons, {"R7"}),
        (one_key_goes_last, with_keys, {"S2"}),
        (shares_are_not_counted, with_shares, {"S9"}),
        (turns_are_over_at_once, with_rivals, {"R4a"}),
        (starts_are_not_counted, with_few_starts, {"P6a"}),
        (any_host_memory_is_too_much, with_host_limit, {"R3", "R1"}),
        (differences_are_kept_as_figures, with_differences, {"D2"}),
        (what_failed_is_tried_at_once, as_drawn, {"L6d"}),
        (any_number_of_deaths_will_do, with_deaths, {"L6d"}),
        (a_lost_device_is_planned_with, with_losses, {"D6"}),
    ],
)
def test_a_rule_that_is_opted_into_is_judged_too(
    plant: Callable[[Patch], None], shape: Callable[[Scenario], Scenario], rules: set[str], monkeypatch: Patch
) -> None:
    """In runs that make use of it."""
    plant(monkeypatch)
    assert rules_found(lambda scenario: Scheduler(scenario.policy), rules, shape) & rules


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "rules"),
    [
        (SettlesTooSoon, {"S6"}),
        (NeverWakes, {"S4", "S9"}),
        (LosesRejections, {"S9", "P8", "liveness"}),
        (CountsStepsTwice, {"S3"}),
        (LosesGrants, {"S7", "S6b", "liveness"}),
    ],
)
def test_a_scheduler_that_is_broken_at_its_door_is_caught(make: type[Wrapped], rules: set[str]) -> None:
    """Whatever it believes, what comes out is judged."""
    assert rules_found(make, rules) & rules


def test_a_difference_that_breaks_no_rule_is_not_called_a_violation() -> None:
    """The control: a wrapped scheduler without a fault at a rule is found clean."""
    assert run_seed(1, EVENTS, make=KeepsMeasurementsToItself, own_checks=False).violations == ()


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES)
def test_the_shapes_alone_break_nothing(shape: Callable[[Scenario], Scenario]) -> None:
    """The other control: what makes a rule matter is no fault."""
    for seed in range(1, 9):
        scenario = shape(draw(seed, KINDS))
        assert run_seed(seed, EVENTS, scenario=scenario, own_checks=False).violations == (), seed
