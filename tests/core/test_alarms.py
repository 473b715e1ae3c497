"""Moments at which time changes something: the earliest, and those that have come."""

from math import inf

from gridsched.core.alarms import Alarms
from gridsched.core.ids import InstanceId

ONE, TWO = InstanceId(1), InstanceId(2)


def alarms(*moments: tuple[InstanceId, float]) -> Alarms[InstanceId]:
    """At second 0."""
    made: Alarms[InstanceId] = Alarms()
    for key, at in moments:
        made.set(key, at, 0.0)
    return made


def test_the_earliest_moment_is_known() -> None:
    """Whoever was told of first."""
    assert alarms().next_at(0.0) == inf
    assert alarms((ONE, 5.0), (TWO, 3.0)).next_at(0.0) == 3.0


def test_a_moment_takes_the_place_of_the_one_before() -> None:
    """Later, earlier, or never."""
    made = alarms((ONE, 5.0), (TWO, 3.0))
    made.set(TWO, 7.0, 0.0)
    assert (made.at(TWO), made.next_at(0.0)) == (7.0, 5.0)
    made.set(TWO, 2.0, 0.0)
    assert made.next_at(0.0) == 2.0
    made.set(TWO, inf, 0.0)
    made.set(ONE, inf, 0.0)
    assert (made.at(TWO), made.next_at(0.0)) == (inf, inf)


def test_a_moment_that_has_come_stays_until_another_is_set() -> None:
    """What is done about it takes the time that it takes."""
    made = alarms((ONE, 5.0), (TWO, 3.0))
    assert made.next_at(4.0) == 5.0
    assert made.come == {TWO: 3.0}
    made.set(TWO, 3.0, 4.0)
    assert made.come == {TWO: 3.0}
    made.set(TWO, 8.0, 4.0)
    assert (made.come, made.next_at(5.0)) == ({ONE: 5.0}, 8.0)


def test_a_moment_in_the_past_has_come_at_once() -> None:
    """Nobody has to ask for the next one first."""
    made = alarms((ONE, -1.0))
    assert (made.come, made.next_at(0.0)) == ({ONE: -1.0}, inf)


def test_a_moment_that_changes_all_the_time_costs_no_memory() -> None:
    """Outdated entries are dropped before they come up."""
    made = alarms((ONE, 1.0), (TWO, -1.0))
    for number in range(10_000):
        made.set(ONE, 1000.0 + number, 0.0)
    assert len(made.heap) < 100
    assert (made.next_at(0.0), made.come) == (10_999.0, {TWO: -1.0})
