"""The data directory: found, made private, and owned by one server at a time."""

import fcntl
import json
import os
import re
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from gridsched.settings.paths import DataDir, DataDirError, DataDirInUse, Holder, data_dir_path, owner_of


def refusal(path: Path) -> str:
    """What is said of a directory that cannot be owned."""
    with pytest.raises(DataDirError) as caught:
        DataDir.own(path)
    assert not isinstance(caught.value, DataDirInUse)
    return str(caught.value)


def mode(path: Path) -> int:
    """Who may do what."""
    return stat.S_IMODE(path.stat().st_mode)


def test_it_is_looked_for_in_the_contracts_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The flag, the variable, the platform's folder; always absolute."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "xdg"))
    environ = {"GRIDSCHED_DATA_DIR": "~/grid"}
    assert data_dir_path(Path("here"), environ) == tmp_path / "here"
    assert data_dir_path(None, environ) == Path.home() / "grid"
    assert data_dir_path(None, {"GRIDSCHED_DATA_DIR": ""}) == tmp_path / "xdg" / "gridsched"
    assert data_dir_path(None, {}, Path("/user")) == Path("/user")


def test_a_user_without_a_home_is_told_to_name_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A container's user that no file knows, and a `~somebody` who is not there."""
    with pytest.raises(DataDirError, match="no home folder for ~nobody-at-all; name a data directory with --data-dir"):
        data_dir_path(Path("~nobody-at-all/x"), {})
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    monkeypatch.setattr("pwd.getpwuid", _nobody)
    with pytest.raises(DataDirError, match="no home folder for this user; name a data directory"):
        data_dir_path(None, {})


def _nobody(uid: int) -> None:
    raise KeyError(uid)


def test_a_current_folder_that_is_gone_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A relative directory lies nowhere then; an absolute one is as good as ever."""
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert data_dir_path(tmp_path, {}) == tmp_path
    with pytest.raises(DataDirError, match="d is told from the current folder, which is gone"):
        data_dir_path(Path("d"), {})


def test_a_visitor_takes_nothing_and_says_nothing(tmp_path: Path) -> None:
    """The owner keeps the lock and its word."""
    with DataDir.own(tmp_path) as owned:
        owned.say_port(1234)
        with DataDir.own_or_visit(tmp_path) as visited:
            assert (visited.path, visited.run, visited.holder) == (owned.path, owned.run, Holder(os.getpid(), 1234))
            visited.say_port(4321)
        with pytest.raises(DataDirInUse) as caught:
            DataDir.own(tmp_path)
    assert caught.value.holder == Holder(os.getpid(), 1234)
    with DataDir.own_or_visit(tmp_path) as owned, DataDir.own_or_visit(tmp_path) as visited:
        assert (owned.holder, visited.holder) == (None, Holder(os.getpid(), briefly=True))


def test_an_odd_file_in_the_locks_place_harms_nobody(tmp_path: Path) -> None:
    """A pipe can be locked too, and cannot be emptied at the end; a link or a folder is refused."""
    os.mkfifo(tmp_path / "owner.lock")
    with DataDir.own(tmp_path), pytest.raises(DataDirInUse):
        DataDir.own(tmp_path)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "owner.lock").symlink_to(tmp_path / "owner.lock")
    assert "cannot be used" in refusal(tmp_path / "other")


def test_P1_what_is_made_is_private(tmp_path: Path) -> None:
    """Sockets and logs lie where no other user can reach them, also when the folders were there and open."""
    path = tmp_path / "a" / "data"
    (path / "run").mkdir(parents=True)
    (path / "run").chmod(0o755)
    with DataDir.own(path) as owned:
        assert (owned.path, owned.run, owned.logs) == (path, path / "run", path / "logs")
        assert mode(owned.run) == mode(owned.logs) == 0o700
        assert mode(path / "owner.lock") == 0o600
    fresh = tmp_path / "fresh"
    with DataDir.own(fresh):
        assert mode(fresh) == 0o700


def test_a_second_owner_is_told_who_the_first_is(tmp_path: Path) -> None:
    """Process and port; what the first has there is not touched."""
    with DataDir.own(tmp_path) as owned:
        with pytest.raises(DataDirInUse, match=rf"is in use by process {os.getpid()}; stop it"):
            DataDir.own(tmp_path)
        owned.say_port(1234)
        with pytest.raises(
            DataDirInUse, match=re.escape(f"{tmp_path} is in use by process {os.getpid()} on port 1234")
        ) as caught:
            DataDir.own(tmp_path)
        assert caught.value.holder == Holder(os.getpid(), 1234)
    with DataDir.own(tmp_path):
        pass


def test_who_only_looks_for_an_owner_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command or the watchdog shares the lock for a moment: a start waits for that, and not for ever."""
    DataDir.own(tmp_path).close()
    look = os.open(tmp_path / "owner.lock", os.O_RDONLY)
    fcntl.flock(look, fcntl.LOCK_SH)
    slept: list[float] = []
    monkeypatch.setattr("time.sleep", slept.append)
    with pytest.raises(DataDirInUse):
        DataDir.own(tmp_path)
    assert 0.5 < sum(slept) < 2
    monkeypatch.setattr("time.sleep", lambda _: os.close(look))
    with DataDir.own(tmp_path):
        assert owner_of(tmp_path) == Holder(os.getpid(), 0)


def test_a_command_that_owns_it_briefly_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that starts while somebody runs `check` would end with 4, and its service would stay down."""
    slept: list[float] = []
    monkeypatch.setattr("time.sleep", slept.append)
    looking = DataDir.own_or_visit(tmp_path)
    DataDir.own_or_visit(tmp_path).close()
    assert not slept, "its like does not wait, it visits"
    with pytest.raises(DataDirInUse):
        DataDir.own(tmp_path)
    assert 30 < sum(slept) < 120, "and not for ever"
    monkeypatch.setattr("time.sleep", lambda _: looking.close())
    with DataDir.own(tmp_path):
        assert owner_of(tmp_path) == Holder(os.getpid(), 0)


@pytest.mark.parametrize("said", [b"", b'{"pid": 1, "port": 1234, "host": "127.0.0.1", "briefly": false}'])
def test_an_owner_that_comes_or_goes_just_now_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: bytes
) -> None:
    """It has not said yet that it is brief, or says nothing any more; the file may name one that was killed."""
    DataDir.own(tmp_path).close()
    lock = os.open(tmp_path / "owner.lock", os.O_RDWR)
    fcntl.flock(lock, fcntl.LOCK_EX)
    os.pwrite(lock, said, 0)
    monkeypatch.setattr("time.sleep", lambda _: os.close(lock))
    with DataDir.own(tmp_path):
        assert owner_of(tmp_path) == Holder(os.getpid(), 0)


def test_a_look_at_the_end_of_a_long_wait_is_no_owner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long a command was waited for: who looks in the moment of its end is waited for, too."""
    looking = DataDir.own_or_visit(tmp_path)
    look = os.open(tmp_path / "owner.lock", os.O_RDONLY)
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 1000:
            looking.close()
            fcntl.flock(look, fcntl.LOCK_SH)
        elif len(slept) == 1010:
            os.close(look)

    monkeypatch.setattr("time.sleep", sleep)
    with DataDir.own(tmp_path):
        assert len(slept) == 1010


@pytest.mark.parametrize("said", [b"", b"{", b"5", b'{"pid": 1}', b'{"pid": null, "port": 2}', b"\xff"])
def test_a_holder_that_has_not_said_who_it_is_is_still_a_holder(tmp_path: Path, said: bytes) -> None:
    """Read in the middle of its writing: another process."""
    with DataDir.own(tmp_path):
        (tmp_path / "owner.lock").write_bytes(said)
        with pytest.raises(DataDirInUse, match="in use by another process; stop it") as caught:
            DataDir.own(tmp_path)
    assert caught.value.holder == Holder()


def test_the_holders_name_goes_with_it(tmp_path: Path) -> None:
    """Closed, the lock's file stays and says nothing."""
    with DataDir.own(tmp_path) as owned:
        owned.say_port(80)
        assert json.loads((tmp_path / "owner.lock").read_bytes()) == {
            "pid": os.getpid(),
            "port": 80,
            "host": "127.0.0.1",
            "briefly": False,
        }
    assert (tmp_path / "owner.lock").read_bytes() == b""


OWNER = """
import sys, signal
from pathlib import Path
from gridsched.settings.paths import DataDir
owned = DataDir.own(Path(sys.argv[1]))
owned.say_port(5)
print("owned", flush=True)
signal.pause()
"""


@pytest.mark.slow
def test_a_killed_owner_owns_nothing(tmp_path: Path) -> None:
    """The lock ends with its process; what it said is not believed afterwards."""
    with subprocess.Popen([sys.executable, "-c", OWNER, str(tmp_path)], stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == "owned\n"
        with pytest.raises(DataDirInUse) as caught:
            DataDir.own(tmp_path)
        owner.send_signal(signal.SIGKILL)
    assert caught.value.holder == Holder(owner.pid, 5)
    with DataDir.own(tmp_path) as owned:
        assert owned.path == tmp_path


def test_a_symbolic_link_is_refused(tmp_path: Path) -> None:
    """The directory itself, what lies in it, and a link to nowhere."""
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    (tmp_path / "nowhere").symlink_to(tmp_path / "nothing")
    assert refusal(tmp_path / "link") == f"{tmp_path}/link is a symbolic link; name the directory itself"
    assert "is a symbolic link" in refusal(tmp_path / "nowhere")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "run").symlink_to(tmp_path / "real")
    assert refusal(tmp_path / "data").startswith(f"{tmp_path}/data/run is a symbolic link")
    (tmp_path / "locked").mkdir()
    (tmp_path / "locked" / "owner.lock").symlink_to(tmp_path / "real")
    assert "cannot be used: " in refusal(tmp_path / "locked")


def test_a_refused_directory_is_not_left_locked(tmp_path: Path) -> None:
    """Once what was wrong is mended, it can be owned."""
    (tmp_path / "run").touch()
    assert refusal(tmp_path) == (
        f"the data directory {tmp_path} cannot be used: File exists; choose another with --data-dir"
    )
    (tmp_path / "run").unlink()
    with DataDir.own(tmp_path) as owned:
        assert owned.run.is_dir()


def test_a_directory_that_everyone_may_write_to_is_refused(tmp_path: Path) -> None:
    """Another user could put a socket of theirs in our place."""
    tmp_path.chmod(0o777)
    assert "every user may write to" in refusal(tmp_path)


def test_another_users_directory_is_refused(tmp_path: Path) -> None:
    """Not even root shares one."""
    path = Path("/usr")  # root's; root itself gives a directory away instead
    if os.geteuid() == 0:
        path = tmp_path
        os.chown(path, 12345, -1)
    assert f"{path} belongs to another user (uid {path.stat().st_uid})" in refusal(path)


def test_a_file_in_its_place_is_refused(tmp_path: Path) -> None:
    """With the system's reason."""
    (tmp_path / "file").touch()
    assert "cannot be used: File exists" in refusal(tmp_path / "file")
    assert "cannot be used: Not a directory" in refusal(tmp_path / "file" / "under")
