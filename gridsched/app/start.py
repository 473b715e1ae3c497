"""What a start begins with: settings, data directory, port; what can be wrong with each is found before any process.

Owns `StartError`, a sentence with what to do and an exit code, and `Machine`: what was found.
"""

import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gridsched.api.listen import CannotListen, PortTaken, listen
from gridsched.api.tls import CannotSpeakTls, Certificate
from gridsched.runtime.heartbeat import Listener
from gridsched.runtime.runtime import Parts
from gridsched.settings.faults import SettingsError
from gridsched.settings.load import defaults, find, load, override
from gridsched.settings.paths import DataDir, DataDirError, DataDirInUse, Holder, data_dir_path
from gridsched.settings.schema import Settings

if TYPE_CHECKING:  # which knows StartError
    from gridsched.app.reloading import Machinery

CONFIGURATION, PORT_TAKEN, DATA_DIR_IN_USE = 2, 3, 4
"""Exit codes of the contract."""

Say = Callable[[str], None]


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
    `machinery` is what of it can be given other figures while it runs; None of a simulated one.
    """

    parts: Parts
    notes: tuple[str, ...]
    problems: tuple[str, ...] = ()
    holder: Holder | None = None
    say_port: Callable[[int, str], None] = lambda port, host: None  # noqa: ARG005 - a simulated machine tells nobody
    beat: Listener = lambda beat: None  # noqa: ARG005 - the same
    data_dir: Path | None = None
    machinery: "Machinery | None" = None

    @property
    def engines_dir(self) -> Path | None:
        """The data directory, in which builds of engines are looked for; None of a simulated machine."""
        return self.data_dir if self.machinery is not None else None


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
    return _listening(settings.server.host, settings.server.port, "with --port")


@contextmanager
def open_ports(settings: Settings) -> Iterator[tuple[socket.socket, ...]]:
    """The public socket, and that of `panel.port` where there is one, both listening. Raises StartError."""
    refuse_one_port_for_two(settings)
    with ExitStack() as opened:
        found = [opened.enter_context(open_port(settings))]
        if settings.panel.port is not None:
            second = _listening(settings.server.host, settings.panel.port, "for panel.port")
            found.append(opened.enter_context(second))
        yield tuple(found)


def refuse_one_port_for_two(settings: Settings) -> None:
    """Raises StartError where the panel's own port is the server's."""
    if settings.panel.port and settings.panel.port == settings.server.port:
        text = f"{settings.panel.port} is server.port, where the panel is anyway: leave it out, or choose another"
        raise StartError(settings.told(("panel", "port"), text))


def _listening(host: str, port: int, how: str) -> socket.socket:
    try:
        return listen(host, port)
    except PortTaken as error:
        raise StartError(f"{error}; stop it, or choose another port {how}", PORT_TAKEN) from None
    except CannotListen as error:
        raise StartError(str(error)) from None


def certificate_of(settings: Settings) -> Certificate | None:
    """The certificate that TLS is spoken with, None for plain HTTP. Raises StartError."""
    tls = settings.server.tls
    if tls.certificate is None:
        return None
    try:
        return Certificate(tls.certificate, tls.key)
    except CannotSpeakTls as error:
        raise StartError(settings.told(("server", "tls", "certificate"), str(error))) from None
