"""Looking up the host of an image that a client names.

Owns how many look-ups there may be at once. Must never decide whether an address may be asked: `hosts` does.
"""

import socket
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from ipaddress import ip_address
from typing import Final, Protocol

import trio

from gridsched.threads import in_thread

_LOOK_UPS: Final = trio.CapacityLimiter(16)


class Resolver(Protocol):
    """Looks a host up."""

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        """Every address of it. Raises OSError, or UnicodeError for what cannot be a host."""


async def look_up(host: str, port: int) -> Sequence[str]:
    """As the system does, in its order of preference. A look-up that nobody waits for any more may take its time: no
    more than a few at once keep threads."""
    with suppress(ValueError):
        return (str(ip_address(host)),)
    ask = partial(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
    found = await in_thread(ask, limiter=_LOOK_UPS, abandon_on_cancel=True)
    return tuple(dict.fromkeys(str(each[4][0]) for each in found))
