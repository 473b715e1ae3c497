"""S11: a low generation of which nothing was sent is taken away for a chat, and run again."""

from gridsched.core.commands import AbortStep, LogEvent, ResumeInstance
from gridsched.core.events import AnswerBegan, SlotSettled, StepEnded
from gridsched.core.ids import GrantId, JobId
from gridsched.core.job import Outcome, OutcomeKind
from gridsched.core.policy import Policy, QueueLimits
from tests.stories.world import BACKGROUND, BATCH, CHAT, World, model, option

ABORTED = Outcome(OutcomeKind.ABORTED, status=0, answered=False)


def aborting(after_seconds: float = 2.0, **figures: object) -> Policy:
    """Abort switched on."""
    return Policy(abort_after_seconds=after_seconds, **figures)  # type: ignore[arg-type]  # figures by name


def one_slot(policy: Policy | None = None) -> World:
    """One model with one slot, warm and cool."""
    world = World((model("m", option(6, 1)),), policy=policy or aborting())
    world.warm("m", job_class=BACKGROUND)
    return world


def asked(world: World) -> list[tuple[float, GrantId]]:
    """The steps that were to be taken away, and when."""
    return [(at, item.grant_id) for at, item in world.heard if isinstance(item, AbortStep)]


def goes(world: World, job: JobId, *, settled: bool = True) -> None:
    """The desk has taken the job's step away."""
    world.tell(StepEnded(world.grant(job).id, ABORTED, settled))


def test_S11_a_low_step_goes_for_a_chat_that_waits_for_its_slot_and_is_run_again_at_its_old_place() -> None:
    """The chat waits 2.0 s, to the moment; the job waits on before those who came after it, and is served whole."""
    world = one_slot()
    low = world.submit("m", BACKGROUND)
    later = world.submit("m", BACKGROUND)
    world.advance(1.0)
    chat = world.submit("m")
    chat_at = world.now
    world.advance(2.0)
    assert asked(world) == [(chat_at + 2.0, world.grant(low).id)]
    assert [line.rule for _, line in world.logged(LogEvent.ABORT)] == ["S11"]
    goes(world, low)
    assert world.granted_at(chat) == world.now
    world.finish(chat)
    world.advance(2.0)
    assert len(world.grants(low)) == 2
    assert world.waits(later)
    assert world.rejection(low) is None


def test_S11_is_off_unless_switched_on() -> None:
    """By default the chat waits for the step's end."""
    world = one_slot(Policy())
    world.submit("m", BACKGROUND)
    world.submit("m")
    world.advance(600.0)
    assert asked(world) == []


def test_S11_the_slot_counts_as_taken_until_the_engine_is_done_with_it() -> None:
    """The job waits at once; the chat has the slot when it is really free, and the job does not meet its own ghost."""
    world = one_slot()
    low = world.submit("m", BACKGROUND)
    chat = world.submit("m")
    world.advance(2.0)
    ghost = world.grant(low).id
    goes(world, low, settled=False)
    assert world.waits(low)
    assert world.waits(chat)
    assert world.running("m") == 1
    world.tell(SlotSettled(ghost))
    assert world.granted_at(chat) == world.now
    world.finish(chat)
    world.advance(2.0)
    assert world.grant(low).id != ghost
    world.finish(low)
    assert world.running("m") == 0


def test_S11_a_process_that_dies_with_a_slot_unsettled_is_no_trouble() -> None:
    """The exit settles it; the job, which lives on, is served by the next process."""
    world = one_slot()
    low, chat = world.submit("m", BACKGROUND), world.submit("m")
    world.advance(2.0)
    goes(world, low, settled=False)
    world.dies(world.instance("m"))
    world.advance(11.0)
    assert world.granted_at(chat) is not None


def test_S11_an_engine_that_never_lets_go_of_an_aborted_step_is_restarted() -> None:
    """S9 holds for it too: a minute later the slot is given up."""
    world = one_slot()
    low, chat = world.submit("m", BACKGROUND), world.submit("m")
    world.advance(2.0)
    goes(world, low, settled=False)
    world.advance(60.0)
    assert len(world.stops("m")) == 1
    world.advance(11.0)
    assert world.granted_at(chat) is not None


def test_S11_a_step_goes_for_a_chat_that_needs_its_memory() -> None:
    """A chat's model does not fit beside the low one, which drains: 2 s later its steps go, and the chat's loads."""
    world = World((model("low", option(12, 2)), model("chat", option(12))), policy=aborting())
    world.warm("low", job_class=BACKGROUND)
    first, second = world.submit("low", BACKGROUND), world.submit("low", BATCH)
    chat = world.submit("chat")
    chat_at = world.now
    world.advance(2.0)
    assert asked(world) == [(chat_at + 2.0, world.grant(first).id), (chat_at + 2.0, world.grant(second).id)]
    goes(world, first)
    goes(world, second)
    assert world.stops("low") == [world.now]
    world.advance(11.0)
    assert world.granted_at(chat) is not None
    assert world.waits(first)


def test_S11_nothing_goes_where_something_that_cannot_go_is_waited_for_anyway() -> None:
    """One of the two steps has answered already: the chat waits for that one, so the other may as well end."""
    world = World((model("low", option(12, 2)), model("chat", option(12))), policy=aborting())
    world.warm("low", job_class=BACKGROUND)
    answering, _ = world.submit("low", BACKGROUND), world.submit("low", BACKGROUND)
    world.tell(AnswerBegan(world.grant(answering).id))
    world.submit("chat")
    world.advance(60.0)
    assert asked(world) == []
    world.finish(answering)
    assert len(asked(world)) == 1


def test_S11_a_step_of_which_a_byte_was_sent_stays() -> None:
    """Its answer has begun: the chat waits."""
    world = one_slot()
    low, _ = world.submit("m", BACKGROUND), world.submit("m")
    world.tell(AnswerBegan(world.grant(low).id))
    world.advance(60.0)
    assert asked(world) == []


def test_S11_chunks_of_embeddings_stay() -> None:
    """They end in a moment anyway."""
    world = one_slot()
    world.submit("m", BACKGROUND, steps=5)
    world.submit("m")
    world.advance(60.0)
    assert asked(world) == []


def test_S11_a_chats_own_step_stays() -> None:
    """Chats wait for chats."""
    world = one_slot()
    world.submit("m")
    world.submit("m")
    world.advance(60.0)
    assert asked(world) == []


def test_S11_at_most_twice_a_job() -> None:
    """The third time it is served to its end, however long chats wait."""
    world = one_slot(aborting(background_max_starvation_seconds=3.0))
    low = world.submit("m", BACKGROUND)
    for _ in range(2):
        chat = world.submit("m")
        world.advance(2.0)
        goes(world, low)
        world.finish(chat)
        world.advance(5.0)
        assert not world.waits(low)
    world.submit("m")
    world.advance(600.0)
    assert len(asked(world)) == 2


def test_S11_one_step_for_each_chat_that_has_waited_too_long() -> None:
    """Three low steps, two chats a second apart: one step at 2 s, another at 3 s, the lowest and youngest first."""
    world = World((model("m", option(6, 3)),), policy=aborting())
    world.warm("m", job_class=BACKGROUND)
    world.submit("m", BACKGROUND)
    young = world.submit("m", BACKGROUND)
    batch = world.submit("m", BATCH)
    began_at = world.now
    first = world.submit("m")
    world.advance(1.0)
    world.submit("m")
    world.advance(1.0)
    assert asked(world) == [(began_at + 2.0, world.grant(batch).id)]
    world.advance(1.0)
    assert asked(world)[1:] == [(began_at + 3.0, world.grant(young).id)]
    goes(world, batch)
    assert world.granted_at(first) == world.now


def test_S11_an_end_that_has_crossed_the_abort_is_harmless() -> None:
    """The step has ended whole by itself: its job is served, the chat has the slot."""
    world = one_slot()
    low, chat = world.submit("m", BACKGROUND), world.submit("m")
    world.advance(2.0)
    assert len(asked(world)) == 1
    world.finish(low)
    assert world.granted_at(chat) == world.now
    assert not world.waits(low)


def test_S11_a_first_byte_that_has_crossed_the_abort_saves_the_step() -> None:
    """The answer had begun when it was asked to go: it stays, and that was no abort."""
    world = one_slot()
    low, _ = world.submit("m", BACKGROUND), world.submit("m")
    world.advance(2.0)
    world.tell(AnswerBegan(world.grant(low).id))
    assert world.scheduler.state.grants[world.grant(low).id].record.aborts == 0
    world.advance(600.0)
    assert len(asked(world)) == 1
    world.tell(AnswerBegan(GrantId(999)))


def test_S11_time_that_was_taken_away_is_no_waiting() -> None:
    """The job may wait 30 s. It has waited 1 s and worked 60 when it goes: it still has its 29 s."""
    limits = QueueLimits(max_wait_seconds=30.0)
    policy = aborting(2.0, queues={CHAT: QueueLimits(), BACKGROUND: limits, BATCH: limits})
    world = one_slot(policy)
    before = world.submit("m", BACKGROUND)
    low = world.submit("m", BACKGROUND)
    world.advance(1.0)
    world.finish(before)
    world.advance(58.0)
    world.submit("m")
    world.advance(2.0)
    goes(world, low)
    world.advance(28.9)
    assert world.waits(low)
    world.advance(0.2)
    assert world.rejection(low) is not None


def test_S11_a_process_that_stands_still_is_continued_before_a_step_of_it_goes() -> None:
    """Pause and abort together: the victim of a chat's plan goes on first; what drains never stands."""
    world = World(
        (model("chat", option(5, 1)), model("low", option(8, 1)), model("big", option(9))),
        policy=aborting(background_pause=True),
    )
    world.warm("chat", "low", job_class=BACKGROUND)
    world.submit("low", BACKGROUND)
    world.submit("chat")
    world.submit("big")
    world.advance(2.0)
    told = [type(item) for _, item in world.heard if isinstance(item, ResumeInstance | AbortStep)]
    assert told == [ResumeInstance, AbortStep]
