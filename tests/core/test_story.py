"""What is remembered of decisions, and how much of it."""

from gridsched.core.commands import ArmTimer, Command, Log, LogEvent
from gridsched.core.ids import JobId
from gridsched.core.story import LONGEST_STEP, REMEMBERED_STEPS, Story


def enqueued(number: int) -> Log:
    """A line about a job."""
    return Log(LogEvent.ENQUEUE, JobId(number))


def test_a_step_that_is_under_way_is_told_too() -> None:
    """A violation in mid-step carries what led to it."""
    story, out = Story(), list[Command]()
    story.begin(1.5, out)
    out += (ArmTimer(2.0), enqueued(1), enqueued(2))
    assert story.of(JobId(1)) == ("1.500 enqueue job 1",)


def test_the_last_steps_that_decided_something_are_remembered() -> None:
    """Those that decided nothing push nothing out."""
    story = Story()
    for number in range(REMEMBERED_STEPS + 2):
        story.begin(0.0, [enqueued(number)])
        story.begin(0.0, [])
    assert not story.of(JobId(1))
    assert story.of(JobId(2))


def test_a_step_that_refuses_thousands_is_remembered_in_part() -> None:
    """Its memory is bounded."""
    story = Story()
    story.begin(0.0, [enqueued(number) for number in range(LONGEST_STEP + 1)])
    story.begin(0.0, [])
    assert story.of(JobId(LONGEST_STEP - 1))
    assert not story.of(JobId(LONGEST_STEP))
