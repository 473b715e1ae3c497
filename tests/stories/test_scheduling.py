"""S1 to S9: who goes, in which order, and what a chat does to low work."""

import pytest

from gridsched.core.commands import GrantStep, Log, LogEvent, RejectionCode
from gridsched.core.events import GrantReturned, PolicyChanged, SlotSettled
from gridsched.core.job import JobClass, Outcome, OutcomeKind
from gridsched.core.policy import Policy, QueueLimits
from tests.stories.world import BACKGROUND, BATCH, CHAT, World, model, option, spanning

GONE = Outcome(OutcomeKind.CLIENT_GONE, answered=False)


def two_models(**more: object) -> World:
    """A chat model with two slots and an embedder with one, both warm and cool; a step of the embedder takes 0.4 s."""
    world = World((model("chat", option(6, 2)), model("embed", option(2, 1))), step_seconds={"embed": 0.4}, **more)  # type: ignore[arg-type]
    world.warm("chat", "embed", job_class=BACKGROUND)
    return world


def test_S7_chat_into_a_32_step_job_is_dispatched_in_the_step_of_its_arrival() -> None:
    """300 ms into a 32-step embedding job a chat arrives: enqueue, dispatch, grant, nothing between."""
    world = two_models()
    job = world.submit("embed", BACKGROUND, steps=32)
    world.advance(0.3)
    chat = world.submit("chat")
    assert world.running("embed") == 1
    assert world.granted_at(chat) == world.now
    lines = [item.event for item in world.last if isinstance(item, Log)]
    assert lines[:2] == [LogEvent.ENQUEUE, LogEvent.DISPATCH]
    assert isinstance(world.last[2], GrantStep)
    assert world.last[2].grant.job_id == chat
    assert world.grant(job).step == 1


def test_S4_no_low_step_until_exactly_two_seconds_after_the_last_chat_then_the_next_chunk() -> None:
    """The 32-step job stands from the chat's arrival until 2.0 s after its end, to the moment, then goes on."""
    world = two_models()
    job = world.submit("embed", BACKGROUND, steps=32)
    world.advance(0.3)
    chat = world.submit("chat")
    world.advance(0.5)
    world.finish(chat)
    ended_at = world.now
    assert world.timer_at == ended_at + 2.0
    world.advance(1.999)
    assert [grant.step for _, grant in world.grants(job)] == [1]
    assert world.why(job) == "S4"
    world.advance(0.001)
    assert world.grants(job)[-1][0] == ended_at + 2.0
    assert world.grant(job).step == 2
    world.advance(20.0)
    assert [grant.step for _, grant in world.grants(job)] == list(range(1, 33))


def test_S4_every_chat_that_ran_moves_the_tail() -> None:
    """Two chats overlap: the two seconds count from the end of the last."""
    world = two_models()
    first, second = world.submit("chat"), world.submit("chat")
    world.finish(first)
    world.advance(1.5)
    low = world.submit("embed", BACKGROUND)
    world.finish(second)
    world.advance(1.9)
    assert world.waits(low)
    world.advance(0.1)
    assert world.granted_at(low) == world.now


def test_S4_a_waiting_chat_with_a_busy_model_holds_its_device() -> None:
    """All slots of the chat's model run low work: the chat that waits for one keeps other low work from starting."""
    world = World((model("chat", option(6, 1)), model("embed", option(2, 1))))
    world.warm("chat", "embed", job_class=BACKGROUND)
    low = world.submit("chat", BACKGROUND)
    chat = world.submit("chat")
    other = world.submit("embed", BACKGROUND)
    assert world.waits(chat)
    assert world.waits(other)
    world.finish(low)
    assert world.granted_at(chat) == world.now
    assert world.waits(other)


def test_S4_other_devices_are_not_held() -> None:
    """A chat on one card leaves low work on another alone."""
    world = World((model("chat", option(6)), model("far", option(6, device="gpu1"))), cards={"gpu0": 8.0, "gpu1": 8.0})
    world.warm("chat", "far", job_class=BACKGROUND)
    world.submit("chat")
    assert world.granted_at(world.submit("far", BACKGROUND)) == world.now


def test_S4_a_model_over_two_cards_holds_both() -> None:
    """A chat on a spanning model keeps low work from either card."""
    world = World(
        (model("wide", spanning({"gpu0": 4, "gpu1": 4})), model("far", option(2, device="gpu1"))),
        cards={"gpu0": 8.0, "gpu1": 8.0},
    )
    world.warm("wide", "far", job_class=BACKGROUND)
    chat = world.submit("wide")
    low = world.submit("far", BACKGROUND)
    assert world.waits(low)
    world.finish(chat)
    world.advance(2.0)
    assert world.granted_at(low) == world.now


def test_S1_classes_go_strictly_in_order() -> None:
    """One slot, three classes waiting: interactive, then background, then batch, whatever came first."""
    world = World((model("m", option(6, 1)),), policy=Policy(interactive_cooldown_seconds=0.0))
    world.warm("m")
    running = world.submit("m")
    waiting = {cls: world.submit("m", cls) for cls in (BATCH, BACKGROUND, CHAT)}
    for job_class in (CHAT, BACKGROUND, BATCH):
        world.finish(running)
        running = waiting[job_class]
        assert world.granted_at(running) == world.now


def test_S2_first_in_first_out_within_a_class() -> None:
    """Chats of one model are granted in the order of their arrival."""
    world = World((model("m", option(6, 1)),))
    world.warm("m")
    jobs = [world.submit("m") for _ in range(5)]
    for job in jobs:
        world.advance(0.1)
        world.finish(job)
    assert [world.granted_at(job) for job in jobs] == sorted(world.granted_at(job) or 0 for job in jobs)


def test_S3_jobs_of_several_steps_take_turns_by_their_last_progress() -> None:
    """A one-chunk job does not wait for all of a 1,000-chunk one, and at most one step of a job is in flight."""
    world = World((model("embed", option(2, 1)),), step_seconds={"embed": 0.4})
    world.warm("embed", job_class=BACKGROUND)
    long = world.submit("embed", BACKGROUND, steps=1000)
    world.advance(0.2)
    short = world.submit("embed", BACKGROUND)
    world.advance(0.2)
    assert world.granted_at(short) == world.now
    world.advance(0.4)
    assert world.grant(long).step == 2


def test_S3_a_job_has_one_step_in_flight_even_with_free_slots() -> None:
    """Four slots, one job of three steps: one slot is used."""
    world = World((model("embed", option(2, 4)),))
    world.warm("embed", job_class=BACKGROUND)
    world.submit("embed", BACKGROUND, steps=3)
    assert world.running("embed") == 1


@pytest.mark.slow
def test_S5b_a_batch_job_starved_for_long_competes_as_background_once() -> None:
    """Background never stops on a one-slot model; after 2 minutes a batch job goes first, and the next 2 later."""
    world = World((model("m", option(6, 1)),), step_seconds={"m": 1.0})
    world.warm("m", job_class=BACKGROUND)
    world.submit("m", BACKGROUND)
    first, second = world.submit("m", BATCH), world.submit("m", BATCH)
    asked_at = world.now
    for _ in range(500):
        world.submit("m", BACKGROUND)
        world.advance(0.5)
    assert (world.granted_at(first) or 0) - asked_at == pytest.approx(120.0, abs=1.0)
    assert (world.granted_at(second) or 0) - (world.granted_at(first) or 0) == pytest.approx(120.0, abs=1.0)


def test_S6_never_more_steps_than_slots() -> None:
    """Five chats, two slots: three wait in our own queue."""
    world = World((model("m", option(6, 2)),))
    world.warm("m")
    jobs = [world.submit("m") for _ in range(5)]
    assert world.running("m") == 2
    assert [world.waits(job) for job in jobs] == [False, False, True, True, True]
    assert world.why(jobs[2]) == "S6"


def test_S6_one_slot_is_kept_for_chats_while_people_chat_with_a_model() -> None:
    """Two slots: while the model is hot low work gets one; when it has cooled, to the moment, the other too."""
    world = World((model("m", option(6, 2)),))
    world.warm("m")
    last_chat_at = world.now - 10.0
    first, second = world.submit("m", BACKGROUND), world.submit("m", BACKGROUND)
    assert (world.waits(first), world.waits(second)) == (False, True)
    assert world.granted_at(world.submit("m")) == world.now
    chat = world.submit("m")
    assert world.waits(chat)
    world.leave(chat)
    world = World((model("m", option(6, 2)),))
    world.warm("m")
    world.submit("m", BACKGROUND)
    second = world.submit("m", BACKGROUND)
    world.advance(299.0 - 10.0)
    assert world.waits(second)
    world.advance(1.0)
    assert world.granted_at(second) == pytest.approx(last_chat_at + 300.0)


def test_S6b_a_ready_model_never_waits_behind_a_load() -> None:
    """The oldest background job needs a load; a younger one's model is ready: it runs at once."""
    world = World((model("cold", option(6)), model("warm", option(6))))
    world.warm("warm", job_class=BACKGROUND)
    loads = world.submit("cold", BACKGROUND)
    runs = world.submit("warm", BACKGROUND)
    assert world.waits(loads)
    assert world.granted_at(runs) == world.now


def test_S6b_until_its_model_drains_for_an_older_job() -> None:
    """The younger job's model has to go for the older one's load: it takes no new step."""
    world = World((model("big", option(12)), model("small", option(6, 2))), policy=Policy(min_residency_seconds=0.0))
    world.warm("small", job_class=BACKGROUND)
    running = world.submit("small", BACKGROUND)
    older = world.submit("big", BACKGROUND)
    assert world.state("small") == "draining"
    younger = world.submit("small", BACKGROUND)
    assert world.waits(younger)
    assert world.why(younger) == "S6b"
    world.finish(running)
    world.advance(11.0)
    assert world.granted_at(older) is not None


def test_S6c_a_cold_model_is_loaded_once_for_everybody() -> None:
    """Twenty jobs of all classes ask for a cold model: one load."""
    world = World((model("m", option(6, 4)),))
    for job_class in list(JobClass) * 7:
        world.submit("m", job_class)
    world.advance(60.0)
    assert len(world.loads("m")) == 1


def test_S6c_a_load_under_half_way_ends_with_its_last_waiter() -> None:
    """The only waiter leaves after 4 of 10 s: the load is aborted, which is no failure."""
    world = World((model("m", option(6)),))
    job = world.submit("m")
    world.advance(4.0)
    world.leave(job)
    assert world.stops("m") == [4.0]
    world.advance(2.0)
    world.submit("m")
    assert len(world.loads("m")) == 2


def test_S6c_a_load_further_on_is_finished() -> None:
    """The only waiter leaves after 6 of 10 s: the model becomes ready for the next one."""
    world = World((model("m", option(6)),))
    job = world.submit("m")
    world.advance(6.0)
    world.leave(job)
    world.advance(4.0)
    assert world.state("m") == "ready"


def test_S6c_a_joined_load_stays_when_the_one_who_began_it_leaves() -> None:
    """Two wait for a load, the first leaves."""
    world = World((model("m", option(6)),))
    first, second = world.submit("m"), world.submit("m")
    world.leave(first)
    world.advance(10.0)
    assert world.granted_at(second) == 10.0


def test_S7_a_returned_grant_opens_no_tail_and_frees_its_slot() -> None:
    """The client left between grant and taking: no two seconds, no second queueing, the next one goes."""
    world = two_models()
    chat = world.submit("chat")
    low = world.submit("embed", BACKGROUND)
    world.advance(0.1)
    assert world.waits(low)
    world.tell(GrantReturned(world.grant(chat).id))
    assert world.granted_at(low) == world.now
    assert not world.waits(chat)


def test_S7_abandoning_a_job_that_was_just_granted_returns_its_grant() -> None:
    """The leaving and the grant have crossed."""
    world = two_models()
    chat = world.submit("chat")
    world.leave(chat)
    assert world.running("chat") == 0
    assert world.granted_at(world.submit("embed", BACKGROUND)) == world.now
    world.leave(chat)
    assert world.running("chat") == 0


def test_S8_a_waiting_job_leaves_at_once_and_costs_nothing() -> None:
    """It is never granted."""
    world = two_models()
    running = world.submit("embed", BACKGROUND)
    waiting = world.submit("embed", BACKGROUND)
    world.leave(waiting)
    world.advance(5.0)
    assert world.granted_at(running) is not None
    assert world.granted_at(waiting) is None


def test_S8_the_slot_of_a_cancelled_step_is_free_when_the_engine_is_done() -> None:
    """The client left in mid-step: the job is over, the slot is not; the tail counts from the job's end."""
    world = World((model("m", option(6, 1)), model("embed", option(2))))
    world.warm("m", "embed", job_class=BACKGROUND)
    chat = world.submit("m")
    grant = world.grant(chat)
    world.finish(chat, GONE, settled=False)
    after = world.submit("m")
    assert world.waits(after)
    assert world.running("m") == 1
    world.advance(1.0)
    world.tell(SlotSettled(grant.id))
    assert world.granted_at(after) == world.now
    world.tell(SlotSettled(grant.id))
    assert world.running("m") == 1


def test_S9_an_engine_that_goes_on_for_nobody_beside_others_is_let_be_for_ten_minutes() -> None:
    """Whoever comes has the other slot, one after the other; as soon as there is nobody else at a look, a minute after
    the one before, it is held to the minute."""
    world = World((model("m", option(6, 2)),))
    world.warm("m")
    left, healthy = world.submit("m"), world.submit("m")
    world.finish(left, GONE, settled=False)
    for _ in range(5):
        world.advance(50.0)
        follows = world.submit("m")
        world.finish(healthy)
        assert world.granted_at(follows) == world.now
        healthy = follows
    world.finish(healthy)
    world.advance(49.0)
    assert world.state("m") == "ready"
    world.advance(2.0)
    assert len(world.stops("m")) == 1


def test_S9_an_engine_that_never_settles_is_restarted() -> None:
    """The client has left, the engine hangs: ten minutes later, though there is another, its slot is given up and the
    process is replaced."""
    world = World((model("m", option(6, 2)),))
    world.warm("m")
    left, healthy = world.submit("m"), world.submit("m")
    world.finish(left, GONE, settled=False)
    after = world.submit("m")
    world.advance(599.0)
    assert world.state("m") == "ready"
    world.advance(2.0)
    assert world.state("m") == "draining"
    assert world.stops("m") == []
    world.finish(healthy)
    assert world.stops("m") == [world.now]
    world.advance(11.0)
    assert world.granted_at(after) is not None


def short_queues() -> Policy:
    """Two may wait in each class, low ones 60 s."""
    limits = QueueLimits(max_length=2, max_wait_seconds=60.0)
    return Policy(queues={CHAT: QueueLimits(max_length=2), BACKGROUND: limits, BATCH: limits})


def test_S9_a_full_queue_refuses_and_says_when_to_come_again() -> None:
    """The third waiter is refused; what it is told follows from how fast the queue moves."""
    world = World((model("m", option(6, 1)),), policy=short_queues())
    world.warm("m")
    jobs = [world.submit("m") for _ in range(3)]
    refused = world.submit("m")
    rejection = world.rejection(refused)
    assert rejection is not None
    assert rejection.code is RejectionCode.QUEUE_FULL
    for job in jobs:
        world.advance(10.0)
        world.finish(job)
    jobs = [world.submit("m") for _ in range(3)]
    rejection = world.rejection(world.submit("m"))
    assert rejection is not None
    assert 5.0 <= (rejection.retry_after_seconds or 0) <= 15.0
    assert rejection.detail["max_length"] == 2


def test_S9_no_queue_is_too_full_for_a_job_that_need_not_wait() -> None:
    """Two chats wait for a busy model; one for a free model is served."""
    world = World((model("m", option(6, 1)), model("free", option(2))), policy=short_queues())
    world.warm("m", "free")
    for _ in range(3):
        world.submit("m")
    assert world.granted_at(world.submit("free")) == world.now


def test_S9_the_longest_wait_ends_at_its_moment() -> None:
    """Background may wait 60 s here; the refusal comes then, names what is busy, and chats wait for ever."""
    world = World((model("m", option(6, 1)),), policy=short_queues())
    world.warm("m")
    world.submit("m")
    low, chat = world.submit("m", BACKGROUND), world.submit("m")
    world.advance(59.9)
    assert world.rejection(low) is None
    world.advance(0.1)
    rejection = world.rejection(low)
    assert rejection is not None
    assert rejection.code is RejectionCode.QUEUE_TIMEOUT
    assert rejection.detail["busy_models"] == ["m"]
    world.advance(3600.0)
    assert world.waits(chat)


def test_S9_who_may_not_wait_at_all_is_granted_or_refused_in_the_step_of_its_arrival() -> None:
    """A longest wait of 0: one finds a slot, the next is told at once, and no timer is set for it."""
    world = World((model("m", option(4, 1)),))
    world.warm("m")
    first = world.submit("m", max_wait=0.0)
    assert world.granted_at(first) == world.now
    second = world.submit("m", max_wait=0.0)
    refused = world.rejection(second)
    assert refused is not None
    assert refused.code is RejectionCode.QUEUE_TIMEOUT
    assert world.timer_at is None


def test_S9_a_shorter_longest_wait_holds_at_once_for_those_who_have_waited_longer() -> None:
    """The configuration is changed: whoever has waited too long by it is told in that step."""
    world = World((model("m", option(4, 1)),))
    world.warm("m")
    world.submit("m")
    late = world.submit("m")
    world.advance(60.0)
    fresh = world.submit("m")
    limits = {**Policy().queues, CHAT: QueueLimits(max_wait_seconds=30.0)}
    world.tell(PolicyChanged(Policy(queues=limits)))
    assert world.rejection(late) is not None
    assert world.waits(fresh)
    assert world.timer_at == world.now + 30.0


def test_S9_a_request_may_carry_its_own_longest_wait() -> None:
    """Half a second, then refused; a job that was granted in time is not."""
    world = World((model("m", option(6, 1)),))
    world.warm("m")
    granted = world.submit("m", max_wait=0.5)
    hasty = world.submit("m", max_wait=0.5)
    world.advance(0.5)
    rejection = world.rejection(hasty)
    assert rejection is not None
    assert rejection.code is RejectionCode.QUEUE_TIMEOUT
    assert world.rejection(granted) is None


def test_S9_warm_only_is_refused_where_nothing_is_loaded_and_joins_a_load() -> None:
    """It begins no load, joins one, and does not keep it alive."""
    world = World((model("m", option(6)),))
    alone = world.submit("m", warm_only=True)
    rejection = world.rejection(alone)
    assert rejection is not None
    assert rejection.code is RejectionCode.NOT_RESIDENT
    assert not world.loads("m")
    starter = world.submit("m")
    joiner = world.submit("m", warm_only=True)
    assert world.waits(joiner)
    world.advance(1.0)
    world.leave(starter)
    assert world.stops("m") == [world.now]
    assert world.rejection(joiner) is not None


def test_S9_no_evict_loads_into_free_memory_only() -> None:
    """It loads where there is room; where another would have to go it is refused and nothing goes."""
    world = World((model("a", option(6)), model("b", option(6)), model("c", option(6))))
    world.warm("a")
    fits = world.submit("b", no_evict=True)
    world.advance(10.0)
    assert world.granted_at(fits) is not None
    world.finish(fits)
    rejection = world.rejection(world.submit("c", no_evict=True))
    assert rejection is not None
    assert rejection.code is RejectionCode.NOT_RESIDENT
    assert (world.state("a"), world.state("b")) == ("ready", "ready")


def test_S9b_a_waiting_job_says_where_it_stands() -> None:
    """Position within its class over all models, and the words for why."""
    world = World((model("m", option(6, 1)),))
    world.submit("m")
    second = world.submit("m")
    view = world.scheduler.waiting(second, 3.0)
    assert view is not None
    assert (view.position, view.rule, view.reason) == (2, "S6c", "loading m (3s)")
    assert world.scheduler.waiting(second, 3.0) in world.scheduler.jobs(3.0).waiting
