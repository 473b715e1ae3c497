"""How processes share a card, as a fluid: rates between changes, and the next end at those rates.

Owns the arithmetic of progress. Work is measured in seconds alone on the card. Must never know jobs or the scheduler,
nor draw anything.

    rate of a process  = gain(busy processes) x its weight / the weights of all busy ones, and never above 1
    rate of its streams = that / (1 + stream_cost x (streams - 1))

A paused process takes no share and stands still. Between two changes everything moves in straight lines, so there is no
time step: whoever changes something lets the card `advance` to now, changes it, and asks for the `next_end`.
"""

from dataclasses import dataclass, field
from math import inf

from gridsched.core.ids import GrantId, InstanceId
from sim.whatif.scenario import Engine, Model

DONE_SECONDS = 1e-9
"""Work that is less than this is done: sums of floats do not come out at nothing."""


@dataclass(slots=True, eq=False)
class Stream:
    """One step on a card. `left` seconds of work; the first token leaves when `prompt_left` are left of it."""

    grant_id: GrantId
    left: float
    prompt_left: float
    low: bool
    first_at: float | None = None


@dataclass(slots=True, eq=False)
class Process:
    """One process on one card. `rate` is that of each of its streams, seconds of work a second."""

    id: InstanceId
    model: Model
    streams: dict[GrantId, Stream] = field(default_factory=dict)
    paused: bool = False
    rate: float = 0.0

    @property
    def busy(self) -> bool:
        """Whether it takes a share of its card."""
        return bool(self.streams) and not self.paused

    def weight(self, engine: Engine) -> float:
        """Its part among the busy ones."""
        further = len(self.streams) - 1 if all(stream.low for stream in self.streams.values()) else 0
        return self.model.weight * (1.0 + engine.stream_weight * further)


class FluidCard:
    """One card and the processes on it. `busy_seconds` is how long anything ran there."""

    def __init__(self, engine: Engine) -> None:
        self.processes: dict[InstanceId, Process] = {}
        self.busy_seconds = 0.0
        self._engine = engine
        self._since = 0.0

    def advance(self, now: float) -> None:
        """Let everything move on to now at the rates there are."""
        seconds = now - self._since
        if seconds <= 0:
            return
        for process in self.processes.values():
            if process.busy:
                _progress(process, seconds, now)
        if any(process.busy for process in self.processes.values()):
            self.busy_seconds += seconds
        self._since = now

    def share_out(self) -> None:
        """Find the rates anew, after something has changed."""
        busy = [process for process in self.processes.values() if process.busy]
        if not busy:
            return
        weights = [process.weight(self._engine) for process in busy]
        each = self._engine.gain(len(busy)) / sum(weights)
        for process, weight in zip(busy, weights, strict=True):
            process.rate = min(1.0, each * weight) / (1.0 + process.model.stream_cost * (len(process.streams) - 1))

    def next_end(self) -> float:
        """When the first step ends if nothing changes before; inf for never."""
        ends = [
            stream.left / process.rate
            for process in self.processes.values()
            if process.busy
            for stream in process.streams.values()
        ]
        return self._since + max(0.0, min(ends)) if ends else inf

    def ended(self) -> list[Stream]:
        """The steps that have ended by now, taken off the card."""
        over: list[Stream] = []
        for process in self.processes.values():
            gone = [stream for stream in process.streams.values() if stream.left <= DONE_SECONDS]
            for stream in gone:
                del process.streams[stream.grant_id]
            over += gone
        return over


def _progress(process: Process, seconds: float, now: float) -> None:
    work = process.rate * seconds
    for stream in process.streams.values():
        stream.left -= work
        if stream.first_at is None and stream.left <= stream.prompt_left:
            stream.first_at = now - (stream.prompt_left - stream.left) / process.rate
