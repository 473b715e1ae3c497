"""What would fit where no launch does: the largest context, the most slots, and changes that each make it fit (L7).

Owns the search and what may be suggested. A suggestion is a changed request, and is made only after the ladder of that
request was found to have a rung that the memory carries; the sentence for a person is the caller's.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

from gridsched.core.ids import DeviceName
from gridsched.vram.context import CELL_STEP
from gridsched.vram.flags import FlagError
from gridsched.vram.geometry import Geometry
from gridsched.vram.ladder import (
    cache_types_asked,
    carries,
    carries_leanest,
    pool_asked,
    rungs_of,
    slots_asked,
    smaller_caches,
    trained_context,
)
from gridsched.vram.launches import LadderRequest, Launches, Shape

MAX_SLOTS = 256  # llama.cpp's LLAMA_MAX_SEQ

_Carried = Callable[[Launches, Sequence[DeviceName], Mapping[DeviceName, int]], bool]


class Fit(NamedTuple):
    """The largest pool at the slots that were asked for, else at one, and the most slots at the least context that
    would do; 0 where nothing was found to fit."""

    ctx_size: int
    parallel: int


@dataclass(frozen=True, slots=True)
class Suggestion:
    """One change that makes a model fit: a setting of the model and its value, or more engine flags where `setting` is
    `flags`. `request` is what is asked for then, `host_bytes` what it moves to host memory."""

    setting: str
    value: str
    request: LadderRequest
    host_bytes: int = 0


class Advice:
    """What some memory would carry of one model. Raises FlagError where the engine would refuse what was asked for."""

    def __init__(
        self,
        geometry: Geometry,
        request: LadderRequest,
        devices: Sequence[DeviceName],
        usable_bytes: Mapping[DeviceName, int],
    ) -> None:
        self._geometry = geometry
        self._request = request
        self._devices = devices
        self._usable = usable_bytes
        self._launches = Launches(geometry, request)
        self._slots = slots_asked(self._launches)
        self._known: dict[tuple[object, ...], bool] = {}

    def largest(self) -> Fit:
        """The largest context and the most slots: one step more does not fit."""
        return Fit(self._largest_pool, self._most_slots)

    def suggestions(self) -> tuple[Suggestion, ...]:
        """Changes of what was asked for, each of which makes it fit by itself; none where it fits as it is."""
        if self.fits(self._request):
            return ()
        return tuple(found for found in self._changes() if self.fits(found.request))

    def fits(self, request: LadderRequest) -> bool:
        """Whether the ladder of a request has a rung that the memory carries."""
        if self._weighs_too_much and request.flags == self._request.flags:
            return False
        asked = (request.ctx_size, request.ctx_per_slot, request.parallel, request.cache_types, request.flags)
        key = (*asked, request.device)
        if key not in self._known:
            self._known[key] = self._carries(request, carries)
        return self._known[key]

    def _carries(self, request: LadderRequest, carried: _Carried) -> bool:
        try:
            return carried(Launches(self._geometry, request), self._devices, self._usable)
        except FlagError:
            return False

    # --- the largest --------------------------------------------------------------------------------------------

    @cached_property
    def _largest_pool(self) -> int:
        """In tokens; never more than the trained length for each slot, or what was asked where that is more."""
        if self._weighs_too_much:
            return 0
        asked, slots = pool_asked(self._launches) or 0, self._slots or 1
        per_slot = max(trained_context(self._geometry), self._request.ctx_per_slot or asked // slots)
        step = CELL_STEP * slots
        return step * self._most(max(per_slot * slots // step, 1), lambda steps: self._with_pool(steps * step))

    @cached_property
    def _most_slots(self) -> int:
        if self._weighs_too_much:
            return 0
        asked = pool_asked(self._launches)
        return self._most(min(MAX_SLOTS, max(asked // CELL_STEP, 1)) if asked else MAX_SLOTS, self._with_slots)

    @cached_property
    def _weighs_too_much(self) -> bool:
        """Whether the weights alone are more than all devices have for them: under the same flags no context, no number
        of slots and no cache will do then, and none is tried. Several devices hold no less of them than one would."""
        alone = self._launches.on_one(Shape(CELL_STEP, self._slots or 1))
        room = sum(self._usable.get(name, 0) for name in self._devices)
        return alone is not None and alone.devices[0].weights_bytes > room

    def _most(self, limit: int, asked: Callable[[int], LadderRequest]) -> int:
        """The largest number up to a limit that fits when it is asked for, 0 for none. It is searched among the
        leanest rungs, and then settled by whole ladders, which decide."""

        def holds(number: int) -> bool:
            return number == 0 or self.fits(asked(number))

        found = _largest(1, limit + 1, lambda number: self._carries(asked(number), carries_leanest))
        below, above, step = found, found + 1, 1
        while not holds(below):
            below, above = max(below - step, 0), below
            step *= 2
        while above <= limit and holds(above):
            below, above = above, above + step
            step *= 2
        return _largest(below, min(above, limit + 1), holds)

    def _with_pool(self, pool: int) -> LadderRequest:
        if self._launches.person.ctx_size is not None:
            return self._with_flags("--ctx-size", str(pool))
        return replace(self._request, ctx_size=pool, ctx_per_slot=None)

    def _with_slots(self, slots: int) -> LadderRequest:
        if self._launches.person.parallel is not None:
            return self._with_flags("--parallel", str(slots))
        return replace(self._request, parallel=slots)

    def _with_flags(self, *words: str) -> LadderRequest:
        """The last of a kind wins."""
        return replace(self._request, flags=(*self._request.flags, *words))

    # --- what to change -----------------------------------------------------------------------------------------

    def _changes(self) -> Iterator[Suggestion]:
        yield from self._less_context()
        yield from self._fewer_slots()
        yield from self._smaller_cache()
        if self._request.device is not None:
            yield Suggestion("device", "auto", replace(self._request, device=None))
        yield from self._experts_on_host()

    def _less_context(self) -> Iterator[Suggestion]:
        pool = self._largest_pool
        if not pool:
            return
        if self._launches.person.ctx_size is not None:
            yield Suggestion("flags", f"--ctx-size {pool}", self._with_pool(pool))
        elif self._request.ctx_per_slot:
            slots = self._slots or 1
            asked = replace(self._request, ctx_per_slot=pool // slots)
            yield Suggestion("ctx_per_slot", str(pool // slots), asked)
        else:
            yield Suggestion("ctx_size", str(pool), self._with_pool(pool))

    def _fewer_slots(self) -> Iterator[Suggestion]:
        """Where nobody asked for slots the ladder has tried a single one."""
        if not self._slots or self._slots == 1:
            return
        slots = self._most_slots
        if not 0 < slots < self._slots:  # of a pool more slots can take less than fewer do: that is no advice
            return
        if self._launches.person.parallel is not None:
            yield Suggestion("flags", f"--parallel {slots}", self._with_slots(slots))
        else:
            yield Suggestion("parallel", str(slots), self._with_slots(slots))

    def _smaller_cache(self) -> Iterator[Suggestion]:
        """Where another type was asked for than those that would be tried."""
        asked = cache_types_asked(self._launches)
        if asked is None:
            return
        by_flags = asked != self._request.cache_types
        for keys, values in smaller_caches(self._launches):
            if (keys, values) == asked:
                continue
            if by_flags:
                words = ("--cache-type-k", keys, "--cache-type-v", values)
                yield Suggestion("flags", " ".join(words), self._with_flags(*words))
            else:
                word = keys if keys == values else f"{keys}/{values}"
                yield Suggestion("cache_type", word, replace(self._request, cache_types=(keys, values)))

    def _experts_on_host(self) -> Iterator[Suggestion]:
        """The experts of as few of the first layers as will do."""
        if not self._geometry.experts.count or self._request.on_host:
            return

        def moved(layers: int) -> LadderRequest:
            return self._with_flags("--n-cpu-moe", str(layers))

        blocks = self._geometry.blocks
        spared = self._most(blocks, lambda spared: moved(blocks + 1 - spared))
        if not spared:
            return
        asked = moved(blocks + 1 - spared)
        launches = Launches(self._geometry, asked)
        rung = next(rung for rung in rungs_of(launches, self._devices) if launches.fits(rung, self._usable))
        host = launches.option(rung).host
        moved_bytes = host.weights_bytes if host is not None else 0
        yield Suggestion("flags", f"--n-cpu-moe {blocks + 1 - spared}", asked, moved_bytes)


def _largest(low: int, high: int, holds: Callable[[int], bool]) -> int:
    """The largest number below `high` for which `holds`, as it does for `low`; what holds for one holds below it. Where
    that is not so, as among ladders, which end at other devices each, it is one that holds before one that does not."""
    while high - low > 1:
        middle = (low + high) // 2
        if holds(middle):
            low = middle
        else:
            high = middle
    return low
