"""Instances, their slots and tiers, and what is known of each model.

Owns the mutable records of instances, grants and models, and the questions that can be answered from one of them alone.
Must never compare two of them: who goes and who comes is decided in `eviction` and `planning`.
"""

from dataclasses import dataclass, field, replace
from math import inf

from gridsched.core.cost import Use
from gridsched.core.events import Failure
from gridsched.core.failures import Deaths
from gridsched.core.ids import DeviceName, GrantId, InstanceId, ModelName, RequestId
from gridsched.core.instance import InstanceState
from gridsched.core.ledger import Needs
from gridsched.core.model import DeviceFootprint, LaunchOption, ModelSpec, Tier
from gridsched.core.modes import DeviceMode, Turn
from gridsched.core.pace import Pace
from gridsched.core.placement import Errand, Obstacle, Plan, Want
from gridsched.core.queues import JobRecord, ModelQueue
from gridsched.core.record import record
from gridsched.core.standing import OwnerProcess
from gridsched.core.transitions import LeaseState

READY = InstanceState.READY
"""Asked for at every event; looking a member up in its enum takes as long as the comparison."""


@dataclass(slots=True, eq=False)
class GrantRecord:
    """One step on one slot. `turn` is the relief turn it belongs to; `lawful`, that S4 allowed it (INV-7); `over` once
    its job is done with it before the engine is (`left_at`), and then the engine has until `settle_by` (S8): `lives_on`
    where that job waits or runs again (S11).

    `stood_seconds` is how long it stood in pauses that are over (S10). `answered`: a byte of an answer has been sent;
    `aborting`: it was asked to go for a chat and has not ended yet (S11).
    """

    id: GrantId
    record: JobRecord
    instance: "Instance"
    granted_at: float
    turn: Turn | None = None
    lawful: bool = True
    over: bool = False
    lives_on: bool = False
    left_at: float = -inf
    settle_by: float = inf
    stood_seconds: float = 0.0
    answered: bool = False
    aborting: bool = False


@dataclass(slots=True, eq=False)
class Instance:
    """One process. Times are seconds of the actor's clock.

    `cause` is the job whose plan began the load, until its first step is granted (R4); `cause_class` is the class the
    load was begun for (R4a, L6).
    `restarting`: it takes no new work and goes with its last step, whatever plans say: its process is dead or stalled,
    or, with `retired` as (rule, reason), somebody wants it gone. `forced`: it was told to stop with steps in flight
    (R2). `unload_requests` are the persons to be answered when its memory is back. `ttl_seconds` is what the last job
    of it asked for, `person_ttl_seconds` what a person did, for the whole of its life (R6).
    `chats` and `low` count the slots taken; `chats` only those whose job lives (S4). `hot_until` is R1's.
    `release_by` is when its memory is given up for lost (L5), `settle_by` when the first slot is whose client has left.
    `drain_until` is when its drain should be over (A6), `movable_from` from when it may be moved, busy or not (R9).
    `paused` says that it stands still, since `paused_at`, and `awake_until` that it does not for a while (S10).
    `allocated` is what its engine says of its buffers (L2). `failure` is why it is gone or has to go, None for one that
    is sound or was told to end. `host_held_bytes` is the last reading of what it holds of host memory, None where it
    could not be read, and `host_first_bytes` the first since it was ready (M11). `launched_with` is its model's when it
    was begun.
    """

    id: InstanceId
    model: "ModelState"
    option: LaunchOption
    modes: tuple[DeviceMode, ...]
    cause: JobRecord | None
    cause_class: int
    started_at: float
    state: InstanceState = InstanceState.STARTING
    grants: dict[GrantId, GrantRecord] = field(default_factory=dict)
    chats: int = 0
    low: int = 0
    served: bool = False
    restarting: bool = False
    retired: tuple[str, str] | None = None
    forced: bool = False
    unload_requests: list[RequestId] = field(default_factory=list)
    ttl_seconds: float | None = None
    person_ttl_seconds: float | None = None
    exited: bool = False
    released: bool = False
    lost: bool = False
    failure: Failure | None = None
    since: float = 0.0
    ready_at: float = inf
    last_used_at: float = 0.0
    hot_until: float = -inf
    release_by: float = inf
    settle_by: float = inf
    drain_until: float = -inf
    movable_from: float = inf
    paused: bool = False
    paused_at: float = -inf
    awake_until: float = -inf
    allocated: tuple[DeviceFootprint, ...] = ()
    host_held_bytes: int | None = None
    host_first_bytes: int | None = None
    devices: tuple[DeviceName, ...] = field(init=False)
    device: DeviceName | None = field(init=False)
    parallel: int = field(init=False)
    launched_with: str = field(init=False)

    def __post_init__(self) -> None:
        self.launched_with = self.model.spec.launched_with
        self.devices = self.option.devices
        self.device = self.devices[0] if self.devices else None
        self.parallel = self.option.parallel

    @property
    def retired_by(self) -> str:
        """The rule by which somebody wants it gone; "" for nobody."""
        return self.retired[0] if self.retired is not None else ""

    def hot(self, now: float) -> bool:
        """R1: used by an interactive job within the window."""
        return self.chats > 0 or now < self.hot_until

    def tier(self, now: float) -> Tier:
        """R1."""
        if self.model.pinned:
            return Tier.PINNED
        return Tier.HOT if self.hot(now) else Tier.COLD

    def free_slots(self) -> int:
        """Slots without a step, 0 for an instance that takes none (S6)."""
        return self.parallel - len(self.grants) if self.state is READY else 0

    def reserved_slots(self, now: float) -> int:
        """S6: slots kept for interactive work; unless configured, one of two or more while people chat with it."""
        spec = self.model.spec
        configured = spec.reserved_slots
        if configured is not None:
            # One that is for chat only keeps them all. Else a launch with fewer slots has one left for low work.
            chat_only = all(configured >= option.parallel for option in spec.options)
            return configured if chat_only else min(configured, self.parallel - 1)
        return 1 if self.parallel > 1 and (self.chats or now < self.hot_until or self.model.queue.chats) else 0

    def low_slots(self, now: float) -> int:
        """Slots that low work may take now (S6): what is free, less what is kept for interactive work."""
        free = self.parallel - len(self.grants)
        if free <= 0 or self.state is not READY:
            return 0
        unkept = self.parallel - self.reserved_slots(now) - self.low
        return min(free, unkept)

    def busy(self) -> bool:
        """Whether a step is in flight, for a client or only for the engine."""
        return bool(self.grants)

    def interactive_mode(self, now: float) -> bool:
        """S4: whether any device of it is in interactive mode; an instance that spans devices is held by them all."""
        for mode in self.modes:  # noqa: SIM110 - a generator costs more than the question, which every event asks
            if mode.active(now):
                return True
        return False


@dataclass(slots=True, eq=False)
class LeaseWish:
    """What somebody asked for at once: all of these devices, or none (R8). `request` is None once it was answered;
    `lost_bytes` is what of ours is not back on those that are held."""

    request: RequestId | None
    leases: "list[Lease]" = field(default_factory=list)
    lost_bytes: int = 0


@record
class AsLoaded:
    """How a person had a model loaded that goes for a lease: what was `configured` then, the `options` that she asked
    for instead (none: as configured), and how long it may be idle (R6)."""

    configured: ModelSpec
    options: tuple[LaunchOption, ...] = ()
    ttl_seconds: float | None = None


@dataclass(slots=True, eq=False)
class Lease:
    """A device for somebody else (R8). `seconds` count from when all devices of its wish are held, until `until`; None
    and inf for until it is released, or `process` has ended. `displaced` are the models that were ready and had to go
    for it, in order, each as it was loaded, where that is known still: they come back at its end."""

    device: DeviceName
    owner: str
    wish: LeaseWish
    seconds: float | None
    state: LeaseState = LeaseState.REQUESTED
    until: float = inf
    process: OwnerProcess | None = None
    displaced: dict[ModelName, AsLoaded | None] = field(default_factory=dict)

    @property
    def held(self) -> bool:
        """Whether nothing of ours is there any more."""
        return self.state is LeaseState.HELD


@record
class Rungs:
    """The launches of a model that an empty machine could carry, each with what it needs, as of a revision of the
    ledger and for these options of its ladder; `admission.usable_rungs` owns it."""

    revision: int
    options: tuple[LaunchOption, ...]
    usable: tuple[tuple[LaunchOption, Needs], ...]


@dataclass(slots=True, eq=False)
class ModelState:
    """One model. `instance` is the one that is starting, ready or draining; there is never a second but a `successor`
    (S6c, P1).

    `leaving` are those that stop, or whose memory is not back. `held` are the devices that its waiting chats hold (S4).
    `want`, `plan` and `obstacle` come from the last planning, exactly one of the last two where a job waits for a load,
    and `next_at`, when time alone could change them.
    `errand` is a load that it needs without a job. `pin` is what a person said of its being pinned, None for as
    configured, and `put_down` that a person unloaded it (R7); `keeps`, that the pin outlives the server.
    `spec` has the ladder that it is loaded by: that of `configured`, or the one that a person asked for, as long as the
    process that it was asked for is there or to come.
    `unfit_since` is since when nothing we can do would make it fit (L7). `retry_at`, `failures`, `crashes`,
    `deaths`, `failure`: back-off (L6d); `pin_retry_at` is when its pin tries again (R7). `pace` is how long its steps
    take, `use` how much it is used and by whom (R5). `hot_until` is when it cools, whichever process people used, and
    `yielded_until` until when it was hot when it last yielded to low work
    (R1). `successor` is a second process that is being loaded elsewhere to take the place of `instance`, and `moved_at`
    when the last such move began (R9). `given_up_at` is when a load of it was last ended for want of anybody who waited
    (S6c). `rungs` remembers which launches could be at all.
    """

    spec: ModelSpec
    queue: ModelQueue = field(default_factory=ModelQueue)
    instance: Instance | None = None
    leaving: list[Instance] = field(default_factory=list)
    held: tuple[DeviceMode, ...] = ()
    want: Want | None = None
    plan: Plan | None = None
    obstacle: Obstacle | None = None
    next_at: float = inf
    errand: Errand | None = None
    pin: bool | None = None
    put_down: bool = False
    keeps: bool = False
    unfit_since: float | None = None
    failures: int = 0
    crashes: int = 0
    deaths: Deaths = field(default_factory=Deaths)
    retry_at: float = -inf
    pin_retry_at: float = -inf
    failure: Failure | None = None
    removed: bool = False
    pace: Pace = field(default_factory=Pace)
    use: Use = field(default_factory=Use)
    hot_until: float = -inf
    yielded_until: float = -inf
    successor: Instance | None = None
    moved_at: float = -inf
    given_up_at: float = -inf
    rungs: Rungs | None = None
    name: ModelName = field(init=False)
    configured: ModelSpec = field(init=False)

    def __post_init__(self) -> None:
        self.name = self.spec.name
        self.configured = self.spec

    def configure(self, spec: ModelSpec) -> None:
        """As the configuration has it now. A ladder that a person asked for stands until that is another one."""
        stands = self.spec is not self.configured and self.configured.launches == spec.launches
        self.spec = replace(spec, options=self.spec.options) if stands else spec
        self.configured = spec

    def load_by(self, options: tuple[LaunchOption, ...]) -> None:
        """A person wants it launched by these."""
        self.spec = replace(self.configured, options=options)

    def as_loaded(self, instance: Instance) -> AsLoaded:
        """How a person had it loaded, for when it comes back."""
        options = self.spec.options if self.spec is not self.configured else ()
        coming = self.errand.ttl_seconds if self.errand is not None else None
        return AsLoaded(self.configured, options, instance.person_ttl_seconds or coming)

    def load_as(self, before: AsLoaded) -> None:
        """As a person had it loaded before; as configured where that finds no room, or where its launches have become
        others since."""
        if before.options and before.configured.launches == self.configured.launches:
            asked = {option.key for option in before.options}
            self.load_by((*before.options, *(each for each in self.configured.options if each.key not in asked)))

    def settle_ladder(self) -> None:
        """A process has gone, or is not wanted any more: what a person asked for ends with it."""
        if self.spec is not self.configured and self.instance is None and self.errand is None:
            self.spec = self.configured

    @property
    def pinned(self) -> bool:
        """R7: as configured, unless a person said otherwise."""
        return (self.spec.pinned if self.pin is None else self.pin) and not self.put_down

    def unplaced(self) -> bool:
        """Whether a waiting job or an errand of it needs a load: a dead or stalled instance is as good as none."""
        wanted = self.queue.count > 0 or self.errand is not None
        return wanted and (self.instance is None or self.instance.restarting)

    def old_process_lives(self) -> bool:
        """P1, P5: whether a process of this name is not verified gone yet. One given up for lost is waited for no
        more, else its model would be lost with it."""
        return any(not item.exited and not item.lost for item in self.leaving) or self.instance is not None
