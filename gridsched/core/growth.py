"""A process that has grown past its bound is started anew in a quiet moment (L6b).

Owns the judgement of when. What it has grown to is charged all the while (`ledger`). Must never touch a process that
works, that somebody waits for, or beside which people chat.
"""

from gridsched.core import errands, lifecycle
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
            lifecycle.stop(state, instance, "L6b", why)
            if not instance.model.pinned:  # else its pin brings it back
                errands.ask(state, instance.model, Purpose.RESTART)


def _quiet(state: State, instance: Instance) -> bool:
    if instance.state is not READY or instance.grants or instance.model.queue.count:
        return False
    if any(device in state.lost for device in instance.devices):  # it could not be loaded there again (D6)
        return False
    return not state.draining and not instance.model.removed and not instance.interactive_mode(state.now)
