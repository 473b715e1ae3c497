"""What of a configuration cannot be had once the files have been read: pins that do not fit together, families and
names over models that are for something else. Sentences, and the settings that they are about. Pure.
"""

from collections.abc import Iterator, Mapping, Sequence

from gridsched.core.ids import ModelName
from gridsched.core.model import ModelSpec
from gridsched.library.names import Names
from gridsched.library.planning import outside
from gridsched.ports import Capability, CatalogFamily, CatalogModel, CatalogVirtual, DeviceInfo, VirtualEntry

Fault = tuple[tuple[str, str, str], str]
"""The way to a setting, and what is wrong with it."""


def too_much_pinned(models: Sequence[CatalogModel], devices: Sequence[DeviceInfo]) -> Iterator[str]:
    """R7: pins that cannot all fit, were each launched in the smallest of its ways. Measurements are not looked at."""
    pinned = [model for model in models if model.spec is not None and model.spec.pinned]
    least = {model.name: _least_bytes(model.spec) for model in pinned if model.spec is not None}
    room_bytes = sum(info.spec.total_bytes - info.spec.headroom_bytes for info in devices)
    if sum(least.values()) > room_bytes:
        each = " + ".join(f"{name} {need >> 20}" for name, need in least.items())
        yield (
            f"the pinned models do not fit together: {each} MiB at the least, {room_bytes >> 20} MiB to plan with;"
            " unpin one, or give it less context"
        )


def assumed(devices: Sequence[DeviceInfo], measured: Mapping[str, int]) -> Iterator[str]:
    """Devices of whose kind nobody has measured what a process takes beside its buffers; the first load here does."""
    for info in devices:
        if note := outside(info, measured).note:
            yield f"{info.spec.name}: {note}"


def not_chatting(families: Sequence[CatalogFamily]) -> Iterator[Fault]:
    """R10: variants that turn out to be for something else, once their files were read; each with its key."""
    for family in families:
        for quality, model in family.variants:
            if model.spec is not None and Capability.CHAT not in model.capabilities:
                able = ", ".join(sorted(capability.value for capability in model.capabilities))
                key = ("families", str(family.name), quality.label)
                yield key, f"{model.name} does not chat, and a family is for chats and completions; it serves {able}"


def bases_of(virtuals: Sequence[VirtualEntry], words: Names) -> tuple[Mapping[ModelName, ModelName], tuple[Fault, ...]]:
    """What serves each virtual model; those whose base is not there, or is one of them, are faults."""
    bases: dict[ModelName, ModelName] = {}
    faults: list[Fault] = []
    names = {entry.name for entry in virtuals}
    for entry in virtuals:
        found = words.resolve(entry.base)
        if found is not None and found not in names:
            bases[ModelName(entry.name)] = found
            continue
        close = ", ".join(name for name in words.closest(entry.base) if name not in names)
        hint = f"; did you mean {close}?" if close else ""
        faults.append((("models", entry.name, "base"), f"there is no model or family {entry.base}{hint}"))
    return bases, tuple(faults)


def cannot_be_told(virtuals: Sequence[CatalogVirtual]) -> Iterator[Fault]:
    """Those whose words are for a model that does not chat, once its file was read."""
    for each in virtuals:
        base = each.base.best if isinstance(each.base, CatalogFamily) else each.base
        chats = base is None or base.spec is None or Capability.CHAT in base.capabilities
        if each.entry.system_prompt is not None and not chats:
            yield ("models", str(each.name), "system_prompt"), f"{each.base.name} does not chat, and would not hear it"


def _least_bytes(spec: ModelSpec) -> int:
    return min(sum(part.total_bytes for part in option.footprint) for option in spec.options)
