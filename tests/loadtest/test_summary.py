from dataclasses import replace

import pytest

from loadtest import summary
from loadtest.casting import Cast, Part
from loadtest.clients import Measured
from loadtest.decisions import Line
from loadtest.drive import Done
from loadtest.report import EMBEDDINGS_ROW
from loadtest.result import Server
from loadtest.roles import ROLES
from loadtest.server import FAMILIES, Told
from loadtest.summary import Options, Run, result_of
from tests.loadtest.lines import START, Log
from tests.loadtest.stand_in import a_log

NONE = dict.fromkeys(FAMILIES)
ZERO = dict.fromkeys(FAMILIES, 0)
PARTS = [Part(ROLES["chat"], 1, "m"), Part(ROLES["index"], 1, "e"), Part(ROLES["embed"], 1, "e")]


def a_run() -> Run:
    """One that has seen nothing yet: ten seconds, after a warm-up of two."""
    return Run(
        options=Options(counts={"chat": 1}, models={}, seconds=10.0, seed=3, rate=None),
        told=Told(Server(), ()),
        cast=Cast(PARTS, {}),
        is_gridsched=True,
        before=ZERO,
        after=ZERO,
        living={},
        loading=0,
        began=100.0,
        began_wall=START,
        measured_from=102.0,
        ended=112.0,
        done=[done(part.role.name, 103.0) for part in PARTS],
    )


def done(role: str, due: float, *, warm_up: bool = False, **more: object) -> Done:
    """One request of a role, answered in a second unless told otherwise."""
    measured = replace(Measured(ROLES[role].row, 200, 1.0, due=due), **more)  # type: ignore[arg-type]  # as given
    return Done(ROLES[role], "m", measured, warm_up)


def test_a_class_gathers_its_roles_and_each_role_stands_alone() -> None:
    """A role without a request is a row of nothing, so that it is seen to be missing."""
    run = a_run()
    run.done = [done("chat", 103.0, tokens=20), done("index", 104.0), done("embed", 105.0), done("embed", 106.0)]
    result = result_of(run)
    assert {name: row.requests for name, row in result.classes.items()} == {"interactive": 1, EMBEDDINGS_ROW: 3}
    assert {name: row.requests for name, row in result.roles.items()} == {"chat": 1, "embed": 2, "index": 1}
    assert result.classes["interactive"].tokens_per_s == 2.0
    assert (result.requests[0].at_s, result.requests[0].end_s) == (3.0, 4.0)
    assert (result.measured_from_s, result.measured_s) == (2.0, 10.0)
    assert result.notes == ()
    run.done = run.done[:1]
    result = result_of(run)
    assert result.roles["index"].p50_s is None
    assert result.notes == ("No request was made by embed, index: the run was too short for it.",)


def test_a_warm_up_counts_only_where_it_fails() -> None:
    """Its time is that of a load, and in no percentile; its failure is an error like any."""
    run = a_run()
    run.done = [done("chat", 100.0, warm_up=True, latency_seconds=60.0), done("chat", 103.0)]
    assert (result_of(run).classes["interactive"].requests, result_of(run).classes["interactive"].p99_s) == (1, 1.0)
    run.done = [done("chat", 100.0, warm_up=True, error="503: no")]
    assert result_of(run).errors == 1
    assert len(result_of(run).requests) == 1


def test_a_stream_that_could_not_tell_its_wait_has_it_from_the_log() -> None:
    """It had begun before its turn came; what a server told itself is left."""
    run = a_run()
    run.done = [done("chat", 103.0, job=1), done("chat", 104.0, job=2, queue_seconds=0.5), done("chat", 105.0, job=9)]
    log = Log().add("dispatch", job=1, queue_ms=4000.0).add("dispatch", job=1, queue_ms=1.0)
    run.lines = log.add("dispatch", job=2, queue_ms=9000.0).lines
    assert [one.queue_s for one in result_of(run).requests] == [4.0, 0.5, None]
    assert result_of(run).classes["interactive"].queue_p95_s == 4.0


@pytest.mark.parametrize("ahead", [0.0, 3600.0, -5.0])
def test_the_servers_clock_is_set_right_by_its_jobs(ahead: float) -> None:
    """Grants stand where they were, whatever the other machine's clock says."""
    run = a_run()
    run.done = [done("chat", 103.0, job=1), done("chat", 106.0, job=2)]
    log = Log().at(3.25 + ahead).add("enqueue", job=1).add("dispatch", job=1, model="m")
    log.at(6.01 + ahead).add("enqueue", job=2).add("dispatch", job=2, model="m")
    run.lines = log.at(7.0 + ahead).add("complete", job=2).lines
    first, second = result_of(run).grants
    assert first.at_s == pytest.approx(3.24, abs=1e-3)
    assert (second.at_s, second.end_s) == pytest.approx((6.0, 6.99), abs=1e-3)


def test_counters_are_believed_and_the_log_stands_in_for_one_that_is_missing() -> None:
    """A server of an older version counts no needless loads; its log shows them."""
    run = a_run()
    run.before, run.after = {**ZERO, "needless_loads": None}, {**ZERO, "needless_loads": None, "loads": 2}
    run.lines = Log().add("load", model="a", instance=1).add("load", model="a", instance=2).lines
    result = result_of(run)
    assert (result.loads, result.needless_loads) == (2, 1)
    assert result.problems == ("1 needless load: the model had a process already",)


def test_a_load_that_is_under_way_at_either_end_is_no_disagreement() -> None:
    """Counted when it ends, written where it begins."""
    run = a_run()
    run.lines = Log().add("load", model="a", instance=1).lines
    assert result_of(run).notes == ()
    run.lines = Log().add("load", model="a", instance=1).add("ready", model="a", instance=1).lines
    assert result_of(run).notes == ("The server's counters say 0 loads, its decision log 1.",)
    run.lines, run.loading, run.after = (), 1, {**ZERO, "loads": 1}
    assert result_of(run).notes == ()


def test_R4a_thrash_is_counted_for_each_model_that_takes_turns() -> None:
    """As the server's counter does, so that the two can be compared."""
    run = a_run()
    run.before, run.after = {**ZERO, "thrash": None}, {**ZERO, "thrash": None}
    run.lines = Log().add("thrash", model="a", models=["a", "b"]).add("thrash", model="c").lines
    assert result_of(run).thrash == 2
    run.before, run.after = ZERO, {**ZERO, "thrash": 2}
    assert result_of(run).notes == ()


def test_what_the_reader_must_know_is_said() -> None:
    """A restart, a log with holes, a log that broke off, an end before its time."""
    run = a_run()
    run.before, run.after = {**ZERO, "loads": 5}, {**ZERO, "loads": 1}
    run.lines = Log().add("gap", first=3, lost=4).lines
    run.interrupted = True
    result = result_of(run)
    assert len(result.notes) == 3
    assert "ended early" in result.notes[0]
    assert "4 lines" in result.notes[1]
    assert "restarted" in result.notes[2]
    assert result.loads == 0
    run.log_fault = "it broke off"
    assert any("not whole: it broke off" in note for note in result_of(run).notes)
    assert result_of(run).loads is None


def test_counters_that_began_anew_are_not_believed_though_they_are_no_lower() -> None:
    """A server that is restarted has counted only since: its log knows all of it."""
    run = a_run()
    run.before, run.after = ZERO, {**ZERO, "loads": 1}
    log = Log().add("load", model="a", instance=1).add("ready", model="a", instance=1).add("start")
    run.lines = log.add("load", model="a", instance=1).add("load", model="a", instance=2).lines
    result = result_of(run)
    assert (result.loads, result.needless_loads) == (3, 1)
    assert [note for note in result.notes if "restarted" in note] == list(result.notes)


def test_figures_of_another_server_are_unknown() -> None:
    """Not 0."""
    run = a_run()
    run.is_gridsched, run.before, run.after = False, NONE, NONE
    result = result_of(run)
    assert (result.loads, result.needless_loads, result.thrash) == (None, None, None)


def test_the_errors_are_told_the_most_usual_first_and_not_without_end() -> None:
    """All are counted."""
    run = a_run()
    run.done = [done("chat", 103.0, error=f"e{number % 40}") for number in range(100)]
    result = result_of(run)
    assert len(result.failures) == summary.MOST_FAILURES
    assert result.failures[0].count == 3
    assert result.errors == 100


def test_a_result_of_a_log_holds_its_own_lines() -> None:
    """Steps by job and number, relief by its rule, events of models alone."""
    run = a_run()
    run.lines = [Line.of(one) for one in a_log()]
    result = result_of(run)
    assert [(one.row, one.rule, one.relief, one.end_s is None) for one in result.grants] == [
        (EMBEDDINGS_ROW, "S5", True, False),
        (EMBEDDINGS_ROW, "S3", False, True),
    ]
    assert [(one.event, one.model, one.device) for one in result.events] == [
        ("load", "embedder", "gpu0"),
        ("ready", "embedder", "gpu0"),
    ]
