"""The server's heartbeat: once a second, and only as long as the one task that decides still does.

Owns what a beat says, and the file that whoever watches the server from outside reads. A beat is made when the actor
has stepped an event that was posted for it: a task that has ended, an actor that hangs and a loop that stands miss it.
Must never end the server: what cannot be written now is tried again a second later.
"""

import json
import os
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

import trio

from gridsched.engine.identity import start_ticks

BEAT_SECONDS = 1.0

FILE_BYTES = 512
"""Every beat is as long, so that it takes the place of the one before, on a full disk too."""


class Phase(Enum):
    """How far the server is between its start and its end."""

    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"


@dataclass(frozen=True, slots=True)
class Beat:
    """One heartbeat. `seq` counts from 1, `in_flight` are the requests that wait or run."""

    seq: int
    phase: Phase
    in_flight: int


Listener = Callable[[Beat], None]
"""Is told each beat, in the trio thread: it must not wait."""


async def heartbeat(
    pulse: Callable[[], Awaitable[None]], phase: Callable[[], Phase], in_flight: Callable[[], int], told: Listener
) -> None:
    """Beat until cancelled: `pulse` returns when the actor has had its turn."""
    seq = 0
    while True:
        await pulse()
        seq += 1
        told(Beat(seq, phase(), in_flight()))
        await trio.sleep(BEAT_SECONDS)


class HeartbeatFile:
    """The last beat as one JSON object in a file: `pid` and `start_ticks` name this process for good, `wall` and
    `monotonic` (seconds) say when, `port` is what the server listens on. Never raises: a beat that cannot be written is
    left out."""

    def __init__(self, path: Path) -> None:
        self._port = 0
        self._path = path
        self._fd: int | None = None
        self._pid = os.getpid()
        self._start_ticks = start_ticks(self._pid)

    def starting(self, port: int) -> None:
        """The server listens, and is about to begin."""
        self._port = port
        self(Beat(0, Phase.STARTING, 0))

    def __call__(self, beat: Beat) -> None:
        """Write a beat over the one before."""
        said = {
            "pid": self._pid,
            "start_ticks": self._start_ticks,
            "seq": beat.seq,
            "wall": round(time.time(), 3),
            "monotonic": round(time.monotonic(), 3),
            "phase": beat.phase.value,
            "port": self._port,
            "in_flight": beat.in_flight,
        }
        with suppress(OSError):
            os.pwrite(self._opened(), json.dumps(said).encode().ljust(FILE_BYTES - 1) + b"\n", 0)

    def _opened(self) -> int:
        """The open file; opened anew where somebody has tidied it away. Kept open, because there may be no descriptor
        left when the next beat is due. Raises OSError."""
        if self._fd is not None and os.fstat(self._fd).st_nlink:
            return self._fd
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Not blocking: a pipe that somebody has put there would be waited for until it is read.
        flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
        self._fd = os.open(self._path, flags, 0o600)
        return self._fd
