"""P7: what a process prints is read whatever it is, kept within limits, and never holds it up."""

import os
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from gridsched.engine.logs import MAX_LINE_BYTES, TAIL_LINE_CHARS, TAIL_LINES, LineSplitter, OutputReader, RotatedLog


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
    log = RotatedLog(tmp_path / "m.log", max_bytes=100, keep=2)
    for number in range(20):
        log.append(f"{number:>049}\n")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.log.1", "m.log.2"]
    assert "19" in (tmp_path / "m.log.1").read_text(encoding="utf-8")
    assert "17" in (tmp_path / "m.log.2").read_text(encoding="utf-8")
    log.append("new\n")
    assert log.path.read_text(encoding="utf-8") == "new\n"


def test_a_disk_that_refuses_costs_lines_and_nothing_else(tmp_path: Path) -> None:
    """They are counted."""
    log = RotatedLog(tmp_path / "missing" / "m.log")
    log.append("x\n")
    assert log.lost_blocks == 1
