"""Pins are a desired state (R7): a pinned model that is down is loaded again.

Owns which models are pinned and when a pin tries again. Its load is background work that evicts cold only, by the rules
of everybody's loads (S6a, L6c). Must never load anything itself: it makes an errand.

Pins that cannot all be: the one that finds no place stays down, with its errand among the wants. It is planned again
with everybody else when what a plan rests on has changed, so that nothing has to be tried to find out.
"""

from math import inf

from gridsched.core import admission, errands
from gridsched.core.admission import Fit
from gridsched.core.commands import Log, LogEvent
from gridsched.core.placement import Purpose
from gridsched.core.residency import ModelState
from gridsched.core.snapshot import PinDown
from gridsched.core.state import State

FIRST_RETRY_SECONDS = 60.0
LONGEST_RETRY_SECONDS = 900.0
"""R7: how long a pin waits after its first failed load, and after many; doubled for each in a row."""


def refresh(state: State) -> None:
    """What is pinned has changed, by configuration or by a person. In the order of the configuration."""
    state.pins = {name: model for name, model in state.models.items() if model.pinned and not model.removed}
    for model in list(state.errands.values()):
        if model.errand is not None and model.errand.purpose is Purpose.PIN and not model.pinned:
            errands.end(state, model)
    for model in state.models.values():
        state.touch(model)
    state.replan_due = True


def tend(state: State) -> None:
    """Ask for every pinned model that is down and may be tried."""
    for model in state.pins.values():
        if _is_down(model) and model.pin_retry_at <= state.now:
            errands.ask(state, model, Purpose.PIN)


def next_at(state: State) -> float:
    """When time alone lets a pin try again; inf for never."""
    waiting = (model.pin_retry_at for model in state.pins.values() if _is_down(model))
    return min((at for at in waiting if at > state.now), default=inf)


def _is_down(model: ModelState) -> bool:
    return model.errand is None and (model.instance is None or model.instance.restarting)


def note_failure(model: ModelState, now: float) -> None:
    """Its load has failed, `model.failures` times in a row: a pin tries again later than a client may."""
    seconds = min(LONGEST_RETRY_SECONDS, FIRST_RETRY_SECONDS * 2.0 ** (model.failures - 1))
    model.pin_retry_at = max(model.retry_at, now + seconds)


def why_down(state: State, model: ModelState) -> PinDown:
    """What a pinned model that is not there waits for. For those who look; never asked inside a step."""
    if model.errand is None:
        reason = model.failure.message if model.failure is not None else "its load failed"
        return PinDown("L6d", reason, model.pin_retry_at)
    if model.unfit_since is not None:
        rejection = admission.unfit(state, model, admission.fit_of(state, model))
        return PinDown("R7", rejection.message, arithmetic=rejection.detail)
    if model.plan is not None:
        rule, reason = (model.plan.held.rule, model.plan.held.reason) if model.plan.held else model.plan.waits
        return PinDown(rule or "R3", reason or "memory is being freed")
    obstacle = model.obstacle
    return PinDown(obstacle.rule, obstacle.reason) if obstacle is not None else PinDown("R7", "it is to be loaded")


def say_down(state: State, model: ModelState, fit: Fit) -> None:
    """R7: it stays down, with the arithmetic; said once for each time that it turns out so."""
    rejection = admission.unfit(state, model, fit)
    figures = {"code": rejection.code.value, "why": rejection.message, **rejection.detail}
    state.say(Log(LogEvent.REJECT, model=model.name, rule="R7", figures=figures))
