"""What is known, and what can be asked of it.

Owns the state that the book keeps and every question that the checkers ask. Everything is indexed by what it is asked
for, because a question at every step must not walk all jobs. `version` changes with whatever memory and processes do,
so that a judgement that rests on them alone is made once. It changes nothing.
"""

from collections import Counter
from collections.abc import Iterator
from itertools import chain

from gridsched.core.events import DeviceRead, LoadAsked, UnloadAsked
from gridsched.core.ids import DeviceName, GrantId, InstanceId, JobId, ModelName, RequestId
from gridsched.core.job import JobClass
from gridsched.core.model import DeviceSpec, FamilySpec, LaunchOption, ModelSpec, Variant
from gridsched.core.policy import Policy
from sim.checkers.notes import LONG_AGO, GrantNote, InstanceNote, JobNote, LeaseNote, Line, WishNote

GROWN = 1.05  # L6b: what has grown by more than this may be begun anew in a quiet moment


class Facts:
    """The state of the world as the scheduler was told it, and of the scheduler as it said. Times in seconds."""

    def __init__(self) -> None:
        self.now = 0.0
        self.step = 0
        self.version = 0
        self.policy = Policy()
        self.devices: dict[DeviceName, DeviceSpec] = {}
        self.models: dict[ModelName, ModelSpec] = {}
        self.families: dict[ModelName, FamilySpec] = {}
        self.gone_families: set[ModelName] = set()
        self.jobs: dict[JobId, JobNote] = {}
        self.closed: dict[JobId, str] = {}
        self.lines: dict[ModelName, Line] = {}
        self.chats = 0
        self.unserved: Counter[JobClass] = Counter()
        self.unserved_of_key: Counter[tuple[JobClass, str]] = Counter()
        self.steps_of_key: Counter[tuple[bool, str]] = Counter()
        self.grants: dict[GrantId, GrantNote] = {}
        self.instances: dict[InstanceId, InstanceNote] = {}
        self.of_model: dict[ModelName, list[InstanceNote]] = {}
        self.paused: dict[InstanceId, InstanceNote] = {}
        self.readings: dict[DeviceName, DeviceRead] = {}
        self.read_at: dict[DeviceName, float] = {}
        self.stop_at: dict[DeviceName, float] = {}
        self.tail_from: dict[DeviceName, tuple[float, float]] = {}
        self.failed_at: dict[ModelName, float] = {}
        self.measured: dict[str, tuple[int, ...]] = {}
        self.wishes: dict[RequestId, WishNote] = {}
        self.answered: set[RequestId] = set()
        self.leases: dict[DeviceName, LeaseNote] = {}
        self.displaced: dict[ModelName, float] = {}
        self.ttls_said: dict[ModelName, float] = {}
        self.rebalance_asked_at = LONG_AGO
        self.lost_devices: set[DeviceName] = set()
        self.pin_said: dict[ModelName, bool] = {}
        self.put_down: set[ModelName] = set()
        self.forgotten: set[ModelName] = set()
        self.regrown: set[ModelName] = set()
        self.starved_models: set[ModelName] = set()
        self.shrunk_at = LONG_AGO
        self.timer_at: float | None = None
        self.draining = False

    # --- questions about jobs -----------------------------------------------------------------------------------------

    def waiting(self) -> Iterator[JobNote]:
        """Jobs that want a grant."""
        return chain.from_iterable(line.jobs.values() for line in self.lines.values())

    def wanting(self, model: ModelName) -> Iterator[JobNote]:
        """Jobs that want a grant of a model, those among them that named a family."""
        line = self.lines.get(model)
        if line is not None:
            yield from line.jobs.values()
        for family in self.families.values():
            if family.name in self.lines and any(variant.model == model for variant in family.variants):
                for note in self.lines[family.name].jobs.values():
                    if any(variant.model == model for variant in self.variants_for(note)):
                        yield note

    def variants_for(self, note: JobNote) -> tuple[Variant, ...]:
        """What may serve a job that names a family (R10); nothing for others."""
        family = self.families.get(note.model)
        if family is None:
            return ()
        job = note.job
        lowest = len(family.variants) if job.quality is None else job.quality
        return tuple(one for one in family.variants if one.quality <= lowest and job.media <= one.media)

    def models_for(self, note: JobNote) -> tuple[ModelName, ...]:
        """The models that may serve a job."""
        if note.model in self.families:
            return tuple(one.model for one in self.variants_for(note))
        return (note.model,)

    def starved_for(self, note: JobNote) -> float:
        """Seconds without progress."""
        return self.now - note.progress_at

    def highest_class(self, note: JobNote) -> JobClass:
        """The class a job may compete as: a starved batch job as background (S5, S5b)."""
        limits = (self.policy.background_max_starvation_seconds, self.policy.batch_max_starvation_seconds)
        starved = any(0 < limit <= self.starved_for(note) + 1e-6 for limit in limits)
        return min(note.job_class, JobClass.BACKGROUND) if starved else note.job_class

    def may_be_drained(self, note: JobNote) -> bool:
        """Whether the model that a job waits for may have to go for another: for one that an older job of the class,
        or a job of a higher class, waits for, or that somebody wishes. A job of several steps is as old as its last
        progress, at most. With keys, whose turn it is cannot be seen from outside."""
        if self.wishes or self.leases or (note.low and self._errand_waits()):
            return True
        mine = (note.job_class, note.progress_at, note.job.id)
        return any(
            other.model != note.model
            and (
                (self.highest_class(other), other.arrived_at, other.job.id) < mine
                or (other.job.key != note.job.key and self.highest_class(other) <= note.job_class)
            )
            for other in self.waiting()
        )

    def _errand_waits(self) -> bool:
        """Whether a load may be wanted that no job asked for: a pin that is down, what has grown or has yielded."""
        if self.policy.hot_yield_after_seconds is not None:
            return True
        down = (name for name in self.models if self.open_instance(name) is None)
        return any(self.maybe_pinned(name) or name in self.regrown for name in down)

    # --- questions about processes ------------------------------------------------------------------------------------

    def living(self) -> Iterator[InstanceNote]:
        """Processes that are not known to be gone."""
        return (one for one in self.instances.values() if one.state != "exited")

    def instance_of(self, model: ModelName) -> InstanceNote | None:
        """The living process of a model, if there is one that has not been given up."""
        for one in self.of_model.get(model, ()):
            if one.state != "exited" and not self.lost(one):
                return one
        return None

    def open_instance(self, model: ModelName) -> InstanceNote | None:
        """A ready process of a model that nobody has a reason to spare."""
        for one in self.of_model.get(model, ()):
            if one.state != "ready" or ((one.suspect or one.over) and self.condemned(one)) or self.outdated(one):
                continue
            if not (self.wishes or self.leases) or not self.retires(one):
                return one
        return None

    def retires(self, one: InstanceNote) -> bool:
        """Whether a person wants it gone, or a device of it for herself (R7, R8)."""
        if self.leases and any(device in self.leases for device in one.devices):
            return True
        return bool(self.wishes) and any(self._wants_it_gone(note, one) for note in self.wishes.values())

    def _wants_it_gone(self, note: WishNote, one: InstanceNote) -> bool:
        wish = note.wish
        if isinstance(wish, LoadAsked) and wish.model == one.model:
            return bool(wish.options) and one.start.option.key not in [option.key for option in wish.options]
        return isinstance(wish, UnloadAsked) and wish.model == one.model

    def has_grown(self, one: InstanceNote) -> bool:
        """L6b: whether it holds clearly more than it was estimated to, or more host memory than it may."""
        limit = self.policy.host_memory_limit_bytes
        if limit is not None and one.host_held > limit:
            return True
        estimates = {part.device: part.total_bytes for part in one.start.option.footprint}
        return any(one.peak.get(device, 0) > size * GROWN for device, size in estimates.items())

    def need_of(self, option: LaunchOption) -> dict[DeviceName, int]:
        """Bytes that a launch takes: as measured in this run, as measured before, or as estimated (L2)."""
        if option.key in self.measured:
            return dict(zip(option.devices, self.measured[option.key], strict=True))
        return dict(option.need_bytes)

    def lost(self, one: InstanceNote) -> bool:
        """Whether a process that was told to stop is overdue and given up (L5)."""
        if one.state not in ("stopping", "exited"):
            return False
        return self.now >= one.stopped_at + self.policy.stop_grace_seconds + self.policy.release_timeout_seconds - 1e-6

    def condemned(self, one: InstanceNote) -> bool:
        """Whether a process is known to be dead or stalled: by a step that said so, or by one whose client has left
        and which the engine does not let go of (S8, S9)."""
        if one.suspect or not one.over:
            return one.suspect
        overdue = self.now - self.policy.settle_limit_seconds + 1e-6
        return any(grant.over and grant.over_at <= overdue for grant in one.slots.values())

    def outdated(self, one: InstanceNote) -> bool:
        """Whether its model is launched in another way by now."""
        spec = self.models.get(one.model)
        return spec is not None and spec.launched_with != one.launched_with

    def pinned(self, model: ModelName) -> bool:
        """R7: as configured, unless a person said otherwise."""
        spec = self.models.get(model)
        said = self.pin_said.get(model)
        if model in self.forgotten or model in self.put_down or spec is None:
            return False
        return spec.pinned if said is None else said

    def maybe_pinned(self, model: ModelName) -> bool:
        """The same, where what a person said may have been forgotten with the model."""
        spec = self.models.get(model)
        forgotten = model in self.forgotten and (self.pin_said.get(model, False) or (spec is not None and spec.pinned))
        return forgotten or self.pinned(model)

    def wished(self, model: ModelName) -> bool:
        """Whether a person waits for a model to be loaded."""
        return any(isinstance(one.wish, LoadAsked) and one.wish.model == model for one in self.wishes.values())

    def surely_free(self, device: DeviceName) -> int:
        """What is free to plan with, where a process takes the most that is known of it."""
        read = self.readings.get(device)
        of_the_gone = sum(held for one, held in read.held if one not in self.instances) if read is not None else 0
        return (
            self._room(device)
            - of_the_gone
            - sum(
                max(one.needs(device), one.peak.get(device, 0))
                for one in self.instances.values()
                if device in one.devices
            )
        )

    def maybe_free(self, device: DeviceName) -> int:
        """The same, where a process takes the least that is known of it."""
        return self._room(device) - sum(
            min(one.needs(device), one.held.get(device, one.needs(device)))
            for one in self.instances.values()
            if device in one.devices
        )

    def _room(self, device: DeviceName) -> int:
        """What a device has for us, by its last reading."""
        spec, read = self.devices.get(device), self.readings.get(device)
        if spec is None or read is None:
            return 0
        external = max(0, read.used_bytes - sum(held for _, held in read.held))
        return read.total_bytes - spec.headroom_bytes - external

    # --- questions about modes ----------------------------------------------------------------------------------------

    def chat_runs(self, device: DeviceName) -> bool:
        """Whether a living chat has a grant on a device."""
        return any(one.chats and device in one.devices for one in self.instances.values())

    def interactive_mode(self, device: DeviceName) -> str:
        """Why the device is surely in interactive mode at this moment, "" where it may not be."""
        tail = "the tail after a chat" if self.now < min(self.tails(device)) - 1e-6 else ""
        if not self.chats:
            return tail
        for one in self.instances.values():
            if device not in one.devices or one.state not in ("starting", "ready"):
                continue
            if one.chats:
                return f"a chat runs on {one.model} there"
            line = self.lines.get(one.model)
            if self.wishes or self.leases:  # it may drain for a person, and then who waits for it holds nothing
                continue
            if line is not None and line.chats and not self.condemned(one) and not self.outdated(one):
                for note in line.jobs.values():
                    if not note.low and not note.job.warm_only:
                        return f"job {note.job.id} waits for {one.model} there"
        return tail

    def maybe_interactive(self, device: DeviceName) -> bool:
        """Whether the device may be in interactive mode: a plan that holds it cannot be seen from outside."""
        return self.chats > 0 or self.now <= self.tail_until(device)

    def tails(self, device: DeviceName) -> tuple[float, float]:
        """When the tail after the last chat on a device ends: by the figure of that moment, and by the present one."""
        began, by_then = self.tail_from.get(device, (LONG_AGO, LONG_AGO))
        return by_then, began + self.policy.interactive_cooldown_seconds

    def tail_until(self, device: DeviceName) -> float:
        """When the tail on a device is surely over."""
        return max(self.tails(device))
