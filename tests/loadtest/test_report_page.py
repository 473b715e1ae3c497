import importlib.util
import os
import re
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from loadtest import report_page
from loadtest.compare import Comparison
from loadtest.result import Grant, Result
from tests.loadtest.results import CLEAN, EVIL, a_whole_result

ONE = a_whole_result(1)


class Seen(HTMLParser):
    """What a page has: its tags, its attributes, its words."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.words = ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data: str) -> None:
        self.words += data


def page_of(result: Result, folder: Path) -> str:
    """The page of a run."""
    path = folder / "report.html"
    report_page.write(result, path)
    return path.read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_page_is_whole_in_itself_and_has_all_there_is_to_tell(tmp_path: Path) -> None:
    """Headline, tables, four drawings, events, settings, seed, server, machine, what was left out; no script, no style
    beside the one that the policy lets pass, no address but the tested server's as text."""
    seen = Seen(page_of(a_whole_result(), tmp_path))
    for words in ("Passed", "By class", "By role", "Grants by class", "2 events", "seed", "9.9", "cores", "Left out"):
        assert words in seen.words
    for row in ("interactive", "background", "batch", "embeddings"):
        assert row in seen.words
    assert "counts.chat" in seen.words
    assert len([name for name, value in seen.attributes if (name, value) == ("role", "img")]) == 4
    assert not {"script", "link", "iframe", "object", "a"} & set(seen.tags)
    assert "style" not in {name for name, _ in seen.attributes}
    assert seen.tags.count("style") == 1
    addresses = [value or "" for name, value in seen.attributes if name in ("src", "href", "xlink:href", "clip-path")]
    assert all(value.startswith(("#", "url(#", "data:image/png")) for value in addresses)


@pytest.mark.slow
def test_M9_names_in_a_report_are_text(tmp_path: Path) -> None:
    """Of models, roles and errors: in tables, lists, legends and settings; signs that act on text are replaced."""
    page = page_of(a_whole_result(errors=3), tmp_path)
    seen = Seen(page)
    assert seen.words.count(CLEAN) >= 5
    assert "img" not in seen.tags
    assert not any(sign in page for sign in "\x1b\u202e")
    assert EVIL[:4] not in page


@pytest.mark.parametrize(
    ("result", "words"),
    [
        (a_whole_result(), "Passed"),
        (a_whole_result(errors=2), "Failed"),
        (a_whole_result(needless_loads=1, interrupted=True), "Failed"),
        (a_whole_result(interrupted=True), "Ended early"),
        (a_whole_result(0), "Nothing was measured"),
    ],
)
def test_passed_is_only_what_passed(result: Result, words: str) -> None:
    """A run that was ended early, or has nothing, did not."""
    assert report_page._verdict(result)[1] == words


@pytest.mark.slow
def test_a_failed_run_of_a_server_that_tells_nothing_says_why_and_what_is_missing(tmp_path: Path) -> None:
    """Each picture that cannot be drawn has its reason."""
    told = Seen(page_of(a_whole_result(errors=2, samples=(), grants=(), events=(), loads=None), tmp_path)).words
    for words in (
        "Failed",
        "2 failed requests",
        "decision log was not there",
        "what lies in memory",
        "who waits",
        "unknown",
    ):
        assert words in told


@pytest.mark.slow
@pytest.mark.parametrize(
    "result",
    [
        Result(classes={}, loads=None, needless_loads=None, evictions=None, relief_steps=None, seed=1, settings={}),
        replace(
            ONE,
            requests=(
                replace(ONE.requests[0], at_s=1e300, end_s=1e308),
                replace(ONE.requests[0], at_s=-5.0, end_s=-7.0),
            ),
            grants=(replace(ONE.grants[0], row="long \x00$\\frac{" * 50, at_s=-3.0, end_s=-9.0),),
            samples=(replace(ONE.samples[0], models={}, devices={}),),
        ),
    ],
    ids=["bare", "odd"],
)
def test_whatever_a_file_holds_becomes_a_page(result: Result, tmp_path: Path) -> None:
    """Only what must be there, and figures and names that nobody has measured."""
    assert "gridsched load test" in Seen(page_of(result, tmp_path)).words


@pytest.mark.slow
def test_many_marks_are_painted_and_none_is_left_out(tmp_path: Path) -> None:
    """A page of thousands of requests stays small, and a drawing of it holds an image."""
    page = page_of(a_whole_result(1_100), tmp_path)
    assert len(page) < 2_000_000
    assert page.count("data:image/png;base64") >= 2
    assert "data:image/png" not in page_of(a_whole_result(), tmp_path)


@pytest.mark.slow
def test_steps_at_the_same_time_lie_in_lanes_of_their_own() -> None:
    """As many lanes as there were at once; one that has not ended lasts until the run's end."""
    from loadtest.plots import _lanes  # noqa: PLC0415 - matplotlib takes its time to import

    def grant(at_s: float, end_s: float | None) -> Grant:
        return Grant(at_s=at_s, end_s=end_s, row="batch", job=1, model="m", device="d", rule="S3", relief=False)

    lanes = _lanes([grant(4.0, 5.0), grant(0.0, 2.0), grant(1.0, None), grant(2.0, 3.0)], 9.0)
    assert [[(one.at_s, end) for one, end in lane] for lane in lanes] == [
        [(0.0, 2.0), (2.0, 3.0), (4.0, 5.0)],
        [(1.0, 9.0)],
    ]


@pytest.mark.slow
def test_a_comparison_is_a_page_too(tmp_path: Path) -> None:
    """The verdict, the ratios, what differs, and both drawings, whose inner names do not meet."""
    a, b = a_whole_result(), a_whole_result(errors=1, seed=8)
    path = tmp_path / "both.html"
    report_page.write_comparison(Comparison(a=a, b=b, a_path="a.json", b_path=EVIL), path)
    page = path.read_text(encoding="utf-8")
    seen = Seen(page)
    for words in ("B is worse", "more failed requests: 0, then 1", "interactive B/A", "seed", "a.json", CLEAN):
        assert words in seen.words
    names = re.findall(r' id="([^"]+)"', page)
    assert len(names) == len(set(names)) > 0


@pytest.mark.parametrize("name", ["", "none/report.html", "file/report.html", "n" * 300, "pipe", "gone"])
def test_where_no_page_can_be_written_is_said_before_anything_is_done(name: str, tmp_path: Path) -> None:
    """A folder, one that is not there, a file for one, a name too long, what is no file, a link to nowhere's folder."""
    (tmp_path / "file").write_text("mine")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "gone").symlink_to(tmp_path / "none" / "there")
    before = sorted(tmp_path.iterdir())
    assert str(tmp_path) in report_page.refusal(tmp_path / name)
    assert sorted(tmp_path.iterdir()) == before
    assert (tmp_path / "file").read_text() == "mine"


def test_where_a_page_can_be_written_nothing_is_left_or_changed_by_asking(tmp_path: Path) -> None:
    """A new name and an old page."""
    (tmp_path / "old.html").write_text("as it was")
    assert report_page.refusal(tmp_path / "new.html") == report_page.refusal(tmp_path / "old.html") == ""
    assert [one.name for one in tmp_path.iterdir()] == ["old.html"]
    assert (tmp_path / "old.html").read_text() == "as it was"


def test_without_its_libraries_a_report_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And what to install."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "matplotlib" else object())
    told = report_page.refusal(tmp_path / "report.html")
    assert f"needs matplotlib, the extra `report`: {sys.executable} -m pip install" in told


@pytest.mark.slow
def test_a_page_replaces_what_a_link_points_to_and_leaves_nothing_beside(tmp_path: Path) -> None:
    """The link stays a link."""
    (tmp_path / "pages").mkdir()
    (tmp_path / "pages" / "real.html").write_text("old")
    link = tmp_path / "link.html"
    link.symlink_to(tmp_path / "pages" / "real.html")
    report_page.write(a_whole_result(), link)
    assert link.is_symlink()
    assert [one.name for one in (tmp_path / "pages").iterdir()] == ["real.html"]
    assert link.read_text(encoding="utf-8").startswith("<!doctype html>")
