"""What the book notes of a job, a grant, a process, a lease and a person's wish.

Owns the records and the questions that one of them answers alone. Written without a look at the scheduler's own.
"""

from dataclasses import dataclass, field

from gridsched.core.commands import StartInstance
from gridsched.core.events import LeaseAsked, LeaseReleased, LoadAsked, PinAsked, RebalanceAsked, UnloadAsked
from gridsched.core.ids import DeviceName, GrantId, InstanceId, JobId, ModelName
from gridsched.core.job import Job, JobClass

LONG_AGO = float("-inf")
Wish = LoadAsked | UnloadAsked | PinAsked | LeaseAsked | LeaseReleased | RebalanceAsked


@dataclass(slots=True, eq=False)
class JobNote:
    """A job from its arrival to its end. `progress_at`: the later of its arrival and the end of its last step that was
    done; one whose engine died was no progress, the job is run again at its old place (P5). `stray`: its family went
    while it lived, so it waits on by itself for whatever variant it stood at. `ahead` is how many steps of its key's
    other jobs, chats or low, lived when it came (S2).
    """

    job: Job
    arrived_at: float
    progress_at: float
    low: bool
    job_class: JobClass
    model: ModelName
    steps_done: int = 0
    deaths: int = 0
    aborts: int = 0
    grant: "GrantNote | None" = None
    first_granted_at: float | None = None
    ended: str = ""
    stray: bool = False
    ahead: int = 0


@dataclass(slots=True, eq=False)
class GrantNote:
    """A grant until its slot is free again. `over`: its job has ended or gone on, only the slot is still taken.
    `stood` is how long it stood paused in all, in seconds (S10); `answered`, that a byte of an answer was sent."""

    id: GrantId
    job: JobNote
    instance: "InstanceNote"
    step: int
    at: float
    over: bool = False
    over_at: float = LONG_AGO
    stalled: bool = False
    answered: bool = False
    abort_asked: bool = False
    stood: float = 0.0


@dataclass(slots=True, eq=False)
class InstanceNote:
    """A process from its start until its memory is back. `for_class`: the highest class that may have waited for it
    then, those of a family included who may have waited elsewhere; `surely_for`: the highest that waited for it and
    nothing else, and could begin its load, batch where none did.
    `ttl` is what its last jobs asked for it to be kept (R6).
    `need` is what was to be reserved for it, `held` what it was last read to hold on
    each device, `peak` the most that was ever read, `unread` the devices whose last reading does not say;
    `host_held` is what it holds of host memory, `kinds` whether it was ever read by difference, or by a driver (D2).
    `chats` are grants of living chats on it, `over` grants whose job has ended before them; `paused_at` since when it
    stands still, `stood` for how long it has in all (S10). `anew`: it came for one that had grown (L6b), or was
    launched otherwise. `launched_with` is its model's at its start."""

    id: InstanceId
    start: StartInstance
    started_at: float
    for_class: JobClass | None
    surely_for: JobClass
    need: dict[DeviceName, int]
    model: ModelName
    devices: tuple[DeviceName, ...]
    parallel: int
    state: str = "starting"  # starting, ready, stopping, exited
    ready_at: float = LONG_AGO
    stopped_at: float = LONG_AGO
    served: bool = False
    suspect: bool = False
    forced: bool = False
    used_at: float = LONG_AGO
    ttl: float | None = None
    chatted_at: float = LONG_AGO
    probed_at: float = LONG_AGO
    paused_at: float | None = None
    stood: float = 0.0
    chats: int = 0
    over: int = 0
    slots: dict[GrantId, GrantNote] = field(default_factory=dict)
    held: dict[DeviceName, int] = field(default_factory=dict)
    peak: dict[DeviceName, int] = field(default_factory=dict)
    unread: set[DeviceName] = field(default_factory=set)
    host_held: int = 0
    kinds: set[bool] = field(default_factory=set)
    anew: bool = False
    launched_with: str = ""

    @property
    def began_low(self) -> bool:
        """Whether its load was surely for low work: no chat, and no person, may have waited for it then."""
        return self.for_class is None or self.for_class.is_low

    @property
    def free_slots(self) -> int:
        """Slots that nobody holds."""
        return self.parallel - len(self.slots)

    def stood_by(self, now: float) -> float:
        """How long it has stood in all."""
        return self.stood if self.paused_at is None else self.stood + now - self.paused_at

    def needs(self, device: DeviceName) -> int:
        """What was reserved for it on a device."""
        return self.need.get(device, 0)


@dataclass(slots=True, eq=False)
class Line:
    """Those who wait for one name, a model's or a family's, and how many of them are chats."""

    jobs: dict[JobId, JobNote] = field(default_factory=dict)
    chats: int = 0


@dataclass(slots=True, eq=False)
class LeaseNote:
    """Somebody's device (R8). `held_at` is None until that was answered; `displaced` are those that went for it."""

    asked: LeaseAsked
    asked_at: float
    held_at: float | None = None
    displaced: set[ModelName] = field(default_factory=set)


@dataclass(slots=True, eq=False)
class WishNote:
    """A person's wish that is not answered yet. `put_down`: by it a pinned model is to stay down. `before`: what was
    said of a pin until then, whether it was to stay down and whether its model had forgotten that, which holds on where
    this one is refused."""

    wish: Wish
    asked_at: float
    put_down: bool = False
    before: tuple[bool | None, bool, bool] = (None, False, False)
