"""When time alone could change something, for many things at once.

Owns a heap of moments, one for each key (an instance, a device), so that the earliest is known without asking all of
them. Must never know what a moment is for, nor act on one: it is told of every change, and says what has come.
"""

from heapq import heapify, heappop, heappush
from math import inf
from typing import Generic, TypeVar

from gridsched.core.ids import DeviceName, InstanceId

K = TypeVar("K", InstanceId, DeviceName)

SPARE = 64
"""So many outdated entries are never worth a rebuilding."""


class Alarms(Generic[K]):
    """Moments in seconds by key; a key without one is not remembered. Those that have come are in `come` until they
    are set to another moment.

    An entry of the `heap` counts only while it is still its key's moment; others are dropped when they come up, or when
    the heap is mostly them.
    """

    __slots__ = ("_moments", "come", "heap")

    def __init__(self) -> None:
        self._moments: dict[K, float] = {}
        self.heap: list[tuple[float, K]] = []
        self.come: dict[K, float] = {}

    def at(self, key: K) -> float:
        """The moment of a key, inf for none."""
        return self._moments.get(key, inf)

    def set(self, key: K, at: float, now: float) -> None:
        """Another moment takes the place of a key's last one; inf for none."""
        moments = self._moments
        if moments.get(key, inf) == at:
            return
        if self.come:
            self.come.pop(key, None)
        if at == inf:
            del moments[key]
            return
        moments[key] = at
        if at <= now:
            self.come[key] = at
            return
        heap = self.heap
        heappush(heap, (at, key))
        if len(heap) > SPARE + 4 * len(moments):
            self.heap = [(moment, each) for each, moment in moments.items() if each not in self.come]
            heapify(self.heap)

    def next_at(self, now: float) -> float:
        """The earliest moment after now, inf for none. What has come by now is in `come` from here on."""
        heap = self.heap
        while heap:
            at, key = heap[0]
            if self._moments.get(key) == at:
                if at > now:
                    return at
                self.come[key] = at
            heappop(heap)
        return inf
