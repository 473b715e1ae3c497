"""What happens on a device that holds more than may be planned (R6a).

Owns the notes of which devices are under pressure, the story of what caused it, and the choice of the idle model that
goes. Must never touch anything pinned, hot, busy or waited for, and never a second model while the first is still
giving its memory back: what is being freed counts, and figures that the ledger does not believe yet (L3) prove nothing.

That nothing new is loaded there needs no rule of its own: with less than nothing free a load fits only once its victims
have freed what is lacking too.
"""

from dataclasses import field
from math import inf

from gridsched.core import cost, lifecycle
from gridsched.core.commands import LogEvent
from gridsched.core.ids import DeviceName, InstanceId
from gridsched.core.job import JobClass
from gridsched.core.ledger import FREEZE_SECONDS, DeviceBook
from gridsched.core.record import record
from gridsched.core.residency import READY, Instance
from gridsched.core.state import State


@record
class Picture:
    """What a device's sum was made of when it was last in order, in bytes. `page` and `revision` say what it was
    taken of: while they stay, so does the picture."""

    page: DeviceBook | None = None
    revision: int = 0
    usable_bytes: int = 0
    external_bytes: int = 0
    lost_bytes: int = 0
    reserved_bytes: dict[InstanceId, int] = field(default_factory=dict)


def watch(state: State, book: DeviceBook) -> None:
    """Say when pressure begins, with its cause, and when it ends."""
    device = book.spec.name
    if book.guessed:
        return
    if not book.pressure:
        if device in state.pressed:
            state.pressed.discard(device)
            state.say_of_device(LogEvent.PRESSURE, device, "R6a", pressure="ends", free_bytes=book.free_bytes)
        picture = state.pictures.get(device)
        if picture is None or picture.page is not book or picture.revision != book.revision:
            reserved = {each: item.bytes for each, item in book.reservations.items()}
            state.pictures[device] = Picture(
                book, book.revision, book.usable_bytes, book.external_bytes, book.lost_bytes, reserved
            )
    elif device not in state.pressed:
        state.pressed.add(device)
        cause, grown_bytes = _cause(state, book, state.pictures.get(device, Picture(usable_bytes=book.usable_bytes)))
        state.say_of_device(
            LogEvent.PRESSURE, device, "R6a",
            pressure="begins", short_bytes=-book.free_bytes, cause=cause, cause_bytes=grown_bytes,
        )  # fmt: skip


def _cause(state: State, book: DeviceBook, before: Picture) -> tuple[str, int]:
    """The largest change since the sum was last in order."""
    changes = [
        (before.usable_bytes - book.usable_bytes, "a changed headroom"),
        (book.external_bytes - before.external_bytes, _outside(book)),
        (book.lost_bytes - before.lost_bytes, "memory that was not given back"),
    ]
    for instance_id, item in book.reservations.items():
        grown_bytes = item.bytes - before.reserved_bytes.get(instance_id, item.bytes)
        changes.append((grown_bytes, f"growth of {state.instances[instance_id].model.spec.name}"))
    grown_bytes, cause = max(changes, key=lambda change: change[0])
    return cause, grown_bytes


def _outside(book: DeviceBook) -> str:
    """The largest program outside, as far as anybody tells who that is."""
    if not book.foreign:
        return "a program outside"
    largest = book.foreign[0]
    return f"a program outside: {largest.name} (pid {largest.pid})"


def relieve(state: State) -> None:
    """Have one idle cold model go on each device under pressure where nothing is going yet, the cheapest first (R5)."""
    for book in state.ledger.books.values():
        watch(state, book)
    if not state.pressed:
        return
    state.pressed.intersection_update(state.ledger.books)  # a device that is gone presses nobody
    for device in sorted(state.pressed):
        book = state.ledger.books[device]
        if book.guessed or device in state.lost or _is_being_freed(state, book):
            continue  # of a lost device no memory comes back that could be seen (D6)
        if book.frozen(state.now):
            state.plan_wake_at = min(state.plan_wake_at, book.last_stop_at + FREEZE_SECONDS)
            continue
        if book.outdated:
            continue  # the next reading is believed, and looked at
        idle = [state.instances[each] for each in book.reservations]
        idle = [instance for instance in idle if _may_go(instance)]
        cold = [instance for instance in idle if not instance.hot(state.now)]
        if cold:
            _unload(state, min(cold, key=lambda instance: _price(state, instance)), device)
        else:
            cools_at = min((instance.hot_until for instance in idle), default=inf)
            state.plan_wake_at = min(state.plan_wake_at, cools_at)


def _is_being_freed(state: State, book: DeviceBook) -> bool:
    """Whether memory is on its way back."""
    if book.going_bytes:
        return True
    leaving = [victim for plan in state.plans if plan.live for victim in plan.victims]
    leaving += [item for item in state.instances.values() if item.restarting]
    return any(item.id in book.reservations for item in leaving)


def _may_go(instance: Instance) -> bool:
    return (
        instance.state is READY
        and not instance.model.pinned
        and not instance.busy()
        and not instance.model.queue.count
        and instance.model.instance is instance
    )


def _price(state: State, instance: Instance) -> tuple[int, float, int]:
    price_seconds = cost.terms_of(state, instance, JobClass.BACKGROUND).price_seconds
    return (round(price_seconds * 1000), instance.last_used_at, instance.id)


def _unload(state: State, instance: Instance, device: DeviceName) -> None:
    terms = cost.terms_of(state, instance, JobClass.BACKGROUND)
    reason = f"{device} holds more than may be planned"
    lifecycle.stop(state, instance, "R6a", reason, LogEvent.EVICT, **terms.figures())
