"""A whole device for somebody else (R8): requested, draining, held.

Owns the leases and their moves, and which models come back at the end of each. While one stands its device is usable
for nobody: `bar` keeps every plan off it. Loads of chats that are under way finish and serve first, low ones are
aborted, running steps end, instances go. Must never place anything elsewhere: that is what the plans that are made anew
are for.
"""

from math import inf

from gridsched.core import admission, errands, lifecycle
from gridsched.core.commands import AnswerRequest, LogEvent, Rejection, RejectionCode
from gridsched.core.events import LeaseAsked, LeaseReleased
from gridsched.core.ids import DeviceName, ModelName, RequestId
from gridsched.core.instance import InstanceState
from gridsched.core.model import LaunchOption
from gridsched.core.placement import Obstacle, Purpose
from gridsched.core.residency import READY, Instance, Lease, LeaseWish, ModelState
from gridsched.core.standing import KeptLease
from gridsched.core.state import State
from gridsched.core.transitions import LEASE_MOVES, LeaseMove, LeaseState, moved

# --- asked and released -----------------------------------------------------------------------------------------


def asked(state: State, event: LeaseAsked) -> None:
    """Begin leases of all these devices, or refuse them all: one at a time each, and none over a pinned model."""
    devices = tuple(dict.fromkeys(event.devices))
    refusals = (_refusal(state, device) or _not_agreed(state, device, event.may_go) for device in devices)
    refusal = next(filter(None, refusals), None)
    if refusal is not None:
        state.out.append(AnswerRequest(event.request, refusal))
        return
    wish = LeaseWish(event.request)
    for device in devices:
        _begin(state, Lease(device, event.owner, wish, event.seconds, process=event.process))
    advance(state)  # at once: the plans that are dissolved would give slots there to whoever they kept waiting
    state.replan_due = True


def _begin(state: State, lease: Lease) -> None:
    lease.wish.leases.append(lease)
    state.leases[lease.device] = lease
    state.kept.due = True
    _say(state, lease)


def _refusal(state: State, device: DeviceName) -> Rejection | None:
    if state.draining:
        return admission.draining()
    if device not in state.ledger.books:
        there = ", ".join(state.ledger.books)
        return Rejection(RejectionCode.NOT_FOUND, f"there is no device {device}; there is {there}")
    other = state.leases.get(device)
    if other is not None:
        detail: dict[str, object] = {"device": device, "owner": other.owner, "state": other.state.value}
        return Rejection(RejectionCode.CONFLICT, f"{device} is leased to {other.owner}", detail=detail)
    pinned = sorted(str(item.model.name) for item in state.instances_on(device) if item.model.pinned)
    if pinned:
        message = f"{', '.join(pinned)} is pinned on {device}: unpin or unload it first"
        return Rejection(RejectionCode.CONFLICT, message, detail={"device": device, "pinned": pinned})
    return None


def _not_agreed(state: State, device: DeviceName, may_go: tuple[ModelName, ...] | None) -> Rejection | None:
    if may_go is None:
        return None
    there = {item.model.name for item in state.instances_on(device) if item.state is not InstanceState.STOPPING}
    others = ", ".join(sorted(map(str, there.difference(may_go))))
    return admission.not_agreed(device, f"{others} {admission.MUST_GO}") if others else None


def resume(state: State, kept: KeptLease) -> None:
    """A lease that stood when the server was ended goes on. A device that is gone is nobody's."""
    if kept.device not in state.ledger.books or kept.device in state.leases:
        return
    lease = Lease(kept.device, kept.owner, LeaseWish(None), kept.seconds, process=kept.process)
    lease.displaced = dict.fromkeys(kept.displaced)
    if kept.until is not None:  # a wall clock that was set back meanwhile makes it no longer than it was asked for
        lease.until = kept.until if kept.seconds is None else min(kept.until, state.now + kept.seconds)
    _begin(state, lease)


def released(state: State, event: LeaseReleased) -> None:
    """End a lease, held or not."""
    lease = state.leases.get(event.device)
    if lease is None:
        refusal = Rejection(RejectionCode.NOT_FOUND, f"{event.device} is not leased")
        state.out.append(AnswerRequest(event.request, refusal))
        return
    refusal = Rejection(RejectionCode.CONFLICT, f"the lease of {event.device} is over before it was held: {event.why}")
    back = _end(state, lease, event.why, refusal)
    detail: dict[str, object] = {"devices": [event.device], "loads_again": back}
    state.out.append(AnswerRequest(event.request, detail=detail))


def withdrawn(state: State, request: RequestId) -> None:
    """Who asked for them wants them no more, before they were held."""
    for lease in list(state.leases.values()):
        if lease.wish.request == request:
            lease.wish.request = None
            for each in lease.wish.leases:
                _end(state, each, "who asked for it wants it no more", admission.draining())


def refuse_all(state: State) -> None:
    """P8: the server goes away."""
    for lease in list(state.leases.values()):
        _end(state, lease, "the server is going away", admission.draining())


def end_gone(state: State) -> None:
    """Devices have changed: the lease of one that is gone is over."""
    for lease in list(state.leases.values()):
        book = state.ledger.books.get(lease.device)
        if book is None or not book.spec.total_bytes:
            gone = f"{lease.device} is gone"
            _end(state, lease, gone, Rejection(RejectionCode.NOT_FOUND, gone))


def _end(state: State, lease: Lease, why: str, refusal: Rejection) -> list[ModelName]:
    """Over: whoever still waits for it is refused, and the other devices of that wish are nobody's either; what drains
    for it alone takes work again. Gives the models that are to come back."""
    if state.leases.get(lease.device) is not lease:
        return []  # over already, with another of its wish
    lease.state = moved(LEASE_MOVES, lease.state, LeaseMove.END)
    del state.leases[lease.device]
    state.kept.due = state.replan_due = True
    _say(state, lease, why=why)
    if lease.wish.request is not None:
        _answer(state, lease.wish, refusal)
        for other in lease.wish.leases:
            _end(state, other, why, refusal)
    for instance in state.instances_on(lease.device):
        if instance.retired_by == "R8" and not any(device in state.leases for device in instance.devices):
            lifecycle.unretire(state, instance)
    return _bring_back(state, lease)


def _answer(state: State, wish: LeaseWish, rejection: Rejection | None = None, **detail: object) -> None:
    request, wish.request = wish.request, None
    if request is not None:
        state.out.append(AnswerRequest(request, rejection, detail))


# --- what it displaced ------------------------------------------------------------------------------------------


def _displace(state: State, lease: Lease, instance: Instance) -> None:
    """It has to go for the lease. What was ready comes back at its end, and so does what came back from another one;
    what else was only coming was somebody's wish, who has it made elsewhere."""
    model = instance.model
    returns = model.errand is not None and model.errand.purpose is Purpose.DISPLACED
    if model.instance is instance and (returns or instance.state in (READY, InstanceState.DRAINING)):
        lease.displaced[model.name] = model.as_loaded(instance)
        state.kept.due = True
    lifecycle.retire(state, instance, "R8", f"{lease.device} is leased to {lease.owner}")


def is_back(state: State, model: ModelState) -> None:
    """A model is ready, somewhere: no lease has to bring it back."""
    for lease in state.leases.values():
        if model.name in lease.displaced:
            del lease.displaced[model.name]
            state.kept.due = True


stays_away = is_back
"""The same for one that a person has unloaded meanwhile."""


def _bring_back(state: State, lease: Lease) -> list[ModelName]:
    """Have loaded again, as background work for which nobody goes and as it was loaded, what is not there."""
    if state.draining:
        return []
    away = [state.models[name] for name in lease.displaced if name in state.models]
    away = [model for model in away if model.instance is None and model.errand is None]
    away = [model for model in away if not model.removed and not model.put_down]
    for model in away:
        before = lease.displaced[model.name]
        errand = errands.ask(state, model, Purpose.DISPLACED)
        if before is not None:
            errand.ttl_seconds = before.ttl_seconds
            model.load_as(before)
    return [model.name for model in away]


# --- what it means for plans ------------------------------------------------------------------------------------


def bar(state: State, option: LaunchOption) -> Obstacle | None:
    """Why a launch may not be planned, None where no device of it is leased."""
    if not state.leases:
        return None
    names = (*option.devices, option.host.device) if option.host is not None else option.devices
    for device in names:
        lease = state.leases.get(device)
        if lease is not None:
            return Obstacle("R8", f"{device} is leased to {lease.owner}", lease.until)
    return None


# --- time and progress ------------------------------------------------------------------------------------------


def end_due(state: State) -> None:
    """End those whose time is over."""
    for lease in [item for item in state.leases.values() if item.until <= state.now]:
        _end(state, lease, "its time is over", admission.draining())


def next_at(state: State) -> float:
    """When the first lease ends by time; inf for never."""
    return min((lease.until for lease in state.leases.values()), default=inf)


def advance(state: State) -> None:
    """Go on with every lease that is not held yet. To be asked whenever something has moved, after the chats of this
    step have their slots: one whose load has just ended is served first."""
    for lease in state.leases.values():
        if lease.state is LeaseState.HELD:
            continue
        here = list(state.instances_on(lease.device))
        first = [instance for instance in here if _comes_first(instance)]
        for instance in here:
            if instance not in first and _must_be_told(instance):
                _displace(state, lease, instance)
        if lease.state is LeaseState.REQUESTED and not first:
            lease.state = moved(LEASE_MOVES, lease.state, LeaseMove.DRAIN)
            _say(state, lease)
        if lease.state is LeaseState.DRAINING and all(instance.lost for instance in here):
            _hold(state, lease)


def _comes_first(instance: Instance) -> bool:
    """C4: a load for a chat or a person is finished. Its chat is served in the step in which it becomes ready, before
    the lease is looked at."""
    model = instance.model
    person = model.errand is not None and model.errand.purpose is Purpose.PERSON
    return instance.state is InstanceState.STARTING and (bool(model.queue.chats) or person)


def _must_be_told(instance: Instance) -> bool:
    """Whether it does not go already."""
    if instance.state is InstanceState.DRAINING:
        return not instance.restarting
    return instance.state in (InstanceState.STARTING, InstanceState.READY)


def _hold(state: State, lease: Lease) -> None:
    """Nothing of ours is there any more, but for what is lost (L5): that is said, and waited for no longer. Its time
    begins once all devices of the wish are held."""
    lease.state = moved(LEASE_MOVES, lease.state, LeaseMove.HOLD)
    wish = lease.wish
    wish.lost_bytes += state.ledger.books[lease.device].lost_bytes
    _say(state, lease)
    if not all(each.held for each in wish.leases):
        return
    if lease.seconds is not None:
        for each in wish.leases:
            if each.until == inf:  # else it went on after a restart of the server
                each.until = state.now + lease.seconds
            state.plan_wake_at = min(state.plan_wake_at, each.until)
            state.replan_due = state.replan_due or each.until <= state.now
    state.kept.due = True
    devices = [each.device for each in wish.leases]
    _answer(
        state, wish, devices=devices, owner=lease.owner, seconds=lease.seconds, lost_bytes=wish.lost_bytes,
        displaced=[name for each in wish.leases for name in each.displaced],
    )  # fmt: skip


def _say(state: State, lease: Lease, **more: object) -> None:
    figures = {"lease": lease.state.value, "owner": lease.owner, "seconds": lease.seconds, **more}
    state.say_of_device(LogEvent.LEASE, lease.device, "R8", **figures)
