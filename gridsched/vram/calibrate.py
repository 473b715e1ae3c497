"""What measured loads teach (L2): what the next load of the same launch takes, what any other takes beside its buffers
on the same card, and how far off estimates were, by architecture and component.

Owns the judgement over kept measurements; a single reading is judged where it is heard (`core.ledger`,
`core.measuring`). Pure: who keeps them is the store's business.

The same launch is planned with what it took. Other models on the card have their own buffers, but what a process holds
outside of them (driver's context, kernels, pools) depends on card, driver and engine, hardly on the model: the highest
that was measured replaces the constants of `overhead`, once the engine has told its buffers' sizes.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from statistics import median

from gridsched.core.ids import DeviceName
from gridsched.core.measuring import COMPONENTS, TOTAL, errors, outside_bytes
from gridsched.core.model import DeviceFootprint, LaunchOption
from gridsched.core.reservation import PLAUSIBLE_PART
from gridsched.vram.overhead import FIRST_PROMPT_BYTES

MOST_OUTSIDE_BYTES = 2 << 30
"""Three times the largest overhead that was ever seen (712 MiB): what says more holds something that is not told of."""


@dataclass(frozen=True, slots=True)
class Load:
    """One measured launch, by device in the order of its footprint.

    `devices` name the very cards, with the driver where it is known; `allocated` is what the engine told of its
    buffers, empty where it told nothing.
    """

    architecture: str
    engine_build: str
    devices: tuple[str, ...]
    predicted: tuple[DeviceFootprint, ...]
    measured_bytes: tuple[int, ...]
    allocated: tuple[DeviceFootprint, ...] = ()

    def errors(self) -> Mapping[str, int]:
        """Predicted less measured, in bytes, by component, over all devices; a component is left out where one device
        does not tell it."""
        told = {part.device: part for part in self.allocated}
        by_device = [
            errors(part, size, told.get(part.device))
            for part, size in zip(self.predicted, self.measured_bytes, strict=True)
        ]
        return {name: sum(each[name] for each in by_device) for name in COMPONENTS if all(name in e for e in by_device)}


def believed(
    option: LaunchOption, measured_bytes: tuple[int, ...], usable_bytes: Mapping[DeviceName, int]
) -> tuple[LaunchOption, str | None]:
    """An option with what was kept of it, or why that is not believed. State from disk must not hurt (C12): a record of
    another number of devices, or of a small part of the estimate, is of something else; one above what can be planned
    would never be tried again (L6a), and is cut to that."""
    if not measured_bytes:
        return option, None
    if len(measured_bytes) != len(option.footprint):
        return option, f"it is of {len(measured_bytes)} devices, the launch of {len(option.footprint)}"
    pairs = tuple(zip(option.footprint, measured_bytes, strict=True))
    for part, measured in pairs:
        if measured * PLAUSIBLE_PART < part.total_bytes:
            return option, f"{measured} bytes on {part.device} are under a quarter of the estimated {part.total_bytes}"
    most = (max(usable_bytes.get(part.device, 0), part.total_bytes) for part, _ in pairs)
    return replace(option, measured_bytes=tuple(map(min, measured_bytes, most))), None


def overheads(loads: Iterable[Load], engine_build: str) -> Mapping[str, int]:
    """Bytes outside of the engine's buffers, by device, as this build of the engine was measured there: the highest,
    and room for the pools, because what was served by then may have been short."""
    found: dict[str, int] = {}
    for load in loads:
        if load.engine_build == engine_build:
            for device, outside in _outside(load):
                found[device] = max(found.get(device, 0), outside + FIRST_PROMPT_BYTES)
    return found


def _outside(load: Load) -> Iterator[tuple[str, int]]:
    """What one load held outside of its buffers, where all of them are told."""
    told = {part.device: part for part in load.allocated}
    for device, part, measured in zip(load.devices, load.predicted, load.measured_bytes, strict=True):
        if part.device in told and not part.mmproj_bytes and not part.draft_bytes:
            outside = outside_bytes(measured, told[part.device])
            if 0 < outside <= MOST_OUTSIDE_BYTES:
                yield device, outside


@dataclass(frozen=True, slots=True)
class ArchitectureError:
    """How far off the estimates of an architecture's measured launches were. Parts are of what was measured; above 0 is
    too much, below too little. `components` are median and farthest error in bytes; those never told are left out."""

    architecture: str
    launches: int
    median_part: float
    least_part: float
    most_part: float
    components: Mapping[str, tuple[int, int]]


def by_architecture(loads: Iterable[Load]) -> tuple[ArchitectureError, ...]:
    """In the order of their names."""
    grouped: dict[str, list[Load]] = {}
    for load in loads:
        if sum(load.measured_bytes) > 0:
            grouped.setdefault(load.architecture, []).append(load)
    return tuple(_summed_up(name, grouped[name]) for name in sorted(grouped))


def _summed_up(architecture: str, loads: list[Load]) -> ArchitectureError:
    found = [load.errors() for load in loads]
    parts = [each[TOTAL] / sum(load.measured_bytes) for each, load in zip(found, loads, strict=True)]
    components: dict[str, tuple[int, int]] = {}
    for name in COMPONENTS:
        sizes = [each[name] for each in found if name in each]
        if sizes:
            components[name] = (round(median(sizes)), max(sizes, key=abs))
    return ArchitectureError(architecture, len(loads), median(parts), min(parts), max(parts), components)
