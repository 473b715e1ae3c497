"""What a service manager hears, over a real datagram socket."""

import os
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from gridsched.core.ids import DeviceName, ModelName
from gridsched.core.job import JobClass
from gridsched.core.snapshot import DeviceView, Snapshot
from gridsched.service.notify import LONGEST_STATUS, TAKEN, Manager
from gridsched.service.words import summary
from tests.service.manager import Ear, listening

DEVICE = DeviceView(DeviceName("gpu0"), 1, 0, 0, 0, 0, 0, 0, interactive_mode=False, pressure=False)
NOBODY = dict.fromkeys(JobClass, 0)
IDLE = Snapshot(0.0, (DEVICE,), (), NOBODY, NOBODY, {}, draining=False)


def test_the_variables_are_taken_out_of_the_environment() -> None:
    """No child inherits them, used or not; the others stay."""
    environ = dict.fromkeys(TAKEN, "1") | {"PATH": "/bin", "INVOCATION_ID": "a"}
    Manager.taken_from(environ)
    assert environ == {"PATH": "/bin", "INVOCATION_ID": "a"}


@pytest.mark.parametrize("abstract", [False, True])
def test_each_word_is_a_datagram(tmp_path: Path, abstract: bool) -> None:
    """By a path or an abstract name: ready, status where it has changed, beats, the end with its limit."""
    ear = Ear(f"@gridsched-test-{os.getpid()}" if abstract else str(tmp_path / "notify"))
    with Manager.taken_from({"NOTIFY_SOCKET": ear.address, "WATCHDOG_USEC": "30000000"}) as manager:
        manager.ready()
        manager.status("one\nline")
        manager.status("one line")
        manager.beat()
        manager.stopping(46.5)
    words = [ear.hear() for _ in range(5)]
    ear.close()
    assert words[:3] == [{"READY": "1"}, {"STATUS": "one line"}, {"WATCHDOG": "1"}]
    assert words[3:] == [{"STOPPING": "1", "EXTEND_TIMEOUT_USEC": "46500000"}, None]


@pytest.mark.parametrize("environ", [{}, {"WATCHDOG_USEC": "1", "WATCHDOG_PID": "1"}])
def test_beats_are_for_who_watches_this_process(tmp_path: Path, environ: dict[str, str]) -> None:
    """A manager that watches nobody, or another process, hears none."""
    with listening(tmp_path) as ear, Manager.taken_from({"NOTIFY_SOCKET": ear.address, **environ}) as manager:
        manager.beat()
        assert ear.hear() is None


@pytest.mark.parametrize("address", ["", "relative", "vsock:2:1", "/nowhere/notify", "/" + "x" * 200, "/a\0b", "@"])
def test_without_a_manager_nothing_is_said_and_nothing_raised(address: str) -> None:
    """No variable, none that is understood, nobody there, a path that cannot be."""
    with Manager.taken_from({"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "1"}) as manager:
        for _ in range(3):
            manager.ready()
            manager.beat()
            manager.status("well")
            manager.stopping(1.0)
        assert bool(manager._owed) == (address[:1] in ("/", "@"))


def test_what_could_not_be_said_goes_with_the_next_word(tmp_path: Path) -> None:
    """The manager's queue is full, or it starts anew: ready is not lost, and nothing waits for it."""
    with Manager(str(tmp_path / "notify"), watches=True) as manager, ExitStack() as ends:
        manager.ready()
        manager.status("old")
        ear = ends.enter_context(listening(tmp_path))
        manager.status("new")
        assert ear.hear() == {"READY": "1", "STATUS": "new"}
        count = 0
        while not manager._owed:
            manager.beat()
            count += 1
            assert count < 10_000
        heard = 0
        while ear.hear() is not None:
            heard += 1
        manager.stopping(1.0)
        assert heard == count - 1
        assert ear.hear() == {"WATCHDOG": "1", "STOPPING": "1", "EXTEND_TIMEOUT_USEC": "1000000"}


def test_the_sentence_says_what_is_wrong_first() -> None:
    """Then what is loaded and who runs and waits; one that is too long is cut."""
    assert summary(IDLE) == "no model is loaded; no requests run, none wait"
    lost = replace(DEVICE, lost_since_seconds=1.0, lost_why="the driver has lost it")
    ill = replace(IDLE, devices=(lost,), failed={ModelName(name): (1.0, "") for name in "ba"}, draining=True)
    busy = replace(ill, running={**NOBODY, JobClass.BATCH: 1}, queue_lengths={**NOBODY, JobClass.INTERACTIVE: 1})
    assert summary(busy) == (
        "gpu0 is lost: the driver has lost it; failed: a, b; no new request is taken; no model is loaded; "
        "1 request runs, 1 waits"
    )


def test_a_long_sentence_is_cut(tmp_path: Path) -> None:
    """At a length that fits a line or two."""
    with listening(tmp_path) as ear, Manager(ear.address) as manager:
        manager.status("x" * 1000)
        assert ear.hear() == {"STATUS": "x" * LONGEST_STATUS}
