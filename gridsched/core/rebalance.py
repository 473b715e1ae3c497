"""Moving an idle model off a device that it shares, when nothing else is to be done (R9).

Owns the choice of who moves where and the life of the move: a second process, the model's *successor*, is loaded beside
the one that serves; when it is ready and the old one is still idle they change places in one step, and the old one is
stopped. Must never have anybody wait: a move is given up for any job of its model and for any load that is waited for,
it evicts nobody, and it begins only while nothing loads.

It looks at the machine at the end of a planning, which every change of residency brings about, and one of memory where
something may move; and at the moment in which a model that may move has been idle for long enough. Else never.
"""

from collections import Counter
from collections.abc import Iterator
from math import inf

from gridsched.core import admission, leases, lifecycle, losses
from gridsched.core.commands import AnswerRequest
from gridsched.core.events import RebalanceAsked
from gridsched.core.ids import DeviceName
from gridsched.core.instance import InstanceState
from gridsched.core.job import JobClass
from gridsched.core.ledger import Needs
from gridsched.core.model import LaunchOption
from gridsched.core.residency import READY, Instance
from gridsched.core.state import State

IDLE_SECONDS = 300.0
"""R9: what has served nobody for so long is idle enough to be moved."""

PAUSE_SECONDS = 1800.0
"""R9: a model moves, or tries to, once in so long."""


def give_up(state: State) -> None:
    """Abort the moves that would have anybody wait, or whose model is not idle any more."""
    for model in list(state.moving.values()):
        successor, old = model.successor, model.instance
        if successor is None:  # it has ended by itself
            del state.moving[model.name]
            continue
        idle = old is not None and old.state is READY and not old.grants and not model.queue.count
        waited_for = any(other.unplaced() for other in state.wanted_models().values())
        crowded = any(device in state.pressed for device in successor.devices)
        if model.removed or not idle or waited_for or crowded:
            del state.moving[model.name]
            lifecycle.stop(state, successor, "R9", f"{model.name} stays where it is: there is work to be done")


def arrived(state: State, successor: Instance) -> None:
    """It is ready. The two change places in this step, unless work has come meanwhile."""
    model = successor.model
    old = model.instance
    if old is None or old.state is not READY or old.grants or model.queue.count:
        state.replan_due = True  # which gives it up
        return
    del state.moving[model.name]
    model.instance, model.successor = successor, None
    successor.last_used_at, successor.ttl_seconds = old.last_used_at, old.ttl_seconds
    successor.person_ttl_seconds = old.person_ttl_seconds
    lifecycle.stop(state, old, "R9", f"{model.name} has moved to {', '.join(successor.devices)}")


def look(state: State) -> None:
    """Begin a move if one can be made now, and note which models time or memory may let move later."""
    if state.unplaced:
        return  # the planning that ends the waiting looks
    state.movable = state.move_waits = False
    crowd = _crowd(state)
    due: list[tuple[float, Instance]] = []
    for instance in state.instances.values():
        movable_from = _movable_from(state, instance, crowd)
        if movable_from != instance.movable_from:
            instance.movable_from = movable_from
            state.touch(instance.model)
        if instance.movable_from == inf:
            continue
        state.movable = True
        if movable_at(instance) <= state.now:
            due.append((state.load_seconds(instance.model, instance.option), instance))
    if state.moving or state.pressed or not due or _something_loads(state):
        return
    for _, instance in sorted(due, key=lambda each: (each[0], each[1].id)):
        for option, needs in _targets(state, instance, crowd):
            if state.ledger.fits(needs) and _begin(state, instance, option, needs):
                return


def asked(state: State, event: RebalanceAsked) -> None:
    """A person wants it looked now, as if everything had been idle for long enough and nothing moved lately. Whatever
    else a move must not do, this one must not either."""
    crowd = _crowd(state)
    due = [each for each in state.instances.values() if _could_move(state, each, crowd)]
    why = _why_nothing_moves(state, due)
    if not why:
        due.sort(key=lambda each: (state.load_seconds(each.model, each.option), each.id))
        for instance in due:
            for option, needs in _targets(state, instance, crowd):
                if state.ledger.fits(needs) and _begin(state, instance, option, needs):
                    moves = {"from_devices": instance.devices, "to_devices": option.devices}
                    state.out.append(AnswerRequest(event.request, detail={"model": instance.model.name, **moves}))
                    return
        why = "where they could be, there is no room for them beside what is there"
    state.out.append(AnswerRequest(event.request, detail={"model": None, "why": why}))


def _could_move(state: State, instance: Instance, crowd: Counter[DeviceName]) -> bool:
    idle = instance.state is READY and not instance.grants and not instance.model.queue.count
    return idle and _movable_from(state, instance, crowd) < inf


def _why_nothing_moves(state: State, due: list[Instance]) -> str:
    if state.draining:
        return "the server is going away"
    if state.moving:
        return f"{', '.join(state.moving)} moves already"
    if state.unplaced or _something_loads(state):
        return "something loads, or is waited for"
    if state.pressed:
        return f"{', '.join(sorted(state.pressed))} holds more than may be planned"
    return "" if due else "no idle model shares a device and could be elsewhere at its settings"


def _crowd(state: State) -> Counter[DeviceName]:
    """How many are on each device and stay there."""
    crowd = Counter[DeviceName]()
    for name, book in state.ledger.books.items():
        for item in book.reservations.values():
            if not item.going:
                crowd[name] += 1
    return crowd


def movable_at(instance: Instance) -> float:
    """When an instance may be moved, if nothing happens meanwhile; inf while it works or is waited for, and once it is
    not ready, whatever was found of it before: nobody looks again while a load is waited for."""
    if instance.state is not READY or instance.grants or instance.model.queue.count:
        return inf
    return max(instance.movable_from, instance.last_used_at + IDLE_SECONDS)


def _movable_from(state: State, instance: Instance, crowd: Counter[DeviceName]) -> float:
    """From when an instance may be moved, be it idle or not: inf where it shares no device or cannot be elsewhere."""
    model = instance.model
    shared = any(crowd[device] > 1 for device in instance.devices)
    if not shared or instance.state is not READY or model.instance is not instance or model.removed:
        return inf
    if not any(_targets(state, instance, crowd)):
        return inf
    return model.moved_at + PAUSE_SECONDS


def _targets(state: State, instance: Instance, crowd: Counter[DeviceName]) -> Iterator[tuple[LaunchOption, Needs]]:
    """The launches at the same settings on devices where nobody else is."""
    for option, needs in admission.usable_rungs(state.ledger, instance.model):
        alike = (option.ctx_size, option.parallel, option.flags) == _settings(instance.option)
        if not alike or any(crowd[device] for device in option.devices):
            continue
        if losses.bar(state, option) is None and leases.bar(state, option) is None:
            yield option, needs


def _settings(option: LaunchOption) -> tuple[int, int, tuple[str, ...]]:
    return option.ctx_size, option.parallel, option.flags


def _something_loads(state: State) -> bool:
    return any(item.state is InstanceState.STARTING for item in state.instances.values())


def _begin(state: State, instance: Instance, option: LaunchOption, needs: Needs) -> bool:
    """New before old. False where the device itself says that the memory is not free yet (L3)."""
    if not state.ledger.really_free(needs):
        state.move_waits = True
        return False
    late = state.start_bar(chat=False)
    if late is not None:
        state.plan_wake_at = min(state.plan_wake_at, late.until)
        return False
    model = instance.model
    model.moved_at = state.now
    instance.movable_from = state.now + PAUSE_SECONDS
    model.successor = lifecycle.spawn(state, model, option, None, JobClass.BATCH, "R9")
    state.moving[model.name] = model
    return True
