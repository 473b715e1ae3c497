"""Event sequences that broke an earlier draft of the rules about steps: order, reserved slots, returned grants."""

from gridsched.core.events import GrantReturned
from gridsched.core.ids import JobId
from gridsched.core.policy import Policy
from tests.stories.world import BACKGROUND, BATCH, World, model, option


def order_of(world: World, jobs: dict[JobId, str], steps: int) -> str:
    """Whose steps the one slot serves, a letter each."""
    granted = sorted((at, grant.id, jobs[job]) for job in jobs for at, grant in world.grants(job))
    return "".join(name for _, _, name in granted)[:steps]


def test_B10_jobs_of_several_steps_take_turns_alike_with_and_without_chats() -> None:
    """A job of a thousand chunks, one of three and one of one, on one slot: by last progress, in relief too."""
    orders = []
    for chats in (False, True):
        world = World(
            (model("chat", option(4, 2)), model("embed", option(2, 1))),
            step_seconds={"embed": 0.5},
            policy=Policy(background_share=1.0),
        )
        world.warm("chat", "embed", job_class=BACKGROUND)
        if chats:
            world.submit("chat")
        jobs = {
            world.submit("embed", BACKGROUND, steps=1000): "m",
            world.submit("embed", BACKGROUND, steps=3): "t",
            world.submit("embed", BACKGROUND): "o",
        }
        world.advance(40.0)
        orders.append(order_of(world, jobs, 9))
    assert orders == ["mtomtmtmm"] * 2


def test_B10_many_long_jobs_are_served_round_and_round() -> None:
    """Five indexers on two slots: after a while each has had as many chunks as any other, give or take one."""
    world = World((model("embed", option(2, 2)),), step_seconds={"embed": 0.5})
    world.warm("embed", job_class=BACKGROUND)
    jobs = [world.submit("embed", BACKGROUND, steps=1000) for _ in range(5)]
    world.advance(30.0)
    counts = [len(world.grants(job)) for job in jobs]
    assert max(counts) - min(counts) <= 1


def test_B11_the_slot_for_chats_is_kept_only_where_people_chat_and_there_are_two() -> None:
    """A cold model gives all its slots to low work, a hot one all but one, a model of one slot its only one."""
    for slots, warmed_by, low in ((4, BACKGROUND, 4), (4, None, 3), (1, None, 1)):
        world = World((model("m", option(8, slots)),))
        if warmed_by is None:
            world.warm("m")
        else:
            world.warm("m", job_class=warmed_by)
        for _ in range(6):
            world.submit("m", BACKGROUND)
        assert world.running("m") == low


def test_B11_a_configured_figure_is_kept_always() -> None:
    """Two of four slots, hot or cold; none where that is said."""
    for reserved, low in ((2, 2), (0, 4)):
        world = World((model("m", option(8, 4), reserved_slots=reserved),))
        world.warm("m")
        for _ in range(6):
            world.submit("m", BATCH)
        assert world.running("m") == low


def test_B11_a_waiting_chat_keeps_a_slot_that_comes_free() -> None:
    """All slots run low work when the first chat comes: the next free one is the chat's, and then one is kept."""
    world = World((model("m", option(8, 2)),))
    world.warm("m", job_class=BACKGROUND)
    first, second = world.submit("m", BACKGROUND), world.submit("m", BACKGROUND)
    waiting = world.submit("m", BACKGROUND)
    chat = world.submit("m")
    world.finish(first)
    assert world.granted_at(chat) == world.now
    world.finish(chat)
    world.advance(10.0)
    assert world.waits(waiting)
    world.finish(second)
    assert world.granted_at(waiting) == world.now


def test_C10_a_grant_that_is_not_taken_yet_counts_as_running() -> None:
    """For S4 nothing low begins beside it, for S6 its slot is taken, for R2 its process drains and is not stopped."""
    world = World((model("m", option(8, 1)), model("low", option(2)), model("big", option(12))))
    world.warm("m", "low", job_class=BACKGROUND)
    chat = world.submit("m")
    assert world.waits(world.submit("low", BACKGROUND))
    second = world.submit("m")
    assert world.waits(second)
    world.leave(second)
    world.submit("big")
    world.advance(30.0)
    assert world.state("m") == "draining"
    assert world.stops("m") == []
    world.tell(GrantReturned(world.grant(chat).id))
    assert world.stops("m") == [world.now]


def test_C10_a_returned_grant_of_a_turn_ends_the_turn_and_costs_no_share() -> None:
    """The client had left: nothing ran, so the next turn is given at once, and the job is not queued again."""
    world = World((model("chat", option(4, 2)), model("low", option(4, 1))))
    world.warm("chat", "low", job_class=BACKGROUND)
    world.submit("chat")
    gone, after = world.submit("low", BACKGROUND), world.submit("low", BACKGROUND)
    world.advance(3.0)
    world.tell(GrantReturned(world.grant(gone).id))
    assert world.granted_at(after) == world.now
    world.finish(after)
    assert world.scheduler.waiting(gone, world.now) is None
    assert len(world.grants(gone)) == 1


def test_B7_one_batch_job_a_limit_and_device_competes_as_background() -> None:
    """Two batch models starve beside endless background on their own model: a lift on one card is none on the other,
    and the second on the same card waits for two minutes more."""
    names = {"m0": "gpu0", "m1": "gpu1"}
    world = World(
        tuple(model(name, option(6, 1, device=card)) for name, card in names.items()),
        cards={"gpu0": 8.0, "gpu1": 8.0},
        step_seconds=dict.fromkeys(names, 2.0),
    )
    world.warm(*names, job_class=BACKGROUND)
    for name in names:
        for _ in range(2):
            world.submit(name, BACKGROUND)
    jobs = [world.submit(name, BATCH) for name in ("m0", "m1", "m0")]
    asked_at = world.now
    for _ in range(140):
        for name in names:
            world.submit(name, BACKGROUND)
        world.advance(2.0)
    waited = [(world.granted_at(job) or 0.0) - asked_at for job in jobs]
    assert [round(seconds / 120.0, 1) for seconds in waited] == [1.0, 1.0, 2.0]


def test_B7_a_lifted_batch_job_evicts_nothing_hot_and_takes_nothing_a_chat_claims() -> None:
    """It competes as background, so R1 and S6a hold for it as for background."""
    world = World((model("chat", option(12, 2)), model("t", option(8)), model("next", option(12))))
    world.warm("chat")
    job = world.submit("t", BATCH)
    world.advance(200.0)
    assert world.why(job) == "R1"
    busy = world.submit("chat")
    chat = world.submit("next")
    world.advance(30.0)
    world.finish(busy)
    world.advance(15.0)
    assert world.granted_at(chat) is not None
    assert world.waits(job)
