"""Who is not served, and why: limits (S9), back-off (L6d), memory (L7), with the arithmetic.

Owns every Rejection there is: their codes, sentences, `retry_after` and details, the keys as in the contract. Pure: it
looks and writes sentences, others carry them out; they are what makes it long. `max_ctx_that_fits` and
`max_parallel_that_fits` are not known here; whoever has the planner adds them.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from enum import Enum
from math import ceil

from gridsched.core.commands import Rejection, RejectionCode
from gridsched.core.events import Failure
from gridsched.core.ids import DeviceName, ModelName
from gridsched.core.instance import InstanceState
from gridsched.core.job import Job, Outcome, OutcomeKind
from gridsched.core.ledger import DeviceBook, Ledger, Needs
from gridsched.core.model import COMPONENTS, DeviceFootprint, LaunchOption
from gridsched.core.queues import JobRecord
from gridsched.core.residency import Instance, ModelState, Rungs
from gridsched.core.state import State

LOST_RETRY_SECONDS = 30.0
"""D6: when a client may ask again for what only a lost device could run. A guess: a driver that comes back does so
within a minute, and nobody knows when."""

FIRST_RETRY_SECONDS = 5.0
"""S9: what a full queue says while nothing has left it yet. A guess."""

ARRIVAL_RULES: Mapping[RejectionCode, str] = {
    RejectionCode.DRAINING: "P8",
    RejectionCode.MODEL_NOT_FOUND: "H5",
    RejectionCode.MODEL_FAILED: "L6d",
    RejectionCode.MODEL_NOT_SUPPORTED: "R10",
    RejectionCode.QUEUE_FULL: "S9",
    RejectionCode.NOT_RESIDENT: "S9",
    RejectionCode.INSUFFICIENT_VRAM: "L7",
}
"""The rule behind each refusal that can meet a job before it is queued."""


class Fit(Enum):
    """L7: whether a model can be made ready at all."""

    NEVER = "never"  # more than a device has
    NOT_NOW = "not_now"  # by nothing we can do: programs outside, pins, leases, lost memory
    LATER = "later"  # when running work ends, or our own idle models go


# --- on arrival -------------------------------------------------------------------------------------------------


def refusal_on_arrival(state: State, job: Job, model: ModelState | None) -> Rejection | None:
    """Why a job is not even queued, None where it is. Whether there is memory for it now is found by planning; that
    there never will be, or that it may not wait for a load, needs none."""
    if state.draining:
        return draining()
    if model is None or model.removed:
        return model_not_found(job.model)
    if model.retry_at > state.now:
        return model_failed(model, state.now)
    return _hopeless(state, job, model) or _queue_full(state, job, model)


def _hopeless(state: State, job: Job, model: ModelState) -> Rejection | None:
    """L7, S9: what can be said of a job before it waits. A family is aimed at a variant that fits, if there is one, and
    once more when plans are made (R10)."""
    instance = model.instance
    if instance is None or instance.restarting:
        if not model.queue.count and not usable_rungs(state.ledger, model):
            return _insufficient_vram(state, model, Fit.NEVER)
    elif instance.state is not InstanceState.DRAINING:
        return None
    return not_resident(job) if job.warm_only and job.model == model.name else None


def _queue_full(state: State, job: Job, model: ModelState) -> Rejection | None:
    """S9. A job that is granted in its own step never waits, so no queue is too full for it."""
    count = state.counts[job.job_class]
    length, limit = count.waiting, state.policy.queues[job.job_class].max_length
    of_key = False
    if length < limit and job.queue_share is not None:
        length, limit = count.of_key[job.key], length_of_share(job.queue_share, limit)
        of_key = True
    if length < limit or _is_granted_at_once(state, job, model):
        return None
    whose: dict[str, object] = {}
    full = f"the {job.job_class.label} queue is full: {length} jobs wait, the limit is {limit}"
    if of_key:
        whose = {"key": job.key}
        full = f"the key {job.key} has {length} jobs in the {job.job_class.label} queue, its share is {limit}"
    seconds = count.retry_after_seconds(state.now, FIRST_RETRY_SECONDS)
    return Rejection(
        RejectionCode.QUEUE_FULL,
        full,
        seconds,
        {"queue_length": length, "max_length": limit, "retry_after_s": ceil(seconds), **whose},
    )


def length_of_share(share: float, max_length: int) -> int:
    """How many jobs of a key may wait, at least one: a share in hundredths is a fraction that no float has."""
    return max(1, ceil(round(share * max_length, 6)))


def _is_granted_at_once(state: State, job: Job, model: ModelState) -> bool:
    instance = model.instance
    if instance is None or instance.state is not InstanceState.READY:
        return False
    if any(model.queue.by_class[: job.job_class + 1]):
        return False
    if not job.job_class.is_low:
        return instance.free_slots() > 0
    return instance.low_slots(state.now) > 0 and not instance.interactive_mode(state.now)


def draining() -> Rejection:
    """P8."""
    return Rejection(RejectionCode.DRAINING, "the server is shutting down and takes no new work")


def model_not_found(name: ModelName) -> Rejection:
    """The configuration has no such model, or no more."""
    return Rejection(RejectionCode.MODEL_NOT_FOUND, f"there is no model {name}")


MUST_GO = "would have to go, which was not agreed to"


def not_agreed(name: str, why: str) -> Rejection:
    """A person has said who may go for it, and now it would be others (R7, R8)."""
    return Rejection(RejectionCode.CONFLICT, f"for {name} {why}: it is not what the plan said; ask for the plan again")


def unload_unverified(state: State, instance: Instance) -> Rejection:
    """L5: it was told to go, and its memory is not back in time."""
    held = {str(name): size for name, size in state.ledger.bytes_of(instance.id).items()}
    what = "is gone" if instance.exited else "does not end"
    return Rejection(
        RejectionCode.UNLOAD_UNVERIFIED,
        f"the process of {instance.model.name} {what}, and {_size(sum(held.values()))} of its memory are not back",
        detail={"model": instance.model.name, "lost_bytes": held, "exited": instance.exited},
    )


def not_supported(job: Job, why: str) -> Rejection:
    """R10: nothing in the family will do for the job, now or later."""
    return Rejection(RejectionCode.MODEL_NOT_SUPPORTED, f"the family {job.model} cannot serve this request: {why}")


def model_failed(model: ModelState, now: float) -> Rejection:
    """L6d: with the cause and the log's last lines (P6a, P7)."""
    seconds = max(0.0, model.retry_at - now)
    message = f"{model.spec.name} failed to load; it is tried again on the first request after {seconds:.0f} s"
    detail: dict[str, object] = {"retry_after_s": ceil(seconds)}
    if model.failure is not None:
        message = f"{model.spec.name} failed ({model.failure.cause.value}): {model.failure.message}"
        detail |= _of_failure(model.failure)
    return Rejection(RejectionCode.MODEL_FAILED, message, seconds, detail)


def _of_failure(failure: Failure) -> dict[str, object]:
    detail: dict[str, object] = {"cause": failure.cause.value, "log_tail": list(failure.log_tail)}
    return detail | {"log": failure.log_path} if failure.log_path else detail


def not_resident(job: Job) -> Rejection:
    """S9: the job asked that nothing be loaded, or nothing be evicted, for it."""
    asked = "warm_only" if job.warm_only else "no_evict"
    why = "it is not loaded" if job.warm_only else "another model would have to go"
    return Rejection(
        RejectionCode.NOT_RESIDENT,
        f"{job.model} cannot serve a {asked} request now: {why}",
        detail={"asked": asked},
    )


# --- while waiting ----------------------------------------------------------------------------------------------


def wait_is_over(state: State, record: JobRecord, model: ModelState) -> Rejection:
    """S9: the longest wait has passed. A job whose model could not be made to fit is told the arithmetic (L7)."""
    if model.unfit_since is not None and model.unplaced():
        return unfit(state, model, Fit.NOT_NOW)
    waited_seconds = state.now - record.place
    reason = model.obstacle.reason if model.obstacle is not None else f"its turn at {model.spec.name} did not come"
    return Rejection(
        RejectionCode.QUEUE_TIMEOUT,
        f"waited {waited_seconds:.1f} s, the longest it may: {reason}",
        detail={"waited_ms": round(waited_seconds * 1000), "busy_models": busy_models(state), "reason": reason},
    )


def upstream_error(record: JobRecord, outcome: Outcome, failure: Failure | None) -> Rejection:
    """P5: the engine failed in mid-request, and running the step again is not (or no longer) possible."""
    name = record.model
    if outcome.kind is OutcomeKind.STALLED:
        message = f"the engine of {name} sent nothing for as long as a step may be silent; it is being restarted"
    elif outcome.kind is OutcomeKind.DEVICE_FAULT:
        message = f"the device of {name} failed while it worked on this request; its process is being started anew"
    elif outcome.kind is OutcomeKind.ENGINE_DIED:
        again = " again" if record.ran_again and not outcome.answered else ""
        message = f"the engine of {name} died{again} while it worked on this request"
    else:
        message = f"the step of {name} ended as {outcome.kind.value} and leaves nothing to wait for"
    detail = _of_failure(failure) if failure is not None else {}
    return Rejection(RejectionCode.UPSTREAM_ERROR, message, detail=detail)


def busy_models(state: State) -> list[str]:
    """Models with steps in flight: what a waiting load waits for."""
    return sorted({str(item.model.spec.name) for item in state.instances.values() if item.busy()})


# --- memory -----------------------------------------------------------------------------------------------------


def usable_rungs(ledger: Ledger, model: ModelState) -> tuple[tuple[LaunchOption, Needs], ...]:
    """The rungs of a ladder that an empty machine could carry, best first."""
    options = model.spec.options
    if model.rungs is None or model.rungs.revision != ledger.revision or model.rungs.options is not options:
        rungs = ((option, ledger.needs(option)) for option in options)
        usable = tuple((option, needs) for option, needs in rungs if ledger.carries(option, needs))
        model.rungs = Rungs(ledger.revision, options, usable)
    return model.rungs.usable


Room = dict[DeviceName, int]
"""What would be free of each device if all that may ever go had gone."""


def room_of(state: State, *, leased: bool = False, lost: bool = False, but: ModelState | None = None) -> Room:
    """The room there is; or would be, were the leased devices ours (R8), did the lost ones answer (D6), or had one
    model gone, pinned or not."""
    room = {device: _yieldable_bytes(state, device, leased=leased, lost=lost) for device in state.ledger.books}
    if but is not None and but.pinned and but.instance is not None:
        for device, held_bytes in state.ledger.bytes_of(but.instance.id).items():
            room[device] += held_bytes
    return room


def fit_of(state: State, model: ModelState, room: Room | None = None) -> Fit:
    """L7: which of its three cases a model without a plan is, with the room there is."""
    rungs = usable_rungs(state.ledger, model)
    if not rungs:
        return Fit.NEVER
    if room is None:
        room = room_of(state)
    for _, needs in rungs:
        for device, need in needs:
            if need > room[device]:
                break
        else:
            return Fit.LATER
    return Fit.NOT_NOW


def kept_by_leases(state: State, model: ModelState) -> bool:
    """R8: whether leases are all that keeps a model from ever fitting."""
    return bool(state.leases) and fit_of(state, model, room_of(state, leased=True)) is Fit.LATER


def _kept_by_losses(state: State, model: ModelState) -> bool:
    """D6: whether it would fit one day if the lost devices answered, and would not if only the leases ended."""
    if not state.lost or kept_by_leases(state, model):
        return False
    return fit_of(state, model, room_of(state, leased=True, lost=True)) is Fit.LATER


def _yieldable_bytes(state: State, device: DeviceName, *, leased: bool = False, lost: bool = False) -> int:
    """What would be free if all that may ever go had gone. Of a leased or lost device that is nothing, unless `leased`,
    or `lost`: what is not back there may only not be seen."""
    is_lost = device in state.lost
    if (device in state.leases and not leased) or (is_lost and not lost):
        return 0
    book = state.ledger.books[device]
    free_bytes = book.usable_bytes - book.external_bytes - _pinned_bytes(state, device)
    return free_bytes if is_lost else free_bytes - book.lost_bytes


def _pinned_bytes(state: State, device: DeviceName) -> int:
    pinned_bytes = 0
    for instance_id, item in state.ledger.books[device].reservations.items():
        if not item.going and state.instances[instance_id].model.pinned:
            pinned_bytes += item.bytes
    return pinned_bytes


def unfit(state: State, model: ModelState, fit: Fit) -> Rejection:
    """Why a model that does not fit, now or ever, is not served: for want of a device that answers, or of memory."""
    if fit is Fit.NOT_NOW and _kept_by_losses(state, model):
        return _gpu_unavailable(state, model)
    return _insufficient_vram(state, model, fit)


def _gpu_unavailable(state: State, model: ModelState) -> Rejection:
    """D6: 503, because it fits as soon as a device answers again."""
    wanted = dict.fromkeys(device for option, _ in usable_rungs(state.ledger, model) for device in option.devices)
    lost = [(device, state.lost[device]) for device in wanted if device in state.lost]
    told = "; ".join(
        f"{device} has not answered for {state.now - loss.since:.0f} s: {loss.why}" for device, loss in lost
    )
    detail: dict[str, object] = {
        "model": model.name,
        "devices": [
            {"device": device, "why": loss.why, "lost_s": round(state.now - loss.since, 3)} for device, loss in lost
        ],
        "retry_after_s": ceil(LOST_RETRY_SECONDS),
    }
    message = f"{model.spec.name} cannot be loaded while a device does not answer ({told})"
    return Rejection(RejectionCode.GPU_UNAVAILABLE, message, LOST_RETRY_SECONDS, detail)


def _insufficient_vram(state: State, model: ModelState, fit: Fit) -> Rejection:
    """L7: 507 with the arithmetic of the launch that is nearest to fitting, and what there is of every device on which
    the model could be launched."""
    ledger = state.ledger
    option = _nearest(state, model)
    needs = ledger.needs(option)
    per_device = [_arithmetic(state, device, need) for device, need in needs]
    host = _arithmetic_of_host(ledger, option)
    per_device += [host] if host is not None else []
    short = [row for row in per_device if row["short_bytes"]]
    taken = {device for device, _ in needs}
    others = dict.fromkeys(device for each in model.spec.options for device in each.devices if device not in taken)
    suggestions, changes = _suggestions(state, option, needs, fit)
    retry_seconds = state.policy.fit_wait_seconds if changes else None
    when = "never fits" if fit is Fit.NEVER else "does not fit now, and nothing that we run could make room"
    barred = [f"{device} is leased to {state.leases[device].owner}" for device, _ in needs if device in state.leases]
    barred += [f"{device} does not answer ({state.lost[device].why})" for device, _ in needs if device in state.lost]
    barred += _not_back(state, needs)
    sums = "; ".join(
        f"{'host memory' if row is host else row['device']}: needs {_size(row['required_bytes'])},"
        f" {_size(row['available_bytes'])} can be had"
        for row in short or per_device
    )
    return Rejection(
        RejectionCode.INSUFFICIENT_VRAM,
        f"{model.spec.name} {when} ({sums})" + (f"; {', '.join(barred)}" if barred else ""),
        retry_seconds,
        {
            "model": model.name,
            "required_bytes": sum(_int(row["required_bytes"]) for row in per_device),
            "available_bytes": sum(max(0, _int(row["available_bytes"])) for row in per_device),
            "per_device": [*per_device, *(_arithmetic(state, device, 0) for device in others)],
            "estimate": _estimate(option),
            "holders": _holders(state, needs),
            "busy_models": busy_models(state),
            "suggestions": suggestions,
            "notes": [_which(model, option), *_taught(ledger, option)],
            "retry_after_s": None if retry_seconds is None else ceil(retry_seconds),
        },
    )


def _not_back(state: State, needs: Needs) -> Iterator[str]:
    """L5: the memory that a process should have given back, in words: nothing else tells who has it."""
    for device, _ in needs:
        book = state.ledger.books.get(device)
        for instance_id, item in book.reservations.items() if book is not None else ():
            if item.lost:
                instance = state.instances[instance_id]
                whose = f"a process of {instance.model.name} that {'is gone' if instance.exited else 'does not end'}"
                yield f"{_size(item.bytes)} of {device} are not back from {whose}"


def _nearest(state: State, model: ModelState) -> LaunchOption:
    """The launch that lacks least, of those alike the one that takes least."""
    room = room_of(state)

    def lacks(option: LaunchOption) -> tuple[int, int]:
        needs = state.ledger.needs(option)
        short = sum(max(0, need - room.get(device, 0)) for device, need in needs)
        return short + state.ledger.host_short_bytes(option), sum(need for _, need in needs)

    return min(model.spec.options, key=lacks)


def _which(model: ModelState, option: LaunchOption) -> str:
    launches = len(model.spec.options)
    which = f"the nearest of {launches} launches" if launches > 1 else "the only launch"
    return f"{which}: {option.ctx_size} tokens in all, {option.parallel} slot{'s' if option.parallel > 1 else ''}"


def _taught(ledger: Ledger, option: LaunchOption) -> Iterator[str]:
    """L6a: why more is asked for than it takes."""
    short = ledger.shortages.get(option.key)
    if short is not None and ledger.needs(option) != ledger.taken(option):
        free = _size(short.free_bytes)
        yield f"it ran out of memory with {free} free on {short.device}, and is tried again when a tenth more is"


def _int(value: object) -> int:
    return value if isinstance(value, int) else 0


def _size(value: object) -> str:
    return f"{_int(value) / 2**30:.2f} GiB"


def _arithmetic(state: State, device: DeviceName, need: int) -> dict[str, object]:
    """One device's sum: what is needed, and what could be had if all that may go had gone."""
    book = state.ledger.books.get(device)
    if book is None:
        return {"device": device, "required_bytes": need, "available_bytes": 0, "short_bytes": need, "missing": True}
    available = _yieldable_bytes(state, device)
    lease = state.leases.get(device)
    return {
        "device": device,
        "required_bytes": need,
        "available_bytes": max(0, available),
        "short_bytes": max(0, need - available),
        "total_bytes": book.spec.total_bytes,
        "headroom_bytes": book.spec.headroom_bytes,
        "external_bytes": book.external_bytes,
        "pinned_bytes": _pinned_bytes(state, device),
        "lost_bytes": book.lost_bytes,
        "reserved_bytes": sum(item.bytes for item in book.reservations.values()),
        "free_bytes": max(0, book.free_bytes),
        "leased_to": lease.owner if lease is not None else None,
    }


def _arithmetic_of_host(ledger: Ledger, option: LaunchOption) -> dict[str, object] | None:
    """Host memory beside the devices, where a launch lacks it: all of it counts as free."""
    host, short_bytes = ledger.host, ledger.host_short_bytes(option)
    if host is None or not short_bytes:
        return None
    return {
        "device": host.name,
        "required_bytes": option.host_need_bytes,
        "available_bytes": host.total_bytes - host.headroom_bytes,
        "short_bytes": short_bytes,
        "total_bytes": host.total_bytes,
        "headroom_bytes": host.headroom_bytes,
        "mapped_bytes": option.host_mapped_bytes,
    }


def _estimate(option: LaunchOption) -> dict[str, int]:
    parts: list[DeviceFootprint] = list(option.footprint)
    return {name: sum(_int(getattr(part, name)) for part in parts) for name in COMPONENTS}


def _holders(state: State, needs: Needs) -> list[dict[str, object]]:
    """Who holds memory on the devices in question."""
    holders: list[dict[str, object]] = []
    for device, _ in needs:
        book = state.ledger.books.get(device)
        if book is None:
            continue
        for instance_id, item in book.reservations.items():
            instance = state.instances[instance_id]
            holders.append({
                "model": instance.model.spec.name, "device": device, "bytes": item.bytes,
                "state": "lost" if item.lost else instance.state.value, "tier": instance.tier(state.now).value,
                "busy": instance.busy(),
            })  # fmt: skip
        if device in state.leases:
            lease = state.leases[device]
            holders.append({
                "model": None, "device": device, "bytes": book.usable_bytes, "state": "leased", "owner": lease.owner,
            })  # fmt: skip
        elif book.external_bytes:
            outside: dict[str, object] = {
                "model": None,
                "device": device,
                "bytes": book.external_bytes,
                "state": "external",
            }
            if book.foreign:
                outside["programs"] = [{"pid": one.pid, "name": one.name, "bytes": one.bytes} for one in book.foreign]
            holders.append(outside)
    return holders


def _suggestions(state: State, option: LaunchOption, needs: Needs, fit: Fit) -> tuple[list[str], bool]:
    """What would make it fit, each by itself, and whether trying again could without anybody's doing. With several
    devices short one step alone may not do, so each is checked against them all."""
    books = state.ledger.books
    if any(device not in books for device, _ in needs):
        return ["Take out of the configuration the device that is not there, or bring it back"], False
    if fit is Fit.NEVER:
        left = [books[device].spec.total_bytes - need for device, need in needs]
        left += [state.ledger.host.total_bytes - option.host_need_bytes] if state.ledger.host is not None else []
        return ([f"Lower devices.headroom to at most {_size(min(left))}"] if min(left) >= 0 else []), False
    found: list[str] = []
    if _enough(state, needs, outside=True):
        most = [(device, max(0, need - _yieldable_bytes(state, device))) for device, need in needs]
        told = ", ".join(f"{_size(short)} on {device}" for device, short in most if short)
        who = _named(books[device] for device, short in most if short)
        found.append(f"Close programs outside that hold at least {told}{who}")
    if _enough(state, needs, pins=True):
        short = [device for device, need in needs if need > _yieldable_bytes(state, device)]
        found.append(f"Unpin {', '.join(_pinned_on(state, short))}")
    leased = [state.leases[device] for device, _ in needs if device in state.leases]
    if leased and _enough(state, needs, leases=True):
        told = " and ".join(f"{lease.device} (leased to {lease.owner})" for lease in leased)
        found.append(f"Release {told}")
    changes = bool(leased) or any(
        books[device].external_bytes or books[device].lost_bytes or device in state.lost for device, _ in needs
    )
    return found, changes


def _named(books: Iterable[DeviceBook]) -> str:
    """The programs outside that are known by name, in brackets, each once."""
    names = dict.fromkeys(f"{one.name} (pid {one.pid})" for book in books for one in book.foreign)
    return f": {', '.join(names)}" if names else ""


def _pinned_on(state: State, devices: Collection[DeviceName]) -> list[str]:
    """The pinned models that hold memory there."""
    holding = (state.instances[each] for device in devices for each in state.ledger.books[device].reservations)
    return sorted({str(instance.model.name) for instance in holding if instance.model.pinned})


def _enough(state: State, needs: Needs, *, outside: bool = False, pins: bool = False, leases: bool = False) -> bool:
    """Whether it fits once what others hold, what is pinned, or whose device it is for now, is gone."""
    for device, need in needs:  # noqa: SIM110 - a generator costs more than the question
        if need > _without(state, device, outside=outside, pins=pins, leases=leases):
            return False
    return True


def _without(state: State, device: DeviceName, *, outside: bool, pins: bool, leases: bool) -> int:
    if device in state.leases and not leases:
        return 0
    book: DeviceBook = state.ledger.books[device]
    gained = book.external_bytes if outside else 0
    return _yieldable_bytes(state, device, leased=leases) + gained + (_pinned_bytes(state, device) if pins else 0)
