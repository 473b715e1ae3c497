"""Which process is meant: by number, start and boot (P4), and whose it is: by the token that engines carry.

Owns both formats. Must never send a signal to a number alone: a number passes to another process when its owner has
been reaped, so what is signalled is a descriptor, opened first and held against the process's start afterwards.
"""

import os
import re
import select
import signal
import time
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
NAME, STATE, PARENT, THREADS, START_TICKS, MEMORY = 0, 1, 2, 18, 20, 21
CODE_START, ENVIRONMENT_START, ENVIRONMENT_END = 24, 48, 49
"""Places in /proc/PID/stat, counted from the name."""

VARIABLE = "GRIDSCHED_ENGINE"
"""The environment variable that holds the token. Whatever an engine starts inherits it, also in another group."""

EXEC_SECONDS = 1.0
EXEC_LOOK_SECONDS = 0.0005
"""How long one process may take to become another program, and between two looks at it."""

_TOKEN = re.compile(r"1:(\d+-\d+):(\d+)-(\d+):([A-Za-z0-9-]{1,64})")


def boot_id(proc: Path = PROC) -> str:
    """The machine's present boot; empty where the system does not say."""
    try:
        return (proc / "sys/kernel/random/boot_id").read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""


def shows_us(proc: Path = PROC) -> bool:
    """Whether it is /proc of our own namespace of processes. Another's, as `unshare --pid` leaves it, shows other
    processes under the numbers that we know and signal them by."""
    try:
        return (proc / "self").readlink() == Path(str(os.getpid()))
    except OSError:
        return True  # a /proc of a test's


def stat_fields(pid: int, proc: Path = PROC) -> list[str] | None:
    """The fields of /proc/PID/stat from its name on; None when there is no such process."""
    try:
        text = (proc / str(pid) / "stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    before, _, after = text.rpartition(")")  # the name in brackets may hold anything, also brackets
    fields = [before.partition("(")[2], *after.split()]
    return fields if len(fields) > START_TICKS else None


def has_ended(fields: list[str]) -> bool:
    """Whether no thread of it is left. The first one may have ended before the others: it is then a zombie already,
    nobody can reap it, and the others still hold the locks, the ports and the memory."""
    return fields[STATE] in "ZX" and int(fields[THREADS]) <= 1


def start_ticks(pid: int, proc: Path = PROC) -> int | None:
    """When a process started, in clock ticks since boot; None when it is not there."""
    fields = stat_fields(pid, proc)
    return int(fields[START_TICKS]) if fields is not None else None


@dataclass(frozen=True, slots=True)
class ProcessId:
    """One process, for good: its number, its start in clock ticks since boot, and the boot."""

    pid: int
    start_ticks: int
    boot_id: str

    @classmethod
    def of(cls, pid: int, proc: Path = PROC) -> "ProcessId | None":
        """The process that has this number now; None when there is none."""
        ticks = start_ticks(pid, proc) if shows_us(proc) else None
        return cls(pid, ticks, boot_id(proc)) if ticks is not None else None

    @classmethod
    def of_child(cls, pid: int) -> "ProcessId":
        """A child of ours that we have not reaped, or ourselves: its number is its own until then."""
        return cls.of(pid) or cls(pid, 0, "")  # without /proc nothing can be told of it, and no other will match

    def alive(self, proc: Path = PROC) -> bool:
        """Whether this very process runs; one that has ended and was not reaped does not."""
        fields = stat_fields(self.pid, proc)
        return (
            fields is not None
            and shows_us(proc)
            and int(fields[START_TICKS]) == self.start_ticks
            and not has_ended(fields)
            and boot_id(proc) == self.boot_id
        )

    def open(self) -> int | None:
        """A descriptor of this very process, to be closed by the caller; None when it is gone. Readable at its end."""
        try:
            pidfd = os.pidfd_open(self.pid)
        except (OSError, OverflowError):
            return None
        if self.alive():
            return pidfd
        os.close(pidfd)
        return None

    def ends_within(self, seconds: float) -> bool:
        """Whether it is gone by then; waits no longer than for that."""
        pidfd = self.open()
        if pidfd is None:
            return True
        try:
            poll = select.poll()
            poll.register(pidfd, select.POLLIN)
            return bool(poll.poll(seconds * 1000))
        finally:
            os.close(pidfd)

    def signal(self, number: signal.Signals) -> bool:
        """Send a signal to it alone. False when it is gone. Raises PermissionError for somebody else's."""
        pidfd = self.open()
        if pidfd is None:
            return False
        try:
            signal.pidfd_send_signal(pidfd, number)
        except ProcessLookupError:
            return False
        finally:
            os.close(pidfd)
        return True


@dataclass(frozen=True, slots=True)
class Token:
    """Whose an engine's process is: `directory` names the data directory, the owner is the server that spawned it, and
    `spawn` is the tag of this spawn. As text: `1:DEVICE-INODE:PID-STARTTICKS:SPAWN`."""

    directory: str
    owner_pid: int
    owner_start_ticks: int
    spawn: str

    def __str__(self) -> str:
        return f"1:{self.directory}:{self.owner_pid}-{self.owner_start_ticks}:{self.spawn}"

    @classmethod
    def of(cls, pid: int, proc: Path = PROC) -> "Token | None":
        """What a process carries; None where that is nothing, or where it is another user's."""
        try:
            words = _environment(pid, proc).split(b"\0")
        except OSError:
            return None
        name = VARIABLE.encode() + b"="
        found = next((word for word in words if word.startswith(name)), name)
        return cls.read(found[len(name) :].decode("ascii", "replace"))

    @classmethod
    def read(cls, text: str) -> "Token | None":
        """From its text; None for anything else."""
        found = _TOKEN.fullmatch(text)
        return cls(found[1], int(found[2]), int(found[3]), found[4]) if found else None


def _environment(pid: int, proc: Path) -> bytes:
    """What a process was started with. One that is becoming another program has memory and no environment for a moment:
    it is looked at until it has. Raises OSError."""
    until = time.monotonic() + EXEC_SECONDS
    while not (found := (proc / str(pid) / "environ").read_bytes()) and time.monotonic() < until:
        fields = stat_fields(pid, proc) or []
        if len(fields) <= ENVIRONMENT_END or fields[MEMORY] == "0":
            break  # of the kernel, or at its end
        if fields[CODE_START] != "0" and fields[ENVIRONMENT_START] == fields[ENVIRONMENT_END]:
            break  # it has none: the code's place is told last
        time.sleep(EXEC_LOOK_SECONDS)
    return found


def directory_id(path: Path) -> str:
    """What a token calls a data directory: its device and inode, which need no file of their own. Raises OSError."""
    found = path.stat()
    return f"{found.st_dev}-{found.st_ino}"
