"""The admin token's file: made once, kept, and never trusted where others could have read or written it (H6)."""

import os
import stat
from pathlib import Path

import pytest

from gridsched.settings.admin_token import FILE, make_admin_token, read_admin_token


def test_H6_a_token_is_made_once_and_for_this_user_alone(tmp_path: Path) -> None:
    """64 random digits; the same at the next start; each directory has its own."""
    token = make_admin_token(tmp_path)
    assert len(bytes.fromhex(token)) == 32
    assert stat.S_IMODE((tmp_path / FILE).stat().st_mode) == 0o600
    assert make_admin_token(tmp_path) == read_admin_token(tmp_path) == token
    (tmp_path / "other").mkdir()
    assert make_admin_token(tmp_path / "other") != token


def test_H6_a_persons_own_token_is_kept(tmp_path: Path) -> None:
    """If it is long enough."""
    (tmp_path / FILE).touch(0o600)
    (tmp_path / FILE).write_text("a person's own, of 32 characters\n", encoding="utf-8")
    assert make_admin_token(tmp_path) == "a person's own, of 32 characters"


def spoil(kind: str, path: Path) -> None:
    """Put something into the token's place that is no secret."""
    match kind:
        case "readable by others":
            path.write_text("a" * 64, encoding="utf-8")
            path.chmod(0o640)
        case "a link":
            path.with_name("elsewhere").touch(0o600)
            path.with_name("elsewhere").write_text("a" * 64, encoding="utf-8")
            path.symlink_to("elsewhere")
        case "a pipe":
            os.mkfifo(path, 0o600)
        case _:
            path.touch(0o600)
            path.write_bytes({"empty": b"", "short": b"secret\n", "two lines": b"a" * 32 + b"\n" + b"b" * 32}[kind])


@pytest.mark.parametrize("kind", ["readable by others", "a link", "a pipe", "empty", "short", "two lines"])
def test_H6_what_is_no_secret_is_replaced(tmp_path: Path, kind: str) -> None:
    """A command finds none there, and the next start makes another; what a link points to stays as it is."""
    spoil(kind, tmp_path / FILE)
    assert read_admin_token(tmp_path) is None
    (tmp_path / f"{FILE}.new").write_text("left behind by a start that was cut off", encoding="utf-8")
    token = make_admin_token(tmp_path)
    assert read_admin_token(tmp_path) == token != "a" * 64
    assert [path.name for path in tmp_path.iterdir() if path.name != "elsewhere"] == [FILE]
    if kind == "a link":
        assert (tmp_path / "elsewhere").read_text(encoding="utf-8") == "a" * 64


def test_H6_a_folder_in_the_tokens_place_is_no_token(tmp_path: Path) -> None:
    """A command says that there is none; the server starts without, and says so."""
    (tmp_path / FILE).mkdir(0o700)
    before = len(list(Path("/proc/self/fd").iterdir()))
    assert read_admin_token(tmp_path) is None
    assert len(list(Path("/proc/self/fd").iterdir())) == before
    with pytest.raises(IsADirectoryError):
        make_admin_token(tmp_path)


def test_H6_a_folder_that_cannot_be_written_is_an_error_for_the_caller(tmp_path: Path) -> None:
    """The server starts without, and says so."""
    with pytest.raises(OSError, match="No such file"):
        make_admin_token(tmp_path / "absent")
