"""The one sentence about a running server that a service manager shows. Pure: a snapshot in, words out."""

from collections.abc import Iterator

from gridsched.core.instance import InstanceState
from gridsched.core.snapshot import Snapshot

LOADED = frozenset((InstanceState.READY, InstanceState.DRAINING))


def summary(snapshot: Snapshot) -> str:
    """What is loaded, who runs and waits; before that what is wrong, because a long sentence is cut."""
    return "; ".join((*_wrong(snapshot), _loaded(snapshot), _busy(snapshot)))


def _wrong(snapshot: Snapshot) -> Iterator[str]:
    for device in snapshot.devices:
        if device.lost_since_seconds is not None:
            yield f"{device.name} is lost: {device.lost_why}" if device.lost_why else f"{device.name} is lost"
    if snapshot.failed:
        yield f"failed: {', '.join(sorted(snapshot.failed))}"
    if snapshot.draining:
        yield "no new request is taken"


def _loaded(snapshot: Snapshot) -> str:
    names = sorted({view.model for view in snapshot.instances if view.state in LOADED})
    loading = sorted({view.model for view in snapshot.instances if view.state is InstanceState.STARTING})
    said = f"loaded: {', '.join(names)}" if names else "no model is loaded"
    return f"{said}; loading: {', '.join(loading)}" if loading else said


def _busy(snapshot: Snapshot) -> str:
    running, waiting = sum(snapshot.running.values()), sum(snapshot.queue_lengths.values())
    return f"{_requests(running, 'runs', 'run')}, {waiting or 'none'} {'waits' if waiting == 1 else 'wait'}"


def _requests(count: int, one: str, many: str) -> str:
    return f"1 request {one}" if count == 1 else f"{count or 'no'} requests {many}"
