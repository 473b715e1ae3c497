"""How several devices share a model's layers, so that the one that is left with least has the most.

Owns the search for the shares of one split. Pure arithmetic on bytes that others counted; it knows no flag, no model.
"""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate

SEARCH_STEPS = 24  # halvings: the fullest device's part of its room is known to a ten-millionth


def layer_shares(layers: Sequence[int], fixed: Sequence[int], rooms: Sequence[int]) -> tuple[int, ...]:
    """How many layers each device takes, in order, so that the fullest one fills the least part of its room.

    `layers` are the bytes of each layer, the output layer last: it goes to the last device. `fixed` are what a device
    takes whatever it holds, `rooms` what it has; bytes, by device. Each takes one layer at least, so that there must be
    no more devices than layers. Each is filled in turn: it is the best split where a room holds some of the largest
    layers, and a good one elsewhere.
    """
    sums = [0, *accumulate(layers)]
    low, high = 0.0, 1.0
    best = _filled(sums, fixed, rooms, high)
    while best is None:
        low, high = high, high * 2
        best = _filled(sums, fixed, rooms, high)
    for _ in range(SEARCH_STEPS):
        middle = (low + high) / 2
        found = _filled(sums, fixed, rooms, middle)
        if found is None:
            low = middle
        else:
            high, best = middle, found
    return best


def _filled(sums: Sequence[int], fixed: Sequence[int], rooms: Sequence[int], part: float) -> tuple[int, ...] | None:
    """The layers by device where each is filled up to a part of its room; None where some are left over."""
    counts, start, last = [], 0, len(sums) - 1
    for index, (taken, room) in enumerate(zip(fixed, rooms, strict=True)):
        most = last - (len(rooms) - 1 - index)  # those behind need a layer each
        end = min(bisect_right(sums, sums[start] + int(max(room, 1) * part) - taken) - 1, most)
        if end <= start:
            return None
        counts.append(end - start)
        start = end
    return tuple(counts) if start == last else None
