"""Virtual time: a heap of moments, and the inbox through which news reach the scheduler.

Owns the order in which things happen. What is posted is heard in the order of posting, mostly at once, at times a
little later, so that news cross each other as they do in life. It knows nothing of what happens.
"""

import heapq
from collections import deque
from collections.abc import Callable
from random import Random

from gridsched.core.events import Event

LATE_SHARE = 0.2
LATE_SECONDS = 0.002
"""How often, and by how much at most, the scheduler hears late. Guesses: the second is some ticks of an event loop."""

Act = Callable[[], object]


class Moments:
    """`now` is in seconds from the run's beginning. `hear` is called for each event, when its time has come."""

    def __init__(self, lag: Random, hear: Callable[[Event], None]) -> None:
        self.now = 0.0
        self._lag = lag
        self._deliver = hear
        self._heap: list[tuple[float, int, Act]] = []
        self._inbox: deque[Event] = deque()
        self._made = 0

    def later(self, seconds: float, act: Act) -> None:
        """Do something in some seconds; things of one moment are done in the order in which they were asked for."""
        self._made += 1
        heapq.heappush(self._heap, (self.now + seconds, self._made, act))

    def at(self, moment: float, act: Act) -> None:
        """Do something at a moment, or now if it has passed."""
        self._made += 1
        heapq.heappush(self._heap, (max(moment, self.now), self._made, act))

    def post(self, event: Event, *, lag: bool = True) -> None:
        """Put an event into the inbox."""
        self._inbox.append(event)
        random = self._lag.random
        when = self.now + random() * LATE_SECONDS if lag and random() < LATE_SHARE else self.now
        self._made += 1
        heapq.heappush(self._heap, (when, self._made, self._hear))

    def _hear(self) -> None:
        self._deliver(self._inbox.popleft())

    def play(self, done: Callable[[], bool]) -> None:
        """Let time pass until there is nothing more, or `done` says so."""
        heap, pop = self._heap, heapq.heappop
        while heap and not done():
            self.now, _, act = pop(heap)
            act()
