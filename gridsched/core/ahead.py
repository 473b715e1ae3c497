"""When time alone could next change something about an instance or a device.

Owns what the moments of `State.wakes`, `State.reliefs` and `State.tails` are made of. Must never act on one: what is
done when a moment has come belongs to the door and to the rules' modules.
"""

from math import inf

from gridsched.core import rebalance, relief
from gridsched.core.modes import DeviceMode
from gridsched.core.residency import READY, Instance
from gridsched.core.state import State


def look(state: State, instance: Instance) -> None:
    """Remember an instance's moments. To be called whenever its slots, its queue, or a mode or a turn on a device of it
    has changed."""
    wake_at, relief_at = moments(state, instance)
    state.wakes.set(instance.id, wake_at, state.now)
    state.reliefs.set(instance.id, relief_at, state.now)


def moments(state: State, instance: Instance) -> tuple[float, float]:
    """When time could next change anything about an instance but for its relief, and when it could bring that; inf for
    never. One that has passed while it did not count, as an idle model's (R6) while jobs wait, is in the past: it is
    acted on in this step."""
    wake_at, relief_at = instance.settle_by, inf
    if instance.state is not READY:
        wake_at = min(wake_at, instance.release_by)
    elif instance.model.queue.low:
        relief_at = relief.next_at(state, instance)
        if not instance.chats and state.now < instance.hot_until < relief_at:
            wake_at = min(wake_at, instance.hot_until)  # the slot that is kept for chats comes free as it cools (S6)
        if relief_at != inf and max(relief_at, state.now) < (until := relief.patient_until(state, instance)) < wake_at:
            wake_at = until
    elif ttl_seconds_of(instance):
        wake_at = min(wake_at, idle_until(instance))
    if instance.movable_from != inf and state.now < (may_move_at := rebalance.movable_at(instance)) < wake_at:
        wake_at = may_move_at
    return wake_at, relief_at


def idle_until(instance: Instance) -> float:
    """R6: when an idle instance is unloaded; inf while it works, is pinned or waited for. 0 s is never."""
    ttl_seconds = ttl_seconds_of(instance)
    if not ttl_seconds or instance.model.pinned or instance.state is not READY:
        return inf
    if instance.grants or instance.model.queue.count:
        return inf
    return instance.last_used_at + ttl_seconds


def ttl_seconds_of(instance: Instance) -> float | None:
    """R6: how long it may be idle: as its last job asked, else as a person did, else as configured."""
    return instance.ttl_seconds or instance.person_ttl_seconds or instance.model.spec.idle_ttl_seconds


def tail_at(mode: DeviceMode, now: float) -> float:
    """S4: when a device's tail ends; inf while chats run or wait there, and where there is none."""
    quiet = not mode.chats_running and not mode.chats_waiting
    return mode.tail_until if quiet and now < mode.tail_until else inf
