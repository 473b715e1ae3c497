"""Which of the engine's devices is which of the measured cards, and what it computes with there. Pure.

The engine lists its devices without PCI address or UUID, so a card is known by what both call it, then by its memory,
at last by its place among as many. CUDA is then told the card's UUID, and every start is checked against the addresses
that the engine prints (`accounting.misplaced`): a wrong guess is a failed load, never somebody else's memory.

Owns this matching and what is said of the rest. Must never make a card usable that the engine does not list.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

from gridsched.core.ids import DeviceName
from gridsched.ports import Backend, DeviceInfo

ALIKE_PART = 16
"""Two figures of one card's memory differ by what the driver keeps for itself: 1.5 to 5 % were seen."""

BACKENDS: Mapping[str, Backend] = {
    "cuda": Backend.CUDA,
    "rocm": Backend.ROCM,
    "hip": Backend.ROCM,
    "mtl": Backend.METAL,
    "metal": Backend.METAL,
    "vulkan": Backend.VULKAN,
}
"""By the engine's word in front of the number, best first: a build may have several for one card."""

_SOFTWARE = re.compile(r"llvmpipe|softpipe|lavapipe|swiftshader", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class EngineDevice:
    """A card as the engine lists it: the name that it wants to hear, what it calls the card, and its memory as the
    engine sees it, 0 where it does not say."""

    name: str
    label: str
    total_bytes: int = 0

    @property
    def backend(self) -> Backend | None:
        """What it computes with; None for a word that is not known (BLAS, RPC)."""
        return BACKENDS.get(self.name.rstrip("0123456789").casefold())


@dataclass(frozen=True, slots=True)
class Matched:
    """The engine's names for our cards, one that it cannot use has none, and a sentence for each guess."""

    names: Mapping[DeviceName, str] = field(default_factory=dict)
    backends: Mapping[DeviceName, Backend] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def match(devices: Iterable[DeviceInfo], listed: Sequence[EngineDevice]) -> Matched:
    """Find our cards in an engine's list: those of one backend, the one with most of them, CUDA before Vulkan."""
    cards = [device for device in devices if device.backend is not Backend.CPU]
    found = Matched()
    for backend in dict.fromkeys(BACKENDS.values()):
        theirs = [one for one in listed if one.backend is backend and not _SOFTWARE.search(one.label)]
        names, notes = _names(cards, theirs)
        if len(names) > len(found.names):
            found = Matched(names, dict.fromkeys(names, backend), tuple(notes))
    return found


def _names(cards: Sequence[DeviceInfo], theirs: Sequence[EngineDevice]) -> tuple[dict[DeviceName, str], list[str]]:
    names: dict[DeviceName, str] = {}
    notes: list[str] = []
    free = list(theirs)
    for order, card in enumerate(cards):
        equals = _called_alike(card, theirs)
        open_to_it = [one for one in equals if one in free]
        alike = (one for one in open_to_it if _alike(one.total_bytes, card.spec.total_bytes))
        taken = next(chain(alike, open_to_it), None)
        if not equals and len(theirs) == len(cards) and theirs[order] in free:
            taken = theirs[order]
            notes.append(
                f"{card.spec.name} ({card.label}) is taken for the engine's {taken.name} ({taken.label}), because both"
                " lists are as long and in the same order."
            )
        if taken is not None:
            names[card.spec.name] = taken.name
            free.remove(taken)
    return names, notes


def _called_alike(card: DeviceInfo, theirs: Sequence[EngineDevice]) -> list[EngineDevice]:
    """Those that are called as a card is, or, where there is none, that have a driver's name in brackets behind it:
    AMD Radeon RX 7900 XTX (RADV NAVI31)."""
    ours = _called(card.label)
    exactly = [one for one in theirs if _called(one.label) == ours]
    return exactly or [one for one in theirs if _called(one.label).startswith(f"{ours} (")]


def _called(label: str) -> str:
    return " ".join(label.casefold().split())


def _alike(theirs: int, ours: int) -> bool:
    """Whether both may be the memory of one card; what is not known is no objection."""
    return not theirs or not ours or abs(theirs - ours) <= max(theirs, ours) // ALIKE_PART


def unmeasured(listed: Sequence[EngineDevice], cards: Iterable[DeviceInfo]) -> Iterator[str]:
    """A sentence for each card that the engine could compute on and nobody here can read."""
    cards = tuple(cards)
    known = tuple(_called(card.label) for card in cards)
    taken = match(cards, listed).names.values()
    for one in listed:
        # Another driver's words for a card begin with the card's own: NVIDIA GeForce RTX 5090 (NVK GB202).
        foreign = one.backend is not None and one.name not in taken and not _called(one.label).startswith(known)
        if foreign and not _SOFTWARE.search(one.label):
            yield (
                f"The engine lists {one.name} ({one.label}), but what is held there cannot be read on this machine: it"
                " is not used."
            )


def advice(
    listed: Sequence[EngineDevice], trouble: str, cards: Sequence[DeviceInfo], *, compiler: bool
) -> Iterator[str]:
    """What is to be said of a build that leaves cards unused, with the line that mends it. `trouble` is what it says of
    cards itself; `compiler`: NVIDIA's is here."""
    mend = (
        "gridsched engine install source  (with CUDA, for nvcc is here)"
        if compiler
        else "gridsched engine install wheel"
    )
    if "driver version is insufficient" in trouble:
        has = next((f" (this one is {card.driver})" for card in cards if card.driver), "")
        yield (
            f"The card's driver is too old for this build: {trouble}. Update the driver{has}, or take a build that does"
            " without CUDA: gridsched engine install wheel"
        )
    elif trouble:
        yield f"The engine cannot use the card that it was built for: {trouble}."
    elif cards and not match(cards, listed).names:
        labels = ", ".join(dict.fromkeys(card.label for card in cards))
        yield f"This build computes on the processor only, and there is a card here ({labels}). To use it: {mend}"
