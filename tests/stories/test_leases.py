"""A whole card for somebody else (R8): requested, draining, held, and over."""

from gridsched.core.commands import LogEvent
from gridsched.core.events import DevicesChanged, DrainBegan, WishWithdrawn
from gridsched.core.ids import DeviceName
from gridsched.core.model import DeviceSpec
from tests.stories.world import BACKGROUND, BATCH, DIED, GB, World, model, option, spanning

TWO = {"gpu0": 16.0, "gpu1": 16.0}


def lease_state(world: World, card: str = "gpu0") -> str:
    """How far the lease of a card is; "" for none."""
    for device in world.scheduler.snapshot(world.now).devices:
        if device.name == card:
            return device.lease.state.value if device.lease is not None else ""
    return ""


def test_R8_an_empty_card_is_held_at_once() -> None:
    """And is shown with its owner, in the log too."""
    world = World((model("m", option(6)),))
    request = world.lease(owner="training")
    answer = world.answer(request)
    assert answer is not None
    assert dict(answer.detail) == {
        "devices": ["gpu0"],
        "owner": "training",
        "seconds": None,
        "lost_bytes": 0,
        "displaced": [],
    }
    lease = world.scheduler.snapshot(world.now).devices[0].lease
    assert lease is not None
    assert (lease.owner, lease.until_seconds) == ("training", None)
    states = [log.figures["lease"] for _, log in world.logged(LogEvent.LEASE)]
    assert states == ["requested", "draining", "held"]


def test_R8_idle_models_go_and_the_card_is_held_when_their_memory_is_back() -> None:
    """Not before it is verified."""
    world = World((model("m", option(6)),))
    world.warm("m")
    request = world.lease()
    assert world.stops("m") == [world.now]
    world.advance(0.7)
    assert lease_state(world) == "draining"
    world.advance(0.1)
    assert world.done(request)


def test_R8_running_steps_finish_and_nothing_new_begins_there() -> None:
    """The one in flight has all its time; the next one of that model finds no other place, and is refused by name."""
    world = World((model("m", option(6, 2)),))
    world.warm("m")
    running = world.submit("m")
    request = world.lease(owner="training")
    late = world.submit("m")
    world.advance(9.0)
    assert world.waits(late)
    assert world.why(late) == "R8"
    world.advance(1.0)
    refusal = world.rejection(late)
    assert refusal is not None
    assert "gpu0 is leased to training" in refusal.message
    assert "Release gpu0 (leased to training)" in refusal.detail["suggestions"]  # type: ignore[operator]  # a list
    world.finish(running)
    world.advance(1.0)
    assert world.done(request)


def test_R8_low_work_too_is_refused_by_name_after_fit_wait() -> None:
    """It would wait for nobody knows how long; what fits on another card as well does not notice."""
    world = World((model("here", option(6)), model("both", option(6), option(6, device="gpu1"))), cards=TWO)
    world.lease(owner="training")
    jobs = [world.submit("here", job_class) for job_class in (BACKGROUND, BATCH)]
    other = world.submit("both", BACKGROUND)
    world.advance(9.9)
    assert all(world.rejection(job) is None for job in jobs)
    world.advance(0.1)
    for job in jobs:
        refusal = world.rejection(job)
        assert refusal is not None
        assert refusal.code.value == "insufficient_vram"
        assert "training" in refusal.message
    world.advance(1.0)
    assert world.granted_at(other) == 10.0


def test_L7_low_work_that_a_program_outside_keeps_out_still_waits() -> None:
    """Only a lease turns low work away."""
    world = World((model("m", option(12)),))
    world.read(8.0, {})
    world.lease()
    job = world.submit("m", BACKGROUND)
    world.advance(60.0)
    assert world.waits(job)


def test_R8_what_waited_before_the_lease_is_refused_or_served_elsewhere() -> None:
    """A plan that drains a victim there is dissolved and remade on the other card; the victim goes all the same."""
    world = World(
        (
            model("busy", option(10)),
            model("m", option(10), option(10, device="gpu1")),
            model("other", option(10, device="gpu1")),
        ),
        cards=TWO,
    )
    world.warm("other", "busy", job_class=BACKGROUND)
    world.submit("other", BACKGROUND)
    world.submit("busy", BACKGROUND)
    chat = world.submit("m")
    lease = world.lease("gpu0")
    assert (world.state("busy"), world.state("other")) == ("draining", "draining")
    assert world.answer(lease) is None
    assert world.waits(chat)


def test_C4_a_low_load_there_is_aborted_and_begun_elsewhere() -> None:
    """In the step of the request."""
    world = World((model("m", option(6), option(6, device="gpu1")),), cards=TWO)
    job = world.submit("m", BACKGROUND)
    world.advance(5.0)
    request = world.lease("gpu0")
    assert world.stops("m") == [5.0]
    world.advance(0.75)
    assert world.done(request)
    world.advance(10.0)
    assert world.granted_at(job) is not None
    assert world.scheduler.state.instances[world.instance("m")].devices == ("gpu1",)


def test_C4_a_chats_load_there_finishes_and_serves_first() -> None:
    """Ready, it serves the chat that it was loaded for, drains, and the card is held; the second chat is refused."""
    world = World((model("m", option(6)),))
    chat, second = world.submit("m"), world.submit("m")
    world.advance(5.0)
    request = world.lease()
    assert lease_state(world) == "requested"
    world.advance(5.0)
    assert world.granted_at(chat) == 10.0
    assert lease_state(world) == "draining"
    assert world.waits(second)
    world.advance(20.0)
    assert world.rejection(second) is not None
    assert world.stops("m") == []
    world.finish(chat)
    world.advance(1.0)
    assert world.done(request)


def test_C4_a_persons_load_there_finishes_first() -> None:
    """Its wish is answered; then it goes."""
    world = World((model("m", option(6)),))
    load = world.load("m")
    lease = world.lease()
    world.advance(10.0)
    assert world.done(load)
    assert world.stops("m") == [10.0]
    world.advance(1.0)
    assert world.done(lease)


def test_C4_a_model_over_two_cards_goes_and_only_the_leased_one_is_held() -> None:
    """All its devices drain; the other card is used at once."""
    world = World((model("wide", spanning({"gpu0": 8, "gpu1": 8})), model("m", option(10, device="gpu1"))), cards=TWO)
    world.warm("wide")
    running = world.submit("wide")
    request = world.lease("gpu0")
    chat = world.submit("m")
    world.advance(5.0)
    assert world.waits(chat)
    world.finish(running)
    world.advance(11.0)
    assert world.done(request)
    assert world.granted_at(chat) is not None
    assert (lease_state(world, "gpu0"), lease_state(world, "gpu1")) == ("held", "")


def test_R8_conflicts() -> None:
    """A second lease, and a pinned model that is there; not one that is pinned and on another card."""
    world = World((model("p", option(6, device="gpu1"), pinned=True),), cards=TWO)
    world.advance(10.0)
    assert world.refused(world.lease("gpu1")) == "conflict"
    assert world.done(world.lease("gpu0"))
    assert world.refused(world.lease("gpu0")) == "conflict"
    assert world.refused(world.lease("gpu9")) == "not_found"
    assert world.refused(world.release("gpu1")) == "not_found"


def test_R8_a_duration_ends_at_its_moment() -> None:
    """From when it is held; who waited is served then, and the refusal says when."""
    world = World((model("m", option(6)),))
    world.warm("m")
    world.lease(seconds=100.0)
    world.advance(0.75)
    held_at = world.now
    world.advance(95.0)
    job = world.submit("m")
    world.advance(4.9)
    assert lease_state(world) == "held"
    world.advance(0.1)
    assert lease_state(world) == ""
    assert world.loads("m")[-1] == held_at + 100.0
    world.advance(10.0)
    assert world.granted_at(job) is not None


def test_R8_a_release_ends_a_lease_in_any_state() -> None:
    """While a chat loads, while steps run (what drained takes work again), and when it is held."""
    world = World((model("m", option(6, 2)),))
    chat = world.submit("m")
    first = world.lease()
    assert world.done(world.release())
    assert world.refused(first) == "conflict"
    world.advance(10.0)
    second = world.lease()
    assert world.state("m") == "draining"
    assert world.done(world.release())
    assert world.refused(second) == "conflict"
    assert world.state("m") == "ready"
    assert world.granted_at(world.submit("m")) == world.now
    world.finish(chat)
    assert world.stops("m") == []


def test_R8_a_pin_that_can_only_be_there_stays_down_and_comes_back() -> None:
    """With the lease in its arithmetic; it loads when the card is free again."""
    world = World((model("p", option(6), pinned=True),), cards={"gpu0": 16.0})
    world.advance(10.0)
    world.unload("p")
    world.advance(1.0)
    assert world.done(world.lease(owner="training"))
    assert world.done(world.pin("p"))
    world.advance(100.0)
    assert world.loads("p") == [0.0]
    pin = next(iter(world.scheduler.snapshot(world.now).pins_down.values()))
    assert "training" in pin.reason
    world.release()
    world.advance(10.0)
    assert world.state("p") == "ready"


def test_L7_each_suggestion_alone_makes_it_fit_with_a_lease_and_a_pin() -> None:
    """Two cards, one leased, on the other a pin: releasing is enough for what fits on the first, and is said; what
    spans both needs the pin gone too, so neither alone is said."""
    world = World(
        (
            model("p", option(10, device="gpu1"), pinned=True),
            model("wide", spanning({"gpu0": 8, "gpu1": 8})),
            model("m", option(8)),
        ),
        cards=TWO,
    )
    world.advance(10.0)
    world.lease("gpu0", owner="training")
    wide, single = world.submit("wide"), world.submit("m")
    world.advance(10.0)
    of_wide, of_single = world.rejection(wide), world.rejection(single)
    assert of_wide is not None
    assert of_single is not None
    assert of_wide.detail["suggestions"] == []
    assert of_single.detail["suggestions"] == ["Release gpu0 (leased to training)"]


def test_R8_every_lease_is_answered_once_when_the_server_goes_or_the_card_does() -> None:
    """Refused with why."""
    world = World((model("m", option(6)),))
    world.warm("m")
    world.submit("m")
    request = world.lease()
    world.tell(DrainBegan())
    assert world.refused(request) == "draining"
    assert world.refused(world.lease()) == "draining"
    other = World((model("m", option(6)),), cards=TWO)
    other.warm("m")
    other.submit("m")
    request = other.lease("gpu0")
    other.tell(DevicesChanged((DeviceSpec(DeviceName("gpu1"), 16 * GB),)))
    assert other.refused(request) == "not_found"


def test_R8_memory_that_never_comes_back_is_said_and_not_waited_for() -> None:
    """L5's deadline, then it is held with the lost bytes in the answer."""
    world = World((model("m", option(6)),), lag_seconds=None)
    world.warm("m")
    request = world.lease()
    world.advance(19.9)
    assert world.answer(request) is None
    world.advance(0.1)
    answer = world.answer(request)
    assert answer is not None
    assert answer.detail["lost_bytes"] == 6 * GB


def test_R8_a_lease_gives_nobody_a_slot_whom_an_older_plan_kept_waiting() -> None:
    """A chat's plan drains the card's model for a larger one, low work waits; the lease dissolves the plan, and nothing
    new begins there all the same."""
    world = World((model("m", option(8, 2)), model("large", option(12))))
    world.warm("m", job_class=BACKGROUND)
    first = world.submit("m", BACKGROUND)
    world.submit("large")
    late = world.submit("m", BACKGROUND)
    assert world.state("m") == "draining"
    request = world.lease()
    assert world.waits(late)
    world.finish(first)
    world.advance(1.0)
    assert world.done(request)


def test_R8_a_lease_of_no_time_is_over_at_once() -> None:
    """Held and ended in one step."""
    world = World((model("m", option(6)),))
    assert world.done(world.lease(seconds=0.0))
    assert lease_state(world) == ""


def test_P5_a_process_that_died_while_it_drained_for_a_lease_is_not_had_back() -> None:
    """Released in mid-drain: its other step is its last, and the model is loaded anew for who waits."""
    world = World((model("m", option(6, 2)),))
    world.warm("m")
    first, second = world.submit("m"), world.submit("m")
    world.lease()
    world.step_ends(first, DIED)
    world.release()
    assert world.state("m") == "draining"
    world.finish(second, DIED)
    world.advance(11.0)
    assert len(world.grants(first)) == 2
    assert len(world.loads("m")) == 2


def test_R8_a_lease_of_no_time_is_held_and_over_in_one_step() -> None:
    """The card is ours again at once."""
    world = World((model("m", option(8)),))
    wish = world.lease(seconds=0.0)
    assert world.done(wish)
    world.submit("m")
    assert world.loads("m") == [world.now]


# --- several cards ----------------------------------------------------------------------------------------------


def test_R8_several_cards_are_had_all_or_none() -> None:
    """A pinned model on one of them keeps all from whoever asks; nothing has begun to go on the other."""
    world = World((model("m", option(6)), model("p", option(6, device="gpu1"), pinned=True)), cards=TWO)
    world.warm("m")
    world.advance(10.0)
    refused = world.lease("gpu0", "gpu1")
    assert world.refused(refused) == "conflict"
    answer = world.answer(refused)
    assert answer is not None
    assert answer.rejection is not None
    assert "p is pinned on gpu1" in answer.rejection.message
    assert (lease_state(world, "gpu0"), lease_state(world, "gpu1"), world.stops("m")) == ("", "", [])


def test_R8_several_cards_are_answered_when_the_last_is_held_and_their_time_begins_then() -> None:
    """The first waits for the second, and both are ours again in the same moment."""
    world = World((model("m", option(6)),), cards=TWO)
    world.warm("m")
    job = world.submit("m")
    request = world.lease("gpu0", "gpu1", seconds=60.0)
    world.advance(5.0)
    assert (lease_state(world, "gpu0"), lease_state(world, "gpu1")) == ("draining", "held")
    assert world.answer(request) is None
    world.finish(job)
    world.advance(1.0)
    assert world.done(request)
    world.advance(59.5)
    assert (lease_state(world, "gpu0"), lease_state(world, "gpu1")) == ("held", "held")
    world.advance(1.0)
    assert (lease_state(world, "gpu0"), lease_state(world, "gpu1")) == ("", "")


def test_R8_one_that_is_released_before_all_are_held_ends_them_all() -> None:
    """Whoever asked is told; once they are held each is given back by itself."""
    world = World((model("m", option(6)),), cards=TWO)
    world.warm("m")
    job = world.submit("m")
    request = world.lease("gpu0", "gpu1")
    world.release("gpu1")
    assert world.refused(request) == "conflict"
    assert (lease_state(world, "gpu0"), lease_state(world, "gpu1"), world.state("m")) == ("", "", "ready")
    world.finish(job)
    assert world.lease("gpu0", "gpu1")
    world.advance(1.0)
    world.release("gpu1")
    assert (lease_state(world, "gpu0"), lease_state(world, "gpu1")) == ("held", "")


def test_R8_who_wants_it_no_more_before_it_is_held_leaves_nothing_behind() -> None:
    """What drained for it takes work again; nobody is answered."""
    world = World((model("m", option(6)),))
    world.warm("m")
    world.submit("m")
    request = world.lease()
    assert world.state("m") == "draining"
    world.tell(WishWithdrawn(request))
    assert (lease_state(world), world.state("m"), world.answer(request)) == ("", "ready", None)


# --- what it displaced ------------------------------------------------------------------------------------------


def test_R8_what_a_lease_displaced_comes_back_at_its_end() -> None:
    """As background work, in order; what had not been ready is nobody's to bring back."""
    world = World((model("a", option(4)), model("b", option(4)), model("c", option(4))))
    world.warm("a", "b")
    request = world.lease(seconds=60.0)
    world.advance(1.0)
    answer = world.answer(request)
    assert answer is not None
    assert answer.detail["displaced"] == ["a", "b"]
    world.advance(61.0)
    assert world.state("a") == "starting"
    world.advance(25.0)
    assert [world.state(name) for name in ("a", "b", "c")] == ["ready", "ready", "cold"]


def test_R8_what_a_person_had_loaded_otherwise_comes_back_as_it_was() -> None:
    """By her launch and with her time to be idle; and as configured, where another has that room by then."""
    world = World((model("m", option(6)), model("b", option(7))))
    for room_is_taken in (False, True):
        world.load("m", option(10, 3), ttl=900.0)
        world.advance(30.0)
        world.lease()
        world.advance(20.0)
        if room_is_taken:
            world.read(8.0, {})
        world.release()
        world.advance(30.0)
        (instance,) = world.scheduler.state.instances.values()
        assert (instance.parallel, instance.person_ttl_seconds) == (1 if room_is_taken else 3, 900.0)
        assert world.state("m") == "ready"
        world.unload("m")
        world.advance(1.0)


def test_R8_what_comes_back_from_one_lease_comes_back_from_the_next_one_too() -> None:
    """It was being loaded again when the card was leased again, for longer than its place is waited for."""
    world = World((model("a", option(4)),))
    world.load("a", option(5, 3), ttl=9000.0)
    world.advance(30.0)
    world.lease()
    world.advance(1.0)
    world.release()
    world.advance(1.0)
    assert world.state("a") == "starting"
    answer = world.lease(seconds=3600.0)
    world.advance(5.0)
    told = world.answer(answer)
    assert told is not None
    assert told.detail["displaced"] == ["a"]
    world.advance(3600.0)
    world.advance(20.0)
    (instance,) = world.scheduler.state.instances.values()
    assert (instance.parallel, instance.person_ttl_seconds) == (3, 9000.0)


def test_R8_what_comes_back_evicts_nobody_and_gives_up_after_a_while() -> None:
    """Somebody else is at home there: he stays, cold as he is, and ten minutes later his place is not waited for."""
    world = World((model("a", option(10)), model("b", option(10))))
    world.warm("a")
    world.lease()
    world.advance(1.0)
    chat = world.submit("b")
    world.release()
    world.advance(11.0)
    assert world.granted_at(chat) is not None
    world.finish(chat)
    world.advance(400.0)  # b is cold by now
    assert (world.state("a"), world.state("b")) == ("cold", "ready")
    assert world.scheduler.state.errands
    world.advance(300.0)
    assert not world.scheduler.state.errands
    world.unload("b")
    world.advance(30.0)
    assert world.state("a") == "cold"


def test_R8_what_a_person_unloads_meanwhile_or_is_ready_elsewhere_does_not_come_back() -> None:
    """Of three that had to go one is wanted gone, one serves on the other card: the third alone is loaded again."""
    both = (option(4), option(4, device="gpu1"))
    world = World((model("a", option(4)), model("b", *both), model("c", option(4))), cards=TWO)
    world.warm("b", "a", "c")
    assert {str(world.scheduler.state.instances[world.instance(name)].devices[0]) for name in "abc"} == {"gpu0"}
    world.lease()
    world.advance(1.0)
    world.unload("a")
    chat = world.submit("b")
    world.advance(11.0)
    world.finish(chat)
    world.release()
    world.advance(30.0)
    assert [world.state(name) for name in "abc"] == ["cold", "ready", "ready"]
    assert len(world.loads("b")) == 2


def test_R8_a_lease_that_is_over_in_mid_drain_brings_back_only_what_has_gone() -> None:
    """The idle one has gone and is loaded again, the busy one never went."""
    world = World((model("idle", option(4)), model("busy", option(4))))
    world.warm("idle", "busy")
    world.submit("busy")
    world.lease()
    assert world.state("busy") == "draining"
    world.release()
    assert world.state("busy") == "ready"
    world.advance(20.0)
    assert world.state("idle") == "ready"
    assert (len(world.loads("idle")), len(world.loads("busy"))) == (2, 1)


def test_R8_what_comes_back_keeps_no_job_of_its_model_from_having_it_loaded() -> None:
    """Nobody goes for a courtesy; for a job that waits for the same model somebody does."""
    world = World((model("a", option(10)), model("b", option(10))))
    world.warm("a", job_class=BACKGROUND)
    world.lease()
    world.advance(1.0)
    other = world.submit("b", BACKGROUND)
    world.release()
    world.advance(11.0)
    assert world.granted_at(other) is not None
    world.finish(other)
    world.advance(60.0)
    assert world.scheduler.state.errands
    job = world.submit("a", BACKGROUND)
    world.advance(15.0)
    assert world.granted_at(job) is not None
