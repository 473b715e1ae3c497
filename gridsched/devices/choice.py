"""Which of the cards that there are are planned, what they are called, and what is said of the rest. Pure.

Owns the names: `gpu0`, `gpu1`, … by PCI address over all kinds of cards, the order CUDA uses when told to. Must never
open a driver.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from gridsched.core.ids import DeviceName
from gridsched.core.model import DeviceSpec
from gridsched.devices.headroom import Headroom
from gridsched.ports import Backend, DeviceInfo

NOT_LISTED = (
    "is not used, because the engine does not list it: name a llama-server that was built for it in engine.path (with"
    " CUDA, ROCm or Vulkan), or have one brought here: gridsched engine install wheel."
)

_PCI = re.compile(r"(?:([0-9a-f]{1,8}):)?([0-9a-f]{1,2}):([0-9a-f]{1,2})(?:\.[0-7])?", re.IGNORECASE)

PciAddress = tuple[int, int, int]
"""Domain, bus, device."""

Usable = Callable[[Sequence[DeviceInfo]], Mapping[DeviceName, Backend]]
"""Those of some cards that the engine can compute on, and what with."""


@dataclass(frozen=True, slots=True)
class Card:
    """What a driver says of one card that answers.

    `total_bytes` and `capability` are 0 where it does not tell. `shared` says how its memory is the host's, and
    `unfit` why it is not used at all; both end a sentence that begins with its name. `holders` have memory there now:
    bytes by pid, 0 where the driver tells none.
    """

    pci: PciAddress
    uuid: str
    label: str
    total_bytes: int
    backend: Backend
    capability: int = 0
    driver: str = ""
    shared: str = ""
    unfit: str = ""
    holders: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the configuration says of cards: `ignore` and `totals` name them by name (`gpu0`), UUID or PCI address."""

    headroom: Headroom = field(default_factory=Headroom)
    ignore: Sequence[str] = ()
    totals: Mapping[str, int] = field(default_factory=dict)


def all_of(cards: Sequence[DeviceInfo]) -> Mapping[DeviceName, Backend]:
    """Every card can be computed on, as far as is known."""
    return {card.spec.name: card.backend for card in cards}


def choose(cards: Sequence[Card], wanted: Wanted, usable: Usable = all_of) -> tuple[list[DeviceInfo], list[str]]:
    """The cards to plan with, in the order of their PCI address, and a sentence for each that is left.

    `usable` says which of them the engine can compute on: memory on another is no use to anybody.
    """
    numbered = list(_numbered(cards, wanted.headroom))
    notes = list(_unknown(numbered, wanted))
    taken = []
    for card, info in numbered:
        found, note = _take(card, info, wanted)
        notes += [f"{info.spec.name} ({info.label}) {note}"] if note else []
        taken += [found] if found is not None else []
    backends = usable(tuple(taken))
    notes += [f"{info.spec.name} ({info.label}) {NOT_LISTED}" for info in taken if info.spec.name not in backends]
    return [replace(info, backend=backends[info.spec.name]) for info in taken if info.spec.name in backends], notes


def _take(card: Card, info: DeviceInfo, wanted: Wanted) -> tuple[DeviceInfo | None, str]:
    """A card as it is planned, None where it is not, and what is to be said of it."""
    if any(is_named(info, text) for text in wanted.ignore):
        return None, "is left alone, as configured."
    if card.unfit:
        return None, card.unfit
    total_bytes = next((size for text, size in wanted.totals.items() if is_named(info, text)), None)
    if not card.shared:
        unused = "tells its memory itself: its size in devices.total is not used."
        return info, unused if total_bytes is not None else ""
    if total_bytes is None:
        setting = f"devices.total, for example {{{info.spec.name}: 24GiB}}"
        return None, f"{card.shared}: not used. To use it, say how much of it may be planned in {setting}."
    spec = DeviceSpec(info.spec.name, total_bytes, wanted.headroom.of(total_bytes))
    return replace(info, spec=spec), ""


def _unknown(cards: Sequence[tuple[Card, DeviceInfo]], wanted: Wanted) -> Iterator[str]:
    """A slip of the pen would have a card used that was to be left alone."""
    for setting, texts in (("ignore", wanted.ignore), ("total", wanted.totals)):
        for text in texts:
            if not any(is_named(info, text) for _, info in cards):
                yield f"devices.{setting}: there is no card {text!r}."


def _numbered(cards: Sequence[Card], headroom: Headroom) -> Iterator[tuple[Card, DeviceInfo]]:
    counts: dict[Backend, int] = {}
    for number, card in enumerate(sorted(cards, key=lambda card: card.pci)):
        spec = DeviceSpec(DeviceName(f"gpu{number}"), card.total_bytes, headroom.of(card.total_bytes))
        index = counts[card.backend] = counts.get(card.backend, -1) + 1
        pci_bus = pci_text(card.pci)
        yield (
            card,
            DeviceInfo(
                spec, card.label, card.backend, index, card.uuid or pci_bus, pci_bus, card.capability, card.driver
            ),
        )


def is_named(info: DeviceInfo, text: str) -> bool:
    """Whether a person's word is for this card."""
    if text.lower() in {info.spec.name, info.uuid.lower()}:
        return True
    try:
        return pci_address(text) == pci_address(info.pci_bus)
    except ValueError:
        return False


def pci_text(pci: PciAddress) -> str:
    """An address as the kernel writes it."""
    domain, bus, device = pci
    return f"{domain:04x}:{bus:02x}:{device:02x}.0"


def pci_address(text: str) -> PciAddress:
    """Domain, bus and device of `[domain:]bus:device[.function]`. All three are hexadecimal: bus 41 is the 65th.

    Raises ValueError for anything else.
    """
    if (match := _PCI.fullmatch(text.strip())) is None:
        raise ValueError(f"{text!r} is not a PCI address such as 0000:41:00.0")
    domain, bus, device = (int(part or "0", 16) for part in match.groups())
    return domain, bus, device
