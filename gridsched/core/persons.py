"""What persons say: load, unload, pin (R7, L6d, R2).

Owns the judgement of a person's wish and its answer where that can be given at once; later ones are given where the
load ends (`errands`) or the memory is back (`lifecycle`). Each is answered exactly once. Must never choose victims.
"""

from gridsched.core import admission, errands, leases, lifecycle, outlook, pins
from gridsched.core.admission import Fit
from gridsched.core.commands import AnswerRequest, Rejection, RejectionCode
from gridsched.core.events import LoadAsked, PinAsked, UnloadAsked, WishWithdrawn
from gridsched.core.ids import ModelName, RequestId
from gridsched.core.instance import InstanceState
from gridsched.core.model import LaunchOption
from gridsched.core.placement import Purpose
from gridsched.core.residency import Instance, ModelState
from gridsched.core.state import State


def load_asked(state: State, event: LoadAsked) -> None:
    """Load it as for a chat, whatever failed or was unloaded before. It holds no device in interactive mode (S4)."""
    model = _known(state, event.request, event.model)
    if model is None:
        return
    other = _to_be_replaced(model, event.options)
    if other is not None and (refusal := _never_replaced(state, model, event)) is not None:
        _refused(state, event.request, refusal)
        return
    if event.options and (other is not None or model.instance is None):
        model.load_by(event.options)
    lifecycle.close_back_off(state, model)
    if model.put_down:
        model.put_down = False
        said(state)
    instance = model.instance
    if instance is not None and instance.state is InstanceState.READY and other is None:
        _keep_idle(state, instance, event.ttl_seconds)
        _done(state, event.request, errands.of_ready(state, instance))
        return
    errand = errands.ask(state, model, Purpose.PERSON, event.request)
    errands.agree(errand, event.may_go)
    if event.ttl_seconds is not None:
        errand.ttl_seconds = event.ttl_seconds
    if other is not None:
        lifecycle.retire(state, other, "R7", "a person loads it by another launch")


def _to_be_replaced(model: ModelState, options: tuple[LaunchOption, ...]) -> Instance | None:
    """The process that is there, if it is none of the launches that a person asks for."""
    instance = model.instance
    if not options or instance is None or any(option.key == instance.option.key for option in options):
        return None
    return instance


def _never_replaced(state: State, model: ModelState, event: LoadAsked) -> Rejection | None:
    """Why there can be no such process in place of the one that is there, which is then left alone (L7)."""
    asked = outlook.as_asked(state, model, event.options)
    fit = admission.fit_of(state, asked, admission.room_of(state, but=model))
    if fit is not Fit.LATER:
        return admission.unfit(state, asked, fit)
    if event.may_go is not None and model.name not in event.may_go:
        return admission.not_agreed(model.name, f"its own process, with another launch, {admission.MUST_GO}")
    return None


def _keep_idle(state: State, instance: Instance, ttl_seconds: float | None) -> None:
    """R6: how long it may be idle, from now on. 0 is ignored, as a request's is."""
    if ttl_seconds:
        instance.ttl_seconds, instance.person_ttl_seconds = None, ttl_seconds
        instance.last_used_at = state.now
        state.touch(instance.model)


def unload_asked(state: State, event: UnloadAsked) -> None:
    """Have it go when its running steps have ended, with `force` at once. Answered when its memory is back.

    While jobs wait for it a plain unload is refused: their load would follow in the same moment.
    """
    model = state.models.get(event.model)
    if model is None:
        _refused(state, event.request, admission.model_not_found(event.model))
        return
    if model.queue.count and not event.force:
        _refused(state, event.request, _jobs_wait(model))
        return
    if model.pinned and not model.removed:  # one that comes back with the configuration is as configured
        model.put_down = True
        said(state)
    leases.stays_away(state, model)
    if model.errand is not None:
        errands.refuse(state, model, _unloaded(model))
    _have_go(state, model, event)


def _have_go(state: State, model: ModelState, event: UnloadAsked) -> None:
    instance = model.instance or (model.leaving[-1] if model.leaving else None)
    if instance is None or instance.released:
        _done(state, event.request, {"model": model.name, "was": "cold"})
    elif instance.lost:
        _refused(state, event.request, admission.unload_unverified(state, instance))
    else:
        instance.unload_requests.append(event.request)
        if instance is model.instance:
            _end(state, instance, force=event.force)


def _end(state: State, instance: Instance, *, force: bool) -> None:
    if force and instance.grants:
        lifecycle.force(state, instance)
    else:
        lifecycle.retire(state, instance, "R7", "a person unloads it")


def pin_asked(state: State, event: PinAsked) -> None:
    """Pin it, which loads it as a pin, or unpin it, which lets it be evicted like any other."""
    model = _known(state, event.request, event.model)
    if model is None:
        return
    refusal = pins.refusal(state, model) if event.pinned else None
    if refusal is not None:
        _refused(state, event.request, refusal)
        return
    model.pin, model.keeps = event.pinned, event.keep
    if event.pinned:
        model.put_down = False
    said(state)
    there = model.instance.state.value if model.instance is not None else "cold"
    _done(state, event.request, {"model": model.name, "pinned": event.pinned, "state": there})


def said(state: State) -> None:
    """What is pinned is another by a person's word, which may be one to keep."""
    pins.refresh(state)
    state.kept.due = True


def withdrawn(state: State, event: WishWithdrawn) -> None:
    """Nobody waits for it any more: a load is nobody's (S6c), what was to be leased is ours."""
    leases.withdrawn(state, event.request)
    for model in list(state.errands.values()):
        errand = model.errand
        if errand is not None and event.request in errand.requests:
            errand.requests.remove(event.request)
            if not errand.requests and errand.purpose is Purpose.PERSON:
                errands.end(state, model)


def refuse_all(state: State) -> None:
    """P8: the server goes away, and with it what was asked for."""
    for model in list(state.errands.values()):
        errands.refuse(state, model, admission.draining())


# --- answers ----------------------------------------------------------------------------------------------------


def _known(state: State, request: RequestId, name: ModelName) -> ModelState | None:
    """The model that a wish is about; None where the wish was refused for want of one, or of a server."""
    model = state.models.get(name)
    if state.draining:
        _refused(state, request, admission.draining())
    elif model is None or model.removed:
        _refused(state, request, admission.model_not_found(name))
    else:
        return model
    return None


def _done(state: State, request: RequestId, detail: dict[str, object]) -> None:
    state.out.append(AnswerRequest(request, detail=detail))


def _refused(state: State, request: RequestId, rejection: Rejection) -> None:
    state.out.append(AnswerRequest(request, rejection))


def _jobs_wait(model: ModelState) -> Rejection:
    count = model.queue.count
    return Rejection(
        RejectionCode.CONFLICT,
        f"{count} jobs wait for {model.name} and would load it again: cancel them, or unload it by force",
        detail={"waiting": count},
    )


def _unloaded(model: ModelState) -> Rejection:
    return Rejection(RejectionCode.CONFLICT, f"{model.name} was unloaded by a person before it was ready")
