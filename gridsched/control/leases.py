"""Verbs about whole devices for somebody else (R8): reserve, release, list; and the watch over the owners' processes.

Owns their words and types. Must never take a device itself: the scheduler has it drained, and gives it back.
"""

from functools import partial
from typing import Annotated

import trio
from msgspec import Meta

from gridsched.control.problems import LONGEST_SAID_NAME, Problem, RequestError, invalid
from gridsched.control.residency import LONGEST_TTL_SECONDS, of_instance, told_as, told_of, until_done, waiting_for
from gridsched.control.services import Services
from gridsched.control.telling import while_telling
from gridsched.control.verb import Answer, Arguments, Call, Consequences, Nothing, Rest, Verb
from gridsched.core.events import LeaseAsked, LeaseReleased
from gridsched.core.ids import DeviceName, RequestId
from gridsched.core.instance import InstanceState
from gridsched.core.snapshot import DeviceView, InstanceView
from gridsched.core.standing import OwnerProcess
from gridsched.credentials import Scope
from gridsched.engine.identity import ProcessId
from gridsched.runtime.decisions import rfc3339
from gridsched.runtime.runtime import Runtime

WATCH_SECONDS = 1.0
"""How soon a lease ends after its owner's process."""

MOST_DEVICES = 64
HIGHEST_PID = 2**22


class ReserveArguments(Arguments, frozen=True, kw_only=True):
    """Which devices, for whom, and until when: `ttl_s`, `pid`, or both, whatever comes first."""

    devices: Annotated[
        str | Annotated[tuple[str, ...], Meta(min_length=1, max_length=MOST_DEVICES)],
        Meta(description='Names of devices, as server_status has them, or "all". All of them or none.'),
    ]
    owner: Annotated[
        str, Meta(description="What for: shown wherever the lease is.", min_length=1, max_length=LONGEST_SAID_NAME)
    ]
    ttl_s: (
        Annotated[
            float, Meta(description="For how many seconds, from when they are held.", gt=0, le=LONGEST_TTL_SECONDS)
        ]
        | None
    ) = None
    pid: (
        Annotated[int, Meta(description="A process of this machine: the lease ends with it.", ge=1, le=HIGHEST_PID)]
        | None
    ) = None


class ReleaseArguments(Arguments, frozen=True, kw_only=True):
    """Which device comes back."""

    device: Annotated[str, Meta(description='Its name, or "all" for all that are leased.', min_length=1)]


class Reserved(Answer, frozen=True, kw_only=True):
    """Devices that are held: nothing of ours is there, but for `lost_bytes` that a process never gave back (L5).
    `displaced` are the models that had to go and come back at the end. `note`: why it would not outlive the server."""

    devices: tuple[str, ...]
    owner: str
    ttl_s: float | None
    lost_bytes: int
    displaced: tuple[str, ...]
    note: str | None = None


class Released(Answer, frozen=True, kw_only=True):
    """Devices that are ours again, and the models that are loaded again for it, where there is room."""

    devices: tuple[str, ...]
    loads_again: tuple[str, ...]


class Lease(Answer, frozen=True, kw_only=True):
    """One leased device. `state`: requested, draining, held. `until` is None until it is held, and where only a release
    or the end of its process ends it."""

    device: str
    owner: str
    state: str
    until: str | None
    left_s: float | None
    pid: int | None
    displaced: tuple[str, ...]


class Leases(Answer, frozen=True, kw_only=True):
    """All of them, in the order of the devices."""

    leases: tuple[Lease, ...]


# --- reserve ----------------------------------------------------------------------------------------------------


def _devices(services: Services, asked: ReserveArguments) -> tuple[DeviceName, ...]:
    """By name; "all" are all there are. Raises RequestError."""
    names = asked.devices.split(",") if isinstance(asked.devices, str) else asked.devices
    there = [view.name for view in services.runtime.snapshot().devices]
    if "all" in names:
        return tuple(there)
    wanted = tuple(dict.fromkeys(DeviceName(name.strip()) for name in names))
    for name in wanted:
        if name not in there:
            said = name[:LONGEST_SAID_NAME]
            raise RequestError(
                Problem("not_found", f"there is no device {said!r}; there is {', '.join(there)}", "devices")
            )
    return wanted


def _owner_process(asked: ReserveArguments) -> OwnerProcess | None:
    """Raises RequestError for a process that is not there."""
    if asked.pid is None:
        return None
    found = ProcessId.of(asked.pid)
    if found is None or not found.alive():
        raise invalid(f"there is no process {asked.pid} on this machine", "pid")
    return OwnerProcess(found.pid, found.start_ticks, found.boot_id)


async def _reserve(services: Services, asked: ReserveArguments, call: Call) -> Reserved:
    if not asked.owner.isprintable() or not asked.owner.strip():
        raise invalid("owner: only characters that can be printed", "owner")
    if asked.ttl_s is None and asked.pid is None:
        raise invalid("a lease ends by itself: say ttl_s (seconds), or pid, the process that it ends with", "ttl_s")
    devices, process, wishes = _devices(services, asked), _owner_process(asked), services.runtime.wishes
    wish = wishes.ask(
        lambda request: LeaseAsked(request, devices, asked.owner.strip(), asked.ttl_s, process, call.may_go),
        withdrawn=True,
    )
    answer = await while_telling(call.tell, partial(_progress, services.runtime, devices), wish)
    told = told_of(answer)
    return told_as(Reserved, answer, ttl_s=told["seconds"], note=await wishes.memory.written() or None)


def _on(runtime: Runtime, devices: tuple[DeviceName, ...]) -> list[InstanceView]:
    return [view for view in runtime.snapshot().instances if set(view.devices) & set(devices)]


def _progress(runtime: Runtime, devices: tuple[DeviceName, ...]) -> tuple[float, float | None, str]:
    here = _on(runtime, devices)
    busy = sum(view.slots_busy for view in here)
    names = ", ".join(sorted({str(view.model) for view in here}))
    what = f"{busy} running steps of {names} end first" if busy else f"{names or 'nothing'} goes"
    return 0.0, None, f"{', '.join(devices)}: {what}"


async def _plan_reserve(services: Services, asked: ReserveArguments, _: Call) -> Consequences:
    devices, runtime = _devices(services, asked), services.runtime
    names = ", ".join(devices)
    barred = [_why_not(view, _on(runtime, (view.name,))) for view in runtime.snapshot().devices if view.name in devices]
    if why := next(filter(None, barred), ""):
        return Consequences(text=f"it would be refused: {why}", harms=False)
    going = [view for view in _on(runtime, devices) if view.state is not InstanceState.STOPPING]
    models = sorted({str(view.model) for view in going})
    rests = [view.rest_seconds for view in runtime.jobs().running if str(view.model) in models]
    text = f"{names} would be {asked.owner[:LONGEST_SAID_NAME]}'s"
    return Consequences(
        text=f"{text}, once {', '.join(models)} {'have' if len(models) > 1 else 'has'} gone" if models else text,
        harms=bool(going),
        evicted=tuple(of_instance(view) for view in going),
        waiting_jobs=waiting_for(services, set(models)),
        seconds=until_done(rests),
        essence=f"lease {','.join(sorted(devices))} from {','.join(models) or 'nobody'}",
    )


def _why_not(view: DeviceView, there: list[InstanceView]) -> str:
    """What the scheduler would say."""
    if view.lease is not None:
        return f"{view.name} is leased to {view.lease.owner}"
    pinned = sorted(str(one.model) for one in there if one.tier.value == "pinned")
    return f"{', '.join(pinned)} is pinned on {view.name}" if pinned else ""


# --- release, list ----------------------------------------------------------------------------------------------


def _to_release(services: Services, asked: ReleaseArguments) -> list[DeviceName]:
    leased = [view.name for view in services.runtime.snapshot().devices if view.lease is not None]
    return leased if asked.device == "all" else [DeviceName(asked.device[:LONGEST_SAID_NAME])]


async def _plan_release(services: Services, asked: ReleaseArguments, _: Call) -> Consequences:
    """Somebody is harmed where the card is in use: by the process that has the lease, or by one that is not ours."""
    names = _to_release(services, asked)
    views = [view for view in services.runtime.snapshot().devices if view.name in names and view.lease is not None]
    users = {view.name: _users(view) for view in views}
    told = [
        f"{view.name} would be {view.lease.owner}'s no more{users[view.name]}"
        for view in views
        if view.lease is not None
    ]
    return Consequences(
        text="; ".join(told) or f"{asked.device[:LONGEST_SAID_NAME]} is not leased",
        harms=any(users.values()),
        details={"devices": tuple(users)},
        essence=f"release {','.join(names)}, used: {','.join(name for name, who in users.items() if who)}",
    )


def _users(view: DeviceView) -> str:
    """Who is on a leased card, in words; empty for nobody."""
    process = view.lease.process if view.lease is not None else None
    lives = process is not None and ProcessId(process.pid, process.start_ticks, process.boot_id).alive()
    owner = f", whose process {process.pid} lives" if process is not None and lives else ""
    if not view.external_bytes:
        return owner
    programs = ", ".join(f"{one.name} ({one.pid})" for one in view.foreign) or "programs outside"
    return f"{owner}, and {programs} have {view.external_bytes / 2**30:.2f} GiB there"


async def _release(services: Services, asked: ReleaseArguments, _: Call) -> Released:
    wishes = services.runtime.wishes
    names = _to_release(services, asked)
    again: list[str] = []
    for name in names:
        told = told_as(Released, await wishes.ask(partial(_released, name)))
        again += told.loads_again
    await wishes.memory.written()
    return Released(devices=tuple(names), loads_again=tuple(again))


def _released(name: DeviceName, request: RequestId, why: str = "released") -> LeaseReleased:
    return LeaseReleased(request, name, why)


async def _leases(services: Services, _: Nothing, __: Call) -> Leases:
    runtime = services.runtime
    now = runtime.snapshot()
    return Leases(leases=tuple(_lease(runtime, view, now.at) for view in now.devices if view.lease is not None))


def _lease(runtime: Runtime, view: DeviceView, at: float) -> Lease:
    lease = view.lease
    assert lease is not None  # noqa: S101 - for the type checker
    until = lease.until_seconds
    return Lease(
        device=view.name,
        owner=lease.owner,
        state=lease.state.value,
        until=None if until is None else rfc3339(runtime.wall_seconds_at(until)),
        left_s=None if until is None else round(max(0.0, until - at), 3),
        pid=None if lease.process is None else lease.process.pid,
        displaced=lease.displaced,
    )


# --- the owners' ends -------------------------------------------------------------------------------------------


async def watch_owners(runtime: Runtime) -> None:
    """Release what belongs to a process that has ended (P4: that very process). Runs until cancelled."""
    while True:
        for view in runtime.snapshot().devices:
            process = view.lease.process if view.lease is not None else None
            if process is not None and not ProcessId(process.pid, process.start_ticks, process.boot_id).alive():
                why = f"its process {process.pid} has ended"
                await runtime.wishes.ask(partial(_released, view.name, why=why))
        await trio.sleep(WATCH_SECONDS)


VERBS = (
    Verb(
        name="reserve_gpus",
        summary="Have devices for another program",
        description="Lease whole devices (R8): models go from there when their running steps have ended, and come back"
        " when the lease is over. Refused for a device that is leased already, or where a pinned model is.",
        scope=Scope.ADMIN,
        takes=ReserveArguments,
        gives=Reserved,
        act=_reserve,
        plan=_plan_reserve,
        rest=Rest("POST", "/api/leases"),
        tool=True,
        destructive=True,
        long=True,
    ),
    Verb(
        name="release_gpus",
        summary="Give leased devices back",
        description="End the lease of a device, held or not yet. What it sent away is loaded again if there is room.",
        scope=Scope.ADMIN,
        takes=ReleaseArguments,
        gives=Released,
        act=_release,
        plan=_plan_release,
        destructive=True,
        rest=Rest("DELETE", "/api/leases/{device}"),
        tool=True,
    ),
    Verb(
        name="list_leases",
        summary="The leased devices",
        description="Whose each is, until when, and what comes back at its end.",
        scope=Scope.READ,
        takes=Nothing,
        gives=Leases,
        act=_leases,
        rest=Rest("GET", "/api/leases"),
        reads=True,
    ),
)
