"""The watchdog finds the same files as the gateway."""

import os
from collections.abc import Mapping
from pathlib import Path

import platformdirs
import pytest

from gridsched.settings import load, paths
from gridsched.watchdog.places import NoPlace, find_config, find_data


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home folder, also for the gateway's own finders, which ask the environment of this process."""
    for name in ("XDG_CONFIG_HOME", "XDG_DATA_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    return tmp_path / "home"


CASES: list[tuple[str | None, Mapping[str, str], list[str]]] = [
    (None, {}, []),
    (None, {}, ["cwd/gridsched.yaml", "home/.config/gridsched/gridsched.yaml"]),
    (None, {}, ["home/.config/gridsched/gridsched.yaml"]),
    (None, {"XDG_CONFIG_HOME": "{tmp}/xdg"}, ["xdg/gridsched/gridsched.yaml"]),
    (None, {"XDG_CONFIG_HOME": "relative"}, ["home/.config/gridsched/gridsched.yaml"]),
    (None, {"GRIDSCHED_CONFIG": "{tmp}/other.yaml"}, ["cwd/gridsched.yaml"]),
    ("{tmp}/told.yaml", {"GRIDSCHED_CONFIG": "{tmp}/other.yaml"}, []),
]


@pytest.mark.parametrize(("flag", "variables", "existing"), CASES)
def test_the_configuration_is_found_where_the_gateway_finds_it(
    tmp_path: Path,
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
    flag: str | None,
    variables: Mapping[str, str],
    existing: list[str],
) -> None:
    """Flag, variable, current folder, user's folder: in every combination both find the same."""
    (tmp_path / "cwd").mkdir()
    for name in existing:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("{}", encoding="utf-8")
    for name, value in variables.items():
        monkeypatch.setenv(name, value.replace("{tmp}", str(tmp_path)))
    told = Path(flag.replace("{tmp}", str(tmp_path))) if flag else None
    theirs = load.find(told, os.environ, tmp_path / "cwd")
    assert find_config(told, os.environ, tmp_path / "cwd") == theirs
    assert home.exists()


@pytest.mark.parametrize("variables", [{}, {"XDG_DATA_HOME": "{tmp}/xdg"}, {"GRIDSCHED_DATA_DIR": "{tmp}/data"}])
def test_the_data_directory_is_found_where_the_gateway_finds_it(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch, variables: Mapping[str, str]
) -> None:
    """Flag, variable, the user's folder."""
    for name, value in variables.items():
        monkeypatch.setenv(name, value.replace("{tmp}", str(tmp_path)))
    assert find_data(None, os.environ) == paths.data_dir_path(None, os.environ)
    assert find_data(tmp_path / "told", os.environ) == paths.data_dir_path(tmp_path / "told", os.environ)
    assert platformdirs.user_data_path("gridsched").is_relative_to(home) or variables.get("XDG_DATA_HOME")


def test_a_folder_of_nobody_is_said() -> None:
    """A home folder of a user who does not exist ends with a sentence."""
    with pytest.raises(NoPlace, match="name a data directory"):
        find_data(Path("~nobody-by-that-name/data"), {})
