"""A file of JSON lines that only grows: whoever writes never waits, and nothing is lost in silence."""

import json
from contextlib import closing
from pathlib import Path

from gridsched.store.journal import Journal
from gridsched.store.rotated import Bounds


def rows(path: Path) -> list[dict[str, object]]:
    """What a file holds."""
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def test_rows_are_read_newest_first_in_pages(tmp_path: Path) -> None:
    """Those that the disk has not got yet among them; the end is told."""
    with closing(Journal(tmp_path / "j.jsonl", print)) as journal:
        assert [journal.write({"what": number}) for number in range(5)] == [1, 2, 3, 4, 5]
        page, following = journal.read(None, 2)
        assert ([row["seq"] for row in page], following) == ([5, 4], 4)
        page, following = journal.read(following, 2)
        assert ([row["what"] for row in page], following) == ([2, 1], 2)
        assert journal.read(following, 2) == ([{"seq": 1, "what": 0}], None)
    assert [row["seq"] for row in rows(tmp_path / "j.jsonl")] == [1, 2, 3, 4, 5]
    assert (tmp_path / "j.jsonl").stat().st_mode & 0o777 == 0o600


def test_numbers_go_on_after_a_restart(tmp_path: Path) -> None:
    """A last line that was only half written is passed over."""
    for number in (1, 2):
        with closing(Journal(tmp_path / "j.jsonl", print)) as journal:
            assert journal.write({"run": number}) == number
    with (tmp_path / "j.jsonl").open("a") as file:
        file.write('{"seq": 3, "ru')
    with closing(Journal(tmp_path / "j.jsonl", print)) as journal:
        assert [row["run"] for row in journal.read(None, 9)[0]] == [2, 1]
        assert journal.write({"run": 3}) == 3


def test_files_are_rotated_by_size_and_read_together(tmp_path: Path) -> None:
    """The oldest goes."""
    path = tmp_path / "j.jsonl"
    with closing(Journal(path, print, Bounds(max_bytes=100))) as journal:
        for number in range(60):
            journal.write({"what": f"{number:020}"})
    kept = sorted(each.name for each in tmp_path.iterdir())
    assert kept == ["j.jsonl.1", "j.jsonl.2", "j.jsonl.3"] or kept[0] == "j.jsonl"
    with closing(Journal(path, print)) as journal:
        found = [row["seq"] for row in journal.read(None, 100)[0]]
    assert found == list(range(60, 60 - len(found), -1))
    assert 6 <= len(found) < 60


def test_rows_that_the_disk_refuses_are_read_all_the_same_and_written_later(tmp_path: Path) -> None:
    """It is told once."""
    said: list[str] = []
    path = tmp_path / "j.jsonl"
    path.mkdir()
    with closing(Journal(path, said.append)) as journal:
        for number in range(3):
            journal.write({"what": number})
        assert [row["what"] for row in journal.read(None, 9)[0]] == [2, 1, 0]
    path.rmdir()
    assert len(said) == 1
    assert "cannot be written (Is a directory)" in said[0]
    journal.write({"what": 3})
    journal.close()
    assert [row["what"] for row in rows(path)] == [0, 1, 2, 3]
