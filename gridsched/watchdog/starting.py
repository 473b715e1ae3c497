"""Starting a gateway: as a child that goes when we do, or on its own. Owns its output file and the echo of it.

The parent-death signal is asked for by a shim before the gateway runs, and belongs to the *thread* that forks: a child
that is bound to us is started on the main thread, which lives as long as we do.
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from gridsched.watchdog import files
from gridsched.watchdog.processes import ProcessId, identify

MOST_LOG_BYTES = 4 * 1024 * 1024
"""Then the file is begun anew, and the one before is kept as `.1`."""

LAST_WORDS_BYTES = 4096

# SIGTERM, which drains, not SIGKILL: whoever is being answered when we die is answered to the end.
_SHIM = """
import ctypes, os, signal, sys
parent = int(sys.argv[1])
if ctypes.CDLL(None).prctl(1, signal.SIGTERM, 0, 0, 0) != 0 or os.getppid() != parent:
    os._exit(125)
try:
    os.execv(sys.argv[2], sys.argv[2:])
except OSError as error:
    print(f"cannot execute {sys.argv[2]}: {error.strerror}", flush=True)
    os._exit(127)
"""


class CannotStart(Exception):
    """The gateway cannot even be tried to start; one sentence."""


@dataclass(frozen=True, slots=True)
class Launch:
    """How a gateway is started: its command line, its environment and folder."""

    argv: Sequence[str]
    environ: Mapping[str, str]
    folder: Path


class Started:
    """A gateway that was started here, not reaped yet. `has_owned`: it has come to own the data directory;
    `was_killed`: it did not, and was not waited for any longer."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self.began = time.monotonic()
        self.has_owned = self.was_killed = False
        self.handle = os.pidfd_open(process.pid)
        self.id = identify(process.pid) or ProcessId(process.pid, 0)

    def exit_code(self) -> int | None:
        """How it ended, negative for a signal; None while it runs."""
        return self._process.poll()

    def close(self) -> None:
        """It is over and done with."""
        os.close(self.handle)


class Starter:
    """Starts gateways, their output in one file; `echo` is given what they have printed when it is asked to."""

    def __init__(self, log: Path, echo: Callable[[str], None]) -> None:
        self._log = log
        self._echo = echo
        self._begins_at = self._read_to = _size_of(log)  # what is there was said by others, and long ago

    def start(self, launch: Launch, *, bound: bool) -> Started:
        """Start one; `bound` to us, by a signal at our death, or on its own. On the main thread. Raises CannotStart."""
        shim = (sys.executable, "-I", "-S", "-c", _SHIM, str(os.getpid())) if bound else ()
        try:
            with self._opened() as output:
                process = subprocess.Popen(  # noqa: S603 - the gateway is what this program is there to run
                    (*shim, *launch.argv),
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env=dict(launch.environ),
                    cwd=launch.folder,
                    # Ctrl-C is for us: we pass it on as the one signal that drains; a second one would end at once.
                    process_group=0 if bound else None,
                    start_new_session=not bound,
                )
        except OSError as error:
            where = f" ({error.filename})" if error.filename else ""
            raise CannotStart(f"the gateway cannot be started: {error.strerror}{where}") from None
        try:
            return Started(process)
        except OSError as error:
            process.kill()
            process.wait()
            raise CannotStart(f"the gateway cannot be watched: {error.strerror}") from None

    def _opened(self) -> BinaryIO:
        """The file that it prints to. On a full disk it prints to nobody rather than not start. Raises OSError."""
        try:
            files.require_ours(self._log.parent)
            self._make_room()
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
            output = os.fdopen(os.open(self._log, flags, 0o600), "ab")
            self._begins_at = self._read_to = output.seek(0, os.SEEK_END)
        except OSError:
            return Path(os.devnull).open("ab")
        return output

    def last_words(self) -> str:
        """What the last one printed at its end; nothing of those before it."""
        printed = _size_of(self._log) - self._begins_at
        if printed <= 0:
            return ""
        with suppress(OSError):
            return files.read_tail(self._log, min(printed, LAST_WORDS_BYTES)).decode("utf-8", "replace").strip()
        return ""

    def keep_up(self) -> None:
        """Pass on what was printed since, and begin the file anew when it is too large."""
        with suppress(OSError):
            size = self._log.stat().st_size
            if size < self._read_to:  # somebody has emptied it
                self._read_to = self._begins_at = 0
            if size > self._read_to:
                begin = max(self._read_to, size - MOST_LOG_BYTES)
                new = files.read_tail(self._log, size - begin, begin)  # its end may be further on by now
                self._read_to = begin + len(new)
                self._echo(new.decode("utf-8", "replace").rstrip("\n"))
            if size > MOST_LOG_BYTES:
                self._make_room()

    def _make_room(self) -> None:
        """Keep the file's end as `.1` and empty it: its writer appends, and goes on at the beginning."""
        with suppress(FileNotFoundError):
            if self._log.stat().st_size > MOST_LOG_BYTES:
                files.write(self._log.with_name(f"{self._log.name}.1"), files.read_tail(self._log, MOST_LOG_BYTES))
                os.truncate(self._log, 0)
                self._begins_at = self._read_to = 0


def _size_of(path: Path) -> int:
    """In bytes; 0 where there is no such file."""
    with suppress(OSError):
        return path.stat().st_size
    return 0
