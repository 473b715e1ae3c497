"""What persons asked for outlives the server (R7, R8): what is told to be kept, and what is made of it at the start."""

from dataclasses import replace

from gridsched.core.commands import KeepStanding
from gridsched.core.events import DrainBegan, ModelsChanged, StandingTold
from gridsched.core.ids import DeviceName, ModelName
from gridsched.core.standing import KeptLease, OwnerProcess, Standing, Word
from tests.stories.world import BACKGROUND, World, model, option

GPU0 = DeviceName("gpu0")
A, B = ModelName("a"), ModelName("b")
OWNER = OwnerProcess(4711, 12, "a boot")


def kept(world: World) -> Standing:
    """What was last told to be kept."""
    told = [item.standing for _, item in world.heard if isinstance(item, KeepStanding)]
    return told[-1] if told else Standing()


def again(world: World, standing: Standing) -> World:
    """The next server on the same machine, which is told before its models what was kept."""
    following = World((), cards=world.cards)
    following.tell(StandingTold(standing))
    following.tell(ModelsChanged(world.models))
    return following


def test_R7_a_pin_is_kept_where_a_person_wants_that() -> None:
    """And loads after a restart as one of the configuration's does; one that was said without keeping is not known."""
    world = World((model("a", option(4)), model("b", option(4))))
    world.pin("b")
    assert kept(world) == Standing()
    world.pin("a", keep=True)
    assert kept(world) == Standing((Word(A, pin=True, put_down=False, configured=False),))
    following = again(world, kept(world))
    following.advance(20.0)
    assert (following.state("a"), following.state("b")) == ("ready", "cold")
    following.pin("a", pinned=False, keep=True)
    assert kept(following) == Standing()
    configured = World((model("a", option(4), pinned=True),))
    configured.pin("a", pinned=False, keep=True)
    assert kept(configured) == Standing((Word(A, pin=False, put_down=False, configured=True),))


def test_R7_an_unload_beats_the_pin_after_a_restart_too() -> None:
    """Until a person loads it again, which is kept as well."""
    world = World((model("a", option(4), pinned=True),))
    world.advance(10.0)
    world.unload("a")
    assert kept(world).words == (Word(A, pin=None, put_down=True, configured=True),)
    following = again(world, kept(world))
    following.advance(60.0)
    assert following.loads("a") == []
    following.load("a")
    assert kept(following) == Standing()


def test_R7_a_configuration_that_has_another_word_since_is_the_later_one() -> None:
    """Pinned by a person, then configured as pinned, then as not: the person's word is over."""
    world = World((model("a", option(4)),))
    world.pin("a", keep=True)
    standing = kept(world)
    (spec,) = world.models
    pinned = World((), cards=world.cards)
    pinned.tell(StandingTold(standing))
    pinned.tell(ModelsChanged((replace(spec, pinned=True),)))
    assert kept(pinned) == Standing()
    live = World(world.models)
    live.pin("a", keep=True)
    live.tell(ModelsChanged((replace(spec, pinned=True),)))
    assert kept(live) == Standing()


def test_R7_a_word_waits_for_a_model_whose_folder_is_not_there_yet() -> None:
    """It stays kept, and holds once the model comes."""
    world = World((model("a", option(4)), model("b", option(4))))
    world.pin("a", keep=True)
    following = World((), cards=world.cards)
    following.tell(StandingTold(kept(world)))
    following.tell(ModelsChanged((world.models[1],)))
    following.pin("b", keep=True)
    assert {word.model for word in kept(following).words} == {A, B}
    following.tell(ModelsChanged(world.models))
    following.advance(30.0)
    assert following.state("a") == "ready"


def test_R7_a_pin_that_is_kept_outlives_a_folder_that_is_away_for_a_while() -> None:
    """A disk that is unmounted takes its models with it, while a process of one still works or not. What was to be kept
    stays kept, and holds when they come back; what was not is over."""
    for works in (False, True):
        world = World((model("a", option(4)), model("b", option(4)), model("c", option(1))))
        world.pin("a", keep=True)
        world.pin("b")
        world.advance(20.0)
        if works:
            world.submit("a", BACKGROUND)
        before = kept(world)
        world.tell(ModelsChanged(world.models[2:]))
        assert kept(world) == before
        world.tell(ModelsChanged(world.models))
        world.advance(60.0)
        models = world.scheduler.state.models
        assert (models[A].pinned, models[B].pinned) == (True, False)
        assert world.state("a") in {"ready", "busy"}
        world.pin("a", pinned=False, keep=True)
        assert kept(world) == Standing()


def test_R8_a_lease_goes_on_after_a_restart_and_brings_back_what_it_displaced() -> None:
    """Its end is a moment, not a duration anew; nothing is loaded on the device before it."""
    world = World((model("a", option(4)), model("b", option(4), pinned=False)))
    world.warm("a")
    request = world.lease(owner="training", seconds=60.0)
    world.advance(1.0)
    assert world.done(request)
    (lease,) = kept(world).leases
    assert (lease.device, lease.owner, lease.displaced) == (GPU0, "training", (A,))
    assert lease.until is not None
    left_seconds = lease.until - world.now
    following = again(world, Standing((), (replace(lease, until=left_seconds),)))
    job = following.submit("b")
    following.advance(10.0)
    assert following.rejection(job) is not None
    assert following.loads("a") == []
    following.advance(left_seconds - 10.0)
    following.advance(15.0)
    assert following.state("a") == "ready"
    assert kept(following) == Standing()


def test_R8_a_lease_whose_time_passed_while_no_server_ran_is_over_at_once() -> None:
    """And what it displaced is loaded."""
    world = World((model("a", option(4)),))
    following = again(world, Standing((), (KeptLease(GPU0, "training", 60.0, -5.0, OWNER, (A,)),)))
    following.advance(11.0)
    assert following.state("a") == "ready"
    assert kept(following) == Standing()


def test_R8_a_wall_clock_that_was_set_back_makes_no_lease_longer() -> None:
    """It ends after as long as it was asked for, counted from the start, at the latest."""
    following = again(World((model("a", option(4)),)), Standing((), (KeptLease(GPU0, "training", 60.0, 9e6),)))
    following.advance(59.0)
    assert kept(following).leases
    following.advance(2.0)
    assert kept(following) == Standing()


def test_R8_a_kept_lease_of_a_card_that_is_gone_is_nobodys() -> None:
    """It is forgotten."""
    world = World((model("a", option(4)),))
    following = again(world, Standing((), (KeptLease(DeviceName("gpu9"), "training", 60.0, 30.0),)))
    assert kept(following) == Standing()
    assert following.scheduler.state.leases == {}


def test_P8_what_the_servers_end_ends_is_not_over() -> None:
    """A drain refuses every lease that waits, and nothing of that is told to be kept."""
    world = World((model("a", option(4)),))
    world.lease(owner="training", seconds=60.0)
    before = kept(world)
    assert before.leases
    world.tell(DrainBegan())
    assert kept(world) == before
