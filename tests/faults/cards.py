"""Cards for a gateway under test: the stand-in driver, and a stand-in engine that lists what the driver does.

An engine's `card_bytes` are used on its card, and listed under its pid, until it has ended, in whatever way.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.devices.driver import build_library
from tests.faults.bench import GIB


@dataclass(frozen=True)
class Card:
    """One card. `used_bytes` are other programs'."""

    uuid: str
    label: str
    bus: str
    total_bytes: int = 16 * GIB
    used_bytes: int = 0
    reserved_bytes: int = GIB // 4

    @property
    def line(self) -> str:
        """What the driver says of it."""
        figures = f"{self.total_bytes} {self.reserved_bytes} {self.used_bytes}"
        return f"card {self.uuid} 00000000:{self.bus}:00.0 {figures} {self.label}"


class Driver:
    """The stand-in driver of one gateway."""

    def __init__(self, folder: Path, *cards: Card) -> None:
        build_library(folder)
        self._folder = folder
        self._cards = cards
        self._story = folder / "story"
        self.tell()

    def tell(self, *lines: str, cards: tuple[Card, ...] | None = None) -> None:
        """What it says from now on beside its cards; what engines say that they hold stays."""
        before = self._story.read_text(encoding="utf-8").splitlines() if self._story.exists() else []
        claims = [line for line in before if line.startswith("claims ")]
        told = [card.line for card in (self._cards if cards is None else cards)]
        new = self._story.with_suffix(".new")
        new.write_text("\n".join([*told, *lines, *claims]) + "\n", encoding="utf-8")
        new.replace(self._story)

    @property
    def env(self) -> Mapping[str, str]:
        """What a gateway needs to see these cards, and its engine too."""
        listed = [
            f"CUDA{number}: {card.label} ({card.total_bytes >> 20} MiB, {card.total_bytes >> 20} MiB free)"
            for number, card in enumerate(self._cards)
        ]
        return {
            "LD_LIBRARY_PATH": str(self._folder),
            "NVML_STORY": str(self._story),
            "FAKE_LLAMA": json.dumps({"devices": listed}),
        }
