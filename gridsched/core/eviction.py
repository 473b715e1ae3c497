"""Who must go so that another fits: a silent question, asked far more often than acted on.

Owns the rules of who may evict whom (R1, R4, R4a, R4b, S1, S2) and the choice of victims (R5; R3: none without need).
Must never change anything.

Of the sets that free enough, the one with the fewest hot models whose chats wait, then the fewest hot, the fewest
busy, the fewest that drain already (so that a remade plan does not change its mind for nothing), the fewest loads under
way; then the least cost (`cost`), or with `lru` those that were used longest ago. None of these ever outweighs the one
before it (C1): a victim's *price* is a whole number whose higher digits count the dearer kinds, and prices add up.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from math import inf
from operator import add, ge

from gridsched.core import cost, yielding
from gridsched.core.ids import DeviceName, InstanceId
from gridsched.core.instance import InstanceState
from gridsched.core.job import JobClass
from gridsched.core.placement import ANY_CHAT, Choice, Draft, Obstacle, Want, Watch
from gridsched.core.policy import Eviction, Policy
from gridsched.core.queues import CLASSES, Rank
from gridsched.core.reservation import Reservation
from gridsched.core.residency import Instance
from gridsched.core.state import State
from gridsched.core.transitions import JobState

MAX_ABORTS = 2
"""L6c: a job's load is taken away this often, then it is finished."""

LINGER_SECONDS = 2.0
"""R4a: a model without work keeps its turn for so long, because a single client that has its answer asks again in a
moment; else two such clients would have a load for each answer. As long as a chat's tail (S4), and as much a guess."""

NODE_LIMIT = 500
"""R5: how many partial sets the search may look at before it settles for the best that it has. About a millisecond;
the sums of one machine rarely take fifty."""

PRICE_PARTS = 1000
"""Prices are compared in thousandths of a second, as whole numbers."""

PRICE_LIMIT = 10**12
"""The most that one victim can cost: some thirty years. A thousand victims stay below `_DEARER`."""

_STATES = (InstanceState.STARTING, InstanceState.READY, InstanceState.DRAINING)

_WHOEVER = ("L6", "R1")
"""The rules by which a load, or what is hot or pinned, is kept from all low work, wherever that stands."""

_DEARER = 10**16
"""One of a dearer kind outweighs any sum of prices."""

_KIND = 10**4
"""One of a dearer kind outweighs as many of the kind below."""

_SHARE = 2**30
"""The shares of what is lacking are counted in such parts."""


Page = dict[InstanceId, Reservation]
"""What is reserved on a device that lacks something."""

Frees = tuple[int, ...]
"""Bytes that one gives back, for each device that lacks something."""


@dataclass(slots=True, eq=False)
class _Candidate:
    """One that may go: its price, what it frees of each device that lacks something, and how much of all that is
    lacking this is, in parts of `_SHARE` a device."""

    instance: Instance
    kinds: tuple[bool, ...]
    price: int
    frees: Frees
    share: int

    @property
    def value(self) -> int:
        """The price for a whole device's lack, in fine parts: the smaller the better."""
        return (self.price << 40) // self.share


@dataclass(slots=True, eq=False)
class Look:
    """How those that hold memory on some devices stand to `want`: who may go, what they free together, and what is said
    where that is not enough: `but_for` what would free more, else `obstacle`.

    It holds whatever the want lacks there, and for others that stand at `rank` or behind it: for all low work where it
    is kept out `whoever` asks, else for that of the same `kind` back to `upto`, because none of the work that waits for
    those who are there stands between the two.
    """

    want: Want
    patient: bool
    whoever: bool
    kind: int | None
    rank: Rank
    upto: Rank
    allowed: list[tuple[Instance, Frees]]
    freed: Frees
    but_for: list[tuple[Frees, Obstacle]]
    obstacle: Obstacle


def choose(
    state: State, want: Want, lacking: dict[DeviceName, int], draft: Draft, *, patient: bool = False
) -> Choice | Obstacle:
    """The victims that free what a want lacks, or what stands in the way; with `patient`, who they will be once the
    turns of other chats are over (R4b). The draft's victims go for others already."""
    devices = tuple(lacking)
    rank = _rank_of(want)
    look = draft.looks.get(devices)
    if look is None or not _holds_for(look, state, want, rank, patient=patient):
        look = draft.looks[devices] = _look(state, want, rank, devices, draft, patient=patient)
    short = tuple(lacking.values())
    if not _enough(look.freed, short):
        for freed, obstacle in look.but_for:
            if _enough(freed, short):
                return obstacle
        return look.obstacle
    candidates = [_candidate(state, instance, want, frees, short) for instance, frees in look.allowed]
    if state.policy.eviction is Eviction.LRU:
        chosen = _first_enough(sorted(candidates, key=_plain_order), short)
    else:
        chosen = _Search(sorted(candidates, key=_best_value_first), short).best
    chosen = _spared(chosen, short)
    return Choice(tuple(item.instance for item in chosen), sum(item.price for item in chosen))


def _holds_for(look: Look, state: State, want: Want, rank: Rank, *, patient: bool) -> bool:
    """Whether a look for this want would find the same, and have nothing watched for somebody who stands before."""
    if look.whoever and look.rank <= rank:
        return True
    if look.want is want:
        return look.patient is patient
    return look.kind is not None and look.kind == _kind(state, want) and look.rank <= rank <= look.upto


def _kind(state: State, want: Want) -> int | None:
    """Wants of one kind differ only in where they stand. None for those that have nobody like them: for a chat it
    counts when it came (R4b), and so it does for others where what is hot may yield (R1)."""
    if want.chat or want.gentle or want.guest is not None or state.policy.hot_yield_after_seconds is not None:
        return None
    return want.evict_class


def _look(
    state: State, want: Want, rank: Rank, devices: tuple[DeviceName, ...], draft: Draft, *, patient: bool
) -> Look:
    """Ask each that holds memory there, and does not give it back already, whether it may go."""
    kind = _kind(state, want)
    whoever = kind is not None
    upto: Rank = (rank[0], inf, 0)
    pages = [state.ledger.books[device].reservations for device in devices]
    allowed: list[tuple[Instance, Frees]] = []
    barred: list[tuple[Frees, Obstacle]] = []
    for each in pages[0] if len(pages) == 1 else dict.fromkeys(each for page in pages for each in page):
        instance = state.instances[each]
        if instance.restarting or instance.state not in _STATES or each in draft.taken:
            continue
        frees = _frees(pages, each)
        obstacle = obstacle_to(state, instance, want)
        if obstacle is None or (patient and obstacle.but_for == "turn"):
            allowed.append((instance, frees))
        else:
            barred.append((frees, obstacle))
        if kind is not None and (obstacle is None or obstacle.rule not in _WHOEVER):
            whoever = False
            first = _first_work(state, instance, want)
            if first is not None and rank <= first < upto:
                upto = first
    freed = _sum((frees for _, frees in allowed), len(pages))
    return Look(want, patient, whoever, kind, rank, upto, allowed, freed, *_told_together(freed, barred))


# --- prices -----------------------------------------------------------------------------------------------------


def _candidate(state: State, instance: Instance, want: Want, frees: Frees, short: tuple[int, ...]) -> _Candidate:
    share = sum(-(-min(freed, need) * _SHARE // need) for freed, need in zip(frees, short, strict=True))
    price_seconds = cost.terms_of(state, instance, want.load_class).price_seconds
    kinds = _kinds(instance, state.now)
    kind = 0
    for counted in kinds:
        kind = kind * _KIND + counted
    # One part more for each victim: of sets that cost the same the smaller goes.
    price = kind * _DEARER + min(PRICE_LIMIT, round(price_seconds * PRICE_PARTS)) + 1
    return _Candidate(instance, kinds, price, frees, share)


def _kinds(instance: Instance, now: float) -> tuple[bool, ...]:
    """What makes it dear, the dearest first. A load under way is dearer than an idle model and cheaper than waiting
    for steps to end; a drain past its estimate is as dear as one that has not begun (A6)."""
    hot = instance.hot(now)
    busy = instance.busy()
    draining = instance.state is InstanceState.DRAINING and now < instance.drain_until
    return (
        hot and bool(instance.model.queue.chats),
        hot,
        busy and not draining,
        busy and draining,
        instance.state is InstanceState.STARTING,
    )


def _best_value_first(candidate: _Candidate) -> tuple[int, float, int]:
    return (candidate.value, candidate.instance.last_used_at, candidate.instance.id)


def _plain_order(candidate: _Candidate) -> tuple[tuple[bool, ...], float, int]:
    return (candidate.kinds, candidate.instance.last_used_at, candidate.instance.id)


# --- sums -------------------------------------------------------------------------------------------------------


def _frees(pages: list[Page], each: InstanceId) -> Frees:
    """What an instance holds of each device that lacks something."""
    return tuple([page[each].bytes if each in page else 0 for page in pages])


def _sum(freed: Iterable[Frees], devices: int) -> Frees:
    """What all these free together of so many devices."""
    total: Frees = (0,) * devices
    for frees in freed:
        total = tuple(map(add, total, frees))
    return total


def _enough(freed: Frees, short: Frees) -> bool:
    """Whether it covers what is short."""
    return all(map(ge, freed, short))


def _first_enough(ordered: list[_Candidate], short: tuple[int, ...]) -> list[_Candidate]:
    """Greedy: one after the other until it is enough; those that free nothing that is still short are passed over."""
    chosen: list[_Candidate] = []
    rest = short
    for item in ordered:
        if all(need <= 0 for need in rest):
            break
        if any(freed > 0 and need > 0 for freed, need in zip(item.frees, rest, strict=True)):
            chosen.append(item)
            rest = tuple(need - freed for need, freed in zip(rest, item.frees, strict=True))
    return chosen


def _spared(chosen: list[_Candidate], short: tuple[int, ...]) -> list[_Candidate]:
    """R3: without those that the sum does not need, the most precious spared first."""
    for item in sorted(chosen, key=lambda item: (item.price, item.instance.id), reverse=True):
        rest = [other for other in chosen if other is not item]
        if _enough(_sum((other.frees for other in rest), len(short)), short):
            chosen = rest
    return chosen


class _Search:
    """R5: the cheapest set that covers what is short, by branch and bound over candidates in the order of their value.
    The first set that it finds is the greedy one; past the node limit it keeps the best so far."""

    def __init__(self, ordered: list[_Candidate], short: tuple[int, ...]) -> None:
        self._items = ordered
        self._short = short
        self._nodes = 0
        self.best = _spared(_first_enough(ordered, short), short)
        self._best_price = sum(item.price for item in self.best)
        # What the candidates from each one on free together: enough, or there is no use in going on.
        self._left = [(0,) * len(short)]
        for item in reversed(ordered):
            self._left.append(tuple(a + b for a, b in zip(self._left[-1], item.frees, strict=True)))
        self._left.reverse()
        self._look(0, short, 0, [])

    def _look(self, at: int, rest: tuple[int, ...], price: int, chosen: list[_Candidate]) -> None:
        if all(need <= 0 for need in rest):
            if price < self._best_price:
                self._best_price = price
                self.best = list(chosen)
            return
        self._nodes += 1
        if self._nodes > NODE_LIMIT or any(need > left for need, left in zip(rest, self._left[at], strict=True)):
            return
        item = self._items[at]
        if price + self._least_price(rest, item.value) >= self._best_price:
            return
        if any(freed > 0 and need > 0 for freed, need in zip(item.frees, rest, strict=True)):
            chosen.append(item)
            after = tuple(need - freed for need, freed in zip(rest, item.frees, strict=True))
            self._look(at + 1, after, price + item.price, chosen)
            chosen.pop()
        at += 1
        while at < len(self._items) and _is_no_better(self._items[at], item):
            at += 1
        self._look(at, rest, price, chosen)

    def _least_price(self, rest: tuple[int, ...], value: int) -> int:
        """What the rest costs at least, were all that follow as good a bargain as the next one. Whole numbers, rounded
        down: a bound that is too high by a rounding would lose the best set."""
        share = sum(max(0, need) * _SHARE // whole for need, whole in zip(rest, self._short, strict=True))
        return (share * value) >> 40


def _is_no_better(other: _Candidate, item: _Candidate) -> bool:
    """Where one is left out, another that frees no more for no less need not be tried in its place."""
    return other.price >= item.price and all(a <= b for a, b in zip(other.frees, item.frees, strict=True))


# --- who may go -------------------------------------------------------------------------------------------------


def obstacle_to(state: State, instance: Instance, want: Want) -> Obstacle | None:
    """Why this instance may not go for a want now; None where it may."""
    rank = _rank_of(want)
    policy, now = state.policy, state.now
    model = instance.model
    if instance.state is InstanceState.STARTING:
        return _obstacle_to_load(instance, rank)  # C3: a pin's load is low work's until it is ready
    if model.pinned:
        return Obstacle("R1", f"{model.name} is pinned")
    if rank[0] != JobClass.INTERACTIVE and instance.hot(now):
        yields_at = yielding.yields_at(state, instance, want)
        if yields_at > now:
            until = inf if instance.chats else min(instance.hot_until, yields_at)
            return Obstacle("R1", f"{model.name} is hot: people chat with it", until, _watch(instance, rank), "hot")
    if want.gentle and (instance.busy() or model.queue.count):
        return Obstacle("R10", f"{model.name} is in use", watched=_watch(instance, rank))
    before = _obstacle_of_rank(state, instance, want, rank)
    if before is None and rank[0] == JobClass.INTERACTIVE:
        before = _obstacle_of_chats(state, instance, want)
    return before or _obstacle_of_turns(instance, rank, want.evict_class, policy, now)


def _rank_of(want: Want) -> Rank:
    """Where it stands among those who would have others go."""
    return want.evict_rank or want.rank


def _watch(instance: Instance, rank: Rank) -> tuple[Watch, ...]:
    """That its queue and its slots may end an obstacle."""
    return ((instance.id, rank),)


def _first_work(state: State, instance: Instance, want: Want) -> Rank | None:
    """Where the first of its work stands that could keep a want waiting, None where it has none. A guest has had its
    turn in the other's place (R1): of its work only chats count."""
    model = instance.model
    if not model.queue.count and model.errand is None:
        return None
    classes = CLASSES[:1] if want.guest is model else CLASSES[: _rank_of(want)[0] + 1]
    heads = [model.queue.head(job_class) for job_class in classes]
    ranks = [state.keys.load_rank(head) for head in heads if head is not None]
    if model.errand is not None:
        ranks.append(model.errand.rank)
    return min(ranks, default=None)


def _obstacle_of_rank(state: State, instance: Instance, want: Want, rank: Rank) -> Obstacle | None:
    """S1, S2: it has work, or was asked for, before."""
    before = _first_work(state, instance, want)
    if before is None or before >= rank:
        return None
    rule = "S1" if before[0] < rank[0] else "S2"
    return Obstacle(rule, f"{instance.model.name} has work that comes first", watched=_watch(instance, rank))


def _obstacle_to_load(instance: Instance, rank: Rank) -> Obstacle | None:
    """L6c: a chat may take a load away that no chat waits for; nobody else may."""
    errand = instance.model.errand
    person = errand is not None and errand.load_class is JobClass.INTERACTIVE
    if rank[0] == JobClass.INTERACTIVE and not instance.model.queue.chats and not person:
        return None
    return Obstacle("L6", f"{instance.model.spec.name} is loading", watched=_watch(instance, rank))


def _obstacle_of_chats(state: State, instance: Instance, want: Want) -> Obstacle | None:
    """R4b: a model that people use serves the chats that wait for it for a turn, which counts from when the other
    chat came, or from when the model was ready. It ends early with the last of them."""
    model = instance.model
    if not instance.chats and not model.queue.chats:
        return None
    turn_seconds = state.policy.interactive_turn_seconds
    if turn_seconds is None:
        turn_seconds = state.load_seconds(model, instance.option)
    came_at = want.job.place if want.job is not None else want.rank[1]
    until = max(came_at, instance.ready_at) + turn_seconds
    if until <= state.now:
        return None
    reason = f"{model.spec.name} serves its own chats for {turn_seconds:g} s before it is unloaded for others"
    return Obstacle("R4b", reason, until, _watch(instance, ANY_CHAT), "turn")


def _obstacle_of_turns(instance: Instance, rank: Rank, job_class: int, policy: Policy, now: float) -> Obstacle | None:
    """R4 and R4a: a load serves first, and low work takes turns."""
    name = instance.model.spec.name
    until = instance.ready_at + policy.min_residency_seconds
    cause = instance.cause
    if cause is not None and cause.state is JobState.WAITING:
        # A batch load is kept from background work too, for this one step.
        kept_from = min(instance.cause_class, JobClass.BACKGROUND)
        starved_for_ever = policy.background_max_starvation_seconds == 0 and instance.interactive_mode(now)
        lapses_at = until if not cause.chat and starved_for_ever else inf
        if job_class >= kept_from and now < lapses_at:
            return Obstacle(
                "R4", f"{name} serves the job first that it was loaded for", lapses_at, _watch(instance, rank)
            )
    if instance.cause_class == JobClass.INTERACTIVE or job_class < instance.cause_class:
        return None
    if not instance.busy() and not instance.model.queue.count:
        until = min(until, instance.last_used_at + LINGER_SECONDS if instance.served else now)
    if now < until:
        return Obstacle(
            "R4a", f"{name} has its turn of {policy.min_residency_seconds:g} s", until, _watch(instance, rank)
        )
    return None


def load_is_worth_aborting(instance: Instance, load_seconds: float, chat_load_seconds: float, now: float) -> bool:
    """L6c: whether the rest of a low load would take over max(2 s, a quarter of the chat's own), and it may still be
    taken away."""
    holder = instance.cause or instance.model.errand
    if holder is not None and holder.aborted_loads >= MAX_ABORTS:
        return False
    return instance.started_at + load_seconds - now > max(2.0, chat_load_seconds / 4)


def _told_together(freed: Frees, barred: list[tuple[Frees, Obstacle]]) -> tuple[list[tuple[Frees, Obstacle]], Obstacle]:
    """The obstacle that time ends first speaks for all; anybody's change is watched. Where all would be well but for
    one kind of obstacle, that is what is said: with what would be free then."""
    if not barred:
        return [], Obstacle("R3", "the memory that is being freed is promised to older jobs")
    first = barred[0][1]
    watched: tuple[Watch, ...] = ()
    sums: dict[str, tuple[Frees, Obstacle]] = {}
    for frees, item in barred:
        watched += item.watched
        if item.until < first.until:
            first = item
        if item.but_for:
            total, nearest = sums.get(item.but_for, (freed, item))
            sums[item.but_for] = (tuple(map(add, total, frees)), item if item.until < nearest.until else nearest)
    told = [
        (total, Obstacle(item.rule, item.reason, first.until, watched, item.but_for))
        for total, item in (sums[kind] for kind in ("turn", "hot") if kind in sums)
    ]
    return told, Obstacle(first.rule, first.reason, first.until, watched)
