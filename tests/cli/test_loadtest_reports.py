"""`gridsched loadtest` with --compare and --report, as far as no traffic is needed."""

import json
from pathlib import Path

import pytest

from gridsched.cli.main import main
from loadtest.result import Result
from tests.loadtest.results import a_whole_result

NOBODY = "http://127.0.0.1:9"


def kept(result: Result, path: Path) -> str:
    """A result in a file, as --json tells it."""
    path.write_bytes(result.as_json())
    return str(path)


def test_two_results_are_compared_without_any_server(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The table, what differs; 0 where the second is no worse. Names from a file do nothing to a terminal."""
    a, b = kept(a_whole_result(), tmp_path / "a.json"), kept(a_whole_result(seed=8), tmp_path / "b.json")
    assert main(["loadtest", "--server", NOBODY, "--compare", a, b]) == 0
    told = capsys.readouterr()
    assert "interactive B/A" in told.out
    assert "not the same: seed: 7, then 8" in told.out
    assert "\x1b" not in told.out + told.err


def test_a_worse_result_is_exit_code_1_and_json_says_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """More errors than before."""
    a, b = kept(a_whole_result(), tmp_path / "a.json"), kept(a_whole_result(errors=1), tmp_path / "b.json")
    assert main(["loadtest", "--compare", a, b, "--json"]) == 1
    told = capsys.readouterr()
    assert json.loads(told.out)["problems"] == ["more failed requests: 0, then 1"]
    assert "more failed requests: 0, then 1" in told.err
    assert main(["loadtest", "--compare", b, a]) == 0


def test_a_file_that_is_no_result_is_a_sentence_with_its_key(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 2, and nothing is compared."""
    (tmp_path / "other.json").write_text('{"classes": 3}')
    a = kept(a_whole_result(), tmp_path / "a.json")
    assert main(["loadtest", "--compare", a, str(tmp_path / "other.json")]) == 2
    told = capsys.readouterr()
    assert "other.json is no result of a load test" in told.err
    assert "$.classes" in told.err
    assert told.out == ""


@pytest.mark.parametrize("more", [[], ["--compare", "a.json", "b.json"]])
def test_a_report_that_cannot_be_written_is_refused_before_anything_else(
    more: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nobody waits for five minutes to hear it: no server is asked and no file is read."""
    assert main(["loadtest", "--server", NOBODY, "--report", str(tmp_path / "none" / "r.html"), *more]) == 2
    assert "no report can be written to" in capsys.readouterr().err


@pytest.mark.slow
def test_a_comparison_may_be_a_page_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Beside the table; standard output stays a document for scripts."""
    a = kept(a_whole_result(), tmp_path / "a.json")
    assert main(["loadtest", "--compare", a, a, "--json", "--report", str(tmp_path / "r.html")]) == 0
    told = capsys.readouterr()
    assert json.loads(told.out)["problems"] == []
    assert "the report: " in told.err
    assert (tmp_path / "r.html").read_text(encoding="utf-8").startswith("<!doctype html>")
