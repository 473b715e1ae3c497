"""Another configuration, or other files: which models there are now, and what runs of those that changed (R2, R7).

Owns what becomes of a model that is new, gone, or launched in another way. A process whose launch there is no more is
retired: it takes no new step, goes with its last one, and whoever waits is served by its next process. Must never touch
a process whose launch is as it was.
"""

from collections.abc import Iterable

from gridsched.core import admission, errands, keeping, lifecycle, pins
from gridsched.core.instance import InstanceState
from gridsched.core.model import ModelSpec
from gridsched.core.placement import Purpose
from gridsched.core.residency import Instance, ModelState
from gridsched.core.state import State

RULE = "R2"
WHY = "its launch has changed, and it is loaded anew"


def models_changed(state: State, specs: Iterable[ModelSpec]) -> None:
    """Those that stay keep what is known of them. The order is the configuration's: pins load by it (R7)."""
    before, state.models = state.models, {}
    for spec in specs:
        model = before.pop(spec.name, None)
        has_come = model is None or model.removed
        if model is None:
            model = ModelState(spec)
        elif spec.pinned is not model.configured.pinned:  # a later word than any person's
            model.pin = None
            model.put_down = False
            state.kept.due = True
        same = model.configured.launches == spec.launches
        model.configure(spec)
        model.removed = False
        if has_come:
            keeping.take_up_word(state, model)
        if model.failure is not None and not same:
            lifecycle.close_back_off(state, model)
        state.models[spec.name] = model
    for name, model in before.items():
        keeping.lay_down_word(state, model)
        model.removed = True
        model.pin, model.put_down = None, False  # whether or not a process of it outlives it
        if model.errand is not None:
            errands.refuse(state, model, admission.model_not_found(name))
        if model.queue.count or model.instance is not None or model.leaving:
            state.models[name] = model
    pins.refresh(state)
    if state.kept.leases:
        keeping.take_up_leases(state)
    replace_outdated(state)


def replace_outdated(state: State) -> None:
    """Have processes go whose launch there is no more, and let those stay that were to go for that and have it back. On
    a device that does not answer they serve on: they could not be loaded there again (D6)."""
    if state.draining:
        return
    for model in list(state.models.values()):
        for instance in (model.successor, model.instance):
            if instance is None or model.removed:
                continue
            if not is_outdated(instance, model.spec):
                if instance.retired_by == RULE:
                    lifecycle.unretire(state, instance)
            elif not instance.restarting and not any(device in state.lost for device in instance.devices):
                _replace(state, model, instance)


def is_outdated(instance: Instance, spec: ModelSpec) -> bool:
    """Whether a process was begun in a way in which its model is launched no more."""
    return instance.launched_with != spec.launched_with or all(
        option.key != instance.option.key for option in spec.options
    )


def _replace(state: State, model: ModelState, instance: Instance) -> None:
    if instance is model.successor:  # the one that serves is as outdated
        state.moving.pop(model.name, None)
        lifecycle.stop(state, instance, RULE, WHY)
        return
    is_there = instance.state is InstanceState.READY
    lifecycle.retire(state, instance, RULE, WHY)
    if is_there and not model.pinned:  # a pin brings its own back, a load that was under way is still waited for
        errands.ask(state, model, Purpose.RESTART)
