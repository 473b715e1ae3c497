"""What can be loaded: models, the ladder of ways to launch each, and the memory each way takes.

Owns the frozen description that planning (floor 1) hands to the scheduler, and families of models (R10). A
*footprint* is always an estimate; what was measured is called a measurement and lives in the ledger.
"""

from dataclasses import dataclass, field
from enum import Enum

from gridsched.core.ids import DeviceName, ModelName
from gridsched.core.job import NO_MEDIA, Medium, Quality

COMPONENTS = (
    "weights_bytes", "kv_bytes", "recurrent_bytes", "compute_bytes", "mmproj_bytes", "draft_bytes", "overhead_bytes",
)  # fmt: skip
"""What a footprint is made of, as its fields are called."""


@dataclass(frozen=True, slots=True)
class DeviceFootprint:
    """Estimated bytes of one launch on one device, by component."""

    device: DeviceName
    weights_bytes: int = 0
    kv_bytes: int = 0
    recurrent_bytes: int = 0
    compute_bytes: int = 0
    mmproj_bytes: int = 0
    draft_bytes: int = 0
    overhead_bytes: int = 0

    @property
    def total_bytes(self) -> int:
        """The sum of all components."""
        return (
            self.weights_bytes
            + self.kv_bytes
            + self.recurrent_bytes
            + self.compute_bytes
            + self.mmproj_bytes
            + self.draft_bytes
            + self.overhead_bytes
        )


@dataclass(frozen=True, slots=True)
class LaunchOption:
    """One rung of a model's ladder: explicit slots, context and placement, and what they take.

    `key` identifies file, effective flags, device and engine build together: a measurement is kept under it (L2).
    `ctx_size` is the total pool that `parallel` slots share. `flags` are engine flags that this rung adds (a cache
    type, a split). `host` is what the launch takes in host memory beside its devices; of that, `host_mapped_bytes` are
    weights that the kernel may drop and read again, and `host_growth_bytes` may come on top in time. `measured_bytes`
    is what an earlier run measured under the same key, by device in the order of `footprint`; empty when there is none.
    `cache_types` are what K and V of the cache are kept as, in the engine's words.
    `devices` are those it takes memory on, `estimates` what it should take there, and `need_bytes` what to reserve: the
    measurement where there is one, else the estimate (L2).
    """

    key: str
    ctx_size: int
    parallel: int
    footprint: tuple[DeviceFootprint, ...]
    flags: tuple[str, ...] = ()
    host: DeviceFootprint | None = None
    measured_bytes: tuple[int, ...] = ()
    cache_types: tuple[str, str] = ("f16", "f16")
    host_mapped_bytes: int = 0
    host_growth_bytes: int = 0
    devices: tuple[DeviceName, ...] = field(init=False, compare=False, repr=False)
    estimates: tuple[tuple[DeviceName, int], ...] = field(init=False, compare=False, repr=False)
    need_bytes: tuple[tuple[DeviceName, int], ...] = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        # Planning asks for these a hundred times for each launch that it makes.
        object.__setattr__(self, "devices", tuple(part.device for part in self.footprint))
        object.__setattr__(self, "estimates", tuple((part.device, part.total_bytes) for part in self.footprint))
        object.__setattr__(self, "need_bytes", self.needs_by(self.measured_bytes))

    @property
    def host_need_bytes(self) -> int:
        """Host memory beside its devices that the machine must have for it: what can be dropped is not needed."""
        if self.host is None:
            return 0
        return self.host.total_bytes - self.host_mapped_bytes + self.host_growth_bytes

    def needs_by(self, measured_bytes: tuple[int, ...]) -> tuple[tuple[DeviceName, int], ...]:
        """Bytes by device with a measurement; one that does not match the launch is none, whatever says so (C12)."""
        if len(measured_bytes) != len(self.footprint) or min(measured_bytes, default=0) <= 0:
            return self.estimates
        return tuple(zip(self.devices, measured_bytes, strict=True))


class Tier(Enum):
    """R1: what may be evicted, and by whom."""

    PINNED = "pinned"
    HOT = "hot"
    COLD = "cold"


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A configured or indexed model. `options` is its ladder, best first, and is never empty.

    `pinned`: R1. `reserved_slots`: slots kept for interactive work (S6), None for automatic.
    `idle_ttl_seconds`: R6, None for never. `load_seconds`: expected time of a load, from measurement or size.
    `launched_with` tells apart what its processes are started with beside an option: what takes no memory, so that no
    key knows of it.
    """

    name: ModelName
    options: tuple[LaunchOption, ...]
    pinned: bool = False
    reserved_slots: int | None = None
    idle_ttl_seconds: float | None = None
    load_seconds: float = 10.0
    launched_with: str = ""

    @property
    def launches(self) -> tuple[str, list[str]]:
        """What its launches are, by file, flags, devices and engine, and by what measures nothing."""
        return self.launched_with, [option.key for option in self.options]


@dataclass(frozen=True, slots=True)
class Variant:
    """One model of a family, and what it takes beside text."""

    model: ModelName
    quality: Quality
    media: frozenset[Medium] = NO_MEDIA


@dataclass(frozen=True, slots=True)
class FamilySpec:
    """R10: one name for several sizes, best first, never empty."""

    name: ModelName
    variants: tuple[Variant, ...]


@dataclass(frozen=True, slots=True)
class DeviceSpec:
    """One GPU, the host-memory budget where there is none, or host memory beside GPUs. `headroom_bytes` is never
    planned (L4). `held_as_touched`: of what a process has allocated there only what it has written to is read."""

    name: DeviceName
    total_bytes: int
    headroom_bytes: int = 0
    held_as_touched: bool = False
