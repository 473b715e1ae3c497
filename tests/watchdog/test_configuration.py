"""The configuration: checked before it is written, kept when it has run well, put back when it does not start."""

import os
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from gridsched.watchdog.commands import Commands
from gridsched.watchdog.configuration import KEPT_BEFORE, KEPT_GOOD, Configuration, Refused, digest
from gridsched.watchdog.places import Places
from gridsched.watchdog.processes import identify
from gridsched.watchdog.watch import Owner, State, Verdict
from tests.watchdog.conftest import Bench


@pytest.fixture
def path(places: Places) -> Path:
    """The configuration file, which is not there yet."""
    assert places.config_flag is not None
    return places.config_flag


@pytest.fixture
def configuration(places: Places) -> Configuration:
    """Over simulated hardware, so that a check needs no engine."""
    return Configuration(places, ("--sim", "--port", "0"), Commands(places.environ))


OLD_FILE = Path(__file__)
"""One that was here before any process of a test."""

GOOD = "# by hand\nserver: {port: 45991}   # ours\n"


def test_what_is_replaced_is_kept_and_its_rights_stay(
    configuration: Configuration, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside the file; and nothing is written where somebody else was faster. What a check says: `test_program.py`."""
    monkeypatch.setattr(configuration, "_check", lambda *_: "")
    path.write_text("before", encoding="utf-8")
    path.chmod(0o640)
    said = configuration.set(GOOD, digest(b"before"), force=False)
    assert path.read_text(encoding="utf-8") == GOOD
    assert Path(said["backup"]).read_text(encoding="utf-8") == "before"
    assert path.stat().st_mode & 0o777 == 0o640
    with pytest.raises(Refused, match="has changed since it was read"):
        configuration.set("later", digest(b"before"), force=False)
    assert path.read_text(encoding="utf-8") == GOOD


@pytest.mark.slow
def test_where_the_check_itself_is_broken_only_force_writes(
    places: Places, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Libraries that are broken must not keep anybody from mending the configuration; but it is said."""
    broken = places.cwd / "broken"
    broken.mkdir()
    (broken / "pydantic.py").write_text("raise ImportError('half an upgrade')", encoding="utf-8")
    before = places.environ.get("PYTHONPATH", "")
    configuration = Configuration(places, (), Commands({**places.environ, "PYTHONPATH": f"{broken}:{before}"}))
    said = configuration.set(GOOD, None, force=True)
    assert said["forced"] is True
    assert "gridsched check itself has failed (1: ImportError: half an upgrade)" in said["checked"]
    assert path.read_text(encoding="utf-8") == GOOD
    monkeypatch.setattr(configuration, "_check", lambda *_: said["checked"])  # it would say the same again
    with pytest.raises(Refused, match="itself has failed"):
        configuration.set("other", None, force=False)
    assert path.read_text(encoding="utf-8") == GOOD


def test_what_is_no_configuration_is_refused_unseen(configuration: Configuration) -> None:
    """Too large, or text that no file can hold."""
    with pytest.raises(Refused, match="more than 262144 bytes"):
        configuration.set("x" * 300_000, None, force=True)
    with pytest.raises(Refused, match="half a character"):
        configuration.set("\ud800", None, force=True)


@pytest.mark.slow
def test_a_configuration_is_checked_for_the_gateway_that_will_read_it(places: Places, path: Path) -> None:
    """On simulated hardware, on another port: that somebody else has the file's own is no matter to it."""
    configuration = Configuration(places, ("--port=0", "--record", "tape", "--sim"), Commands(places.environ))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        text = f"server: {{port: {taken.getsockname()[1]}}}\n"
        assert configuration.set(text, None, force=False)["forced"] is False
    assert path.read_text(encoding="utf-8") == text


def test_a_user_without_a_home_is_refused_a_configuration(places: Places, monkeypatch: pytest.MonkeyPatch) -> None:
    """In words: a gateway that does not start without one is then waited for, not tried again and again."""

    def nobody(uid: int) -> None:
        raise KeyError(uid)

    monkeypatch.setattr("pwd.getpwuid", nobody)
    homeless = Configuration(Places(places.data, None, {}, places.cwd), (), Commands({}))
    with pytest.raises(Refused, match="no home folder"):
        homeless.roll_back()
    with pytest.raises(Refused, match="no home folder"):
        homeless.set(GOOD, None, force=True)


def test_a_rollback_takes_the_newest_good_one_that_is_another(configuration: Configuration, path: Path) -> None:
    """What is there is kept, and rolling back twice goes to and fro between the last two good ones."""
    with pytest.raises(Refused, match="no other configuration is known"):
        configuration.roll_back()
    for text in ("first", "second"):
        path.write_text(text, encoding="utf-8")
        assert configuration.keep_good(digest(text.encode()))
    path.write_text("broken", encoding="utf-8")
    said = configuration.roll_back(".broken")
    assert path.read_text(encoding="utf-8") == "second"
    assert Path(said["kept"]).name == "gridsched.yaml.broken-1"
    assert Path(said["kept"]).read_text(encoding="utf-8") == "broken"
    configuration.roll_back()
    assert path.read_text(encoding="utf-8") == "first"
    assert configuration.told()["is_known_good"] is True
    path.unlink()
    configuration.roll_back()
    assert path.read_text(encoding="utf-8") == "second", "one that was deleted comes back"


def test_a_good_copy_that_was_damaged_is_none(configuration: Configuration, places: Places, path: Path) -> None:
    """Its hash is its name; so is what somebody puts into the folder by hand."""
    path.write_text("first", encoding="utf-8")
    configuration.keep_good(digest(b"first"))
    copy = configuration.good()[0].copy
    copy.write_text("secretly other", encoding="utf-8")
    (places.own / "good" / "x-y.yaml").write_text("?", encoding="utf-8")
    (places.own / "good" / f"1-{digest(b'')}.yaml").symlink_to("/dev/null")
    path.write_text("now", encoding="utf-8")
    assert configuration.good() == []
    with pytest.raises(Refused):
        configuration.roll_back()


def test_only_what_is_still_there_is_kept_as_good_and_not_for_ever(configuration: Configuration, path: Path) -> None:
    """A file that was changed while it ran well is not what ran well."""
    path.write_text("changed", encoding="utf-8")
    assert not configuration.keep_good(digest(b"what ran"))
    for number in range(KEPT_GOOD + 3):
        path.write_text(str(number), encoding="utf-8")
        configuration.keep_good(digest(str(number).encode()))
    assert len(configuration.good()) == KEPT_GOOD
    path.with_name(f"{path.name}.before-1").mkdir()  # moved aside by an earlier one: it stays
    for _ in range(KEPT_BEFORE + 5):
        configuration.roll_back()
    kept = [each.name for each in path.parent.iterdir() if ".before-" in each.name]
    assert len(kept) == KEPT_BEFORE + 1


def test_a_link_to_a_configuration_stays_one(configuration: Configuration, path: Path) -> None:
    """It may lie in a folder under version control."""
    real = path.with_name("real.yaml")
    for text in ("first", "second"):
        real.write_text(text, encoding="utf-8")
        if not path.exists():
            path.symlink_to(real)
        configuration.keep_good(digest(text.encode()))
    configuration.roll_back()
    assert path.is_symlink()
    assert real.read_text(encoding="utf-8") == "first"


def test_a_configuration_that_cannot_be_read_or_written_is_said(configuration: Configuration, path: Path) -> None:
    """A folder, a pipe, a huge file in its place: a sentence, and no waiting."""
    os.mkfifo(path)
    with pytest.raises(Refused, match="no regular file"):
        configuration.told()
    path.unlink()
    path.mkdir()
    with pytest.raises(Refused, match="cannot be read"):
        configuration.told()
    assert configuration.fingerprint() == ""
    descriptors = len([*Path("/proc/self/fd").iterdir()])
    for _ in range(10):
        assert configuration.fingerprint() == ""
    assert len([*Path("/proc/self/fd").iterdir()]) == descriptors, "it is asked for once a second"
    path.rmdir()
    assert "the gateway cannot start" in configuration.told()["note"]


@pytest.mark.parametrize("kind", ["folder", "pipe", "huge", "loop"])
def test_whatever_is_in_the_file_s_place_is_moved_aside(configuration: Configuration, path: Path, kind: str) -> None:
    """A configuration that nobody can read is the first that has to be replaced; nothing of it is lost."""
    path.write_text("well", encoding="utf-8")
    configuration.keep_good(digest(b"well"))
    path.unlink()
    match kind:
        case "folder":
            path.mkdir()
        case "pipe":
            os.mkfifo(path)
        case "huge":
            path.write_bytes(b"#" * 300_000)
        case _:
            path.symlink_to(path)
    told = configuration.roll_back(".broken")
    assert path.read_text(encoding="utf-8") == "well"
    assert os.path.lexists(told["kept"])


def test_a_roll_back_is_only_undone_while_the_file_is_what_it_made(configuration: Configuration, path: Path) -> None:
    """What somebody has written meanwhile is not overwritten; where there was no file, there is none again."""
    path.write_text("well", encoding="utf-8")
    configuration.keep_good(digest(b"well"))
    path.write_text("broken", encoding="utf-8")
    told = configuration.roll_back(".broken")
    assert configuration.put_back(told)
    assert path.read_text(encoding="utf-8") == "broken"
    told = configuration.roll_back(".broken")
    path.write_text("another try", encoding="utf-8")
    assert not configuration.put_back(told)
    assert path.read_text(encoding="utf-8") == "another try"
    path.unlink()
    told = configuration.roll_back(".broken")
    assert configuration.put_back(told)
    assert not path.exists()


def test_a_check_that_takes_long_keeps_no_roll_back_waiting(
    configuration: Configuration, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two minutes on a cold disk: the main thread rolls back meanwhile, and what was expected is compared again."""
    path.write_text("well", encoding="utf-8")
    configuration.keep_good(digest(b"well"))
    path.write_text("now", encoding="utf-8")

    def slow(*_: object) -> str:
        configuration.roll_back()
        return ""

    monkeypatch.setattr(configuration, "_check", slow)
    with pytest.raises(Refused, match="has changed since it was read"):
        configuration.set("new", digest(b"now"), force=False)
    assert path.read_text(encoding="utf-8") == "well"


def test_what_a_gateway_was_started_with_is_what_was_there_before_and_is_still(places: Places) -> None:
    """Of one that was seen to start."""
    learner, nobody = Bench(places, runs=False).keeper._learner, Verdict(State.NOT_RUNNING, "")
    assert learner._read_at_start(nobody, digest(b"x")) == "", "nobody runs"
    learner.starts(digest(b"x"))
    assert learner._read_at_start(nobody, digest(b"x")) == digest(b"x"), "it was started with it"
    assert learner._read_at_start(nobody, digest(b"y")) == "", "it was changed meanwhile"


def test_of_a_gateway_that_was_there_before_us_only_an_untouched_file_is_good(places: Places, path: Path) -> None:
    """What it has read is known if the file is older than the process."""
    path.write_text("x", encoding="utf-8")
    fresh, old = (Bench(each, runs=False).keeper._learner for each in (places, replace(places, config_flag=OLD_FILE)))
    us = Verdict(State.SERVING, "", Owner(identify(os.getpid()), 0))
    assert fresh._read_at_start(us, digest(b"x")) == "", "we are older than the file"
    with subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE) as young:
        seen = Verdict(State.SERVING, "", Owner(identify(young.pid), 0))
        assert old._read_at_start(seen, digest(b"x")) == digest(b"x")
        young.kill()
