"""Rows of the audit log: bounded, without secrets, and not to be pushed out by whoever is refused all day."""

from contextlib import closing
from pathlib import Path

from gridsched.control.asker import Asker, by_hand
from gridsched.control.audit import REFUSED_A_MINUTE, Audit
from gridsched.control.authority import ANYBODY, NOBODY
from gridsched.control.problems import Problem
from gridsched.store.journal import Journal
from tests.support.fakes import StandingClock


class Clock(StandingClock):
    """One that is moved by hand."""

    seconds = 0.0

    def awake_seconds(self) -> float:
        """As it was set."""
        return self.seconds


def test_a_caller_that_is_refused_all_day_has_so_many_rows(tmp_path: Path) -> None:
    """What it does otherwise has its own, with the number of those that had none; so has everybody else."""
    clock, asker = Clock(), Asker(ANYBODY, "127.0.0.1")
    problem = Problem("insufficient_scope", "no")
    with closing(Journal(tmp_path / "a.jsonl", print)) as journal:
        audit = Audit(journal, clock)
        for _ in range(REFUSED_A_MINUTE + 40):
            audit.note("drain", {}, asker, "refused", problem)
        audit.note("drain", {}, Asker(NOBODY, "10.0.0.1"), "refused", problem)
        audit.note("load_model", {"model": "m"}, asker, "done")
        clock.seconds = 61.0
        audit.note("drain", {}, asker, "refused", problem)
        rows = journal.read(None, 1000)[0]
    assert len(rows) == REFUSED_A_MINUTE + 3
    assert [(row["verb"], row["outcome"], row.get("others_refused")) for row in rows[:3]] == [
        ("drain", "refused", None),
        ("load_model", "done", 40),
        ("drain", "refused", None),
    ]


def test_a_row_has_bounds_and_no_secret(tmp_path: Path) -> None:
    """A whole file is not written down, a long text is cut, and who came by a signal is told so."""
    with closing(Journal(tmp_path / "a.jsonl", print)) as journal:
        audit = Audit(journal, StandingClock())
        given = {"text": "x" * 5000, "name": "y" * 5000, "models": {"m": {"env": {"A": "s"}}}, "token": "s"}
        audit.note("set_config", given, by_hand("signal"), "failed", Problem("internal", "see https://u:p@h/"))
        (row,) = journal.read(None, 10)[0]
    assert row["arguments"]["text"] == "5000 characters"
    assert len(row["arguments"]["name"]) == 2000
    assert (row["arguments"]["models"], row["arguments"]["token"]) == ({"m": {"env": {"A": "[hidden]"}}}, "[hidden]")
    assert (row["who"], row["via"], row["message"]) == (
        "whoever runs this machine",
        "signal",
        "see https://[hidden]@h/",
    )
