"""How many processes may be started in a minute, all models together (P6a).

Owns the times of the last starts and when the next may be. Must never choose whose it is: plans are asked in their
order, interactive ones first.
"""

from collections import deque

from gridsched.core.placement import Obstacle

WINDOW_SECONDS = 60.0
"""P6a: the figure of the policy counts in so long."""


class Starts:
    """The starts of the last minute, oldest first, each with whether it was a chat's."""

    def __init__(self) -> None:
        self._of_late: deque[tuple[float, bool]] = deque()

    def note(self, now: float, *, chat: bool) -> None:
        """A process is started."""
        self._forget(now)
        self._of_late.append((now, chat))

    def bar(self, now: float, limit: int, *, chat: bool, starved: bool = False) -> Obstacle | None:
        """Why no process may be started yet, and until when. While low work is `starved` of a load, and none for it was
        begun within the minute, chats leave it one start of several (S5)."""
        self._forget(now)
        others = self._of_late
        most = limit
        if chat and starved and limit > 1 and all(was_chat for _, was_chat in others):
            most -= 1
        if len(others) < most:
            return None
        why = f"{limit} processes a minute are started at the most, and as many were"
        return Obstacle("P6a", why, others[-most][0] + WINDOW_SECONDS)

    def _forget(self, now: float) -> None:
        while self._of_late and self._of_late[0][0] + WINDOW_SECONDS <= now:
            self._of_late.popleft()
