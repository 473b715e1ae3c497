"""What `since` may say of the decision log: the number of a line, how long ago, a time, or the beginning of this run.

Owns how that becomes a number. Times are the wall clock's, as the lines have them; a time without its zone is refused,
because the client's may be another than the server's.
"""

from datetime import UTC, datetime
from typing import Final

from gridsched.control.problems import LONGEST_SAID_NAME, RequestError, invalid
from gridsched.ports import Clock
from gridsched.runtime.decisions import DecisionLog
from gridsched.settings.values import DURATION, LONGEST_SECONDS, SECONDS

RUN: Final = "start"
"""Lines of this run of the server alone."""


async def number_of(text: str, log: DecisionLog, clock: Clock) -> int | None:
    """The number after which lines are wanted; None, which is all that are in memory, for one that no line has had yet.
    Raises RequestError."""
    if text.isascii() and text.isdigit():
        seq = int(text.lstrip("0")[:20] or "0")
        return seq if seq <= log.last_seq else None
    if text == RUN:
        return log.began_after
    ago = DURATION.fullmatch(text)
    if ago is not None and (seconds := float(ago[1]) * SECONDS[ago[2]]) <= LONGEST_SECONDS:
        return await log.number_at(clock.wall_seconds() - seconds)
    return await log.number_at(_time(text))


def _time(text: str) -> float:
    """Raises RequestError."""
    told = text.strip().replace(" ", "+") if "T" in text else text  # a plus that nobody has encoded is a blank
    try:
        time = datetime.fromisoformat(told)
        if time.tzinfo is not None:
            return time.astimezone(UTC).timestamp()
    except (ValueError, OverflowError):
        pass
    raise _refused(text)


def _refused(text: str) -> RequestError:
    said = text[:LONGEST_SAID_NAME]
    return invalid(
        f"{said!r} is no number of a line, no duration such as 5m, no time with its zone such as 2026-12-01T11:20:27Z, "
        f"and not {RUN!r}",
        "since",
    )
