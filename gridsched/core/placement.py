"""How a model is made ready: wants, drafts of memory, plans.

Owns the shapes of planning and the choice of one rung of a model's ladder. Pure: it asks the draft and the victims'
chooser, and changes nothing but the draft. Must never start, drain or stop anything.

The choice: the first rung, best first, that fits into what is free or being freed, because a smaller context costs a
client less than somebody else's reload; of rungs that differ by their devices alone, one that fits already goes before
one that waits for memory, and of those that fit the one whose devices are least crowded, by people first. Only when
none does, the first rung for which a complete set of victims may go now, of those like it the one whose victims cost
least.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from math import inf
from typing import TYPE_CHECKING, Literal, Protocol

from gridsched.core.ids import DeviceName, InstanceId, ModelName, RequestId
from gridsched.core.instance import InstanceState
from gridsched.core.job import JobClass
from gridsched.core.ledger import Ledger, Needs
from gridsched.core.model import LaunchOption
from gridsched.core.modes import DeviceMode
from gridsched.core.queues import JobRecord, Rank
from gridsched.core.record import record

if TYPE_CHECKING:  # the records refer to plans, and plans to the records
    from gridsched.core.eviction import Look
    from gridsched.core.residency import Instance, ModelState


class Purpose(Enum):
    """What a load is for that no job has asked for."""

    PERSON = "a person asked for it"
    PIN = "it is pinned"
    RETURN = "it yielded to low work and comes back"
    RESTART = "it had grown, or its launch has changed, and is started anew"
    DISPLACED = "it made room for a lease and comes back"


COURTESIES = frozenset((Purpose.RESTART, Purpose.DISPLACED))
"""Loads for which nobody goes: nobody asked for them (L6b, R8)."""


@dataclass(slots=True, eq=False)
class Errand:
    """A model that is to be loaded without a job: on a person's word, because it is pinned (R7), or because it yielded
    (R1) to `guest`. It stands among the wants as a job of `load_class` that came at `since`; `first`: before all
    others of its class. `requests` are the persons to be answered, `aborted_loads` counts as a job's does (L6c), and
    `ttl_seconds` is how long they said that it may be idle (R6), and `may_go` who may go for it: None for anybody."""

    purpose: Purpose
    load_class: JobClass
    since: float
    number: int
    guest: "ModelState | None" = None
    first: bool = False
    requests: list[RequestId] = field(default_factory=list)
    aborted_loads: int = 0
    ttl_seconds: float | None = None
    may_go: frozenset[ModelName] | None = None

    @property
    def rank(self) -> Rank:
        """Where it stands among all jobs."""
        return (self.load_class, -inf if self.first else self.since, self.number)


@record
class Want:
    """A model that some waiting job, or an errand, needs loaded. `job` is the first who may begin a load, None for an
    errand, and `load_class` its class; `rank` is where the load stands
    among the others; `evict_rank` is that of the first for whom others may go, None where nobody's may (S6c),
    and `evict_class` that job's own class: relief and S5b raise its rank, not its turn (R4, R4a).

    `starved_at` is when its first low job may have relief (S5), inf for an interactive want or relief off; `lifted`
    says that it competes as background by S5b; `gentle`, that others may go for it only while nobody uses them (R10).
    `next_at` is when time alone could change where it stands. `bar` is why an errand must not be begun yet, and `guest`
    the model whose turn is over when one that yielded comes back.
    """

    model: "ModelState"
    job: JobRecord | None
    load_class: JobClass
    rank: Rank
    evict_rank: Rank | None
    evict_class: int
    starved_at: float = inf
    lifted: bool = False
    next_at: float = inf
    gentle: bool = False
    guest: "ModelState | None" = None
    bar: "Obstacle | None" = None

    @property
    def chat(self) -> bool:
        """Whether the load is for interactive work."""
        return self.load_class is JobClass.INTERACTIVE

    def starved(self, now: float) -> bool:
        """S5: whether low work is starved of this load."""
        return not self.chat and self.starved_at <= now


Watch = tuple[InstanceId, Rank]
"""An instance that is in the way until none of the work that waits for it stands before a rank, or it is idle."""

ANY_CHAT: Rank = (JobClass.INTERACTIVE, inf, 0)
"""Behind every chat, before all other work."""


@record
class Obstacle:
    """Why there is no plan: the rule, in words, when time alone may end it, and whose queues and slots may (`watched`,
    some perhaps twice). `but_for`: all would be well if nothing were hot (B1), if no chats had their turn (R4b), or if
    others might go for it (`Errand.may_go`)."""

    rule: str
    reason: str
    until: float = inf
    watched: tuple[Watch, ...] = ()
    but_for: Literal["", "hot", "turn", "consent"] = ""


@dataclass(slots=True, eq=False)
class Plan:
    """The complete way to make a model ready. A live one drains, claims and holds devices; `held` says why one is not
    live although it is complete. `fits_now`: the memory is there already, with older claims left alone.
    `modes` are the devices where it loads and where its victims are: those that a chat's plan holds (S4).
    `waits` says what a live plan waits for, as (rule, reason).
    """

    want: Want
    option: LaunchOption
    needs: Needs
    victims: tuple["Instance", ...] = ()
    fits_now: bool = False
    relief: bool = False
    modes: tuple[DeviceMode, ...] = ()
    held: Obstacle | None = None
    waits: tuple[str, str] = ("", "")

    @property
    def live(self) -> bool:
        """Whether it drains, claims and holds."""
        return self.held is None


@dataclass(slots=True)
class Draft:
    """Bytes by device while plans are made, oldest first: what is free `now` and what will be once everything that
    stops has gone, both less the claims of older plans. `taken` are the victims of older plans, and `looks` what
    `eviction` has found of the others, by kind of want and devices, until more are taken."""

    now: dict[DeviceName, int] = field(default_factory=dict)
    later: dict[DeviceName, int] = field(default_factory=dict)
    taken: set[InstanceId] = field(default_factory=set)
    looks: "dict[tuple[object, ...], Look]" = field(default_factory=dict)

    @classmethod
    def of(cls, ledger: Ledger, restarting: Iterable["Instance"]) -> "Draft":
        """Before any claim. Instances that restart are as good as stopping."""
        draft = cls()
        for name, book in ledger.books.items():
            draft.now[name] = book.free_bytes
            draft.later[name] = book.free_bytes + book.going_bytes
        for instance in restarting:
            for name, held_bytes in ledger.bytes_of(instance.id).items():
                draft.later[name] += held_bytes
        return draft

    def less(self, plans: Iterable[Plan], ledger: Ledger) -> "Draft":
        """What is left for somebody from whom these plans keep their bytes, although they claim none yet. Nobody of
        theirs goes yet either: what their victims will free is for them alone."""
        draft = Draft(dict(self.now), dict(self.later), set(self.taken))
        for plan in plans:
            own = Counter[DeviceName]()
            for victim in plan.victims:
                draft.taken.add(victim.id)
                own.update(ledger.bytes_of(victim.id))
            for device, need in plan.needs:
                draft.now[device] -= need
                draft.later[device] -= max(0, need - own[device])
        return draft

    def lacking(self, needs: Needs) -> dict[DeviceName, int]:
        """The bytes that are missing, by device, when all that is being freed is back."""
        later = self.later
        return {device: need - later[device] for device, need in needs if need > 0 and need > later[device]}

    def fits_now(self, needs: Needs) -> bool:
        """Whether the bytes are free already, every older claim set aside whole."""
        for device, need in needs:  # noqa: SIM110 - a generator costs more than the question
            if need > 0 and need > self.now[device]:
                return False
        return True

    def claim(self, plan: Plan, ledger: Ledger) -> None:
        """Set a live plan's bytes aside, and count those of its victims as being freed; of a plan that stands for a
        while some stop already, and were counted from the start."""
        for device, need in plan.needs:
            self.now[device] -= need
            self.later[device] -= need
        if plan.victims:
            self.looks.clear()
        for victim in plan.victims:
            self.taken.add(victim.id)
            if victim.state is InstanceState.STOPPING or victim.restarting:
                continue
            for device, held_bytes in ledger.bytes_of(victim.id).items():
                self.later[device] += held_bytes


@record
class Choice:
    """Those who go, and their price (R5)."""

    victims: tuple["Instance", ...]
    price: int


class Judge(Protocol):
    """What planning knows of one want and the choice of a rung asks."""

    def kept_from(self, option: LaunchOption) -> Obstacle | None:
        """Why a launch may not be used now."""

    def crowd(self, option: LaunchOption) -> tuple[int, ...]:
        """Whom it meets on its devices: the fewer the better."""

    def choose(self, lacking: dict[DeviceName, int]) -> Choice | Obstacle:
        """Who would go for so many bytes."""


def plan_for(want: Want, rungs: Iterable[tuple[LaunchOption, Needs]], draft: Draft, judge: Judge) -> Plan | Obstacle:
    """The plan for a want, or what stands in its way. `rungs` are the options that could ever fit, best first."""
    obstacles: list[Obstacle] = []
    fitting: list[tuple[LaunchOption, Needs]] = []
    patient: list[tuple[LaunchOption, Needs]] = []
    costly: list[tuple[LaunchOption, Needs, dict[DeviceName, int]]] = []
    for option, needs in rungs:
        enough = fitting or patient
        if enough and _quality(option) != _quality(enough[0][0]):
            break
        barred = judge.kept_from(option)
        if barred is not None:
            obstacles.append(barred)
        elif lacking := draft.lacking(needs):
            costly.append((option, needs, lacking))
        elif draft.fits_now(needs):
            fitting.append((option, needs))
        else:
            patient.append((option, needs))
    if fitting:
        alone = len(fitting) == 1
        option, needs = fitting[0] if alone else min(fitting, key=lambda rung: judge.crowd(rung[0]))
        return Plan(want, option, needs, fits_now=True)
    if patient:
        return Plan(want, *patient[0])
    return _plan_with_victims(want, costly, judge, obstacles)


def _plan_with_victims(
    want: Want,
    costly: Iterable[tuple[LaunchOption, Needs, dict[DeviceName, int]]],
    judge: Judge,
    obstacles: list[Obstacle],
) -> Plan | Obstacle:
    """The first rung for which enough may go now, of those like it the one for which the cheapest go; else the nearest
    of the obstacles, those met before included."""
    name = want.model.spec.name
    if want.evict_rank is None:
        return _nearest(obstacles) or Obstacle("S9", f"{name} would need another model to go, which was not asked")
    best: Plan | None = None
    best_price = 0
    for option, needs, lacking in costly:
        if best is not None and _quality(option) != _quality(best.option):
            break
        found = judge.choose(lacking)
        if isinstance(found, Obstacle):
            obstacles.append(found)
        elif best is None or found.price < best_price:
            best, best_price = Plan(want, option, needs, victims=found.victims), found.price
    if best is not None:
        return best
    return _nearest(obstacles) or Obstacle("L7", f"no launch of {name} fits on the devices there are")


def _quality(option: LaunchOption) -> tuple[int, int, tuple[str, str]]:
    """What a client has of a rung; the rest is where it runs."""
    return option.ctx_size, option.parallel, option.cache_types


def _nearest(obstacles: list[Obstacle]) -> Obstacle | None:
    """Of several obstacles the one that time ends first, told with everything that may end any of them; None where
    there are none."""
    if not obstacles:
        return None
    first = before = obstacles[0]
    but_for, watched = first.but_for, first.watched
    for obstacle in obstacles:
        if obstacle.until < first.until:
            first = obstacle
        if obstacle is not before:  # launches on the same devices meet the same
            before = obstacle
            but_for = but_for or obstacle.but_for
            watched += obstacle.watched
    return Obstacle(first.rule, first.reason, first.until, watched, but_for)
