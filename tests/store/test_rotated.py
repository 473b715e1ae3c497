"""Rotated rows: whoever writes never waits, the files are bounded, and nothing is lost in silence."""

import json
import os
from contextlib import closing
from itertools import chain
from pathlib import Path

import pytest

from gridsched.store.rotated import Bounds, Rotated, blocks_of, lines_back
from tests.store.test_full_disk import Disk, limit, tmpfs


def rows(path: Path) -> list[dict[str, object]]:
    """What a file holds."""
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def test_rows_are_written_in_order_for_this_user_alone(tmp_path: Path) -> None:
    """And read from both ends."""
    with closing(Rotated(tmp_path / "r.jsonl", print)) as rotated:
        for number in range(3000):
            rotated.put({"seq": number})
        assert len(rotated.waiting()) <= 2000
    assert rotated.waiting() == ()
    kept = [row["seq"] for row in rows(tmp_path / "r.jsonl")]
    assert kept == list(range(3000))[: len(kept)]
    assert len(kept) + rotated.lost == 3000
    assert (tmp_path / "r.jsonl").stat().st_mode & 0o777 == 0o600
    with rotated.opened() as (file,):
        assert b"".join(blocks_of(file)).count(b"\n") == len(kept)
        assert next(lines_back(file)) == b'{"seq":%d}' % (len(kept) - 1)


def test_the_files_are_bounded_in_size_and_number(tmp_path: Path) -> None:
    """By a row more each; the oldest goes, and those that are open stay readable, each of them once."""
    path, bounds = tmp_path / "r.jsonl", Bounds(max_bytes=100, files=3)
    with closing(Rotated(path, print, bounds)) as rotated:
        for number in range(9):
            rotated.put({"what": f"{number:020}"})
    with rotated.opened() as files:
        for number in range(9, 60):
            rotated.put({"what": f"{number:020}"})
        rotated.close()
        read = [int(json.loads(line)["what"]) for line in chain.from_iterable(map(lines_back, files))]
    assert read == list(range(read[0], -1, -1))
    assert read[0] >= 8
    assert sorted(each.name for each in tmp_path.iterdir()) == ["r.jsonl", "r.jsonl.1", "r.jsonl.2"]
    assert all(each.stat().st_size < 140 for each in tmp_path.iterdir())
    assert rows(path)[-1] == {"what": f"{59:020}"}


def test_a_half_written_line_spoils_no_other(tmp_path: Path) -> None:
    """What a killed server left at the end is ended, and the next row begins a line."""
    path = tmp_path / "r.jsonl"
    path.write_text('{"seq": 1}\n{"seq": 2, "ev')
    with closing(Rotated(path, print)) as rotated:
        rotated.put({"seq": 3})
    assert path.read_text() == '{"seq": 1}\n{"seq": 2, "ev\n{"seq":3}\n'


@pytest.mark.parametrize("disk", [tmpfs, limit])
def test_what_a_full_disk_does_not_take_waits_and_then_is_counted(tmp_path: Path, disk: Disk) -> None:
    """Nobody waits for it; it is said once, what waits is written when there is room, and the row after what was lost
    says how much that is."""
    said: list[str] = []
    with disk(tmp_path) as (folder, fill, free):
        rotated = Rotated(folder / "r.jsonl", said.append, Bounds(most_waiting=100))
        with closing(rotated):
            rotated.put({"seq": 0})
        fill()
        with closing(rotated):
            for number in range(1, 151):
                rotated.put({"seq": number, "what": "x" * 99})
        assert (rotated.lost, len(rotated.waiting())) == (50, 100)
        free()
        with closing(rotated):
            rotated.put({"seq": 151})
        assert rotated.lost == 51
        with closing(rotated):
            rotated.put({"seq": 152})
        kept = rows(folder / "r.jsonl")
    assert [row["seq"] for row in kept] == [*range(101), 152]
    assert kept[-1] == {"seq": 152, "lost_before": 51}
    assert len(said) == 1
    assert "cannot be written" in said[0]


def test_a_folder_that_is_gone_is_told_once_and_taken_up_when_it_is_back(tmp_path: Path) -> None:
    """As is a file that is none."""
    said: list[str] = []
    folder = tmp_path / "logs"
    rotated = Rotated(folder / "r.jsonl", said.append)
    for _ in range(2):
        with closing(rotated):
            rotated.put({"seq": 1})
    folder.mkdir()
    with closing(rotated):
        rotated.put({"seq": 2})
    assert [row["seq"] for row in rows(folder / "r.jsonl")] == [1, 1, 2]
    assert len(said) == 1


def test_what_others_do_to_the_file_spoils_no_later_line(tmp_path: Path) -> None:
    """It is moved away, emptied, cut, or written into: the next row is whole, and in the file of that name."""
    path = tmp_path / "r.jsonl"

    def write_into() -> None:
        with path.open("ab") as file:
            file.write(b"half of")

    rotated = Rotated(path, print)
    rotated.put({"seq": 0})
    rotated.close()
    for harm in (
        lambda: path.rename(tmp_path / "moved"),
        path.unlink,
        lambda: os.truncate(path, 0),
        lambda: os.truncate(path, path.stat().st_size - 5),
        write_into,
    ):
        harm()
        rotated.put({"seq": 1})
        rotated.close()
        assert path.read_bytes().splitlines()[-1] == b'{"seq":1}'


@pytest.mark.parametrize("is_read", [False, True])
def test_a_pipe_in_the_place_of_a_file_is_neither_read_nor_written(tmp_path: Path, *, is_read: bool) -> None:
    """Nor is a device, which has no end. It is said, and the rows wait."""
    path, said = tmp_path / "r.jsonl", list[str]()
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK) if is_read else None
    (tmp_path / "r.jsonl.1").symlink_to("/dev/zero")
    with closing(Rotated(path, said.append)) as rotated:
        with rotated.opened() as files:
            assert files == []
        rotated.put({"seq": 1})
    assert said == [f"{path} cannot be written (it is no file): what it should hold may be lost"]
    assert rotated.waiting() == ({"seq": 1},)
    if reader is not None:
        os.close(reader)
