"""A short run is good, and the judge of a run sees what is not."""

from dataclasses import replace

import pytest

from tests.soak.judge import Done, Harmed, Result, Sample, table
from tests.soak.plan import HARMS, Ask, Harm, draw
from tests.soak.run import soak

ASK = Ask(1.0, "middle", "stream", 9, "whole", 0.0)
KILLED = Harmed(Harm(2.0, "middle", "kill", 0.0), 2.0, 2.0)
BROKEN = Done(ASK, 1.0, 3.0, "error upstream_error")


@pytest.mark.slow
def test_a_short_run_has_nothing_unexplained_and_leaves_nothing() -> None:
    """Load and harm for some seconds; `make soak` does it for minutes."""
    result = soak(seed=5, seconds=12.0)
    assert result.faults() == [], "\n".join(table(result))
    assert sum(done.outcome == "answered" for done in result.done) > 30
    assert result.harmed


def test_one_seed_is_one_schedule() -> None:
    """And another seed another; every kind of harm comes up in a few minutes."""
    assert draw(3, 60.0, real=True) == draw(3, 60.0, real=True)
    assert draw(3, 60.0, real=True) != draw(4, 60.0, real=True)
    assert {harm.kind for harm in draw(3, 300.0, real=False).harms} == set(HARMS)


def test_an_error_is_explained_by_what_was_done_to_its_model_while_it_lived_only() -> None:
    """Not by harm to another model, of another kind, before it or after it; and a wrong answer by nothing."""
    assert not Result([BROKEN], [KILLED]).faults()
    assert Result([BROKEN], []).faults()
    assert Result([BROKEN], [replace(KILLED, harm=replace(KILLED.harm, model="fragile"))]).faults()
    assert Result([BROKEN], [replace(KILLED, harm=replace(KILLED.harm, kind="flood"))]).faults()
    assert Result([BROKEN], [replace(KILLED, began=3.5, ended=3.5)]).faults()
    assert Result([replace(BROKEN, began=60.0, ended=61.0)], [KILLED]).faults()
    assert Result([replace(BROKEN, outcome="wrong: 3 words of 9")], [KILLED]).faults()
    assert Result([replace(BROKEN, outcome="no answer within 60 s")], [KILLED]).faults()
    assert Result([replace(BROKEN, outcome="error queue_full")], [KILLED]).faults()


def test_who_left_is_no_error_and_a_leak_is_one() -> None:
    """A gateway may grow a little, and not by much; what is left behind is told as it is."""
    small, large = Sample(70 << 20, 10, 40), Sample(170 << 20, 10, 40)
    assert not Result([replace(BROKEN, outcome="left")], samples=[small] * 20).faults()
    assert Result(samples=[small] * 10 + [large] * 10).faults()
    assert Result(samples=[small] * 10 + [replace(small, threads=40)] * 10).faults()
    assert Result(leavings=["process 7 is a zombie"]).faults() == ["process 7 is a zombie"]
