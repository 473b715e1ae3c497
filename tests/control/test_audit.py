"""Rows of the audit log: bounded, without secrets, and not to be pushed out by whoever is refused all day."""

from contextlib import closing
from pathlib import Path

from gridsched.control.asker import Asker, by_hand
from gridsched.control.audit import REFUSED_AN_HOUR, Audit
from gridsched.control.authority import ANYBODY, NOBODY
from gridsched.control.problems import Problem
from gridsched.settings.api_keys import new_secret
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
        for _ in range(REFUSED_AN_HOUR + 40):
            audit.note("drain", {}, asker, "refused", problem)
        for number in range(300):
            audit.note("POST /api/drain", {}, Asker(NOBODY, f"10.0.{number}.1"), "refused", problem)
        audit.note("load_model", {"model": "m"}, asker, "done")
        clock.seconds = 3601.0
        audit.note("drain", {}, asker, "refused", problem)
        rows = journal.read(None, 1000)[0]
    assert len(rows) == 2 * REFUSED_AN_HOUR + 2
    assert [(row["verb"], row["outcome"], row.get("others_refused")) for row in rows[:3]] == [
        ("drain", "refused", None),
        ("load_model", "done", 40),
        ("POST /api/drain", "refused", None),
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


def test_H6_a_key_in_a_path_that_was_refused_is_not_written_down(tmp_path: Path) -> None:
    """As in `DELETE /api/keys/SECRET`, without a credential that is known."""
    secret = new_secret()
    with closing(Journal(tmp_path / "a.jsonl", print)) as journal:
        audit = Audit(journal, StandingClock())
        audit.note(f"DELETE /api/keys/{secret}", {"name": secret}, Asker(NOBODY), "refused")
        assert secret not in str(journal.read(None, 10)[0])


def test_H6_arguments_without_end_are_noted_and_stop_nobody(tmp_path: Path) -> None:
    """As deep as JSON may be that is still read; a walk through them would fail, and the use with it."""
    deep: dict[str, object] = {}
    for _ in range(900):
        deep = {"a": deep}
    with closing(Journal(tmp_path / "a.jsonl", print)) as journal:
        audit = Audit(journal, StandingClock())
        audit.note("set_config", {"set": deep}, Asker(NOBODY), "refused")
        (row,) = journal.read(None, 10)[0]
    assert row["arguments"] == {"set": "nested too deeply"}
