"""Everything the scheduler knows, in one place, and the commands of the step under way.

Owns the collections and the notes of what has changed in this step (`touched`, `replan_due`). Holds no rule: the
modules that do take the state as their first argument. Nothing outside `Scheduler.step` may change it.
"""

from collections.abc import Iterator, Mapping
from itertools import count
from math import inf
from typing import TYPE_CHECKING, cast

from gridsched.core.alarms import Alarms
from gridsched.core.commands import Command, Log, LogEvent
from gridsched.core.ids import DeviceName, GrantId, InstanceId, JobId, ModelName
from gridsched.core.keys import KeyTurns
from gridsched.core.ledger import Ledger
from gridsched.core.model import FamilySpec, LaunchOption
from gridsched.core.modes import DeviceMode
from gridsched.core.placement import Obstacle, Plan
from gridsched.core.policy import Policy
from gridsched.core.queues import CLASSES, ClassCounts, Deadlines, JobRecord, Rank
from gridsched.core.residency import GrantRecord, Instance, Lease, ModelState
from gridsched.core.standing import Kept
from gridsched.core.starts import Starts
from gridsched.core.story import Story
from gridsched.core.thrash import Loads
from gridsched.core.transitions import ServerState

if TYPE_CHECKING:  # the rules' modules take the state
    from gridsched.core.families import Group, GroupKey
    from gridsched.core.losses import Loss
    from gridsched.core.pressure import Picture

NO_FIGURES: Mapping[str, object] = {}
"""Shared by all lines without figures; nobody writes to it."""


class State:
    """The scheduler's whole state. `draining` is said once more beside `server`, because every arrival asks.

    `waiting_models` are the models that some job waits for, `errands` those with an errand, `pins` the pinned ones in
    the order of the configuration (R7), `leases` the devices that are not ours to use (R8), `lost` those that do not
    answer (D6); `families` is what a job
    may name beside a model, and `groups` are the waiting jobs that named one (R10). `touched` are the models whose
    slots or queue changed in this step, `entered` the jobs that came to wait in it, `stirred` the devices whose chats
    were counted anew, `turned` those whose mode or turn changed, which all instances there look ahead by. `wakes` and
    `reliefs`, by instance, and `tails`, by device, are when time alone could change something (`ahead`); `spanning` are
    the instances on several devices. `unplaced`, `watched` and `plan_wake_at` come from the last planning: whether a
    job waits for a load, whose changes could alter its plan, and when time alone could; `low_plans_matter`, that one
    of them is low and no low load is under way, so that a change of mode could alter it. `pressed` are the devices
    under pressure, `pictures` what each held when it last was not (R6a). `loads` are those of late (R4a), `starts`
    those of the last minute (P6a). `moving` are the models with a successor, `movable` says that one may be moved some
    day, `move_waits` that one only waits for a device to say that its memory is free (R9).
    `kept` is what persons asked for that outlives the server (`keeping`).
    """

    __slots__ = (
        "counts", "deadlines", "draining", "entered", "errands", "families", "grant_ids", "grants", "groups",
        "instances", "jobs", "kept", "keys", "last_instance", "last_number", "leases", "ledger", "load_seconds_by_key",
        "loads", "lost", "low_plans_matter", "models", "modes", "movable", "move_waits", "moving", "now", "out",
        "pictures", "pins", "plan_wake_at", "plans", "policy", "pressed", "reliefs", "replan_due", "server", "spanning",
        "starts", "stirred", "story", "tails", "touched", "turned", "unplaced", "waiting_models", "wake_at", "wakes",
        "watched",
    )  # fmt: skip

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.now = -inf
        self.server = ServerState.SERVING
        self.draining = False
        self.jobs: dict[JobId, JobRecord] = {}
        self.grants: dict[GrantId, GrantRecord] = {}
        self.models: dict[ModelName, ModelState] = {}
        self.instances: dict[InstanceId, Instance] = {}
        self.modes: dict[DeviceName, DeviceMode] = {}
        self.ledger = Ledger()
        self.keys = KeyTurns()
        self.deadlines = Deadlines()
        self.counts = tuple(ClassCounts() for _ in CLASSES)
        self.load_seconds_by_key: dict[str, float] = {}
        self.loads = Loads()
        self.starts = Starts()
        self.kept = Kept()
        self.moving: dict[ModelName, ModelState] = {}
        self.movable = False
        self.move_waits = False
        self.story = Story()
        self.waiting_models: dict[ModelName, ModelState] = {}
        self.errands: dict[ModelName, ModelState] = {}
        self.pins: dict[ModelName, ModelState] = {}
        self.leases: dict[DeviceName, Lease] = {}
        self.lost: dict[DeviceName, Loss] = {}
        self.families: dict[ModelName, FamilySpec] = {}
        self.groups: dict[GroupKey, Group] = {}
        self.touched: dict[ModelName, ModelState] = {}
        self.entered: list[JobRecord] = []
        self.replan_due = False
        self.turned: dict[DeviceName, DeviceMode] = {}
        self.stirred: dict[DeviceName, DeviceMode] = {}
        self.tails: Alarms[DeviceName] = Alarms()
        self.wakes: Alarms[InstanceId] = Alarms()
        self.reliefs: Alarms[InstanceId] = Alarms()
        self.spanning: set[InstanceId] = set()
        self.plans: list[Plan] = []
        self.unplaced = False
        self.low_plans_matter = False
        self.watched: dict[InstanceId, Rank] = {}
        self.plan_wake_at = inf
        self.wake_at = inf
        self.pressed: set[DeviceName] = set()
        self.pictures: dict[DeviceName, Picture] = {}
        self.out: list[Command] = []
        self.grant_ids = cast("Iterator[GrantId]", count(1))
        self.last_instance = 0
        self.last_number = 0

    def say(self, log: Log) -> None:
        """Put a line into the decision log."""
        self.out.append(log)

    def say_of_job(
        self,
        event: LogEvent,
        record: JobRecord,
        rule: str | None,
        figures: Mapping[str, object] = NO_FIGURES,
        device: DeviceName | None = None,
    ) -> None:
        """A line about a job."""
        job = record.job
        log = Log(event, job.id, job.job_class, job.kind, record.model, device, record.step, job.steps, rule, figures)
        self.out.append(log)

    def say_of_instance(self, event: LogEvent, instance: Instance, rule: str | None, **figures: object) -> None:
        """A line about an instance; it names the first device and carries the instance's number."""
        figures["instance"] = instance.id
        self.say(Log(event, model=instance.model.name, device=instance.device, rule=rule, figures=figures))

    def say_of_device(self, event: LogEvent, device: DeviceName, rule: str, **figures: object) -> None:
        """A line about a device."""
        self.say(Log(event, device=device, rule=rule, figures=figures))

    def say_of_configuration(self, what: str, figure: str) -> None:
        """A line about a change of configuration."""
        self.say(Log(LogEvent.CONFIG, figures={what: figure}))

    def wanted_models(self) -> Mapping[ModelName, ModelState]:
        """The models that a job waits for or an errand is for."""
        return self.waiting_models | self.errands if self.errands else self.waiting_models

    def touch(self, model: ModelState) -> None:
        """Have a model's queue looked at again in this step."""
        self.touched[model.name] = model

    def instances_on(self, device: DeviceName) -> list[Instance]:
        """The instances that have memory on a device, or had it and it is not back."""
        book = self.ledger.books.get(device)
        return [self.instances[instance_id] for instance_id in book.reservations] if book is not None else []

    def remember(self, instance: Instance) -> None:
        """A process begins to be."""
        self.instances[instance.id] = instance
        if len(instance.modes) > 1:
            self.spanning.add(instance.id)

    def forget(self, instance: Instance) -> None:
        """A process is gone, its memory back and its steps over."""
        del self.instances[instance.id]
        self.spanning.discard(instance.id)
        self.wakes.set(instance.id, inf, self.now)
        self.reliefs.set(instance.id, inf, self.now)

    def mode_of(self, device: DeviceName) -> DeviceMode:
        """The mode of a device, from its first use on."""
        mode = self.modes.get(device)
        if mode is None:
            mode = self.modes[device] = DeviceMode(device)
        return mode

    def start_bar(self, *, chat: bool, starved: bool = False) -> Obstacle | None:
        """P6a: why no process may be started yet, as `Starts.bar` says it."""
        return self.starts.bar(self.now, self.policy.starts_per_minute, chat=chat, starved=starved)

    def load_seconds(self, model: ModelState, option: LaunchOption) -> float:
        """How long a load is expected to take: as measured in this run, else as the model says."""
        return self.load_seconds_by_key.get(option.key, model.spec.load_seconds)
