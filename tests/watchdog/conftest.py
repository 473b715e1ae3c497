"""What the tests of the watchdog share: a data directory, a stand-in for the gateway, a keeper turned by hand."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from gridsched.watchdog.commands import Commands
from gridsched.watchdog.configuration import Configuration
from gridsched.watchdog.keeper import Keeper, Limits
from gridsched.watchdog.places import Places
from gridsched.watchdog.starting import Launch
from gridsched.watchdog.tools import Toolbox
from gridsched.watchdog.units import Units
from gridsched.watchdog.watch import Watch
from tests.support import fake_gateway
from tests.support.gateway import clean_environment

NO_PATIENCE_SECONDS = 60.0
"""Nothing takes a tenth of it, but on a machine that is very busy."""

QUICK = Limits(
    turn_seconds=0.02,
    healthy_seconds=0.1,
    first_pause_seconds=0.1,
    longest_pause_seconds=0.4,
    kill_seconds=1.0,
    settle_seconds=NO_PATIENCE_SECONDS,
    wedged_looks=3,
    front_patience=1.0,
    restarts=10,
)
"""A keeper without patience, but for what stands: `Bench.passes` is how time goes by for that, not a wait."""


def until(look: Callable[[], object], seconds: float = NO_PATIENCE_SECONDS) -> None:
    """Wait until something is so, or fail."""
    pause = threading.Event()
    for _ in range(round(seconds / 0.02)):
        if look():
            return
        pause.wait(0.02)
    pytest.fail(f"still not so after {seconds:g} s")


@pytest.fixture
def places(tmp_path: Path) -> Places:
    """A data directory and a configuration that nobody else uses, and no service manager."""
    data = tmp_path / "data"
    (data / "watchdog").mkdir(parents=True, mode=0o700)
    (tmp_path / "bin").mkdir()
    environ = clean_environment() | {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"}
    environ |= {"HOME": str(tmp_path), "XDG_RUNTIME_DIR": str(tmp_path), "DBUS_SESSION_BUS_ADDRESS": ""}
    return Places(data, tmp_path / "gridsched.yaml", environ, tmp_path)


@dataclass
class Bench:
    """A keeper over a stand-in gateway, turned by hand on this thread."""

    places: Places
    runs: bool = True
    limits: Limits = QUICK
    said: list[str] = field(default_factory=list)
    skew_seconds: float = 0.0

    def __post_init__(self) -> None:
        self.commands = Commands(self.places.environ)
        self.configuration = Configuration(self.places, (), self.commands)
        clock = lambda: time.monotonic() + self.skew_seconds  # noqa: E731 - so it is seen to be the clock
        self.watch = Watch(self.places, self.limits.wedged_seconds, clock)
        self.keeper = Keeper(
            self.places,
            self.configuration,
            self.watch,
            launch=Launch(gateway_command(self.places), self.places.environ, self.places.cwd),
            runs=self.runs,
            say=self.said.append,
            limits=self.limits,
            units=Units(self.commands, self.places.data),
        )
        self.tools = Toolbox(self.places, self.configuration, self.watch, self.keeper, self.commands)

    def stands_until(self, look: Callable[[], object]) -> None:
        """As `turn_until`, an hour after the last beat of a gateway that stands; its successor beats now."""
        self.skew_seconds = 3600.0
        self.turn_until(look)
        self.skew_seconds = 0.0

    def configure(self, words: str) -> None:
        """Tell the stand-in what to do."""
        assert self.places.config_flag is not None
        self.places.config_flag.write_text(words, encoding="utf-8")

    def turn_until(self, look: Callable[[], object], seconds: float = NO_PATIENCE_SECONDS) -> list[int]:
        """Turn the keeper until something is so; the exit codes that it wanted to end with."""
        codes: list[int] = []

        def turned() -> object:
            code = self.keeper.turn()
            codes.extend(() if code is None else (code,))
            return look()

        until(turned, seconds)
        return codes

    def has_said(self, words: str) -> bool:
        """Whether the keeper has told of something."""
        return any(words in sentence for sentence in self.said)

    def serves(self) -> bool:
        """Whether the gateway beats and answers."""
        return self.watch.last().healthy

    def close(self) -> None:
        """End the gateway, reaped if it is the keeper's child."""
        if (child := self.keeper._child) is not None:
            os.kill(child.id.pid, signal.SIGKILL)
            child._process.wait()
            self.keeper._forget()
        owner = self.watch.look().owner
        if owner is not None and owner.process is not None:
            os.kill(owner.process.pid, signal.SIGKILL)

    def pid(self) -> int:
        """The gateway."""
        owner = self.watch.look().owner
        assert owner is not None
        assert owner.process is not None
        return owner.process.pid


def gateway_command(places: Places) -> tuple[str, ...]:
    """The command line of the stand-in."""
    program = str(fake_gateway.__file__)
    return (sys.executable, "-S", program, "serve", "--data-dir", str(places.data), "--config", str(places.config_flag))


@pytest.fixture
def bench(places: Places) -> Iterator[Bench]:
    """A keeper with `--run`; its gateway is gone afterwards."""
    with closing(Bench(places)) as made:
        yield made


@pytest.fixture
def stranger(places: Places) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Starts a gateway that is nobody's child but the test's, in a folder of its own if it shall have one."""
    started: list[subprocess.Popen[bytes]] = []

    def start(words: str, folder: Path | None = None) -> subprocess.Popen[bytes]:
        assert places.config_flag is not None
        places.config_flag.write_text(words, encoding="utf-8")
        process = subprocess.Popen(gateway_command(places), env=places.environ, stdout=subprocess.DEVNULL, cwd=folder)
        started.append(process)
        watch = Watch(places, 30.0)
        until(lambda: watch.look().state.value != "not_running" and watch.look().owner.port)  # type: ignore[union-attr]  # it has one then
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()
