"""The verdict: not running, starting, serving, wedged, and which half stands; whatever the files hold."""

import fcntl
import json
import os
import platform
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from gridsched.engine.identity import ProcessId as TheirProcessId
from gridsched.settings.paths import DataDir
from gridsched.watchdog.front import NoAnswer, ask
from gridsched.watchdog.places import Places
from gridsched.watchdog.processes import ProcessId, alive, identify, send, state_of, wait_gone
from gridsched.watchdog.watch import State, Verdict, Watch, owner_of, read_beat
from tests.watchdog.conftest import NO_PATIENCE_SECONDS, until

Start = Callable[[str], subprocess.Popen[bytes]]


@pytest.fixture
def held(places: Places) -> Iterator[int]:
    """The lock, held by this process as by a gateway of another version: no heartbeat, no port."""
    descriptor = os.open(places.lock, os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    yield descriptor
    os.close(descriptor)


def test_nobody_runs_where_nobody_holds_the_lock(places: Places) -> None:
    """A file that is left over says nothing. Nor does it begin anew with each question since when that is so."""
    watch = Watch(places, 30.0)
    assert watch.look().state is State.NOT_RUNNING
    since = watch.last().since
    places.lock.write_text(json.dumps({"pid": os.getpid(), "port": 1234}), encoding="utf-8")
    assert watch.look().state is State.NOT_RUNNING
    assert watch.last().since == since


def test_a_gateway_that_beats_and_answers_serves(places: Places, stranger: Start) -> None:
    """Who, where, since when; and what it says of itself."""
    process = stranger("")
    watch = Watch(places, 30.0)
    until(lambda: watch.look().healthy and watch.last().beat)
    said = watch.last().told()
    assert (said["state"], said["answering"], said["pid"]) == ("serving", True, process.pid)
    assert said["health"]["can_serve"] is True
    assert said["heartbeat"]["age_seconds"] < 30
    since = watch.last().since
    assert watch.look().since == since, "the same state goes on"


@pytest.mark.slow
def test_a_scheduler_that_stands_is_told_from_a_front_that_stands(places: Places, stranger: Start) -> None:
    """No heartbeat, though it answers; then none of both, because it was stopped by a signal."""
    process = stranger("faint")
    watch = Watch(places, 0.3)
    until(lambda: watch.look().state is State.WEDGED)
    verdict = watch.last()
    assert verdict.half == "scheduler"
    assert "has not beaten" in verdict.sentence
    assert time.time() - verdict.since >= 0.3, "since the last beat"
    os.kill(process.pid, signal.SIGSTOP)
    until(lambda: "stopped by a signal" in watch.look().sentence)
    assert watch.last().told()["stands"] == "scheduler"


def test_a_gateway_that_says_no_port_yet_is_starting(places: Places, held: int) -> None:
    """Also where the lock's file is empty, because its owner is in the middle of saying so."""
    watch = Watch(places, 30.0)
    for said in (b"", b'{"pid": 1', b'{"pid": -5, "port": 0}', b"[]", b"\xff" * 300, b'{"pid": 99999999999999999999}'):
        os.ftruncate(held, 0)
        os.pwrite(held, said, 0)
        assert watch.look().state is State.STARTING
    assert owner_of(places) is not None


def test_a_command_that_looks_around_is_no_gateway(places: Places) -> None:
    """`check` owns the data directory for a moment: it is not ended for a restart, and what is started is no second
    `check`. Whoever comes after one that was killed is known by the lock."""
    with DataDir.own_or_visit(places.data):
        assert Watch(places, 30.0).look().state is State.NOT_RUNNING
        places.lock.write_text(json.dumps({"pid": os.getppid(), "port": 0, "briefly": True}), encoding="utf-8")
        assert Watch(places, 30.0).look().state is State.STARTING


def test_the_owner_is_found_by_its_lock_whatever_the_file_says(places: Places, stranger: Start) -> None:
    """Another process's number in the file makes nobody else the owner: that one would be signalled."""
    process = stranger("")
    places.lock.write_text(json.dumps({"pid": os.getppid(), "port": 1}), encoding="utf-8")
    owner = owner_of(places)
    assert owner is not None
    assert owner.process == identify(process.pid)


def test_a_gateway_whose_lock_was_removed_is_still_known(places: Places, stranger: Start) -> None:
    """Also with its whole data directory: it serves on, and a second one must not be started beside it."""
    process = stranger("silent")
    port = json.loads(places.lock.read_text(encoding="utf-8"))["port"]
    places.lock.unlink()
    owner = owner_of(places)
    assert owner is not None
    assert (owner.process, owner.port) == (identify(process.pid), port)
    (places.cwd / "link").symlink_to(places.cwd)
    assert owner_of(replace(places, data=places.cwd / "link" / "data")) == owner, "by whatever way it was named"
    shutil.rmtree(places.data)
    assert owner_of(places) == owner
    assert Watch(places, 30.0).look().state is State.SERVING
    process.kill()
    process.wait()
    assert owner_of(places) is None


@pytest.mark.slow
def test_a_front_that_answers_with_errors_stands(places: Places, stranger: Start) -> None:
    """An answer proves nothing when it says that nothing works."""
    stranger("sick")
    watch = Watch(places, 0.3)
    until(lambda: watch.look().half == "front" and "its answer is an error, 500" in watch.last().sentence)
    assert not watch.last().healthy


def test_many_who_ask_at_once_share_a_look(places: Places, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a front that is deaf each look takes seconds: who asks waits for the one under way and for one more."""
    watch, looks, goes_on = Watch(places, 30.0), [], threading.Event()
    waiting = threading.Semaphore(0)

    class Counted:
        """The lock, which says that somebody comes."""

        def __init__(self) -> None:
            self._lock = threading.Lock()

        def __enter__(self) -> None:
            waiting.release()
            self._lock.acquire()

        def __exit__(self, *_: object) -> None:
            self._lock.release()

    def judge(_: object) -> Verdict:
        looks.append(1)
        assert goes_on.wait(60)
        return Verdict(State.NOT_RUNNING, f"look {len(looks)}")

    monkeypatch.setattr(watch, "_lock", Counted())
    monkeypatch.setattr(watch, "_judge", judge)
    told: list[str] = []
    askers = [threading.Thread(target=lambda: told.append(watch.look().sentence)) for _ in range(6)]
    askers[0].start()
    until(lambda: looks)
    for asker in askers[1:]:
        asker.start()
    for _ in askers:
        assert waiting.acquire(timeout=60)
    goes_on.set()
    for asker in askers:
        asker.join()
    assert sorted(told) == ["look 1", *["look 2"] * 5]


@pytest.mark.parametrize(
    "said",
    [
        "",
        "{",
        "[]",
        '{"pid": 1, "start_ticks": 1}',
        '{"pid": 12, "start_ticks": "x"}',
        '{"pid": true, "start_ticks": 3}',
    ],
)
def test_a_damaged_heartbeat_is_none(tmp_path: Path, said: str) -> None:
    """Nothing is known by it, and nothing ends."""
    (tmp_path / "heartbeat").write_text(said, encoding="utf-8")
    assert read_beat(tmp_path / "heartbeat", time.monotonic) is None


def test_a_heartbeat_is_read_as_far_as_it_makes_sense(tmp_path: Path) -> None:
    """Strange values are left out; a pipe, a link and a huge file are no heartbeat, and are not waited for."""
    path = tmp_path / "heartbeat"
    said = {"pid": 12, "start_ticks": 3, "seq": -4, "phase": ["x"] * 50, "port": "x", "monotonic": None, "wall": 1e300}
    path.write_text(json.dumps(said), encoding="utf-8")
    beat = read_beat(path, time.monotonic)
    assert beat is not None
    assert (beat.seq, beat.port, beat.age_seconds) == (0, 0, None)
    path.unlink()
    os.mkfifo(path)
    assert read_beat(path, time.monotonic) is None
    path.unlink()
    path.symlink_to("/dev/zero")
    assert read_beat(path, time.monotonic) is None
    path.unlink()
    with path.open("wb") as file:
        file.truncate(10**9)
    assert read_beat(path, time.monotonic) is None


def test_a_clock_that_is_set_makes_nothing_wedged(tmp_path: Path) -> None:
    """The age of a beat is told by the clock that nobody sets."""
    path = tmp_path / "heartbeat"
    said = {"pid": 12, "start_ticks": 3, "seq": 4, "wall": 1.0, "monotonic": 100.0}
    path.write_text(json.dumps(said), encoding="utf-8")
    beat = read_beat(path, lambda: 101.5)
    assert beat is not None
    assert beat.age_seconds == 1.5


def test_P4_no_signal_reaches_whoever_has_the_number_now() -> None:
    """A process with another start time is another one."""
    with subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE) as process:
        real = identify(process.pid)
        assert real is not None
        earlier = ProcessId(real.pid, real.start_ticks - 1)
        assert not send(earlier, signal.SIGKILL)
        assert not send(ProcessId(1, 0), signal.SIGTERM)
        assert not alive(earlier)
        assert alive(real)
        assert send(real, signal.SIGKILL)


def test_a_process_lives_until_its_last_thread_has_ended() -> None:
    """Its first thread is a zombie already; the others hold its locks and ports, and nobody can reap it."""
    ends = 93 if platform.machine() == "aarch64" else 60  # the system call that ends one thread
    program = f"import threading, ctypes; threading.Thread(target=input).start(); ctypes.CDLL(None).syscall({ends}, 0)"
    with subprocess.Popen([sys.executable, "-S", "-c", program], stdin=subprocess.PIPE) as process:
        real, theirs = identify(process.pid), TheirProcessId.of_child(process.pid)
        assert real is not None
        until(lambda: state_of(real) == "Z")
        assert alive(real)
        assert theirs.alive()
        assert identify(process.pid) == real
        assert wait_gone([real], 0.01) == [real]
        assert send(real, signal.SIGKILL)
        assert not wait_gone([real], NO_PATIENCE_SECONDS)
        assert process.poll() == -signal.SIGKILL, "who is said to be gone can be reaped"
        assert not theirs.alive()


def test_a_gateway_that_answers_a_byte_at_a_time_is_not_waited_for() -> None:
    """One question takes as long as it is told it may, whatever comes back."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        stop = threading.Event()

        def drip() -> None:
            connection = server.accept()[0]
            with connection, suppress(OSError):
                while not stop.wait(0.02):
                    connection.sendall(b"H")

        thread = threading.Thread(target=drip)
        thread.start()
        with pytest.raises(NoAnswer, match=r"no answer within 0\.2 s"):
            ask("127.0.0.1", server.getsockname()[1], "GET", "/health", 0.2)
        stop.set()
        thread.join()
