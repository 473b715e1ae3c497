"""Who was started by whom, and whether they have ended: for tests that must leave nobody behind."""

import os
import select
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


def children_of(pid: int | str) -> list[int]:
    """The living children of a process, of all its threads; a thread that ends meanwhile has none."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):
            found += map(int, (task / "children").read_text(encoding="ascii").split())
    return found


def engines_of(pid: int) -> list[int]:
    """The same without the guard, which every server has that has ever started an engine."""
    return [child for child in children_of(pid) if b"guard_program" not in _command_line(child)]


def gone(pidfds: list[int], seconds: float) -> bool:
    """Whether all of these processes end in that time."""
    until = time.monotonic() + seconds
    return all(select.select([fd], [], [], max(0.0, until - time.monotonic()))[0] for fd in pidfds)


@contextmanager
def watched(pids: list[int]) -> Iterator[list[int]]:
    """Descriptors of processes, which name them for good."""
    pidfds = [os.pidfd_open(pid) for pid in pids]
    try:
        yield pidfds
    finally:
        for pidfd in pidfds:
            os.close(pidfd)


def _command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""
