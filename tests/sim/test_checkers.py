"""Every checker speaks when its rule is broken, and is silent when it is kept. Hand-made tapes, no scheduler."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from gridsched.core.commands import (
    ArmTimer,
    Grant,
    GrantStep,
    RejectionCode,
)
from gridsched.core.events import (
    DrainBegan,
    FamiliesChanged,
    GrantReturned,
    InstanceExited,
    InstanceReady,
    JobAbandoned,
    JobEnded,
    JobSubmitted,
    MemoryReleased,
    SlotSettled,
    StepEnded,
    TimerFired,
)
from gridsched.core.ids import GrantId, InstanceId, JobId, ModelName
from gridsched.core.job import Job, JobClass, JobKind, Quality
from gridsched.core.model import FamilySpec, Variant
from gridsched.core.policy import Policy, QueueLimits
from tests.sim.tapes import BACKGROUND, BATCH, CHAT, DONE, GONE, Tape, grant, job, model, reject, stop


def test_a_life_that_keeps_every_rule_finds_no_violation() -> None:
    """A chat, an embedding job of two steps after the tail, a swap with drain, exit and release: silence."""
    tape = Tape(model("a", 60), model("b", 60))
    tape.ready(1, "a", job(1))
    tape.hear(JobEnded(GrantId(1), DONE), at=1.0)
    low = job(2, "a", BACKGROUND, steps=2)
    tape.hear(JobSubmitted(low), ArmTimer(3.0))
    tape.hear(TimerFired(), grant(low, 1), at=3.0)
    tape.hear(StepEnded(GrantId(2), DONE), grant(low, 1, step=2), at=3.5)
    tape.hear(JobEnded(GrantId(202), DONE), at=4.0)
    chat = job(3, "b")
    tape.hear(JobSubmitted(chat), stop(1), at=5.0)
    tape.hear(InstanceExited(InstanceId(1)), at=5.2)
    tape.hear(MemoryReleased(InstanceId(1)), tape.start(2, "b"), at=5.3)
    tape.hear(InstanceReady(InstanceId(2)), grant(chat, 2), at=9.0)
    tape.hear(JobEnded(GrantId(3), DONE), at=10.0)
    tape.watch.finish()
    assert tape.watch.found == []


def test_S6_more_grants_than_slots() -> None:
    """The third grant on two slots."""
    tape = Tape()
    tape.ready(1, "a", job(1), job(2), job(3))
    assert tape.rules == {"S6"}


def test_S6_a_slot_whose_step_has_not_settled_is_taken() -> None:
    """A client that left holds its slot until the engine has settled it."""
    tape = Tape(model("a", parallel=1), model("b"))
    tape.ready(1, "a", job(1))
    tape.hear(JobEnded(GrantId(1), GONE, settled=False))
    tape.hear(JobSubmitted(job(2)), grant(job(2), 1))
    assert tape.rules == {"S6"}


def test_S6_a_slot_is_free_once_it_has_settled() -> None:
    """The same, settled first."""
    tape = Tape(model("a", parallel=1), model("b"))
    tape.ready(1, "a", job(1))
    tape.hear(JobEnded(GrantId(1), GONE, settled=False))
    tape.hear(SlotSettled(GrantId(1)))
    tape.hear(JobSubmitted(job(2)), grant(job(2), 1))
    assert tape.rules == set()


def test_S6_a_grant_that_crossed_its_client_going_away_frees_its_slot() -> None:
    """The client left while the grant was on its way: it counts as returned."""
    tape = Tape(model("a", parallel=1), model("b"))
    tape.ready(1, "a", job(1))
    tape.hear(JobAbandoned(JobId(1)))
    tape.hear(JobSubmitted(job(2)), grant(job(2), 1))
    assert tape.rules == set()


def test_S6_a_grant_on_a_process_that_is_not_ready() -> None:
    """Still starting, and one that nobody knows."""
    tape = Tape()
    tape.hear(JobSubmitted(job(1)), tape.start(1), grant(job(1), 1))
    tape.hear(JobSubmitted(job(2)), grant(job(2), 9))
    assert [one.rule for one in tape.watch.found].count("S6") == 2


def test_S6_a_low_job_takes_a_slot_that_is_kept_for_chats() -> None:
    """One of two slots is kept."""
    tape = Tape(model("a", reserved=1), model("b"))
    tape.ready(1, "a", job(1, job_class=BACKGROUND), job(2, job_class=BACKGROUND))
    assert tape.rules == {"S6"}


def test_S3_a_step_is_skipped() -> None:
    """The second grant of a job names its third step."""
    tape = Tape()
    long = job(1, job_class=BACKGROUND, steps=3)
    tape.ready(1, "a", long)
    tape.hear(StepEnded(GrantId(1), DONE), grant(long, 1, step=3))
    assert tape.rules == {"S3"}


@pytest.mark.parametrize("gone", [False, True], ids=["running", "settling"])
def test_R2_a_process_is_stopped_with_a_step_in_flight(*, gone: bool) -> None:
    """Also one whose client has left and whose slot has not settled."""
    tape = Tape()
    tape.ready(1, "a", job(1))
    if gone:
        tape.hear(JobEnded(GrantId(1), GONE, settled=False))
    tape.hear(JobSubmitted(job(2, "b")), stop(1))
    assert "R2" in tape.rules


def test_R2_a_process_is_stopped_twice() -> None:
    """The second stop has nothing to stop."""
    tape = Tape()
    tape.ready(1, "a", job(1))
    tape.hear(JobEnded(GrantId(1), DONE))
    tape.hear(JobSubmitted(job(2, "b")), stop(1), stop(1))
    assert "R2" in tape.rules


def test_S7_a_job_is_answered_after_its_end() -> None:
    """Granted after it was abandoned, rejected after it was rejected."""
    tape = Tape()
    tape.ready(1, "a", job(1))
    tape.hear(JobSubmitted(job(2, "b")), tape.start(2, "b"))
    tape.hear(JobAbandoned(JobId(2)), reject(2, RejectionCode.QUEUE_FULL))
    tape.hear(GrantReturned(GrantId(1)), grant(job(1), 1))
    assert [one.rule for one in tape.watch.found] == ["S7", "S7"]


def test_S7_a_job_is_granted_twice_at_once() -> None:
    """Two grants of one job in flight."""
    tape = Tape()
    tape.ready(1, "a", job(1))
    second = GrantStep(Grant(GrantId(50), JobId(1), InstanceId(1), ModelName("a"), 1, 1, 0.0))
    tape.hear(TimerFired(), second)
    assert tape.rules == {"S7"}


def test_S7_a_chat_waits_beside_a_free_slot() -> None:
    """Its model is ready and nobody is before it."""
    tape = Tape()
    tape.ready(1, "a", job(1))
    tape.hear(JobSubmitted(job(2)))
    assert tape.rules == {"S7"}


def test_S6b_a_low_job_waits_beside_a_free_slot() -> None:
    """No chat anywhere, nobody older."""
    tape = Tape()
    tape.ready(1, "a", job(1, job_class=BACKGROUND))
    tape.hear(JobSubmitted(job(2, job_class=BACKGROUND)))
    assert tape.rules == {"S6b"}


def test_S4_the_timer_must_stand_at_the_tails_end() -> None:
    """A low job waits for the tail alone, and nothing will wake the scheduler then."""
    tape = Tape()
    tape.ready(1, "a", job(1))
    tape.hear(JobEnded(GrantId(1), DONE), at=1.0)
    tape.hear(JobSubmitted(job(2, job_class=BACKGROUND)), ArmTimer(3.1))
    assert tape.rules == {"S4"}


def test_S2_a_younger_job_is_granted_first() -> None:
    """Same class, same model, neither granted before."""
    tape = Tape(model("a", parallel=1), model("b"))
    tape.hear(JobSubmitted(job(1)), tape.start(1))
    tape.hear(JobSubmitted(job(2)))
    tape.hear(InstanceReady(InstanceId(1)), grant(job(2), 1))
    assert tape.rules == {"S2"}


@pytest.mark.parametrize(("low", "high"), [(BACKGROUND, CHAT), (BATCH, BACKGROUND)])
def test_S1_a_lower_class_is_granted_first(low: JobClass, high: JobClass) -> None:
    """Whatever the order of arrival."""
    tape = Tape(model("a", parallel=1), model("b"))
    tape.hear(JobSubmitted(job(1, job_class=low)), tape.start(1))
    tape.hear(JobSubmitted(job(2, job_class=high)))
    tape.hear(InstanceReady(InstanceId(1)), grant(job(1, job_class=low), 1))
    assert "S1" in tape.rules


@pytest.mark.parametrize("at", [0.5, 2.4], ids=["while a chat runs", "in the tail"])
def test_S4_a_low_step_starts_in_interactive_mode(at: float) -> None:
    """The chat ends after one second; the tail lasts two."""
    tape = Tape()
    tape.ready(1, "a", job(1))
    if at > 1:
        tape.hear(JobEnded(GrantId(1), DONE), at=1.0)
    tape.hear(JobSubmitted(job(2, job_class=BACKGROUND)), grant(job(2, job_class=BACKGROUND), 1), at=at)
    assert tape.rules == {"S4"}


def relieved(tape: Tape, numbers: Sequence[int], at: float) -> None:
    """Low jobs that arrived before are granted at one moment."""
    tape.hear(TimerFired(), *(grant(job(number, job_class=BACKGROUND), 1) for number in numbers), at=at)


def starving(policy: Policy | None = None) -> Tape:
    """A chat runs on and on beside four low jobs for the same model of six slots, which arrived at 0."""
    tape = Tape(model("a", parallel=6), model("b"), policy=policy)
    tape.ready(1, "a", job(1))
    for number in (2, 3, 4, 5):
        tape.hear(JobSubmitted(job(number, job_class=BACKGROUND)))
    return tape


def test_S5_relief_after_three_seconds_is_no_violation() -> None:
    """Two starved jobs in one decision are one turn; after it and its pause comes the next."""
    tape = starving()
    relieved(tape, (2, 3), at=3.0)
    tape.hear(JobEnded(GrantId(2), DONE), at=3.5)
    tape.hear(JobEnded(GrantId(3), DONE), at=4.0)
    relieved(tape, (4, 5), at=5.0)
    assert tape.rules == set()


def test_S5_a_second_turn_begins_before_the_first_has_ended() -> None:
    """One turn at a time for each device."""
    tape = starving()
    relieved(tape, (2,), at=3.0)
    relieved(tape, (3,), at=3.2)
    assert tape.rules == {"S5"}


def test_S5_a_turn_has_more_steps_than_the_policy_allows() -> None:
    """Two at most, three given."""
    tape = starving(Policy(relief_slots=2))
    relieved(tape, (2, 3, 4), at=3.0)
    assert tape.rules == {"S5"}


def test_S5a_the_next_turn_comes_too_soon() -> None:
    """A turn of one second leaves one second to the chat."""
    tape = starving()
    relieved(tape, (2,), at=3.0)
    tape.hear(JobEnded(GrantId(2), DONE), at=4.0)
    relieved(tape, (3,), at=4.5)
    assert tape.rules == {"S5a"}


def test_S4_relief_that_is_switched_off_is_no_excuse() -> None:
    """0 seconds: no relief."""
    tape = starving(Policy(background_max_starvation_seconds=0))
    relieved(tape, (2,), at=100.0)
    assert "S4" in tape.rules


def test_L1_a_start_that_reserves_more_than_is_usable() -> None:
    """60 and 60 of 100."""
    tape = Tape(model("a", 60), model("b", 60))
    tape.hear(JobSubmitted(job(1)), tape.start(1))
    tape.hear(JobSubmitted(job(2, "b", BACKGROUND)), tape.start(2, "b"))
    assert {"L1", "L3"} <= tape.rules


def test_L1_what_others_hold_is_not_usable() -> None:
    """50 held outside, 60 asked for."""
    tape = Tape(model("a", 60), model("b", 60))
    tape.read(50)
    tape.hear(JobSubmitted(job(1)), tape.start(1))
    assert tape.rules == {"L1", "L3"}


def test_L1_memory_of_an_exited_process_counts_until_it_is_released() -> None:
    """Gone, but the card still holds it."""
    tape = Tape(model("a", 60), model("b", 60))
    tape.ready(1, "a", job(1))
    tape.read(60, (1, 60))
    tape.hear(JobEnded(GrantId(1), DONE))
    tape.hear(JobSubmitted(job(2, "b")), stop(1))
    tape.hear(InstanceExited(InstanceId(1)), tape.start(2, "b"))
    assert "L1" in tape.rules


def test_S6c_a_model_is_loaded_while_it_is_loading() -> None:
    """Two jobs, two loads."""
    tape = Tape(model("a", 20), model("b", 20))
    tape.hear(JobSubmitted(job(1)), tape.start(1))
    tape.hear(JobSubmitted(job(2)), tape.start(2))
    assert "S6c" in tape.rules


def test_L6_two_low_loads_at_once() -> None:
    """One low load at a time on the machine."""
    tape = Tape(model("a", 20), model("b", 20))
    tape.hear(JobSubmitted(job(1, "a", BACKGROUND)), tape.start(1))
    tape.hear(JobSubmitted(job(2, "b", BATCH)), tape.start(2, "b"))
    assert tape.rules == {"L6"}


@pytest.mark.parametrize(
    ("here", "of_the_family", "rules"),
    [
        (CHAT, BATCH, {"L6"}),  # a chat's load, whoever else may wait for it
        (BATCH, CHAT, set()),  # perhaps a low one, with a chat's beside it
    ],
)
def test_L6_two_loads_of_chats_at_once(here: JobClass, of_the_family: JobClass, rules: set[str]) -> None:
    """Who named a family may have waited at another variant when the first load began, and waits no more; a chat
    that came since waits for that load, whomever it was for."""
    tape = Tape(model("a", 20), model("b", 20), model("c", 20))
    sizes = (Variant(ModelName("c"), Quality.PREFERRED), Variant(ModelName("a"), Quality.COMPACT))
    tape.hear(FamiliesChanged((FamilySpec(ModelName("f"), sizes),)))
    tape.hear(JobSubmitted(job(1, "f", of_the_family)))
    tape.hear(JobSubmitted(job(2, "a", here)), tape.start(1, "a"))
    tape.hear(JobAbandoned(JobId(1)))
    tape.hear(JobSubmitted(job(3, "a")))
    tape.hear(JobSubmitted(job(4, "b")), tape.start(2, "b"))
    assert tape.rules - {"S2"} == rules


def test_S6a_a_low_load_takes_what_a_chat_needs() -> None:
    """Either would fit alone, the chat has not been loaded for, and now it no longer fits."""
    tape = Tape(model("a", 60), model("b", 60))
    tape.hear(JobSubmitted(job(1)))
    tape.hear(JobSubmitted(job(2, "b", BACKGROUND)), tape.start(2, "b"))
    assert tape.rules == {"S2", "S6a"}


def test_S9_a_load_that_only_warm_jobs_want() -> None:
    """`warm_only`: never load for me."""
    tape = Tape()
    warm = Job(JobId(1), ModelName("a"), CHAT, JobKind.CHAT, warm_only=True)
    tape.hear(JobSubmitted(warm), tape.start(1))
    assert tape.rules == {"S9"}


def test_R3_a_stop_for_nobody() -> None:
    """A ready model that nobody needs out of the way, not idle for long."""
    tape = Tape()
    tape.ready(1, "a", job(1))
    tape.hear(JobEnded(GrantId(1), DONE), stop(1))
    assert tape.rules == {"R3"}


def test_R1_a_pinned_model_is_stopped_for_others() -> None:
    """Never evicted, not for a chat either."""
    tape = Tape(model("a", 60, pinned=True), model("b", 60))
    tape.ready(1, "a", job(1))
    tape.hear(JobEnded(GrantId(1), DONE))
    tape.hear(JobSubmitted(job(2, "b")), stop(1))
    assert tape.rules == {"R1"}


def test_R1_a_hot_model_is_stopped_for_low_work() -> None:
    """A chat used it a moment ago."""
    tape = Tape(model("a", 60), model("b", 60))
    tape.ready(1, "a", job(1))
    tape.hear(JobEnded(GrantId(1), DONE), at=1.0)
    tape.hear(JobSubmitted(job(2, "b", BACKGROUND)), stop(1), at=60.0)
    assert tape.rules == {"R1"}


def test_R4a_a_low_load_is_replaced_by_low_work_before_its_time() -> None:
    """It has work and was loaded ten seconds ago."""
    tape = Tape(model("a", 60, parallel=1), model("b", 60))
    tape.ready(1, "a", job(1, job_class=BACKGROUND))
    tape.hear(JobSubmitted(job(2, "b", BACKGROUND)), at=5.0)
    tape.hear(JobSubmitted(job(3, job_class=BACKGROUND)), at=6.0)
    tape.hear(JobEnded(GrantId(1), DONE), stop(1), at=10.0)
    assert tape.rules == {"R4a"}


@pytest.mark.parametrize(
    ("here", "of_the_family", "by", "rules"),
    [
        (CHAT, BATCH, BATCH, set()),  # loaded for a chat, whoever else may wait for it
        (BATCH, CHAT, BATCH, set()),  # perhaps
        (BACKGROUND, BATCH, BACKGROUND, {"R4a"}),  # surely for background work, at least
        (BATCH, BACKGROUND, BACKGROUND, set()),  # perhaps for batch work, to which this is above
        (BATCH, BACKGROUND, BATCH, {"R4a"}),  # for low work in any case
    ],
)
def test_R4a_whom_a_load_is_for_where_a_family_waits(
    here: JobClass, of_the_family: JobClass, by: JobClass, rules: set[str]
) -> None:
    """Somebody names the model, and somebody its family, who may wait at another variant."""
    tape = Tape(model("a", 60, parallel=1), model("b", 60), policy=Policy(hot_window_seconds=0.0))
    sizes = (Variant(ModelName("b"), Quality.PREFERRED), Variant(ModelName("a"), Quality.COMPACT))
    tape.hear(FamiliesChanged((FamilySpec(ModelName("f"), sizes),)))
    tape.hear(JobSubmitted(job(1, "f", of_the_family)))
    tape.hear(JobSubmitted(job(2, "a", here)), tape.start(1, "a"))
    tape.hear(InstanceReady(InstanceId(1)), grant(job(2, "a", here), 1), at=1.0)
    tape.hear(JobAbandoned(JobId(1)), at=4.0)
    tape.hear(JobSubmitted(job(3, "b", by)), at=5.0)
    tape.hear(JobSubmitted(job(4, "a", BATCH)), at=6.0)
    tape.hear(JobEnded(GrantId(2), DONE), stop(1), at=10.0)
    assert tape.rules == rules


def test_S9_a_job_waits_longer_than_it_may() -> None:
    """Its own limit, and no rejection when it has passed."""
    tape = Tape(model("a", parallel=1), model("b"))
    tape.ready(1, "a", job(1))
    tape.hear(JobSubmitted(job(2, wait=5.0)))
    tape.hear(TimerFired(), at=5.5)
    assert tape.rules == {"S9"}


def test_S9_a_job_is_timed_out_too_early() -> None:
    """Before its limit."""
    tape = Tape(model("a", parallel=1), model("b"))
    tape.ready(1, "a", job(1))
    tape.hear(JobSubmitted(job(2, wait=5.0)))
    tape.hear(TimerFired(), reject(2, RejectionCode.QUEUE_TIMEOUT), at=4.0)
    assert tape.rules == {"S9"}


def test_S9_a_queue_is_longer_than_it_may_be() -> None:
    """One may wait, two do."""
    limits = {job_class: QueueLimits(max_length=1) for job_class in JobClass}
    tape = Tape(model("a", parallel=1), model("b"), policy=Policy(queues=limits))
    tape.ready(1, "a", job(1))
    tape.hear(JobSubmitted(job(2)))
    tape.hear(JobSubmitted(job(3)))
    assert tape.rules == {"S9"}


def test_S9_a_key_has_more_of_a_queue_than_its_share() -> None:
    """Of four that may wait a quarter is its; its second job waits, too."""
    limits = {job_class: QueueLimits(max_length=4) for job_class in JobClass}
    tape = Tape(model("a", parallel=1), model("b"), policy=Policy(queues=limits))
    tape.ready(1, "a", job(1))
    tape.hear(JobSubmitted(replace(job(2), key="red", queue_share=0.25)))
    assert tape.rules == set()
    tape.hear(JobSubmitted(replace(job(3), key="red", queue_share=0.25)))
    assert tape.rules == {"S9"}


@pytest.mark.parametrize(
    "code",
    [
        RejectionCode.MODEL_NOT_FOUND,
        RejectionCode.NOT_RESIDENT,
        RejectionCode.DRAINING,
        RejectionCode.UPSTREAM_ERROR,
        RejectionCode.MODEL_FAILED,
    ],
)
def test_L7_a_rejection_must_be_true(code: RejectionCode) -> None:
    """Nothing of the kind has happened."""
    tape = Tape()
    tape.hear(JobSubmitted(job(1)), reject(1, code))
    assert tape.rules == {"L7"}


def test_P8_nobody_waits_once_the_server_drains() -> None:
    """The waiting job is not rejected."""
    tape = Tape()
    tape.hear(JobSubmitted(job(1)), tape.start(1))
    tape.hear(DrainBegan())
    assert tape.rules == {"P8"}


def test_liveness_a_job_that_never_ends() -> None:
    """When all is healed and over, it still waits."""
    tape = Tape()
    tape.hear(JobSubmitted(job(1)), tape.start(1))
    tape.watch.finish()
    assert tape.rules == {"liveness"}


def test_S2_a_load_that_fits_and_does_not_begin() -> None:
    """An empty card, one chat, and nothing happens."""
    tape = Tape()
    tape.hear(JobSubmitted(job(1)), at=1.0)
    assert tape.rules == {"S2"}


def test_R2_a_process_that_never_lets_go_of_a_step_may_be_stopped() -> None:
    """Its client left longer ago than the limit: the slot is a ghost's, and the process hangs."""
    tape = Tape(policy=Policy(settle_limit_seconds=60))
    tape.ready(1, "a", job(1))
    tape.hear(JobEnded(GrantId(1), GONE, settled=False), at=1.0)
    tape.hear(TimerFired(), stop(1), at=61.0)
    assert tape.rules == set()
