"""What a reading of a process is worth (L2): believed, kept and told with its error, or not believed and told once.

Owns the words and the arithmetic. Whether a reading is plausible, and what it changes, is the ledger's; what is done
with many measurements is `vram.calibrate`'s. What the engine has allocated counts as taken, touched or not. Where an
earlier measurement has stood in for the prediction, it is told too, as what was planned.

    error = predicted - measured        above 0: more was reserved than is taken; below: too little
"""

from collections.abc import Mapping

from gridsched.core.commands import KeepMeasurement, LogEvent
from gridsched.core.ids import DeviceName
from gridsched.core.model import DeviceFootprint
from gridsched.core.residency import Instance
from gridsched.core.state import State

TOTAL = "total"
BUFFERS = ("weights", "kv", "recurrent", "compute")
"""The components that the engine tells the sizes of."""

ROUNDED_BYTES = 10_486
"""The engine tells sizes to a hundredth of a MiB: so far may two buffers of a component be from what it says."""

OVERHEAD = "overhead"
COMPONENTS = (*BUFFERS, OVERHEAD, TOTAL)
"""What an error is told of."""


def errors(predicted: DeviceFootprint, measured_bytes: int, allocated: DeviceFootprint | None) -> Mapping[str, int]:
    """Predicted less measured, in bytes, of a process on one device, by component.

    `allocated` is what the engine says of its buffers; what is measured beyond them is overhead. Without it, and where
    a projector or a draft model shares the device, whose buffers it does not tell apart, only the total is known.
    """
    found = {TOTAL: predicted.total_bytes - measured_bytes}
    if allocated is None or predicted.mmproj_bytes or predicted.draft_bytes:
        return found
    parts = {name: _part(predicted, name) - _part(allocated, name) for name in BUFFERS}
    parts = {name: size if abs(size) > ROUNDED_BYTES else 0 for name, size in parts.items()}
    return {**parts, OVERHEAD: found[TOTAL] - sum(parts.values()), **found}


def outside_bytes(measured_bytes: int, allocated: DeviceFootprint) -> int:
    """What a process holds on a device beside the buffers that its engine tells of."""
    return measured_bytes - sum(_part(allocated, name) for name in BUFFERS)


def _part(footprint: DeviceFootprint, name: str) -> int:
    size: int = getattr(footprint, f"{name}_bytes")
    return size


def measure(state: State, instance: Instance, read: DeviceName) -> None:
    """To be asked at a reading of a device, of an instance that has served a request."""
    measured = state.ledger.measure(instance.id, instance.option, read, _least_bytes(state, instance, read))
    if measured is not None:
        grown = state.ledger.by_difference(instance.id)
        _tell(state, instance, measured, grown)
        option, name = instance.option, instance.model.spec.name
        state.out.append(KeepMeasurement(name, option.key, measured, option, instance.allocated, bool(grown)))
        return
    refusal = state.ledger.refusal(instance.id, instance.option, read)
    if refusal is not None:
        state.say_of_instance(LogEvent.MEASURE, instance, "L2", refused_on=read, why=refusal)


def _least_bytes(state: State, instance: Instance, read: DeviceName) -> int:
    """What an instance takes of a device at the least, whatever it is read to hold.

    What the engine has allocated. Where memory is held only as it is touched that is not all: what a process has beside
    its buffers, and a projector's that are not told of, cannot be told there from what it has touched of the others, so
    that they count as estimated; without a word from the engine all counts so, but for the room that the estimate has.
    """
    allocated = sum(part.total_bytes for part in instance.allocated if part.device == read)
    book = state.ledger.books.get(read)
    planned = next((part for part in instance.option.footprint if part.device == read), None)
    if book is None or planned is None or not book.spec.held_as_touched:
        return allocated
    if not allocated:
        return planned.total_bytes - planned.overhead_bytes
    return allocated + planned.mmproj_bytes + planned.overhead_bytes


def _tell(state: State, instance: Instance, measured: tuple[int, ...], grown: list[DeviceName]) -> None:
    allocated = {part.device: part for part in instance.allocated}
    predicted: dict[str, int] = {}
    held: dict[str, int] = {}
    found: dict[str, Mapping[str, int]] = {}
    for part, size in zip(instance.option.footprint, measured, strict=True):
        predicted[part.device], held[part.device] = part.total_bytes, size
        found[part.device] = errors(part, size, allocated.get(part.device))
    figures: dict[str, object] = {"predicted_bytes": predicted, "measured_bytes": held, "error_bytes": found}
    if grown:  # no driver's figure (D2)
        figures["by_difference"] = grown
    if instance.option.measured_bytes:
        figures["planned_bytes"] = {str(device): size for device, size in instance.option.need_bytes}
    state.say_of_instance(LogEvent.MEASURE, instance, "L2", **figures)
