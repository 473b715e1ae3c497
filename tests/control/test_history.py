"""What became of a job, read from its lines: also after a restart, and where the server did not outlive it."""

from contextlib import closing
from pathlib import Path

from trio.testing import MockClock

from gridsched.app.beside import Beside
from gridsched.cli import explain
from gridsched.control.history import history_of, sentence
from gridsched.core.commands import Log, LogEvent
from gridsched.core.ids import DeviceName, JobId, ModelName
from gridsched.core.job import JobClass, JobKind
from gridsched.runtime.decisions import DecisionLog, line_of
from gridsched.runtime.past import Past
from tests.support.fakes import StandingClock
from tests.support.front import serving

NOON = StandingClock().wall_seconds()


def log_of(event: LogEvent, step: int = 1, rule: str | None = None, **figures: object) -> Log:
    """A line about job 7, of three steps."""
    device = DeviceName("gpu0") if event is LogEvent.DISPATCH else None
    kind, model = JobKind.EMBEDDINGS, ModelName("e")
    return Log(event, JobId(7), JobClass.BACKGROUND, kind, model, device, step, 3, rule, figures)


WHOLE = (
    (0.0, log_of(LogEvent.ENQUEUE)),
    (2.0, log_of(LogEvent.DISPATCH, 1, "S2", queue_ms=2000.0, held="S6c", why="loading e (0s)")),
    (2.5, log_of(LogEvent.STEP, 1, ms=500.0, status=200)),
    (2.5, log_of(LogEvent.DISPATCH, 2, "S3", queue_ms=0.0)),
    (3.0, log_of(LogEvent.STEP, 2, ms=500.0, status=200)),
    (6.0, log_of(LogEvent.DISPATCH, 3, "S5", queue_ms=3000.0, held="S4", why="people chat on gpu0")),
    (6.5, log_of(LogEvent.COMPLETE, 3, ms=500.0, status=200)),
)


def lines(*logs: tuple[float, Log]) -> list[dict[str, object]]:
    """As the log has them."""
    return [dict(line_of(log, NOON + at)) for at, log in logs]


def test_a_job_s_waits_are_told_by_rule() -> None:
    """The longest first; its steps, and where they ran."""
    told = history_of(lines(*WHOLE), lives=False)
    assert [(one.rule, one.seconds, one.waits) for one in told.held] == [("S4", 3.0, 1), ("S6c", 2.0, 1)]
    assert (told.waited_s, told.ran_s, told.steps_done, told.steps) == (5.0, 1.5, 3, 3)
    assert (told.arrived, told.granted, told.ended) == (
        "2027-01-15T08:00:00.000Z",
        "2027-01-15T08:00:02.000Z",
        "2027-01-15T08:00:06.500Z",
    )
    assert (told.outcome, told.devices) == ("complete", ("gpu0",))
    assert sentence(told) == "completed; waited 5s, most of it begun by S4 (people chat on gpu0); ran 1.5s in 3 steps"


def test_a_job_that_lives_has_no_end() -> None:
    """And one that does not, without a line about its end, is lost."""
    told = history_of(lines(*WHOLE[:3]), lives=True)
    assert (told.outcome, told.ended, told.steps_done) == (None, None, 1)
    told = history_of(lines(*WHOLE[:3]), lives=False)
    assert (told.outcome, told.ended) == ("lost", None)
    assert sentence(told).startswith("lost: the server ended before it; waited 2.0s")


def test_a_wait_that_came_to_nothing_counts() -> None:
    """Of a job that was refused in the end, or whose client left: by what held it."""
    refused = log_of(LogEvent.REJECT, 1, "S9", code="queue_timeout", held="L7", why="e does not fit")
    told = history_of(lines(WHOLE[0], (30.0, refused)), lives=False)
    assert [(one.rule, one.seconds) for one in told.held] == [("L7", 30.0)]
    assert (told.rule, told.code, told.granted) == ("S9", "queue_timeout", None)
    assert sentence(told) == "refused with queue_timeout by S9; waited 30s, most of it begun by L7 (e does not fit)"
    left = log_of(LogEvent.CANCEL, 1, "S8", waited_s=4.0, held="S4", why="people chat on gpu0")
    told = history_of(lines(WHOLE[0], (4.0, left)), lives=False)
    assert [(one.rule, one.seconds) for one in told.held] == [("S4", 4.0)]
    at_once = history_of(lines((0.0, log_of(LogEvent.REJECT, 1, "S9", code="queue_full"))), lives=False)
    assert (at_once.held, at_once.waited_s) == ((), 0.0)


def test_a_step_that_broke_off_is_none_that_was_done() -> None:
    """Its time counts."""
    broke = log_of(LogEvent.STEP, 1, ms=700.0, status=None, outcome="engine_died")
    told = history_of(lines(WHOLE[0], WHOLE[1], (2.7, broke)), lives=True)
    assert (told.steps_done, told.ran_s) == (0, 0.7)


async def test_S9b_a_job_of_a_run_before_is_explained(autojump_clock: MockClock, tmp_path: Path) -> None:
    """From the files; a job number means one job over all runs. One that was under way when the server was killed is
    lost, and one that no line is about is a 404."""
    with closing(Past(tmp_path / "d.jsonl", print)) as past:
        log = DecisionLog(past=past)
        for at, each in WHOLE:
            log.add(each, NOON + at)
        log.add(Log(LogEvent.ENQUEUE, JobId(8), JobClass.BATCH), NOON)
    with closing(Past(tmp_path / "d.jsonl", print)) as past:
        async with serving(autojump_clock, beside=Beside(past=past)) as house:
            told = (await house.ask("GET", "/api/jobs/7")).json
            assert (told["state"], told["class"], told["kind"], told["model"]) == (
                "over",
                "background",
                "embeddings",
                "e",
            )
            shown = list(explain.rows(told))
            assert shown[0].startswith(
                "job 7 (background embeddings -> e) over: completed; waited 5s, most of it begun by S4"
            )
            assert shown[1:3] == [
                "  waited 3s, begun by S4: people chat on gpu0",
                "  waited 2s, begun by S6c: loading e (0s)",
            ]
            assert len(shown) == 3 + len(WHOLE)
            lost = (await house.ask("GET", "/api/jobs/8")).json
            assert (lost["state"], lost["text"]) == ("over", "lost: the server ended before it")
            assert (await house.ask("GET", "/api/jobs/9")).status == 404
            assert (await house.ask("DELETE", "/api/jobs/8")).error["code"] == "conflict"
            assert (await house.ask("DELETE", "/api/jobs/9")).error["code"] == "not_found"
