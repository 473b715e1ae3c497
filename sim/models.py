"""A simulated catalog behind `ports.Catalog`: five models that need no file, so `serve --sim` starts with nothing.

Owns their sizes, ladders and names. Sizes follow the mixed-load scenario: a chat model of 8.3 GiB beside two smaller
ones and an embedder, 15.5 GiB together; a reranker goes with any three of them. It never looks at a file or a device.
"""

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import trio

from gridsched.core.ids import DeviceName, ModelName
from gridsched.core.job import JobKind, Quality
from gridsched.core.model import DeviceFootprint, DeviceSpec, LaunchOption, ModelSpec
from gridsched.ports import (
    Capability,
    CatalogFamily,
    CatalogModel,
    CatalogVirtual,
    FamilyEntry,
    LargestFit,
    Launch,
    LaunchFacts,
    Measurement,
    VirtualEntry,
)
from sim.gpu import GIB
from sim.whatif.scenario import Scenario

DISK_BYTES_PER_SECOND = 1.5e9  # a usual NVMe drive reading one large file
LOAD_FLOOR_SECONDS = 0.5  # process start, header, warm-up: what even a small model takes
DEFAULT_NAMES = frozenset({"local-model", "default", "auto", "current"})
CREATED = 1_700_000_000  # a fixed date: simulated models have no file whose time could be read
COMPUTE_SHARE, OVERHEAD_SHARE = 0.03, 0.02  # of the whole: buffers, and what lies outside them (guesses)
ARCHITECTURE = "simulated"
SCENARIO_CTX = 16384  # scenarios know no contexts
_CHAT = frozenset({Capability.CHAT, Capability.COMPLETION})
_SEEING = _CHAT | {Capability.VISION}
_HEARING = _CHAT | {Capability.AUDIO}
_EMBEDDING = frozenset({Capability.EMBEDDING})
_RANKING = frozenset({Capability.RERANK})


@dataclass(frozen=True, slots=True)
class SimModel:
    """One simulated model: what it takes at its full context of `ctx_size` tokens, shared by `parallel` slots. What is
    None is as of any other model."""

    name: str
    total_bytes: int
    kv_bytes: int
    ctx_size: int
    parallel: int
    capabilities: frozenset[Capability] = _CHAT
    aliases: tuple[str, ...] = ()
    load_seconds: float | None = None
    pinned: bool = False
    idle_ttl_seconds: float | None = None
    card: DeviceName | None = None

    def option(self, device: DeviceName, ctx_size: int, parallel: int) -> LaunchOption:
        """One launch on one device; the cache shrinks with the context, the rest stays."""
        compute, overhead = int(self.total_bytes * COMPUTE_SHARE), int(self.total_bytes * OVERHEAD_SHARE)
        footprint = DeviceFootprint(
            device=device,
            weights_bytes=self.total_bytes - self.kv_bytes - compute - overhead,
            kv_bytes=self.kv_bytes * ctx_size // self.ctx_size,
            compute_bytes=compute,
            overhead_bytes=overhead,
        )
        return LaunchOption(
            key=f"{self.name}/{ctx_size}/{parallel}/{device}",
            ctx_size=ctx_size,
            parallel=parallel,
            footprint=(footprint,),
        )


def _gib(amount: float) -> int:
    return int(amount * GIB)


MODELS = (
    SimModel("sim-chat-12b", _gib(8.3), _gib(1.2), 16384, 2, aliases=("gpt-4o",)),
    SimModel("sim-chat-4b", _gib(4.0), _gib(0.6), 16384, 4, _SEEING, ("gpt-4o-mini",)),
    SimModel("sim-chat-2b", _gib(2.8), _gib(0.4), 16384, 4, _HEARING, ("whisper-1",)),
    SimModel("sim-embed", _gib(0.4), _gib(0.02), 8192, 4, _EMBEDDING, ("text-embedding-3-small",)),
    SimModel("sim-rerank", _gib(0.3), _gib(0.02), 8192, 4, _RANKING),
)


FAMILIES = (
    FamilyEntry(
        "sim-chat",
        (
            (Quality.PREFERRED, "sim-chat-12b"),
            (Quality.BALANCED, "sim-chat-4b"),
            (Quality.COMPACT, "sim-chat-2b"),
        ),
    ),
)
"""One name for the three that chat (R10)."""


def models_of(scenario: Scenario) -> tuple[SimModel, ...]:
    """The models of a scenario. It gives memory as one figure: a smaller context takes as much."""
    embedding = {each.model for each in scenario.clients if each.kind is JobKind.EMBEDDINGS}
    return tuple(
        SimModel(
            model.name,
            model.memory_bytes,
            0,
            SCENARIO_CTX,
            model.slots,
            _EMBEDDING if model.name in embedding else _CHAT,
            load_seconds=model.load_seconds,
            pinned=model.pinned,
            idle_ttl_seconds=model.idle_ttl_seconds,
            card=model.card,
        )
        for model in scenario.models
    )


class SimulatedCatalog:
    """The catalog of the simulation, for the devices it is told of. The ladder of a model: its full context on each
    device, then half of it on each. Virtual models whose base is not simulated are left out."""

    def __init__(
        self,
        devices: Sequence[DeviceSpec],
        models: Sequence[SimModel] = MODELS,
        virtuals: Sequence[VirtualEntry] = (),
    ) -> None:
        self._sims = {ModelName(one.name): one for one in models}
        self._devices = names = tuple(device.name for device in devices)
        self._models = tuple(_catalog_model(one, names) for one in models)
        served = {model.name: model for model in self._models}
        found = (CatalogFamily.of(entry, served) for entry in FAMILIES)
        self._families = tuple(family for family in found if family.variants)
        self._by_name: dict[str, CatalogModel | CatalogFamily] = {
            known: model for model in reversed(self._models) for known in (str(model.name), *model.aliases)
        }
        self._by_name.update((str(family.name), family) for family in self._families)
        based = ((entry, self._found(entry.base)) for entry in virtuals)
        self._virtuals = tuple(CatalogVirtual(ModelName(one.name), one, base) for one, base in based if base)
        self._by_name |= {word: one.base for one in self._virtuals for word in (one.entry.name, *one.entry.aliases)}

    def models(self) -> tuple[CatalogModel, ...]:
        """All of them, largest first."""
        return self._models

    def families(self) -> tuple[CatalogFamily, ...]:
        """Those of which there is a model."""
        return self._families

    def virtuals(self) -> tuple[CatalogVirtual, ...]:
        """Those whose base is simulated."""
        return self._virtuals

    def resolve(self, name: str) -> CatalogModel | CatalogFamily | None:
        """By name or alias, then without regard to case; the usual words for "whatever is there" give the first."""
        return self._found(name) or (self._models[0] if name.casefold() in DEFAULT_NAMES else None)

    def virtual(self, name: str) -> CatalogVirtual | None:
        """By name or alias, without regard to case."""
        folded = name.casefold()
        words = ((one, (one.entry.name, *one.entry.aliases)) for one in self._virtuals)
        return next((one for one, own in words if folded in {word.casefold() for word in own}), None)

    def _found(self, name: str) -> CatalogModel | CatalogFamily | None:
        if name in self._by_name:
            return self._by_name[name]
        folded = name.casefold()
        return next((model for known, model in self._by_name.items() if known.casefold() == folded), None)

    def closest(self, name: str) -> tuple[str, ...]:
        """Up to three names a person may have meant."""
        return tuple(difflib.get_close_matches(name, self._by_name, n=3, cutoff=0.4))

    def launch(self, model: ModelName, option: LaunchOption) -> Launch:
        """What to start. Raises KeyError for a model that is not there."""
        sim = self._sims[model]
        facts = LaunchFacts(
            model=str(model),
            architecture=ARCHITECTURE,
            path=str(_path(sim)),
            fingerprint=str(model),
            flags="",
            engine_build="sim",
            devices=tuple(map(str, option.devices)),
            drivers=("",) * len(option.devices),
        )
        return Launch(model=model, path=_path(sim), option=option, capabilities=sim.capabilities, facts=facts)

    def learn(self, measurements: Mapping[str, Measurement]) -> bool:  # noqa: ARG002 - a simulated card has no overhead
        """Nothing: what is simulated is known."""
        return False

    async def look_again(self, model: ModelName) -> bool:  # noqa: ARG002 - the same
        """What is simulated is always there."""
        return False

    async def renew(self, model: ModelName) -> str | None:  # noqa: ARG002 - what is simulated has no files
        """None: nothing changes."""
        return None

    async def options(self, model: ModelName, ctx_size: int, parallel: int | None = None) -> tuple[LaunchOption, ...]:
        """That context on each device. Raises KeyError for a model that is not there."""
        await trio.lowlevel.checkpoint()
        sim = self._sims[model]
        return tuple(sim.option(device, ctx_size, parallel or sim.parallel) for device in self._devices)

    async def largest_fit(
        self,
        model: ModelName,
        usable_bytes: Mapping[DeviceName, int],
        ctx_size: int | None = None,
    ) -> LargestFit:
        """The most context at the model's slots; the cache grows with the context and not with the slots, so as many
        slots fit as are asked for wherever the full context does."""
        await trio.lowlevel.checkpoint()
        sim = self._sims[model]
        rest = sim.total_bytes - sim.kv_bytes
        room = max(usable_bytes.values(), default=0) - rest
        ctx_size = max(0, min(sim.ctx_size, sim.ctx_size * room // sim.kv_bytes))
        told = (f"Set models.{model}.ctx_size to at most {ctx_size}",) if ctx_size else ()
        return LargestFit(ctx_size, sim.parallel if ctx_size >= sim.ctx_size else 0, told)


def _catalog_model(sim: SimModel, devices: Sequence[DeviceName]) -> CatalogModel:
    """The frozen description of a simulated model."""
    devices = devices if sim.card is None else [sim.card]
    halves = tuple(sim.option(device, sim.ctx_size // 2, sim.parallel) for device in devices)
    full = tuple(sim.option(device, sim.ctx_size, sim.parallel) for device in devices)
    spec = ModelSpec(
        name=ModelName(sim.name),
        options=full + halves,
        pinned=sim.pinned,
        idle_ttl_seconds=sim.idle_ttl_seconds,
        load_seconds=load_seconds_of(sim.total_bytes) if sim.load_seconds is None else sim.load_seconds,
    )
    return CatalogModel(
        name=spec.name,
        path=_path(sim),
        aliases=sim.aliases,
        capabilities=sim.capabilities,
        default_class=None,
        architecture=ARCHITECTURE,
        size_bytes=sim.total_bytes - sim.kv_bytes,
        created=CREATED,
        ctx_train=sim.ctx_size * 2,
        spec=spec,
        publisher="gridsched",
        quantization="Q4_K_M",
    )


def _path(sim: SimModel) -> Path:
    """A path that names the model and exists nowhere."""
    return Path("simulated") / f"{sim.name}.gguf"


def load_seconds_of(total_bytes: int) -> float:
    """How long a load takes from a drive that gives `DISK_BYTES_PER_SECOND`."""
    return LOAD_FLOOR_SECONDS + total_bytes / DISK_BYTES_PER_SECOND
