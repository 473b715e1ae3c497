"""The guard as the server sees it: one process, begun with the first child, that ends what a killed server leaves (P2).

The kernel's parent-death signal reaches only a direct child. The guard (`guard_program.py`) holds the read end of a
pipe whose write end only this process has: its end is the server's end. It lives in a session of its own, holds no
lock, socket or folder of the server's, and a guard that dies is started again with all it must know. Must never keep a
child from being started: without a guard there is still the kernel, and the sweep at the next start.
"""

import functools
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path

from gridsched.engine.identity import ProcessId
from gridsched.threads import begin

PROGRAM = Path(__file__).with_name("guard_program.py")
SHORT_SECONDS = 1.0
SHORT_LIVES = 3
"""So many guards that die this soon one after another: another one is tried with the next child only."""

NOT_HEARD = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""What is sent to a whole service or terminal does not end the guard, not even before its first line: it is inherited
that these are blocked. It ends with the server anyway."""

_log = logging.getLogger(__name__)


class Guard:
    """One a process. Every method may be called on any thread, raises nothing, and waits for nobody."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[int, int] = {}
        self._pipe: int | None = None
        self._pidfd = -1
        self._short_lives = 0

    @property
    def pid(self) -> int | None:
        """The guard's own process, while there is one."""
        with self._lock:
            return self._process.pid if self._pipe is not None else None

    def watch(self, child: ProcessId) -> Callable[[], None]:
        """Have a child of ours ended with its group when this process is gone. Gives what ends the watch."""
        with self._lock:
            self._known[child.pid] = child.start_ticks
            if self._pipe is None:
                self._short_lives = 0
                self._start()
            else:
                self._tell(f"+{child.pid} {child.start_ticks}\n")
        return partial(self._forget, child)

    def _forget(self, child: ProcessId) -> None:
        with self._lock:
            if self._known.get(child.pid) == child.start_ticks:
                del self._known[child.pid]
                self._tell(f"-{child.pid}\n")

    def _start(self) -> None:
        """Begin a guard that knows all. Said where that cannot be: the children have the kernel's signal only. One that
        cannot be minded is killed before it sees its pipe end: it would take us for gone, and end all that lives."""
        try:
            with ExitStack() as undo:
                read_fd, pipe = os.pipe()
                undo.callback(os.close, pipe)
                try:
                    self._process = _begun(read_fd)
                finally:
                    os.close(read_fd)
                undo.callback(self._process.wait)
                undo.callback(self._process.kill)
                self._pidfd = os.pidfd_open(self._process.pid)
                undo.callback(os.close, self._pidfd)
                os.set_blocking(pipe, False)
                begin(threading.Thread(target=self._mind, name="engine-guard", daemon=True))
                undo.pop_all()
        except OSError as error:
            _log.warning("no guard of the engine's processes can be started: %s", error.strerror)
            return
        self._pipe = pipe
        self._tell("".join(f"+{pid} {ticks}\n" for pid, ticks in self._known.items()))

    def _tell(self, lines: str) -> None:
        """One that does not take in what it is told, because it stands still, is ended: another will know all."""
        if self._pipe is None:
            return
        try:
            os.write(self._pipe, lines.encode())
        except BlockingIOError:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
        except BrokenPipeError:
            pass  # it has just died, which its thread is about to see

    def _mind(self) -> None:
        """Wait for the guard's end, which nobody has asked for, and begin another."""
        began = time.monotonic()
        self._process.wait()
        with self._lock:
            os.close(self._pidfd)
            with suppress(OSError):
                os.close(self._pipe if self._pipe is not None else -1)
            self._pipe = None
            self._short_lives = self._short_lives + 1 if time.monotonic() - began < SHORT_SECONDS else 0
            if self._short_lives < SHORT_LIVES:
                _log.warning("the guard of the engine's processes has died; another one is started")
                self._start()
            else:
                _log.warning("the guard of the engine's processes dies as soon as it is started; going on without")


def _begun(pipe_fd: int) -> subprocess.Popen[bytes]:
    """The guard's process, which hears us through a pipe. Raises OSError."""
    owner = ProcessId.of_child(os.getpid())
    before = signal.pthread_sigmask(signal.SIG_BLOCK, NOT_HEARD)
    try:
        return subprocess.Popen(  # noqa: S603 - our own program
            (sys.executable, "-I", "-S", str(PROGRAM), f"{owner.pid}-{owner.start_ticks}"),
            stdin=pipe_fd,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            env={name: value for name, value in os.environ.items() if not name.startswith("GRIDSCHED_")},
            start_new_session=True,
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@functools.cache
def guard() -> Guard:
    """The one guard of this program."""
    return Guard()
