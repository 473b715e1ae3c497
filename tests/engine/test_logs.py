"""P7: what a process prints is read whatever it is, kept within limits, and never holds it up."""

import itertools
import os
from pathlib import Path

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from gridsched.engine import logs
from gridsched.engine.child import Child
from gridsched.engine.logs import (
    MAX_LINE_BYTES,
    TAIL_LINE_CHARS,
    TAIL_LINES,
    LineSplitter,
    OutputReader,
    RotatedLog,
    file_name,
    last_lines,
)
from tests.engine.conftest import PATIENCE_SECONDS


def split(segments: list[bytes]) -> list[bytes]:
    """All lines of what arrived in these segments."""
    splitter = LineSplitter()
    lines = [line for segment in segments for line in splitter.feed(segment)]
    return lines + splitter.end()


TEXTS = st.lists(
    st.one_of(st.sampled_from([b"\n", b"x" * MAX_LINE_BYTES, b"y" * (3 * MAX_LINE_BYTES + 1)]), st.binary(max_size=20)),
    max_size=8,
)


@given(TEXTS)
def test_B29_lines_are_the_same_however_they_arrive(parts: list[bytes]) -> None:
    """At once, or part by part; none is longer than the limit, and nothing is lost."""
    lines = split(parts)
    assert lines == split([b"".join(parts)])
    assert all(len(line) <= MAX_LINE_BYTES for line in lines)
    assert b"".join(lines) == b"".join(parts).replace(b"\n", b"")


def read(tmp_path: Path, data: bytes) -> tuple[OutputReader, RotatedLog]:
    """A reader that has read this."""
    read_fd, write_fd = os.pipe()
    log = RotatedLog(tmp_path / "m.log")
    reader = OutputReader(read_fd, log)
    os.write(write_fd, data)
    os.close(write_fd)
    reader.finish()
    return reader, log


def test_B29_bad_utf8_is_replaced_and_an_unended_line_is_kept(tmp_path: Path) -> None:
    """In the file and in memory."""
    reader, log = read(tmp_path, b"one\r\n\xff\xfe two\nthree")
    assert reader.tail() == ("one", "\ufffd\ufffd two", "three")
    assert log.path.read_text(encoding="utf-8") == "one\n\ufffd\ufffd two\nthree\n"


def test_the_tail_is_bounded_in_lines_and_in_length(tmp_path: Path) -> None:
    """The last lines, each cut."""
    reader, _ = read(tmp_path, b"".join(b"%d\n" % n for n in range(500)) + b"z" * 5000 + b"\n")
    assert len(reader.tail()) == TAIL_LINES
    assert reader.tail()[-2:] == ("499", "z" * TAIL_LINE_CHARS)


def test_what_lies_in_the_pipe_is_read_although_somebody_holds_it_open(tmp_path: Path) -> None:
    """The end of the process counts, not the end of the pipe."""
    read_fd, write_fd = os.pipe()
    reader = OutputReader(read_fd, RotatedLog(tmp_path / "m.log"))
    os.write(write_fd, b"last words")
    reader.finish()
    os.close(write_fd)
    assert reader.tail() == ("last words",)


def test_M3_a_log_rotates_by_size_and_keeps_so_many(tmp_path: Path) -> None:
    """The total is bounded, and the newest lines are in the first file."""
    log = RotatedLog(tmp_path / "m.log", max_bytes=100, keep=2, clock=itertools.count(0, 9).__next__)
    for number in range(20):
        log.append(f"{number:>049}\n")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.log.1", "m.log.2"]
    assert "19" in (tmp_path / "m.log.1").read_text(encoding="utf-8")
    assert "17" in (tmp_path / "m.log.2").read_text(encoding="utf-8")
    log.append("new\n")
    assert log.path.read_text(encoding="utf-8") == "new\n"


def test_a_disk_that_refuses_costs_lines_and_nothing_else(tmp_path: Path) -> None:
    """They are counted, and said where the file goes on."""
    log = RotatedLog(tmp_path / "missing" / "m.log")
    log.append("x\n")
    assert log.lost_lines == 1
    log.path.parent.mkdir()
    log.append("y\n")
    assert log.path.read_text(encoding="utf-8") == "[gridsched: lines are missing here: 1]\ny\n"
    assert log.lost_lines == 1


def test_M3_lines_beyond_what_the_files_hold_are_dropped_counted_and_said(tmp_path: Path) -> None:
    """As many as come at once are kept; then as many as a disk can be written with for years."""
    now = [0.0]
    log = RotatedLog(tmp_path / "m.log", max_bytes=1_000_000, keep=1, clock=lambda: now[0])
    block = "x" * 99_989 + "\ny\nz\n12345\n"
    for _ in range(30):
        log.append(block)
    assert log.lost_lines == 40
    now[0] = 1.0
    log.append(block)
    log.append(block)
    log.end()
    text = (tmp_path / "m.log").read_text(encoding="utf-8")
    assert text.startswith("[gridsched: lines are missing here: 40]\n")
    assert text.count("missing") == 1
    assert log.lost_lines == 40


def test_lines_that_are_missing_at_the_end_are_said_there(tmp_path: Path) -> None:
    """A person sees that a log does not end where the engine did."""
    log = RotatedLog(tmp_path / "m.log", max_bytes=10, keep=1, clock=lambda: 0.0)
    log.append("x" * 50 + "\n")
    log.end()
    assert (tmp_path / "m.log.1").read_text(encoding="utf-8").startswith("[gridsched: lines are missing here: 1]")


def test_the_last_lines_are_told_across_the_files_of_a_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Oldest first, never more than asked for nor than so many bytes; a first line that was cut is left out."""
    path = tmp_path / "model.log"
    assert last_lines(path, 5) == []
    log = RotatedLog(path, max_bytes=20, keep=3)
    for number in range(12):
        log.append(f"line {number:02}\n")
    assert last_lines(path, 1) == ["line 11"]
    assert last_lines(path, 4) == [f"line {number:02}" for number in range(8, 12)]
    whole = last_lines(path, 100)
    assert whole == [f"line {number:02}" for number in range(12 - len(whole), 12)]
    path.write_text("a key: sk-abcdefghijklmnopqrstuvwxyz0123456789")
    assert "sk-abc" not in last_lines(path, 1)[0]
    path.write_text("one\ntwo\nthree\n")
    monkeypatch.setattr(logs, "MOST_TOLD_BYTES", 8)
    assert last_lines(path, 100) == ["three"]


def test_two_names_never_share_a_log() -> None:
    """A name that a file may have is its file's; another gets a mark of its own. None leaves the folder."""
    names = ["a", "org/a", "org_a", "org:a", "org?a", "..", ".", "", "-", "x" * 400, "x" * 401, "\u00e9", "A/../../b"]
    files = [file_name(name) for name in names]
    assert files[0] == "a.log"
    assert len(set(files)) == len(names)
    for name in files:
        assert Path(name).name == name
        assert not name.startswith(".")
        assert len(f"{name}.99".encode()) <= 255


SECRETS = (
    ("srv argv: --api-key k3y --x", "srv argv: --api-key [hidden] --x"),
    ("['--api-key', 'k3y', '-c']", "['--api-key', '[hidden]', '-c']"),
    ("Authorization: Bearer k3y.z", "Authorization: Bearer [hidden]"),
    ('{"authorization":"Bearer k3y"}', '{"authorization":"Bearer [hidden]"}'),
    ("GET /x?token=k3y&n=1", "GET /x?token=[hidden]&n=1"),
    ("using hf_k3yk3yk3y now", "using hf_[hidden] now"),
    ("key sk-k3yk3yk3y", "key sk-[hidden]"),
    ("--hf-token=k3y", "--hf-token=[hidden]"),
)


@pytest.mark.parametrize(("printed", "kept"), SECRETS)
def test_B24_a_secret_that_an_engine_prints_is_kept_nowhere(tmp_path: Path, printed: str, kept: str) -> None:
    """Neither in the file nor in the last lines."""
    reader, log = read(tmp_path, printed.encode() + b"\n")
    assert reader.tail() == (kept,)
    assert log.path.read_text(encoding="utf-8") == kept + "\n"


@pytest.mark.parametrize("line", ["n_tokens = 5", "BOS token = 1 '<s>'", "no API key is set", "task-12345678901 done"])
def test_lines_that_only_look_like_secrets_stay(tmp_path: Path, line: str) -> None:
    """What an engine says of its tokens is what a person reads a log for."""
    reader, _ = read(tmp_path, line.encode())
    assert reader.tail() == (line,)


def on_disk(folder: Path) -> int:
    """Bytes of all its files."""
    return sum(path.stat().st_size for path in folder.iterdir())


async def wakes(seconds: float) -> int:
    """How often the loop comes round in that time."""
    count, end = 0, trio.current_time() + seconds
    while trio.current_time() < end:
        await trio.sleep(0.001)
        count += 1
    return count


@pytest.mark.slow
async def test_M3_a_flood_of_output_leaves_the_loop_the_memory_and_the_disk_alone(tmp_path: Path) -> None:
    """As fast as a program can print: the loop comes round a tenth as often as in silence or more, and what is
    kept is what a small log keeps."""
    before = await wakes(0.4)
    log = RotatedLog(tmp_path / "m.log", max_bytes=200_000, keep=2)
    child = await Child.spawn(["/usr/bin/yes", "x" * 99], {}, log)
    during = await wakes(0.8) / 2
    await child.end(PATIENCE_SECONDS)
    kept = on_disk(tmp_path)
    assert during > before / 10
    assert kept < 4 * 200_000
    assert log.lost_lines * 100 > kept
    assert len(child.tail()) <= TAIL_LINES
