"""Where a model is measured, and who must not be disturbed for it.

Owns the choice of devices and launch of a benchmark, and the reasons against one. Starts nothing and takes nothing.
"""

from collections.abc import AsyncIterator, Iterator
from typing import Final

from gridsched.control.options import SLOTS, configured
from gridsched.control.problems import Problem, RequestError, invalid
from gridsched.control.services import Services
from gridsched.control.verb import Victim
from gridsched.core.ids import DeviceName
from gridsched.core.instance import InstanceState
from gridsched.core.job import JobClass
from gridsched.core.model import LaunchOption, Tier
from gridsched.core.snapshot import DeviceView, InstanceView, Snapshot
from gridsched.ports import Backend, Capability, CatalogModel

MOST_PLACEMENTS = 4
"""Sets of devices that are measured in one benchmark; cards of the same kind are measured once."""

SHORTEST_CONTEXT = 2048
"""Tokens a slot that are enough to measure with, where the model's own context leaves no room for eight slots."""

ONE_SLOT: Final = frozenset((Capability.EMBEDDING, Capability.RERANK))
"""What has one slot, whose step is a chunk of inputs."""

_GOING: Final = (InstanceState.STARTING, InstanceState.READY, InstanceState.DRAINING)


async def placements(
    services: Services, model: CatalogModel, devices: tuple[str, ...] | None
) -> tuple[LaunchOption, ...]:
    """The sets of devices that are worth measuring, each with its launch; of sets of the same kinds of cards one, if
    it can be one that may be taken now. Raises RequestError where there is none."""
    known = {str(info.spec.name): info for info in services.runtime.parts.monitor.devices()}
    for name in devices or ():
        if name not in known:
            raise invalid(f"devices: there is no device {name!r} (there is {', '.join(known)})", "devices")
    found: dict[tuple[DeviceName, ...], LaunchOption] = {}
    async for option in _launches(services, model):
        found.setdefault(option.devices, option)
    kinds: dict[tuple[str, ...], LaunchOption] = {}
    for placed, option in found.items():
        if devices is None or set(placed) == set(devices):
            kind = tuple(sorted(known[name].label for name in placed))
            free = busy_reason(services, model, placed) is None
            if kind not in kinds or (free and busy_reason(services, model, kinds[kind].devices) is not None):
                kinds[kind] = option
    chosen = sorted(kinds.values(), key=lambda option: len(option.devices))[:MOST_PLACEMENTS]
    if not chosen:
        where = f" on {', '.join(devices)}" if devices else ""
        text = f"there is no room for {model.name}{where}, even if nothing of ours ran"
        raise RequestError(Problem("conflict", text))
    return tuple(chosen)


async def _launches(services: Services, model: CatalogModel) -> AsyncIterator[LaunchOption]:
    """Launches that the devices would carry once they are leased, the best to measure with first: as many slots as
    there are levels, at the model's own context or a shorter one; else fewer slots."""
    catalog = services.runtime.parts.catalog
    room = {device.name: _room(device) for device in services.runtime.snapshot().devices}
    single = model.capabilities & ONE_SLOT
    for slots in (1,) if single else SLOTS:
        context = configured(model)
        while True:
            for option in await services.ladders.of(catalog, model, context, slots):
                if all(need <= room.get(device, 0) for device, need in option.need_bytes):
                    yield option
            if single or context // 2 < SHORTEST_CONTEXT:
                break
            context //= 2


def _room(device: DeviceView) -> int:
    """What a lease leaves: all but the headroom, and what others hold."""
    return device.total_bytes - device.headroom_bytes - device.external_bytes - device.lost_bytes


def busy_reason(services: Services, model: CatalogModel, devices: tuple[DeviceName, ...]) -> str | None:
    """Why these devices are not to be taken now: a person is, or was a moment ago, in a conversation, or work runs."""
    return next(_reasons(services, model, devices), None)


def _reasons(services: Services, model: CatalogModel, devices: tuple[DeviceName, ...]) -> Iterator[str]:
    now = services.runtime.snapshot()
    if now.queue_lengths.get(JobClass.INTERACTIVE, 0):
        yield "a person waits for an answer"
    concerned = _all_devices(now) if on_host(services, devices) else frozenset(devices)
    for device in now.devices:
        if device.name in concerned and device.interactive_mode:
            yield f"a person is in a conversation on {device.name}"
        if device.name in devices and device.lease is not None:
            yield f"{device.name} is leased to {device.lease.owner}"
        if device.name in devices and device.lost_since_seconds is not None:
            yield f"{device.name} does not answer"
    yield from _used(now, model, frozenset(devices))


def _used(now: Snapshot, model: CatalogModel, devices: frozenset[DeviceName]) -> Iterator[str]:
    for instance in now.instances:
        if instance.tier is Tier.HOT and (instance.model == model.name or devices & set(instance.devices)):
            yield f"a person used {instance.model} a moment ago"
    for instance in _there(now, devices):
        if instance.tier is Tier.PINNED:
            yield f"{instance.model} is pinned on {', '.join(instance.devices)}"
        if instance.slots_busy or instance.state is InstanceState.STARTING:
            yield f"{instance.model} works there"


def _all_devices(now: Snapshot) -> frozenset[DeviceName]:
    return frozenset(device.name for device in now.devices)


def on_host(services: Services, devices: tuple[DeviceName, ...]) -> bool:
    """Whether the processor computes: then a conversation on any card is disturbed."""
    infos = services.runtime.parts.monitor.devices()
    return any(info.backend is Backend.CPU for info in infos if info.spec.name in devices)


def _there(now: Snapshot, devices: frozenset[DeviceName]) -> Iterator[InstanceView]:
    for instance in now.instances:
        if instance.state in _GOING and devices & set(instance.devices):
            yield instance


def evicted(now: Snapshot, devices: frozenset[DeviceName]) -> Iterator[Victim]:
    """Who would have to go for a lease of these."""
    for each in _there(now, devices):
        yield Victim(model=each.model, bytes=each.reserved_bytes, running_steps=each.slots_busy)
