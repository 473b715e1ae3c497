"""One process: spawned so that it cannot outlive us, watched by pidfd, stopped with its whole group, reaped.

Owns the system calls around a llama-server; knows nothing of HTTP or models. A signal is only ever sent to a process
that has not been reaped yet, so its number cannot have passed to another (P4).
"""

import contextlib
import functools
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import outcome
import trio

from gridsched.engine.guard import guard
from gridsched.engine.identity import ProcessId
from gridsched.engine.logs import OutputReader, RotatedLog
from gridsched.threads import begin, in_thread

T = TypeVar("T")

Register = Callable[[ProcessId], Callable[[], None]]
"""Notes a child that was just forked, on the thread that forked it; gives what is to be called when it is reaped."""

# Runs in the child before the engine does. The parent-death signal survives the exec. It is asked for before the
# parent is looked at: one that died in between is noticed by its number, so there is no moment in which a kill -9 of
# the server leaves a child behind. 126 and 127 are what shells say for a program that cannot be executed.
_SHIM = """
import ctypes, os, signal, sys
parent = int(sys.argv[1])
if ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0) != 0 or os.getppid() != parent:
    os._exit(125)
try:
    os.execv(sys.argv[2], sys.argv[2:])
except OSError as error:
    print(f"cannot execute {sys.argv[2]}: {error.strerror}", flush=True)
    os._exit(127 if isinstance(error, FileNotFoundError) else 126)
"""
CATCH_UP_SECONDS = 0.001
"""How long the reading thread is left alone with what it has not taken in yet: microseconds of work."""

LONGEST_CATCH_UP_SECONDS = 1.0

HOME = "/"
"""Where processes stand: nobody can take it away from them, and they keep no folder from being removed."""

KILLED_SECONDS = 5.0
"""How long a killed process may take to end. One that the kernel holds, in a driver that hangs, never does."""

CANNOT_EXECUTE = frozenset((126, 127))
PARENT_WAS_GONE = 125


class Spawner:
    """A thread that never ends, on which every child is forked. Raises OSError where there is none to be had.

    The kernel delivers the parent-death signal when the *thread* that forked ends. trio's worker threads end after 10 s
    without work, which would kill every child that was spawned from one.
    """

    def __init__(self) -> None:
        self._work: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self.thread = threading.Thread(target=self._run, name="engine-spawner", daemon=True)
        begin(self.thread)

    def _run(self) -> None:
        while True:
            self._work.get()()

    async def call(self, function: Callable[[], T]) -> T:
        """Run a function there and give its result. Not cancellable: a fork under way must be collected."""
        token = trio.lowlevel.current_trio_token()
        done = trio.Event()
        results: list[outcome.Outcome[T]] = []

        def work() -> None:
            results.append(outcome.capture(function))  # whatever it raises, the thread goes on
            with contextlib.suppress(trio.RunFinishedError):
                token.run_sync_soon(done.set)

        self._work.put(work)
        with trio.CancelScope(shield=True):
            await done.wait()
        return results[0].unwrap()


@functools.cache
def spawner() -> Spawner:
    """The one spawner of this program."""
    return Spawner()


class Child:
    """A running process that we have not reaped yet. Made by `spawn`; ended by `end`, which must be awaited."""

    def __init__(
        self, process: subprocess.Popen[bytes], pidfd: int, output: OutputReader, leave: Callable[[], None]
    ) -> None:
        self.pid = process.pid
        self.argv: tuple[str, ...] = ()
        self._leave = leave
        self.returncode: int | None = None
        self._process = process
        self._output = output
        self._pidfd = pidfd
        self._exited = trio.Event()
        self._asked_at: float | None = None

    @classmethod
    async def spawn(
        cls, argv: Sequence[str], env: Mapping[str, str], log: RotatedLog, register: Register | None = None
    ) -> "Child":
        """Start a process in a group of its own, its output going to `log`. `argv[0]` is an absolute path. It is noted
        with `register`, or with the guard alone.

        Raises OSError when not even our own interpreter can be started, or what it takes to watch it is lacking: then
        no process is left. Raises ValueError for a NUL in the arguments.
        """
        read_fd, write_fd = os.pipe()
        shim = (sys.executable, "-I", "-S", "-c", _SHIM, str(os.getpid()))

        def fork() -> tuple[subprocess.Popen[bytes], int, Callable[[], None]]:
            process = subprocess.Popen(  # noqa: S603 - the engine is what this program is there to run
                (*shim, *argv),
                stdin=subprocess.DEVNULL,
                stdout=write_fd,
                stderr=write_fd,
                env=dict(env),
                cwd=HOME,
                process_group=0,
            )
            try:
                pidfd = os.pidfd_open(process.pid)
            except BaseException:
                process.kill()  # nobody would know of it
                process.wait()
                raise
            return process, pidfd, (register or guard().watch)(ProcessId.of_child(process.pid))

        try:
            output = OutputReader(read_fd, log)
            try:
                process, pidfd, leave = await spawner().call(fork)
            except BaseException:
                output.finish()
                raise
        finally:
            os.close(write_fd)
        child = cls(process, pidfd, output, leave)
        child.argv = tuple(argv)  # without what we put before it
        return child

    @property
    def exited(self) -> bool:
        """It has ended, whether reaped or not, as far as `wait` has seen."""
        return self._exited.is_set()

    def tail(self) -> tuple[str, ...]:
        """The last lines it printed."""
        return self._output.tail()

    async def accounts(self) -> tuple[str, ...]:
        """The lines about memory that it has printed until now; of one that prints without end, those read by then."""
        with trio.move_on_after(LONGEST_CATCH_UP_SECONDS):
            while not self._output.caught_up():  # noqa: ASYNC110 - a thread reads, and wakes nobody
                await trio.sleep(CATCH_UP_SECONDS)
        return self._output.accounts()

    async def wait(self) -> None:
        """Return when the process has ended; it is not reaped. For one task at a time."""
        await trio.lowlevel.wait_readable(self._pidfd)
        self._exited.set()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the whole group. Harmless after the end: the leader is a zombie until `end` reaps it. One
        that has become another user's (a wrapper with sudo) hears none, and what becomes of it is seen at its end."""
        if self.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, number)

    def terminate(self) -> float:
        """Ask it to end, once; the moment of that. An engine takes a second SIGTERM for impatience and exits inside its
        signal handler: of 50 that were told twice within 30 ms one hung and five aborted, after up to 4 s; of 8 told
        once none did."""
        if self._asked_at is None:
            self._asked_at = trio.current_time()
            self.signal(signal.SIGTERM)
            self.signal(signal.SIGCONT)  # one that stands still (S10) hears the other only then
        return self._asked_at

    async def end(self, grace_seconds: float) -> int:
        """TERM, then KILL at the end of the grace, which began when it was first asked, then reap: the exit status
        (negative for a signal). Shielded.

        What the process left running in its group is killed with it. Reaping comes last, so that the number stays ours
        until everything of the process is done with. One that a kill does not end is left as it is, after a while and
        with the kill's status: noted for the guard and the next start, and not `exited`.
        """
        with trio.CancelScope(shield=True):
            if not self.exited:
                await self._ends_by(self.terminate() + grace_seconds)
            self.signal(signal.SIGKILL)
            if not await self._ends_by(trio.current_time() + KILLED_SECONDS):
                return -signal.SIGKILL
            await in_thread(self._finish)
            returncode = self.returncode = self._process.wait()
            os.close(self._pidfd)
        return returncode

    async def _ends_by(self, deadline: float) -> bool:
        if not self.exited:
            with trio.CancelScope(deadline=deadline):
                await self.wait()
        return self.exited

    def _finish(self) -> None:
        self._output.finish()
        self._leave()
