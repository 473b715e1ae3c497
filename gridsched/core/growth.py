"""A process that has grown past its bound, on a device or in host memory, is started anew in a quiet moment (L6b, M11).

Owns the judgement of when. What it has grown to is charged all the while (`ledger`). Must never touch a process that
works, that somebody waits for, or beside which people chat.
"""

from gridsched.core import errands, lifecycle
from gridsched.core.commands import LogEvent
from gridsched.core.events import HostMemoryRead
from gridsched.core.ids import DeviceName
from gridsched.core.placement import Purpose
from gridsched.core.residency import READY, Instance
from gridsched.core.state import State


def watch(state: State, device: DeviceName) -> None:
    """To be asked at each reading of a device: growth is seen then, and a quiet moment comes soon enough."""
    book = state.ledger.books.get(device)
    if book is None:
        return
    for instance_id, item in list(book.reservations.items()):
        instance = state.instances[instance_id]
        if item.overgrown and _quiet(state, instance):
            why = f"it holds {item.bytes} bytes of {device}, first {item.first_bytes}, estimated {item.estimate_bytes}"
            _begin_anew(state, instance, why)


def host_read(state: State, event: HostMemoryRead) -> None:
    """M11: what processes hold of host memory. One that held more than it may from its first reading on is left alone
    and told of once: its next process would hold as much."""
    held = dict(event.held)
    limit = state.policy.host_memory_limit_bytes
    for instance in list(state.instances.values()):
        instance.host_held_bytes = size = held.get(instance.id)
        if size is None or instance.state is not READY:
            continue
        if instance.host_first_bytes is None:
            instance.host_first_bytes = size
            if limit is not None and size > limit:
                state.say_of_instance(
                    LogEvent.PRESSURE, instance, "L6b", host_bytes=size, limit_bytes=limit,
                    why="it holds more host memory than one process may from the start: another would hold as much",
                )  # fmt: skip
        first = instance.host_first_bytes
        if limit is not None and size > limit >= first and _quiet(state, instance):
            _begin_anew(state, instance, f"it holds {size} bytes of host memory, first {first}, {limit} are the limit")


def _begin_anew(state: State, instance: Instance, why: str) -> None:
    lifecycle.stop(state, instance, "L6b", why)
    if not instance.model.pinned:  # else its pin brings it back
        errands.ask(state, instance.model, Purpose.RESTART)


def _quiet(state: State, instance: Instance) -> bool:
    if instance.state is not READY or instance.grants or instance.model.queue.count:
        return False
    if any(device in state.lost for device in instance.devices):  # it could not be loaded there again (D6)
        return False
    return not state.draining and not instance.model.removed and not instance.interactive_mode(state.now)
