"""`gridsched doctor`: all that is wrong, with what to do about each."""

import json
from pathlib import Path

import pytest

from gridsched.cli.main import main


def told(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, tuple[str, str, str]]]:
    """The exit code, and what is said of each thing (the last, where there are several)."""
    code = main(["doctor", "--sim", "--json", *words])
    answer = json.loads(capsys.readouterr().out)
    assert answer["ok"] == (code == 0)
    return code, {each["about"]: (each["state"], each["text"], each["do"]) for each in answer["findings"]}


def test_a_set_up_with_nothing_wrong_is_well(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Exit 0, each thing that was looked at named."""
    code, found = told(capsys, "--data-dir", str(tmp_path / "data"), "--port", "0")
    assert code == 0
    looked_at = {"data directory", "disk", "keys", "named servers", "configuration", "port", "engine", "devices"}
    assert looked_at <= found.keys()
    assert found["models"] == ("ok", "5 can be served", "")


def test_one_fault_does_not_hide_the_next(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Exit 1: damaged keys, a damaged list of servers and a configuration with an unknown key, each with what to do."""
    data, config, servers = tmp_path / "data", tmp_path / "c.yaml", tmp_path / "config" / "gridsched" / "servers.json"
    data.mkdir(mode=0o700)
    servers.parent.mkdir(parents=True, mode=0o700)
    for file in (data / "keys.json", servers):
        file.write_text("{", encoding="utf-8")
        file.chmod(0o600)
    config.write_text("server:\n  prot: 1234\n", encoding="utf-8")
    code, found = told(capsys, "--data-dir", str(data), "--config", str(config))
    assert code == 1
    for about, place in (("keys", data), ("named servers", servers), ("configuration", f"{config}:2:3")):
        state, text, do = found[about]
        assert state == "problem"
        assert str(place) in text
        assert do


def test_H6_a_server_without_keys_that_others_could_reach_is_a_problem(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """As a start refuses it."""
    code, found = told(capsys, "--data-dir", str(tmp_path / "data"), "--host", "::", "--port", "0")
    assert code == 1
    assert found["exposure"][0] == "problem"
    assert "gridsched keys add NAME" in found["exposure"][1]
