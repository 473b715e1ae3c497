"""The decision log on the disk: numbers and jobs go on over a restart, and what is older than the memory is read."""

import json
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from gridsched.core.commands import Log, LogEvent
from gridsched.core.ids import JobId, ModelName
from gridsched.core.job import JobClass, JobKind
from gridsched.runtime import decisions
from gridsched.runtime.decisions import DecisionLog, rfc3339
from gridsched.runtime.past import Past, Which
from gridsched.store.rotated import USUAL, Bounds

NOON = 1_700_000_000.0
ALL = Which()


@contextmanager
def run(path: Path, bounds: Bounds = USUAL) -> Iterator[DecisionLog]:
    """The log of one run of a server, begun; it is on the disk at the end."""
    with closing(Past(path, print, bounds)) as past:
        log = DecisionLog(past=past)
        log.begin("1.0", 42, NOON)
        yield log


def of_job(event: LogEvent, job: int, model: str = "m") -> Log:
    """A line about a job."""
    return Log(event, JobId(job), JobClass.BACKGROUND, JobKind.CHAT, ModelName(model), step=1, steps=1)


async def numbers(log: DecisionLog, seq: int, which: Which = ALL) -> list[int]:
    """The numbers of all lines after one, wherever they are."""
    found: list[int] = []
    async for read in log.older(seq, which):
        found += [number for number, _ in read.found]
        seq = read.last
    return found + [number for number, line in log.since(seq) if which.has(line)]


def test_numbers_and_jobs_go_on_after_a_run_that_ended(tmp_path: Path) -> None:
    """And the last lines are there again, for whoever comes back; none of them is seen as new."""
    path = tmp_path / "d.jsonl"
    with run(path) as log:
        log.add(of_job(LogEvent.ENQUEUE, 7), NOON)
        log.add(Log(LogEvent.END), NOON)
    seen: list[object] = []
    with closing(Past(path, print)) as past:
        log = DecisionLog(seen.append, past)
        assert (log.last_seq, log.last_job, seen) == (3, 7, [])
        log.begin("1.1", 43, NOON)
        assert [(number, line["event"]) for number, line in log.since(1)] == [(2, "enqueue"), (3, "end"), (4, "start")]
        assert seen == [{"seq": 4, "time": rfc3339(NOON), "event": "start", "version": "1.1", "pid": 43}]


def test_after_a_run_that_was_killed_no_number_means_two_lines(tmp_path: Path) -> None:
    """Its last lines may have been seen and not be on the disk: the next run begins above the next million, and says
    which is the last line that there is. A line that is half written is none."""
    path = tmp_path / "d.jsonl"
    with run(path) as log:
        log.add(of_job(LogEvent.ENQUEUE, 1), NOON)
    with path.open("a") as file:
        file.write('{"seq":3,"time":"2023-11-14T22:13:20.0')
    with run(path) as log:
        ((number, line),) = log.since(2)
        assert (number, line["event"], line["after"]) == (1_000_001, "start", 2)
        log.add(Log(LogEvent.END), NOON)
    with run(path) as log:
        assert log.last_seq == 1_000_003
        assert "after" not in log.since(1_000_002)[0][1]


def test_the_last_job_is_found_behind_many_lines_about_an_older_one(tmp_path: Path) -> None:
    """Also where the lines that are read at the start know of no newer."""
    path = tmp_path / "d.jsonl"
    with closing(Past(path, print)) as past:
        for seq, (event, job) in enumerate([("enqueue", 1), ("enqueue", 2), ("step", 1), ("step", 1)], 1):
            past.keep({"seq": seq, "time": rfc3339(NOON), "event": event, "job": job})
    assert past.last_job(past.newest(2)) == 2
    assert past.last_job(past.newest(4)) == 2
    assert Past(tmp_path / "none.jsonl", print).last_job([]) == 0


@pytest.mark.parametrize("bounds", [Bounds(most_waiting=10_000), Bounds(max_bytes=600, files=200)])
async def test_what_is_no_longer_in_memory_is_read_from_the_files(
    tmp_path: Path, bounds: Bounds, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In order, each line once, from any number on, whatever it is looked for by."""
    monkeypatch.setattr(decisions, "KEPT_LINES", 5)
    with run(tmp_path / "d.jsonl", bounds) as log:
        for job in range(1, 101):
            log.add(of_job(LogEvent.ENQUEUE, job, f"m{job % 2}"), NOON)
        assert await numbers(log, 0) == list(range(1, 102))
        assert await numbers(log, 50) == list(range(51, 102))
        assert await numbers(log, 97) == [98, 99, 100, 101]
        assert await numbers(log, 0, Which(job=10)) == [11]
        assert await numbers(log, 90, Which(model="m1")) == [92, 94, 96, 98, 100]
        assert await numbers(log, 0, Which(frozenset(("start",)))) == [1]
        assert await numbers(log, 0, Which(job_class="batch")) == []
        oldest = await log.oldest()
        assert oldest is not None
        assert (oldest[0], oldest[1]["event"]) == (1, "start")
        assert [number for number, _ in await log.about(3)] == [4]
        assert [number for number, _ in await log.about(100)] == [101]
        assert await log.about(101) == []


async def test_the_first_line_that_is_kept_anywhere_is_known(tmp_path: Path) -> None:
    """Where the oldest file is gone, and without any."""
    with run(tmp_path / "d.jsonl", Bounds(max_bytes=200, files=2)) as log:
        for _ in range(50):
            log.add(Log(LogEvent.CONFIG), NOON)
    with closing(Past(tmp_path / "d.jsonl", print, Bounds(max_bytes=200, files=2))) as past:
        kept = [json.loads(line)["seq"] for line in (tmp_path / "d.jsonl.1").read_text().splitlines()]
        oldest = await DecisionLog(past=past).oldest()
        assert oldest is not None
        assert oldest[0] == kept[0] > 1
    assert await DecisionLog().oldest() is None


@pytest.mark.parametrize("memory", [2, 100])
async def test_a_time_becomes_a_number(tmp_path: Path, memory: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In memory and in the files, also over a clock that was set back: then the lines that look younger are told, too,
    and none is left out."""
    monkeypatch.setattr(decisions, "KEPT_LINES", memory)
    with run(tmp_path / "d.jsonl", Bounds(max_bytes=200, files=50)) as log:
        for minutes in (1, 2, 3, 3, 60, 4, 5):
            log.add(Log(LogEvent.CONFIG), NOON + 60 * minutes)
        assert await log.number_at(NOON) == 0
        assert await log.number_at(NOON + 60) == 1
        assert await log.number_at(NOON + 180) == 3
        assert await log.number_at(NOON + 240) == 5
        assert await log.number_at(NOON + 300) == 7
        assert await log.number_at(NOON + 9999) == 8


async def test_what_the_disk_does_not_take_is_counted_and_kept_in_memory(tmp_path: Path) -> None:
    """The log goes on without it."""
    said: list[str] = []
    (tmp_path / "d.jsonl").mkdir()
    with closing(Past(tmp_path / "d.jsonl", said.append, Bounds(most_waiting=3))) as past:
        log = DecisionLog(past=past)
        for _ in range(5):
            log.add(Log(LogEvent.CONFIG), NOON)
        assert log.lost == 2
        assert await numbers(log, 0) == [1, 2, 3, 4, 5]
    assert len(said) == 1


DAMAGE = [
    b'"job":"abc"',
    b'"job":[1]',
    b'"job":-1',
    b'"job":' + b"9" * 20,
    b'"job":' + b"9" * 5000,
    b'"job":1e300',
    b'"ms":"soon"',
    b'"queue_ms":null',
    b'"class":7',
    b'"seq":' + b"9" * 30,
    b'"seq":-7',
    b'"time":"yesterday"',
    b'"time":"2026-12-01T10:00:00"',
    b'"event":null',
    b'"x":' + b"[" * 10_000,
    b"\0" * 1000,
]


@pytest.mark.parametrize("damage", DAMAGE, ids=lambda damage: str(damage[:20]))
async def test_a_line_that_a_disk_has_changed_is_passed_over(tmp_path: Path, damage: bytes) -> None:
    """A server begins with what is left, and tells of a job what the other lines say."""
    path = tmp_path / "d.jsonl"
    with run(path) as log:
        log.add(of_job(LogEvent.ENQUEUE, 7), NOON)
        log.add(of_job(LogEvent.COMPLETE, 7), NOON)
    with path.open("ab") as file:
        file.write(b'{"seq":4,"time":"2026-12-01T10:00:00.000Z","event":"complete","job":7,%b}\n' % damage)
    with run(path) as log:
        assert (log.last_seq, log.last_job) == (1_000_001, 7)
        assert [seq for seq, _ in await log.about(7)] == [2, 3]
        assert await numbers(log, 0) == [1, 2, 3, 1_000_001]
        assert await log.number_at(NOON) == 0
