"""The gauges: what one snapshot of the scheduler says, family by family. Keeps nothing and changes nothing."""

from collections.abc import Iterator, Mapping, Sequence

from gridsched.core.ids import ModelName
from gridsched.core.instance import InstanceState
from gridsched.core.job import JobClass
from gridsched.core.snapshot import DeviceView, Snapshot
from gridsched.metrics import catalog
from gridsched.metrics.catalog import Family
from gridsched.metrics.series import Labels
from gridsched.ports import CatalogModel, MemoryPressure

Values = Mapping[Labels, float]

STATES = ("ready", "loading", "draining", "cold", "failed", "unavailable")
_STATE_OF: Mapping[InstanceState, str] = {
    InstanceState.READY: "ready",
    InstanceState.STARTING: "loading",
    InstanceState.DRAINING: "draining",
    InstanceState.STOPPING: "draining",
}


def gauges(now: Snapshot, models: Sequence[CatalogModel]) -> Iterator[tuple[Family, Values]]:
    """All of them at one moment."""
    yield catalog.QUEUE_LENGTH, _by_class(now.queue_lengths)
    yield catalog.RUNNING, _by_class(now.running)
    yield catalog.OLDEST_WAIT, _by_class(now.oldest_wait_seconds)
    yield catalog.DRAINING, {(): now.draining}
    yield catalog.MODE, {(view.name,): view.interactive_mode for view in now.devices}
    yield catalog.DEVICE_AVAILABLE, {(view.name,): view.lost_since_seconds is None for view in now.devices}
    yield (
        catalog.DEVICE_MEMORY,
        {(view.name, kind): amount for view in now.devices for kind, amount in _memory(view).items()},
    )
    yield catalog.SLOTS, _slots(now)
    yield catalog.MODEL_MEMORY, _model_memory(now)
    yield catalog.MODEL_HOST_MEMORY, _host_memory(now)
    yield catalog.MODEL_STATE, _states(now, models)


def pressure(told: MemoryPressure | None) -> Values:
    """Of the host's memory, where the kernel tells it."""
    return {} if told is None else {("some",): told.some, ("full",): told.full}


def _by_class(values: Mapping[JobClass, float]) -> Values:
    return {(each.label,): values.get(each, 0) for each in JobClass}


def _memory(view: DeviceView) -> Mapping[str, int]:
    return {
        "total": view.total_bytes,
        "used": view.used_bytes,
        "external": view.external_bytes,
        "reserved": view.reserved_bytes,
        "freeing": view.freeing_bytes,
        "lost": view.lost_bytes,
        "headroom": view.headroom_bytes,
    }


def _slots(now: Snapshot) -> Values:
    values: dict[Labels, float] = {}
    for view in now.instances:
        if view.state in {InstanceState.READY, InstanceState.DRAINING}:
            for state, count in (("busy", view.slots_busy), ("free", view.parallel - view.slots_busy)):
                values[view.model, state] = values.get((view.model, state), 0) + count
    return values


def _model_memory(now: Snapshot) -> Values:
    values: dict[Labels, float] = {}
    for view in now.instances:
        for kind, amount in (("estimated", view.estimated_bytes), ("measured", view.measured_bytes)):
            if amount is not None:
                values[view.model, kind] = values.get((view.model, kind), 0) + amount
    return values


def _host_memory(now: Snapshot) -> Values:
    values: dict[Labels, float] = {}
    for view in now.instances:
        if view.host_held_bytes is not None:
            values[view.model,] = values.get((view.model,), 0) + view.host_held_bytes
    return values


def _states(now: Snapshot, models: Sequence[CatalogModel]) -> Values:
    current: dict[ModelName, str] = {}
    for model in models:
        current[model.name] = "unavailable" if model.spec is None else "cold"
        if model.name in now.failed:
            current[model.name] = "failed"
    for state, word in list(_STATE_OF.items())[::-1]:  # the best state of a model's processes is written last
        current.update((view.model, word) for view in now.instances if view.state is state)
    return {(model, state): state == now_in for model, now_in in current.items() for state in STATES}
