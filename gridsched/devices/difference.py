"""What a process holds on a card whose driver does not tell: what the card's use grew by while it came (D2, D4). Pure.

Owns one card's arithmetic. Must never make up a figure: where growth may be somebody else's, or two of ours came
together, there is none, and the estimate stands. Knows no driver, no clock and no process.

    figure = use that is nobody's known, now - the same in the last reading before the process was seen

It grows until the launch is over and SETTLE_SECONDS more, then it is kept as it is, or as what is used has come to be.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from math import inf

from gridsched.core.ids import InstanceId

SETTLE_SECONDS = 10.0
"""How long after its launch a process's growth still counts: the first prompt takes pools that were not there before.
A guess: whoever a model was loaded for has asked by then."""

LEAVING_SECONDS = 10.0
"""How long one that has ended may keep the memory that it had: where no fall was seen, none that begins in this time
can be told from it. As long as the ledger waits (L3)."""


@dataclass(frozen=True, slots=True)
class Seen:
    """One card at one moment. `figures`: what the driver tells of ours. `nameless`: the living of ours that may be on
    the card and of which it tells no figure; `listed`, those of them that it lists. `others`: everybody else that it
    lists, by pid, None without a figure."""

    used_bytes: int
    figures: Mapping[InstanceId, int] = field(default_factory=dict)
    nameless: frozenset[InstanceId] = frozenset()
    listed: frozenset[InstanceId] = frozenset()
    others: Mapping[int, int | None] = field(default_factory=dict)


@dataclass(slots=True)
class _Coming:
    """A process whose growth is watched. `base_bytes` was nobody's known when it began, `others` were there then."""

    base_bytes: int
    others: frozenset[int]
    bytes: int = 0
    settled_at: float = inf


class Difference:
    """One card. At most one process is watched at a time; one that cannot be told from others stays unknown."""

    def __init__(self) -> None:
        self._last: Seen | None = None
        self._coming: dict[InstanceId, _Coming] = {}
        self._kept: dict[InstanceId, int] = {}
        self._unknown: set[InstanceId] = set()
        self._too_much_since: dict[InstanceId, float] = {}
        self._leaving_until = -inf
        self._leaving_below = -1  # the use at which what left has given its memory back

    def settled(self, instance_id: InstanceId, now: float) -> None:
        """Its launch is over. Unknown ones are ignored."""
        if instance_id in self._coming:
            self._coming[instance_id].settled_at = now

    def read(self, seen: Seen, living: Collection[InstanceId], now: float) -> Mapping[InstanceId, int]:
        """Take one reading into account: the figures there are, each above 0 and at most what is used."""
        self._let_go(seen, living, now)
        begun = seen.nameless - self._kept.keys() - self._coming.keys() - self._unknown
        if begun:
            self._begin(begun, now)
        for instance_id, coming in list(self._coming.items()):
            self._watch(instance_id, coming, seen, now)
        self._lower(seen, now)
        if seen.used_bytes <= self._leaving_below:
            self._leaving_until = -inf
        self._last = seen
        found = self._kept | {name: coming.bytes for name, coming in self._coming.items()}
        return {name: min(size, seen.used_bytes) for name, size in found.items() if min(size, seen.used_bytes) > 0}

    def _lower(self, seen: Seen, now: float) -> None:
        """What is kept was partly somebody else's where the card has had less in use than that for a while."""
        for instance_id, size in self._kept.items():
            if size <= seen.used_bytes:
                self._too_much_since.pop(instance_id, None)
            elif now >= self._too_much_since.setdefault(instance_id, now) + SETTLE_SECONDS:
                self._kept[instance_id] = seen.used_bytes

    def _let_go(self, seen: Seen, living: Collection[InstanceId], now: float) -> None:
        """Forget those that ended, and those that the driver has come to tell of. While one of the former may keep its
        memory, nobody's growth is certain."""
        told = self._last.figures if self._last is not None else {}
        known = self._kept.keys() | self._coming.keys() | self._unknown | told.keys()
        for instance_id in known - seen.nameless:
            coming = self._coming.pop(instance_id, None)
            grown_bytes = coming.bytes if coming is not None else told.get(instance_id, 0)
            held = self._kept.pop(instance_id, grown_bytes)
            self._too_much_since.pop(instance_id, None)
            here = held > 0 or instance_id in self._unknown
            self._unknown.discard(instance_id)
            if instance_id in living or instance_id in seen.figures or not here:
                continue
            self._stop_watching()
            self._leaving_until = now + LEAVING_SECONDS
            self._leaving_below = self._last.used_bytes - held // 2 if self._last is not None and held else -1

    def _begin(self, begun: Collection[InstanceId], now: float) -> None:
        """Watch one that is new, where it alone can be the reason of what grows from the last reading on."""
        alone = len(begun) == 1 and all(coming.settled_at < inf for coming in self._coming.values())
        self._stop_watching()
        if not alone or self._last is None or now < self._leaving_until:
            self._unknown.update(begun)
            return
        base_bytes = self._last.used_bytes - self._known_bytes(self._last, self._last.others)
        self._coming = {name: _Coming(base_bytes, frozenset(self._last.others)) for name in begun}

    def _watch(self, instance_id: InstanceId, coming: _Coming, seen: Seen, now: float) -> None:
        new = len(seen.others.keys() - coming.others)
        if new > (0 if instance_id in seen.listed else 1):  # one that is new may be it, under a foreign number (D4)
            self._stop_watching()
            return
        grown_bytes = seen.used_bytes - self._known_bytes(seen, coming.others) - coming.base_bytes
        coming.bytes = min(max(0, grown_bytes), seen.used_bytes)
        if now >= coming.settled_at + SETTLE_SECONDS:
            self._stop_watching()

    def _stop_watching(self) -> None:
        """Keep what is known of those whose launch is over; of the others only a part has been seen."""
        for instance_id, coming in self._coming.items():
            if coming.settled_at < inf:
                self._kept[instance_id] = coming.bytes
            else:
                self._unknown.add(instance_id)
        self._coming = {}

    @staticmethod
    def _known_bytes(seen: Seen, others: Collection[int]) -> int:
        """What of the use in a reading is known to be somebody's and may have changed: ours that are told, and these
        others'. What is kept has not."""
        told = (size for pid, size in seen.others.items() if size is not None and pid in others)
        return sum(seen.figures.values()) + sum(told)
