"""How fast a launch writes: as a benchmark measured it, else estimated from what is read for each token. Pure.

Writing one token reads every active weight and the cache of its stream once, and that takes most of the time. So a
single stream writes about `bandwidth / bytes read` tokens a second:

- bytes read: the footprint's weights on a device, times the share that a token reads (`CatalogModel.active_part`:
  experts that are used, no table of words), and one slot's full share of its cache and state;
- bandwidth: what a benchmark of any model reached on the very same devices; else what the vendor's data sheet gives
  for a card of that name (`_CARDS`, GB/s), of which about two thirds are reached (a guess);
- parts of a model on several devices are read one after the other, so their times add up.

Owns that arithmetic, its table, and the words of confidence. It decides nothing.
"""

import re
from collections.abc import Iterable, Mapping
from statistics import median
from typing import Annotated, Final, Literal

from msgspec import Meta

from gridsched.control.verb import Answer
from gridsched.core.model import DeviceFootprint, LaunchOption
from gridsched.ports import Backend, Capability, CatalogModel, DeviceInfo
from gridsched.store.benchmarks import Benchmark

GB: Final = 10**9
REACHED_PART: Final = 0.65
HOST_GB_PER_SECOND: Final = 40.0
"""Two channels of DDR4-3200 give 51 GB/s on paper; whose machine has more is told too little."""

_CARDS: Final[Mapping[str, float]] = {
    "RTX 5090": 1792, "RTX 5080": 960, "RTX 5070 TI": 896, "RTX 5070": 672, "RTX 5060 TI": 448, "RTX 5060": 448,
    "RTX 4090": 1008, "RTX 4080 SUPER": 736, "RTX 4080": 717, "RTX 4070 TI SUPER": 672, "RTX 4070 TI": 504,
    "RTX 4070 SUPER": 504, "RTX 4070": 504, "RTX 4060 TI": 288, "RTX 4060": 272,
    "RTX 3090 TI": 1008, "RTX 3090": 936, "RTX 3080 TI": 912, "RTX 3080": 760, "RTX 3070 TI": 608, "RTX 3070": 448,
    "RTX 3060 TI": 448, "RTX 3060": 360, "RTX 3050": 224,
    "RTX 2080 TI": 616, "RTX 2080 SUPER": 496, "RTX 2080": 448, "RTX 2070": 448, "RTX 2060": 336,
    "GTX 1080 TI": 484, "GTX 1080": 320, "GTX 1070": 256, "GTX 1060": 192, "TITAN RTX": 672, "TITAN V": 653,
    "RTX PRO 6000": 1792, "RTX 6000 ADA": 960, "RTX A6000": 768, "RTX A5000": 768, "RTX A4000": 448, "RTX A2000": 288,
    "L40S": 864, "L40": 864, "L4": 300, "A40": 696, "A10": 600, "T4": 320, "P40": 347, "P100": 732, "V100": 900,
    "A100": 1555, "A100 80GB": 1935, "H100": 3350, "H100 PCIE": 2000, "H200": 4800, "B200": 8000,
    "RX 9070 XT": 640, "RX 9070": 640, "RX 7900 XTX": 960, "RX 7900 XT": 800, "RX 7900 GRE": 576, "RX 7800 XT": 624,
    "RX 7700 XT": 432, "RX 7600": 288, "RX 6950 XT": 576, "RX 6900 XT": 512, "RX 6800 XT": 512, "RX 6800": 512,
    "RX 6700 XT": 384, "RX 6600 XT": 256, "RX 6600": 224, "RADEON VII": 1024, "MI50": 1024, "MI60": 1024,
    "MI100": 1229, "MI210": 1638, "MI300X": 5300, "ARC A770": 560, "ARC A750": 512, "ARC B580": 456,
}  # fmt: skip
"""Memory bandwidth in GB/s by name, from the vendors' data sheets. A notebook's card shares the name of a faster one
and is not believed."""

_NOTEBOOK: Final = re.compile(r"\b(laptop|mobile|max-q)\b", re.IGNORECASE)

Confidence = Literal["measured here", "measured on a like launch", "estimated", "unknown"]


class Speed(Answer, frozen=True, kw_only=True):
    """How fast one answer is written when no other is; nothing of a model that writes none."""

    estimated_tokens_per_s: Annotated[
        float | None, Meta(description="From memory bandwidth and the bytes read for a token; null where unknown.")
    ]
    measured_tokens_per_s: Annotated[float | None, Meta(description="As a benchmark measured it, where one did.")]
    confidence: Annotated[
        Confidence,
        Meta(
            description="measured here: this model on these devices with this engine; measured on a like launch: on "
            "other devices, or with another engine or file; estimated: nothing was measured; unknown: nor can it be."
        ),
    ]


def speed_of(
    model: CatalogModel,
    option: LaunchOption,
    devices: Mapping[str, DeviceInfo],
    results: Iterable[Benchmark],
    fingerprint: str,
    engine_build: str,
) -> Speed:
    """Of a launch, by what is known of its devices and by all results there are."""
    if not model.capabilities & {Capability.CHAT, Capability.COMPLETION}:
        return Speed(estimated_tokens_per_s=None, measured_tokens_per_s=None, confidence="unknown")
    known = tuple(results)
    infos = [devices[name] for name in option.devices if name in devices]
    identities = tuple(info.identity for info in infos)
    estimated = _estimated(model, option, infos, [one for one in known if one.identities == identities])
    own = [one for one in known if one.model == model.name and one.levels]
    here = [
        one
        for one in own
        if (one.identities, one.fingerprint, one.engine_build) == (identities, fingerprint, engine_build)
    ]
    found = (here or own)[-1:]
    confidence: Confidence = "estimated" if estimated is not None else "unknown"
    if found:
        confidence = "measured here" if here else "measured on a like launch"
    return Speed(
        estimated_tokens_per_s=round(estimated, 1) if estimated is not None else None,
        measured_tokens_per_s=round(found[0].levels[0].tokens_per_s, 1) if found else None,
        confidence=confidence,
    )


def weights_read(model: CatalogModel, option: LaunchOption) -> int:
    """What is read for one token when the context is nearly empty, as in a benchmark."""
    return int(sum(part.weights_bytes for part in _parts(option)) * model.active_part)


def _parts(option: LaunchOption) -> tuple[DeviceFootprint, ...]:
    return (*option.footprint, *((option.host,) if option.host is not None else ()))


def _read_of(model: CatalogModel, option: LaunchOption, part: DeviceFootprint) -> int:
    slots = max(option.parallel, 1)
    return int(part.weights_bytes * model.active_part) + (part.kv_bytes + part.recurrent_bytes) // slots


def _estimated(
    model: CatalogModel, option: LaunchOption, infos: list[DeviceInfo], results: list[Benchmark]
) -> float | None:
    """Tokens a second; None where the speed of a device is not known."""
    reached = [one.levels[0].tokens_per_s * one.read_bytes for one in results if one.levels and one.read_bytes]
    if reached:
        return median(reached) / max(sum(_read_of(model, option, part) for part in _parts(option)), 1)
    if len(infos) != len(option.devices):
        return None
    seconds = 0.0
    for part, info in zip(option.footprint, infos, strict=True):
        bandwidth = bandwidth_of(info)
        if bandwidth is None:
            return None
        seconds += _read_of(model, option, part) / bandwidth
    if option.host is not None:
        seconds += _read_of(model, option, option.host) / (HOST_GB_PER_SECOND * GB * REACHED_PART)
    return 1.0 / seconds if seconds > 0 else None


def bandwidth_of(info: DeviceInfo) -> float | None:
    """Bytes a second that are reached on a device, by its name; None for one that is not in the table."""
    if info.backend is Backend.CPU:
        return HOST_GB_PER_SECOND * GB * REACHED_PART
    if _NOTEBOOK.search(info.label):
        return None
    words = f" {' '.join(re.split(r'[^A-Z0-9]+', info.label.upper()))} "
    found = max((name for name in _CARDS if f" {name} " in words), key=len, default=None)
    return _CARDS[found] * GB * REACHED_PART if found is not None else None
