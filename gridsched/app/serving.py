"""Runs what was found as a server until it is told to end. Composition only: no rule of the product lives here.

Owns what settings become of the parts' own figures, the signals, and who may use the server.
"""

import importlib
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import trio

from gridsched import __version__
from gridsched.api.app import LAST_WORDS_SECONDS, Doors, Front
from gridsched.api.listen import room_for_connections
from gridsched.api.settings import BatchFigures, FrontSettings
from gridsched.api.tracing import UNTRACED
from gridsched.app.beside import NOTHING_BESIDE, Access, Beside
from gridsched.app.reloading import ServerWorld
from gridsched.app.restarting import refuse_start
from gridsched.app.start import Machine, Say, StartError, certificate_of
from gridsched.control.asker import by_hand
from gridsched.control.audit import Audit
from gridsched.control.authority import Authority
from gridsched.control.downloads import Downloads
from gridsched.control.own_log import OwnLog
from gridsched.control.problems import Problem, RequestError
from gridsched.control.reloading import HANG_UP, WATCHED, Reloader
from gridsched.control.services import Place, Services
from gridsched.core.commands import Log, LogEvent
from gridsched.core.errors import CoreError
from gridsched.credentials import ApiKey
from gridsched.engine.child import KILLED_SECONDS
from gridsched.library.hub import Hub
from gridsched.library.places import DOWNLOADS
from gridsched.library.shelf import Shelf
from gridsched.mcp.door import Agents
from gridsched.metrics.registry import Metrics
from gridsched.runtime.decisions import DecisionLog, Line
from gridsched.runtime.heartbeat import Beat
from gridsched.runtime.runtime import Limits, Runtime
from gridsched.runtime.steady import SteadyClock
from gridsched.runtime.tape import Recorder
from gridsched.service.notify import Manager
from gridsched.service.words import summary
from gridsched.settings.admin_token import make_admin_token
from gridsched.settings.api_keys import KeyFile
from gridsched.settings.schema import Settings
from gridsched.store.benchmarks import BenchmarkStore
from gridsched.traces.setup import FLUSH_SECONDS

if TYPE_CHECKING:  # see `api.later`
    from quart import Blueprint

REAP_SECONDS = 5.0
"""After a process's own grace it is killed; this is the time for that to show."""

SWITCH_SECONDS = 0.0005
"""How long a thread that computes keeps the interpreter from one that waits for it. While a search for what would fit
went on, the scheduler's task woke 5 to 20 ms late with Python's own 5 ms, and 1 to 3 with this; it took as long."""


WATCHDOG_TOKEN = "watchdog.token"  # noqa: S105 - the name of the file
"""In the data directory: the credential of the recovery sidecar, which makes it."""


class Broken(Exception):
    """The scheduler has met a bug of its own and must not go on: what does not hold, and the story of what it
    concerns, a line each."""


def open_tape(path: Path, settings: Settings, say: Say) -> Recorder:
    """Begin to record a run. Raises StartError."""
    try:
        return Recorder(path, settings.policy(), say)
    except OSError as error:
        raise StartError(f"--record {path}: {error.strerror}") from None


def access_in(data_dir: Path | None, say: Say, *, insecure: bool = False) -> Access:
    """Who may use the server, and change it: whoever has a key, or can read the admin token, which is made where there
    is none. `insecure`: callers of other machines may use it without a key, as long as there is none."""
    if data_dir is None:
        return Authority(insecure=insecure), None
    token, keys = "", KeyFile(data_dir, say)
    try:
        token = make_admin_token(data_dir)
    except OSError as error:
        say(f"no admin token can be kept in {data_dir}: {error.strerror}; drain and restart are refused")
    return Authority(token, keys.keys, insecure=insecure), keys


def downloads_in(data_dir: Path | None, environ: Mapping[str, str]) -> Downloads | None:
    """The hub that the environment names, and the folder for what is downloaded. Asks nothing, makes nothing."""
    return Downloads(Hub(environ), Shelf(data_dir / DOWNLOADS)) if data_dir is not None else None


def serve(
    found: Machine,
    settings: Settings,
    listeners: Sequence[socket.socket],
    access: Access,
    ready: Callable[[], None],
    manager: Manager,
    beside: Beside = NOTHING_BESIDE,
) -> int:
    """Run the server on these sockets, its own first, until a signal ends it, the first asks it to drain and stop, the
    second ends it at once; or until somebody asks it to end with another exit code, which is returned. `ready` is
    called when it takes requests. Raises Broken when the scheduler finds that it has a bug; every process has been
    ended by then."""
    metrics = Metrics(found.parts.engine.info(), found.parts.clock.wall_seconds)
    runtime = runtime_of(found, settings, metrics, manager, beside)
    reloader: Reloader | None = None

    def take_figures(settings: Settings) -> Callable[[], None]:
        figures = figures_of(settings)

        def take() -> None:
            front.go_by(figures)
            runtime.limits = limits_of(settings)

        return take

    if (again := beside.again) is not None:
        start = partial(refuse_start, access[0], found.engines_dir, os.environ)
        world = ServerWorld(runtime, again.source, found.machinery, settings.policy(), take_figures, start)
        reloader = Reloader(runtime, world, settings, again.tell, partial(note_reload, beside.audit))
        metrics.watch_configuration(lambda: reloader is None or reloader.error is None)
    place, hub = place_of(listeners[0], settings, found.data_dir), downloads_in(found.data_dir, os.environ)
    services = services_of(access[0], reloader, beside, place, hub)
    front = front_of(listeners, settings, metrics, access[0], services, beside)
    sys.setswitchinterval(SWITCH_SECONDS)
    try:

        def ending() -> None:
            manager.stopping(longest_end_seconds(reloader.settings if reloader is not None else settings))

        return trio.run(_serve, runtime, front, access, ready, ending, reloader, beside.audit, clock=SteadyClock())
    except* CoreError as bugs:
        raise Broken("\n".join(_told(bugs))) from None


def front_of(
    listeners: Sequence[socket.socket],
    settings: Settings,
    metrics: Metrics,
    authority: Authority,
    services: Callable[[Runtime], Services],
    beside: Beside,
) -> Front:
    """What serves clients: the API, agents, and the panel."""
    (listener, *others), batches = listeners, beside.batches
    doors = Doors(Agents(), _panel, tuple(others), beside.tracing or UNTRACED)
    return Front(listener, figures_of(settings), metrics, authority, store=batches, services=services, doors=doors)


def _panel() -> "Blueprint":
    made: Blueprint = importlib.import_module("gridsched.panel.pages").blueprint()  # see `api.later`
    return made


def runtime_of(found: Machine, settings: Settings, metrics: Metrics, manager: Manager, beside: Beside) -> Runtime:
    """The server's inside, seen by the metrics and the traces; the service manager is told how it stands."""
    parts, tracing = found.parts, beside.tracing

    def saw(line: Line) -> None:
        metrics.saw(line)
        if tracing is not None:
            tracing.saw(line)

    def beat(each: Beat) -> None:
        found.beat(each)
        manager.beat()
        if manager.listens:
            manager.status(summary(runtime.snapshot()))

    runtime = Runtime(
        parts,
        settings.policy(),
        limits=limits_of(settings),
        timed=metrics.decided,
        recorder=beside.recorder,
        beat=beat,
        log=DecisionLog(saw, beside.past),
    )
    metrics.watch(runtime.snapshot, parts.catalog, parts.pressure)
    metrics.watch_logs(parts.engine.lost_log_lines)
    metrics.watch_decision_log(lambda: runtime.log.lost)
    return runtime


def services_of(
    authority: Authority, reloader: Reloader | None, beside: Beside, place: Place, hub: Downloads | None
) -> Callable[[Runtime], Services]:
    """What the verbs work on. What the program says from now on is kept for whoever asks."""
    own_log = OwnLog()
    logging.getLogger().addHandler(own_log)
    return partial(
        Services,
        authority=authority,
        reloader=reloader,
        place=place,
        hub=hub,
        audit=beside.audit,
        configuration=beside.configuration,
        keyring=beside.keyring,
        own_log=own_log,
        benchmarks=beside.benchmarks or BenchmarkStore(),
    )


def _told(bugs: BaseExceptionGroup[CoreError]) -> Iterator[str]:
    """The bugs of the scheduler in a group, with their stories, whatever groups are inside it."""
    for bug in bugs.exceptions:
        if isinstance(bug, BaseExceptionGroup):
            yield from _told(bug)
        else:
            yield str(bug)


def place_of(listener: socket.socket, settings: Settings, data_dir: Path | None) -> Place:
    """Where the server is, for whoever asks how to reach it."""
    host, port = listener.getsockname()[:2]
    token = str(data_dir / WATCHDOG_TOKEN) if data_dir is not None else ""
    has_tls = certificate_of(settings) is not None
    return Place(host, port, has_tls, settings.watchdog.port if token else None, token)


def limits_of(settings: Settings) -> Limits:
    """How long the server's end may take."""
    return Limits(stop_seconds=settings.engine.stop_grace_seconds + REAP_SECONDS)


def figures_of(settings: Settings) -> FrontSettings:
    """The figures of the front. Raises StartError."""
    return FrontSettings(
        host=settings.server.host,
        names=frozenset({socket.gethostname().lower()}),
        cors_origins=frozenset(settings.server.cors_origins),
        trusted_proxies=settings.server.trusted_proxies,
        certificate=certificate_of(settings),
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
    return answers + limits.stop_seconds + KILLED_SECONDS + FLUSH_SECONDS


async def _serve(
    runtime: Runtime,
    front: Front,
    access: Access,
    ready: Callable[[], None],
    ending: Callable[[], None],
    reloader: Reloader | None,
    audit: Audit | None,
) -> int:
    """`ready` is called when the first reading of the devices is in, `ending` when the end begins."""
    exit_code = 0
    authority, keys = access
    runtime.log.begin(__version__, os.getpid(), runtime.parts.clock.wall_seconds())

    async def opened(runtime: Runtime, stop: trio.Event) -> None:
        ready()
        await front(runtime, stop)

    async def tell_the_end() -> None:
        await runtime.told_to_end()
        ending()

    def keep(changed: Sequence[ApiKey]) -> None:
        authority.keep(changed)
        if audit is not None:
            audit.note("change_keys", {"keys": [key.name for key in changed]}, by_hand("file"), "done")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(_signals, runtime, nursery.cancel_scope, audit)
        nursery.start_soon(tell_the_end)
        nursery.start_soon(_hang_ups, reloader)
        if keys is not None:
            nursery.start_soon(keys.follow, keep)
        if reloader is not None:
            nursery.start_soon(reloader.run)
        exit_code = await runtime.serve(opened)
        nursery.cancel_scope.cancel()
    runtime.note(Log(LogEvent.END, figures={"code": exit_code}))
    return exit_code


def note_reload(audit: Audit | None, why: str, changed: Sequence[str], problem: Problem | None) -> None:
    """In the audit log, where no verb has asked for it: those are there already."""
    via = {HANG_UP: "signal", WATCHED: "file"}.get(why)
    if audit is not None and via is not None:
        audit.note(
            "reload_config", {"changes": list(changed)}, by_hand(via), "done" if problem is None else "refused", problem
        )


async def _signals(runtime: Runtime, scope: trio.CancelScope, audit: Audit | None) -> None:
    """The first signal drains, the second ends at once."""
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        number = await anext(signals)
        if audit is not None:
            audit.note("end", {"signal": signal.Signals(number).name}, by_hand("signal"), "done")
        runtime.end()
        await anext(signals)
        scope.cancel()


async def _hang_ups(reloader: Reloader | None) -> None:
    """SIGHUP has the configuration read again and ends nothing, under `nohup` and where a terminal closes too (J11)."""
    with trio.open_signal_receiver(signal.SIGHUP) as signals:
        async for _ in signals:
            if reloader is not None:
                with suppress(RequestError):  # it has been told
                    await reloader.reload(HANG_UP)
