"""`/api/events` over restarts and beyond the memory: read by number, time, class and job, with no line left out."""

import json
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from trio.testing import MockClock

from gridsched.app.beside import Beside
from gridsched.core.commands import Log, LogEvent
from gridsched.core.ids import JobId
from gridsched.core.job import JobClass
from gridsched.runtime import decisions
from gridsched.runtime.decisions import DecisionLog
from gridsched.runtime.past import Past
from gridsched.store.rotated import USUAL, Bounds
from tests.support.fakes import StandingClock
from tests.support.front import Answer, serving

NOW = StandingClock().wall_seconds()
CHAT = "/v1/chat/completions"
HELLO = {"model": "sim-chat-4b", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}


def frames(answer: Answer) -> list[tuple[str, int, dict[str, object]]]:
    """Each event of an answer: its name, its id, its data."""
    found = []
    for text in answer.body.decode().split("\n\n"):
        told = dict(line.split(": ", 1) for line in text.splitlines() if not line.startswith("retry"))
        if told:
            found.append((told.get("event", ""), int(told["id"]), json.loads(told["data"])))
    return found


def numbers(answer: Answer) -> list[int]:
    """The numbers of the lines in an answer, which has nothing else in it."""
    assert {name for name, _, __ in frames(answer)} <= {""}, answer.body
    return [number for _, number, __ in frames(answer)]


@contextmanager
def after_a_run(path: Path, minutes: int, *, ends: bool = True, bounds: Bounds = USUAL) -> Iterator[Beside]:
    """What is beside a server whose run before said a line a minute up to now, about a job each: numbers 1 to so many
    and two, with how it began and ended."""
    with closing(Past(path, print, bounds)) as past:
        log = DecisionLog(past=past)
        log.begin("1", 1, NOW - 60 * minutes - 60)
        for minute in range(minutes):
            at = NOW - 60 * (minutes - minute)
            log.add(Log(LogEvent.ENQUEUE, JobId(minute + 1), JobClass(minute % 3)), at)
        if ends:
            log.add(Log(LogEvent.END), NOW)
    with closing(Past(path, print, bounds)) as past:
        yield Beside(past=past)


@pytest.mark.parametrize("memory", [20, 10_000])
async def test_who_comes_back_after_a_restart_misses_nothing(
    autojump_clock: MockClock, tmp_path: Path, memory: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From memory and from the files; numbers go on, and jobs too."""
    monkeypatch.setattr(decisions, "KEPT_LINES", memory)
    with after_a_run(tmp_path / "d.jsonl", 30) as beside:
        async with serving(autojump_clock, beside=beside) as house:
            answer = await house.ask("POST", CHAT, HELLO)
            assert answer.headers["x-gridsched-job-id"] == "31"
            last = house.runtime.log.last_seq
            for seen in (3, 29, 32):
                back = numbers(await house.ask("GET", "/api/events?follow=0", None, {"Last-Event-ID": str(seen)}))
                assert back == list(range(seen + 1, back[-1] + 1))
                assert back[-1] >= last
            assert numbers(await house.ask("GET", "/api/events?follow=0&since=start"))[0] == 33
            assert len(numbers(await house.ask("GET", "/api/events?follow=0"))) in {memory, house.runtime.log.last_seq}


async def test_after_a_kill_no_line_is_missing_and_none_is_said_to_be(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    """Of the numbers that the new run leaves out none was a line; whoever has seen a line that the disk has not goes on
    with the first of the new run."""
    with after_a_run(tmp_path / "d.jsonl", 10, ends=False) as beside:
        async with serving(autojump_clock, beside=beside) as house:
            house.runtime.log.begin("1", 2, NOW)
            await house.ask("POST", CHAT, HELLO)
            new = [1_000_001, 1_000_002, 1_000_003]
            for seen, wanted in ((8, [9, 10, 11, *new]), (11, new), (15, new), (1_000_000, new), (1_000_001, new[1:])):
                told = numbers(await house.ask("GET", f"/api/events?follow=0&since={seen}"))
                assert told[: len(wanted)] == wanted


async def test_lines_are_read_back_by_time_class_job_and_event(
    autojump_clock: MockClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As far as the files reach; of a job, all there is without being asked since when."""
    monkeypatch.setattr(decisions, "KEPT_LINES", 5)
    with after_a_run(tmp_path / "d.jsonl", 30, bounds=Bounds(max_bytes=500, files=99)) as beside:
        async with serving(autojump_clock, beside=beside) as house:

            async def found(query: str) -> list[int]:
                return [each for each in numbers(await house.ask("GET", f"/api/events?follow=0&{query}")) if each < 33]

            assert await found("since=5m") == [27, 28, 29, 30, 31, 32]
            assert await found("since=300s&class=background") == [27, 30]
            assert await found("since=2027-01-15T07:58:00Z") == [30, 31, 32]
            assert await found("since=2027-01-15T08:58:00%2B01:00") == [30, 31, 32]
            assert await found("since=2027-01-15T08:58:00+01:00") == [30, 31, 32]
            assert await found("since=30d&event=start&event=end") == [1, 32]
            assert await found("job=7") == [8]
            assert await found("job=7&since=5m") == []
            assert await found("job=777") == []
            assert await found("since=0") == list(range(1, 33))


async def test_what_no_file_has_any_more_is_told_as_lost(
    autojump_clock: MockClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once, before the first line that there is."""
    monkeypatch.setattr(decisions, "KEPT_LINES", 5)
    with after_a_run(tmp_path / "d.jsonl", 60, bounds=Bounds(max_bytes=1000, files=3)) as beside:
        async with serving(autojump_clock, beside=beside) as house:
            gap, first, *others = frames(await house.ask("GET", "/api/events?follow=0&since=2"))
            assert (gap[0], gap[1], gap[2]["first"], gap[2]["lost"]) == ("gap", first[1] - 1, 3, first[1] - 3)
            assert [each[1] for each in others] == list(range(first[1] + 1, others[-1][1] + 1))


@pytest.mark.parametrize("text", ["soon", "-5m", "5", "2027-01-15T08:00:00", "2027-13-15T08:00:00Z", "9" * 99 + "d"])
async def test_H1_a_time_that_is_none_is_a_400(autojump_clock: MockClock, text: str) -> None:
    """In words that say what there is; a number that no line has had yet means all that is kept."""
    async with serving(autojump_clock) as house:
        answer = await house.ask("GET", f"/api/events?follow=0&since={text}")
        if text == "5":
            assert answer.status == 200
            return
        assert (answer.status, answer.error["param"]) == (400, "since")
        assert "no duration such as 5m" in answer.error["message"]


async def test_H1_a_class_that_is_none_is_a_400(autojump_clock: MockClock) -> None:
    """As an event that is none."""
    async with serving(autojump_clock) as house:
        answer = await house.ask("GET", "/api/events?follow=0&class=chat")
        assert (answer.status, answer.error["param"]) == (400, "class")
