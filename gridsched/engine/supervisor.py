"""The engine's processes, each from spawn to reaped: the `Engine` port. One call of `run` is one process's life.

It posts that a process is ready at most once, and that it is gone exactly once, after it is. What a process does is
never an exception here; it is a `Failure` with a cause. It decides nothing: whether to load again, or what
to evict, is the scheduler's.
"""

import os
import secrets
import shutil
import signal
import tempfile
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import trio

from gridsched.core.events import Failure, FailureCause, InstanceExited, InstanceReady
from gridsched.core.ids import DeviceName, InstanceId, ModelName
from gridsched.core.model import DeviceFootprint
from gridsched.engine.accounting import allocations, misplaced
from gridsched.engine.argv import (
    Build,
    Spawn,
    build_argv,
    build_env,
    devices_of,
    names_in_launch,
    refused_flags,
)
from gridsched.engine.cards import match
from gridsched.engine.causes import cause_in, failure_of, meaningful
from gridsched.engine.child import Child
from gridsched.engine.locate import FoundEngine
from gridsched.engine.logs import RotatedLog, file_name
from gridsched.engine.ready import Expected, NotReady, wait_ready
from gridsched.engine.roster import Roster
from gridsched.ports import Backend, DeviceInfo, EngineInfo, Launch, Post, Vet
from gridsched.vram.flags import FlagError, parse_flags

SUN_PATH_BYTES = 107  # what the kernel takes for a Unix socket's path, less its closing NUL
TAG = "gridsched-"
TAILS_KEPT = 64  # of processes that have ended; enough to explain every recent failure


@dataclass(slots=True)
class _Life:
    """One process: what is known of it from outside, and whether it was told to end."""

    stop_asked: trio.Event = field(default_factory=trio.Event)
    child: Child | None = None
    socket: Path | None = None
    failure: Failure | None = None
    killed: bool = False
    vet: Vet | None = None

    def obeyed(self, returncode: int) -> bool:
        """Whether it ended because it was told to. One that dies in mid-request is often told to stop before its end is
        seen, because its connections break first: how it ended says which came first."""
        return returncode in {0, -signal.SIGTERM} or (self.killed and returncode == -signal.SIGKILL)


class LlamaEngine:
    """Implements `ports.Engine` with llama-server processes.

    `run_dir` is for sockets, lies in the data directory, belongs to this server alone and is made private (0700);
    `log_dir` holds one rotated log for each model. `devices` are those that a footprint may name.
    """

    def __init__(
        self,
        found: FoundEngine,
        devices: Iterable[DeviceInfo],
        *,
        run_dir: Path,
        log_dir: Path,
        startup_timeout_seconds: float = 300.0,
        stop_grace_seconds: float = 10.0,
    ) -> None:
        self._found = found
        self._devices = {device.spec.name: device for device in devices}
        names = match(self._devices.values(), found.devices).names
        files = frozenset(name for name, option in found.options.items() if option.file)
        known = frozenset(found.options)
        self._build = Build(Path(found.info.path), known, names, found.log_level, files, _here())
        self._run_dir = run_dir
        self._log_dir = log_dir
        self._startup_timeout_seconds = startup_timeout_seconds
        self._stop_grace_seconds = stop_grace_seconds
        self._lives: dict[InstanceId, _Life] = {}
        self._begun: set[InstanceId] = set()
        self._stopped_ahead: set[InstanceId] = set()
        self._tails: OrderedDict[InstanceId, tuple[str, ...]] = OrderedDict()
        self._logs: dict[ModelName, RotatedLog] = {}
        run_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        run_dir.chmod(0o700)
        log_dir.mkdir(parents=True, exist_ok=True)
        self._roster = Roster(run_dir)

    def info(self) -> EngineInfo:
        """What was found at start."""
        return self._found.info

    def unusable_devices(self) -> tuple[DeviceName, ...]:
        """Cards that this engine does not list: built without their backend, or without a driver that it can use."""
        cards = (name for name, device in self._devices.items() if device.backend is not Backend.CPU)
        return tuple(name for name in cards if name not in self._build.card_names)

    def endpoint(self, instance_id: InstanceId) -> Path | None:
        """The socket of a living process: what `SocketUpstream` asks for."""
        life = self._lives.get(instance_id)
        return life.socket if life and life.child else None

    def stop(self, instance_id: InstanceId) -> None:
        """Begin to end a process (TERM, then KILL after the grace); ended ones are ignored.

        A process may be told to stop before the task that is to `run` it has had its first turn: it then never starts.
        """
        if life := self._lives.get(instance_id):
            life.stop_asked.set()
        elif instance_id not in self._begun:
            self._stopped_ahead.add(instance_id)

    def pause(self, instance_id: InstanceId) -> None:
        """Stop signal to a serving process (S10)."""
        self._signal(instance_id, signal.SIGSTOP)

    def resume(self, instance_id: InstanceId) -> None:
        """Continue signal; harmless for one that runs."""
        self._signal(instance_id, signal.SIGCONT)

    def _signal(self, instance_id: InstanceId, number: signal.Signals) -> None:
        life = self._lives.get(instance_id)
        if life and life.child and not life.child.exited:
            life.child.signal(number)

    def processes(self) -> Mapping[InstanceId, int]:
        """The pid of every living process."""
        return {instance_id: life.child.pid for instance_id, life in self._lives.items() if life.child}

    def log_tail(self, instance_id: InstanceId) -> tuple[str, ...]:
        """The last lines a process printed, also after its end (for the last 64 of them)."""
        life = self._lives.get(instance_id)
        return life.child.tail() if life and life.child else self._tails.get(instance_id, ())

    def log_path(self, model: ModelName) -> Path:
        """The file that a model's processes print to."""
        return self._log(model).path

    async def run(self, instance_id: InstanceId, launch: Launch, post: Post, vet: Vet | None = None) -> None:
        """Spawn, probe, vet, serve, reap. Cancelled, it ends the process first. See `ports.Engine`."""
        life = self._lives[instance_id] = _Life(vet=vet)
        self._begun.add(instance_id)
        try:
            if instance_id not in self._stopped_ahead:
                await self._live(life, instance_id, launch, post)
        finally:
            del self._lives[instance_id]
            self._stopped_ahead.discard(instance_id)
            post(InstanceExited(instance_id, life.failure))

    async def _live(self, life: _Life, instance_id: InstanceId, launch: Launch, post: Post) -> None:
        life.failure = self._refusal(launch)
        if life.failure is not None:
            return
        tag = f"{TAG}{secrets.token_hex(8)}"
        folder, life.socket = self._socket_place(tag)
        try:
            life.child = child = await self._spawn(launch, Spawn(life.socket, tag))
        except (OSError, ValueError) as error:
            life.failure = Failure(FailureCause.BAD_FLAGS, f"no process can be started: {error}")
            return
        try:
            await self._serve(life, child, self._expected(launch, tag, life.socket), launch, instance_id, post)
        finally:
            told, cancelled = life.stop_asked.is_set(), not child.exited
            returncode = await child.end(self._stop_grace_seconds)
            self._keep_tail(instance_id, child.tail())
            if life.failure is not None:
                life.failure = Failure(life.failure.cause, life.failure.message, meaningful(child.tail()))
            elif not (cancelled or (told and life.obeyed(returncode))):
                life.failure = failure_of(returncode, child.tail())
            life.socket.unlink(missing_ok=True)
            if folder is not None:
                shutil.rmtree(folder, ignore_errors=True)

    def _refusal(self, launch: Launch) -> Failure | None:
        """Why a launch is not even tried."""
        if refused := refused_flags((*launch.option.flags, *launch.flags)):
            message = f"these engine flags are set by gridsched itself: {', '.join(refused)}"
            return Failure(FailureCause.BAD_FLAGS, message)
        if unusable := set(launch.option.devices) & set(self.unusable_devices()):
            message = f"this engine cannot use {', '.join(sorted(unusable))}: its list of devices does not have it"
            return Failure(FailureCause.CPU_FALLBACK, message)
        devices = devices_of(launch.option, self._devices)
        try:
            parse_flags((*launch.option.flags, *launch.flags)).for_devices(
                names_in_launch(devices, self._build.card_names)
            )
        except FlagError as error:
            return Failure(FailureCause.BAD_FLAGS, str(error))
        return None

    async def _serve(
        self, life: _Life, child: Child, expected: Expected, launch: Launch, instance_id: InstanceId, post: Post
    ) -> None:
        """Until the process exits: make it ready, and end it when told to."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._make_ready, life, child, expected, launch, instance_id, post)
            nursery.start_soon(self._obey_stop, life, child)
            await child.wait()
            nursery.cancel_scope.cancel()

    async def _make_ready(
        self, life: _Life, child: Child, expected: Expected, launch: Launch, instance_id: InstanceId, post: Post
    ) -> None:
        """Post that it is ready, or note why it is not and have it ended."""
        failure: Failure | None = None
        allocated: tuple[DeviceFootprint, ...] = ()
        try:
            with trio.fail_after(self._startup_timeout_seconds):
                await wait_ready(expected)
                allocated = await self._accounted(child, launch)
                failure = await life.vet(instance_id, child.pid) if life.vet is not None else None
        except trio.TooSlowError:
            limit = f"the engine was not ready after {self._startup_timeout_seconds:g} s (engine.startup_timeout)"
            failure = Failure(FailureCause.START_TIMEOUT, limit)
        except NotReady as problem:
            cause = problem.cause or cause_in(child.tail()) or FailureCause.CRASHED
            failure = Failure(cause, f"the engine did not become ready: {problem.message}")
        if life.stop_asked.is_set():
            return  # one that was told to stop has not failed, and is not ready
        if failure is None:
            post(InstanceReady(instance_id, allocated))
        else:
            life.failure = failure
            life.stop_asked.set()

    async def _accounted(self, child: Child, launch: Launch) -> tuple[DeviceFootprint, ...]:
        """What it says that it has allocated. Raises NotReady where it computes on another card than was planned."""
        lines = await child.accounts()
        devices = devices_of(launch.option, self._devices)
        names = names_in_launch(devices, self._build.card_names)
        if (sentence := misplaced(lines, devices, names)) is not None:
            raise NotReady(sentence, FailureCause.CPU_FALLBACK)
        return allocations(lines, devices, names)

    async def _obey_stop(self, life: _Life, child: Child) -> None:
        await life.stop_asked.wait()
        child.signal(signal.SIGTERM)
        child.signal(signal.SIGCONT)  # one that stands still (S10) hears the other only then
        await trio.sleep(self._stop_grace_seconds)
        life.killed = True
        child.signal(signal.SIGKILL)

    async def _spawn(self, launch: Launch, spawn: Spawn) -> Child:
        devices = devices_of(launch.option, self._devices)
        argv = build_argv(self._build, launch, devices, spawn)
        env = {**build_env(os.environ, self._found.env, launch, devices), **self._roster.environment(spawn.tag)}
        return await Child.spawn(
            argv, env, self._log(launch.model), partial(self._roster.enter, launch.model, spawn.tag)
        )

    def _expected(self, launch: Launch, tag: str, socket: Path) -> Expected:
        carried = tag if "--tags" in self._build.known_flags else ""
        return Expected(socket, carried, launch.option.parallel, launch.option.ctx_size, launch.capabilities)

    def _socket_place(self, tag: str) -> tuple[Path | None, Path]:
        """A socket path that the kernel takes; with a folder of its own, to be removed, where ours lies too deep."""
        self._run_dir.mkdir(mode=0o700, parents=True, exist_ok=True)  # somebody may have tidied up since the start
        path = self._run_dir.absolute() / f"{tag}.sock"
        if len(os.fsencode(path)) <= SUN_PATH_BYTES:
            return None, path
        folder = Path(tempfile.mkdtemp(prefix="gridsched-"))
        return folder, folder / "engine.sock"

    def _log(self, model: ModelName) -> RotatedLog:
        if model not in self._logs:
            self._logs[model] = RotatedLog(self._log_dir / file_name(model))
        return self._logs[model]

    def _keep_tail(self, instance_id: InstanceId, tail: tuple[str, ...]) -> None:
        self._tails[instance_id] = tail
        if len(self._tails) > TAILS_KEPT:
            self._tails.popitem(last=False)


def _here() -> Path:
    """The folder that a person's relative paths begin at: where this server was started, if that is still there."""
    try:
        return Path.cwd()
    except FileNotFoundError:
        return Path("/")
