"""Which file is read, and what is said when it cannot be."""

import os
from pathlib import Path

import pytest

from gridsched.settings.faults import SettingsError
from gridsched.settings.load import MAX_FILE_BYTES, defaults, find, load, override


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    """A current folder and a user's configuration folder, each with a file."""
    cwd, user = tmp_path / "cwd", tmp_path / "user"
    for folder in (cwd, user):
        folder.mkdir()
        (folder / "gridsched.yaml").write_text("server: {port: 1}\n")
    return cwd, user


def refusal(path: Path) -> str:
    """What is said of a file that cannot be used."""
    with pytest.raises(SettingsError) as caught:
        load(path, {})
    return str(caught.value)


def test_the_file_is_looked_for_in_the_contracts_order(folders: tuple[Path, Path]) -> None:
    """The flag, the variable, the current folder, the user's folder; then none."""
    cwd, user = folders
    environ = {"GRIDSCHED_CONFIG": "/from/variable.yaml"}
    assert find(Path("flag.yaml"), environ, cwd, user) == Path("flag.yaml")
    assert find(None, environ, cwd, user) == Path("/from/variable.yaml")
    assert find(None, {"GRIDSCHED_CONFIG": ""}, cwd, user) == cwd / "gridsched.yaml"
    (cwd / "gridsched.yaml").unlink()
    assert find(None, {}, cwd, user) == user / "gridsched.yaml"
    (user / "gridsched.yaml").unlink()
    assert find(None, {}, cwd, user) is None


def test_the_users_folder_is_the_platforms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On Linux, XDG's."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    (tmp_path / "gridsched").mkdir()
    (tmp_path / "gridsched" / "gridsched.yaml").touch()
    assert find(None, {}, tmp_path) == tmp_path / "gridsched" / "gridsched.yaml"


def test_a_file_is_loaded_and_its_paths_are_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Relative to the file's folder, also where the file itself was named relatively; a byte order mark is no text."""
    monkeypatch.chdir(tmp_path)
    Path("f.yaml").write_bytes(b"\xef\xbb\xbfmodels:\r\n  m:\r\n    path: ${D}/m.gguf\r\n")
    assert load(Path("f.yaml"), {"D": "sub"}).models["m"].path == tmp_path / "sub" / "m.gguf"


def test_an_empty_file_is_the_defaults(tmp_path: Path) -> None:
    """Nothing said, nothing changed."""
    (tmp_path / "f.yaml").touch()
    assert load(tmp_path / "f.yaml", {}) == defaults()


def test_a_file_that_cannot_be_read_is_named_with_the_reason(tmp_path: Path) -> None:
    """One that was named and is not there; a folder in its place; a part of the path that is a file."""
    (tmp_path / "file").touch()
    assert refusal(tmp_path / "no.yaml") == f"{tmp_path}/no.yaml: cannot be read: No such file or directory"
    assert refusal(tmp_path) == f"{tmp_path}: cannot be read: Is a directory"
    assert refusal(tmp_path / "file" / "f.yaml").endswith("cannot be read: Not a directory")


def test_a_pipe_is_refused_and_never_waited_for(tmp_path: Path) -> None:
    """Nobody writes into it."""
    os.mkfifo(tmp_path / "f.yaml")
    assert refusal(tmp_path / "f.yaml").endswith("cannot be read: it is a pipe, not a file")


def test_a_user_without_a_home_has_no_folder_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A container's user that no file knows: the current folder is looked into, and a `~` has its sentence."""
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.setattr("pwd.getpwuid", _nobody)
    assert find(None, {}, tmp_path) is None
    with pytest.raises(SettingsError, match="command line: --models-dir: there is no home folder for ~"):
        override(defaults(), None, None, Path("~/models"))


def _nobody(uid: int) -> None:
    raise KeyError(uid)


def test_text_that_is_not_utf8_is_told_with_its_place(tmp_path: Path) -> None:
    """Line, column and byte."""
    (tmp_path / "f.yaml").write_bytes(b"# caf\xc3\xa9\nserver: {host: caf\xe9}\n")
    assert refusal(tmp_path / "f.yaml") == f"{tmp_path}/f.yaml:2:19: the byte 0xe9 is not UTF-8"


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    """A model named in the configuration's place is not read to its end."""
    path = tmp_path / "model.gguf"
    with path.open("wb") as file:
        file.truncate(100 * MAX_FILE_BYTES)
    assert "more than 262144 bytes: no configuration" in refusal(path)


def test_the_command_line_overrides_the_file() -> None:
    """What it does not say stays."""
    settings = override(defaults(), "0.0.0.0", 0, Path("m"))  # noqa: S104 - nothing listens here
    assert (settings.server.host, settings.server.port) == ("0.0.0.0", 0)  # noqa: S104 - the same
    assert settings.library.dirs == (Path("m"),)
    assert settings.server.max_body_bytes == defaults().server.max_body_bytes
    assert override(settings, None, None, None) == settings


def test_a_wrong_command_line_is_told_like_a_wrong_file() -> None:
    """With the flag in the key's place."""
    with pytest.raises(SettingsError) as caught:
        override(defaults(), "", 70000, None)
    assert str(caught.value).splitlines() == [
        "command line: --host: expected text, got nothing",
        "command line: --port: must be from 0 to 65535, got 70000",
    ]
