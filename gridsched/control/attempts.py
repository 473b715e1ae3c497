"""How many wrong credentials an address has shown lately (H6). Pure: whoever asks brings the time.

Owns the counts, of a bounded number of addresses. Keys and tokens cannot be found by trying; the limit is for whoever
tries all the same, and for a client that repeats a wrong one without end. Must never keep a credential: of right ones
the digest is remembered, so that a neighbour's failures behind one address lock nobody out who was let in before.
"""

from collections import OrderedDict
from collections.abc import Iterable
from ipaddress import IPv6Address, ip_address, ip_network
from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")

MOST_FAILURES = 10
WITHIN_SECONDS = 60.0
"""An address that has shown so many wrong credentials in this time is not listened to until it is over. Choices: a
person who mistypes stays below, a program that tries comes to 14,400 a day."""

MOST_ADDRESSES = 4096
MOST_REMEMBERED = 16
_SITE_BITS = 64
"""What one subscriber has of IPv6 addresses: all of a /64 count as one."""


class Attempts:
    """Of all addresses, those that failed last."""

    def __init__(self) -> None:
        self._failures: OrderedDict[str, list[float]] = OrderedDict()
        self._right: OrderedDict[str, OrderedDict[bytes, None]] = OrderedDict()

    def failed(self, address: str, now: float) -> None:
        """A wrong credential has come from there."""
        times = self._recent(address, now)
        times.append(now)
        _keep(self._failures, _site(address), times[-MOST_FAILURES:])

    def succeeded(self, address: str, digest: bytes) -> None:
        """A right one has."""
        known: OrderedDict[bytes, None] = self._right.get(_site(address), OrderedDict())
        _keep(known, digest, None, MOST_REMEMBERED)
        _keep(self._right, _site(address), known)

    def wait_seconds(self, address: str, digests: Iterable[bytes], now: float) -> float:
        """For how long credentials from there are not looked at; 0 where they are, or where one of these was right."""
        times = self._recent(address, now)
        if len(times) < MOST_FAILURES:
            return 0.0
        known = self._right.get(_site(address))
        is_known = known is not None and any(digest in known for digest in digests)
        return 0.0 if is_known else times[0] + WITHIN_SECONDS - now

    def _recent(self, address: str, now: float) -> list[float]:
        return [at for at in self._failures.get(_site(address), ()) if at > now - WITHIN_SECONDS]


def _site(address: str) -> str:
    """Whose address it is, as far as that can be told; what is none counts as it is."""
    try:
        told = ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(told, IPv6Address):
        if told.ipv4_mapped is not None:
            return str(told.ipv4_mapped)
        return str(ip_network((told, _SITE_BITS), strict=False))
    return str(told)


def _keep(kept: "OrderedDict[K, V]", key: K, value: V, most: int = MOST_ADDRESSES) -> None:
    """As the newest; the oldest goes where there are too many."""
    kept[key] = value
    kept.move_to_end(key)
    if len(kept) > most:
        kept.popitem(last=False)
