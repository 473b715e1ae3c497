"""Which device holds what: layers by `-ngl` and `-ts`, tensors by their role and by overrides; what that takes.

Owns llama.cpp's placement rules (llama-model-loader). Devices are counted from 0 in the order given; None is the host.
"""

import re
import struct
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate

from gridsched.vram.flags import LaunchFlags, TensorOverride
from gridsched.vram.geometry import Geometry, Weight
from gridsched.vram.weights import Tensors

_ALWAYS_ON_HOST = frozenset(
    ("token_embd.weight", "per_layer_token_embd.weight", "position_embd.weight", "token_types.weight")
)
_WITH_OUTPUT = re.compile(
    r"(output|((enc|dec)\.)?output_norm|output_hc_\w+|cls|cls\.output|cls\.norm|altup_proj|altup_unembd_proj"
    r"|dense_2|dense_3|fc|d2t|nextn\.post_projection)(\.\w+)?"
)
_OUTPUT_NORM_OF_LFM = "token_embd_norm.weight"  # its files call the output's norm by the table's name
_ALWAYS_COPIES_TABLE = ("gemma4", "gemma3n")  # their loader copies a tied table even where the output is on the host
_ROPE = frozenset(("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"))


@dataclass(frozen=True, slots=True)
class Placement:
    """`layers[i]` is the device of block i; the last entry is the output layer's. None is the host.

    `overridden` maps a tensor's name to where an override put it.
    """

    devices: int
    layers: tuple[int | None, ...]
    overridden: dict[str, int | None]

    @property
    def output(self) -> int | None:
        """The device of the output layer."""
        return self.layers[-1]

    @property
    def fully_offloaded(self) -> bool:
        """Whether every layer, the output included, is on some device."""
        return None not in self.layers

    def blocks_on(self, device: int | None, geometry: Geometry) -> list[int]:
        """The ordinary blocks that a device (or the host) holds."""
        return [index for index in range(geometry.blocks) if self.layers[index] == device]


def place(geometry: Geometry, flags: LaunchFlags, devices: int) -> Placement:
    """Lay the model out over `devices` of equal share, or by `-ts`; 0 devices is the host alone."""
    total = len(geometry.layers)
    offloaded = total + 1 if flags.gpu_layers is None else min(flags.gpu_layers, total + 1)
    if not devices or flags.device_names == ("none",):
        offloaded = 0
    start = total + 1 - offloaded
    bounds = _cumulative_shares(flags, devices) if offloaded else []
    split = [min(bisect_right(bounds, part), len(bounds) - 1) for part in _parts(offloaded)]
    layers = (*(None,) * start, *split)
    overridden = {
        name: device if device is not None and device < devices else None
        for name, device in (_overridden(geometry.tensors, flags.overrides) if flags.overrides else ())
    }
    return Placement(devices, layers, overridden)


@lru_cache(maxsize=16)  # thousands of names against dozens of patterns, the same for every launch that is weighed
def _overridden(tensors: Tensors, overrides: tuple[TensorOverride, ...]) -> tuple[tuple[str, int | None], ...]:
    """The tensors that an override puts somewhere, and where: the first that matches counts."""
    found = ((name, next((each for each in overrides if each.pattern.search(name)), None)) for name in tensors.named)
    return tuple((name, override.device) for name, override in found if override is not None)


def _single(value: float) -> float:
    """The value as llama.cpp's float32 has it: the borders between devices depend on it."""
    rounded: float = struct.unpack("f", struct.pack("f", value))[0]
    return rounded


def _cumulative_shares(flags: LaunchFlags, devices: int) -> list[float]:
    if flags.split_mode == "none":
        chosen = min(flags.main_gpu, devices - 1)
        return [1.0 if index >= chosen else 0.0 for index in range(devices)]
    shares: Sequence[float] = flags.tensor_split or (1.0,) * devices
    shares = (*shares, *(0.0,) * devices)[:devices]
    if not sum(shares):
        shares = (1.0,) * devices
    sums = list(accumulate(map(_single, shares), lambda left, right: _single(left + right)))
    return [_single(value / sums[-1]) for value in sums]


@lru_cache(maxsize=64)
def _parts(count: int) -> tuple[float, ...]:
    """Where each of so many layers stands in the row of them."""
    return tuple(_single(index / count) for index in range(count))


def weight_bytes(geometry: Geometry, placement: Placement, *, drafting: bool = False) -> tuple[list[int], int]:
    """Bytes of weights on each device, and on the host. Exact for CUDA.

    The token table is always on the host; a model without an output tensor has a second copy of it as its output layer.
    Blocks that only drafting uses are left out, or with `drafting` are all that is counted.
    """
    on_devices = [0] * placement.devices
    on_host = 0
    held: list[tuple[int | None, int, int]] = [
        (placement.layers[block], part.host_bytes, part.device_bytes)
        for block, part in geometry.tensors.blocks.items()
        if (block >= geometry.blocks) is drafting
    ]
    for weight in () if drafting else geometry.tensors.outside:
        copies = _copies(geometry, placement, weight)
        held += [(device, weight.host_bytes, weight.device_bytes) for device in copies]
    for name, device in placement.overridden.items():
        weight = geometry.tensors.named[name]
        if weight.block is not None and (weight.block >= geometry.blocks) is drafting:
            held.append((device, weight.host_bytes, weight.device_bytes))
            held.append((placement.layers[weight.block], -weight.host_bytes, -weight.device_bytes))
    for device, host_bytes, device_bytes in held:
        if device is None:
            on_host += host_bytes
        else:
            on_devices[device] += device_bytes
    return on_devices, on_host


def _copies(geometry: Geometry, placement: Placement, weight: Weight) -> list[int | None]:
    """Everywhere that a tensor is held."""
    if weight.name in _ROPE:
        full = geometry.architecture != "gemma4"  # whose window layers rotate without the table
        users = {placement.layers[i] for i in range(geometry.blocks) if full or not geometry.layers[i].window}
        return list(users)
    if weight.name == _OUTPUT_NORM_OF_LFM and geometry.architecture in ("lfm2", "lfm2moe"):
        return [placement.overridden.get(weight.name, placement.output)]
    where = home(placement, weight)
    if weight.name == "token_embd.weight" and geometry.tied_output:
        copied = placement.output is not None or geometry.architecture in _ALWAYS_COPIES_TABLE
        return [where, placement.output] if copied else [where]
    return [where]


def home(placement: Placement, weight: Weight) -> int | None:
    """The device of a tensor, None for the host."""
    if weight.name in placement.overridden:
        return placement.overridden[weight.name]
    if weight.block is not None:
        return placement.layers[weight.block]
    if weight.name in _ALWAYS_ON_HOST:
        return None
    return placement.output if _WITH_OUTPUT.fullmatch(weight.name) else placement.layers[0]


def hosted(geometry: Geometry, placement: Placement) -> list[Weight]:
    """The tensors whose home is the host."""
    tensors, overridden = geometry.tensors, placement.overridden
    if None in placement.layers:
        return [weight for weight in geometry.weights if home(placement, weight) is None]
    moved = [tensors.named[name] for name, device in overridden.items() if device is None]
    rest = (weight for weight in tensors.outside if weight.name not in overridden)
    return moved + [weight for weight in rest if home(placement, weight) is None]


_LORA_SIDE = re.compile(r"\.lora_[ab]$")


def adapter_bytes(adapter: Geometry, placement: Placement) -> tuple[list[int], int]:
    """Bytes of a LoRA adapter on each device, and on the host: each pair lies with the tensor that it adapts."""
    on_devices = [0] * placement.devices
    on_host = 0
    for weight in adapter.weights:
        device = home(placement, replace(weight, name=_LORA_SIDE.sub("", weight.name)))
        if device is None:
            on_host += weight.host_bytes
        else:
            on_devices[device] += weight.device_bytes
    return on_devices, on_host


def control_vector_bytes(geometry: Geometry, placement: Placement) -> tuple[list[int], int]:
    """Bytes of control vectors on each device, and on the host: one f32 vector beside each layer but the first, however
    many files are added up in it (llama-adapter)."""
    on_devices = [0] * placement.devices
    on_host = 0
    size = 4 * geometry.embedding_length
    for index in range(1, geometry.blocks):
        device = placement.layers[index]
        if device is None:
            on_host += size
        else:
            on_devices[device] += size
    return on_devices, on_host


def device_index(name: str) -> int:
    """Which device of a backend the engine means by a name such as `CUDA1`; a name without a number is the first."""
    digits = re.search(r"\d+$", name)
    return int(digits.group()) if digits else 0
