"""The case `grant` of the benchmark: one run for what it says, none for how fast."""

from pathlib import Path

import pytest

from loadtest.bench import grant
from loadtest.bench.result import LeftOut, Plan


@pytest.mark.slow
def test_each_crowd_is_a_row_beside_the_empty_one(tmp_path: Path) -> None:
    """What a crowd adds is of the same round; the empty one adds nothing to itself."""
    rows = list(grant.measure(Plan(rounds=2, seconds=0.005, folder=tmp_path), sizes=(0, 4)))
    assert [(row.case, row.setting, row.reference, row.rounds) for row in rows] == [
        ("grant", "0 waiting", "0 waiting", 2),
        ("grant", "4 waiting", "0 waiting", 2),
    ]
    nobody, some = rows
    assert nobody.added_p50_us is None
    assert some.each["added_p50_us"] == [
        crowd - alone
        for crowd, alone in zip(some.each["arrival_chat_p50_us"], nobody.each["arrival_chat_p50_us"], strict=True)
        if crowd is not None and alone is not None
    ]
    assert {"decision_chat_p99_us", "decision_queued_p50_us", "arrival_freed_p99_us"} <= set(some.figures)
    assert "core_bytes" in some.notes[0]


def test_what_does_not_run_is_left_out_with_its_last_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that is not there."""
    monkeypatch.setattr(grant, "PROGRAM", "sim.nothing")
    with pytest.raises(LeftOut, match=r"sim\.nothing ended with 1: .*No module named"):
        list(grant.measure(Plan(rounds=1, seconds=0.005, folder=tmp_path)))
