"""Standing still while people chat: which processes are paused, and until when (S10, opt-in).

Owns `Instance.paused` and how long steps and turns have stood. A process stands only while it serves low steps and
nothing else, and only while somebody else's chat generates on one of its devices. Must never stand in the way of
anything: whoever needs the process gets it continued first, as a command before the other.
"""

from math import inf

from gridsched.core.commands import LogEvent, PauseInstance, ResumeInstance
from gridsched.core.residency import READY, GrantRecord, Instance
from gridsched.core.state import State

PROBE_SECONDS = 5.0
"""How long a process is not paused again after it was continued for a probe or a measurement. A guess: as long as such
a question may take before it counts as unanswered."""


def review(state: State) -> float:
    """Pause what may stand now, continue what may not; at the end of a step. Gives the next moment at which time alone
    could change that, inf for none."""
    wake_at = inf
    for instance in state.instances.values():
        until = stands_until(state, instance)
        stands = state.now < until
        if instance.paused and not stands:
            resume(state, instance, "the chat is over, or something else needs it")
        elif stands and not instance.paused:
            if state.now < instance.awake_until:
                until = instance.awake_until
            else:
                _pause(state, instance)
        if state.now < until < wake_at:
            wake_at = until
    return wake_at


def stands_until(state: State, instance: Instance) -> float:
    """Until when a process may stand, as things are; -inf for one that may not."""
    limit_seconds = state.policy.pause_limit_seconds
    if not state.policy.background_pause or not instance.grants or not _may_stand(state, instance):
        return -inf
    return min(_since(state, entry) + (limit_seconds - entry.stood_seconds) for entry in instance.grants.values())


def _may_stand(state: State, instance: Instance) -> bool:
    """S10, but for the limit: ready, nothing but low steps, none of them over or being taken away, no chat of its own,
    and a chat that generates on one of its devices."""
    if instance.state is not READY or state.draining or instance.chats or instance.model.queue.chats:
        return False
    if not any(mode.chats_running for mode in instance.modes):
        return False
    return not any(entry.over or entry.aborting for entry in instance.grants.values())


def _since(state: State, entry: GrantRecord) -> float:
    """Since when a step stands; now for one that runs. One may be granted while its process stands (S5)."""
    instance = entry.instance
    return max(instance.paused_at, entry.granted_at) if instance.paused else state.now


def stood_seconds(state: State, entry: GrantRecord) -> float:
    """How long a step has stood in all."""
    if not entry.instance.paused:
        return entry.stood_seconds
    return entry.stood_seconds + state.now - _since(state, entry)


def _pause(state: State, instance: Instance) -> None:
    instance.paused = True
    instance.paused_at = state.now
    state.say_of_instance(LogEvent.PAUSE, instance, "S10", steps=len(instance.grants))
    state.out.append(PauseInstance(instance.id))


def resume(state: State, instance: Instance, why: str) -> None:
    """Continue a process that stands; what it is continued for comes after this. The time counts for its steps, and
    not for their turn's length (S5a)."""
    now, limit_seconds = state.now, state.policy.pause_limit_seconds
    until = {entry: _since(state, entry) + (limit_seconds - entry.stood_seconds) for entry in instance.grants.values()}
    for entry, at in until.items():
        # A step that has had its time has had it for good, whatever the sums of its pauses round to.
        entry.stood_seconds = limit_seconds if at <= now else stood_seconds(state, entry)
    for turn in {entry.turn for entry in instance.grants.values() if entry.turn is not None}:
        turn.stood_seconds += now - max(instance.paused_at, turn.began_at)
    instance.paused = False
    figures = {"seconds": round(now - instance.paused_at, 3), "why": why}
    state.say_of_instance(LogEvent.RESUME, instance, "S10", **figures)
    state.out.append(ResumeInstance(instance.id))


def keep_awake(state: State, instance: Instance) -> None:
    """It is about to be probed or measured and has to run for that."""
    instance.awake_until = state.now + PROBE_SECONDS
    if instance.paused:
        resume(state, instance, "it is probed")
