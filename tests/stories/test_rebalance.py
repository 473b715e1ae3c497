"""R9: an idle model moves off a device that it shares; the lowest of all work."""

from gridsched.core.commands import LogEvent, StartInstance
from gridsched.core.events import Failure, FailureCause, InstanceReady, ModelsChanged, PolicyChanged
from gridsched.core.ids import ModelName
from gridsched.core.job import Outcome, OutcomeKind
from gridsched.core.policy import Policy
from tests.stories.world import BACKGROUND, BATCH, World, model, option

CARDS = {"gpu0": 16.0, "gpu1": 16.0}


def shared() -> World:
    """Two models on the first card; one of them could be on the second as well. The second was full when they came."""
    world = World(
        (
            model("guest", option(15, device="gpu1")),
            model("stays", option(6)),
            model("moves", option(5, 2), option(5, 2, device="gpu1"), option(3, 1, device="gpu1")),
            model("third", option(1)),
        ),
        CARDS,
        step_seconds={"guest": 1.0, "stays": 1.0, "moves": 1.0, "third": 1.0},
    )
    world.warm("guest", "stays", "moves", job_class=BACKGROUND)
    assert device_of(world, "moves") == "gpu0"
    return world


def device_of(world: World, name: str) -> str | None:
    """Where a model is."""
    instance = world.scheduler.state.models[ModelName(name)].instance
    return instance.device if instance is not None else None


def guest_goes(world: World) -> None:
    """The second card comes free: a person's configuration has the guest no more."""
    world.tell(ModelsChanged(tuple(spec for spec in world.models if spec.name != "guest")))
    world.advance(2.0)
    assert device_of(world, "guest") is None


def move_begins(world: World) -> None:
    """Five minutes after its last work, and a second."""
    guest_goes(world)
    instance = world.scheduler.state.models[ModelName("moves")].instance
    assert instance is not None
    world.advance(instance.last_used_at + 301.0 - world.now)
    assert processes(world, "moves") == 2


def moves_of(world: World) -> list[float]:
    """When moves began."""
    return [at for at, log in world.logged(LogEvent.LOAD) if log.rule == "R9"]


def processes(world: World, name: str) -> int:
    """How many of a model start or serve."""
    found = world.scheduler.state.instances.values()
    return sum(1 for item in found if item.model.name == name and item.state.value in ("starting", "ready"))


def test_R9_a_model_idle_for_five_minutes_moves_at_its_exact_settings_new_before_old() -> None:
    """Five minutes after its last work, to the second: a second process is loaded beside it with the same context and
    slots; the old one serves until the new one is ready, and goes in that step."""
    world = shared()
    guest_goes(world)
    instance = world.scheduler.state.models[ModelName("moves")].instance
    assert instance is not None
    idle_at = instance.last_used_at + 300.0
    world.advance(idle_at - world.now - 0.1)
    assert moves_of(world) == []
    world.advance(0.2)
    assert moves_of(world) == [idle_at]
    start = [item for _, item in world.heard if isinstance(item, StartInstance)][-1]
    assert (start.option.devices, start.option.ctx_size, start.option.parallel) == (("gpu1",), 8192, 2)
    assert (device_of(world, "moves"), processes(world, "moves")) == ("gpu0", 2)
    world.advance(10.0)
    assert (device_of(world, "moves"), processes(world, "moves")) == ("gpu1", 1)
    assert world.stops("moves") == [idle_at + 10.0]
    job = world.submit("moves")
    assert world.granted_at(job) == world.now


def test_C9_a_move_is_given_up_at_any_arrival_for_its_model_which_is_served_at_once() -> None:
    """A chat comes while the new process is loading: it is granted on the old one in the same step, the new one is told
    to stop, and for half an hour nobody tries again."""
    world = shared()
    move_begins(world)
    job = world.submit("moves")
    assert world.granted_at(job) == world.now
    assert processes(world, "moves") == 1
    assert device_of(world, "moves") == "gpu0"
    assert [log.rule for _, log in world.logged(LogEvent.STOP)][-1] == "R9"
    began_at = moves_of(world)[0]
    world.advance(began_at + 1800.0 - world.now - 1.0)
    assert len(moves_of(world)) == 1
    world.advance(2.0)
    assert moves_of(world) == [began_at, began_at + 1800.0]


def test_C9_a_move_that_fails_leaves_the_model_serving() -> None:
    """The new process dies while it loads: no back-off, nobody is refused, and no second try before its time."""
    world = shared()
    world.broken["moves"] = Failure(FailureCause.CRASHED, "it died")
    move_begins(world)
    world.advance(20.0)
    assert len(moves_of(world)) == 1
    job = world.submit("moves")
    assert world.granted_at(job) == world.now
    assert device_of(world, "moves") == "gpu0"
    world.advance(600.0)
    assert len(moves_of(world)) == 1


def test_C9_a_move_needs_room_for_both() -> None:
    """The other card is empty and too small for it."""
    world = World(
        (model("stays", option(6)), model("moves", option(5), option(5, device="gpu1"))),
        {"gpu0": 16.0, "gpu1": 4.0},
        step_seconds={"stays": 1.0, "moves": 1.0},
    )
    world.warm("stays", "moves", job_class=BACKGROUND)
    world.advance(4000.0)
    assert moves_of(world) == []


def test_R9_a_move_evicts_nobody_and_gets_off_a_shared_device_only() -> None:
    """The other card has an idle model: moving there would only share another card. And one that is alone stays."""
    world = shared()
    world.advance(4000.0)
    assert moves_of(world) == []
    assert len(world.loads("guest")) == 1


def test_R9_any_load_that_is_waited_for_goes_before_a_move() -> None:
    """Batch work for a third model comes in mid-move: the move is given up, whatever the load needs."""
    world = shared()
    move_begins(world)
    job = world.submit("stays", BATCH)
    world.advance(1.0)
    assert world.granted_at(job) is not None
    assert processes(world, "moves") == 2, "work that has its model ready is in nobody's way"
    low = world.submit("third", BATCH)
    assert processes(world, "moves") == 1
    world.advance(20.0)
    assert world.granted_at(low) is not None


def test_R9_a_model_moves_when_the_memory_of_a_program_outside_comes_back() -> None:
    """A game holds the other card for an hour: nothing happens, nobody looks. When it ends the move begins."""
    world = World(
        (model("stays", option(6)), model("moves", option(5), option(5, device="gpu1"))),
        CARDS,
        step_seconds={"stays": 1.0, "moves": 1.0},
    )
    world.read(14.0, {}, "gpu1")
    world.warm("stays", "moves", job_class=BACKGROUND)
    assert device_of(world, "moves") == "gpu0"
    for _ in range(60):
        world.advance(60.0)
        world.read(14.0, {}, "gpu1")
    assert moves_of(world) == []
    world.read(1.0, {}, "gpu1")
    assert moves_of(world) == [world.now]
    world.advance(11.0)
    assert device_of(world, "moves") == "gpu1"


def test_R9_the_old_process_dies_in_mid_move_and_the_next_job_loads_the_model_anew() -> None:
    """The successor of none is stopped: whoever comes has the model loaded as always."""
    world = shared()
    move_begins(world)
    world.dies(world.instance("moves"), Failure(FailureCause.CRASHED, "it died"))
    assert processes(world, "moves") == 0
    world.advance(5.0)
    job = world.submit("moves")
    world.advance(11.0)
    assert world.granted_at(job) is not None


def test_R9_a_stop_that_crosses_the_new_ones_readiness_holds() -> None:
    """Given up, and ready a moment later: the message was under way."""
    world = shared()
    move_begins(world)
    successor = world.scheduler.state.models[ModelName("moves")].successor
    assert successor is not None
    job = world.submit("moves")
    world.tell(InstanceReady(successor.id))
    assert device_of(world, "moves") == "gpu0"
    assert world.granted_at(job) is not None
    world.advance(30.0)
    assert processes(world, "moves") == 1


def test_R9_a_model_that_is_alone_on_its_card_stays_though_another_is_empty() -> None:
    """There is nothing to be gained."""
    world = World((model("alone", option(5), option(5, device="gpu1")),), CARDS, step_seconds={"alone": 1.0})
    world.warm("alone", job_class=BACKGROUND)
    world.advance(4000.0)
    assert moves_of(world) == []


def test_R9_D6_nothing_moves_to_a_card_that_is_lost() -> None:
    """It moves when the card answers again."""
    world = shared()
    guest_goes(world)
    world.lose("gpu1")
    world.advance(400.0)
    assert moves_of(world) == []
    world.find("gpu1")
    assert moves_of(world) == [world.now]


def test_R9_P6a_a_move_waits_for_a_start_like_everybody() -> None:
    """One process a minute: the other model's load was half a minute ago."""
    world = shared()
    guest_goes(world)
    world.tell(PolicyChanged(Policy(starts_per_minute=1)))
    moves = world.scheduler.state.models[ModelName("moves")].instance
    assert moves is not None
    due_at = moves.last_used_at + 300.0
    world.advance(due_at - 30.0 - world.now)
    world.submit("third", BACKGROUND)
    (loaded_at,) = world.loads("third")
    world.advance(due_at + 20.0 - world.now)
    assert moves_of(world) == []
    world.advance(20.0)
    assert moves_of(world) == [loaded_at + 60.0]


def test_R9_a_process_that_goes_is_not_looked_at_for_a_move() -> None:
    """It could have been moved when it stalled, and never ends. While a job waits for room behind a pin nobody looks
    for moves again: it has no moment of its own (INV-21) while its model serves elsewhere."""
    world = World(
        (
            model("guest", option(15, device="gpu1")),
            model("stays", option(6), pinned=True),
            model("moves", option(5, 2), option(5, 2, device="gpu1")),
            model("large", option(12)),
        ),
        CARDS,
        step_seconds={"guest": 1.0},
    )
    world.warm("guest", "moves")
    guest_goes(world)
    assert world.waits(world.submit("large", BATCH))
    world.stop_seconds = None
    world.finish(world.submit("moves"), Outcome(OutcomeKind.STALLED, answered=False))
    world.advance(60.0)
    world.submit("moves")
    world.advance(12.0)
    assert (device_of(world, "moves"), world.running("moves")) == ("gpu1", 1)
    job = world.submit("moves", BACKGROUND)
    world.advance(3.0)
    assert world.granted_at(job) == world.now
