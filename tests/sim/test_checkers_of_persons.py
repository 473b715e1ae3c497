"""Every checker speaks when its rule is broken: of persons' wishes, leases, pauses, aborts, keys and families."""

import pytest

from gridsched.core.commands import (
    AbortStep,
    AnswerRequest,
    Grant,
    GrantStep,
    KeepStanding,
    PauseInstance,
    Rejection,
    RejectionCode,
    ResumeInstance,
)
from gridsched.core.events import (
    AnswerBegan,
    DevicesChanged,
    Event,
    FamiliesChanged,
    InstanceExited,
    InstanceReady,
    JobEnded,
    JobSubmitted,
    LeaseAsked,
    LoadAsked,
    MemoryReleased,
    ModelsChanged,
    PinAsked,
    StepEnded,
    TimerFired,
    UnloadAsked,
)
from gridsched.core.ids import GrantId, InstanceId, JobId, ModelName, RequestId
from gridsched.core.job import Job, JobKind, Outcome, OutcomeKind, Quality
from gridsched.core.model import DeviceSpec, FamilySpec, Variant
from gridsched.core.policy import Policy
from gridsched.core.standing import KeptLease, Standing, Word
from tests.sim.tapes import BACKGROUND, CARD, CHAT, DONE, Tape, grant, job, model, reject, stop


def beside(**figures: float | bool) -> Tape:
    """A low step runs on b, a chat on a."""
    tape = Tape(model("a", 40), model("b", 40, parallel=1), policy=Policy(**figures))  # type: ignore[arg-type]
    tape.ready(1, "a", job(1))
    tape.ready(2, "b", job(2, "b", BACKGROUND))
    tape.watch.found.clear()  # that b began beside a chat is not what is judged here
    return tape


def test_S10_a_pause_for_a_chat_that_ends_with_it_is_no_violation() -> None:
    """Paused beside a running chat, continued with its end, within the limit."""
    tape = beside(background_pause=True)
    tape.hear(TimerFired(), PauseInstance(InstanceId(2)))
    tape.hear(JobEnded(GrantId(1), DONE), ResumeInstance(InstanceId(2)), at=2.0)
    assert tape.rules == set()


@pytest.mark.parametrize("wrong", ["switched off", "no chat", "a chat of its own", "forgotten", "too long", "stopped"])
def test_S10_what_may_not_stand(wrong: str) -> None:
    """Each breaks one condition."""
    tape = beside(background_pause=wrong != "switched off")
    paused = InstanceId(1 if wrong == "a chat of its own" else 2)
    if wrong == "no chat":
        tape.hear(JobEnded(GrantId(1), DONE))
    tape.hear(TimerFired(), PauseInstance(paused))
    if wrong == "forgotten":
        tape.hear(JobEnded(GrantId(1), DONE), at=1.0)
    elif wrong == "too long":
        tape.hear(TimerFired(), at=3.5)
    elif wrong == "stopped":
        tape.hear(TimerFired(), stop(2))
    assert "S10" in tape.rules


def test_S11_an_abort_for_a_waiting_chat_is_no_violation_and_a_third_one_is() -> None:
    """The slot of b is taken by a low job; a chat waits for it. Each time the job comes back and is granted again."""
    tape = Tape(model("a", 40), model("b", 40, parallel=1), policy=Policy(abort_after_seconds=0.0))
    low = job(1, "b", BACKGROUND)
    tape.ready(1, "b", low)
    tape.hear(JobSubmitted(job(2, "b")))
    for number in range(3):
        assert "S11" not in tape.rules
        grant_id = GrantId(1 if number == 0 else 10 + number)
        tape.hear(TimerFired(), AbortStep(grant_id, "a chat waits"))
        tape.hear(StepEnded(grant_id, Outcome(OutcomeKind.ABORTED, answered=False)), again(low, 11 + number))
    assert "S11" in tape.rules


def again(one: Job, number: int) -> GrantStep:
    """The same step once more, with a grant of another number."""
    return GrantStep(Grant(GrantId(number), one.id, InstanceId(1), one.model, 1, one.steps, 0.0))


@pytest.mark.parametrize("wrong", ["answered", "a chat's", "nobody waits", "switched off"])
def test_S11_what_may_not_be_aborted(wrong: str) -> None:
    """Each breaks one condition."""
    policy = Policy(abort_after_seconds=None if wrong == "switched off" else 0.0)
    tape = Tape(model("a", 40), model("b", 40, parallel=1), policy=policy)
    tape.ready(1, "b", job(1, "b", CHAT if wrong == "a chat's" else BACKGROUND))
    if wrong == "answered":
        tape.hear(AnswerBegan(GrantId(1)))
    if wrong != "nobody waits":
        tape.hear(JobSubmitted(job(2, "b")))
    tape.hear(TimerFired(), AbortStep(GrantId(1), "for a chat"))
    assert "S11" in tape.rules


def test_R7_a_wish_is_answered_once_and_truly() -> None:
    """Loaded when it is ready, gone when its memory is back; not twice, not before, and not at all by nobody."""
    tape = Tape()
    load, unload = RequestId(1), RequestId(2)
    tape.hear(LoadAsked(load, ModelName("a")), tape.start(1))
    tape.hear(InstanceReady(InstanceId(1)), AnswerRequest(load))
    tape.hear(UnloadAsked(unload, ModelName("a")), stop(1))
    tape.hear(InstanceExited(InstanceId(1)))
    tape.hear(MemoryReleased(InstanceId(1)), AnswerRequest(unload))
    assert tape.rules == set()
    tape.hear(TimerFired(), AnswerRequest(unload))
    assert tape.rules == {"R7"}


@pytest.mark.parametrize("wish", [LoadAsked(RequestId(1), ModelName("b")), UnloadAsked(RequestId(1), ModelName("a"))])
def test_R7_a_wish_is_said_to_be_done_and_is_not(wish: Event) -> None:
    """The one is cold, the other is there."""
    tape = Tape()
    tape.ready(1, "a", job(1))
    tape.hear(wish, AnswerRequest(RequestId(1)))
    assert tape.rules == {"R7"}


def test_R8_nothing_begins_on_a_leased_device() -> None:
    """Neither a load nor a step, from when it was asked for; after the lease is over both may."""
    tape = Tape()
    tape.hear(LeaseAsked(RequestId(1), (CARD,), "somebody", 10.0), AnswerRequest(RequestId(1)))
    tape.hear(JobSubmitted(job(1)), tape.start(1))
    assert tape.rules == {"R8"}
    tape.watch.found.clear()
    tape.hear(InstanceReady(InstanceId(1)), grant(job(1), 1))
    assert tape.rules == {"R8"}
    tape.watch.found.clear()
    tape.hear(JobSubmitted(job(2)), grant(job(2), 1), at=10.0)
    assert tape.rules == set()


def test_R8_what_a_lease_sent_away_comes_back_also_where_it_ended_with_its_device() -> None:
    """The card went and is there again: the model is loaded though nobody waits, and one that was not there is not."""
    for name, rules in (("a", set[str]()), ("b", {"S9"})):
        tape = Tape()
        tape.ready(1, "a", job(1))
        tape.hear(JobEnded(GrantId(1), DONE))
        tape.hear(LeaseAsked(RequestId(1), (CARD,), "somebody"), stop(1))
        tape.hear(InstanceExited(InstanceId(1), None, ()))
        tape.hear(MemoryReleased(InstanceId(1)))
        tape.hear(DevicesChanged(()))
        tape.hear(DevicesChanged((DeviceSpec(CARD, 100),)), tape.start(2, name), at=30.0)
        assert tape.rules == rules


def test_R7_a_word_that_is_refused_is_not_remembered() -> None:
    """It was about a model that had gone: what a person said of it before is as forgotten as it was."""
    tape = Tape(model("a"), model("b"))
    tape.hear(PinAsked(RequestId(1), ModelName("a"), pinned=True), AnswerRequest(RequestId(1)))
    tape.hear(ModelsChanged((model("b"),)))
    refusal = Rejection(RejectionCode.MODEL_NOT_FOUND, "there is no model a")
    tape.hear(PinAsked(RequestId(2), ModelName("a"), pinned=False), AnswerRequest(RequestId(2), refusal))
    tape.hear(ModelsChanged((model("a"), model("b"))))
    tape.ready(1, "a", job(1))
    tape.hear(JobEnded(GrantId(1), DONE))
    tape.hear(TimerFired(), stop(1), at=3_600.0)
    assert "R1" not in tape.rules


def test_R8_a_device_is_said_to_be_held_while_something_is_there() -> None:
    """A process lives on it."""
    tape = Tape()
    tape.ready(1, "a", job(1))
    tape.hear(LeaseAsked(RequestId(1), (CARD,), "somebody"), AnswerRequest(RequestId(1)))
    assert tape.rules == {"R8"}


def test_liveness_wishes_leases_and_pins() -> None:
    """A wish that is never answered, a lease that never ends, a pin that is never back."""
    tape = Tape(model("a", pinned=True), model("b"))
    tape.hear(LeaseAsked(RequestId(1), (CARD,), "somebody"))
    tape.watch.finish()
    assert sorted(one.what.split()[-1] for one in tape.watch.found) == ["answered", "ends", "loaded"]


def test_S2_a_key_is_passed_again_and_again_and_the_jobs_of_one_key_keep_their_order() -> None:
    """Another key has its turn, and is not served five times before one that came earlier."""
    tape = Tape(model("a", parallel=8), model("b"))
    mine = Job(JobId(1), ModelName("a"), BACKGROUND, JobKind.CHAT, key="mine")
    others = [Job(JobId(number), ModelName("a"), BACKGROUND, JobKind.CHAT, key="theirs") for number in range(2, 8)]
    tape.hear(JobSubmitted(mine), tape.start(1))
    for one in others:
        tape.hear(JobSubmitted(one))
    tape.hear(InstanceReady(InstanceId(1)), *(grant(one, 1) for one in others[:3]))
    assert "S2" not in tape.rules
    tape.hear(TimerFired(), grant(others[4], 1))
    assert [one.what.split(" is ")[-1] for one in tape.watch.found if "granted before" in one.what]


def test_R10_a_variant_that_will_not_do_is_granted() -> None:
    """The better one may serve, the lesser one not."""
    tape = Tape()
    name = ModelName("family")
    variants = (Variant(ModelName("a"), Quality.PREFERRED), Variant(ModelName("b"), Quality.COMPACT))
    tape.hear(FamiliesChanged((FamilySpec(name, variants),)))
    choosy = [
        Job(JobId(number), name, CHAT, JobKind.CHAT, quality=Quality.BALANCED)
        for number in (1, 2)
    ]  # fmt: skip
    tape.hear(JobSubmitted(choosy[0]), tape.start(1))
    tape.hear(InstanceReady(InstanceId(1)), variant_grant(choosy[0], 1, "a"))
    assert tape.rules == set()
    tape.hear(JobSubmitted(choosy[1]), tape.start(2, "b"))
    tape.hear(InstanceReady(InstanceId(2)), variant_grant(choosy[1], 2, "b"))
    assert "R10" in tape.rules


@pytest.mark.parametrize(("was_gone", "rules"), [(True, set()), (False, {"L7"})])
def test_L7_a_job_whose_family_was_gone_once_may_lose_its_variant(rules: set[str], *, was_gone: bool) -> None:
    """It waits on at a variant, also when the family is back, and is refused with it; any other job is not."""
    tape = Tape()
    variants = (Variant(ModelName("a"), Quality.PREFERRED), Variant(ModelName("b"), Quality.COMPACT))
    there = (FamilySpec(ModelName("family"), variants),)
    tape.hear(FamiliesChanged(there))
    tape.hear(JobSubmitted(job(1, "family")), tape.start(1, "b"))
    if was_gone:
        tape.hear(FamiliesChanged(()))
        tape.hear(FamiliesChanged(there))
    tape.hear(ModelsChanged((tape.models[ModelName("b")],)), reject(1, RejectionCode.MODEL_NOT_FOUND))
    assert tape.rules == rules


def variant_grant(one: Job, instance: int, name: str) -> GrantStep:
    """A grant that names the variant."""
    return GrantStep(Grant(GrantId(int(one.id)), one.id, InstanceId(instance), ModelName(name), 1, 1, 0.0))


def test_R8_what_is_kept_is_what_there_is() -> None:
    """A lease that is not kept, one that is and is over, a pin that nobody said."""
    tape = Tape()
    kept = KeptLease(CARD, "somebody")
    tape.hear(LeaseAsked(RequestId(1), (CARD,), "somebody"), KeepStanding(Standing()))
    assert "R8" in tape.rules
    tape = Tape()
    tape.hear(LeaseAsked(RequestId(1), (CARD,), "somebody"), KeepStanding(Standing(leases=(kept,))))
    assert tape.rules == set()
    word = Word(ModelName("a"), pin=True, put_down=False, configured=False)
    tape.hear(TimerFired(), KeepStanding(Standing((word,), (kept,))))
    assert tape.rules == {"R7"}
