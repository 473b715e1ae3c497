"""Families (R10): one name for several sizes, bound at the grant."""

from collections.abc import Iterable

import pytest

from gridsched.core.commands import LogEvent, RejectionCode
from gridsched.core.events import Failure, FailureCause, FamiliesChanged, JobSubmitted, ModelsChanged
from gridsched.core.ids import DeviceName, JobId, ModelName
from gridsched.core.job import NO_MEDIA, Job, JobClass, JobKind, Medium, Quality
from gridsched.core.model import FamilySpec, ModelSpec, Variant
from gridsched.core.policy import Policy
from tests.stories.world import BACKGROUND, BATCH, CHAT, DIED, World, model, option

BIG, MIDDLE, SMALL = "12b", "e4b", "e2b"
SIZES = {BIG: 8.0, MIDDLE: 4.0, SMALL: 2.0}
IMAGES = frozenset((Medium.IMAGE,))


def variants(media: dict[str, frozenset[Medium]] | None = None, names: Iterable[str] = SIZES) -> tuple[Variant, ...]:
    """The sizes as variants, best first."""
    found = {name: Variant(ModelName(name), quality) for name, quality in zip(SIZES, Quality, strict=True)}
    return tuple(
        Variant(found[name].model, found[name].quality, (media or {}).get(name, NO_MEDIA)) for name in names
    )  # fmt: skip


def world(
    *others: ModelSpec,
    card: float = 16.0,
    parallel: int = 1,
    media: dict[str, frozenset[Medium]] | None = None,
    policy: Policy | None = None,
    sizes: dict[str, float] = SIZES,
    **more: object,
) -> World:
    """One card, the three sizes as the family `gemma`, and others."""
    specs = (*(model(name, option(size, parallel)) for name, size in sizes.items()), *others)
    told = World(specs, {"gpu0": card}, policy or Policy(), **more)  # type: ignore[arg-type]  # the tests' keywords
    told.tell(FamiliesChanged((FamilySpec(ModelName("gemma"), variants(media)),)))
    return told


def ask(
    told: World,
    job_class: JobClass = CHAT,
    quality: Quality | None = None,
    media: frozenset[Medium] = NO_MEDIA,
    **flags: bool,
) -> JobId:
    """A client asks the family."""
    job_id = JobId(1000 + len(told.heard))
    job = Job(job_id, ModelName("gemma"), job_class, JobKind.CHAT, quality=quality, media=media, **flags)
    told.tell(JobSubmitted(job))
    return job_id


def serve(told: World, name: str, job_class: JobClass = CHAT) -> None:
    """Have a model loaded and used by one job."""
    told.warm(name, job_class=job_class)


def served_by(told: World, job_id: JobId) -> str:
    """The model of the job's last grant."""
    return told.grant(job_id).model


# --- people -----------------------------------------------------------------------------------------------------


def test_R10_a_chat_gets_the_best_that_fits() -> None:
    """Nothing is loaded: the preferred size is."""
    told = world()
    job_id = ask(told)
    told.advance(10.0)
    assert served_by(told, job_id) == BIG
    assert not told.loads(MIDDLE)
    assert not told.loads(SMALL)


def test_R10_a_chat_gets_the_best_that_can_be_made_resident() -> None:
    """The preferred size never fits on this card beside what is pinned; the next does, at the cost of a cold model."""
    told = world(model("pin", option(5.0), pinned=True), model("cold", option(6.0)), card=12.0)
    serve(told, "pin")
    serve(told, "cold", BACKGROUND)
    job_id = ask(told)
    told.advance(20.0)
    assert served_by(told, job_id) == MIDDLE
    assert told.stops("cold")


def test_R10_a_chat_stays_on_the_variant_it_has_while_that_is_hot() -> None:
    """A conversation that began on a small size stays there, though the preferred would fit."""
    told = world()
    serve(told, SMALL)
    for _ in range(3):
        job_id = ask(told)
        assert served_by(told, job_id) == SMALL
        told.finish(job_id)
        told.advance(60.0)
    told.advance(300.0)  # it is cold now, and people may have the best again
    job_id = ask(told)
    told.advance(10.0)
    assert served_by(told, job_id) == BIG


def test_R10_a_second_chat_joins_the_load_that_is_under_way() -> None:
    """Not another size for each."""
    told = world()
    first = ask(told)
    told.advance(3.0)
    second = ask(told)
    told.advance(7.0)
    assert served_by(told, first) == BIG
    told.finish(first)
    assert served_by(told, second) == BIG
    assert not told.loads(MIDDLE)


def test_R10_quality_forbids_the_variant_that_is_hot() -> None:
    """The lowest that will do is asked for: the small one that is hot will not."""
    told = world()
    serve(told, SMALL)
    job_id = ask(told, quality=Quality.BALANCED)
    told.advance(10.0)
    assert served_by(told, job_id) == BIG
    other = ask(told, quality=Quality.COMPACT)
    assert told.waits(other) or served_by(told, other) == BIG


def test_R10_images_go_only_to_a_variant_that_takes_them() -> None:
    """Also where another is ready with a free slot."""
    told = world(media={MIDDLE: IMAGES})
    serve(told, BIG)
    job_id = ask(told, media=IMAGES)
    told.advance(10.0)
    assert served_by(told, job_id) == MIDDLE
    assert served_by(told, ask(told)) == BIG


@pytest.mark.parametrize("quality", [None, Quality.PREFERRED])
def test_R10_what_no_variant_can_do_is_refused_as_not_supported(quality: Quality | None) -> None:
    """The family is known, so it is no unknown model; nothing else will ever do."""
    told = world(media={SMALL: frozenset((Medium.AUDIO,))})
    wanted = frozenset((Medium.AUDIO,)) if quality else IMAGES
    refused = told.rejection(ask(told, quality=quality, media=wanted))
    assert refused is not None
    assert refused.code is RejectionCode.MODEL_NOT_SUPPORTED
    assert "gemma" in refused.message


def test_R10_embeddings_of_a_family_are_refused() -> None:
    """Vectors of different models cannot be compared."""
    told = world()
    told.tell(JobSubmitted(Job(JobId(7), ModelName("gemma"), BACKGROUND, JobKind.EMBEDDINGS, steps=3)))
    refused = told.rejection(JobId(7))
    assert refused is not None
    assert refused.code is RejectionCode.MODEL_NOT_SUPPORTED


def test_R10_a_family_that_never_fits_is_refused_with_its_smallest() -> None:
    """L7's arithmetic is that of the least that could be tried."""
    told = world(card=1.0)
    refused = told.rejection(ask(told))
    assert refused is not None
    assert refused.code is RejectionCode.INSUFFICIENT_VRAM
    assert refused.detail["required_bytes"] == 2_000_000_000


def test_R10_a_variant_that_fails_leaves_its_jobs_to_the_next() -> None:
    """A load that fails ends the waiting of those who named the model, not of those whom another size serves."""
    told = world(broken={BIG: Failure(FailureCause.DAMAGED_FILE, "it is cut off")})
    job_id, direct = ask(told), told.submit(BIG)
    told.advance(30.0)
    refused = told.rejection(direct)
    assert refused is not None
    assert refused.code is RejectionCode.MODEL_FAILED
    assert served_by(told, job_id) == MIDDLE


def test_R10_a_family_all_of_whose_variants_failed_is_refused() -> None:
    """L6d, with the cause."""
    failure = Failure(FailureCause.DAMAGED_FILE, "it is cut off")
    told = world(broken=dict.fromkeys(SIZES, failure))
    first = ask(told)
    told.advance(30.0)
    second = ask(told)
    for job_id in (first, second):
        refused = told.rejection(job_id)
        assert refused is not None
        assert refused.code is RejectionCode.MODEL_FAILED
        assert refused.detail["cause"] == "damaged_file"


def test_S9_warm_only_takes_the_variant_that_is_there() -> None:
    """It never loads; any size that is ready will do, and none is a refusal."""
    told = world()
    refused = told.rejection(ask(told, warm_only=True))
    assert refused is not None
    assert refused.code is RejectionCode.NOT_RESIDENT
    serve(told, SMALL, BACKGROUND)
    assert served_by(told, ask(told, warm_only=True)) == SMALL


def test_S9_no_evict_takes_what_fits_beside_the_others() -> None:
    """The preferred size would need another to go, the middle one does not."""
    told = world(model("other", option(10.0)))
    serve(told, "other")
    job_id = ask(told, no_evict=True)
    told.advance(10.0)
    assert served_by(told, job_id) == MIDDLE
    assert not told.stops("other")


# --- low work ---------------------------------------------------------------------------------------------------


def test_R10_low_work_takes_the_small_one_beside_a_chat() -> None:
    """People chat with the preferred size on a card with room for one more: low work gets no slot of theirs."""
    told = world(parallel=4, step_seconds={BIG: 1.0, MIDDLE: 1.0, SMALL: 1.0})
    serve(told, BIG)
    told.step_seconds.pop(BIG)
    chat = told.submit(BIG)
    low = ask(told, BACKGROUND)
    told.advance(30.0)
    assert served_by(told, low) == MIDDLE
    told.finish(chat)


def test_R10_low_work_may_have_the_chats_model_when_interactive_mode_is_over() -> None:
    """B12: it is the only one there, the card is full: the slot is barred only while people chat."""
    told = world(model("pin", option(7.0), pinned=True), parallel=2)
    serve(told, "pin")
    serve(told, BIG)
    chat = told.submit(BIG)
    low = ask(told, BACKGROUND)
    assert told.waits(low)
    told.advance(0.5)
    told.finish(chat)
    ended_at = told.now
    told.advance(5.0)
    assert told.granted_at(low) == ended_at + 2.0
    assert served_by(told, low) == BIG


def test_R10_low_work_starves_beside_no_chat_that_never_ends() -> None:
    """Where no other variant can serve, the turns of the starved are for a family's jobs too (S5)."""
    told = world(model("hot", option(11.0)), parallel=2)
    serve(told, "hot")
    serve(told, MIDDLE)
    began = told.now
    told.submit(MIDDLE)
    low = ask(told, BACKGROUND)
    told.advance(4.0)
    assert served_by(told, low) == MIDDLE
    assert told.granted_at(low) == began + 3.0


def test_B12_a_starved_family_job_has_a_cold_model_go_rather_than_a_slot_of_the_chats() -> None:
    """People chat with the preferred size, an idle cold model fills the rest of the card."""
    told = world(model("cold", option(7.0)), parallel=2)
    serve(told, "cold", BACKGROUND)
    serve(told, BIG)
    told.advance(30.0)
    began = told.now
    told.submit(BIG)
    low = ask(told, BACKGROUND)
    told.advance(15.0)
    assert told.stops("cold") == [began + 3.0]
    assert served_by(told, low) == MIDDLE


def test_B12_idle_cold_models_may_go_for_a_family_that_is_starved() -> None:
    """The card is full of an idle cold model: after three seconds it goes; before, nothing is disturbed."""
    told = world(model("cold", option(15.0)))
    serve(told, "cold", BACKGROUND)
    told.advance(60.0)
    began = told.now
    low = ask(told, BACKGROUND)
    told.advance(2.5)
    assert not told.stops("cold")
    assert told.waits(low)
    told.advance(20.0)
    assert told.stops("cold") == [began + 3.0]
    assert served_by(told, low) == BIG


def test_R10_low_work_disturbs_nothing_in_use() -> None:
    """A cold model with a step in flight is not drained for a family, as it would be for a job that names a model."""
    told = world(model("busy", option(13.0)))
    serve(told, "busy", BACKGROUND)
    told.submit("busy", BATCH)
    told.advance(40.0)
    low = ask(told, BACKGROUND)
    told.advance(20.0)
    assert served_by(told, low) == SMALL  # what fits beside it
    direct = told.submit(MIDDLE, BACKGROUND)
    told.advance(5.0)
    assert told.waits(direct)
    assert told.state("busy") == "draining"


def test_B12_idle_cold_models_of_another_card_may_go_at_the_moment_of_starvation() -> None:
    """Not only once something else happens: the slot of the chats' model is free, and not taken."""
    specs = (
        model(BIG, option(8.0, 2)),
        model(MIDDLE, option(4.0, device="gpu1")),
        model("cold", option(15.0, device="gpu1")),
    )
    told = World(specs, {"gpu0": 10.0, "gpu1": 16.0})
    told.tell(FamiliesChanged((FamilySpec(ModelName("gemma"), variants(names=(BIG, MIDDLE))),)))
    told.warm("cold", job_class=BACKGROUND)
    told.warm(BIG)
    told.advance(30.0)
    began = told.now
    told.submit(BIG)
    low = ask(told, BACKGROUND)
    told.advance(20.0)
    assert told.stops("cold") == [began + 3.0]
    assert served_by(told, low) == MIDDLE


def test_R10_low_work_takes_the_size_for_which_only_idle_models_go() -> None:
    """The preferred size would need a busy model to go, the smallest an idle one."""
    told = world(model("busy", option(13.0)), model("idle", option(1.5)))
    serve(told, "busy", BACKGROUND)
    serve(told, "idle", BACKGROUND)
    told.submit("busy", BATCH)
    told.advance(40.0)
    low = ask(told, BACKGROUND)
    told.advance(20.0)
    assert served_by(told, low) == SMALL
    assert told.state("busy") == "ready"
    assert told.stops("idle")


def test_R10_low_work_disturbs_nothing_hot() -> None:
    """Nor an idle one that people used lately."""
    told = world(model("hot", option(15.0)))
    serve(told, "hot")
    low = ask(told, BACKGROUND)
    told.advance(200.0)
    assert told.waits(low)
    assert not told.stops("hot")
    told.advance(150.0)
    assert served_by(told, low) == BIG


def test_R10_low_work_of_a_direct_job_lends_its_permission() -> None:
    """S6c: what a load may do is what its most permissive waiter may: one that named the variant may drain."""
    told = world(model("busy", option(15.0)))
    serve(told, "busy", BACKGROUND)
    told.submit("busy", BATCH)
    told.advance(40.0)
    low = ask(told, BACKGROUND)
    told.advance(4.0)
    assert told.state("busy") == "ready"
    told.submit(BIG, BACKGROUND)
    assert told.state("busy") == "draining"
    assert told.waits(low)


# --- bound at the grant -----------------------------------------------------------------------------------------


def test_R10_the_variant_changes_while_a_job_waits() -> None:
    """A low job waits for the preferred size, which is loaded; a chat with it has begun: the job goes elsewhere, at the
    place that it had."""
    told = world(step_seconds={MIDDLE: 1.0})
    serve(told, BIG, BACKGROUND)
    holder = told.submit(BIG, BACKGROUND)
    first = ask(told, BACKGROUND)
    assert told.waits(first)
    told.advance(0.5)
    second = told.submit(MIDDLE, BACKGROUND)
    told.advance(5.0)
    chat = told.submit(BIG)  # waits for the slot, and holds the device
    told.advance(60.0)
    assert served_by(told, first) == MIDDLE
    at, other = told.granted_at(first), told.granted_at(second)
    assert at is not None
    assert other is not None
    assert at <= other
    told.finish(holder)
    told.finish(chat)
    bound = [line for _, line in told.logged(LogEvent.ENQUEUE) if line.rule == "R10" and line.job_id is None]
    assert bound
    assert bound[0].model == MIDDLE
    assert bound[0].figures["before"] == BIG


def test_R10_jobs_of_one_family_that_may_do_the_same_go_together_and_in_order() -> None:
    """First in, first out holds across a change of variant."""
    told = world(model("cold", option(15.0)), step_seconds=dict.fromkeys(SIZES, 0.5))
    serve(told, "cold", BACKGROUND)
    jobs = []
    for _ in range(5):
        jobs.append(ask(told, BACKGROUND))
        told.advance(0.25)
    told.advance(60.0)
    times = [told.granted_at(job_id) for job_id in jobs]
    assert None not in times
    assert times == sorted(times, key=lambda at: at or 0.0)


def test_R10_a_job_that_is_run_again_may_be_bound_anew() -> None:
    """P5: its variant dies and cannot be loaded any more; the next serves it."""
    told = world()
    serve(told, BIG, BACKGROUND)
    job_id = ask(told)
    assert served_by(told, job_id) == BIG
    died, crash = told.instance(BIG), Failure(FailureCause.CRASHED, "boom")
    told.broken[BIG] = crash
    told.step_ends(job_id, DIED)
    told.dies(died, crash)
    told.advance(30.0)
    assert [grant.model for _, grant in told.grants(job_id)] == [BIG, MIDDLE]


def test_R10_the_waiting_job_says_which_variant_it_aims_at() -> None:
    """S9b: the client asked the family, and is told of the size."""
    told = world()
    job_id = ask(told)
    view = told.scheduler.waiting(job_id, told.now)
    assert view is not None
    assert view.model == "gemma"
    assert view.reason == f"aims at {BIG}: loading {BIG} (0s)"


def test_S8_a_family_job_that_leaves_leaves_nothing() -> None:
    """Its load is aborted, its group is gone."""
    told = world()
    job_id = ask(told)
    told.leave(job_id)
    assert told.state(BIG) == "cold"
    assert not told.scheduler.state.groups


def test_R10_a_variant_that_a_group_has_left_is_loaded_for_the_next_who_wants_it() -> None:
    """What was to be done for those who moved away is forgotten with them."""
    told = world(model("busy", option(15.0)), step_seconds={SMALL: 1.0})
    serve(told, "busy")
    low = ask(told, BACKGROUND)
    assert told.why(low) == "S9"  # it stands at the best, for which nobody may go
    told.tell(FamiliesChanged((FamilySpec(ModelName("gemma"), variants(names=(SMALL,))),)))
    late = told.submit(BIG)
    told.advance(20.0)
    assert served_by(told, late) == BIG
    told.finish(late)
    told.advance(20.0)
    assert served_by(told, low) == SMALL


@pytest.mark.parametrize("job_class", [CHAT, BACKGROUND])
def test_R4_a_variant_that_was_loaded_for_a_job_serves_it(job_class: JobClass) -> None:
    """Memory for a better one comes free meanwhile: the load that is under way is not for nothing."""
    pinned = model("pin", option(13.0), pinned=True)
    told = world(pinned)
    serve(told, "pin", BACKGROUND)
    job_id = ask(told, job_class)
    told.advance(5.0)
    assert told.state(SMALL) == "starting"
    told.tell(ModelsChanged(tuple(model(name, option(size)) for name, size in SIZES.items())))
    told.advance(6.0)
    assert told.stops("pin")
    assert served_by(told, job_id) == SMALL
    assert not told.loads(BIG)


# --- configuration ----------------------------------------------------------------------------------------------


def test_R10_who_waits_for_a_family_that_goes_is_served_where_it_stands() -> None:
    """A reload without the family drops nobody; new jobs meet an unknown model."""
    told = world()
    job_id = ask(told)
    told.tell(FamiliesChanged(()))
    told.advance(10.0)
    assert served_by(told, job_id) == BIG
    refused = told.rejection(ask(told))
    assert refused is not None
    assert refused.code is RejectionCode.MODEL_NOT_FOUND


def test_R10_a_changed_family_moves_those_who_wait() -> None:
    """The preferred size is no variant any more."""
    told = world()
    job_id = ask(told)
    told.tell(FamiliesChanged((FamilySpec(ModelName("gemma"), variants(names=(MIDDLE, SMALL))),)))
    told.advance(15.0)
    assert served_by(told, job_id) == MIDDLE


def test_R10_a_changed_family_in_which_nothing_will_do_refuses_those_who_wait() -> None:
    """It is said at once."""
    told = world(media={MIDDLE: IMAGES})
    job_id = ask(told, media=IMAGES)
    told.tell(FamiliesChanged((FamilySpec(ModelName("gemma"), variants()),)))
    refused = told.rejection(job_id)
    assert refused is not None
    assert refused.code is RejectionCode.MODEL_NOT_SUPPORTED


def test_R10_a_variant_that_is_removed_leaves_its_jobs_to_the_next() -> None:
    """Its model is gone from the configuration while it loads."""
    told = world()
    job_id = ask(told)
    told.tell(ModelsChanged(tuple(model(name, option(SIZES[name])) for name in (MIDDLE, SMALL))))
    told.advance(30.0)
    assert served_by(told, job_id) == MIDDLE


def test_R10_a_family_without_a_model_that_is_there_refuses_those_who_wait() -> None:
    """Its variants are changed to ones that the configuration does not have any more."""
    told = world()
    job_id = ask(told)
    told.tell(ModelsChanged((model(BIG, option(8.0)),)))
    told.tell(FamiliesChanged((FamilySpec(ModelName("gemma"), variants(names=(SMALL,))),)))
    refused = told.rejection(job_id)
    assert refused is not None
    assert refused.code is RejectionCode.MODEL_NOT_FOUND


def test_R10_an_empty_server_knows_no_groups() -> None:
    """Families that nobody waits for cost an event nothing."""
    told = world()
    serve(told, BIG)
    job_id = ask(told)
    assert not told.scheduler.state.groups
    told.finish(job_id)
    assert not told.scheduler.state.unplaced
    assert DeviceName("gpu0") in told.scheduler.state.modes


def test_R10_a_job_that_is_run_again_joins_the_variant_that_an_older_job_has_loaded() -> None:
    """Its own variant's process dies, and the memory goes to an older job, which named the other one: it waits there
    from the same step on, and is served with it."""
    names = (ModelName("first"), ModelName("second"))
    family = FamilySpec(
        ModelName("both"), (Variant(names[0], Quality.PREFERRED), Variant(names[1], Quality.COMPACT))
    )  # fmt: skip
    models = (model("first", option(3)), model("second", option(6, 2)))
    told = World(models, {"gpu0": 7.0}, step_seconds={"second": 1.0})
    told.tell(FamiliesChanged((family,)))
    told.warm("first", job_class=BACKGROUND)
    running = told.submit("first", BACKGROUND)
    older = told.submit("second", BACKGROUND)
    told.advance(1.0)
    told.finish(running)
    again = told.submit("both", BACKGROUND)
    assert told.grant(again).model == "first"
    told.step_ends(again, DIED)
    assert told.scheduler.state.jobs[again].model == "second"
    told.advance(12.0)
    assert [len(told.grants(job)) for job in (older, again)] == [1, 2]
