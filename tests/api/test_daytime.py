"""Windows of the day: how they are written, and when they are open, on days of every length."""

import os
import time
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from gridsched.daytime import Window, window_of

WRITTEN = [
    ("22:00-07:00", "22:00-07:00"),
    ("22:00–07:00", "22:00-07:00"),  # noqa: RUF001 - as a word processor writes it
    (" 9:30 — 17:05 ", "09:30-17:05"),
    ("00:00-24:00", "00:00-24:00"),
]
WRONG = ["", "22:00", "22-07", "22:00-22:00", "24:00-07:00", "22:60-07:00", "25:00-07:00", "22:00-07:00x", "24:01-1:00"]


@pytest.fixture
def berlin() -> Iterator[None]:
    """A machine in Berlin."""
    before = os.environ.get("TZ")
    os.environ["TZ"] = "Europe/Berlin"
    time.tzset()
    yield
    if before is None:
        del os.environ["TZ"]
    else:
        os.environ["TZ"] = before
    time.tzset()


def at(*moment: int) -> float:
    """A moment in UTC, in seconds of the epoch."""
    return datetime(*moment, tzinfo=UTC).timestamp()  # type: ignore[misc, arg-type]  # year, month, …


@pytest.mark.usefixtures("berlin")
@pytest.mark.parametrize("day", [at(2026, 3, 28), at(2026, 10, 24), at(2026, 12, 1)])
@pytest.mark.parametrize("text", ["22:00-07:00", "02:30-02:40", "02:45-01:15", "01:00-02:00", "03:00-24:00"])
def test_a_window_changes_when_it_says_and_not_before(day: float, text: str) -> None:
    """Also in the nights in which the clocks are set."""
    window = window_of(text)
    for wall in range(int(day) + 20, int(day) + 2 * 86400, 47 * 60):
        seconds = window.seconds_until_change(wall)
        changed, *before = (window.is_open(wall + seconds - 60 * minutes) for minutes in range(int(seconds // 60) + 1))
        now = window.is_open(wall)
        assert (changed, set(before) <= {now}) == (not now, True)


@pytest.mark.parametrize(("text", "shown"), WRITTEN)
def test_a_window_is_written_with_a_hyphen_or_a_dash(text: str, shown: str) -> None:
    """And is said in one way."""
    assert str(window_of(text)) == shown


@pytest.mark.parametrize("text", WRONG)
def test_what_is_no_window_is_refused(text: str) -> None:
    """With a sentence."""
    with pytest.raises(ValueError, match=r"window|in a day"):
        window_of(text)


@pytest.mark.usefixtures("berlin")
def test_a_window_across_midnight_is_open_on_both_sides_of_it() -> None:
    """From its first minute to before its last; and it says how long it stays so."""
    night = window_of("22:00-07:00")
    wall = at(2026, 12, 1, 20, 59, 59)  # 21:59:59
    assert (night.is_open(wall), night.seconds_until_change(wall)) == (False, 1)
    assert (night.is_open(wall + 1), night.seconds_until_change(wall + 1)) == (True, 9 * 3600)
    assert night.is_open(at(2026, 12, 2, 5, 59, 59))
    assert not night.is_open(at(2026, 12, 2, 6))
    day = window_of("09:00-17:00")
    assert [day.is_open(at(2026, 12, 1, hour)) for hour in (7, 8, 15, 16)] == [False, True, True, False]
    assert window_of("00:00-24:00").seconds_until_change(wall) == 2 * 86400


@pytest.mark.usefixtures("berlin")
@pytest.mark.parametrize(("day", "hours"), [((2026, 3, 28), 8), ((2026, 10, 24), 10), ((2026, 6, 1), 9)])
def test_a_night_in_which_the_clocks_change_is_shorter_or_longer(day: tuple[int, int, int], hours: int) -> None:
    """It opens and closes by what the clocks show."""
    night = window_of("22:00-07:00")
    opens = at(*day, 20) if day[1] != 3 else at(*day, 21)
    assert not night.is_open(opens - 1)
    assert night.is_open(opens)
    assert night.seconds_until_change(opens) == hours * 3600


@pytest.mark.usefixtures("berlin")
def test_a_window_in_the_hour_that_a_spring_day_lacks_opens_the_day_after() -> None:
    """02:15 to 02:45 is not on 29 March 2026."""
    window = window_of("02:15-02:45")
    evening = at(2026, 3, 28, 21)
    assert window.seconds_until_change(evening) == at(2026, 3, 30, 0, 15) - evening


def test_a_window_is_a_value() -> None:
    """What was written twice is the same."""
    assert window_of("1:00-2:00") == Window(60, 120)
