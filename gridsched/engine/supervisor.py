"""The engine's processes, each from spawn to reaped: the `Engine` port. One call of `run` is one process's life.

Owns how a launch becomes a process (command line, address, log, questions) and which there are; `life` takes each
through its phases. It posts that a process is ready at most once, and that it is gone exactly once, after it is. It
decides nothing: whether to load again, or what to evict, is the scheduler's.
"""

import os
import secrets
import shutil
import signal
import tempfile
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

from gridsched.core.events import Failure, FailureCause, InstanceExited, InstanceReady
from gridsched.core.ids import DeviceName, InstanceId, ModelName
from gridsched.engine.accounting import allocations, misplaced
from gridsched.engine.address import Address, Port, free_port
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
from gridsched.engine.causes import meaningful, not_started
from gridsched.engine.child import Child
from gridsched.engine.life import Answers, Life, Patience
from gridsched.engine.locate import FoundEngine
from gridsched.engine.logs import RotatedLog, file_name, last_lines
from gridsched.engine.oomkills import OomKills
from gridsched.engine.phases import Phase
from gridsched.engine.ready import Expected, NotReady, wait_ready
from gridsched.engine.roster import Roster
from gridsched.ports import Backend, DeviceInfo, EngineInfo, Launch, Post, Vet
from gridsched.vram.flags import FlagError, parse_flags

SUN_PATH_BYTES = 107  # what the kernel takes for a Unix socket's path, less its closing NUL
TAG = "gridsched-"
KEY_BYTES = 24  # of chance, in what an engine at a port wants to be told
PORT_TRIES = 5  # another program may take a port between its choice and the engine's first word
TAILS_KEPT = 64  # of processes that have ended; enough to explain every recent failure


class LlamaEngine:
    """Implements `ports.Engine` with llama-server processes.

    `run_dir` is for sockets, lies in the data directory, belongs to this server alone and is made private (0700);
    `log_dir` holds one rotated log for each model. `devices` are those that a footprint may name. Where the engine can
    listen at ports only, `choose_port` says at which.
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
        choose_port: Callable[[], int] = free_port,
    ) -> None:
        self._found = found
        self._devices = {device.spec.name: device for device in devices}
        names = match(self._devices.values(), found.devices).names
        files = frozenset(name for name, option in found.options.items() if option.file)
        known = frozenset(found.options)
        key = found.options["--api-key"].environment if "--api-key" in known else None
        self._build = Build(Path(found.info.path), known, names, found.log_level, files, _here(), key or "")
        self._run_dir = run_dir
        self._log_dir = log_dir
        self._patience = Patience(startup_timeout_seconds, stop_grace_seconds)
        self._choose_port = choose_port
        self._kills = OomKills()
        self._lives: dict[InstanceId, Life] = {}
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

    def endpoint(self, instance_id: InstanceId) -> Address | None:
        """The address of a living process: what `SocketUpstream` asks for."""
        life = self._lives.get(instance_id)
        return life.address if life else None

    def stop(self, instance_id: InstanceId, *, at_once: bool = False) -> None:
        """Begin to end a process (TERM, then KILL after the grace; `at_once` KILL alone); ended ones are ignored.

        A process may be told to stop before the task that is to `run` it has had its first turn: it then never starts.
        """
        if life := self._lives.get(instance_id):
            life.tell(at_once=at_once)
        elif instance_id not in self._begun:
            self._stopped_ahead.add(instance_id)

    def be_patient(self, startup_timeout_seconds: float, stop_grace_seconds: float) -> None:
        """Wait as long from now on for processes that are started, or told to end, after this."""
        self._patience.startup_seconds = startup_timeout_seconds
        self._patience.grace_seconds = stop_grace_seconds

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

    def command_line(self, instance_id: InstanceId) -> tuple[str, ...]:
        """What a living process was started with."""
        life = self._lives.get(instance_id)
        return life.child.argv if life and life.child else ()

    def log_tail(self, instance_id: InstanceId) -> tuple[str, ...]:
        """The last lines a process printed, also after its end (for the last 64 of them)."""
        life = self._lives.get(instance_id)
        return life.child.tail() if life and life.child else self._tails.get(instance_id, ())

    def lost_log_lines(self) -> Mapping[ModelName, int]:
        """Of every model that has been started."""
        return {model: log.lost_lines for model, log in self._logs.items()}

    def last_log_lines(self, model: ModelName, count: int) -> Sequence[str]:
        """The last lines in its log files, of processes that are long gone, too."""
        return last_lines(self._log_dir / file_name(model), count)

    def log_path(self, model: ModelName) -> Path:
        """The file that a model's processes print to."""
        return self._log(model).path

    async def run(self, instance_id: InstanceId, launch: Launch, post: Post, vet: Vet | None = None) -> None:
        """Spawn, probe, vet, serve, reap. Cancelled, it ends the process first. See `ports.Engine`."""
        life = self._lives[instance_id] = Life(self._patience, self._kills)
        self._begun.add(instance_id)
        try:
            if instance_id in self._stopped_ahead:
                life.obey()
            elif (refusal := self._refusal(launch)) is not None:
                life.refuse(refusal)
            else:
                await self._live(life, instance_id, launch, post, vet)
        finally:
            del self._lives[instance_id]
            self._stopped_ahead.discard(instance_id)
            if life.child is not None:
                self._keep_tail(instance_id, life.tail)
                if life.failure is not None:
                    life.failure = replace(life.failure, log_path=str(self._log(launch.model).path))
            post(InstanceExited(instance_id, life.failure, () if life.failure is not None else meaningful(life.tail)))

    async def _live(self, life: Life, instance_id: InstanceId, launch: Launch, post: Post, vet: Vet | None) -> None:
        """One process, or at ports others after it until one has a port for itself."""

        def announce(answers: Answers) -> None:
            post(InstanceReady(instance_id, answers))

        tries = 1 if self._found.unix_socket else PORT_TRIES
        while life.phase is Phase.STARTING:
            tries -= 1
            tag = f"{TAG}{secrets.token_hex(8)}"
            with ExitStack() as stack:
                try:
                    spawn = Spawn(stack.enter_context(self._address(tag)), tag)
                    child = await self._spawn(launch, spawn)
                except (OSError, ValueError) as error:
                    life.refuse(not_started(error))
                    return
                questions = partial(self._questions, instance_id, launch, spawn, vet)
                await life.serve(child, spawn.address, questions, announce, more=tries > 0)

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

    async def _questions(
        self, instance_id: InstanceId, launch: Launch, spawn: Spawn, vet: Vet | None, child: Child
    ) -> Answers | Failure:
        """All that a starting process must answer. Raises NotReady."""
        await wait_ready(self._expected(launch, spawn, child))
        allocated = await self._accounted(child, launch)
        failure = await vet(instance_id, child.pid) if vet is not None else None
        return failure or allocated

    async def _accounted(self, child: Child, launch: Launch) -> Answers:
        """What it says that it has allocated. Raises NotReady where it computes elsewhere than was planned."""
        lines = await child.accounts()
        devices = devices_of(launch.option, self._devices)
        names = names_in_launch(devices, self._build.card_names)
        if (sentence := misplaced(lines, devices, names)) is not None:
            raise NotReady(sentence, FailureCause.CPU_FALLBACK)
        return allocations(lines, devices, names)

    async def _spawn(self, launch: Launch, spawn: Spawn) -> Child:
        devices = devices_of(launch.option, self._devices)
        argv = build_argv(self._build, launch, devices, spawn)
        env = {**build_env(os.environ, self._found.env, launch, devices), **self._roster.environment(spawn.tag)}
        if isinstance(spawn.address, Port) and spawn.address.key:
            env[self._build.key_variable] = spawn.address.key  # not in the command line, which anybody may read
        return await Child.spawn(
            argv, env, self._log(launch.model), partial(self._roster.enter, launch.model, spawn.tag)
        )

    def _expected(self, launch: Launch, spawn: Spawn, child: Child) -> Expected:
        carried = spawn.tag if "--tags" in self._build.known_flags else ""
        option = launch.option
        return Expected(spawn.address, child.pid, carried, option.parallel, option.ctx_size, launch.capabilities)

    @contextmanager
    def _address(self, tag: str) -> Iterator[Address]:
        """Where a process is to listen, and nothing of it left afterwards. A socket's path must be one that the kernel
        takes; it gets a folder of its own where ours lies too deep. Raises OSError."""
        if not self._found.unix_socket:
            key = secrets.token_urlsafe(KEY_BYTES) if self._build.key_variable else ""
            yield Port(self._choose_port(), key)
            return
        self._run_dir.mkdir(mode=0o700, parents=True, exist_ok=True)  # somebody may have tidied up since the start
        path = self._run_dir.absolute() / f"{tag}.sock"
        folder: Path | None = None
        if len(os.fsencode(path)) > SUN_PATH_BYTES:
            folder = Path(tempfile.mkdtemp(prefix=TAG))
            path = folder / "engine.sock"
        try:
            yield path
        finally:
            with suppress(OSError):  # whatever has become of the folder: that the process has ended is to be told
                path.unlink()
            if folder is not None:
                shutil.rmtree(folder, ignore_errors=True)

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
