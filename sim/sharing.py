"""The fluid card on trio's clock: how the simulated engine's processes share their cards in real time.

Owns the waiting. The arithmetic is `whatif/fluid.py`'s, the very same that virtual time runs on. Must never know
requests: a stream has work, and whoever waits is told when so much of it is left.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import trio

from gridsched.core.ids import DeviceName, GrantId, InstanceId, ModelName
from gridsched.core.model import LaunchOption
from sim.models import load_seconds_of
from sim.whatif.fluid import DONE_SECONDS, FluidCard, Process, Stream
from sim.whatif.scenario import Engine, Model, Scenario

PLAIN_ENGINE = Engine(overlap=(1.0, 1.19, 1.23), stream_weight=0.0, prompt_share=0.0)
PLAIN_WEIGHT, PLAIN_STREAM_COST = 1.0, 0.2


@dataclass(frozen=True, slots=True)
class Figures:
    """How processes share a card. A model that is not named here is as heavy as any other. `low`: the models that no
    interactive client of the scenario uses; a process cannot tell whom it answers."""

    engine: Engine = PLAIN_ENGINE
    models: Mapping[ModelName, Model] = field(default_factory=dict)
    low: frozenset[ModelName] = frozenset()

    @classmethod
    def of(cls, scenario: Scenario) -> "Figures":
        """Those of a scenario."""
        talked_to = {each.model for each in scenario.clients if not each.job_class.is_low}
        models = {model.name: model for model in scenario.models}
        return cls(scenario.engine, models, frozenset(models.keys() - talked_to))

    def model(self, name: ModelName, option: LaunchOption) -> Model:
        """A model's, else the plain ones for what a launch of it takes."""
        size = sum(part.total_bytes for part in option.footprint)
        plain = Model(name, size, option.parallel, load_seconds_of(size), PLAIN_WEIGHT, PLAIN_STREAM_COST)
        return self.models.get(name, plain)


class SharedCard:
    """One card. Everything moves in straight lines between two changes; who waits is woken by each."""

    def __init__(self, engine: Engine) -> None:
        self._fluid = FluidCard(engine)
        self._changed = trio.Event()

    def add(self, process: Process) -> None:
        """A process may work here."""
        self._change(lambda: self._fluid.processes.update({process.id: process}))

    def remove(self, process: Process) -> None:
        """It is gone; who waits for it is told so."""
        self._change(lambda: self._fluid.processes.pop(process.id, None))

    def pause(self, process: Process, *, paused: bool) -> None:
        """Let it stand still, or go on."""
        self._change(lambda: setattr(process, "paused", paused))

    def begin(self, process: Process, stream: Stream) -> None:
        """One more answer of it."""
        self._change(lambda: process.streams.update({stream.grant_id: stream}))

    def end(self, process: Process, stream: Stream) -> None:
        """One less, finished or not."""
        if stream.grant_id in process.streams:
            self._change(lambda: process.streams.pop(stream.grant_id))

    async def reach(self, process: Process, stream: Stream, left: float) -> bool:
        """Wait until so many seconds of the stream's work are left; -inf for never. False: the process is gone."""
        await trio.lowlevel.checkpoint()
        while process.id in self._fluid.processes:
            self._fluid.advance(trio.current_time())
            if stream.left <= left + DONE_SECONDS:
                return True
            with trio.move_on_after((stream.left - left) / process.rate if process.busy else math.inf):
                await self._changed.wait()
        return False

    def _change(self, deed: Callable[[], object]) -> None:
        self._fluid.advance(trio.current_time())
        deed()
        self._fluid.share_out()
        self._changed.set()
        self._changed = trio.Event()


class Sharing:
    """All cards, and who is on which."""

    def __init__(self, figures: Figures, cards: Iterable[DeviceName]) -> None:
        self.figures = figures
        self._cards = {name: SharedCard(figures.engine) for name in cards}
        self._made = 0

    def card(self, option: LaunchOption) -> SharedCard:
        """Where a launch works: the first of its cards."""
        return self._cards[option.devices[0]]

    def process(self, instance_id: InstanceId, name: ModelName, option: LaunchOption) -> Process:
        """A new process of a model."""
        return Process(instance_id, self.figures.model(name, option))

    def stream(self, process: Process, seconds: float) -> Stream:
        """A new answer that takes so long alone on the card."""
        self._made += 1
        return Stream(GrantId(self._made), seconds, 0.0, process.model.name in self.figures.low)
