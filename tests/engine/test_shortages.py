"""No descriptor and no thread to be had: it costs the one process that wanted them, and nothing is left of it."""

import errno
import os
import resource
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from gridsched.core.events import FailureCause
from gridsched.engine.address import Listener, free_port, listener
from gridsched.engine.causes import not_started
from gridsched.engine.child import Child, Spawner
from gridsched.engine.logs import RotatedLog
from gridsched.threads import SHORTAGE_RETRY_SECONDS, begin, in_thread
from tests.engine.conftest import ONE, PATIENCE_SECONDS, Bench

MOST_NEEDED = 8
"""Descriptors that a spawn takes at once, and some more."""


@contextmanager
def only(spare: int) -> Iterator[None]:
    """As if this process might open so many more files."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = (number for number in range(limits[0]) if not Path(f"/proc/self/fd/{number}").is_symlink())
    for _ in range(spare):
        next(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (next(free), limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def no_thread(_: threading.Thread) -> None:
    """What a thread's start does at the limit of processes."""
    raise RuntimeError("can't start new thread")


@pytest.mark.slow
@pytest.mark.usefixtures("leak_free")
async def test_a_process_that_cannot_be_watched_for_want_of_descriptors_is_none(tmp_path: Path) -> None:
    """However many there are: it runs and is ended as ever, or it is refused and nothing is left."""
    started = []
    for spare in range(MOST_NEEDED):
        with suppress(OSError), only(spare):
            started.append(await Child.spawn(["/bin/sleep", "60"], {}, RotatedLog(tmp_path / "x.log")))
        for child in started[-1:]:
            assert await child.end(PATIENCE_SECONDS) < 0
    assert 0 < len(started) < MOST_NEEDED


@pytest.mark.usefixtures("leak_free")
async def test_a_process_that_cannot_be_read_for_want_of_a_thread_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error that a start can have, and no thread's and no server's end."""
    monkeypatch.setattr(threading.Thread, "start", no_thread)
    with pytest.raises(OSError, match="temporarily unavailable") as caught:
        await Child.spawn(["/bin/sleep", "60"], {}, RotatedLog(tmp_path / "x.log"))
    assert caught.value.errno == errno.EAGAIN


def test_the_thread_that_forks_may_be_the_one_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """A first load that the reader of its output left no thread for is a failed load, too, and not the server's end."""
    monkeypatch.setattr(threading.Thread, "start", no_thread)
    with pytest.raises(OSError, match="for one more thread"):
        Spawner()


async def test_the_server_goes_on_when_no_process_can_be_read(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is a failed load, worth another try soon; the next process starts as ever."""
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", no_thread)
        failure = (await bench.run_to_the_end(bench.launch())).failure
    assert failure is not None
    assert failure.cause is FailureCause.CRASHED
    assert failure.message == "no process can be started: Resource temporarily unavailable, for one more thread"
    bench.events.clear()
    async with bench.running(bench.launch()):
        pass


async def test_work_waits_until_there_is_a_thread_for_it(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    """At the limit of processes nobody fails; what work itself raises is its own."""
    assert autojump_clock.autojump_threshold == 0
    real, refused = trio.to_thread.run_sync, [1, 2, 3]

    async def sometimes(work: object, **how: object) -> object:
        if refused:
            refused.pop()
            raise RuntimeError("can't start new thread")
        return await real(work, **how)  # type: ignore[arg-type,call-overload]  # as it came

    def bad() -> None:
        raise RuntimeError("of its own")

    monkeypatch.setattr(trio.to_thread, "run_sync", sometimes)
    assert await in_thread(os.getpid) == os.getpid()
    assert trio.current_time() == pytest.approx(3 * SHORTAGE_RETRY_SECONDS)
    with pytest.raises(RuntimeError, match="of its own"):
        await in_thread(bad)


def test_a_thread_that_cannot_begin_is_an_error_of_the_system(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a process that cannot is."""
    monkeypatch.setattr(threading.Thread, "start", no_thread)
    with pytest.raises(BlockingIOError):
        begin(threading.Thread())


@pytest.mark.parametrize(
    ("error", "cause", "words"),
    [
        (OSError(errno.EMFILE, "Too many open files", "/dev/null"), FailureCause.CRASHED, "Too many open files"),
        (OSError(errno.EEXIST, "File exists", "/x/run"), FailureCause.CRASHED, "[Errno 17] File exists: '/x/run'"),
        (OSError(errno.E2BIG, "Argument list too long"), FailureCause.BAD_FLAGS, "[Errno 7] Argument list too long"),
        (ValueError("embedded null byte"), FailureCause.BAD_FLAGS, "embedded null byte"),
    ],
)
def test_P6a_only_what_a_person_has_written_is_the_flags_fault(
    error: OSError | ValueError, cause: FailureCause, words: str
) -> None:
    """What the system lacks is tried again soon, and told without a file that has nothing to do with it."""
    failure = not_started(error)
    assert failure.cause is cause
    assert failure.message == f"no process can be started: {words}"


async def test_B13_who_listens_is_not_guessed_without_descriptors() -> None:
    """A port is nobody else's because nothing could be read."""
    number = free_port()
    with only(0), pytest.raises(OSError, match="Too many open files"):
        listener(number, os.getpgrp())
    assert listener(number, os.getpgrp()) is Listener.NOBODY


@pytest.mark.parametrize("becomes", ["nothing", "a file"])
async def test_a_process_ends_as_ever_whatever_has_become_of_its_sockets_folder(
    bench: Bench, tmp_path: Path, becomes: str
) -> None:
    """Somebody has tidied up, or the file system has: the server ends for none of it."""
    async with bench.running(bench.launch()):
        shutil.rmtree(tmp_path / "run")
        if becomes == "a file":
            (tmp_path / "run").write_text("x", encoding="utf-8")
    assert bench.exit().failure is None
    assert bench.exit().instance_id == ONE
