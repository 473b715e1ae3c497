"""P2 and P4: a child never outlives us, is named for good, and is forked where the kernel needs it to be."""

import errno
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from gridsched.engine.child import KILLED_SECONDS, Child, spawner
from gridsched.engine.identity import start_ticks
from gridsched.engine.logs import RotatedLog
from tests.engine.conftest import PATIENCE_SECONDS

pytestmark = pytest.mark.usefixtures("leak_free")

# A server in miniature: starts a child as the engine folder does, says its number, and stays.
PARENT = """
import sys, trio
from pathlib import Path
from gridsched.engine.child import Child
from gridsched.engine.logs import RotatedLog

async def main():
    child = await Child.spawn(["/bin/sleep", "60"], {}, RotatedLog(Path(sys.argv[1])))
    print(child.pid, flush=True)
    await trio.sleep_forever()

trio.run(main)
"""


def forked_by(thread: threading.Thread) -> list[str]:
    """The children of one thread, as the kernel keeps them."""
    return Path(f"/proc/self/task/{thread.native_id}/children").read_text(encoding="ascii").split()


@pytest.mark.slow
async def test_P2_kill_9_of_the_parent_leaves_no_child(tmp_path: Path) -> None:
    """Nobody is left to tidy up: the kernel does."""
    argv = [sys.executable, "-c", PARENT, str(tmp_path / "x.log")]
    parent = subprocess.Popen(argv, stdout=subprocess.PIPE)  # noqa: ASYNC220 - a server of its own, to be killed
    assert parent.stdout is not None
    with parent, trio.fail_after(PATIENCE_SECONDS):
        pid = int(await trio.to_thread.run_sync(parent.stdout.readline))
        watch = os.pidfd_open(pid)
        parent.kill()
        await trio.lowlevel.wait_readable(watch)  # ready when that process has ended
        os.close(watch)
    assert parent.returncode == -signal.SIGKILL


async def test_B25_children_are_forked_on_a_thread_that_does_not_end(tmp_path: Path) -> None:
    """The parent-death signal follows the thread that forked; trio's worker threads end after ten idle seconds."""
    child = await Child.spawn(["/bin/sleep", "60"], {}, RotatedLog(tmp_path / "x.log"))
    thread = spawner().thread
    assert str(child.pid) in forked_by(thread)
    assert thread.is_alive()
    assert thread.daemon
    assert await child.end(PATIENCE_SECONDS) == -signal.SIGTERM


async def test_a_child_has_a_group_of_its_own_and_is_signalled_with_it(tmp_path: Path) -> None:
    """Ctrl-C in a terminal reaches us, not the engines; an end reaches what they started."""
    line = "sleep 60 & echo $!; trap '' TERM; wait"
    log = RotatedLog(tmp_path / "x.log")
    child = await Child.spawn(["/bin/sh", "-c", line], {}, log)
    with trio.fail_after(PATIENCE_SECONDS):
        while not child.tail():  # noqa: ASYNC110 - a thread fills it
            await trio.sleep(0.01)
        grandchild = os.pidfd_open(int(child.tail()[0]))
        assert os.getpgid(child.pid) == child.pid != os.getpgrp()
        await child.end(0.05)
        await trio.lowlevel.wait_readable(grandchild)
        os.close(grandchild)


async def test_P8_a_child_is_asked_to_end_once(tmp_path: Path) -> None:
    """However often we are: an engine that is asked twice exits inside its signal handler, and may hang there."""
    script = "trap 'echo asked' TERM; echo there; while [ ! -e stop ]; do sleep 0.02; done"
    child = await Child.spawn(["/bin/sh", "-c", f"cd {tmp_path}; {script}"], {}, RotatedLog(tmp_path / "x.log"))
    with trio.fail_after(PATIENCE_SECONDS):
        for awaited in ("there", "asked"):
            while awaited not in child.tail():  # noqa: ASYNC110 - a thread fills it
                await trio.sleep(0.01)
            child.terminate()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(child.end, PATIENCE_SECONDS)
            await trio.sleep(0.05)
            (tmp_path / "stop").touch()
    assert child.returncode == 0
    assert child.tail().count("asked") == 1


def not_heard(*_: object) -> None:
    """A signal to a process that the kernel holds: taken, and to no effect."""


def not_allowed(*_: object) -> None:
    """A signal to another user's process."""
    raise PermissionError(errno.EPERM, "Operation not permitted")


@pytest.mark.parametrize("sent", [not_heard, not_allowed])
async def test_P8_a_process_that_no_signal_ends_holds_nobody_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock, sent: Callable[..., None]
) -> None:
    """As one that hangs in a driver: the server still ends, a grace and a while after it was first asked."""
    child = await Child.spawn(["/bin/sleep", "60"], {}, RotatedLog(tmp_path / "x.log"))
    with monkeypatch.context() as patched:
        patched.setattr(os, "killpg", sent)
        began = autojump_clock.current_time()
        child.terminate()
        await trio.sleep(6.0)
        assert await child.end(10.0) == -signal.SIGKILL
        assert autojump_clock.current_time() - began == 10.0 + KILLED_SECONDS
        assert not child.exited
    os.kill(child.pid, signal.SIGKILL)
    await child.wait()
    assert await child.end(0.0) == -signal.SIGKILL


@pytest.mark.parametrize(("path", "status"), [("/nowhere/llama-server", 127), ("/etc/passwd", 126)])
async def test_a_program_that_cannot_be_executed_is_an_exit_with_a_sentence(
    tmp_path: Path, path: str, status: int
) -> None:
    """Not an exception: the process that was to become it ends."""
    child = await Child.spawn([path], {}, RotatedLog(tmp_path / "x.log"))
    with trio.fail_after(PATIENCE_SECONDS):
        await child.wait()
    assert await child.end(0) == status
    assert child.tail()[0].startswith(f"cannot execute {path}")


async def test_P4_no_signal_is_sent_after_the_process_was_reaped(tmp_path: Path) -> None:
    """Its number may belong to another by then."""
    child = await Child.spawn(["/bin/true"], {}, RotatedLog(tmp_path / "x.log"))
    with trio.fail_after(PATIENCE_SECONDS):
        await child.wait()
    assert await child.end(0) == 0
    child.signal(signal.SIGKILL)
    assert child.returncode == 0


def test_P4_a_process_is_named_by_its_number_and_its_start() -> None:
    """The start does not change, and there is none for a number that nobody has."""
    assert start_ticks(os.getpid()) == start_ticks(os.getpid())
    assert start_ticks(2**22 + 1) is None
