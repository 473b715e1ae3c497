"""Timers that are moved all the time: none rings early, none is forgotten."""

import trio
from trio.testing import MockClock

from gridsched.engine.patience import Timer, patience


async def test_a_timer_rings_once_at_its_time(autojump_clock: MockClock) -> None:
    """However often it was moved before, and whatever the one task was sleeping for."""
    rung: list[float] = []
    timer = Timer(lambda: rung.append(autojump_clock.current_time()))
    timer.due = 5.0
    patience().add(timer)
    for _ in range(4):
        await trio.sleep(3)
        timer.due = trio.current_time() + 5.0
    await trio.sleep(60)
    assert rung == [17.0]


async def test_an_earlier_timer_is_not_slept_over(autojump_clock: MockClock) -> None:
    """A second one comes while the first is waited for; one that is made earlier says so."""
    rung: list[tuple[str, float]] = []
    for name, due in (("late", 50.0), ("soon", 2.0)):
        timer = Timer(lambda name=name: rung.append((name, autojump_clock.current_time())))  # type: ignore[misc]
        timer.due = due
        patience().add(timer)
        await trio.sleep(1)
    await trio.sleep(5)
    timer.due = 9.0
    patience().hurry(9.0)
    await trio.sleep(60)
    assert rung == [("soon", 2.0), ("soon", 9.0), ("late", 50.0)]


async def test_a_timer_that_was_dropped_does_not_ring(autojump_clock: MockClock) -> None:
    """Nor does its end keep the next from ringing."""
    rung: list[str] = []
    first, second = Timer(lambda: rung.append("first")), Timer(lambda: rung.append("second"))
    first.due, second.due = 2.0, 4.0
    patience().add(first)
    patience().drop(first)
    await trio.sleep(10)
    second.due = autojump_clock.current_time() + 4.0
    patience().add(second)
    await trio.sleep(10)
    assert rung == ["second"]


async def test_a_timer_may_set_itself_again(autojump_clock: MockClock) -> None:
    """As one does that found that nobody waits just now."""
    rung: list[float] = []

    def ring() -> None:
        rung.append(autojump_clock.current_time())
        timer.due = trio.current_time() + 3.0

    timer = Timer(ring)
    timer.due = 3.0
    patience().add(timer)
    await trio.sleep(10)
    patience().drop(timer)
    await trio.sleep(10)
    assert rung == [3.0, 6.0, 9.0]
