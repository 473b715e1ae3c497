"""How long steps take, as measured."""

import pytest

from gridsched.core.job import JobClass
from gridsched.core.pace import MEMORY, Pace

CHAT, BATCH = JobClass.INTERACTIVE, JobClass.BATCH


def test_a_model_that_served_nothing_has_no_pace() -> None:
    """Nothing is made up."""
    pace = Pace()
    assert pace.step_seconds(CHAT) is None
    assert pace.rest_seconds(CHAT, 1.0) is None
    assert pace.turn_seconds(CHAT) is None


def test_the_first_steps_count_alike_and_old_ones_fade() -> None:
    """A change of load shows after some steps, a single odd one does not."""
    pace = Pace()
    for seconds in (1.0, 2.0, 3.0):
        pace.note(CHAT, seconds)
    assert pace.step_seconds(CHAT) == pytest.approx(2.0)
    for _ in range(4 * MEMORY):
        pace.note(CHAT, 5.0)
    assert pace.step_seconds(CHAT) == pytest.approx(5.0, rel=0.02)


def test_a_class_without_steps_borrows_from_the_others() -> None:
    """Batch has served nothing: the chats' steps are the best that is known."""
    pace = Pace()
    pace.note(CHAT, 4.0)
    assert pace.step_seconds(BATCH) == pytest.approx(4.0)
    pace.note(BATCH, 1.0)
    assert pace.step_seconds(BATCH) == pytest.approx(1.0)


def test_the_rest_of_a_step_is_never_negative() -> None:
    """An overdue step will end soon, not in the past."""
    pace = Pace()
    pace.note(CHAT, 4.0)
    assert pace.rest_seconds(CHAT, 1.0) == pytest.approx(3.0)
    assert pace.rest_seconds(CHAT, 60.0) == pytest.approx(0.4)


def test_a_turn_is_measured_beside_its_steps() -> None:
    """A turn is as long as the longest of its steps; before the first one a step stands for it."""
    pace = Pace()
    pace.note(BATCH, 1.0)
    assert pace.turn_seconds(BATCH) == pytest.approx(1.0)
    pace.note_turn(1.5)
    assert pace.turn_seconds(BATCH) == pytest.approx(1.5)
