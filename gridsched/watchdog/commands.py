"""Other programs, run for their output: bounded in time and in size, never waited for once they hang for good.

A program that hangs in the kernel (nvidia-smi does when a driver has died) cannot be killed: it is left behind, and is
not started again while it is there.
"""

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

MOST_OUTPUT_BYTES = 64 * 1024
KILL_SECONDS = 1.0
RUNTIME_DIR = Path(f"/run/user/{os.geteuid()}")


class CannotRun(Exception):
    """There is no such program, or it has not ended in time; one sentence."""


@dataclass(frozen=True, slots=True)
class Ran:
    """How a program ended, and the last it printed, both streams together."""

    code: int
    output: str


class Commands:
    """Runs programs, and remembers those that hang."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        # Where the user's service manager is asked. After su, and in cron, nobody has said it.
        usual = {"XDG_RUNTIME_DIR": str(RUNTIME_DIR)} if RUNTIME_DIR.is_dir() else {}
        self._environ = {**usual, **environ}
        self._stuck: dict[str, subprocess.Popen[bytes]] = {}

    def run(self, argv: Sequence[str], seconds: float) -> Ran:
        """Run a program to its end. Raises CannotRun."""
        name = argv[0]
        if (before := self._stuck.pop(name, None)) is not None and before.poll() is None:
            self._stuck[name] = before
            raise CannotRun(f"{name} (process {before.pid}) hangs since it was last asked, and cannot be killed")
        # In memory: what is asked here must be answered also where no disk takes a byte.
        with open(os.memfd_create("output"), "w+b") as output:  # noqa: PTH123 - a descriptor
            try:
                process = subprocess.Popen(  # noqa: S603 - fixed programs, their arguments are words and never a shell's
                    list(argv),
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env=self._environ,
                    start_new_session=True,
                )
            except OSError as error:
                raise CannotRun(f"{name} cannot be run: {error.strerror}") from None
            try:
                code = process.wait(seconds)
            except subprocess.TimeoutExpired:
                self._give_up(name, process)
                raise CannotRun(f"{name} has not ended within {seconds:g} s") from None
            size = output.seek(0, os.SEEK_END)
            output.seek(max(0, size - MOST_OUTPUT_BYTES))
            return Ran(code, output.read(MOST_OUTPUT_BYTES).decode("utf-8", "replace"))

    def _give_up(self, name: str, process: subprocess.Popen[bytes]) -> None:
        os.killpg(process.pid, signal.SIGKILL)  # it is not reaped, so the number is its own
        try:
            process.wait(KILL_SECONDS)
        except subprocess.TimeoutExpired:
            self._stuck[name] = process
