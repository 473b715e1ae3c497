"""Families: one name for several sizes, bound at the grant (R10).

Owns at which variant the waiting jobs of a family stand, and why others do not qualify. Until its grant a job stands in
the queue of one variant, as if it had named it, and is moved, at its own place, when another has become the better
choice. The choice is made for a group of jobs that may do the same, never job by job. Must never grant, load or evict:
what it asks planning is what planning would do, and planning does it.
"""

from collections import OrderedDict
from dataclasses import dataclass, field
from math import inf

from gridsched.core import admission, planning, waiting
from gridsched.core.admission import Fit
from gridsched.core.commands import Log, LogEvent, Rejection
from gridsched.core.ids import JobId, ModelName
from gridsched.core.instance import InstanceState
from gridsched.core.job import Job, JobClass, JobKind, Medium, Quality
from gridsched.core.model import FamilySpec, Variant
from gridsched.core.placement import Obstacle, Want
from gridsched.core.queues import JobRecord
from gridsched.core.residency import Instance, ModelState
from gridsched.core.state import State

GroupKey = tuple[ModelName, JobClass, Quality | None, frozenset[Medium], bool, bool]
"""Family, class, lowest quality, media, `warm_only`, `no_evict`: who agrees in these is aimed at the same variant."""

MOVES_AT_ONCE = 4
"""How often a group may move at one moment. None needs more than two (a load fails, the next variant is taken by an
older job); it only bounds two rules that might contradict each other, a guess."""


@dataclass(slots=True, eq=False)
class Group:
    """Waiting jobs of a family that are aimed together, by arrival, and the variant where they stand.

    It is in `State.groups` while a job of it waits. `next_at`: when time alone could change the choice (seconds).
    """

    key: GroupKey
    family: FamilySpec
    model: ModelState
    waiting: OrderedDict[JobId, JobRecord] = field(default_factory=OrderedDict)
    next_at: float = inf
    moved_at: float = -inf
    moves: int = 0

    def add(self, state: State, record: JobRecord, *, at_old_place: bool) -> None:
        """A job comes to wait."""
        first = next(iter(self.waiting.values()), record)
        self.waiting[record.job.id] = record
        if at_old_place and record.rank < first.rank:
            self.waiting.move_to_end(record.job.id, last=False)
        state.groups[self.key] = self

    def remove(self, state: State, record: JobRecord) -> None:
        """A job waits no longer."""
        del self.waiting[record.job.id]
        if not self.waiting:
            del state.groups[self.key]

    def first(self) -> JobRecord:
        """The one that has waited longest."""
        return next(iter(self.waiting.values()))


# --- coming to wait ---------------------------------------------------------------------------------------------


def stand(state: State, record: JobRecord, family: FamilySpec) -> tuple[ModelState | None, Rejection | None]:
    """The variant at whose queue a job of a family comes to wait, None where the models that would do are not there;
    and a refusal where none would."""
    job = record.job
    refusal = _unsupported(job, family)
    if refusal is not None:
        return None, refusal
    key = (family.name, job.job_class, job.quality, job.media, job.warm_only, job.no_evict)
    group = state.groups.get(key)
    if group is None:
        named = next((state.models[each.model] for each in family.variants if each.model in state.models), None)
        if named is None:
            return None, None
        group = Group(key, family, named)
        chosen = _choose(state, group, record)
        if chosen is None:
            return None, None
        group.model = chosen
    record.group = group
    return group.model, None


def stand_again(state: State, record: JobRecord, model: ModelState) -> ModelState:
    """Where a job waits that is run again: at the best variant now, or at the one it had where nothing better is
    known."""
    record.group = None
    family = state.families.get(record.job.model)
    found = stand(state, record, family)[0] if family is not None else None
    return found or model


def qualifying(family: FamilySpec, quality: Quality | None, media: frozenset[Medium]) -> list[Variant]:
    """The variants that are good enough and take what the job brings, best first."""
    lowest = Quality.COMPACT if quality is None else quality
    fit = [each for each in family.variants if each.quality <= lowest and media <= each.media]
    return sorted(fit, key=lambda each: each.quality)


def _unsupported(job: Job, family: FamilySpec) -> Rejection | None:
    if job.kind is JobKind.EMBEDDINGS:
        return admission.not_supported(job, "embeddings of different models cannot be compared, so name a model")
    if qualifying(family, job.quality, job.media):
        return None
    if not qualifying(family, None, job.media):
        media = " and ".join(sorted(each.value for each in job.media))
        return admission.not_supported(job, f"no variant of it takes {media}")
    quality = job.quality.label if job.quality is not None else ""
    return admission.not_supported(job, f"no variant of quality {quality} or better will do")


# --- while waiting ----------------------------------------------------------------------------------------------


def aim(state: State) -> None:
    """Have every waiting group stand where it should now. Called before plans are made."""
    for group in sorted(state.groups.values(), key=lambda each: each.first().rank):
        if group.moved_at == state.now and group.moves >= MOVES_AT_ONCE:
            continue
        target = _choose(state, group, group.first())
        if target is None:
            for record in list(group.waiting.values()):
                waiting.reject(state, record, admission.model_not_found(record.job.model), "R10")
        elif target.retry_at > state.now:
            for record in list(group.waiting.values()):
                waiting.reject(state, record, admission.model_failed(target, state.now), "L6d")
        elif target is not group.model:
            _move(state, group, target)


def _move(state: State, group: Group, target: ModelState) -> None:
    source = group.model
    waiting.move(state, tuple(group.waiting.values()), source, target)
    group.model = target
    group.moves = group.moves + 1 if group.moved_at == state.now else 1
    group.moved_at = state.now
    state.replan_due = True
    figures = {"family": group.family.name, "jobs": len(group.waiting), "before": source.name}
    state.say(Log(LogEvent.ENQUEUE, job_class=group.key[1], model=target.name, rule="R10", figures=figures))


def next_at(state: State) -> float:
    """When time alone could change a choice; inf where no group waits."""
    return min((group.next_at for group in state.groups.values()), default=inf)


def changed(state: State, families: tuple[FamilySpec, ...]) -> None:
    """New families. Who waits for one that is gone waits on for the variant where it stands; who waits for one in which
    nothing will do any more is told."""
    state.families = {family.name: family for family in families}
    for group in list(state.groups.values()):
        family = state.families.get(group.family.name)
        records = list(group.waiting.values())
        if family is None:
            for record in records:
                waiting.leave_group(state, record, group.model)
            continue
        group.family = family
        refusal = _unsupported(records[0].job, family)
        if refusal is not None:
            for record in records:
                waiting.reject(state, record, refusal, "R10")


# --- the choice -------------------------------------------------------------------------------------------------


def _choose(state: State, group: Group, first: JobRecord) -> ModelState | None:
    """The variant for a group whose longest waiting job is `first`. One in back-off only where all are: the first to be
    tried again. Where none of them is configured any more, the one where it stands, which may be ready for a last time;
    None where that will not do."""
    group.next_at = inf
    named = qualifying(group.family, first.job.quality, first.job.media)
    there = [state.models[each.model] for each in named if each.model in state.models]
    models = []
    for model in there:
        if model.removed:
            continue
        if model.retry_at <= state.now:
            models.append(model)
        else:
            group.next_at = min(group.next_at, model.retry_at)
    if not models:
        failed = [model for model in there if not model.removed]
        here = group.model if group.model in there else None
        return min(failed, key=lambda model: model.retry_at, default=here)
    chosen = _for_chat(state, group, first, models) if first.chat else _for_low(state, group, first, models)
    return chosen or _least_hopeless(state, models)


def _for_chat(state: State, group: Group, first: JobRecord, models: list[ModelState]) -> ModelState | None:
    """The one that people use already, however small; else the best that can be made resident."""
    for model in models:
        instance = _resident(state, model, chat=True)
        if instance is not None and (_used_by_people(state, instance) or _loaded_for(group, instance)):
            return model
    for model in models:
        if _resident(state, model, chat=True) or _reaches(state, group, model, first, evict=True):
            return model
    return None


def _used_by_people(state: State, instance: Instance) -> bool:
    """Hot, or about to be."""
    return instance.hot(state.now) or (
        instance.state is InstanceState.STARTING and instance.cause_class == JobClass.INTERACTIVE
    )


def _loaded_for(group: Group, instance: Instance) -> bool:
    """R4: whether it was loaded for one of the group, which it serves before anything better is thought of."""
    cause = instance.cause
    return cause is not None and cause.job.id in group.waiting


def _for_low(state: State, group: Group, first: JobRecord, models: list[ModelState]) -> ModelState | None:
    """What was loaded for it, else the best that disturbs nobody; once it is starved, what nobody uses may go for it.
    Last the model that people chat with now: there it has the turns of the starved (S5), or its slots when they have
    ended."""
    gentle_at = first.place + state.policy.background_max_starvation_seconds
    if gentle_at > state.now:
        group.next_at = min(group.next_at, gentle_at)
    own = _resident(state, group.model, chat=False) if group.model in models else None
    if own is not None and _loaded_for(group, own) and not _is_the_chats(state, group, own):
        return group.model
    for evict in (False, True) if gentle_at <= state.now else (False,):
        for model in models:
            instance = _resident(state, model, chat=False)
            if instance is None:
                if _reaches(state, group, model, first, evict=evict):
                    return model
            elif not _is_the_chats(state, group, instance):
                return model
    return next((model for model in models if _resident(state, model, chat=False)), None)


def _is_the_chats(state: State, group: Group, instance: Instance) -> bool:
    """Whether people chat with it while its device is in interactive mode: low work of a family keeps out then."""
    if not instance.interactive_mode(state.now):
        return False
    if instance.chats or instance.model.queue.chats:
        return True
    if instance.hot_until > state.now:
        group.next_at = min(group.next_at, instance.hot_until)
        return True
    return False


def _resident(state: State, model: ModelState, *, chat: bool) -> Instance | None:
    """Its instance, where that serves or will. A chat has one back that drains, unless it drains for a chat (R2)."""
    instance = model.instance
    if instance is None or instance.restarting:
        return None
    if instance.state is InstanceState.DRAINING:
        wanted = any(plan.live and plan.want.chat and instance in plan.victims for plan in state.plans)
        return instance if chat and not wanted else None
    return instance


def _reaches(state: State, group: Group, model: ModelState, first: JobRecord, *, evict: bool) -> bool:
    """Whether planning would have a plan for it now, were it asked for by the first of the group."""
    job = first.job
    if job.warm_only or (model.instance is not None and not model.instance.restarting):
        return False
    limit_seconds = state.policy.background_max_starvation_seconds
    starved_at = first.place + limit_seconds if limit_seconds and not first.chat else inf
    rank = state.keys.load_rank(first)
    evict_rank = rank if evict and not job.no_evict else None
    want = Want(
        model, first, job.job_class, rank, evict_rank, job.job_class, starved_at, gentle=not first.chat
    )  # fmt: skip
    found = planning.prospect(state, want)
    if isinstance(found, Obstacle):
        if found.until > state.now:
            group.next_at = min(group.next_at, found.until)
        return False
    return True


def _least_hopeless(state: State, models: list[ModelState]) -> ModelState:
    """Where to wait, or be refused, when nothing can be done now: the best that will fit when others have ended, else
    the smallest (L7)."""
    fits = [(model, admission.fit_of(state, model)) for model in models]
    later = next((model for model, fit in fits if fit is Fit.LATER), None)
    if later is not None:
        return later
    return next((model for model, fit in reversed(fits) if fit is Fit.NOT_NOW), models[-1])
