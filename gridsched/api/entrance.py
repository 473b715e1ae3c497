"""Who may ask at all (H6): what is found out of a request before its body is read, by whichever door it came.

Owns the order of the checks: the host and the page that it came from, a browser that asks before it sends, then the
credential. Both doors ask here, so that neither lets in what the other would not. Must never look into a body.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import trio

from gridsched.api.gate import Address, Gate, is_here
from gridsched.api.origin import Origins
from gridsched.api.seat import House
from gridsched.api.settings import FrontSettings
from gridsched.control.authority import Caller
from gridsched.control.problems import Header, Problem


@dataclass(frozen=True, slots=True)
class Preflight:
    """A browser asks what a page may send: the headers of the answer, which is a 204."""

    headers: tuple[Header, ...]


@dataclass(frozen=True, slots=True)
class Entered:
    """What was `found`: the caller who may go on, or what the request gets instead. `address` is where it came from,
    None where nobody knows; `for_browsers` are headers that every answer to it has."""

    found: Caller | Problem | Preflight
    address: Address | None
    for_browsers: tuple[Header, ...]


class Entrance:
    """Lets requests in, by the house's figures of the moment."""

    def __init__(self, house: House) -> None:
        self._house = house
        self._authority = house.authority
        self._go_by(house.settings)

    def _go_by(self, settings: FrontSettings) -> None:
        """What is made of the figures, which may be others by the next request."""
        self._settings = settings
        self._origins = Origins(settings.host, settings.cors_origins, settings.names)
        self._gate = Gate(self._authority, settings.trusted_proxies)

    def look(self, method: str, path: str, headers: Mapping[bytes, bytes], client: tuple[str, int] | None) -> Entered:
        """Who asks. `client` is the other end of the connection, `headers` are as `exchange.joined` makes them."""
        if self._settings is not self._house.settings:
            self._go_by(self._house.settings)
        address = self._gate.whence(client, headers)
        found = self._found(method, path, headers, address)
        return Entered(found, address, self._origins.headers(headers))

    def _found(
        self, method: str, path: str, headers: Mapping[bytes, bytes], address: Address | None
    ) -> Caller | Problem | Preflight:
        by_any_name = self._by_any_name(here=is_here(address))
        if (problem := self._origins.refuse(headers, by_any_name=by_any_name)) is not None:
            return problem
        if (preflight := self._origins.preflight(method, headers)) is not None:
            return Preflight(preflight)
        return self._gate.admit(method, path, headers, address, trio.current_time())

    def _by_any_name(self, *, here: bool) -> bool:
        """Whether the server may be known by any name: to those who must show a key, which no page has. On loopback it
        has none but its own, whoever asks; nor where nobody needs a key."""
        return not self._authority.lets_all_in and self._is_asked_by_key(here=here)

    def _is_asked_by_key(self, *, here: bool) -> bool:
        return not here or (self._authority.has_keys and not self._origins.is_on_loopback)
