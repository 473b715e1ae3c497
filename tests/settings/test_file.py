"""The configuration file replaced by a program: whole or not at all, as its owner keeps it, the old one beside it."""

import errno
import os
from pathlib import Path

import pytest

from gridsched.settings import file
from gridsched.settings.faults import SettingsError
from gridsched.settings.file import KEPT, Contents, read, replace
from gridsched.settings.refusals import Changed


def names(folder: Path) -> list[str]:
    """What lies in a folder."""
    return sorted(os.listdir(folder))  # noqa: PTH208 - names


def test_a_file_is_replaced_with_its_mode_and_a_copy_of_the_old_one(tmp_path: Path) -> None:
    """A byte order mark stays, and line ends are the text's."""
    path = tmp_path / "f.yaml"
    path.write_bytes(b"\xef\xbb\xbfserver: {}\r\n")
    path.chmod(0o640)
    before = read(path)
    assert (before.text, before.has_bom, before.exists) == ("server: {}\r\n", True, True)
    backup = replace(path, "server: {port: 1}\r\n", before)
    assert path.read_bytes() == b"\xef\xbb\xbfserver: {port: 1}\r\n"
    assert backup == tmp_path / "f.yaml.before-1"
    assert backup.read_bytes() == b"\xef\xbb\xbfserver: {}\r\n"
    assert [each.stat().st_mode & 0o777 for each in (path, backup)] == [0o640, 0o640]
    assert names(tmp_path) == ["f.yaml", "f.yaml.before-1"]


def test_a_link_stays_and_what_it_leads_to_is_replaced(tmp_path: Path) -> None:
    """Whoever keeps his files under version control links to them."""
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "real.yaml").write_text("# real\n")
    link = tmp_path / "f.yaml"
    link.symlink_to("kept/real.yaml")
    replace(link, "# new\n", read(link))
    assert (link.is_symlink(), link.read_text()) == (True, "# new\n")
    assert names(tmp_path / "kept") == ["real.yaml", "real.yaml.before-1"]


def test_so_many_copies_are_kept(tmp_path: Path) -> None:
    """The oldest go; what somebody else has put among them stays."""
    path = tmp_path / "f.yaml"
    path.touch()
    (tmp_path / "f.yaml.before-mine").touch()
    for number in range(KEPT + 3):
        replace(path, f"# {number}\n", read(path))
    copies = [name for name in names(tmp_path) if name.rpartition("-")[2].isdecimal()]
    assert sorted(copies, key=len) == sorted((f"f.yaml.before-{n}" for n in range(4, KEPT + 4)), key=len)
    assert (tmp_path / "f.yaml.before-mine").exists()


def test_a_file_that_was_changed_meanwhile_is_left_alone(tmp_path: Path) -> None:
    """By an editor, in the moment between; one that has come, too."""
    path = tmp_path / "f.yaml"
    with_none = read(path)
    assert with_none == Contents()
    path.write_text("# theirs\n")
    old = read(path)
    path.write_text("# theirs, again\n")
    for before in (old, with_none):
        with pytest.raises(Changed):
            replace(path, "# ours\n", before)
    assert path.read_text() == "# theirs, again\n"
    assert names(tmp_path) == ["f.yaml"]


def test_a_save_while_the_copy_is_made_is_not_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The copy is flushed to the disk, which takes its time."""
    path = tmp_path / "f.yaml"
    path.write_text("# old\n")
    before = read(path)
    monkeypatch.setattr(file, "_backup", lambda *_: path.write_text("# theirs\n"))
    with pytest.raises(Changed):
        replace(path, "# ours\n", before)
    assert path.read_text() == "# theirs\n"


def test_what_a_killed_writer_has_left_is_taken_away(tmp_path: Path) -> None:
    """By the next that writes the file, when it is old; an editor's own files stay."""
    path = tmp_path / "f.yaml"
    path.write_text("# old\n")
    left = [".f.yaml.abcd_123.new", ".f.yaml.before-7.abcd_123.new"]
    stays = [".f.yaml.swp", ".f.yaml.original", ".g.yaml.abcd_123.new", ".f.yaml.now_1234.new"]
    for name in (*left, *stays):
        (tmp_path / name).write_text("x")
        if name != stays[-1]:
            os.utime(tmp_path / name, (1, 1))
    replace(path, "# new\n", read(path))
    assert names(tmp_path) == sorted([*stays, "f.yaml", "f.yaml.before-1"])


def test_a_new_file_is_its_users_alone(tmp_path: Path) -> None:
    """Its folder is made, too."""
    path = tmp_path / "made" / "f.yaml"
    assert replace(path, "# new\n", read(path)) is None
    assert (path.read_text(), path.stat().st_mode & 0o777) == ("# new\n", 0o600)


@pytest.mark.parametrize("nth", [1, 2, 3, 4])
def test_whatever_fails_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nth: int
) -> None:
    """The disk is full at the first, the second … thing that is asked of it."""
    path = tmp_path / "f.yaml"
    path.write_text("# old\n")
    before, asked = read(path), 0

    def failing(real: object) -> object:
        def call(*args: object) -> object:
            nonlocal asked
            asked += 1
            if asked == nth:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return real(*args)  # type: ignore[operator]  # a function of the standard library

        return call

    monkeypatch.setattr("os.fsync", failing(os.fsync))
    monkeypatch.setattr(Path, "replace", failing(Path.replace))
    with pytest.raises(OSError, match="No space left"):
        replace(path, "# new\n", before)
    assert path.read_text() == "# old\n"
    assert [name for name in names(tmp_path) if name.startswith(".")] == []
    assert names(tmp_path)[0] == "f.yaml"


def test_what_is_no_file_is_not_read(tmp_path: Path) -> None:
    """A folder in its place."""
    with pytest.raises(SettingsError, match="Is a directory"):
        read(tmp_path)
