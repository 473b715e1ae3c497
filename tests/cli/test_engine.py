"""`gridsched engine`: builds are tried before they are pinned, and there is a way back."""

import json
import os
import select
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gridsched.cli.main import main
from tests.engine.conftest import FAKE

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A data directory of its own, and nobody's configuration."""
    monkeypatch.setenv("GRIDSCHED_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("GRIDSCHED_CONFIG", raising=False)
    monkeypatch.chdir(tmp_path)


def build(folder: Path, text: str = FAKE.read_text(encoding="utf-8")) -> Path:
    """A folder with an engine in it."""
    folder.mkdir()
    (folder / "llama-server").write_text(f"#!{sys.executable}\n{text}", encoding="utf-8")
    return folder


def listed(capsys: pytest.CaptureFixture[str]) -> dict[str, dict[str, object]]:
    """The builds by name, as `list --json` tells them."""
    capsys.readouterr()
    assert main(["engine", "list", "--json"]) == 0
    return {row["name"]: row for row in json.loads(capsys.readouterr().out) if row["name"]}


def test_builds_are_installed_side_by_side_and_the_last_is_pinned(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each from where it came, and back to the one before."""
    assert main(["engine", "install", str(build(tmp_path / "one"))]) == 0
    archive = shutil.make_archive(str(tmp_path / "two"), "gztar", build(tmp_path / "second"))
    assert main(["engine", "install", archive]) == 0
    assert "it answered with a token" in capsys.readouterr().out
    rows = listed(capsys)
    assert {name: row["used"] for name, row in rows.items()} == {"one": False, "two": True}
    assert rows["two"]["version"] == "fake (build 7, commit abcdef0)"
    assert rows["two"]["source"] == archive
    assert main(["engine", "rollback"]) == 0
    assert {name: row["used"] for name, row in listed(capsys).items()} == {"one": True, "two": False}
    assert main(["engine", "use", "two"]) == 0
    assert main(["engine", "test"]) == 0
    assert "a tiny model answered with a token" in capsys.readouterr().out


def test_a_build_that_does_not_run_is_neither_installed_nor_pinned(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The pin stays where it was, and nothing is left of the attempt."""
    assert main(["engine", "install", str(build(tmp_path / "good"))]) == 0
    assert main(["engine", "install", str(build(tmp_path / "bad", "import sys; sys.exit('built for another')"))]) == 1
    assert "bad was not installed" in capsys.readouterr().err
    assert list(listed(capsys)) == ["good"]
    engines = tmp_path / "data" / "engines"
    assert sorted(path.name for path in engines.iterdir()) == [".lock", "good", "pinned.json"]


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupted_trial_leaves_nothing_and_says_nothing(tmp_path: Path, ending: signal.Signals) -> None:
    """Ctrl-C, a service manager, a terminal that closes: no traceback, no half build, no process."""
    begun = tmp_path / "begun"
    os.mkfifo(begun)
    told = os.open(begun, os.O_RDONLY | os.O_NONBLOCK)
    hanging = f"""
import os, runpy, sys
if "--model" not in sys.argv and "-m" not in sys.argv:
    runpy.run_path({str(FAKE)!r}, run_name="__main__")
else:
    open({str(begun)!r}, "w").write(str(os.getpid()))
    os.read(os.pipe()[0], 1)
"""
    argv = [sys.executable, "-m", "gridsched", "engine", "install", str(build(tmp_path / "hangs", hanging))]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as command:
        try:
            assert select.select([told], [], [], 60)[0]
            handle = os.pidfd_open(int(os.read(told, 20)))
            command.send_signal(ending)
            _, errors = command.communicate(timeout=30)
        finally:
            command.kill()
            os.close(told)
    assert (command.returncode, errors) == (130, "")
    assert select.select([handle], [], [], 0)[0]
    os.close(handle)
    assert [path.name for path in (tmp_path / "data" / "engines").iterdir()] == [".lock"]


def test_a_pinned_engine_that_is_gone_is_told_with_the_way_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No other is taken in silence."""
    assert main(["engine", "install", str(build(tmp_path / "one"))]) == 0
    shutil.rmtree(tmp_path / "data" / "engines" / "one")
    assert main(["engine", "test"]) == 1
    assert "gridsched engine rollback" in capsys.readouterr().err
    assert main(["check"]) == 2
    assert "is not there" in capsys.readouterr().err


def test_a_program_is_listed_once_and_the_one_that_is_used_is_marked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where it lies on PATH and in a usual folder, or is one of the builds here."""
    assert main(["engine", "install", "--no-use", str(build(tmp_path / "one"))]) == 0
    assert not listed(capsys)["one"]["used"]
    folder = tmp_path / "data" / "engines" / "one"
    monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)
    monkeypatch.setattr("gridsched.engine.locate.INSTALL_FOLDERS", (str(folder), "/nowhere"))
    assert main(["engine", "list", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["used"] for row in rows if row["path"] == str(folder / "llama-server")] == [True]
    assert sum(row["used"] for row in rows) == 1


def test_what_was_changed_is_not_denied_where_nobody_can_be_told(tmp_path: Path) -> None:
    """A full disk or a reader that has gone is about the words, not about the pin."""
    pins = tmp_path / "data" / "engines" / "pinned.json"
    with Path("/dev/full").open("wb") as full:
        command = [sys.executable, "-u", "-m", "gridsched", "engine", "use", "auto"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    assert json.loads(pins.read_text(encoding="utf-8")) == {"pins": [None]}


def test_a_name_that_is_no_build_is_told_with_those_there_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And `auto` is what there was before any pin."""
    assert main(["engine", "install", "--no-use", str(build(tmp_path / "one"))]) == 0
    assert main(["engine", "use", "two"]) == 1
    assert "the builds here: one" in capsys.readouterr().err
    assert main(["engine", "use", "one"]) == 0
    assert main(["engine", "use", "auto"]) == 0
    assert not any(row["used"] for row in listed(capsys).values())


def test_flags_that_a_build_does_not_know_are_told_when_it_is_pinned(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With their place in the file and the nearest name."""
    (tmp_path / "gridsched.yaml").write_text(
        f"models:\n  m:\n    path: {tmp_path}/m.gguf\n    flags: [--cache-rum, 5]\n"
    )
    assert main(["engine", "install", str(build(tmp_path / "one"))]) == 2
    said = capsys.readouterr().out
    assert "gridsched.yaml:4:" in said
    assert "--cache-ram" in said


def test_a_configured_path_goes_before_the_pin_and_that_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Else a pin would seem to do nothing."""
    (tmp_path / "gridsched.yaml").write_text(f"engine:\n  path: {build(tmp_path / 'theirs')}/llama-server\n")
    (tmp_path / "theirs" / "llama-server").chmod(0o755)
    assert main(["engine", "install", str(build(tmp_path / "one"))]) == 0
    assert "which goes first: set it to auto" in capsys.readouterr().out
    assert not listed(capsys)["one"]["used"]
    (tmp_path / "theirs" / "llama-server").unlink()
    assert main(["engine", "list", "--json"]) == 0
    used = [row for row in json.loads(capsys.readouterr().out) if row["used"]]
    assert [row["source"] for row in used] == ["engine.path"], "no other is taken in its place"
    assert "is not a file" in used[0]["problem"]
