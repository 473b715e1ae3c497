"""What is simulated: cards, models, clients, policies and the figures of the engine, frozen.

Owns the description and what the core is told of it. It is checked before it comes here (by the command line, which
knows the file it was read from), and it never draws anything: the same description and seed are the same run.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from gridsched.core.ids import DeviceName, ModelName
from gridsched.core.job import JobClass, JobKind
from gridsched.core.model import DeviceFootprint, DeviceSpec, LaunchOption, ModelSpec
from gridsched.core.policy import Policy

ALONE, UNDISTURBED = "alone", "undisturbed"
"""The runs that all others are compared to: with interactive clients only, and with low work only."""

EMBEDDINGS = "embeddings"
"""Embedding jobs of any class share this row: their times are those of many steps and fit no class's."""

CONTEXT = 8192
"""Tokens of every launch: one rung a card, because a scenario gives a model's memory as one figure."""


@dataclass(frozen=True, slots=True)
class Engine:
    """How processes share a card. The scenario file says what each figure means and where it comes from.

    `overlap` is how much faster than one process 1, 2, 3 … busy processes are together; the last holds for more.
    `stream_weight` is what each further stream adds to the weight of a process that serves low work only.
    `prompt_share` is the part of a step that is over when its first token leaves.
    """

    overlap: tuple[float, ...]
    stream_weight: float
    prompt_share: float

    def gain(self, processes: int) -> float:
        """How much faster than one process so many of them are together."""
        return self.overlap[min(processes, len(self.overlap)) - 1]


@dataclass(frozen=True, slots=True)
class Model:
    """One model. `card` is the only one it may use, None for any. `loaded`: in memory when the clock starts.

    `weight` is its part of a card beside others, `stream_cost` what each further stream costs those of its process.
    """

    name: ModelName
    memory_bytes: int
    slots: int
    load_seconds: float
    weight: float
    stream_cost: float
    pinned: bool = False
    loaded: bool = False
    card: DeviceName | None = None
    idle_ttl_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Clients:
    """Clients of one kind, each a closed loop: ask, wait for the answer, think, ask again.

    `solo_seconds` is a step alone on the card. `think_spread` is the most by which a pause differs from its mean,
    `solo_spread` the standard deviation of a step; both are parts of the mean. Each request draws one of `steps`.
    """

    name: str
    job_class: JobClass
    kind: JobKind
    model: ModelName
    count: int
    think_seconds: float
    solo_seconds: float
    think_spread: float = 0.0
    solo_spread: float = 0.0
    steps: tuple[int, ...] = (1,)

    @property
    def row(self) -> str:
        """The row of the table in which they are counted: embeddings have their own."""
        return EMBEDDINGS if self.kind is JobKind.EMBEDDINGS else self.job_class.label


@dataclass(frozen=True, slots=True)
class PolicyRun:
    """Figures of the scheduler, and how they were written. `reserved_slots`: S6, None for automatic. `chunk`: how much
    longer or shorter a step of embeddings is than the clients say."""

    name: str
    policy: Policy = field(default_factory=Policy)
    reserved_slots: int | None = None
    chunk: float = 1.0
    settings: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Scenario:
    """One what-if: `seconds` of virtual time under every policy, the mean of `seeds` runs each.

    `variants` are the same with other cards, models or numbers of clients, under the same policies.
    """

    seconds: float
    seeds: tuple[int, ...]
    cards: tuple[DeviceSpec, ...]
    models: tuple[Model, ...]
    clients: tuple[Clients, ...]
    policies: tuple[PolicyRun, ...]
    engine: Engine
    variants: Mapping[str, "Scenario"] = field(default_factory=dict)

    @property
    def rows(self) -> tuple[str, ...]:
        """The rows of the table, in the order of the clients."""
        return tuple(dict.fromkeys(each.row for each in self.clients))

    def only(self, *, low: bool) -> "Scenario":
        """The same without interactive clients, or without all others."""
        clients = tuple(each for each in self.clients if each.job_class.is_low is low)
        return replace(self, clients=clients, policies=(), variants={})

    def specs(self, reserved_slots: int | None) -> tuple[ModelSpec, ...]:
        """The models as the core is told of them."""
        return tuple(self._spec(model, reserved_slots) for model in self.models)

    def _spec(self, model: Model, reserved_slots: int | None) -> ModelSpec:
        names = [card.name for card in self.cards] if model.card is None else [model.card]
        return ModelSpec(
            model.name,
            tuple(_option(model, name) for name in names),
            pinned=model.pinned,
            reserved_slots=reserved_slots,
            idle_ttl_seconds=model.idle_ttl_seconds,
            load_seconds=model.load_seconds,
        )


def _option(model: Model, device: DeviceName) -> LaunchOption:
    part = DeviceFootprint(device, weights_bytes=model.memory_bytes)
    return LaunchOption(f"{model.name}/{device}", CONTEXT, model.slots, (part,))
