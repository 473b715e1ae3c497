"""What an engine says of its own memory while it starts: buffers by device and component, and the cards it took.

Owns the reading of those lines, as pure functions. They are printed at level 4 of the engine's log (llama.cpp since
2026 hides them at its default, 3), each with a buffer's name and MiB to two digits:

    load_tensors:        CUDA0 model buffer size =  2375.91 MiB
    llama_kv_cache:      CUDA0 KV buffer size =  1152.00 MiB
    llama_memory_recurrent:  CUDA0 RS buffer size =   149.62 MiB
    sched_reserve:      CUDA0 compute buffer size =    85.01 MiB
    llama_prepare_model_devices: using device CUDA0 (NVIDIA GeForce RTX 3090) (0000:01:00.0) - 23871 MiB free

An engine that prints none of them is no fault: then only totals are compared (L2). One that found no card says so:

    warning: no usable GPU found, --gpu-layers option will be ignored
    ggml_cuda_init: failed to initialize CUDA: no CUDA-capable device is detected

Must never decide anything of a process's life but that it computes elsewhere than planned.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from gridsched.core.ids import DeviceName
from gridsched.core.model import DeviceFootprint
from gridsched.ports import Backend, DeviceInfo

MIB = 1 << 20
LEVEL = "4"
_LEVEL_IN_HELP = "- 4: trace"
MOST_LINES = 512
"""A start prints some ten of these; an engine that goes on and on is listened to no longer."""

_BUFFER = re.compile(r"\b(\w+):\s+(\S+)\s+(model|KV|RS|compute|output) buffer size =\s*([0-9]{1,9}(?:\.[0-9]+)?) MiB")
_CARD = re.compile(r"using device (\S+) \(.*\) \(([0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7])\)")
_WORDS = (" buffer size =", "using device ", "no usable GPU", "failed to initialize ", "No devices found")
_WITHOUT = re.compile(r"no usable GPU found|failed to initialize (CUDA|ROCm|MUSA)\b|ggml_(vulkan): No devices found")
_COMPONENT = {
    "model": "weights_bytes",
    "KV": "kv_bytes",
    "RS": "recurrent_bytes",
    "compute": "compute_bytes",
    "output": "compute_bytes",
}
_RESERVED = ("compute", "output")
HOST = "host"
_PROJECTORS = "alloc_compute_meta"
"""Who prints the projector's compute buffer: it is none of the model's."""


def level_in(help_text: str) -> str:
    """The level to ask for, "" where the engine has other levels: those of before 2026 print sizes by themselves, and
    people's text at a level as high."""
    return LEVEL if _LEVEL_IN_HELP in help_text else ""


def is_of_interest(line: str) -> bool:
    """Whether a line is one of those; cheap, because every line is asked."""
    return any(word in line for word in _WORDS)


def allocations(
    lines: Iterable[str], devices: Sequence[DeviceInfo], names: Sequence[str]
) -> tuple[DeviceFootprint, ...]:
    """What the engine has allocated on each device of a launch, in their order; empty where it does not say.

    `names` are what the engine calls the cards among them. On the host all buffers count, mapped and repacked weights
    too. Of a compute buffer the last line counts: a context that is reserved anew says its own again.
    """
    on_host = all(device.backend is Backend.CPU for device in devices)
    sizes: dict[tuple[str, str, str], int] = {}
    for name, kind, size in _buffers(lines):
        place = HOST if on_host else name.removesuffix("_Mapped")
        key = (place, kind, name)
        sizes[key] = size if kind in _RESERVED else sizes.get(key, 0) + size
    places = (HOST,) if on_host else tuple(names)
    if not any(place in places and kind == "model" for place, kind, _ in sizes):
        return ()
    return tuple(_footprint(device.spec.name, place, sizes) for device, place in zip(devices, places, strict=True))


def _footprint(device: DeviceName, place: str, sizes: Mapping[tuple[str, str, str], int]) -> DeviceFootprint:
    parts: Counter[str] = Counter()
    for (found, kind, _), size in sizes.items():
        if found == place:
            parts[_COMPONENT[kind]] += size
    return DeviceFootprint(device, **parts)


def _buffers(lines: Iterable[str]) -> Iterator[tuple[str, str, int]]:
    """Name, kind and bytes of each buffer that is told of."""
    for line in lines:
        match = _BUFFER.search(line)
        if match is not None and match[1] != _PROJECTORS:
            yield match[2], match[3], round(float(match[4]) * MIB)


def misplaced(lines: Sequence[str], devices: Sequence[DeviceInfo], names: Sequence[str]) -> str | None:
    """The sentence for an engine that computes on another card than was planned and is measured (D8), by the PCI
    addresses that it prints, or on the processor (B16), by its complaints; None where it says nothing of that."""
    if (complaint := _without_card(lines, names)) is not None:
        return f"it computes on the processor: {complaint}"
    planned = {name: device for name, device in zip(names, devices, strict=False) if device.pci_bus}
    for name, address in _cards(lines):
        device = planned.get(name)
        if device is not None and _pci(address) != _pci(device.pci_bus):
            return f"the engine's {name} is the card at {address}, and {device.spec.name} is at {device.pci_bus}"
    return None


def _without_card(lines: Iterable[str], names: Sequence[str]) -> str | None:
    """What an engine says that has not got the cards it was to use. Another backend that finds none is no news."""
    backends = {name.rstrip("0123456789").lower() for name in names}
    for line in lines:
        match = _WITHOUT.search(line)
        about = (match[1] or match[2] or "").lower() if match else None
        if about is not None and (about in backends or (not about and backends)):
            return line.strip()
    return None


def _cards(lines: Iterable[str]) -> Iterator[tuple[str, str]]:
    for line in lines:
        match = _CARD.search(line)
        if match is not None:
            yield match[1], match[2]


def _pci(address: str) -> tuple[int, ...]:
    """Domain, bus and device as numbers: a domain is written with four digits or with eight."""
    return tuple(int(part, 16) for part in address.partition(".")[0].split(":"))
