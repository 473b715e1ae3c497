"""Low generations that are taken away for a chat and run again later (S11, opt-in).

Owns the choice of the steps, and the moment. Only a step goes of which no byte of an answer has been sent, and only
where that brings the chat nearer to its slot or its memory; its job keeps its place. Must never end a step itself: it
asks, and what comes of that is an event, the end that has crossed it included.

Steps of jobs that have many are left alone, and chunks of embeddings: the next chat waits for one of them, and such
jobs would lose each again and again.
"""

from math import inf

from gridsched.core import pause
from gridsched.core.commands import AbortStep, LogEvent
from gridsched.core.job import JobKind
from gridsched.core.placement import Plan
from gridsched.core.residency import READY, GrantRecord, Instance
from gridsched.core.state import State

MAX_ABORTS = 2
"""S11: a job's steps are taken away this often, then it is served."""


def review(state: State) -> float:
    """Take away what chats have waited for long enough; at the end of a step. Gives the next moment at which time alone
    could bring more, inf for none."""
    after_seconds = state.policy.abort_after_seconds
    if after_seconds is None or state.draining or not (state.plans or state.counts[0].waiting):
        return inf
    slots = [
        _for_slots(state, model.instance, after_seconds)
        for model in state.waiting_models.values()
        if model.queue.chats and model.instance is not None and model.instance.state is READY
    ]
    memory = [_for_memory(state, plan, after_seconds) for plan in state.plans if plan.live and plan.victims]
    return min(slots + memory, default=inf)


def _for_slots(state: State, instance: Instance, after_seconds: float) -> float:
    """One step for each chat that has waited too long for a slot, beside those that are going already. The next
    moment."""
    going = sum(1 for entry in instance.grants.values() if _goes_already(entry))
    for number, chat in enumerate(instance.model.queue.chats.values()):
        if number < going:
            continue
        due_at = max(chat.place, instance.ready_at) + after_seconds
        if state.now < due_at:
            return due_at
        candidates = [entry for entry in instance.grants.values() if _may_go(entry)]
        if not candidates:
            break
        _abort(state, max(candidates, key=_loss), f"a chat waits for a slot of {instance.model.name}")
    return inf


def _for_memory(state: State, plan: Plan, after_seconds: float) -> float:
    """All steps of a chat's victims, where each of them can go: one that cannot is waited for anyway. The next
    moment."""
    want = plan.want
    victims = [victim for victim in plan.victims if victim.busy()]
    if not want.chat or want.job is None or want.model.plan is not plan or not victims:
        return inf
    entries = [entry for victim in victims for entry in victim.grants.values()]
    if not all(_may_go(entry) or _goes_already(entry) or _is_chunk(entry) for entry in entries):
        return inf
    due_at = max(want.job.place, *(victim.since for victim in victims)) + after_seconds
    if state.now < due_at:
        return due_at
    for entry in entries:
        if _may_go(entry):
            _abort(state, entry, f"a chat's {want.model.name} needs its memory")
    return inf


def _may_go(entry: GrantRecord) -> bool:
    record = entry.record
    if record.chat or entry.answered or _goes_already(entry) or _is_chunk(entry):
        return False
    return record.aborts < MAX_ABORTS


def _is_chunk(entry: GrantRecord) -> bool:
    job = entry.record.job
    return job.kind is JobKind.EMBEDDINGS or job.steps > 1


def _goes_already(entry: GrantRecord) -> bool:
    return entry.over or entry.aborting


def _loss(entry: GrantRecord) -> tuple[int, float, int]:
    """The lowest class goes first, then the step that has done least."""
    return (entry.record.job.job_class, entry.granted_at, entry.id)


def _abort(state: State, entry: GrantRecord, reason: str) -> None:
    if entry.instance.paused:
        pause.resume(state, entry.instance, "a step of it is taken away")
    entry.aborting = True
    entry.record.aborts += 1
    figures = {"instance": entry.instance.id, "why": reason, "aborts": entry.record.aborts}
    state.say_of_job(LogEvent.ABORT, entry.record, "S11", figures, entry.instance.device)
    state.out.append(AbortStep(entry.id, reason))


def answer_began(entry: GrantRecord) -> None:
    """A byte of an answer is on its way to the client: the step stays, and one that was to go has escaped."""
    entry.answered = True
    if entry.aborting:
        entry.aborting = False
        entry.record.aborts -= 1
