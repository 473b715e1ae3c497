"""Composition: from settings to a running server. No rule of the product lives here.

Owns the order in which things are found, and the sentences for what is missing. Everything that can be wrong is found
before the first process is started, and ends with `StartError`: a sentence, what to do, and an exit code.
"""

import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import trio

from gridsched.api.app import LAST_WORDS_SECONDS, Front
from gridsched.api.authority import Authority
from gridsched.api.listen import CannotListen, PortTaken, crowded, listen, room_for_connections
from gridsched.api.plans import Planner
from gridsched.api.problems import RequestError
from gridsched.api.settings import BatchFigures, FrontSettings
from gridsched.core.errors import CoreError
from gridsched.core.events import Event
from gridsched.core.scheduler import Scheduler
from gridsched.devices.choice import Usable, Wanted, all_of
from gridsched.devices.discover import NoDevice, discover
from gridsched.devices.headroom import Headroom
from gridsched.devices.processes import HostHeld
from gridsched.devices.procfs import memory_pressure
from gridsched.engine.argv import refused_flags
from gridsched.engine.builds import BuildError, Builds
from gridsched.engine.cards import advice, match, unmeasured
from gridsched.engine.child import KILLED_SECONDS
from gridsched.engine.find import find_engine, how_it_listens
from gridsched.engine.locate import FoundEngine
from gridsched.engine.options import Option, flag_faults, settings_of
from gridsched.engine.supervisor import LlamaEngine
from gridsched.engine.sweep import others, sweep
from gridsched.engine.upstream import SocketUpstream
from gridsched.library.catalog import ModelCatalog
from gridsched.library.planning import Defaults
from gridsched.library.scan import usual_folders
from gridsched.library.sources import read_library, with_problems
from gridsched.metrics.registry import Metrics
from gridsched.ports import EngineInfo
from gridsched.runtime.advice import Adviser
from gridsched.runtime.dispatch import tell_served
from gridsched.runtime.heartbeat import Beat, HeartbeatFile, Listener
from gridsched.runtime.runtime import Limits, Parts, Runtime
from gridsched.runtime.steady import SteadyClock
from gridsched.runtime.tape import Recorder
from gridsched.service.notify import Manager
from gridsched.service.words import summary
from gridsched.settings.admin_token import make_admin_token
from gridsched.settings.api_keys import KeyFile
from gridsched.settings.document import Loc, dotted
from gridsched.settings.faults import SettingsError
from gridsched.settings.load import defaults, find, load, override
from gridsched.settings.paths import DataDir, DataDirError, DataDirInUse, Holder, data_dir_path
from gridsched.settings.schema import Settings
from gridsched.store.batches import BatchStore
from gridsched.store.measurements import MeasurementStore
from gridsched.store.pruning import Known
from gridsched.vram.environment import environment_fault
from gridsched.vram.flags import FlagError, parse_flags

CONFIGURATION, PORT_TAKEN, DATA_DIR_IN_USE = 2, 3, 4
"""Exit codes of the contract."""

ENGINES = "engines"
"""The folder of the data directory that holds engine builds."""

REAP_SECONDS = 5.0
"""After a process's own grace it is killed; this is the time for that to show."""

SWITCH_SECONDS = 0.0005
"""How long a thread that computes keeps the interpreter from one that waits for it. While a search for what would fit
went on, the scheduler's task woke 5 to 20 ms late with Python's own 5 ms, and 1 to 3 with this; it took as long."""

Say = Callable[[str], None]


class Broken(Exception):
    """The scheduler has met a bug of its own and must not go on: what does not hold, and the story of what it
    concerns, a line each."""


class StartError(Exception):
    """The server cannot start: one or more sentences for a person, and the exit code."""

    def __init__(self, message: str, code: int = CONFIGURATION) -> None:
        super().__init__(message)
        self.code = code


class SystemClock:
    """The clocks of this machine: a `ports.Clock`."""

    def wall_seconds(self) -> float:
        """Seconds since the epoch."""
        return time.time()

    def boot_seconds(self) -> float:
        """Seconds since the start of the machine."""
        return time.clock_gettime(time.CLOCK_BOOTTIME)

    def awake_seconds(self) -> float:
        """The same without those in which it slept."""
        return time.clock_gettime(time.CLOCK_MONOTONIC)


@dataclass(frozen=True, slots=True)
class Machine:
    """What was found: the parts of a server, sentences about the choices made, who is told the port and each heartbeat.

    `data_dir` is where those look. `problems` are of the configuration: there can be a server, but it cannot do all
    that it was told. `holder` is a server that has the data directory already, which only `check` goes on beside.
    """

    parts: Parts
    notes: tuple[str, ...]
    problems: tuple[str, ...] = ()
    holder: Holder | None = None
    say_port: Callable[[int, str], None] = lambda port, host: None  # noqa: ARG005 - a simulated machine tells nobody
    beat: Listener = lambda beat: None  # noqa: ARG005 - the same
    data_dir: Path | None = None


def read_settings(
    config: Path | None, environ: Mapping[str, str], host: str | None, port: int | None, models_dir: Path | None
) -> tuple[Settings, str]:
    """The settings with what the command line said, and where they come from. Raises StartError."""
    path = find(config, environ, Path())
    try:
        settings = load(path, environ) if path is not None else defaults()
        return override(settings, host, port, models_dir), str(path) if path is not None else "defaults (no file)"
    except SettingsError as error:
        raise StartError(str(error)) from None


def take_data_dir(flag: Path | None, environ: Mapping[str, str], *, or_visit: bool = False) -> DataDir:
    """Own the data directory. Raises StartError, with its own code where another server has it and no visit will do."""
    try:
        path = data_dir_path(flag, environ)
        return DataDir.own_or_visit(path) if or_visit else DataDir.own(path)
    except DataDirInUse as error:
        raise StartError(str(error), DATA_DIR_IN_USE) from None
    except DataDirError as error:
        raise StartError(str(error)) from None


def open_port(settings: Settings) -> socket.socket:
    """The public socket, listening. Raises StartError."""
    try:
        return listen(settings.server.host, settings.server.port)
    except PortTaken as error:
        raise StartError(f"{error}; stop it, or choose another port with --port", PORT_TAKEN) from None
    except CannotListen as error:
        raise StartError(str(error)) from None


def find_machine(settings: Settings, data_dir: DataDir, say: Say, environ: Mapping[str, str], home: Path) -> Machine:
    """Find devices, engine and models. Blocks, and runs the engine once: not inside trio. Raises StartError."""
    if data_dir.holder is None:  # beside a server there is nothing to tidy up, and nothing that a visitor may
        sweep(data_dir.path, data_dir.run, say)
    headroom = Headroom(settings.devices.headroom.share, settings.devices.headroom.size_bytes)
    wanted = Wanted(headroom, settings.devices.ignore, settings.devices.total_bytes)
    engine_found = find_engine(
        str(settings.engine.path) if settings.engine.path else None, environ, pinned_engine(settings, data_dir.path)
    )
    try:
        found = discover(wanted, settings.devices.host_budget_bytes, _cards_of(engine_found))
    except NoDevice as error:
        raise StartError(str(error)) from None
    infos, host, silent = found.monitor.devices(), found.host, found.silent
    store = MeasurementStore(data_dir.path / "measurements.sqlite3", say, owned=data_dir.holder is None)
    folders = _folders(settings, data_dir, environ, home)
    faults = tuple(launch_faults(settings, engine_found.options))
    refused = {name: f"{_setting_of(key)}: {sentence}" for name, key, sentence in reversed(faults)}
    entries, virtuals, families = settings.entries(), settings.virtual_entries(), settings.family_entries()
    library = with_problems(read_library(entries, folders, virtuals, families), refused)
    own = settings.defaults
    catalog = ModelCatalog(
        library,
        infos,
        store.measurements(),
        defaults=Defaults(
            own.ctx_target, own.ctx_floor, own.parallel, own.idle_ttl_seconds, own.cache_type, own.reasoning_format
        ),
        families=families,
        default_model=settings.library.default_model,
        engine_build=engine_found.info.version,
        host=host.spec if host is not None else None,
    )
    cards = frozenset(info.identity for info in infos)
    store.prune(Known(catalog.fingerprints(), engine_found.info.version, cards))
    told = [settings.told(key, sentence) for _, key, sentence in faults]
    in_the_way = [] if engine_found.info.ok else [engine_found.info.problem, *told, *_unchecked(settings)]
    in_the_way += [*our_flags(settings), *(settings.told(key, sentence) for key, sentence in catalog.faults)]
    in_the_way += [] if catalog.models() else [*catalog.notes, no_model(folders)]
    if in_the_way:
        raise StartError("\n".join(in_the_way))
    listed = engine_found.devices
    notes = [*found.notes, *match(infos, listed).notes, *unmeasured(listed, infos), *catalog.notes]
    notes += advice(listed, engine_found.card_trouble, (), compiler=False)
    notes += [*how_it_listens(engine_found), *crowded(room_for_connections())]
    notes += others(data_dir.path, found.holders)
    problems = [*catalog.problems, *told]
    engine = LlamaEngine(
        engine_found,
        infos,
        run_dir=data_dir.run,
        log_dir=data_dir.logs,
        startup_timeout_seconds=settings.engine.startup_timeout_seconds,
        stop_grace_seconds=settings.engine.stop_grace_seconds,
    )
    upstream, clock = SocketUpstream(engine.endpoint), SystemClock()
    parts = Parts(catalog, engine, upstream, found.monitor, store, clock, host, HostHeld(), memory_pressure, silent)
    return Machine(parts, tuple(notes), tuple(problems), data_dir.holder, *told_in(data_dir), data_dir.path)


def told_in(data_dir: DataDir) -> tuple[Callable[[int, str], None], Listener]:
    """Who is told the port and its address, and each heartbeat: those who look into the data directory."""
    beat = HeartbeatFile(data_dir.run / "heartbeat")

    def say_port(port: int, host: str) -> None:
        data_dir.say_port(port, host)
        beat.starting(port)

    return say_port, beat


def pinned_engine(settings: Settings, data_dir: Path) -> Path | None:
    """The engine that was pinned with `gridsched engine use`, where the configuration names none. Raises StartError."""
    try:
        return None if settings.engine.path else Builds(data_dir / ENGINES).pinned()
    except BuildError as error:
        raise StartError(str(error)) from None


def _cards_of(engine: FoundEngine) -> Usable:
    """Which cards an engine can compute on; all of them where there is no engine to ask."""
    return (lambda cards: match(cards, engine.devices).backends) if engine.info.ok else all_of


def our_flags(settings: Settings) -> Iterator[str]:
    """The flags that are ours to give (address, model, slots' doors) may not be configured: a sentence each."""
    for name, model in settings.models.items():
        for flag in refused_flags(model.flags):
            place = ("models", name, "flags", _place_of(flag, model.flags))
            yield settings.told(
                place, f"{flag}: what is loaded, where it listens and what it tells is gridsched's to say; remove it"
            )


def _unchecked(settings: Settings) -> Iterator[str]:
    """What nobody can say of the models' flags without an engine."""
    if any(model.flags for model in settings.models.values()):
        yield "whether the engine knows the flags of the models was not checked: there is none to ask"


def launch_faults(settings: Settings, options: Mapping[str, Option]) -> Iterator[tuple[str, Loc, str]]:
    """What an engine would refuse of the models' flags and environments, or what cannot be planned: model, key, why."""
    variables = settings_of(options)
    for name, model in settings.models.items():
        faults = [(fault.index, fault.sentence) for fault in flag_faults(model.flags, options)]
        if not faults:
            try:
                parse_flags(model.flags)
            except FlagError as error:
                faults.append((_place_of(error.flag, model.flags), str(error)))
        for index, sentence in faults:
            yield name, ("models", name, "flags", index), sentence
        for variable in model.env:
            if fault := environment_fault(variable, variables):
                yield name, ("models", name, "env", variable), fault


def engine_faults(settings: Settings, engine: FoundEngine) -> list[str]:
    """What an engine would refuse of the configuration: a sentence each, with its place in the file."""
    return [settings.told(key, sentence) for _, key, sentence in launch_faults(settings, engine.options)]


def _setting_of(key: Loc) -> str:
    """A fault's setting among those of its model."""
    return dotted(key[2:] if key[2] == "env" else key[2:3])


def _place_of(flag: str, flags: tuple[str, ...]) -> int:
    """Where a flag was given last."""
    return max((index for index, word in enumerate(flags) if word.partition("=")[0] == flag), default=0)


def _folders(settings: Settings, data_dir: DataDir, environ: Mapping[str, str], home: Path) -> tuple[Path, ...]:
    folders: list[Path] = []
    for entry in settings.library.dirs:
        folders += usual_folders(data_dir.path, home, environ) if entry == "auto" else (Path(entry),)
    return tuple(folders)


def no_model(folders: tuple[Path, ...]) -> str:
    """The sentence for a library without a single model."""
    nowhere = "no folder: none of the usual ones is there (~/models, the caches of llama.cpp and the hub)"
    looked = ", ".join(map(str, folders)) or nowhere
    return (
        f"no model found: looked for GGUF files in {looked}. Put one there, name a folder with --models-dir, "
        "or configure one under models. gridsched demo shows it at work with two small ones, fetched into"
        " ~/.cache/gridsched/models"
    )


def describe(engine: EngineInfo) -> str:
    """The engine in a few words."""
    return f"{engine.path or 'llama-server'} ({engine.version}, {engine.backend})"


def plan_here(parts: Parts, settings: Settings, model: str, ctx_size: int | None) -> Mapping[str, object]:
    """What a load would come to on a server that had just been started here: nothing runs but what is pinned, which
    loads first. Reads the devices once; not inside trio. Raises StartError for a model or context that cannot be."""
    scheduler = Scheduler(settings.policy())

    def hear(event: Event) -> None:
        scheduler.step(event, 0.0)

    async def asked() -> Mapping[str, object]:
        hear(parts.devices_changed())
        for read in await parts.monitor.read({}):
            hear(read)
        tell_served(parts.catalog, hear)
        planner = Planner(
            parts.catalog,
            Adviser(parts.catalog),
            lambda name, options: scheduler.outlook(name, 0.0, options),
            parts.host,
        )
        return await planner.plan(model, None if ctx_size is None else str(ctx_size))

    try:
        return trio.run(asked)
    except RequestError as error:
        raise StartError(error.problem.message) from None


def open_tape(path: Path, settings: Settings, say: Say) -> Recorder:
    """Begin to record a run. Raises StartError."""
    try:
        return Recorder(path, settings.policy(), say)
    except OSError as error:
        raise StartError(f"--record {path}: {error.strerror}") from None


Access = tuple[Authority, KeyFile | None]
"""Who may what, and the file whose changes it is to be told of."""


def access_in(data_dir: Path | None, say: Say) -> Access:
    """Who may use the server, and change it: whoever has a key, or can read the admin token, which is made where there
    is none."""
    if data_dir is None:
        return Authority(), None
    token, keys = "", KeyFile(data_dir, say)
    try:
        token = make_admin_token(data_dir)
    except OSError as error:
        say(f"no admin token can be kept in {data_dir}: {error.strerror}; drain and restart are refused")
    return Authority(token, keys.keys), keys


def serve(
    found: Machine,
    settings: Settings,
    listener: socket.socket,
    access: Access,
    ready: Callable[[], None],
    manager: Manager,
    recorder: Recorder | None = None,
    batches: BatchStore | None = None,
) -> int:
    """Run the server until a signal ends it, the first asks it to drain and stop, the second ends it at once; or until
    somebody asks it to end with another exit code, which is returned. `ready` is called when it takes requests. Raises
    Broken when the scheduler finds that it has a bug; every process has been ended by then."""
    parts = found.parts
    metrics = Metrics(parts.engine.info())

    def beat(each: Beat) -> None:
        found.beat(each)
        manager.beat()
        if manager.listens:
            manager.status(summary(runtime.snapshot()))

    runtime = Runtime(
        parts,
        settings.policy(),
        limits=limits_of(settings),
        sink=metrics.saw,
        timed=metrics.decided,
        recorder=recorder,
        beat=beat,
    )
    metrics.watch(runtime.snapshot, parts.catalog, parts.pressure)
    metrics.watch_logs(parts.engine.lost_log_lines)
    front = Front(listener, figures_of(settings), metrics, access[0], store=batches)
    sys.setswitchinterval(SWITCH_SECONDS)
    try:
        ending = partial(manager.stopping, longest_end_seconds(settings))
        return trio.run(_serve, runtime, front, access, ready, ending, clock=SteadyClock())
    except* CoreError as bugs:
        raise Broken("\n".join(_told(bugs))) from None


def _told(bugs: BaseExceptionGroup[CoreError]) -> Iterator[str]:
    """The bugs of the scheduler in a group, with their stories, whatever groups are inside it."""
    for bug in bugs.exceptions:
        if isinstance(bug, BaseExceptionGroup):
            yield from _told(bug)
        else:
            yield str(bug)


def limits_of(settings: Settings) -> Limits:
    """How long the server's end may take."""
    return Limits(stop_seconds=settings.engine.stop_grace_seconds + REAP_SECONDS)


def figures_of(settings: Settings) -> FrontSettings:
    """The figures of the front."""
    return FrontSettings(
        host=settings.server.host,
        names=frozenset({socket.gethostname().lower()}),
        cors_origins=frozenset(settings.server.cors_origins),
        trusted_proxies=settings.server.trusted_proxies,
        max_body_bytes=settings.server.max_body_bytes,
        embedding_chunk=settings.scheduler.embedding_chunk,
        stall_seconds=settings.scheduler.stall_limit_seconds,
        comments=settings.server.stream_comments,
        comment_seconds=settings.server.comment_interval_seconds,
        write_stall_seconds=settings.server.write_stall_seconds,
        most_connections=room_for_connections(),
        fetches_images=settings.server.image_urls,
        image_max_bytes=settings.server.image_max_bytes,
        image_seconds=settings.server.image_timeout_seconds,
        image_hosts=frozenset(settings.server.image_hosts),
        batches=BatchFigures(
            settings.batches.in_flight,
            settings.batches.window,
            settings.batches.max_file_bytes,
            settings.batches.keep_seconds,
        ),
    )


def longest_end_seconds(settings: Settings) -> float:
    """From the word to end until the process has: running answers, their last words, the engines, one that no kill
    ends."""
    limits = limits_of(settings)
    answers = limits.drain_seconds + FrontSettings().graceful_seconds + LAST_WORDS_SECONDS
    return answers + limits.stop_seconds + KILLED_SECONDS


async def _serve(
    runtime: Runtime, front: Front, access: Access, ready: Callable[[], None], ending: Callable[[], None]
) -> int:
    """`ready` is called when the first reading of the devices is in, `ending` when the end begins."""
    exit_code = 0
    authority, keys = access

    async def opened(runtime: Runtime, stop: trio.Event) -> None:
        ready()
        await front(runtime, stop)

    async def tell_the_end() -> None:
        await runtime.told_to_end()
        ending()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(_signals, runtime, nursery.cancel_scope)
        nursery.start_soon(tell_the_end)
        if keys is not None:
            nursery.start_soon(keys.follow, authority.keep)
        exit_code = await runtime.serve(opened)
        nursery.cancel_scope.cancel()
    return exit_code


async def _signals(runtime: Runtime, scope: trio.CancelScope) -> None:
    """The first signal drains, the second ends at once. A terminal that is closed is no reason to cut answers off, and
    none to end at all for who was started with `nohup`."""
    wanted = [signal.SIGTERM, signal.SIGINT]
    if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:
        wanted.append(signal.SIGHUP)
    with trio.open_signal_receiver(*wanted) as signals:
        await anext(signals)
        runtime.end()
        await anext(signals)
        scope.cancel()
