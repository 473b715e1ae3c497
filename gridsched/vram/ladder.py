"""The ways to launch a model, best first.

Owns which contexts, slots, cache types and devices are worth offering, and their order. It never looks at what is free:
the ledger picks the first rung that it can carry, first without an eviction, then with (L7). So whatever depends on
free memory is said by the order alone. Every rung is explicit, so that the engine has nothing left to decide.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations, groupby

from gridsched.core.ids import DeviceName
from gridsched.core.model import LaunchOption
from gridsched.vram.context import CELL_STEP, DEFAULT_CONTEXT, device_computes_flash_attn
from gridsched.vram.flags import FlagError
from gridsched.vram.footprint import Footprint
from gridsched.vram.geometry import Geometry, Layer
from gridsched.vram.launches import PLAIN_CACHE, CacheTypes, LadderRequest, Launches, Placed, Rung, Shape
from gridsched.vram.quants import CACHE_TYPES
from gridsched.vram.words import long_name

MANY_SLOTS = (8, 4, 2)
MANY_SLOTS_ON_HOST = (4, 2)  # a processor answers eight at once hardly faster than one after the other
FEW_SLOTS = 2  # one for people while the other is busy (S6)
SLOTS_OF_A_POOL = (4, 2)  # who asks for a pool as a whole wants long contexts
CHEAP_CACHE_BYTES = 1 << 30  # what many slots may always take, however small the model is
WORTHWHILE_PART = 50  # a worse launch is offered where it saves a fiftieth
MOST_CONTEXTS = 6  # between the target and the floor, so that no setting makes a ladder of hundreds of rungs
EVERY_GROUP = 4  # up to so many devices any of them may share a model; of more, neighbours

SMALLER_CACHES: tuple[CacheTypes, ...] = (("q8_0", "q8_0"), ("q8_0", "q4_0"))
"""What is tried for a cache that does not fit in f16. Never q4_0 for both: K does not bear it."""


def ladder(geometry: Geometry, request: LadderRequest, devices: Sequence[DeviceName]) -> tuple[LaunchOption, ...]:
    """Every launch worth offering on `devices`, best first. Raises FlagError where the engine would refuse them all."""
    launches = Launches(geometry, request)
    return tuple(map(launches.option, rungs_of(launches, devices)))


def rungs_of(launches: Launches, devices: Sequence[DeviceName]) -> list[Rung]:
    """The rungs of a ladder in their order. Raises FlagError as `ladder` does.

    One device goes before several. Several override what one is left with, a single slot, where they at least double
    it; and more of them override fewer by the same rule. What a device could not carry were it empty is left out,
    unless that leaves nothing: then the rungs say what is missing (L7).
    """
    shapes = worth_offering(launches, devices)
    by_width = list(_by_width(launches, shapes, devices, shapes[0]))
    carried = [[rung for rung in rungs if _carried(launches, rung)] for rungs in by_width]
    merged: list[Rung] = []
    for rungs in carried if any(carried) else by_width:
        merged = _merged(launches, merged, rungs)
    return merged


def carries(launches: Launches, devices: Sequence[DeviceName], rooms: Mapping[DeviceName, int]) -> bool:
    """Whether these rooms carry a rung of the ladder; looked for on few devices first, and estimated no more than it
    takes to know. Raises FlagError as `ladder` does."""
    shapes = worth_offering(launches, devices)
    seen: list[Rung] = []
    fitting = False
    for rungs in _by_width(launches, shapes, devices, shapes[0]):
        for rung in rungs:
            if launches.fits(rung, rooms):
                if _carried(launches, rung):
                    return True
                fitting = True
        seen += rungs
    # More room than the devices have empty: such rungs are offered where nothing else could be.
    return fitting and not any(_carried(launches, rung) for rung in seen)


def carries_leanest(launches: Launches, devices: Sequence[DeviceName], rooms: Mapping[DeviceName, int]) -> bool:
    """Whether these rooms carry what takes least of a ladder: the shortest context and the fewest slots, on any
    devices. Where none of that fits, hardly anything does; only layers that come out otherwise between devices can make
    a difference. Raises FlagError as `ladder` does."""
    offered = list(shapes_of(launches))
    best, width = _first_accepted(launches, offered, devices)
    leanest: list[Shape] = []
    for _, alike in groupby(sorted(offered, key=_size), key=_size):
        leanest = leanest or [shape for shape in alike if not launches.refusal(Rung(shape, tuple(devices[:width])))]
    by_width = _by_width(launches, leanest, devices, best)
    return any(launches.fits(rung, rooms) for rungs in by_width for rung in rungs)


def _size(shape: Shape) -> tuple[int, int]:
    return shape.ctx_size, shape.parallel


# --- shapes -----------------------------------------------------------------------------------------------------


def worth_offering(launches: Launches, devices: Sequence[DeviceName]) -> list[Shape]:
    """The shapes in the order in which they are preferred, without those that take hardly less than a better one does:
    wherever they fit the better one fits too, or all but. That which takes least is kept whatever it saves. Raises
    FlagError where the engine refuses all of them."""
    offered = list(shapes_of(launches))
    _, width = _first_accepted(launches, offered, devices)
    shapes = [shape for shape in offered if not launches.refusal(Rung(shape, tuple(devices[:width])))]
    taken = {shape: sum(launches.needs(Rung(shape, tuple(devices[:width])))) for shape in shapes}
    kept: list[Shape] = []
    least = 0
    for shape in shapes:
        if not kept or taken[shape] < least - least // WORTHWHILE_PART:
            least = taken[shape]
            kept.append(shape)
    leanest = min(shapes, key=lambda shape: taken[shape])
    return kept if taken[leanest] >= least else [*kept, leanest]


def _first_accepted(launches: Launches, shapes: Sequence[Shape], devices: Sequence[DeviceName]) -> tuple[Shape, int]:
    """The best shape that the engine takes, and on how few devices: on one, unless a person's flags want more. Raises
    FlagError where there is none."""
    refusal: FlagError | None = None
    for width in range(1, len(devices) + 1):
        for shape in shapes:
            found = launches.refusal(Rung(shape, tuple(devices[:width])))
            if found is None:
                return shape, width
            refusal = refusal or found
    raise refusal or FlagError("--ctx-size", "there is no launch to offer")


def shapes_of(launches: Launches) -> Iterator[Shape]:
    """Contexts from the target to the floor; at each the cache in f16 before a smaller one, and slots from many to
    few. A single slot, where nobody asked for it, comes last of all: chats then wait for whatever it is busy with."""
    slots = slots_asked(launches)
    caches = cache_types_of(launches)
    pool = pool_asked(launches)
    contexts = [pool] if pool else list(_contexts(launches))
    counts = [slots] if slots else _counts(launches, contexts[0], caches[0])
    for last in (False, True):
        for context in contexts:
            for cache in caches:
                for count in counts:
                    if last is (count == 1 and len(counts) > 1):
                        yield Shape(context if pool else context * count, count, cache)


def slots_asked(launches: Launches) -> int | None:
    """The slots that were asked for; one where it embeds and nobody asked.

    A step of an embedder is a chunk of inputs, which the engine queues on its slots by itself; with one slot the next
    chunk waits in our queue, where more urgent work can overtake it.
    """
    return launches.person.parallel or launches.request.parallel or (1 if launches.embeds else None)


def pool_asked(launches: Launches) -> int | None:
    """The pool that was asked for as a whole; 0 in a person's flags is the trained length."""
    if launches.person.ctx_size is None:
        return launches.request.ctx_size
    return launches.person.ctx_size or trained_context(launches.geometry)


def trained_context(geometry: Geometry) -> int:
    """Tokens that the model was trained on."""
    return geometry.context_train or DEFAULT_CONTEXT


def cache_types_asked(launches: Launches) -> CacheTypes | None:
    """What the cache was asked to be kept as, by the person's flags or by the setting."""
    if any(long_name(word.partition("=")[0]) in _CACHE_FLAGS for word in launches.request.flags):
        return launches.person.cache_type_k, launches.person.cache_type_v
    return launches.request.cache_types


def cache_types_of(launches: Launches) -> tuple[CacheTypes, ...]:
    """What the cache may be kept as, best first: what was asked for alone, else f16 and what is smaller."""
    asked = cache_types_asked(launches)
    return (asked,) if asked is not None else (PLAIN_CACHE, *smaller_caches(launches))


_CACHE_FLAGS = frozenset(("-ctk", "--cache-type-k", "-ctv", "--cache-type-v"))


def takes_cache(geometry: Geometry, request: LadderRequest) -> bool:
    """Whether the model can do with the cache types of a request: what is not f16 is smaller and stays on the device.
    Raises FlagError."""
    asked = request.cache_types
    if asked is None or not any(CACHE_TYPES[kind].is_quantized for kind in asked):
        return True
    launches = Launches(geometry, request)
    return _may_be_quantized(launches) and (asked[0] == asked[1] or _may_be_mixed(launches))


def smaller_caches(launches: Launches) -> tuple[CacheTypes, ...]:
    """What is smaller than f16, as far as the engine takes it and attention over it stays on the device."""
    if not _may_be_quantized(launches):
        return ()
    return tuple((key, value) for key, value in SMALLER_CACHES if key == value or _may_be_mixed(launches))


def _may_be_quantized(launches: Launches) -> bool:
    geometry, person = launches.geometry, launches.person
    caching = [layer for layer in geometry.layers[: geometry.blocks] if layer.cache_source is not None]
    if not geometry.has_cache or not caching or person.flash_attn == "off" or not person.kv_offload:
        return False
    plain = launches.on_one(Shape(CELL_STEP, slots_asked(launches) or 1))
    if plain is None or not plain.flash_attn:
        return False
    anywhere = launches.request.on_host
    return all(_whole_blocks(layer) and (anywhere or _has_kernel(layer)) for layer in caching)


def _may_be_mixed(launches: Launches) -> bool:
    """MLA keeps K alone and wants both of one type (llama-context)."""
    return launches.request.mixed_cache and not launches.geometry.mla


def _whole_blocks(layer: Layer) -> bool:
    """The engine refuses a cache whose heads are no whole blocks of its type."""
    block = CACHE_TYPES["q8_0"].block_values
    return layer.key_length % block == 0 and layer.value_length % block == 0


def _has_kernel(layer: Layer) -> bool:
    """Whether a device has flash attention for a layer's heads; where it has none, attention over a quantized cache
    falls to the CPU."""
    shared = layer.heads // layer.kv_heads if layer.kv_heads else 0
    return device_computes_flash_attn(layer.key_length, layer.value_length, shared)


def _contexts(launches: Launches) -> Iterator[int]:
    """Tokens a slot, from the target down to the floor by halves; never above the trained length.

    An encoder sees an input as a whole: its context is what it was trained on, and costs next to nothing.
    """
    request, trained = launches.request, trained_context(launches.geometry)
    if request.ctx_per_slot or launches.geometry.is_encoder:
        yield request.ctx_per_slot or trained
        return
    context = min(request.ctx_target, trained)
    floor = min(request.ctx_floor, context)
    for _ in range(MOST_CONTEXTS - 1):
        if context <= floor:
            break
        yield context
        context = max(context // 2 // CELL_STEP * CELL_STEP, floor)
    yield floor


def _counts(launches: Launches, context: int, cache: CacheTypes) -> list[int]:
    """Slots where nobody says, the most first. Of a pool as many as leave each of them the floor; else as many as take
    no more for all their caches than the weights do, and at least a few."""
    if pool_asked(launches):
        return [count for count in SLOTS_OF_A_POOL if context >= count * launches.request.ctx_floor] + [1]
    found = []
    for count in MANY_SLOTS_ON_HOST if launches.request.on_host else MANY_SLOTS:
        taken = launches.on_one(Shape(context * count, count, cache))
        if count == FEW_SLOTS or (taken is not None and _is_cheap(taken)):
            found.append(count)
    return [*found, 1]


def _is_cheap(taken: Footprint) -> bool:
    part = taken.devices[0]
    return part.kv_bytes + part.recurrent_bytes <= max(CHEAP_CACHE_BYTES, part.weights_bytes)


# --- placements -------------------------------------------------------------------------------------------------


def _by_width(
    launches: Launches, shapes: list[Shape], devices: Sequence[DeviceName], best: Shape
) -> Iterator[list[Rung]]:
    """The rungs on one device, on two, and so on: to one more than the best shape would need were all of them empty."""
    needed = False
    for width in range(len(devices) if launches.request.together else 1, len(devices) + 1):
        groups = groups_of(launches, devices, width)
        if not groups:
            return
        if launches.refusal(Rung(best, groups[0])):
            continue  # what a person's flags say of devices
        yield [Rung(shape, placed) for shape in shapes for placed in groups]
        if needed:
            return
        needed = any(_carried(launches, Rung(best, placed)) for placed in groups)


def groups_of(launches: Launches, devices: Sequence[DeviceName], width: int) -> list[Placed]:
    """The devices that may hold the model together, so many at a time and in their order."""
    request, person = launches.request, launches.person
    if request.device is not None:
        return [(request.device,)] if width == 1 else []
    if width > 1 and (person.split_mode == "none" or width > launches.layers):
        return []
    if len(devices) <= EVERY_GROUP:
        return list(combinations(devices, width))
    return [tuple(devices[at : at + width]) for at in range(len(devices) - width + 1)]


def _carried(launches: Launches, rung: Rung) -> bool:
    """Whether its devices would carry a rung were they empty; so it is taken to be where nobody says what they have."""
    sizes = launches.request.device_bytes
    return not sizes or launches.fits(rung, sizes)


def _merged(launches: Launches, narrower: list[Rung], wider: list[Rung]) -> list[Rung]:
    """A rung over more devices goes behind all narrower ones, but before those at the end that it outdoes."""
    merged, at = list(narrower), 0
    for rung in wider:
        behind = len(merged)
        while behind > at and _outdoes(launches, rung, merged[behind - 1]):
            behind -= 1
        merged.insert(behind, rung)
        at = behind + 1
    return merged


def _outdoes(launches: Launches, rung: Rung, narrower: Rung) -> bool:
    """Whether more devices are worth it: slots are ours to choose, the narrower rung has but one, the wider at least
    doubles what that holds, and none of its devices is less capable."""
    if slots_asked(launches) or narrower.shape.parallel > 1:
        return False
    ranks = launches.request.device_ranks or {}
    least, best = min(ranks.get(name, 0) for name in rung.placed), max(ranks.get(name, 0) for name in narrower.placed)
    return rung.shape.ctx_size >= 2 * narrower.shape.ctx_size and least >= best
