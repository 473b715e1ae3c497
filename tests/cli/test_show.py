"""What commands print: nothing of it does anything to a terminal, and piped it is plain."""

import io
import sys

import pytest

from gridsched.cli import show
from gridsched.cli.words import duration, size, span

NASTY = "[red]x[/red] \x1b[31m:smile:\n"


class Terminal(io.StringIO):
    """A stream that a person looks at."""

    def isatty(self) -> bool:
        return True


def drawn(monkeypatch: pytest.MonkeyPatch, rows: list[tuple[str, ...]], **environment: str) -> str:
    """What a terminal of eighty columns is sent."""
    screen = Terminal()
    monkeypatch.setattr(sys, "stdout", screen)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "80")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    show.table(("model", "size"), rows, right=("size",))
    return screen.getvalue()


def test_a_name_is_no_markup_and_no_escape(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a terminal as in a pipe it is shown as it is, its controls as their names."""
    told = drawn(monkeypatch, [(NASTY, "1 GiB")], NO_COLOR="1")
    assert r"[red]x[/red] \x1b[31m:smile:\n" in told
    assert "\x1b[31m" not in told
    assert show.plain(("model",), [(NASTY,)])[1] == r"[red]x[/red] \x1b[31m:smile:\n"


def test_a_terminals_width_is_kept_and_no_word_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """A long name is folded."""
    told = drawn(monkeypatch, [("m" * 200, "1 GiB")], TERM="dumb")
    assert max(map(len, told.splitlines())) <= 80
    assert told.count("m") == 200 + 1


def test_columns_in_a_pipe_are_stable(capsys: pytest.CaptureFixture[str]) -> None:
    """As wide as they need, figures to the right, wide letters counted as what they take; no box, no escape."""
    show.table(("model", "size", "state"), [("模型", "1 GiB", "ready"), ("abc", "-", "cold")], right=("size",))
    assert capsys.readouterr().out == "model   size  state\n模型   1 GiB  ready\nabc        -  cold\n"


def test_progress_in_a_pipe_is_a_line_for_each_new_thing(capsys: pytest.CaptureFixture[str]) -> None:
    """On standard error, so that output stays one document."""
    with show.progress() as tell:
        for done in (1, 2):
            tell(done, 10, f"loading a\x1b: {done} s")
        tell(3, 10, "ready")
    assert capsys.readouterr() == ("", "gridsched: loading a\\x1b: 1 s\ngridsched: ready\n")


def test_sizes_and_times_are_told_shortly() -> None:
    """Three digits and a unit; a dash for what nobody knows."""
    assert (size(1000), size(5 << 30), size(1023 << 20)) == ("1000 B", "5 GiB", "1023 MiB")
    assert [span(each) for each in (None, 0.2, 59.6, 61, 3725, 90000)] == [
        "-",
        "0s",
        "1m00s",
        "1m01s",
        "1h02m",
        "1d01h",
    ]
    assert (duration("1.5h"), duration("90s"), duration("250ms")) == (5400, 90, 0.25)
