"""Jobs in an order that is not that of their coming: who is first, and how many stand before one.

Owns one sorted list, so that neither is found by looking at all: whose turn it is among the keys (`keys`), and where a
job stands, for those who only look (S9b, H3). Must never decide what the order is.
"""

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # queues keep orders
    from gridsched.core.queues import JobRecord

Key = Callable[["JobRecord"], Any]  # Any: a tuple of numbers, whichever an `attrgetter` makes

SPARE = 64
"""So many who have gone from the front are never worth moving all others up."""


class Order:
    """Waiting jobs by a key, which no two of them share and which stays while they wait.

    `_gone` counts places at the front of the list whose jobs have gone: mostly the first goes, and the others are moved
    up only when the half of the list is gone.
    """

    __slots__ = ("_gone", "_key", "_records")

    def __init__(self, records: "Iterable[JobRecord]", key: Key) -> None:
        self._key = key
        self._records = sorted(records, key=key)
        self._gone = 0

    def add(self, record: "JobRecord") -> None:
        """A job comes, mostly last."""
        records, key = self._records, self._key
        if not records or key(records[-1]) < key(record):
            records.append(record)
        else:
            insort(records, record, self._gone, key=key)

    def remove(self, record: "JobRecord") -> None:
        """A job that is there goes."""
        records = self._records
        if records[self._gone] is not record:
            del records[bisect_left(records, self._key(record), self._gone, key=self._key)]
            return
        self._gone += 1
        if self._gone == len(records) or (self._gone > SPARE and self._gone > len(records) // 2):
            del records[: self._gone]
            self._gone = 0

    def before(self, record: "JobRecord") -> int:
        """How many stand before a job, be it one of them or not."""
        return bisect_left(self._records, self._key(record), self._gone, key=self._key) - self._gone

    def all(self) -> "list[JobRecord]":
        """Everybody, the first to be first."""
        return self._records[self._gone :]

    def at(self, number: int) -> "JobRecord":
        """Who has so many before them. Raises IndexError where nobody has."""
        return self._records[self._gone + number]

    def first(self) -> "JobRecord | None":
        """Who has nobody before them; None where nobody is."""
        return self._records[self._gone] if self._records else None
