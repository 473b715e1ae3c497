"""One launch of a model as it would be made: its flags, what it takes on each device, the rung it becomes.

Owns the flags that a choice needs, and remembers what was estimated. Which choices are offered, and in which order, is
`ladder`'s.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from gridsched.core.ids import DeviceName
from gridsched.core.model import DeviceFootprint, LaunchOption
from gridsched.vram.cache import cache_bytes, state_bytes
from gridsched.vram.context import plan_context
from gridsched.vram.flags import FlagError, LaunchFlags, parse_flags
from gridsched.vram.footprint import HOST, Footprint, footprint
from gridsched.vram.geometry import Geometry
from gridsched.vram.overhead import overhead
from gridsched.vram.placement import place, weight_bytes
from gridsched.vram.shares import layer_shares

CTX_TARGET = 32_768
CTX_FLOOR = 8_192
LONGEST_DECODER_INPUT = 2048  # a decoder that embeds makes logits for a whole micro-batch: 1.2 GiB for 150,000 words
PLAIN_CACHE = ("f16", "f16")
ROOM_STEP = 28  # bits: rooms that differ by less than 256 MiB share a model out alike
EQUAL_ROOM = 1 << 40  # what a device has that nobody knows the size of

CacheTypes = tuple[str, str]
"""What K and V are kept as, in the engine's words."""

Placed = tuple[DeviceName, ...]
"""The devices of a launch, in the engine's order."""


@dataclass(frozen=True, slots=True)
class LadderRequest:
    """What is asked for one model; None means automatic.

    `fingerprint` and `engine_build` name the file and the engine in the rungs' keys. `ctx_size` is the pool that the
    slots share, `ctx_per_slot` may be given instead; `ctx_target` and `ctx_floor` are tokens for each slot. `flags` are
    the person's own engine flags, which win over everything here. `device` pins the model to one device. `embeddings`
    and `reranking` say that the engine is started for that. `on_host`: the one device is host memory.
    `mixed_cache`: the device computes with K and V of different quantized types. `device_bytes` are what may be
    planned of each device at all, by which a split shares the model out (equal rooms where it is empty); `together`:
    over all devices at once, never over fewer of them (`host` among them is what launches may take there beside cards,
    and nothing is held against it where it is left out);
    `device_ranks` say how capable each is (the more, the better; all alike where it is empty). `projector`, `draft` and
    `adapters` are the files that are loaded beside the model. `overhead_bytes` is what a process takes on a device
    outside of the engine's buffers, unless `device_overhead_bytes` has another figure.
    """

    fingerprint: str
    engine_build: str = ""
    flags: tuple[str, ...] = ()
    ctx_size: int | None = None
    ctx_per_slot: int | None = None
    parallel: int | None = None
    cache_types: CacheTypes | None = None
    ctx_target: int = CTX_TARGET
    ctx_floor: int = CTX_FLOOR
    device: DeviceName | None = None
    embeddings: bool = False
    reranking: bool = False
    on_host: bool = False
    mixed_cache: bool = True
    overhead_bytes: int = overhead("cuda").bytes
    device_overhead_bytes: Mapping[DeviceName, int] | None = None
    device_bytes: Mapping[DeviceName, int] | None = None
    device_ranks: Mapping[DeviceName, int] | None = None
    together: bool = False
    projector: Geometry | None = None
    draft: Geometry | None = None
    adapters: tuple[Geometry, ...] = ()

    def overhead_of(self, device: DeviceName) -> int:
        """What a process takes on a device outside of the engine's buffers."""
        return (self.device_overhead_bytes or {}).get(device, self.overhead_bytes)

    def room_of(self, device: DeviceName) -> int:
        """What may be planned of a device."""
        return self.device_bytes.get(device, 0) if self.device_bytes else EQUAL_ROOM


class Shape(NamedTuple):
    """A pool of tokens, the slots that share it, and what its cache is kept as."""

    ctx_size: int
    parallel: int
    cache: CacheTypes = PLAIN_CACHE


class Rung(NamedTuple):
    """A shape on its devices."""

    shape: Shape
    placed: Placed


class _Estimated(NamedTuple):
    """What a shape takes, and the flags by which several devices share it."""

    footprint: Footprint
    split: tuple[str, ...]


class Launches:
    """The launches of one request. What one takes follows from the rooms of its devices, not from their names, so that
    it is estimated once for all that are alike."""

    def __init__(self, geometry: Geometry, request: LadderRequest) -> None:
        self.geometry = geometry
        self.request = request
        self.person = parse_flags(request.flags)
        self._estimates: dict[tuple[Shape, tuple[int, ...]], _Estimated] = {}
        self._layers: dict[Shape, list[int]] = {}
        self._weights: list[int] | None = None

    @property
    def embeds(self) -> bool:
        """Whether the engine is started to embed or to rank."""
        return self.request.embeddings or self.request.reranking or self.person.one_output_per_token

    @property
    def layers(self) -> int:
        """Layers on devices, the output layer among them: no more devices than these share the model."""
        return sum(device is not None for device in place(self.geometry, self.person, 1).layers)

    def on_one(self, shape: Shape) -> Footprint | None:
        """What a shape takes on a single device; None where the engine would refuse it."""
        try:
            return self._estimate(shape, (DeviceName("one"),)).footprint
        except FlagError:
            return None

    def refusal(self, rung: Rung) -> FlagError | None:
        """Why the engine would refuse a rung."""
        try:
            self._estimate(*rung)
        except FlagError as error:
            return error
        return None

    def needs(self, rung: Rung) -> tuple[int, ...]:
        """Bytes on each device of a rung. Raises FlagError."""
        of, known = self.request.overhead_of, self._estimate(*rung).footprint.devices
        return tuple(
            part.total_bytes - part.overhead_bytes + of(name) for part, name in zip(known, rung.placed, strict=True)
        )

    def fits(self, rung: Rung, rooms: Mapping[DeviceName, int]) -> bool:
        """Whether each device carries its part, and host memory what lies beside them, where it is among the rooms.
        Raises FlagError.

        Most of what several devices do not carry is more than they have together, however it is shared out.
        """
        shape, placed = rung
        if len(placed) > 1 and self._least_bytes(shape, placed) > sum(rooms.get(name, 0) for name in placed):
            return False
        beside = rooms.get(HOST) if not self.request.on_host else None
        if beside is not None and self._estimate(shape, placed).footprint.host_need_bytes > beside:
            return False
        return all(need <= rooms.get(name, 0) for need, name in zip(self.needs(rung), placed, strict=True))

    def option(self, rung: Rung) -> LaunchOption:
        """The rung as it is offered. Raises FlagError."""
        shape, placed = rung
        found = self._estimate(shape, placed)
        estimate, told = found.footprint, self._flags(shape)
        flags = (*self._shape_flags(shape), *found.split)
        effective = (*self._launch_flags(shape), *flags, *self.request.flags)
        return LaunchOption(
            key=_key(self.request, effective, placed),
            ctx_size=estimate.ctx_size,
            parallel=estimate.parallel,
            footprint=self._parts(rung),
            flags=flags,
            host=None if self.request.on_host else estimate.host,
            host_mapped_bytes=0 if self.request.on_host else estimate.mapped_bytes,
            host_growth_bytes=0 if self.request.on_host else estimate.growth_bytes,
            cache_types=(told.cache_type_k, told.cache_type_v),
        )

    # --- estimates ----------------------------------------------------------------------------------------------

    def _parts(self, rung: Rung) -> tuple[DeviceFootprint, ...]:
        """What a rung takes on each of its devices by name. Raises FlagError."""
        known = zip(self._estimate(*rung).footprint.devices, rung.placed, strict=True)
        return tuple(replace(part, device=name, overhead_bytes=self.request.overhead_of(name)) for part, name in known)

    def _estimate(self, shape: Shape, placed: Placed) -> _Estimated:
        # A single device's need does not follow from its room.
        rooms = tuple(self.request.room_of(name) >> ROOM_STEP for name in placed) if len(placed) > 1 else (0,)
        known = self._estimates.get((shape, rooms))
        if known is None:
            known = self._shared_out(shape, rooms) if len(placed) > 1 else _Estimated(self._footprint(shape, 1), ())
            self._estimates[shape, rooms] = known
        return known

    def _shared_out(self, shape: Shape, rooms: tuple[int, ...]) -> _Estimated:
        """Over several devices, by layers: first by what the layers take, then again with what was found to be taken
        beside them (compute buffers, what a process needs, a projector)."""
        if self.person.tensor_split:
            return _Estimated(self._footprint(shape, len(rooms)), ("--split-mode", "layer"))
        layers = self._layer_bytes(shape)
        fixed = [self.request.overhead_bytes] * len(rooms)
        rooms_bytes = [room << ROOM_STEP for room in rooms]
        found: list[tuple[float, tuple[int, ...], _Estimated]] = []
        for _ in range(2):
            shares = layer_shares(layers, fixed, rooms_bytes)
            if found and shares == found[0][1]:
                break
            split = ("--split-mode", "layer", "--tensor-split", ",".join(map(str, shares)))
            estimate = self._footprint(shape, len(rooms), split)
            full = [part.total_bytes / max(room, 1) for part, room in zip(estimate.devices, rooms_bytes, strict=True)]
            found.append((max(full), shares, _Estimated(estimate, split)))
            fixed = [
                part.total_bytes - part.weights_bytes - part.kv_bytes - part.recurrent_bytes
                for part in estimate.devices
            ]
        return min(found, key=lambda each: each[0])[2]

    def _least_bytes(self, shape: Shape, placed: Placed) -> int:
        """What a shape takes at the least of several devices together: all but their compute buffers, which are more
        than the small tables that are counted here with each layer and held once a device. Raises FlagError."""
        return sum(self._layer_bytes(shape)) + sum(map(self.request.overhead_of, placed))

    def _layer_bytes(self, shape: Shape) -> list[int]:
        """Weights, cache and state of each layer on devices, the output layer last: a device for each of them. Raises
        FlagError."""
        known = self._layers.get(shape)
        if known is None:
            known = self._layers[shape] = self._layer_bytes_of(shape)
        return known

    def _layer_bytes_of(self, shape: Shape) -> list[int]:
        flags, count = self._flags(shape), self.layers
        placement = place(self.geometry, replace(flags, tensor_split=(1.0,) * count), count)
        if self._weights is None:
            self._weights = weight_bytes(self.geometry, placement)[0]
        context = plan_context(self.geometry, flags)
        cache, _ = cache_bytes(self.geometry, flags, context, placement)
        state, _ = state_bytes(self.geometry, flags, context, placement)
        return [sum(parts) for parts in zip(self._weights, cache, state, strict=True)]

    def _footprint(self, shape: Shape, count: int, split: tuple[str, ...] = ()) -> Footprint:
        return footprint(
            self.geometry,
            self._flags(shape, split),
            tuple(DeviceName(str(index)) for index in range(count)),
            on_host=self.request.on_host,
            overhead_bytes=self.request.overhead_bytes,
            projector=self.request.projector,
            draft=self.request.draft,
            adapters=self.request.adapters,
        )

    # --- flags --------------------------------------------------------------------------------------------------

    def _flags(self, shape: Shape, split: tuple[str, ...] = ()) -> LaunchFlags:
        """All that the engine is told. Raises FlagError."""
        return parse_flags((*self._launch_flags(shape), *self._shape_flags(shape), *split, *self.request.flags))

    def _launch_flags(self, shape: Shape) -> tuple[str, ...]:
        """What the engine is told of every launch beside the rung's own flags."""
        words = ["--ctx-size", str(shape.ctx_size), "--parallel", str(shape.parallel)]
        words += ["--embeddings"] if self.request.embeddings else []
        words += ["--reranking"] if self.request.reranking else []
        return tuple(words)

    def _shape_flags(self, shape: Shape) -> tuple[str, ...]:
        """What a shape adds: a cache that is not f16, and the micro-batch that a whole input needs."""
        flags: tuple[str, ...] = ()
        if shape.cache != PLAIN_CACHE:
            flags += ("--cache-type-k", shape.cache[0], "--cache-type-v", shape.cache[1])
        if self.embeds and self._takes_inputs_whole():
            longest = max(shape.ctx_size // shape.parallel, 1)
            if not self.geometry.is_encoder:
                longest = min(longest, LONGEST_DECODER_INPUT)
            # Mean pooling wants the slots to divide the micro-batch: the engine aborts at start where they do not.
            size = str(-(-longest // shape.parallel) * shape.parallel)
            flags += ("--batch-size", size, "--ubatch-size", size)
        return flags

    def _takes_inputs_whole(self) -> bool:
        """Whether an input must fit into one micro-batch: all but a decoder's that pools its last token."""
        pooling = self.person.pooling or self.geometry.pooling
        return self.geometry.is_encoder or pooling != "last"


def _key(request: LadderRequest, effective: tuple[str, ...], placed: Placed) -> str:
    """A stable name for file, flags, devices and engine build together (L2)."""
    parts = (request.fingerprint, request.engine_build, "\0".join(effective), "\0".join(placed))
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]
