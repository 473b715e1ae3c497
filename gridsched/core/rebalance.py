"""Moving an idle model off a device that it shares, when nothing else is to be done (R9).

Owns the choice of who moves where and the life of the move: a second process, the model's *successor*, is loaded beside
the one that serves; when it is ready and the old one is still idle they change places in one step, and the old one is
stopped. Must never have anybody wait: a move is given up for any job of its model and for any load that is waited for,
it evicts nobody, and it begins only while nothing loads.

It looks at the machine at the end of a planning, which every change of residency or memory brings about, and when time
has made a model idle for long enough that it found busy or fresh then. No change, no look.
"""

from collections import Counter
from math import inf

from gridsched.core import lifecycle
from gridsched.core.ids import DeviceName
from gridsched.core.instance import InstanceState
from gridsched.core.job import JobClass
from gridsched.core.ledger import Needs
from gridsched.core.model import LaunchOption
from gridsched.core.residency import READY, Instance, ModelState
from gridsched.core.state import State

IDLE_SECONDS = 300.0
"""R9: what has served nobody for so long is idle enough to be moved."""

PAUSE_SECONDS = 1800.0
"""R9: a model moves, or tries to, once in so long."""


def give_up(state: State) -> None:
    """Abort the moves that would have anybody wait, or whose model is not idle any more."""
    for model in list(state.moving.values()):
        successor, old = model.successor, model.instance
        if successor is None:
            continue
        idle = old is not None and old.state is READY and not old.grants and not model.queue.count
        waited_for = any(other.unplaced() for other in state.wanted_models().values())
        crowded = any(device in state.pressed for device in successor.devices)
        if model.removed or not idle or waited_for or crowded:
            lifecycle.stop(state, successor, "R9", "its model is needed where it is, or its place by others")


def arrived(state: State, successor: Instance) -> None:
    """It is ready. The two change places in this step, unless work has come meanwhile."""
    model = successor.model
    old = model.instance
    if old is None or old.state is not READY or old.grants or model.queue.count:
        return  # it is given up at the planning that is due
    del state.moving[model.name]
    model.instance, model.successor = successor, None
    successor.hot_until, successor.last_used_at = old.hot_until, old.last_used_at
    lifecycle.stop(state, old, "R9", f"{model.name} has moved to {', '.join(successor.devices)}")


def look(state: State) -> None:
    """Begin a move, if one can be made now; else say when time could make one possible."""
    if state.unplaced or state.moving or state.pressed:
        return
    crowd = Counter(device for book in state.ledger.books.values() for device in [book.spec.name] * len(book.reservations))
    loads = any(item.state is InstanceState.STARTING for item in state.instances.values())
    look_at = inf
    found: list[tuple[float, str, Instance, LaunchOption, Needs]] = []
    for instance in state.instances.values():
        may_at = _may_move_at(state, instance, crowd)
        target = _target(state, instance, crowd) if may_at < inf else None
        if target is None:
            continue
        if may_at > state.now or loads:
            look_at = min(look_at, max(may_at, state.now + IDLE_SECONDS) if loads else may_at)
        else:
            seconds = state.load_seconds(instance.model, instance.option)
            found.append((seconds, instance.model.name, instance, *target))
    if found:
        _, _, instance, option, needs = min(found, key=lambda each: each[:2])
        _begin(state, instance, option, needs)
    state.plan_wake_at = min(state.plan_wake_at, look_at)
