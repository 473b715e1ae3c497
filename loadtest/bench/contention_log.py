"""What the decision log says of sharing: how much of the chats' time something in the background ran beside them.

Owns that one figure. Pure. It rests on the server's decisions alone and on no speed, so a busy machine
changes little about it.
"""

from collections.abc import Iterable

from loadtest.decisions import ENDINGS, LOW_CLASSES, Line

STEP_ENDS = ("step", *ENDINGS)


def beside(lines: Iterable[Line], since: float) -> float | None:
    """The part of the time in which a chat was answered, with low work that ran (was granted, and did not stand
    still), from `since` on, in seconds since the epoch. None where nobody chatted. `lines` begin when nothing runs,
    oldest first."""
    shared = _Shared(since)
    for line in lines:
        shared.take(line)
    return shared.beside_seconds / shared.chat_seconds if shared.chat_seconds else None


class _Shared:
    """What runs after the lines so far: jobs by number with their process, chats apart, and processes that stand."""

    def __init__(self, since: float) -> None:
        self.chat_seconds = self.beside_seconds = 0.0
        self._chats: set[int] = set()
        self._low: dict[int, int] = {}
        self._standing: set[int] = set()
        self._at = self._since = since

    def take(self, line: Line) -> None:
        """The time until this line counts for what ran before it."""
        if self._chats:
            seconds = max(0.0, line.time - self._at)
            self.chat_seconds += seconds
            self.beside_seconds += seconds if set(self._low.values()) - self._standing else 0.0
        self._at = max(line.time, self._since)
        if line.event == "pause":
            self._standing.add(line.instance)
        elif line.event == "resume":
            self._standing.discard(line.instance)
        elif line.job is not None:
            self._take_job(line, line.job)

    def _take_job(self, line: Line, job: int) -> None:
        if line.event == "dispatch" and line.job_class in LOW_CLASSES:
            self._low[job] = line.instance
        elif line.event == "dispatch":
            self._chats.add(job)
        elif line.event in STEP_ENDS:
            self._chats.discard(job)
            self._low.pop(job, None)
