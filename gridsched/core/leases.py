"""A whole device for somebody else (R8): requested, draining, held.

Owns the leases and their moves. While one stands its device is usable for nobody: `bar` keeps every plan off it. Loads
of chats that are under way finish and serve first, low ones are aborted, running steps end, instances go. Must never
place anything elsewhere: that is what the plans that are made anew are for.
"""

from math import inf

from gridsched.core import admission, lifecycle
from gridsched.core.commands import AnswerRequest, LogEvent, Rejection, RejectionCode
from gridsched.core.events import LeaseAsked, LeaseReleased
from gridsched.core.instance import InstanceState
from gridsched.core.model import LaunchOption
from gridsched.core.placement import Obstacle, Purpose
from gridsched.core.residency import Instance, Lease
from gridsched.core.state import State
from gridsched.core.transitions import LEASE_MOVES, LeaseMove, LeaseState, moved

# --- asked and released -----------------------------------------------------------------------------------------


def asked(state: State, event: LeaseAsked) -> None:
    """Begin a lease, or refuse it: one at a time, and none over a pinned model."""
    refusal = _refusal(state, event)
    if refusal is not None:
        state.out.append(AnswerRequest(event.request, refusal))
        return
    lease = Lease(event.device, event.owner, event.request, event.seconds)
    state.leases[event.device] = lease
    _say(state, lease)
    advance(state)  # at once: the plans that are dissolved would give slots there to whoever they kept waiting
    state.replan_due = True


def _refusal(state: State, event: LeaseAsked) -> Rejection | None:
    if state.draining:
        return admission.draining()
    if event.device not in state.ledger.books:
        return Rejection(RejectionCode.NOT_FOUND, f"there is no device {event.device}")
    other = state.leases.get(event.device)
    if other is not None:
        detail: dict[str, object] = {"owner": other.owner, "state": other.state.value}
        return Rejection(RejectionCode.CONFLICT, f"{event.device} is leased to {other.owner}", detail=detail)
    pinned = sorted(str(item.model.name) for item in state.instances_on(event.device) if item.model.pinned)
    if pinned:
        message = f"{', '.join(pinned)} is pinned on {event.device}: unpin or unload it first"
        return Rejection(RejectionCode.CONFLICT, message, detail={"pinned": pinned})
    return None


def released(state: State, event: LeaseReleased) -> None:
    """End a lease, held or not."""
    lease = state.leases.get(event.device)
    if lease is None:
        refusal = Rejection(RejectionCode.NOT_FOUND, f"{event.device} is not leased")
        state.out.append(AnswerRequest(event.request, refusal))
        return
    _end(state, lease, "released", Rejection(RejectionCode.CONFLICT, "the lease was released before it was held"))
    state.out.append(AnswerRequest(event.request, detail={"device": event.device, "owner": lease.owner}))


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


def _end(state: State, lease: Lease, why: str, refusal: Rejection) -> None:
    """Over: whoever still waits for it is refused, and what drains for it alone takes work again."""
    lease.state = moved(LEASE_MOVES, lease.state, LeaseMove.END)
    del state.leases[lease.device]
    _answer(state, lease, refusal)
    _say(state, lease, why=why)
    for instance in state.instances_on(lease.device):
        if instance.retired_by == "R8" and not any(device in state.leases for device in instance.devices):
            lifecycle.unretire(state, instance)
    state.replan_due = True


def _answer(state: State, lease: Lease, rejection: Rejection | None = None, **detail: object) -> None:
    request, lease.request = lease.request, None
    if request is not None:
        state.out.append(AnswerRequest(request, rejection, detail))


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
                lifecycle.retire(state, instance, "R8", f"{lease.device} is leased to {lease.owner}")
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
    """Nothing of ours is there any more, but for what is lost (L5): that is said, and waited for no longer."""
    lease.state = moved(LEASE_MOVES, lease.state, LeaseMove.HOLD)
    if lease.seconds is not None:
        lease.until = state.now + lease.seconds
        state.plan_wake_at = min(state.plan_wake_at, lease.until)
        state.replan_due = state.replan_due or lease.until <= state.now
    lost_bytes = state.ledger.books[lease.device].lost_bytes
    _say(state, lease)
    _answer(state, lease, device=lease.device, owner=lease.owner, seconds=lease.seconds, lost_bytes=lost_bytes)


def _say(state: State, lease: Lease, **more: object) -> None:
    figures = {"lease": lease.state.value, "owner": lease.owner, "seconds": lease.seconds, **more}
    state.say_of_device(LogEvent.LEASE, lease.device, "R8", **figures)
