"""Finding the engine: the first that really runs here. Owns the trial: one whole life of a tiny model's process.

A program that prints its version may still die at its first model, built for another processor or without a library
it needs. So each one found is given a model of 0.1 MB on the host, by the same path that real models take.
"""

import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import trio

from gridsched.core.events import Event, Failure, FailureCause, InstanceExited, InstanceReady
from gridsched.core.ids import DeviceName, InstanceId, ModelName
from gridsched.core.model import DeviceFootprint, DeviceSpec, LaunchOption
from gridsched.engine.locate import HOW_TO_GET_ONE, FoundEngine, located, nothing
from gridsched.engine.supervisor import LlamaEngine
from gridsched.engine.trial_model import trial_model
from gridsched.ports import Backend, Capability, DeviceInfo, Launch

SOCKET_TRIAL_SECONDS = 30.0  # takes a tenth of a second, and much longer with a cold disk and a driver to wake
PORT_TRIAL_SECONDS = 60.0
STOP_GRACE_SECONDS = 5.0
HOW_TO_REPLACE_IT = "Build llama.cpp on this machine, and put its llama-server on PATH or name it in engine.path"
_TRIAL = InstanceId(0)
_HOST = DeviceInfo(DeviceSpec(DeviceName("host"), 0), "host", Backend.CPU)
_OPTION = LaunchOption("trial", ctx_size=256, parallel=1, footprint=(DeviceFootprint(_HOST.spec.name),))


def find_engine(
    configured: str | None = None, environ: Mapping[str, str] | None = None, pinned: Path | None = None
) -> FoundEngine:
    """The first engine that serves a tiny model, looked for as `located` says; else the first one's problem.

    Never raises for what an engine does. Takes some tenths of a second, and a loop of its own: call it before trio
    runs, or in a thread.
    """
    first_problem: FoundEngine | None = None
    for found in located(configured, environ, pinned):
        tried = tried_engine(found)
        if tried.info.ok:
            return tried
        first_problem = first_problem or tried
    return first_problem or nothing(HOW_TO_GET_ONE)


def tried_engine(found: FoundEngine) -> FoundEngine:
    """The same engine, or why it is none or does not run here. With a loop of its own. Raises KeyboardInterrupt."""
    if not found.info.ok:
        return found
    try:
        return trio.run(try_engine, found)
    except BaseExceptionGroup as group:
        if group.subgroup(KeyboardInterrupt) is not None:
            raise KeyboardInterrupt from None  # Ctrl-C, as trio's nurseries pass it on
        raise


async def try_engine(found: FoundEngine) -> FoundEngine:
    """The same engine, and whether it can listen at a Unix socket; or why it does not run here.

    What a trial over a socket fails of is not asked: an engine that cannot have one may say so, or listen elsewhere in
    silence. One that serves at a port is one that runs.
    """
    at_port = replace(found, unix_socket=False)
    try:
        failure = await _trial(found, SOCKET_TRIAL_SECONDS)
        if failure is None:
            return found
        if _may_run(failure) and await _trial(at_port, PORT_TRIAL_SECONDS) is None:
            return at_port
    except OSError as error:
        return _no(found, f"{found.info.path} cannot be tried: no temporary folder can be written ({error.strerror})")
    return _no(found, f"{found.info.path} does not run here: {failure.message}. {HOW_TO_REPLACE_IT}")


def how_it_listens(found: FoundEngine) -> tuple[str, ...]:
    """What a person is to know of an engine that is served at ports (P1)."""
    if found.unix_socket:
        return ()
    key = found.options.get("--api-key")
    reach = "with a key of each process's own" if key and key.environment else "without a key: any program here may ask"
    return (f"{found.info.path} cannot listen at a Unix socket; its processes listen at ports of 127.0.0.1, {reach}",)


def _no(found: FoundEngine, problem: str) -> FoundEngine:
    return FoundEngine(replace(found.info, ok=False, problem=problem))


def _may_run(failure: Failure) -> bool:
    """Whether a port may be what it lacked: not where its files are missing, or somebody ended it."""
    return failure.cause in {FailureCause.CRASHED, FailureCause.START_TIMEOUT, FailureCause.BAD_FLAGS}


async def _trial(found: FoundEngine, limit_seconds: float) -> Failure | None:
    """One whole life of the tiny model's process: what it failed of, None where it served."""
    with tempfile.TemporaryDirectory(prefix="gridsched-trial-") as name:
        folder = Path(name)
        model = folder / "trial.gguf"
        model.write_bytes(trial_model())
        engine = LlamaEngine(
            found,
            (_HOST,),
            run_dir=folder / "run",
            log_dir=folder,
            startup_timeout_seconds=limit_seconds,
            stop_grace_seconds=STOP_GRACE_SECONDS,
        )
        ended: list[InstanceExited] = []

        def post(event: Event) -> None:
            if isinstance(event, InstanceReady):
                engine.stop(_TRIAL)
            elif isinstance(event, InstanceExited):
                ended.append(event)

        launch = Launch(ModelName("trial"), model, _OPTION, frozenset({Capability.COMPLETION}))
        with trio.move_on_after(limit_seconds + 2 * STOP_GRACE_SECONDS):  # one that no kill ends is left behind
            await engine.run(_TRIAL, launch, post)
    return ended[0].failure
