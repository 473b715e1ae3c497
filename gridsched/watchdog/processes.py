"""Processes that are not ours: who they are, what they say of themselves, and how they are ended.

A process is its pid *and* its start time. Must never send a signal to a pid alone: a pidfd is opened, the start time is
compared, and the signal goes through the pidfd, so that it cannot reach whoever has got the number since.
"""

import os
import select
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from os.path import samestat
from pathlib import Path

PROC = Path("/proc")
REAP_SECONDS = 5.0
"""After SIGKILL; a process that the kernel holds (state D) may stay for longer, and is then said to."""

_LARGEST_PID, _LARGEST = 2**22, 2**63

ASKED_SECONDS = 0.5
"""How often whoever waits is asked whether it is enough."""


@dataclass(frozen=True, slots=True)
class ProcessId:
    """A process for good: its number, and when it started, in clock ticks since boot."""

    pid: int
    start_ticks: int

    @classmethod
    def read(cls, said: object) -> "ProcessId | None":
        """As somebody has noted it; None for one that is nobody's, or the first one."""
        if not isinstance(said, dict):
            return None
        pid, ticks = said.get("pid"), said.get("start_ticks")
        if type(pid) is not int or type(ticks) is not int or not (1 < pid < _LARGEST_PID and 0 <= ticks < _LARGEST):
            return None
        return cls(pid, ticks)


def shows_us() -> bool:
    """Whether /proc is that of our own namespace of processes. Another's, as `unshare --pid` leaves it, shows others
    under the numbers that we would signal."""
    try:
        return (PROC / "self").readlink() == Path(str(os.getpid()))
    except OSError:
        return False


def identify(pid: int) -> ProcessId | None:
    """The process that has this number now; None for none, and for one that has ended and is not reaped."""
    fields = _stat(pid)
    return ProcessId(pid, int(fields[19])) if _runs(fields) else None


def state_of(process: ProcessId) -> str:
    """The kernel's letter (R, S, D, T …); empty when the process is gone."""
    fields = _stat(process.pid)
    return fields[0] if fields and int(fields[19]) == process.start_ticks else ""


def alive(process: ProcessId) -> bool:
    """Whether it runs, sleeps or stands."""
    fields = _stat(process.pid)
    return _runs(fields) and int(fields[19]) == process.start_ticks


def age_seconds(process: ProcessId) -> float:
    """How long ago it was started."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) - process.start_ticks / os.sysconf("SC_CLK_TCK")


def is_ours(pid: int) -> bool:
    """Whether the process is this user's."""
    try:
        return (PROC / str(pid)).stat().st_uid == os.geteuid()
    except OSError:
        return False


def pids() -> Iterator[int]:
    """Every number in use, but our own."""
    for name in os.listdir(PROC):  # noqa: PTH208 - names are all that is wanted, and there may be thousands
        if name.isdigit() and int(name) != os.getpid():
            yield int(name)


def words_of(pid: int, what: str) -> list[str]:
    """The NUL-separated words of `cmdline` or `environ`; none where they may not be read."""
    try:
        data = (PROC / str(pid) / what).read_bytes()
    except OSError:
        return []
    return [os.fsdecode(word) for word in data.split(b"\0") if word]


def environment_of(pid: int) -> dict[str, str]:
    """What a process was started with."""
    pairs = (word.partition("=") for word in words_of(pid, "environ"))
    return {name: value for name, equals, value in pairs if equals}


def folder_of(pid: int) -> Path | None:
    """Its current folder."""
    try:
        return (PROC / str(pid) / "cwd").readlink()
    except OSError:
        return None


def lock_held_by(pid: int, path: Path) -> Path | None:
    """The descriptor by which a process holds the lock of a file (flock), of one too that was removed since; None where
    it does not. Its own descriptors say so, nobody has to try."""
    try:
        wanted = path.stat() if path.exists() else None
        removed = f"{os.path.realpath(path)} (deleted)"  # as the kernel says it: no link on the way
        for link in (PROC / str(pid) / "fd").iterdir():
            with suppress(OSError):
                is_it = str(link.readlink()) == removed if wanted is None else samestat(link.stat(), wanted)
                if is_it and _is_locked_through(pid, link.name):
                    return link
    except OSError:
        return None
    return None


def _is_locked_through(pid: int, descriptor: str) -> bool:
    """Raises OSError."""
    told = (PROC / str(pid) / "fdinfo" / descriptor).read_text(encoding="ascii", errors="replace")
    return any(line.startswith("lock:") and "FLOCK" in line for line in told.splitlines())


def send(process: ProcessId, number: signal.Signals) -> bool:
    """Signal a process if it is still the one; whether it was sent. Never raises."""
    try:
        handle = os.pidfd_open(process.pid)
    except OSError:
        return False
    try:
        if process.pid <= 1 or not alive(process):
            return False
        signal.pidfd_send_signal(handle, number)
    except OSError:
        return False
    finally:
        os.close(handle)
    return True


def wait_gone(
    processes: Iterable[ProcessId], seconds: float, is_enough: Callable[[], bool] = lambda: False
) -> list[ProcessId]:
    """Wait until they have ended, by their pidfds; those that have not after `seconds`, or when that `is_enough`."""
    wanted, poll, waiting = [*processes], select.poll(), 0
    deadline = time.monotonic() + seconds
    with ExitStack() as opened:
        for process in wanted:
            with suppress(OSError):
                handle = os.pidfd_open(process.pid)
                opened.callback(os.close, handle)
                if alive(process):
                    poll.register(handle, select.POLLIN)
                    waiting += 1
        while waiting and not is_enough() and (left := deadline - time.monotonic()) > 0:
            for handle, _ in poll.poll(min(left, ASKED_SECONDS) * 1000):
                poll.unregister(handle)
                waiting -= 1
    return [process for process in wanted if alive(process)]  # also of those that could not be waited for


def end(
    processes: Iterable[ProcessId], grace_seconds: float, is_enough: Callable[[], bool] = lambda: False
) -> list[ProcessId]:
    """SIGTERM, to one that stands also SIGCONT so that it hears it; SIGKILL after the grace, or when somebody has had
    enough. Those that still live, also because they may not be signalled."""
    wanted = [*processes]
    for number in (signal.SIGTERM, signal.SIGCONT):
        for process in wanted:
            send(process, number)
    left = wait_gone(wanted, grace_seconds, is_enough)
    for process in left:
        send(process, signal.SIGKILL)
    return wait_gone(left, REAP_SECONDS) if left else []


def _runs(fields: list[str]) -> bool:
    """Whether any thread of it is left. The first one may have ended before the others: it is then a zombie already,
    nobody can reap it, and the others still hold the locks, the ports and the memory."""
    return bool(fields) and (fields[0] not in "ZX" or int(fields[17]) > 1)


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from the third on; the name before them may hold anything, also brackets."""
    try:
        told = (PROC / str(pid) / "stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return []
    return told.rpartition(")")[2].split()
