"""Whether an engine can really run on this machine: it is asked to load a model, and is ended again.

Owns that one trial. A program that tells its version may still end at the first tensor, where its build uses
instructions that the processor lacks, so nothing less than a load is proof. Must never leave the process behind.
"""

import platform
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

import httpx

TRIAL_SECONDS = 60.0
"""A cold disk and a graphics driver to wake; a small model takes under a second otherwise."""

POLL_SECONDS = 0.1
END_SECONDS = 10.0
WRONG_PROCESSOR = "uses instructions that this processor does not have"


def wheel_exists_for_this_machine() -> bool:
    """Whether the engine's wheel is built for this system and processor (Linux on x86-64)."""
    return platform.system() == "Linux" and platform.machine() in ("x86_64", "AMD64")


def free_port() -> int:
    """A loopback port that nobody has just now; who wants it should take it soon."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def obstacle(program: str, environ: Mapping[str, str], embedder: Path) -> str | None:
    """Why this llama-server cannot serve this embedder here, None if it does. Takes up to a minute."""
    port = free_port()
    command = [program, "-m", str(embedder), "--embedding", "--ctx-size", "512", "--host", "127.0.0.1"]
    with tempfile.TemporaryFile() as output:
        try:
            process = subprocess.Popen(  # noqa: S603 - the engine that the server would start
                [*command, "--port", str(port)], env=dict(environ), stdout=output, stderr=subprocess.STDOUT
            )
        except OSError as fault:
            return f"{program} cannot be started: {fault.strerror or fault}"
        try:
            if _becomes_healthy(process, f"http://127.0.0.1:{port}/health"):
                return None
            if process.poll() is None:
                return f"{program} was not ready within {TRIAL_SECONDS:.0f} s"
            output.seek(0)
            return f"{program} {_ending(process.returncode, output.read())}"
        finally:
            end(process)


def end(process: subprocess.Popen[bytes], grace_seconds: float = END_SECONDS) -> int:
    """Terminate a process we started, kill it after the grace, and give its exit code. Safe to call again."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(grace_seconds)
        except subprocess.TimeoutExpired:
            process.kill()
    return process.wait()


def _becomes_healthy(process: subprocess.Popen[bytes], url: str) -> bool:
    """Poll until it answers 200, ends, or the time is over."""
    give_up_at = time.monotonic() + TRIAL_SECONDS
    with httpx.Client(trust_env=False, timeout=5.0) as client:
        while process.poll() is None and time.monotonic() < give_up_at:
            try:
                if client.get(url).status_code == httpx.codes.OK:
                    return True
            except httpx.HTTPError:
                pass  # not listening yet
            time.sleep(POLL_SECONDS)
    return False


def _ending(returncode: int, output: bytes) -> str:
    if returncode == -signal.SIGILL:
        return WRONG_PROCESSOR
    said = output.decode(errors="replace").strip().splitlines()
    last = f": {said[-1]}" if said else ""
    if returncode < 0:
        return f"was ended by {signal.Signals(-returncode).name}{last}"
    return f"ended with status {returncode}{last}"
