"""A window of the day in which work may begin, such as `22:00-07:00`. Pure: the moment is given.

Owns how a window is written, and when it is open. It goes by the wall clocks of this machine's place: a day of 23 or 25
hours, or a clock that is set, moves the moment at which the window opens and never what the clock shows then.
"""

import re
import time
from dataclasses import dataclass

DAY_MINUTES = 24 * 60
_WINDOW = re.compile(r"(\d{1,2}):(\d{2})\s*[-–—]\s*(\d{1,2}):(\d{2})")  # noqa: RUF001 - word processors make dashes
_LONGEST_LOOK_MINUTES = 2 * DAY_MINUTES
"""A window that lies in an hour that a day in spring does not have opens the day after."""


@dataclass(frozen=True, slots=True)
class Window:
    """From one minute of the day up to another, across midnight where the second is not after the first."""

    start_minute: int
    end_minute: int

    def __str__(self) -> str:
        return f"{_shown(self.start_minute)}-{_shown(self.end_minute)}"

    def is_open(self, wall_seconds: float) -> bool:
        """Whether work may begin at this moment of the epoch."""
        minute = _minute_of(wall_seconds)
        if self.start_minute < self.end_minute:
            return self.start_minute <= minute < self.end_minute
        return minute >= self.start_minute or minute < self.end_minute

    def seconds_until_change(self, wall_seconds: float) -> float:
        """How long it stays as it is, closed or open; two days where it does not change in them."""
        if self.end_minute - self.start_minute == DAY_MINUTES:
            return _LONGEST_LOOK_MINUTES * 60.0
        now_open = self.is_open(wall_seconds)
        into_minute = wall_seconds % 60  # every offset of a place in use today is of whole minutes
        edge = (self.end_minute if now_open else self.start_minute) % DAY_MINUTES
        seconds = (edge - _minute_of(wall_seconds)) % DAY_MINUTES * 60 - into_minute
        if _minute_of(wall_seconds + seconds) == edge:
            return seconds
        # the clocks are set meanwhile: minute for minute, which takes a thousand times as long
        for minutes in range(1, _LONGEST_LOOK_MINUTES + 1):
            seconds = minutes * 60 - into_minute
            if self.is_open(wall_seconds + seconds) != now_open:
                return seconds
        return _LONGEST_LOOK_MINUTES * 60.0


def window_of(text: str) -> Window:
    """What a person wrote: `22:00-07:00`, with a hyphen or a dash. Raises ValueError."""
    match = _WINDOW.fullmatch(text.strip())
    if match is None:
        raise ValueError("expected a window of the day such as 22:00-07:00")
    start, end = (_minute(match[place], match[place + 1]) for place in (1, 3))
    if start in {end, DAY_MINUTES}:
        raise ValueError("a window begins before 24:00 and at another time than it ends; 00:00-24:00 is all day")
    return Window(start, end)


def _minute(hours: str, minutes: str) -> int:
    """Raises ValueError."""
    minute = int(hours) * 60 + int(minutes)
    if int(minutes) >= 60 or minute > DAY_MINUTES:  # noqa: PLR2004 - the minutes of an hour
        raise ValueError(f"there is no {hours}:{minutes} in a day")
    return minute


def _minute_of(wall_seconds: float) -> int:
    """Of the day, as clocks here show it."""
    shown = time.localtime(wall_seconds)
    return shown.tm_hour * 60 + shown.tm_min


def _shown(minute: int) -> str:
    return f"{minute // 60:02}:{minute % 60:02}"
