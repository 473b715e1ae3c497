import pytest

from loadtest import marks
from loadtest.clients import Embedded, Measured
from loadtest.mainjob import CHAT_ROW, Plan, Result
from tests.loadtest.lines import Log, good_log


def test_a_good_run_meets_every_mark() -> None:
    """Four steps of 32 documents, one chat, in order and without an error."""
    vectors = [[float(place == axis) for axis in range(100)] for place in range(100)]
    job = Embedded(Measured("embeddings", 200), vectors, list(range(100)))
    chat = Measured(CHAT_ROW, 200, 1.0, queue_seconds=0.0002)
    result = Result([chat, job.measured], {0: vectors[0], 99: vectors[99]}, job)
    judged = marks.judge(good_log().lines, result, Plan("c", "b", "e", chat_seconds=1.0, documents=100))
    assert [mark.name for mark in judged if not mark.met] == []
    assert judged[0].figure == "1 of 1"


def test_nothing_measured_meets_no_mark() -> None:
    """A mark whose evidence is missing is missed."""
    judged = marks.judge([], Result(), Plan("c", "b", "e", chat_seconds=1.0))
    assert not any(mark.met for mark in judged)


def test_S7_a_chat_that_is_dispatched_a_millisecond_later_is_seen() -> None:
    """The same millisecond means the same."""
    log = Log().job("enqueue").job("dispatch", 1).at(0.3).chat("enqueue", 2).at(0.301).chat("dispatch", 2)
    mark = marks.same_millisecond(marks.overtaking(log.lines))
    assert (mark.figure, mark.met) == ("0 of 1", False)


def test_only_chats_that_meet_the_job_count_as_overtaking() -> None:
    """One before it and one after it prove nothing."""
    log = Log().chat("enqueue", 7).chat("dispatch", 7).chat("complete", 7)
    log.at(1.0).job("dispatch", 1).at(2.0).job("complete").at(3.0).chat("enqueue", 8).chat("dispatch", 8)
    found = marks.overtaking(log.lines)
    assert found is not None
    assert not found.chats
    assert not marks.same_millisecond(found).met


@pytest.mark.parametrize(("waits", "met"), [([0.001] * 20, True), ([0.001] * 18 + [0.006] * 2, False)])
def test_the_95th_percentile_of_the_waits_decides(waits: list[float], met: bool) -> None:
    """One wait in twenty may be longer, two may not."""
    assert marks.queue_wait([Measured(CHAT_ROW, queue_seconds=wait) for wait in waits]).met is met


def test_a_chat_whose_wait_is_not_known_misses_the_mark() -> None:
    """A wait that the server did not tell could have been any."""
    assert not marks.queue_wait([Measured(CHAT_ROW, queue_seconds=0.0), Measured(CHAT_ROW)]).met


@pytest.mark.parametrize(
    ("seconds", "rule", "met"), [(1.998, "S3", False), (1.999, "S3", True), (2.0, "S3", True), (0.1, "S5", False)]
)
def test_S4_no_low_step_starts_within_two_seconds_of_a_chat(seconds: float, rule: str, met: bool) -> None:
    """To the millisecond of the log; a relief step alone proves nothing either way."""
    log = Log().chat("dispatch", 2).at(1.0).chat("complete", 2)
    log.at(1.0 + seconds).job("dispatch", 1, rule=rule)
    assert marks.quiet_after_chat(log.lines).met is met


def test_S4_a_low_step_beside_a_running_chat_is_a_gap_of_nothing() -> None:
    """While a chat runs, no time has passed since it ended."""
    log = Log().chat("dispatch", 2).at(9.0).job("dispatch", 1)
    mark = marks.quiet_after_chat(log.lines)
    assert not mark.met
    assert "0.000" in mark.figure


def test_a_refused_chat_holds_nothing_back() -> None:
    """It never ran, so no step has to keep a distance from it."""
    log = Log().chat("dispatch", 2).at(1.0).chat("complete", 2)
    log.at(2.9).chat("enqueue", 3).chat("reject", 3).at(3.0).job("dispatch", 1)
    assert marks.quiet_after_chat(log.lines).met


@pytest.mark.parametrize("steps", [[1, 2, 3], [1, 2, 2, 3, 4], [2, 1, 3, 4]])
def test_S3_a_step_left_out_twice_or_out_of_turn_is_seen(steps: list[int]) -> None:
    """All of them, once, in order."""
    log = Log().job("enqueue")
    for step in steps:
        log.job("dispatch", step)
    log.job("complete")
    assert not marks.all_steps(log.lines, marks.overtaking(log.lines), 4).met


def test_an_unfinished_job_misses_its_mark() -> None:
    """All steps dispatched is not all steps done."""
    log = Log().job("dispatch", 1).job("dispatch", 2)
    mark = marks.all_steps(log.lines, marks.overtaking(log.lines), 2)
    assert (mark.met, mark.figure) == (False, "2 dispatched, job not complete")


@pytest.mark.parametrize(
    ("indexes", "vectors"),
    [([1, 0], [[1.0, 0.0], [0.0, 1.0]]), ([0, 1], [[0.0, 1.0], [1.0, 0.0]]), ([0], [[1.0, 0.0]])],
)
def test_vectors_out_of_order_or_missing_are_seen(indexes: list[int], vectors: list[list[float]]) -> None:
    """By their number, or by being another document's vector."""
    job = Embedded(Measured("embeddings", 200), vectors, indexes)
    assert not marks.in_order(job, {0: [1.0, 0.0], 1: [0.0, 1.0]}, 2).met


def test_an_error_is_told_with_its_row_and_sentence() -> None:
    """The first is enough to know what to look for."""
    mark = marks.no_errors([Measured("a"), Measured("batch", 503, error="503: draining")])
    assert (mark.met, mark.figure) == (False, "1 of 2 requests failed, first: batch: 503: draining")


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [([1.0, 0.0], [2.0, 0.0], 1.0), ([1.0, 0.0], [0.0, 3.0], 0.0), ([0.0], [0.0], 0.0), ([1.0], [1.0, 1.0], 0.0)],
)
def test_cosine(one: list[float], other: list[float], expected: float) -> None:
    """Vectors that cannot be compared are as unlike as can be."""
    assert marks.cosine(one, other) == pytest.approx(expected)
