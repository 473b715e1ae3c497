"""Loads that no job has asked for: on a person's word, because a model is pinned (R7), or to start it anew (L6b).

Owns the errands: making one, ending it, and the answers to the persons who wait for it. Must never plan or start a
load: `wants` puts an errand among the jobs, and `planning` treats it as one of them.
"""

from gridsched.core.commands import AnswerRequest, Rejection
from gridsched.core.ids import ModelName, RequestId
from gridsched.core.job import JobClass
from gridsched.core.placement import Errand, Purpose
from gridsched.core.residency import Instance, ModelState
from gridsched.core.state import State

CLASS_OF = {Purpose.PERSON: JobClass.INTERACTIVE}
"""A person waits for it as for a chat; everything else comes as background work (C3)."""


def ask(state: State, model: ModelState, purpose: Purpose, request: RequestId | None = None) -> Errand:
    """Have a model loaded. One errand a model: the higher class takes the lower one's place and its persons over."""
    load_class = CLASS_OF.get(purpose, JobClass.BACKGROUND)
    errand = model.errand
    if errand is None or load_class < errand.load_class:
        state.last_number += 1
        requests = errand.requests if errand is not None else []
        errand = model.errand = Errand(purpose, load_class, state.now, state.last_number, requests=requests)
        state.errands[model.name] = model
    if request is not None:
        errand.requests.append(request)
    state.replan_due = True
    return errand


def agree(errand: Errand, may_go: tuple[ModelName, ...] | None) -> None:
    """Who may go for it by the word of one more of its persons, who has been added; None for anybody."""
    if may_go is None:
        errand.may_go = None
    elif len(errand.requests) == 1:
        errand.may_go = frozenset(may_go)
    elif errand.may_go is not None:
        errand.may_go |= set(may_go)


def end(state: State, model: ModelState) -> list[RequestId]:
    """It is over. Gives the persons who are to be answered."""
    errand, model.errand = model.errand, None
    state.errands.pop(model.name, None)
    model.settle_ladder()
    state.replan_due = True
    return errand.requests if errand is not None else []


def fulfil(state: State, instance: Instance) -> None:
    """Its model is ready."""
    errand = instance.model.errand
    if errand is not None and errand.ttl_seconds:
        instance.person_ttl_seconds = errand.ttl_seconds
    for request in end(state, instance.model):
        state.out.append(AnswerRequest(request, detail=of_ready(state, instance)))


def refuse(state: State, model: ModelState, rejection: Rejection) -> None:
    """There will be no load: whoever waits for it is told why."""
    for request in end(state, model):
        state.out.append(AnswerRequest(request, rejection))


def of_ready(state: State, instance: Instance) -> dict[str, object]:
    """What a person is told of a model that is ready."""
    return {
        "model": instance.model.name,
        "instance": instance.id,
        "devices": list(instance.devices),
        "ctx_size": instance.option.ctx_size,
        "parallel": instance.parallel,
        "load_s": round(instance.ready_at - instance.started_at, 3),
        "bytes": sum(state.ledger.bytes_of(instance.id).values()),
    }
