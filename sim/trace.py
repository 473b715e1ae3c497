"""A run as lines for a person: what was heard, what was decided.

Owns the short forms. Readings and timers that led to nothing are left out: they are most of a run and say nothing.
"""

from collections.abc import Callable
from dataclasses import fields, is_dataclass
from enum import Enum

from gridsched.core.commands import ArmTimer, Command, KeepLoadTime, KeepMeasurement, KeepStanding, Log
from gridsched.core.events import DeviceRead, DevicesChanged, Event, ModelsChanged, PolicyChanged, TimerFired
from gridsched.core.model import LaunchOption

QUIET_EVENTS = (DeviceRead, TimerFired)
QUIET_COMMANDS = (ArmTimer, KeepLoadTime, KeepMeasurement, KeepStanding)
LONG_EVENTS = (DevicesChanged, ModelsChanged, PolicyChanged)


class Trace:
    """Writes a line for each event that matters, and one for each thing decided."""

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write
        self._steps = 0

    def saw(self, event: Event, commands: tuple[Command, ...], now: float) -> None:
        """One step has been made."""
        self._steps += 1
        loud = [command for command in commands if not isinstance(command, QUIET_COMMANDS)]
        if not loud and isinstance(event, QUIET_EVENTS):
            return
        name = type(event).__name__ if isinstance(event, LONG_EVENTS) else short(event)
        self._write(f"{now:9.3f} {self._steps:5d}  {name}")
        for command in loud:
            self._write(f"{'':18}-> {_log_line(command) if isinstance(command, Log) else short(command)}")


def short(value: object) -> str:
    """A value without what is at its default or says nothing."""
    if isinstance(value, Enum):
        return value.name.lower()
    if isinstance(value, LaunchOption):
        return value.key
    if isinstance(value, float):
        return f"{value:.3f}"
    if isinstance(value, tuple):
        return f"({', '.join(short(one) for one in value)})"
    if not is_dataclass(value) or isinstance(value, type):
        return str(value)
    parts = [(one.name, getattr(value, one.name)) for one in fields(value)]
    said = [f"{name}={short(part)}" for name, part in parts if part not in (None, False, "", 0) and name != "detail"]
    return f"{type(value).__name__}({', '.join(said)})"


def _log_line(log: Log) -> str:
    """A line of the decision log, as it will be read."""
    said = [log.event.value]
    for one in fields(log):
        part = getattr(log, one.name)
        if one.name != "event" and part not in (None, {}):
            said.append(f"{one.name}={dict(part) if one.name == 'figures' else short(part)}")
    return "log " + " ".join(said)
