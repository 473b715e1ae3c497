"""B5: relief of models that span devices takes the turns of all of them, in one decision, and deadlocks with nobody."""

from gridsched.core.commands import LogEvent
from gridsched.core.ids import DeviceName, JobId, ModelName
from gridsched.core.modes import DeviceMode
from gridsched.core.policy import Policy
from tests.stories.world import BACKGROUND, BATCH, World, model, option, spanning

SMALL = ("s0", "s1", "s2")
WIDE = {"y": ("gpu0", "gpu1"), "z": ("gpu1", "gpu2"), "x": ("gpu0", "gpu1")}


def cards(wide: str, steps: dict[str, float], share: float = 1.0, chats: str = "012") -> World:
    """Three cards, a chat that never ends on those of `chats`, a small low model on each card, and the wide ones."""
    world = World(
        (
            *(model(f"chat{at}", option(4, 2, device=f"gpu{at}")) for at in range(3)),
            *(model(name, option(2, 1, device=f"gpu{at}")) for at, name in enumerate(SMALL)),
            *(model(name, spanning(dict.fromkeys(WIDE[name], 2.0), 1)) for name in wide),
        ),
        cards={f"gpu{at}": 16.0 for at in range(3)},
        step_seconds=steps,
        policy=Policy(background_share=share),
    )
    world.warm(*(f"chat{at}" for at in range(3)), *SMALL, *wide, job_class=BACKGROUND)
    for at in chats:
        world.submit(f"chat{at}")
    return world


def mode(world: World, at: int) -> DeviceMode:
    """One card's."""
    return world.scheduler.state.modes[DeviceName(f"gpu{at}")]


def wait_for(world: World, job: JobId, others: tuple[str, ...], seconds: float = 60.0) -> float:
    """How long a job waits while two jobs wait for each of the small models at any time."""
    asked_at = world.now
    while world.granted_at(job) is None and world.now < asked_at + seconds:
        for name in others:
            if world.scheduler.state.models[ModelName(name)].queue.count < 2:
                world.submit(name, BACKGROUND)
        world.advance(0.25)
    granted_at = world.granted_at(job)
    assert granted_at is not None, f"it has starved for {seconds} s"
    return granted_at - asked_at


def test_B5_small_turns_that_end_at_different_times_do_not_keep_a_wide_one_out() -> None:
    """Steps of 1 s and of 1.7 s, never ending together: the wide job has both turns as soon as it is the longest
    starved and both have come free, once each."""
    world = cards("y", {"s0": 1.0, "s1": 1.7, "y": 2.0})
    for name in ("s0", "s1"):
        for _ in range(3):
            world.submit(name, BACKGROUND)
    job = world.submit("y", BACKGROUND)
    assert wait_for(world, job, ("s0", "s1")) < 3.0 + 3 * 1.7 + 1.7
    assert mode(world, 0).turn is mode(world, 1).turn
    assert mode(world, 0).turn is not None


def test_B5_what_is_reserved_is_reserved_for_the_longest_starved_only() -> None:
    """While the wide job waits for one card, the other stands free for it; the third card goes on as ever."""
    world = cards("y", {"s0": 1.0, "s2": 1.0})
    long_step = world.submit("s1", BACKGROUND)
    world.advance(3.0)
    wide = world.submit("y", BACKGROUND)
    world.advance(3.0)
    small = world.submit("s0", BACKGROUND)
    far = world.submit("s2", BACKGROUND)
    world.advance(5.0)
    assert world.waits(small)
    assert world.granted_at(far) is not None
    world.finish(long_step)
    assert world.granted_at(wide) == world.now


def test_B5_the_second_longest_starved_reserves_nothing() -> None:
    """Two wide jobs lack the middle card; the older keeps the first card free for itself, the younger not the third."""
    world = cards("yz", {"s0": 1.0, "s2": 1.0})
    world.submit("s1", BACKGROUND)
    world.advance(3.0)
    wide = [world.submit(name, BACKGROUND) for name in ("y", "z")]
    smalls = [world.submit(name, BACKGROUND) for name in ("s0", "s2")]
    world.advance(3.0)
    assert [world.waits(job) for job in (*wide, *smalls)] == [True, True, True, False]


def test_B5_a_wide_job_that_leaves_gives_back_what_it_had_reserved() -> None:
    """Its client goes: the small one has the turn in that step."""
    world = cards("y", {})
    world.submit("s1", BACKGROUND)
    world.advance(3.0)
    wide = world.submit("y", BACKGROUND)
    world.advance(3.0)
    small = world.submit("s0", BACKGROUND)
    world.advance(3.0)
    assert world.waits(small)
    world.leave(wide)
    assert world.granted_at(small) == world.now


def test_B5_its_length_is_charged_to_every_device_of_it() -> None:
    """A wide step of 2 s at a share of a half: both cards rest for 2 s, a third has nothing to do with it."""
    world = cards("y", {"y": 2.0, "s2": 1.0}, share=0.5)
    world.submit("y", BACKGROUND)
    smalls = [world.submit(name, BACKGROUND) for name in SMALL]
    asked_at = world.now
    world.advance(20.0)
    assert [(world.granted_at(job) or 0.0) - asked_at for job in smalls] == [7.0, 7.0, 3.0]


def test_B5_only_devices_with_chats_are_charged() -> None:
    """Nobody chats on the second card: the wide job takes the first one's turn alone."""
    world = cards("y", {"y": 2.0, "s1": 1.0}, share=0.5, chats="0")
    world.submit("y", BACKGROUND)
    world.advance(3.0)
    assert mode(world, 0).turn is not None
    assert mode(world, 1).turn is None
    free = world.submit("s1", BACKGROUND)
    assert world.granted_at(free) == world.now


def test_B5_two_wide_models_on_the_same_cards_take_turns() -> None:
    """Neither holds one card and waits for the other."""
    world = cards("yx", {"y": 1.0, "x": 1.5})
    jobs = [world.submit(name, BACKGROUND) for name in ("y", "x") * 5]
    world.advance(3.0 + 5 * 2.5 + 1.0)
    assert all(world.granted_at(job) is not None for job in jobs)
    began = [at for at, line in world.logged(LogEvent.RELIEF) if line.figures.get("turn") == "begins"]
    assert len(began) == len(jobs)


def test_B5_wide_models_that_overlap_on_one_card_do_not_starve_beside_small_ones() -> None:
    """One over the first two cards, one over the last two, and small work without end on all three."""
    world = cards("yz", {"s0": 1.0, "s1": 1.3, "s2": 0.7, "y": 1.0, "z": 1.0})
    for _ in range(3):
        first, second = world.submit("y", BACKGROUND), world.submit("z", BACKGROUND)
        assert wait_for(world, first, SMALL) < 12.0
        assert world.granted_at(second) is not None or wait_for(world, second, SMALL) < 12.0


def test_B5_a_wide_job_that_could_not_run_reserves_nothing() -> None:
    """Its one slot is taken by a step from before the chats came: it lacks more than turns."""
    world = cards("y", {"s0": 1.0, "s1": 1.0}, chats="")
    world.submit("y", BACKGROUND)
    for at in range(2):
        world.submit(f"chat{at}")
    world.submit("y", BACKGROUND)
    world.advance(3.0)
    smalls = [world.submit(name, BACKGROUND) for name in ("s0", "s1")]
    world.advance(3.0)
    assert all(world.granted_at(job) == world.now for job in smalls)


def test_A8_a_job_that_may_not_run_for_ever_keeps_its_load_for_no_longer_than_a_turn() -> None:
    """Relief is off, and people chat on one card of the model that was loaded for a batch job. A background
    job, whose card has no chats, has the model's memory after 30 s; with relief on, not before the first was served."""
    for relief_seconds, goes in ((0.0, True), (1000.0, False)):
        world = World(
            (
                model("wide", spanning({"gpu0": 10, "gpu1": 10})),
                model("chat", option(4, device="gpu1")),
                model("b", option(10)),
            ),
            {"gpu0": 16.0, "gpu1": 16.0},
            policy=Policy(background_max_starvation_seconds=relief_seconds),
        )
        world.warm("chat")
        first = world.submit("wide", BATCH)
        assert world.state("wide") == "starting"
        world.submit("chat")
        world.advance(12.0)
        assert (world.state("wide"), world.waits(first)) == ("ready", True)
        world.submit("b", BACKGROUND)
        world.advance(25.0)
        assert world.stops("wide") == []
        world.advance(10.0)
        assert bool(world.stops("wide")) is goes
