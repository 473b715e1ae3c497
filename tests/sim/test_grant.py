"""The measurement of decisions under a crowd: every figure is there, for every size and round."""

import json

import pytest

from sim.grant import main

FIGURES = {f"decision_{kind}_p{share}_us" for kind in ("chat", "freed", "queued") for share in (50, 99)} | {
    f"arrival_{kind}_p{share}_us" for kind in ("chat", "freed") for share in (50, 99)
}


@pytest.mark.slow
def test_grants_are_timed_for_each_size_and_round(capsys: pytest.CaptureFixture[str]) -> None:
    """As JSON, what a waiting job takes with it; nothing is refused on the way."""
    assert main(["--rounds", "2", "--times", "2", "--sizes", "0", "5", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [size["waiting"] for size in told["sizes"]] == [0, 5]
    for size in told["sizes"]:
        assert [set(each) for each in size["rounds"]] == [FIGURES, FIGURES]
        assert all(value > 0 for each in size["rounds"] for value in each.values())
    assert set(told["a_waiting_job"]) == {"core_bytes", "inside_rss_bytes"}


@pytest.mark.slow
def test_a_person_reads_a_line_for_each_figure(capsys: pytest.CaptureFixture[str]) -> None:
    """And what a waiting job takes."""
    assert main(["--rounds", "1", "--times", "1", "--sizes", "3"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == len(FIGURES) + 1
