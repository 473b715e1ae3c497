"""What a run was, as sixteen hexadecimal digits.

Owns the choice of what counts: every event and every command by what it is about, not by its words. Figures of the
decision log are left out, because they say again what was decided. It is cheap: the parts are picked out by C code
and hashed in bulk, in a form that knows no address and no order of a set.
"""

import marshal
from collections.abc import Callable
from hashlib import sha256
from operator import attrgetter

from gridsched.core import commands as out
from gridsched.core import events as come
from gridsched.core.commands import Command
from gridsched.core.events import Event

PLAIN = 2  # the last version of the format without references, which depend on how often an object is in use
BULK = 2048
Parts = Callable[[object], object]


def _nothing(_: object) -> object:
    return None


def _answer(command: out.AnswerRequest) -> object:
    return (command.request, command.rejection and command.rejection.code.value)


def _failure(event: come.InstanceExited) -> object:
    return (event.instance_id, event.failure and event.failure.cause.value)


def _names(name: str) -> Callable[..., object]:
    """The names of all that an event lists."""
    return lambda event: tuple(one.name for one in getattr(event, name))


# `_value_` is what the property `value` of a member reads, without the property, which is written in Python.
PARTS: dict[type, Callable[..., object]] = {
    come.JobSubmitted: attrgetter("job.id", "job.model", "job.key"),
    come.JobAbandoned: attrgetter("job_id"),
    come.GrantReturned: attrgetter("grant_id"),
    come.StepEnded: attrgetter("grant_id", "outcome.kind._value_", "settled"),
    come.AnswerBegan: attrgetter("grant_id"),
    come.JobEnded: attrgetter("grant_id", "outcome.kind._value_", "settled"),
    come.SlotSettled: attrgetter("grant_id"),
    come.InstanceReady: attrgetter("instance_id"),
    come.InstanceExited: _failure,
    come.MemoryReleased: attrgetter("instance_id"),
    come.ProbeDue: attrgetter("instance_id"),
    come.LoadAsked: attrgetter("request", "model"),
    come.UnloadAsked: attrgetter("request", "model", "force"),
    come.PinAsked: attrgetter("request", "model", "pinned"),
    come.LeaseAsked: attrgetter("request", "devices", "seconds"),
    come.LeaseReleased: attrgetter("request", "device"),
    come.WishWithdrawn: attrgetter("request"),
    come.RebalanceAsked: attrgetter("request"),
    come.StandingTold: _nothing,
    come.DeviceRead: attrgetter("device", "used_bytes", "held"),
    come.DeviceLost: attrgetter("device"),
    come.DeviceBack: attrgetter("device"),
    come.HostMemoryRead: attrgetter("held"),
    come.DevicesChanged: _names("devices"),
    come.ModelsChanged: _names("models"),
    come.FamiliesChanged: _names("families"),
    come.PolicyChanged: _nothing,
    come.DrainBegan: _nothing,
    come.TimerFired: _nothing,
    out.GrantStep: attrgetter("grant.id", "grant.job_id", "grant.instance_id", "grant.model", "grant.step"),
    out.RejectJob: attrgetter("job_id", "rejection.code._value_"),
    out.StartInstance: attrgetter("instance_id", "model", "option.key"),
    out.StopInstance: attrgetter("instance_id"),
    out.PauseInstance: attrgetter("instance_id"),
    out.ResumeInstance: attrgetter("instance_id"),
    out.AbortStep: attrgetter("grant_id"),
    out.AnswerRequest: _answer,
    out.ArmTimer: attrgetter("at"),
    out.KeepMeasurement: attrgetter("option_key", "measured_bytes"),
    out.KeepLoadTime: attrgetter("option_key", "load_seconds"),
    out.KeepStanding: _nothing,
    out.Log: attrgetter("event._value_", "rule", "job_id", "model", "device"),
}
TABLE: dict[type, tuple[str, Callable[..., object]]] = {kind: (kind.__name__, parts) for kind, parts in PARTS.items()}


class Digest:
    """Takes in a run step by step."""

    def __init__(self) -> None:
        self._hash = sha256()
        self._parts: list[object] = []

    def add(self, event: Event, commands: tuple[Command, ...], now: float) -> None:
        """One step has been made."""
        parts = self._parts
        name, pick = TABLE[type(event)]
        parts += (now, name, pick(event))
        for command in commands:
            name, pick = TABLE[type(command)]
            parts += (name, pick(command))
        if len(parts) > BULK:
            self._take_in()

    def _take_in(self) -> None:
        self._hash.update(marshal.dumps(self._parts, PLAIN))
        self._parts = []

    def text(self) -> str:
        """The digits."""
        self._take_in()
        return self._hash.hexdigest()[:16]
