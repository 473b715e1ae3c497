"""Who must go so that another fits: a silent question, asked far more often than acted on.

Owns the rules of who may evict whom (R1, R4, R4a, S1, S2) and the choice of victims (R3: none without need). Must never
change anything.

Among those that may go: the fewest hot, idle before busy, those that drain already before others that are busy too (so
that a remade plan does not change its mind for nothing), then the one that was used longest ago.
"""

from collections.abc import Iterable
from math import inf

from gridsched.core.ids import DeviceName
from gridsched.core.instance import InstanceState
from gridsched.core.job import JobClass
from gridsched.core.ledger import Ledger
from gridsched.core.placement import Obstacle, Want
from gridsched.core.policy import Policy
from gridsched.core.queues import CLASSES, Rank
from gridsched.core.residency import Instance
from gridsched.core.transitions import JobState

MAX_ABORTS = 2
"""L6c: a job's load is taken away this often, then it is finished."""


def choose(
    candidates: Iterable[Instance],
    want: Want,
    lacking: dict[DeviceName, int],
    ledger: Ledger,
    policy: Policy,
    now: float,
) -> tuple[Instance, ...] | Obstacle:
    """The victims that free what a want lacks, or what stands in the way."""
    allowed: list[Instance] = []
    barred: list[Obstacle] = []
    for instance in candidates:
        if not any(device in lacking for device in ledger.bytes_of(instance.id)):
            continue
        obstacle = obstacle_to(instance, want, policy, now)
        if obstacle is None:
            allowed.append(instance)
        else:
            barred.append(obstacle)
    allowed.sort(key=lambda instance: _preference(instance, now))
    chosen: list[Instance] = []
    for instance in allowed:
        if _covers(chosen, lacking, ledger):
            break
        chosen.append(instance)
    if not _covers(chosen, lacking, ledger):
        return _told_together(barred)
    return tuple(_spared(chosen, lacking, ledger))


def _preference(instance: Instance, now: float) -> tuple[bool, bool, int, float, int]:
    """Smaller goes first. A load under way is dearer than an idle model and cheaper than waiting for steps to end."""
    hot = instance.hot(now)
    if instance.state is InstanceState.STARTING:
        effort = 1
    elif not instance.busy():
        effort = 0
    else:
        effort = 2 if instance.state is InstanceState.DRAINING else 3
    return (hot and bool(instance.model.queue.chats), hot, effort, instance.last_used_at, instance.id)


def _covers(chosen: Iterable[Instance], lacking: dict[DeviceName, int], ledger: Ledger) -> bool:
    freed = dict.fromkeys(lacking, 0)
    for instance in chosen:
        for device, held_bytes in ledger.bytes_of(instance.id).items():
            if device in freed:
                freed[device] += held_bytes
    return all(freed[device] >= short for device, short in lacking.items())


def _spared(chosen: list[Instance], lacking: dict[DeviceName, int], ledger: Ledger) -> list[Instance]:
    """R3: without those that the sum does not need, the most precious spared first."""
    for instance in reversed(list(chosen)):
        rest = [other for other in chosen if other is not instance]
        if _covers(rest, lacking, ledger):
            chosen = rest
    return chosen


def obstacle_to(instance: Instance, want: Want, policy: Policy, now: float) -> Obstacle | None:
    """Why this instance may not go for a want now; None where it may."""
    rank = want.evict_rank or want.rank
    model = instance.model
    name = model.spec.name
    watched = frozenset((instance.id,))
    if model.pinned:
        return Obstacle("R1", f"{name} is pinned")
    if instance.state is InstanceState.STARTING:
        return _obstacle_to_load(instance, rank)
    if rank[0] != JobClass.INTERACTIVE and instance.hot(now):
        until = inf if instance.chats else instance.hot_until
        return Obstacle("R1", f"{name} is hot: people chat with it", until, watched)
    for job_class in CLASSES[: rank[0] + 1]:
        head = model.queue.head(job_class)
        if head is not None and head.rank < rank:
            rule = "S1" if job_class < rank[0] else "S2"
            return Obstacle(rule, f"{name} has work that comes first", watched=watched)
    return _obstacle_of_turns(instance, want.evict_class, policy, now)


def _obstacle_to_load(instance: Instance, rank: Rank) -> Obstacle | None:
    """L6c: a chat may take a load away that no chat waits for; nobody else may."""
    if rank[0] == JobClass.INTERACTIVE and not instance.model.queue.chats:
        return None
    return Obstacle("L6", f"{instance.model.spec.name} is loading", watched=frozenset((instance.id,)))


def _obstacle_of_turns(instance: Instance, job_class: int, policy: Policy, now: float) -> Obstacle | None:
    """R4 and R4a: a load serves first, and low work takes turns."""
    name = instance.model.spec.name
    watched = frozenset((instance.id,))
    until = instance.ready_at + policy.min_residency_seconds
    cause = instance.cause
    if cause is not None and cause.state is JobState.WAITING:
        # A batch load is kept from background work too, for this one step.
        kept_from = min(instance.cause_class, JobClass.BACKGROUND)
        starved_for_ever = policy.background_max_starvation_seconds == 0 and instance.interactive_mode(now)
        lapsed = not cause.chat and starved_for_ever and now >= until
        if job_class >= kept_from and not lapsed:
            return Obstacle("R4", f"{name} serves the job first that it was loaded for", watched=watched)
    has_work = instance.busy() or instance.model.queue.count > 0
    if instance.cause_class != JobClass.INTERACTIVE and job_class >= instance.cause_class and has_work and now < until:
        return Obstacle("R4a", f"{name} has its turn of {policy.min_residency_seconds:g} s", until, watched)
    return None


def load_is_worth_aborting(instance: Instance, load_seconds: float, chat_load_seconds: float, now: float) -> bool:
    """L6c: whether the rest of a low load would take over max(2 s, a quarter of the chat's own), and it may still be
    taken away."""
    if instance.cause is not None and instance.cause.aborted_loads >= MAX_ABORTS:
        return False
    return instance.started_at + load_seconds - now > max(2.0, chat_load_seconds / 4)


def _told_together(barred: list[Obstacle]) -> Obstacle:
    """The obstacle that time ends first speaks for all; anybody's change is watched."""
    if not barred:
        return Obstacle("R3", "the memory that is being freed is promised to older jobs")
    first = min(barred, key=lambda item: item.until)
    watched = frozenset().union(*(item.watched for item in barred))
    return Obstacle(first.rule, first.reason, first.until, watched)
