"""Finds what a server is made of: devices, engine, models. No rule of the product lives here.

Owns the order in which things are found, and the sentences for what is missing.
"""

from collections.abc import Callable, Mapping
from pathlib import Path

import trio

from gridsched.api.listen import crowded, room_for_connections
from gridsched.app.cataloguing import Cataloguer, headroom_of, usual_in
from gridsched.app.reloading import Machinery
from gridsched.app.start import Machine, Say, StartError, SystemClock
from gridsched.control.plans import Planner
from gridsched.control.problems import RequestError
from gridsched.control.verb import as_builtins
from gridsched.core.events import Event
from gridsched.core.scheduler import Scheduler
from gridsched.devices.choice import Usable, Wanted, all_of
from gridsched.devices.discover import NoDevice, discover
from gridsched.devices.margin import HostWithin, Margin, MonitorWithin
from gridsched.devices.processes import HostHeld
from gridsched.devices.procfs import memory_pressure
from gridsched.engine.builds import BuildError, Builds
from gridsched.engine.cards import advice, match, unmeasured
from gridsched.engine.find import find_engine, how_it_listens
from gridsched.engine.locate import FoundEngine
from gridsched.engine.supervisor import LlamaEngine
from gridsched.engine.sweep import others, sweep
from gridsched.engine.upstream import SocketUpstream
from gridsched.library.kept import FILE as KEPT_HEADERS
from gridsched.library.kept import HeaderFile
from gridsched.library.live import LiveCatalog
from gridsched.library.places import DOWNLOADS
from gridsched.library.read import Headers
from gridsched.ports import DeviceInfo
from gridsched.runtime.advice import Adviser
from gridsched.runtime.dispatch import tell_served
from gridsched.runtime.heartbeat import HeartbeatFile, Listener
from gridsched.runtime.runtime import Parts
from gridsched.settings.paths import DataDir
from gridsched.settings.schema import Settings
from gridsched.store.measurements import MeasurementStore
from gridsched.store.pruning import Known
from gridsched.store.standing import StandingFile

ENGINES = "engines"
"""The folder of the data directory that holds engine builds."""


def find_machine(settings: Settings, data_dir: DataDir, say: Say, environ: Mapping[str, str], home: Path) -> Machine:
    """Find devices, engine and models. Blocks, and runs the engine once: not inside trio. Raises StartError."""
    if data_dir.holder is None:  # beside a server there is nothing to tidy up, and nothing that a visitor may
        sweep(data_dir.path, data_dir.run, say)
    headroom = headroom_of(settings)
    wanted = Wanted(headroom, settings.devices.ignore, settings.devices.total_bytes)
    engine_found = find_engine(
        str(settings.engine.path) if settings.engine.path else None, environ, pinned_engine(settings, data_dir.path)
    )
    try:
        found = discover(wanted, settings.devices.host_budget_bytes, _cards_of(engine_found))
    except NoDevice as error:
        raise StartError(str(error)) from None
    margin = Margin(headroom)  # which a reload may change
    monitor, silent = MonitorWithin(found.monitor, margin), found.silent
    infos, host = monitor.devices(), HostWithin(found.host, margin) if found.host is not None else None
    store = MeasurementStore(data_dir.path / "measurements.sqlite3", say, owned=data_dir.holder is None)
    usual = usual_in(data_dir.path, environ, home)
    beside = (lambda: host.spec) if host is not None else (lambda: None)
    downloads = data_dir.path / DOWNLOADS
    headers = Headers(HeaderFile(data_dir.path / KEPT_HEADERS, say, owned=data_dir.holder is None))
    cataloguer = Cataloguer(engine_found, monitor.devices, store.measurements, beside, usual, downloads, headers)
    made = cataloguer.make(settings)
    catalog = made.catalog
    cataloguer.watched.read(made.seen)
    cards = frozenset(info.identity for info in infos)
    store.prune(Known(catalog.fingerprints(), engine_found.info.version, cards))
    if made.in_the_way:
        raise StartError("\n".join(made.in_the_way))
    listed = engine_found.devices
    notes = [*found.notes, *match(infos, listed).notes, *unmeasured(listed, infos), *catalog.notes]
    notes += advice(listed, engine_found.card_trouble, (), compiler=False)
    notes += [*how_it_listens(engine_found), *crowded(room_for_connections())]
    notes += others(data_dir.path, found.holders)
    engine = _engine(engine_found, infos, settings, data_dir)
    upstream, clock = SocketUpstream(engine.endpoint), SystemClock()
    live = LiveCatalog(catalog)
    standing = StandingFile(data_dir.path / "standing.json", say, owned=data_dir.holder is None)
    parts = Parts(live, engine, upstream, monitor, store, clock, host, HostHeld(), memory_pressure, silent, standing)
    machinery = Machinery(live, cataloguer, margin, engine.be_patient)
    told = told_in(data_dir)
    return Machine(parts, tuple(notes), made.problems, data_dir.holder, *told, data_dir.path, machinery)


def _engine(
    engine_found: FoundEngine, infos: tuple[DeviceInfo, ...], settings: Settings, data_dir: DataDir
) -> LlamaEngine:
    return LlamaEngine(
        engine_found,
        infos,
        run_dir=data_dir.run,
        log_dir=data_dir.logs,
        startup_timeout_seconds=settings.engine.startup_timeout_seconds,
        stop_grace_seconds=settings.engine.stop_grace_seconds,
    )


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
        return as_builtins(await planner.plan(model, None if ctx_size is None else str(ctx_size)))

    try:
        return trio.run(asked)
    except RequestError as error:
        raise StartError(error.problem.message) from None
