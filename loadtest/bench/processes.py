"""The programs of a benchmark: started, waited for, watched, and ended by their own ids whatever happens.

Owns every process that the benchmark starts, and what the kernel says of each. Must never end a process that it has not
started, nor leave one behind: also not at Ctrl-C.
"""

import http.client
import os
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType, TracebackType
from typing import Self

from loadtest.bench.result import BenchFault

ROOT = Path(__file__).parents[2]
"""The tree that this file is in."""
LOOPBACK = "127.0.0.1"
END_SECONDS = 15.0
POLL_SECONDS = 0.05
LOG_TAIL_CHARACTERS = 600
MIB = 1 << 20
NS_PER_US = 1000.0
HTTP_OK = 200
PROCESS_CLOCK = 2
"""Below a process's number, turned around: the kernel's clock of what that process has had of processors."""
NO_KEY = "unused"
"""For servers that ask for none."""
RESET_PEAK = "5"
"""What /proc/PID/clear_refs takes to begin anew with the peak."""


class Child:
    """A program under way. What is read of it is 0 once it has ended."""

    def __init__(self, name: str, process: subprocess.Popen[bytes], log: Path) -> None:
        self.name = name
        self.process = process
        self.log = log

    @property
    def running(self) -> bool:
        """Whether it has not ended."""
        return self.process.poll() is None

    def cpu_us(self) -> float:
        """Processor time of all its threads so far; of those that have ended, too."""
        try:
            return time.clock_gettime_ns((~self.process.pid << 3) | PROCESS_CLOCK) / NS_PER_US
        except OSError:
            return 0.0

    def memory_bytes(self, what: str = "VmRSS") -> int:
        """What it holds, or with VmHWM the most it held."""
        try:
            status = Path(f"/proc/{self.process.pid}/status").read_text(encoding="utf-8")
        except OSError:
            return 0
        line = next((line for line in status.splitlines() if line.startswith(f"{what}:")), f"{what}: 0 kB")
        return int(line.split()[1]) * 1024

    def reset_peak(self) -> None:
        """From now on its VmHWM counts from what it holds now, where the kernel lets us."""
        try:
            Path(f"/proc/{self.process.pid}/clear_refs").write_text(RESET_PEAK, encoding="utf-8")
        except OSError:
            return

    def said(self) -> str:
        """The end of what it printed, in one line."""
        try:
            return " ".join(self.log.read_text(encoding="utf-8", errors="replace")[-LOG_TAIL_CHARACTERS:].split())
        except OSError:
            return ""


class Processes:
    """A block of programs: at its end all are ended, the last started first."""

    def __init__(self, folder: Path, end_s: float = END_SECONDS) -> None:
        """`folder` is for what they print; who has not ended `end_s` after being told to is killed."""
        self._folder = folder
        self._end_s = end_s
        self._children: list[Child] = []

    def start(
        self, name: str, argv: Sequence[str], env: Mapping[str, str] | None = None, cwd: Path | None = None
    ) -> Child:
        """Start one; what it prints goes to a file. Raises BenchFault where it cannot be started."""
        log = self._folder / f"{len(self._children)}-{name}.log"
        with log.open("wb") as output:
            try:
                process = subprocess.Popen(  # noqa: S603 - programs that the benchmark is there to run
                    list(argv),
                    env={**clean_environment(), **(env or {})},
                    cwd=cwd or self._folder,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    process_group=0,
                )
            except OSError as error:
                raise BenchFault(f"{name} cannot be started: {error.strerror or error}") from None
        child = Child(name, process, log)
        self._children.append(child)
        return child

    def end(self) -> None:
        """End them all; a second Ctrl-C does not stop that."""
        for child in reversed(self._children):
            if child.running:
                child.process.send_signal(signal.SIGTERM)
        until = time.monotonic() + self._end_s
        for child in reversed(self._children):
            try:
                child.process.wait(max(0.1, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                os.killpg(child.process.pid, signal.SIGKILL)  # not reaped yet: the number is its own group's
                child.process.wait()
        self._children.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            self.end()
        finally:
            signal.signal(signal.SIGINT, before)


def interrupted(_: int, __: FrameType | None) -> None:
    """For SIGTERM: as Ctrl-C, so that every block is left and its programs are ended."""
    raise KeyboardInterrupt


def clean_environment() -> dict[str, str]:
    """The environment without what would change a server under test, and without proxies: all is on loopback."""
    withheld = ("GRIDSCHED_", "LLAMA_", "LITELLM_", "OPENAI_", "OTEL_")
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(withheld) and not name.lower().endswith("_proxy")
    }


def free_port() -> int:
    """A port that nobody listens at."""
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])


def asked(port: int, target: str, body: bytes, timeout_s: float = 30.0, key: str = NO_KEY) -> tuple[int, bytes]:
    """Status and body of the answer to a POST. Raises OSError and http.client.HTTPException."""
    connection = http.client.HTTPConnection(LOOPBACK, port, timeout=timeout_s)
    try:
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
        connection.request("POST", target, body, headers)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def wait_until_answers(child: Child, port: int, target: str, body: bytes, limit_s: float, key: str = NO_KEY) -> None:
    """Until it answers that with 200. Raises BenchFault when it ends before, or takes longer."""
    until = time.monotonic() + limit_s
    last = "no answer"
    while time.monotonic() < until:
        if not child.running:
            raise BenchFault(f"{child.name} has ended with {child.process.returncode}: {child.said()}")
        try:
            status, told = asked(port, target, body, limit_s, key)
        except (OSError, http.client.HTTPException):
            pass
        else:
            if status == HTTP_OK:
                return
            last = f"{status} {told[:200].decode('utf-8', 'replace')}"
        time.sleep(POLL_SECONDS)
    raise BenchFault(f"{child.name} did not answer {target} within {limit_s:g} s ({last}): {child.said()}")


def printed(argv: Sequence[str], env: Mapping[str, str] | None = None, cwd: Path | None = None) -> str:
    """What a short program prints, on either of its outputs. Raises BenchFault, with it, when it fails."""
    try:
        done = subprocess.run(  # noqa: S603 - compilers, git, an engine asked for its version
            list(argv),
            env={**clean_environment(), **(env or {})},
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=120,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BenchFault(
            f"{Path(argv[0]).name} cannot be run: {getattr(error, 'strerror', None) or 'it does not end'}"
        ) from None
    text = done.stdout.decode("utf-8", "replace").strip()
    if done.returncode:
        raise BenchFault(f"{Path(argv[0]).name} ended with {done.returncode}: {text[-LOG_TAIL_CHARACTERS:]}")
    return text
