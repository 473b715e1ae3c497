"""The seams between the core and the world: Protocols, and the frozen types that pass through them.

Owns no behaviour. Every Protocol has two implementations that are product code: the real one (floor 3) and the
simulated one (`sim`). Framework objects (httpx, quart, pynvml) never pass here.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Protocol, Self

from gridsched.core.events import DeviceRead, Event, Failure
from gridsched.core.ids import DeviceName, InstanceId, ModelName
from gridsched.core.job import JobClass, Medium, Quality
from gridsched.core.model import DeviceFootprint, DeviceSpec, FamilySpec, LaunchOption, ModelSpec, Variant
from gridsched.core.standing import Standing

Post = Callable[[Event], None]
"""Puts an event into the actor's inbox: synchronous, never blocks, works inside a cancelled scope."""


# --- time -------------------------------------------------------------------------------------------------------


class Clock(Protocol):
    """The machine's clocks. Durations and deadlines use trio's own clock, which tests can jump."""

    def wall_seconds(self) -> float:
        """Seconds since the epoch; may be set at any time, to any time."""

    def boot_seconds(self) -> float:
        """Seconds from a fixed moment, those in which the machine sleeps among them."""

    def awake_seconds(self) -> float:
        """Seconds from a fixed moment, without those in which the machine sleeps."""


# --- devices ----------------------------------------------------------------------------------------------------


class Backend(Enum):
    """What the engine computes with on a device."""

    CUDA = "cuda"
    VULKAN = "vulkan"
    ROCM = "rocm"
    METAL = "metal"
    CPU = "cpu"
    SIMULATED = "simulated"


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """A device as found: `spec` is what the core plans with, the rest tells the engine which one it is.

    `index` counts the backend's devices from 0. `uuid` and `pci_bus` are empty for the host. `capability` says what a
    card can do beside others: ten times its compute capability, 0 where it is not known. `driver` is its driver's
    version.
    """

    spec: DeviceSpec
    label: str
    backend: Backend
    index: int = 0
    uuid: str = ""
    pci_bus: str = ""
    capability: int = 0
    driver: str = ""

    @property
    def identity(self) -> str:
        """The very device, and what it is computed on with."""
        return f"{self.backend.value}:{self.uuid}"


class DeviceMonitor(Protocol):
    """Reads devices. Blocking calls are made in a thread of its own."""

    def devices(self) -> tuple[DeviceInfo, ...]:
        """The devices, as found at start."""

    async def read(self, processes: Mapping[InstanceId, int]) -> tuple[DeviceRead, ...]:
        """One reading of each device that answers, with what our processes (pid by instance) hold there."""

    def lost(self) -> Mapping[DeviceName, str]:
        """The devices that did not answer at the last reading, and why (D6)."""

    def settled(self, instance_id: InstanceId) -> None:
        """An instance's launch is over. Where a driver tells no figure of it, what it holds is what its device's use
        grew by until then (D2). Unknown ones are ignored."""


HeldOnHost = Callable[[Mapping[InstanceId, int]], Awaitable[Mapping[InstanceId, int]]]
"""What each process (pid by instance) and its descendants hold of host memory that nobody else can have, in bytes:
anonymous pages and what is swapped out (M11). One that cannot be read is missing."""


@dataclass(frozen=True, slots=True)
class MemoryPressure:
    """Shares (0 to 1) of the last ten seconds in which some, or all, of the work waited for memory."""

    some: float
    full: float


class HostMemory(Protocol):
    """Host memory beside cards: what launches take there is held against its size and never reserved."""

    @property
    def spec(self) -> DeviceSpec:
        """Its size now, and how much of that is never planned. A machine may be given more, a control group less."""

    def available_bytes(self) -> int | None:
        """What new work could take now; None where that cannot be read. Never waits."""


# --- models -----------------------------------------------------------------------------------------------------


class Capability(Enum):
    """What a model can be asked for."""

    CHAT = "chat"
    COMPLETION = "completion"
    EMBEDDING = "embedding"
    RERANK = "rerank"
    VISION = "vision"
    AUDIO = "audio"


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """What the configuration says of one served name. None means automatic.

    `ctx_size` is the total pool that `parallel` slots share; `ctx_per_slot` may be given instead. `cache_types` are
    what K and V of the cache are kept as, `reasoning_format` is how thoughts are handed out, in the engine's words.
    """

    name: str
    path: Path
    aliases: tuple[str, ...] = ()
    ctx_size: int | None = None
    ctx_per_slot: int | None = None
    parallel: int | None = None
    cache_types: tuple[str, str] | None = None
    pinned: bool = False
    default_class: JobClass | None = None
    reserved_slots: int | None = None
    idle_ttl_seconds: float | None = None
    flags: tuple[str, ...] = ()
    device: str | None = None
    mmproj: Path | None = None
    capabilities: frozenset[Capability] | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    reasoning_format: str | None = None


@dataclass(frozen=True, slots=True)
class FamilyEntry:
    """What the configuration says of one family (R10): its models by quality, best first."""

    name: str
    variants: tuple[tuple[Quality, str], ...]


@dataclass(frozen=True, slots=True)
class VirtualEntry:
    """What the configuration says of a name over another model or family, which `base` names by any of its names.

    `members` are added to requests that do not give them: raw JSON by name. `max_tokens` bounds an answer.
    """

    name: str
    base: str
    aliases: tuple[str, ...] = ()
    system_prompt: str | None = None
    members: Mapping[str, bytes] = field(default_factory=dict)
    max_tokens: int | None = None
    default_class: JobClass | None = None
    idle_ttl_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class CatalogModel:
    """A model that is served, or that would be if `unavailable` did not say why it cannot (then `spec` is None).

    `created` is the file's time, in seconds since the epoch. `ctx_train` is the header's context length, in tokens.
    `publisher` is the folder that a download was put in, `quantization` what its header says of it; "" if neither does.
    `active_part` is the share of its weights that is read for each token: not all experts are, nor a table of words.
    """

    name: ModelName
    path: Path
    aliases: tuple[str, ...]
    capabilities: frozenset[Capability]
    default_class: JobClass | None
    architecture: str
    size_bytes: int
    created: int
    ctx_train: int
    spec: ModelSpec | None
    unavailable: str | None = None
    publisher: str = ""
    quantization: str = ""
    active_part: float = 1.0


MEDIA: Mapping[Capability, Medium] = {Capability.VISION: Medium.IMAGE, Capability.AUDIO: Medium.AUDIO}
"""What a model takes beside text, by what it can do."""


@dataclass(frozen=True, slots=True)
class CatalogFamily:
    """R10: one name for several models, those that can be served among them, best first."""

    name: ModelName
    variants: tuple[tuple[Quality, CatalogModel], ...]

    @classmethod
    def of(cls, entry: FamilyEntry, models: Mapping[ModelName, CatalogModel]) -> Self:
        """From the configuration; a model that is not there is left out."""
        named = ((quality, models.get(ModelName(name))) for quality, name in entry.variants)
        return cls(ModelName(entry.name), tuple((quality, model) for quality, model in named if model is not None))

    @property
    def best(self) -> CatalogModel | None:
        """The best that can be served; what it can do is what the family can be asked for."""
        return next((model for _, model in self.variants if model.spec is not None), None)

    @property
    def spec(self) -> FamilySpec:
        """What the scheduler is told."""
        served = ((quality, model) for quality, model in self.variants if model.spec is not None)
        return FamilySpec(self.name, tuple(Variant(model.name, quality, _media(model)) for quality, model in served))


def _media(model: CatalogModel) -> frozenset[Medium]:
    return frozenset(medium for capability, medium in MEDIA.items() if capability in model.capabilities)


@dataclass(frozen=True, slots=True)
class CatalogVirtual:
    """A name over another model: `base` serves it, as it stands now; `entry` is what is added to its requests."""

    name: ModelName
    entry: VirtualEntry
    base: CatalogModel | CatalogFamily


@dataclass(frozen=True, slots=True)
class LargestFit:
    """L7: what would fit in the memory that there is; 0 where nothing does. `suggestions` are sentences for a person,
    each a change that by itself makes the model fit; none where it fits as it is."""

    ctx_size: int
    parallel: int
    suggestions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LaunchFacts:
    """What a measurement of a launch is of, in parts that can be read: a key is only a hash of them (L2).

    `fingerprint` is of the files, `flags` all that the launch and the person add, `devices` the very cards
    (`DeviceInfo.identity`) in the order of the footprint, `drivers` their drivers' versions.
    """

    model: str
    architecture: str
    path: str
    fingerprint: str
    flags: str
    engine_build: str
    devices: tuple[str, ...]
    drivers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Launch:
    """Everything the engine needs to start one process. `facts` are None where nothing of it is worth keeping."""

    model: ModelName
    path: Path
    option: LaunchOption
    capabilities: frozenset[Capability]
    mmproj: Path | None = None
    flags: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    facts: LaunchFacts | None = None


class Names(Protocol):
    """The models and families there are, as those see them who ask for one."""

    def models(self) -> tuple[CatalogModel, ...]:
        """All of them, in a stable order."""

    def families(self) -> tuple[CatalogFamily, ...]:
        """All of them, in a stable order."""

    def virtuals(self) -> tuple[CatalogVirtual, ...]:
        """All names over other models, in a stable order."""

    def resolve(self, name: str) -> CatalogModel | CatalogFamily | None:
        """The family or model that serves a name: by exact name, alias, file id or file name, then the same without
        regard to case; None if unknown. Of a virtual model the base."""

    def virtual(self, name: str) -> CatalogVirtual | None:
        """The virtual model that is meant, found by its names as `resolve` finds them; None where it is none."""

    def closest(self, name: str) -> tuple[str, ...]:
        """Up to three names a person may have meant."""


class Catalog(Names, Protocol):
    """The models and families there are: names, ladders, launches."""

    def launch(self, model: ModelName, option: LaunchOption) -> Launch:
        """What to start for an option of a model's ladder. Raises KeyError for a model that is not there."""

    def learn(self, measurements: Mapping[str, "Measurement"]) -> bool:
        """Plan from now on with what these say of other models' launches, too (L2). Whether anything is planned
        otherwise than before."""

    async def renew(self, model: ModelName) -> str | None:
        """To be asked before a launch: None where the model's files are those that it was planned with. Else it is
        planned with what is there now, where that can be served, and a sentence says so; the launch is not to be.
        Looks at the disk in a thread. Raises KeyError for a model that is not there."""

    async def look_again(self, model: ModelName) -> bool:
        """To be asked when somebody wants a model that could not be served: whether it can be now, because its file is
        there again. Looks at the disk in a thread, at most once a second. Raises KeyError for one that is not there."""

    async def options(self, model: ModelName, ctx_size: int, parallel: int | None = None) -> tuple[LaunchOption, ...]:
        """The model's ladder if its slots shared so many tokens, and there were so many of them where that is said,
        whatever is configured; estimates alone. Made in a thread. Raises ValueError with a sentence where it cannot be
        launched so, KeyError for a model that is not there or has no ladder."""

    async def largest_fit(
        self, model: ModelName, usable_bytes: Mapping[DeviceName, int], ctx_size: int | None = None
    ) -> LargestFit:
        """The largest context at the model's slots and the most slots that those bytes carry, and what to change so
        that the model fits into them; as configured, or asked for `ctx_size`. Long arithmetic is done in a thread;
        cancelled, nobody waits for its end."""


# --- the engine -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """The engine that was found. `ok` False: `problem` says why, and what to do."""

    ok: bool
    version: str
    backend: str
    path: str = ""
    problem: str = ""


Vet = Callable[[InstanceId, int], Awaitable[Failure | None]]
"""Asked of a process (its pid) that answers as planned, before it is called ready: why it is not what was planned, None
where it is. What it holds of its devices is such a question (B16)."""


class Engine(Protocol):
    """Owns the processes. One call of `run` is one process's whole life."""

    def info(self) -> EngineInfo:
        """What was found at start."""

    async def run(self, instance_id: InstanceId, launch: Launch, post: Post, vet: Vet | None = None) -> None:
        """Spawn, probe, vet, serve, reap. Posts `InstanceReady` at most once, then `InstanceExited` exactly once, when
        the process is verified gone. Cancelled, it ends the process first. Never raises for what a process does."""

    def stop(self, instance_id: InstanceId, *, at_once: bool = False) -> None:
        """Begin to end a process (TERM, then KILL after the grace; `at_once` KILL alone); unknown or ended ones are
        ignored."""

    def pause(self, instance_id: InstanceId) -> None:
        """Let a process stand still (S10); unknown or ended ones are ignored."""

    def resume(self, instance_id: InstanceId) -> None:
        """Let a process that stands still go on; others are ignored."""

    def processes(self) -> Mapping[InstanceId, int]:
        """The pid of every living process."""

    def command_line(self, instance_id: InstanceId) -> tuple[str, ...]:
        """What a living process was started with, as it was given; empty for others. It may hold a secret."""

    def log_tail(self, instance_id: InstanceId) -> tuple[str, ...]:
        """The last lines a process printed, also after its end."""

    def last_log_lines(self, model: ModelName, count: int) -> Sequence[str]:
        """The last lines that processes of a model have printed, oldest first, also long after their end. Blocks for as
        long as the disk does. Raises OSError."""

    def lost_log_lines(self) -> Mapping[ModelName, int]:
        """How many lines of a model's processes are in no log file, because they came too fast or the disk refused."""


class UpstreamFailureKind(Enum):
    """Where the engine failed us."""

    CONNECT = "connect"  # nobody took the connection
    BROKEN = "broken"  # the connection ended inside an answer
    PROTOCOL = "protocol"  # what came is not HTTP


class UpstreamFailure(Exception):
    """Door 6's failure. Carries a kind and a sentence, never a library's exception."""

    def __init__(self, kind: UpstreamFailureKind, message: str) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message


class EngineAnswer(Protocol):
    """The head of an engine's answer, and its body as it comes."""

    @property
    def status(self) -> int:
        """The HTTP status."""

    @property
    def headers(self) -> tuple[tuple[bytes, bytes], ...]:
        """Names in lower case, hop-by-hop ones removed."""

    async def receive(self) -> bytes:
        """The next bytes of the body as they came, b"" at its end. Raises UpstreamFailure."""


class Upstream(Protocol):
    """HTTP to one process: a new connection for every request (P3)."""

    def request(
        self, instance_id: InstanceId, method: str, target: str, headers: tuple[tuple[bytes, bytes], ...], body: bytes
    ) -> AbstractAsyncContextManager[EngineAnswer]:
        """Send one request; the block's value is the answer, its exit closes the connection.
        Raises UpstreamFailure, also for an instance that is gone."""

    async def busy_slots(self, instance_id: InstanceId) -> int:
        """How many slots the engine itself says are busy. Raises UpstreamFailure, also when it does not answer soon."""


# --- the store --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Account:
    """What was measured: the launch, its estimate at that time, and what the engine told of its buffers (by device)."""

    facts: LaunchFacts
    predicted: tuple[DeviceFootprint, ...]
    allocated: tuple[DeviceFootprint, ...] = ()


@dataclass(frozen=True, slots=True)
class Measurement:
    """What is kept of a launch option: bytes by device in the order of its footprint, its load time, and of what those
    are; an older version has not kept the latter."""

    measured_bytes: tuple[int, ...] = ()
    load_seconds: float | None = None
    account: Account | None = None


class StandingStore(Protocol):
    """What persons asked for that outlives the server (R7, R8); times are the wall clock's."""

    def standing(self) -> Standing:
        """As read at start."""

    def take(self, standing: Standing) -> None:
        """What there is now, to be written. Never waits."""

    async def write(self) -> str:
        """Write what was taken last, unless it has been: "" once the disk has it, else why it has not."""


class Store(Protocol):
    """What outlives the process. A store that cannot write says so once and goes on without."""

    def measurements(self) -> Mapping[str, Measurement]:
        """Everything kept, by option key, as read at start."""

    async def keep_measurement(
        self, option_key: str, measured_bytes: tuple[int, ...], account: Account | None = None
    ) -> None:
        """Replace the measurement of an option, and of what it is."""

    async def keep_load_time(self, option_key: str, load_seconds: float) -> None:
        """Replace the load time of an option."""
