"""Relief from starvation under constant chat: who has the next turn, and when (S5, S5a).

Owns the choice of turns on devices in interactive mode. Must never load anything: a relief load is an ordinary plan
that `planning` allows.
"""

from collections.abc import Iterable
from math import inf
from operator import itemgetter

from gridsched.core.commands import LogEvent
from gridsched.core.modes import DeviceMode, Turn
from gridsched.core.queues import JobRecord
from gridsched.core.residency import READY, Instance
from gridsched.core.serving import grant
from gridsched.core.state import State

PATIENCE_SECONDS = 1.0
"""How long at most a turn waits for a chat's slot when the share allows it, times the part that is the chats': with a
share of all they have no claim to it. A guess: with a share of a half 0.3 s to 0.8 s did alike."""

FEW_SLOTS = 2
"""Of so many none comes free so soon that it is worth the waiting, as measured with people who pause."""


def next_at(state: State, instance: Instance) -> float:
    """When time alone could give this instance a turn; inf where something else must change first. Rests on the modes
    as announced, so they must have been watched before."""
    limit_seconds = state.policy.background_max_starvation_seconds
    at = -inf
    in_mode = False
    for mode in instance.modes:
        if mode.announced:
            if mode.turn is not None:
                return inf
            in_mode = True
            at = max(at, mode.next_turn_at)
    if not in_mode or limit_seconds == 0 or instance.low_slots(state.now) <= 0:
        return inf
    oldest = instance.model.queue.oldest_low()
    return inf if oldest is None else max(at, oldest.place + limit_seconds)


def patient_until(state: State, instance: Instance) -> float:
    """Until when a turn may wait for a chat's slot: the rest of S5a grows by that, never the time in which a job
    starves (S5). -inf where no turn was before."""
    patience_seconds = PATIENCE_SECONDS * (1.0 - state.policy.background_share)
    return max((mode.next_turn_at for mode in instance.modes if mode.announced), default=-inf) + patience_seconds


def waits_for_slot(state: State, instance: Instance) -> bool:
    """Whether a turn waits a moment before it slows chats down: those of a process on its devices take all slots, and
    nobody waits behind them, so that one comes free with the next end."""
    if state.now >= patient_until(state, instance):
        return False
    full = (item for item in state.instances.values() if item.chats == item.parallel > FEW_SLOTS)
    return any(not item.model.queue.chats and any(mode in instance.modes for mode in item.modes) for item in full)


def give_turns(state: State) -> None:
    """Give every turn that can be given now, to the longest starved first; with several keys each key's longest starved
    competes, and the key goes first whose last relief is the longest ago. A job that cannot run blocks nobody; one that
    waits for a chat's slot, or only lacks the turn of another of its devices, reserves those that are free."""
    reserved: set[DeviceMode] = set()
    ranked = []
    for instance in _able(state):
        record = _next(state, instance)
        if record is not None:
            ranked.append((state.keys.relief_rank(record), instance))
    ranked.sort(key=itemgetter(0))
    for _, instance in ranked:
        if _may_begin(state, instance, reserved) and not waits_for_slot(state, instance):
            _give_turn(state, instance, _active(state, instance))
        elif not reserved:
            reserved.update(_active(state, instance))


def _able(state: State) -> Iterable[Instance]:
    """Who may compete: ready instances in interactive mode with a slot for low work that waits. Of those the others
    than whose moment has come could only reserve, and that matters to nobody where each has one device."""
    if not state.spanning:
        return [state.instances[instance_id] for instance_id in state.reliefs.come]
    return [
        instance
        for instance in state.instances.values()
        if instance.state is READY and instance.model.queue.low
        if instance.low_slots(state.now) > 0 and instance.interactive_mode(state.now)
    ]


def _active(state: State, instance: Instance) -> tuple[DeviceMode, ...]:
    return tuple(mode for mode in instance.modes if mode.active(state.now))


def _may_begin(state: State, instance: Instance, reserved: set[DeviceMode]) -> bool:
    """Whether no device of it lacks the turn."""
    for mode in instance.modes:
        if (mode.turn is not None or state.now < mode.next_turn_at or mode in reserved) and mode.active(state.now):
            return False
    return True


def _next(state: State, instance: Instance) -> JobRecord | None:
    """The starved job of a model that is relieved next, None where none is starved."""
    limit_seconds = state.policy.background_max_starvation_seconds
    queue = instance.model.queue
    if queue.lines is None:
        oldest = queue.oldest_low()
        return oldest if oldest is not None and oldest.place + limit_seconds <= state.now else None
    starved = [record for record in queue.longest_starved() if record.place + limit_seconds <= state.now]
    return min(starved, key=state.keys.relief_rank, default=None)


def _give_turn(state: State, instance: Instance, modes: tuple[DeviceMode, ...]) -> None:
    """Fill up to `relief_slots` of its free slots with starved jobs, in this one decision."""
    turn = Turn(instance.id, modes, state.now, 0, 0)
    room = min(instance.low_slots(state.now), state.policy.relief_slots)
    for mode in modes:
        mode.turn = turn
    while turn.steps < room and (record := _next(state, instance)) is not None:
        turn.steps += 1
        turn.outstanding += 1
        state.keys.relieved(record.job.key)
        grant(state, instance, record, turn, "S5")
    state.turned.update((mode.device, mode) for mode in modes)
    state.say_of_instance(LogEvent.RELIEF, instance, "S5", turn="begins", steps=turn.steps)
