"""S10: low work stands still while people chat, loses nothing, and stands in nobody's way."""

import pytest

from gridsched.core.commands import (
    Command,
    GrantStep,
    LogEvent,
    PauseInstance,
    ResumeInstance,
    StopInstance,
)
from gridsched.core.events import DrainBegan, InstanceExited, PolicyChanged, ProbeDue, SlotSettled
from gridsched.core.job import Outcome, OutcomeKind
from gridsched.core.policy import Policy
from tests.stories.world import BACKGROUND, BATCH, DIED, World, model, option, spanning

GONE = Outcome(OutcomeKind.CLIENT_GONE, answered=False)
STALLED = Outcome(OutcomeKind.STALLED, answered=True)


def pausing(**figures: float) -> Policy:
    """Pause switched on."""
    return Policy(background_pause=True, **figures)  # type: ignore[arg-type]  # figures by name


def beside(policy: Policy | None = None, low_slots: int = 2, **more: object) -> World:
    """A chat model and a low one, both warm and cool, on one card."""
    world = World(
        (model("chat", option(5, 2)), model("low", option(4, low_slots))),
        policy=policy or pausing(),
        **more,  # type: ignore[arg-type]  # keywords
    )
    world.warm("chat", "low", job_class=BACKGROUND)
    return world


def pauses(world: World, name: str = "low") -> list[tuple[float, str]]:
    """When a model's process was paused and continued."""
    words = {PauseInstance: "pause", ResumeInstance: "resume"}
    found = [(at, item) for at, item in world.heard if isinstance(item, PauseInstance | ResumeInstance)]
    return [(at, words[type(item)]) for at, item in found if item.instance_id == world.instance(name)]


def order(commands: tuple[Command, ...], *kinds: type) -> list[type]:
    """The kinds of the commands that matter, in order."""
    return [type(item) for item in commands if isinstance(item, kinds)]


def test_S10_low_steps_stand_while_a_chat_generates_and_go_on_at_its_end_not_after_the_tail() -> None:
    """A low step runs, a chat comes for a second: the low process stands for exactly that second, and says so."""
    world = beside()
    world.submit("low", BACKGROUND)
    chat = world.submit("chat")
    began_at = world.now
    assert world.scheduler.snapshot(world.now).instances[1].paused
    world.advance(1.0)
    world.finish(chat)
    assert pauses(world) == [(began_at, "pause"), (began_at + 1.0, "resume")]
    assert [line.rule for _, line in world.logged(LogEvent.PAUSE) + world.logged(LogEvent.RESUME)] == ["S10", "S10"]
    assert not world.scheduler.snapshot(world.now).instances[1].paused


def test_S10_is_off_unless_switched_on_and_switching_it_off_continues() -> None:
    """By default nothing stands; a new policy lets go of what stands."""
    world = beside(Policy())
    world.submit("low", BACKGROUND)
    world.submit("chat")
    assert pauses(world) == []
    world.tell(PolicyChanged(pausing()))
    assert pauses(world)[-1][1] == "pause"
    world.tell(PolicyChanged(Policy()))
    assert pauses(world)[-1][1] == "resume"


def test_A3_a_step_stands_for_the_limit_in_all_then_runs_to_its_end() -> None:
    """Chats of 1 s with half a second between: a step stands 3 s over several of them, to the moment, then never."""
    world = beside(step_seconds={"chat": 1.0})
    job = world.submit("low", BACKGROUND)
    began_at = world.now
    for _ in range(5):
        world.submit("chat")
        world.advance(1.5)
    assert pauses(world) == [(began_at + at, word) for at, word in zip(
        (0.0, 1.0, 1.5, 2.5, 3.0, 4.0), ("pause", "resume") * 3, strict=True
    )]  # fmt: skip
    world.submit("chat")
    assert pauses(world)[-1][0] == began_at + 4.0
    assert not world.waits(job)


def test_A3_the_limit_is_exact_under_one_long_chat() -> None:
    """One chat that never ends: the timer continues the process at 3.0 s and nothing pauses it again."""
    world = beside()
    world.submit("low", BACKGROUND)
    world.submit("chat")
    began_at = world.now
    world.advance(60.0)
    assert pauses(world) == [(began_at, "pause"), (began_at + 3.0, "resume")]


def test_A3_relief_goes_on_under_constant_chat() -> None:
    """Turns are paused and continued, each in its bound: every low job ends."""
    world = beside(low_slots=1)
    world.submit("chat")
    jobs = [world.submit("low", BACKGROUND) for _ in range(4)]
    for job in jobs:
        for _ in range(20):
            if world.granted_at(job) is not None:
                break
            world.advance(1.0)
        world.advance(3.5)
        world.finish(job)
    assert len([word for _, word in pauses(world) if word == "pause"]) == 4


def test_S5a_paused_time_is_no_part_of_a_turn() -> None:
    """A turn stands 3 s and runs 1 s: the next waits 1 s, not 4."""
    world = beside(low_slots=1)
    world.submit("chat")
    first = world.submit("low", BACKGROUND)
    world.advance(3.0)
    second = world.submit("low", BACKGROUND)
    world.advance(3.0 + 1.0)
    world.finish(first)
    ended_at = world.now
    world.advance(10.0)
    assert world.granted_at(second) == ended_at + 1.0


def test_S5a_nor_of_a_turn_whose_end_has_crossed_the_pause() -> None:
    """The step's answer was whole when its process was told to stand, and is heard of a second later: nothing ran."""
    world = beside(low_slots=1)
    world.submit("chat")
    first, second = world.submit("low", BACKGROUND), world.submit("low", BACKGROUND)
    world.advance(3.0)
    assert pauses(world)[-1] == (world.now, "pause")
    world.advance(1.0)
    world.finish(first)
    assert world.granted_at(second) == world.now


def test_S10_a_chat_for_the_same_process_continues_it_before_its_grant() -> None:
    """The low process has a free slot and a chat wants it: continue, then the grant."""
    world = beside()
    world.submit("low", BACKGROUND)
    world.submit("chat")
    world.submit("low")
    assert order(world.last, ResumeInstance, GrantStep, PauseInstance) == [ResumeInstance, GrantStep]


def test_S10_a_chat_that_waits_for_a_slot_of_it_continues_it() -> None:
    """All its slots are low steps: it must not stand while a chat waits for one of them."""
    world = beside(low_slots=1)
    world.submit("low", BACKGROUND)
    world.submit("chat")
    chat = world.submit("low")
    assert world.waits(chat)
    assert pauses(world)[-1] == (world.now, "resume")


def test_A2_a_cancelled_step_ends_although_its_process_stood() -> None:
    """The client leaves: the process goes on until the slot is really free, and stands again only then."""
    world = beside()
    leaves, other = world.submit("low", BACKGROUND), world.submit("low", BATCH)
    world.submit("chat")
    grant = world.grant(leaves)
    world.finish(leaves, GONE, settled=False)
    assert pauses(world)[-1] == (world.now, "resume")
    world.advance(0.25)
    world.tell(SlotSettled(grant.id))
    assert pauses(world)[-1] == (world.now, "pause")
    assert not world.waits(other)


def test_A2_a_load_never_stands_and_never_waits_for_one_that_does() -> None:
    """One chat generates, a low model loads, another chat needs a load: both loads end in their time."""
    world = World(
        (
            model("chat", option(3, 1)),
            model("low", option(4, 1)),
            model("more", option(4, 1)),
            model("c2", option(4, 1)),
        ),
        policy=pausing(),
    )
    world.warm("chat", "low", job_class=BACKGROUND)
    world.submit("low", BACKGROUND)
    world.submit("more", BACKGROUND)
    world.advance(1.0)
    world.submit("chat")
    second = world.submit("c2")
    world.advance(10.0)
    assert world.granted_at(second) is not None
    assert world.state("more") == "ready"


def test_S10_a_probe_continues_it_and_leaves_it_awake_for_a_while() -> None:
    """Continue, five seconds of peace, then it stands again for what is left of its limit."""
    world = beside(pausing(pause_limit_seconds=10.0))
    world.submit("low", BACKGROUND)
    world.submit("chat")
    began_at = world.now
    world.advance(1.0)
    world.tell(ProbeDue(world.instance("low")))
    assert pauses(world)[-1] == (world.now, "resume")
    world.advance(30.0)
    moments = [at - began_at for at, _ in pauses(world)]
    assert moments == [0.0, 1.0, 6.0, 15.0]


def test_S10_a_drain_continues_it_before_anything_else_happens_to_it() -> None:
    """Another chat needs the memory: the process drains, so it runs; its stop comes after its last step."""
    world = World((model("chat", option(5, 2)), model("low", option(8, 1)), model("big", option(9))), policy=pausing())
    world.warm("chat", "low", job_class=BACKGROUND)
    job = world.submit("low", BACKGROUND)
    world.submit("chat")
    stands = world.instance("low")
    world.submit("big")
    assert world.state("low") == "draining"
    assert pauses(world)[-1] == (world.now, "resume")
    world.finish(job)
    told = [item for _, item in world.heard if isinstance(item, ResumeInstance | StopInstance)]
    assert [type(item) for item in told if item.instance_id == stands] == [ResumeInstance, StopInstance]


def test_R8_a_lease_continues_it() -> None:
    """Somebody wants the whole card: the low process drains, so it runs, until its step has ended."""
    world = beside()
    job = world.submit("low", BACKGROUND)
    world.submit("chat")
    stands = world.instance("low")
    world.lease("gpu0")
    assert world.state("low") == "draining"
    world.advance(1.0)
    world.finish(job)
    told = [item for _, item in world.heard if isinstance(item, PauseInstance | ResumeInstance | StopInstance)]
    assert [type(item) for item in told if item.instance_id == stands] == [PauseInstance, ResumeInstance, StopInstance]


@pytest.mark.parametrize("force", [False, True])
def test_R2_a_persons_unload_continues_it(force: bool) -> None:
    """Its step ends first, or with force is cut off; either way it goes on before it is stopped."""
    world = beside()
    job = world.submit("low", BACKGROUND)
    world.submit("chat")
    stands = world.instance("low")
    world.unload("low", force=force)
    if not force:
        world.finish(job)
    told = [item for _, item in world.heard if isinstance(item, ResumeInstance | StopInstance)]
    assert [type(item) for item in told if item.instance_id == stands] == [ResumeInstance, StopInstance]


def test_P8_the_server_leaves_nobody_standing() -> None:
    """The drain of the server continues what stands; its steps may finish."""
    world = beside()
    job = world.submit("low", BACKGROUND)
    world.submit("chat")
    world.tell(DrainBegan())
    assert pauses(world)[-1] == (world.now, "resume")
    world.finish(job)
    assert world.stops("low") == [world.now]


@pytest.mark.parametrize("outcome", [DIED, STALLED])
def test_S10_a_restart_continues_it(outcome: Outcome) -> None:
    """One of two steps says that the process is dead or stalled: it drains, and does not stand."""
    world = beside()
    first, _ = world.submit("low", BACKGROUND), world.submit("low", BACKGROUND)
    world.submit("chat")
    world.finish(first, outcome)
    assert world.state("low") == "draining"
    assert pauses(world)[-1] == (world.now, "resume")


def test_S10_a_process_that_dies_while_it_stands_is_mourned_like_any_other() -> None:
    """Its exit is no trouble, and its jobs are told by their own steps."""
    world = beside()
    job = world.submit("low", BACKGROUND)
    world.submit("chat")
    world.tell(InstanceExited(world.instance("low")))
    world.step_ends(job, DIED)
    assert world.waits(job)


def test_S10_only_a_chat_on_a_device_of_it_lets_it_stand() -> None:
    """A chat on another card does not; one on either card of a spanning process does."""
    world = World(
        (
            model("chat", option(4, 2)),
            model("far", option(4, 1, device="gpu1")),
            model("wide", spanning({"gpu0": 4, "gpu1": 4}, 1)),
        ),
        cards={"gpu0": 16.0, "gpu1": 16.0},
        policy=pausing(),
    )
    world.warm("chat", "far", "wide", job_class=BACKGROUND)
    world.submit("far", BACKGROUND)
    world.submit("wide", BACKGROUND)
    world.submit("chat")
    assert pauses(world, "far") == []
    assert pauses(world, "wide") == [(world.now, "pause")]


def test_S10_low_work_on_the_chats_own_process_runs_on() -> None:
    """A process that serves a chat never stands, whatever else it serves."""
    world = World((model("m", option(6, 3)),), policy=pausing())
    world.warm("m")
    world.submit("m", BACKGROUND)
    world.submit("m")
    assert pauses(world, "m") == []


def test_S10_a_waiting_chat_lets_nobody_stand() -> None:
    """Interactive mode alone is not enough: the chat's model loads and nothing generates."""
    world = World((model("chat", option(5, 2)), model("low", option(4, 1))), policy=pausing())
    world.warm("low", job_class=BACKGROUND)
    world.submit("low", BACKGROUND)
    world.submit("chat")
    world.advance(9.0)
    assert pauses(world) == []
    world.advance(1.0)
    assert pauses(world) == [(world.now, "pause")]


def test_S10_an_idle_process_is_left_alone() -> None:
    """There is nothing in it to stand still."""
    world = beside()
    world.submit("chat")
    assert pauses(world) == []


def test_S10_a_step_that_has_stood_for_its_whole_limit_is_not_paused_again_for_no_time() -> None:
    """Whatever the clock reads: a limit added to and taken from some moments gives a moment later than they are."""
    world = beside()
    world.submit("low", BACKGROUND)
    chat = world.submit("chat")
    world.advance(4.0)
    world.finish(chat)
    world.advance(125.03 - world.now)
    for number in range(100):
        world.now = 125.1 + number / 71  # the harness steps by parts of a second that round to themselves
        chat = world.submit("chat")
        world.finish(chat)
    assert [what for _, what in pauses(world)] == ["pause", "resume"]
