"""Timers that are moved all the time: none rings early, none is forgotten, and none costs the others anything."""

from itertools import count
from random import Random

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
    patience().hurry(timer)
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


class Watched(Timer):
    """A timer that counts how often anybody looks when it is due."""

    looks = 0

    @property
    def due(self) -> float:
        """When it rings."""
        Watched.looks += 1
        return self._due

    @due.setter
    def due(self, at: float) -> None:
        self._due = at


async def test_thousands_that_wait_are_looked_at_when_they_ring_alone(autojump_clock: MockClock) -> None:
    """Each at another moment, and again a while later: as many looks as there are rings, times a few."""
    crowd, rings = 2_000, count()
    for number in range(crowd):
        timer = Watched(lambda: next(rings))
        timer.due = autojump_clock.current_time() + 1.0 + number / crowd
        patience().add(timer)
    Watched.looks = 0
    await trio.sleep(3)
    assert next(rings) == crowd
    assert Watched.looks < 10 * crowd


async def test_timers_of_requests_long_over_do_not_pile_up(autojump_clock: MockClock) -> None:
    """Ten thousand that were dropped at once leave at most a handful behind, which hold nothing of their owners."""
    for _ in range(10_000):
        timer = Timer(lambda: None)
        timer.due = autojump_clock.current_time() + 300.0
        owner = timer.ring
        patience().add(timer)
        patience().drop(timer)
    assert len(patience().heap) < 100
    assert timer.ring is not owner


async def test_timers_that_are_moved_hurried_and_dropped_at_random_ring_as_told(autojump_clock: MockClock) -> None:
    """Each at the last moment that was set, where it was later or said to be earlier; none that was dropped."""
    draw = Random(3)  # noqa: S311 - repeatable numbers, not secrets
    rung: dict[int, float] = {}
    due: dict[int, float] = {}
    timers: dict[int, Timer] = {}
    for number in range(400):
        timer = Timer(lambda number=number: rung.setdefault(number, trio.current_time()))  # type: ignore[misc]
        timers[number] = timer
        timer.due = due[number] = autojump_clock.current_time() + draw.randrange(1, 40)
        patience().add(timer)
        await trio.sleep(draw.choice((0.0, 0.5)))
        for other in draw.sample(sorted(due.keys() - rung.keys()), k=min(3, len(due.keys() - rung.keys()))):
            if draw.random() < 0.2:
                patience().drop(timers[other])
                del due[other]
            else:
                timers[other].due = due[other] = trio.current_time() + draw.randrange(1, 40)
                patience().hurry(timers[other])
    await trio.sleep(100)
    assert rung == due
