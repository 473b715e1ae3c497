"""Pins are a desired state (R7): a pinned model that is down is loaded again.

Owns which models are pinned and when a pin tries again. Its load is background work that evicts cold only, by the rules
of everybody's loads (S6a, L6c). Must never load anything itself: it makes an errand.

Pins that cannot all be: the one that finds no place stays down, with its errand among the wants. It is planned again
with everybody else when what a plan rests on has changed, so that nothing has to be tried to find out.
"""

from collections.abc import Iterator, Mapping
from itertools import count
from math import inf

from gridsched.core import admission, errands
from gridsched.core.admission import Fit
from gridsched.core.commands import Log, LogEvent, Rejection, RejectionCode
from gridsched.core.ids import DeviceName
from gridsched.core.placement import Purpose
from gridsched.core.residency import ModelState
from gridsched.core.snapshot import PinDown
from gridsched.core.state import State

FIRST_RETRY_SECONDS = 60.0
LONGEST_RETRY_SECONDS = 900.0
"""R7: how long a pin waits after its first failed load, and after many; doubled for each in a row."""

MOST_TRIED = 1_000
"""Launches that are looked at to find out whether all pins fit. A guess: five models on four cards take fewer."""


def refresh(state: State) -> None:
    """What is pinned has changed, by configuration or by a person. In the order of the configuration."""
    state.pins = {name: model for name, model in state.models.items() if model.pinned and not model.removed}
    for model in list(state.errands.values()):
        if model.errand is not None and model.errand.purpose is Purpose.PIN and not model.pinned:
            errands.end(state, model)
    for model in state.models.values():
        state.touch(model)
    state.replan_due = True


def refusal(state: State, model: ModelState) -> Rejection | None:
    """R7: why a model cannot be pinned: it never fits, or not beside what is pinned already, whatever else goes. What
    programs outside hold, and leases, may pass and do not count."""
    if not admission.usable_rungs(state.ledger, model):
        return admission.unfit(state, model, Fit.NEVER)
    free = {name: book.usable_bytes for name, book in state.ledger.books.items()}
    down: list[ModelState] = []
    for pinned in {**state.pins, model.name: model}.values():
        if pinned.instance is None:
            down.append(pinned)
            continue
        for device, held_bytes in state.ledger.bytes_of(pinned.instance.id).items():
            free[device] -= held_bytes
    if min(free.values(), default=0) >= 0 and _find_room(state, free, down, count()):
        return None
    return _do_not_fit(state, model)


def _find_room(state: State, free: Mapping[DeviceName, int], down: list[ModelState], tried: Iterator[int]) -> bool:
    """Whether pinned models that are not there could all be; so they could where it takes too long to tell."""
    if not down:
        return True
    for _, needs in admission.usable_rungs(state.ledger, down[0]):
        if next(tried) >= MOST_TRIED:
            return True
        if all(need <= free[device] for device, need in needs):
            left = {**free, **{device: free[device] - need for device, need in needs}}
            if _find_room(state, left, down[1:], tried):
                return True
    return False


def _do_not_fit(state: State, model: ModelState) -> Rejection:
    together = {**state.pins, model.name: model}
    needs = {name: _least(state, pinned) for name, pinned in together.items()}
    usable = {name: book.usable_bytes for name, book in state.ledger.books.items()}
    others = ", ".join(str(name) for name in state.pins if name != model.name)
    sums = f"they take at least {sum(needs.values())} bytes of {sum(usable.values())} that there are"
    return Rejection(
        RejectionCode.CONFLICT,
        f"{model.name} does not fit beside what is pinned already ({others}): {sums}; unpin one of them first",
        detail={"pinned": [name for name in state.pins if name != model.name], "needs": needs, "usable": usable},
    )


def _least(state: State, model: ModelState) -> int:
    """The bytes that it takes, over all devices, by the launch that takes least."""
    rungs = admission.usable_rungs(state.ledger, model)
    return min((sum(need for _, need in needs) for _, needs in rungs), default=0)


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
