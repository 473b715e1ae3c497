"""The engine's own buffers for one model: weights, cache, recurrent state and compute, in each memory.

Owns the putting together of `placement`, `cache` and `compute` for a model and its flags, which a draft model needs as
much as the model that it drafts for. Knows no names of devices, no constants outside of the buffers, no other files.
"""

from dataclasses import dataclass
from functools import lru_cache
from itertools import takewhile
from typing import NamedTuple

from gridsched.vram.cache import cache_bytes, state_bytes
from gridsched.vram.compute import adapters_bytes, compute_bytes, compute_bytes_on_host, pinned_bytes
from gridsched.vram.context import Context
from gridsched.vram.flags import LaunchFlags
from gridsched.vram.geometry import Geometry
from gridsched.vram.placement import adapter_bytes, control_vector_bytes, hosted, place, weight_bytes
from gridsched.vram.weights import Tensors


@dataclass(frozen=True, slots=True)
class Buffers:
    """Bytes in one memory. Of the weights, `mapped` lie in the file itself: nothing was copied."""

    weights: int = 0
    kv: int = 0
    state: int = 0
    compute: int = 0
    mapped: int = 0

    @property
    def total(self) -> int:
        """All of it."""
        return self.weights + self.kv + self.state + self.compute


def buffers_on_devices(
    geometry: Geometry,
    flags: LaunchFlags,
    context: Context,
    devices: int,
    adapters: tuple[Geometry, ...] = (),
) -> tuple[list[Buffers], Buffers]:
    """What so many devices hold, in their order, and what the host holds beside them."""
    placement = place(geometry, flags, devices)
    weights, host_weights = weight_bytes(geometry, placement)
    mapped = host_weights if flags.maps_file else 0
    beside = [adapter_bytes(adapter, placement) for adapter in adapters]
    if flags.control_vectors:
        beside.append(control_vector_bytes(geometry, placement))
    if not flags.host_buffer and flags.repack and flags.maps_file:
        host_weights += sum(weight.repacked_bytes for weight in hosted(geometry, placement))
    for extra, host_extra in beside:
        weights, host_weights = (
            [have + more for have, more in zip(weights, extra, strict=True)],
            host_weights + host_extra,
        )
    kv, host_kv = cache_bytes(geometry, flags, context, placement)
    state, host_state = state_bytes(geometry, flags, context, placement)
    compute = compute_bytes(geometry, flags, context, placement)
    if adapters:
        more = adapters_bytes(geometry, context)
        compute = [have + more if have else 0 for have in compute]
    pinned = pinned_bytes(geometry, flags, context, placement)
    return list(map(Buffers, weights, kv, state, compute)), Buffers(host_weights, host_kv, host_state, pinned, mapped)


def buffers_on_host(
    geometry: Geometry, flags: LaunchFlags, context: Context, adapters: tuple[Geometry, ...] = ()
) -> Buffers:
    """Everything in one memory: the mapped file, and a second copy of what the processor wants laid out differently.
    What is not mapped is read into its final layout, and is there once."""
    alone = place(geometry, flags, 0)
    mapped = mapped_bytes(geometry, flags) if flags.maps_file else 0
    if flags.maps_file:
        weights = mapped + repacked_bytes(geometry, flags)
    else:
        _, weights = weight_bytes(geometry, alone)
    weights += sum(adapter_bytes(adapter, alone)[1] for adapter in adapters)
    if flags.control_vectors:
        weights += control_vector_bytes(geometry, alone)[1]
    _, kv = cache_bytes(geometry, flags, context, alone)
    _, state = state_bytes(geometry, flags, context, alone)
    compute = compute_bytes_on_host(geometry, flags, context)
    return Buffers(weights, kv, state, compute + (adapters_bytes(geometry, context) if adapters else 0), mapped)


def mapped_bytes(geometry: Geometry, flags: LaunchFlags) -> int:
    """What of the file stays mapped on the host alone: the range from the first to the last tensor that is used as it
    lies there. Those that the engine lays out anew may stand at an end; a tensor that is used twice is there once."""
    found = _loaded(geometry.tensors, geometry.blocks)
    return found.host_bytes - found.ends_bytes if flags.repack else found.host_bytes


def repacked_bytes(geometry: Geometry, flags: LaunchFlags) -> int:
    """What lies in host memory a second time, beside the mapped file, where the host is alone."""
    twice = flags.repack and flags.maps_file
    return _loaded(geometry.tensors, geometry.blocks).repacked_bytes if twice else 0


class _Loaded(NamedTuple):
    """All tensors but those of blocks that only drafting uses: as they lie in the file, the part of that at either end
    which is laid out anew, and the second copies."""

    host_bytes: int
    ends_bytes: int
    repacked_bytes: int


@lru_cache(maxsize=64)
def _loaded(tensors: Tensors, blocks: int) -> _Loaded:
    """The same for each launch of a model, of which dozens are estimated one after the other."""
    loaded = [weight for weight in tensors.named.values() if weight.block is None or weight.block < blocks]
    ends = (takewhile(lambda weight: weight.repacked_bytes, ordered) for ordered in (loaded, reversed(loaded)))
    return _Loaded(
        sum(weight.host_bytes for weight in loaded),
        sum(weight.host_bytes for end in ends for weight in end),
        sum(weight.repacked_bytes for weight in loaded),
    )
