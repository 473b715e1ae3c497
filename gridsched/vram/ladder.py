"""The ways to launch a model, best first, and what would fit where none of them does.

Owns the choice of contexts, slots and placements that are worth offering, and the flags that a choice needs. It never
looks at what is free: the ledger picks the first rung that it can carry (L7). Every rung is explicit, so that the
engine has nothing left to decide.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from gridsched.core.ids import DeviceName
from gridsched.core.model import LaunchOption
from gridsched.vram.context import CELL_STEP, DEFAULT_CONTEXT
from gridsched.vram.flags import parse_flags
from gridsched.vram.footprint import Footprint, footprint
from gridsched.vram.geometry import Geometry
from gridsched.vram.overhead import overhead

CTX_TARGET = 32_768
CTX_FLOOR = 8_192
MANY_SLOTS = 4
FEW_SLOTS = 2  # one for people while the other is busy (S6)
MAX_SLOTS = 256  # llama.cpp's LLAMA_MAX_SEQ
LONGEST_DECODER_INPUT = 2048  # a decoder that embeds makes logits for a whole micro-batch: 1.2 GiB for 150,000 words
CHEAP_CACHE_BYTES = 1 << 30  # what many slots may always take, however small the model is


@dataclass(frozen=True, slots=True)
class LadderRequest:
    """What is asked for one model; None means automatic.

    `fingerprint` and `engine_build` name the file and the engine in the rungs' keys. `ctx_size` is the pool that the
    slots share, `ctx_per_slot` may be given instead; `ctx_target` and `ctx_floor` are tokens for each slot. `flags` are
    the person's own engine flags, which win over everything here. `device` pins the model to one device. `embeddings`
    and `reranking` say that the engine is started for that. `on_host`: the one device is host memory. `device_bytes`
    are the devices' sizes, by which a split shares the model out (equal ones where it is empty).
    """

    fingerprint: str
    engine_build: str = ""
    flags: tuple[str, ...] = ()
    ctx_size: int | None = None
    ctx_per_slot: int | None = None
    parallel: int | None = None
    ctx_target: int = CTX_TARGET
    ctx_floor: int = CTX_FLOOR
    device: DeviceName | None = None
    embeddings: bool = False
    reranking: bool = False
    on_host: bool = False
    overhead_bytes: int = overhead("cuda").bytes
    device_bytes: Mapping[DeviceName, int] | None = None
    projector: Geometry | None = None


class Fit(NamedTuple):
    """The largest pool at the slots that were asked for, and the most slots at that context; 0 where nothing fits."""

    ctx_size: int
    parallel: int


class _Shape(NamedTuple):
    """A pool of tokens, and the slots that share it."""

    ctx_size: int
    parallel: int


def ladder(geometry: Geometry, request: LadderRequest, devices: Sequence[DeviceName]) -> tuple[LaunchOption, ...]:
    """Every launch worth offering on `devices`, best first: larger contexts before smaller ones, and at each of them
    the single devices in order before all of them together. Raises FlagError."""
    planner = _Planner(geometry, request, devices)
    return tuple(planner.option(shape, placed) for shape in planner.shapes() for placed in planner.placements)


def largest_fit(
    geometry: Geometry,
    request: LadderRequest,
    devices: Sequence[DeviceName],
    usable_bytes: Mapping[DeviceName, int],
) -> Fit:
    """What `usable_bytes` would carry, on the best placement. Raises FlagError.

    Contexts go up to the trained length for each slot, or to what was asked where that is more. Where nobody asked for
    slots, a pool has those that it would be given, so that it fits when it is asked for.
    """
    planner = _Planner(geometry, request, devices)
    wanted = planner.shapes()[0]
    per_slot = max(wanted.ctx_size // wanted.parallel, 1)
    longest = max(geometry.context_train or DEFAULT_CONTEXT, per_slot)
    step_slots = planner.slots or 1
    steps = max(longest * wanted.parallel // (CELL_STEP * step_slots), 1)

    def fits(shape: _Shape) -> bool:
        return any(planner.fits(shape, placed, usable_bytes) for placed in planner.placements)

    def pool(step: int) -> _Shape:
        return planner.pool_of(step * CELL_STEP * step_slots)

    def slots(count: int) -> _Shape:
        return _Shape(wanted.ctx_size if planner.fixed_pool else per_slot * count, count)

    best = _largest(steps, lambda step: fits(pool(step)))
    most = min(MAX_SLOTS, max(wanted.ctx_size // CELL_STEP, 1)) if planner.fixed_pool else MAX_SLOTS
    return Fit(pool(best).ctx_size, _largest(most, lambda count: fits(slots(count))))


def _largest(most: int, holds: Callable[[int], bool]) -> int:
    """The largest number from 1 to `most` for which `holds`, 0 if there is none. What holds for one holds below it."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        if holds(middle):
            low = middle
        else:
            high = middle - 1
    return low


class _Planner:
    """One request's choices. Footprints do not depend on a device's name, so that single devices share theirs."""

    def __init__(self, geometry: Geometry, request: LadderRequest, devices: Sequence[DeviceName]) -> None:
        self.geometry = geometry
        self.request = request
        self.person = parse_flags(request.flags)
        self.placements = _placements(request, devices)
        self._footprints: dict[tuple[_Shape, int], Footprint] = {}

    @property
    def fixed_pool(self) -> bool:
        """Whether the pool was asked for as a whole, so that more slots make smaller ones."""
        return bool(self._pool())

    @property
    def slots(self) -> int | None:
        """The slots that were asked for."""
        return self.person.parallel or self.request.parallel

    @property
    def embeds(self) -> bool:
        """Whether the engine is started to embed or to rank."""
        asked = self.request.embeddings or self.request.reranking
        return asked or self.person.one_output_per_token

    def shapes(self) -> list[_Shape]:
        """The contexts and slots to offer, best first."""
        slots = self.slots
        if pool := self._pool():
            return [self.pool_of(pool)]
        if per_slot := self.request.ctx_per_slot:
            count = slots or self._slots_for(per_slot)
            return [_Shape(per_slot * count, count)]
        contexts = list(self._contexts())
        count = slots or self._slots_for(contexts[0])
        shapes = [_Shape(context * count, count) for context in contexts]
        if not slots and count > 1:
            shapes.append(_Shape(contexts[-1], 1))
        return shapes

    def pool_of(self, pool: int) -> _Shape:
        """What a pool that is asked for as a whole is launched as."""
        return _Shape(pool, self.slots or self._slots_within(pool))

    def _pool(self) -> int | None:
        """The pool that was asked for as a whole; 0 in a person's flags is the trained length."""
        if self.person.ctx_size is None:
            return self.request.ctx_size
        return self.person.ctx_size or self.geometry.context_train or DEFAULT_CONTEXT

    def _contexts(self) -> Iterator[int]:
        """Tokens a slot, from the target down to the floor by halves; never above the trained length.

        An encoder sees an input as a whole: its context is what it was trained on, and costs next to nothing.
        """
        trained = self.geometry.context_train or DEFAULT_CONTEXT
        if self.geometry.is_encoder:
            yield trained
            return
        context = min(self.request.ctx_target, trained)
        floor = min(self.request.ctx_floor, context)
        while context > floor:
            yield context
            context = max(context // 2 // CELL_STEP * CELL_STEP, floor)
        yield floor

    def _slots_for(self, per_slot: int) -> int:
        """Slots where nobody says: many if all their caches together take no more than the weights do, else a few.

        A model that embeds has one: a step is a chunk of inputs, which the engine queues on its slots by itself; with
        one slot the next chunk waits in our queue, where more urgent work can overtake it.
        """
        if self.embeds:
            return 1
        part = self._estimate(_Shape(per_slot * MANY_SLOTS, MANY_SLOTS), 1).devices[0]
        cheap = max(CHEAP_CACHE_BYTES, part.weights_bytes)
        return MANY_SLOTS if part.kv_bytes + part.recurrent_bytes <= cheap else FEW_SLOTS

    def _slots_within(self, pool: int) -> int:
        """Slots of a pool that was asked for as a whole: as many as leave each of them the floor."""
        if self.embeds:
            return 1
        return next((count for count in (MANY_SLOTS, FEW_SLOTS) if pool >= count * self.request.ctx_floor), 1)

    def option(self, shape: _Shape, placed: tuple[DeviceName, ...]) -> LaunchOption:
        """The rung of a shape on a placement."""
        rung = self._rung_flags(shape, placed)
        estimate = self._estimate(shape, len(placed))
        parts = tuple(replace(part, device=name) for part, name in zip(estimate.devices, placed, strict=True))
        effective = (*self._launch_flags(shape), *rung, *self.request.flags)
        return LaunchOption(
            key=_key(self.request, effective, placed),
            ctx_size=estimate.ctx_size,
            parallel=estimate.parallel,
            footprint=parts,
            flags=rung,
            host=None if self.request.on_host else estimate.host,
        )

    def fits(self, shape: _Shape, placed: tuple[DeviceName, ...], usable_bytes: Mapping[DeviceName, int]) -> bool:
        """Whether each device of a placement carries its part."""
        parts = self._estimate(shape, len(placed)).devices
        return all(part.total_bytes <= usable_bytes.get(name, 0) for part, name in zip(parts, placed, strict=True))

    def _estimate(self, shape: _Shape, count: int) -> Footprint:
        """The footprint of a shape on one device, or on all of them."""
        known = self._footprints.get((shape, count))
        if known is None:
            placed = next((names for names in self.placements if len(names) == count), self.placements[0])
            words = (*self._launch_flags(shape), *self._rung_flags(shape, placed), *self.request.flags)
            known = footprint(
                self.geometry,
                parse_flags(words),
                placed,
                on_host=self.request.on_host,
                overhead_bytes=self.request.overhead_bytes,
                projector=self.request.projector,
            )
            self._footprints[shape, count] = known
        return known

    def _launch_flags(self, shape: _Shape) -> tuple[str, ...]:
        """What the engine is told of this launch beside the rung's own flags."""
        words = ["--ctx-size", str(shape.ctx_size), "--parallel", str(shape.parallel)]
        words += ["--embeddings"] if self.request.embeddings else []
        words += ["--reranking"] if self.request.reranking else []
        return tuple(words)

    def _rung_flags(self, shape: _Shape, placed: tuple[DeviceName, ...]) -> tuple[str, ...]:
        """Flags that this rung adds: the micro-batch that a whole input needs, and how a split shares the model out."""
        flags: tuple[str, ...] = ()
        if self.embeds and self._takes_inputs_whole():
            longest = max(shape.ctx_size // shape.parallel, 1)
            if not self.geometry.is_encoder:
                longest = min(longest, LONGEST_DECODER_INPUT)
            # Mean pooling wants the slots to divide the micro-batch: the engine aborts at start where they do not.
            size = str(-(-longest // shape.parallel) * shape.parallel)
            flags = ("--batch-size", size, "--ubatch-size", size)
        if len(placed) > 1:
            sizes = self.request.device_bytes or {}
            shares = [max(sizes.get(name, 0) >> 20, 1) for name in placed] if sizes else [1] * len(placed)
            flags += ("--split-mode", "layer", "--tensor-split", ",".join(map(str, shares)))
        return flags

    def _takes_inputs_whole(self) -> bool:
        """Whether an input must fit into one micro-batch: all but a decoder's that pools its last token."""
        pooling = self.person.pooling or self.geometry.pooling
        return self.geometry.is_encoder or pooling != "last"


def _placements(request: LadderRequest, devices: Sequence[DeviceName]) -> list[tuple[DeviceName, ...]]:
    """Each device alone, in order; then all of them."""
    if request.device is not None:
        return [(request.device,)]
    placements: list[tuple[DeviceName, ...]] = [(name,) for name in devices]
    return [*placements, tuple(devices)] if len(devices) > 1 else placements


def _key(request: LadderRequest, effective: tuple[str, ...], placed: tuple[DeviceName, ...]) -> str:
    """A stable name for file, flags, devices and engine build together (L2)."""
    parts = (request.fingerprint, request.engine_build, "\0".join(effective), "\0".join(placed))
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]
