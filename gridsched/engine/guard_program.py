"""The guard: a small process that outlives the server by a moment and ends what the server has left (P2).

It is run by its path, by a bare interpreter: it imports nothing but the standard library, and nothing of ours. It reads
`+PID STARTTICKS` and `-PID` from its standard input, whose other end only the server holds: at its end the server is
gone, however that came. Then every process is killed that the server has left, until there is none, and the guard ends.

It must never end a process that is not proven to be the server's. There are two proofs: the group's leader is one that
the server has named, by number and start; or the process carries the token of this server in its environment, which a
wrapper's grandchildren inherit, in whatever group or session they are.
"""

import os
import select
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

LONGEST_SECONDS = 1.0
BETWEEN_SECONDS = 0.01
READ_BYTES = 65536
TOKEN_FIELDS, OWNER = 4, 2
GROUP, THREADS, START_TICKS = 2, 17, 19  # places in /proc/PID/stat, counted from the state


def listen(fd: int) -> dict[int, int]:
    """Take in what the server says until it is gone: the start of each living child's process, by number."""
    known: dict[int, int] = {}
    rest = b""
    while data := os.read(fd, READ_BYTES):
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            sign, words = line[:1], line[1:].split()
            if sign == b"+":
                known[int(words[0])] = int(words[1])
            else:
                known.pop(int(words[0]), None)
    return known


def stat_of(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from the state on; none when there is no such process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text("ascii", "replace")
    except OSError:
        return []
    return text.rpartition(")")[2].split()


def carries(pid: int, owner: bytes) -> bool:
    """Whether a process of our user has the server's token in its environment, `1:DIRECTORY:OWNER:SPAWN`. A directory
    may have another server's numbers, so only the owner's place is looked at."""
    try:
        folder = Path(f"/proc/{pid}")
        if folder.stat().st_uid != os.geteuid():
            return False  # root could read it, and anybody can write anything into their own environment
        words = (folder / "environ").read_bytes().split(b"\0")
    except OSError:
        return False
    token = next((word for word in words if word.startswith(b"GRIDSCHED_ENGINE=")), b"").split(b":")
    return len(token) == TOKEN_FIELDS and token[OWNER] == owner


def left_behind(known: dict[int, int], owner: bytes) -> Iterator[tuple[int, list[str]]]:
    """The living processes that the server has left, with what tells each from a later one of its number."""
    groups = {pid for pid, ticks in known.items() if stat_of(pid)[START_TICKS : START_TICKS + 1] == [str(ticks)]}
    for folder in Path("/proc").glob("[1-9]*"):
        pid = int(folder.name)
        fields = stat_of(pid)
        if not fields or pid == os.getpid() or (fields[0] in "ZX" and int(fields[THREADS]) <= 1):
            continue  # a zombie with threads is one whose first thread has ended: the others hold what it holds
        if int(fields[GROUP]) in groups or carries(pid, owner):
            yield pid, fields


def kill(pid: int, fields: list[str]) -> None:
    """End this very process, which may stand still: a kill needs no continue."""
    try:
        pidfd = os.pidfd_open(pid)
    except OSError:
        return
    try:
        if stat_of(pid)[START_TICKS : START_TICKS + 1] == [fields[START_TICKS]]:
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            select.select([pidfd], [], [], BETWEEN_SECONDS)
    except OSError:
        pass
    finally:
        os.close(pidfd)


def main(owner: str) -> None:
    """Wait for the server's end, then clean up. `owner` is its number and start, as tokens have them."""
    known = listen(0)
    if Path("/proc/self").readlink().name != str(os.getpid()):
        return  # /proc of another namespace of processes: its numbers are others' here
    until = time.monotonic() + LONGEST_SECONDS
    while time.monotonic() < until:
        left = list(left_behind(known, owner.encode()))
        if not left:
            break
        for pid, fields in left:
            kill(pid, fields)


if __name__ == "__main__":
    main(sys.argv[1])
