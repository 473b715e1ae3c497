"""The decision log: numbered lines, and followers that miss nothing."""

import trio
import trio.testing

from gridsched.core.commands import Log, LogEvent
from gridsched.core.ids import JobId, ModelName
from gridsched.core.job import JobClass, JobKind
from gridsched.runtime import decisions
from gridsched.runtime.decisions import DecisionLog, rfc3339

NOON = 1_700_000_000.1239


def test_a_time_has_milliseconds_and_is_utc() -> None:
    """RFC 3339, cut and not rounded, so that a line never comes before its cause."""
    assert rfc3339(1_700_000_000.1239) == "2023-11-14T22:13:20.123Z"


def test_a_line_names_what_it_concerns_and_leaves_empty_fields_out() -> None:
    """The contract's keys."""
    log = DecisionLog()
    kind, model = JobKind.EMBEDDINGS, ModelName("e")
    log.add(Log(LogEvent.DISPATCH, JobId(3), JobClass.BACKGROUND, kind, model, None, 1, 32, "S5"), NOON)
    assert log.since(0) == [
        (
            1,
            {
                "seq": 1,
                "time": "2023-11-14T22:13:20.123Z",
                "event": "dispatch",
                "class": "background",
                "job": 3,
                "kind": "embeddings",
                "model": "e",
                "step": 1,
                "steps": 32,
                "rule": "S5",
            },
        )
    ]


def test_a_sink_sees_every_line() -> None:
    """For a log file."""
    seen: list[decisions.Line] = []
    log = DecisionLog(seen.append)
    log.add(Log(LogEvent.CONFIG, figures={"why": "start"}), NOON)
    assert [line["why"] for line in seen] == ["start"]


def test_old_lines_are_dropped_and_numbers_go_on() -> None:
    """The log is bounded."""
    log = DecisionLog()
    for _ in range(decisions.KEPT_LINES + 5):
        log.add(Log(LogEvent.CONFIG), NOON)
    kept = log.since(0)
    assert len(kept) == decisions.KEPT_LINES
    assert (kept[0][0], kept[-1][0]) == (6, decisions.KEPT_LINES + 5)
    assert [number for number, _ in log.since(decisions.KEPT_LINES + 3)] == [10_004, 10_005]


async def test_a_follower_gets_old_lines_and_then_new_ones_until_the_log_closes() -> None:
    """Resumable from any number."""
    log = DecisionLog()
    log.add(Log(LogEvent.CONFIG), NOON)
    log.add(Log(LogEvent.LOAD), NOON)
    seen: list[tuple[int, object]] = []

    async def follow() -> None:
        async for number, line in log.follow(1):
            seen.append((number, line["event"]))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(follow)
        await trio.testing.wait_all_tasks_blocked()
        assert seen == [(2, "load")]
        log.add(Log(LogEvent.READY), NOON)
        await trio.testing.wait_all_tasks_blocked()
        log.close()
    assert seen == [(2, "load"), (3, "ready")]
