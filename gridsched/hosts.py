"""Which hosts may be asked for what a client names (an image, a model's header): by the URL's words, then by the
addresses behind them.

Owns the guard against requests into this machine and its own network. Pure: it looks nothing up and asks nobody. Must
never let an address pass that is not a public one, unless a person has named host and port in the configuration.
"""

import re
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address, ip_network
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:  # it takes as long to import as all that is here takes to be used
    import httpx

PORTS: Final = {"http": 80, "https": 443}
"""The schemes that are asked, and their ports; no other port is, on a host that nobody has named."""

_HOST = re.compile(r"[a-z0-9_.-]*|[0-9a-f:.]+")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
_ANY4 = tuple(map(ip_network, ("192.0.0.0/24", "192.88.99.0/24", "100.64.0.0/10")))
_ANY6 = tuple(map(IPv6Network, ("2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20")))
_UNICAST6 = IPv6Network("2000::/3")
_NAT64 = IPv6Network("64:ff9b::/96")
"""Beside what the standard library calls private: protocol assignments, old relays, carriers' own (IPv4); Teredo and
other special ranges, documentation, 6to4 (IPv6), where all that is public lies within `_UNICAST6`."""


class Refused(Exception):
    """What is not fetched, or not taken. The sentence is for the client and tells of nothing inside."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a URL leads. `named`: a person has allowed this host and port, whatever its addresses are."""

    url: "httpx.URL"
    host: str
    port: int
    named: bool

    @property
    def authority(self) -> str:
        """For the `Host` header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == PORTS[self.url.scheme] else f"{host}:{self.port}"


def place_of(text: str, named: frozenset[str]) -> Place:
    """Read a URL with the parser that asks for it, so that no two of them disagree. Raises Refused."""
    import httpx  # noqa: PLC0415 - whoever fetches has it

    try:
        url = httpx.URL(text)
        host = url.raw_host.decode("ascii").rstrip(".").lower()
    except (httpx.InvalidURL, ValueError):
        raise Refused("it is no URL") from None
    if _HOST.fullmatch(host) is None:
        raise Refused("it is no URL")
    if url.scheme not in PORTS:
        raise Refused("only http and https are fetched")
    if not host:
        raise Refused("it names no host")
    if url.userinfo:
        raise Refused("a URL with a name or a password in it is not fetched")
    port = PORTS[url.scheme] if url.port is None else url.port
    if f"[{host}]:{port}" in named or f"{host}:{port}" in named:
        return Place(url, host, port, named=True)
    if port not in PORTS.values():
        raise Refused("only the ports 80 and 443 are asked")
    if _is_odd_number(host):
        raise Refused("its host is a number that is not written as an address")
    return Place(url, host, port, named=False)


def _is_odd_number(host: str) -> bool:
    """Whether the system would read an address where none is written: `2130706433`, `0x7f.1`, `0177.0.0.1`."""
    if _NUMBER.fullmatch(host.rpartition(".")[2]) is None:
        return False
    try:
        ip_address(host)
    except ValueError:
        return True
    return False


def is_public(address: str) -> bool:
    """Whether anybody on the Internet could be meant by an address. What carries an IPv4 address is judged by that."""
    try:
        found = ip_address(address)
    except ValueError:
        return False
    if isinstance(found, IPv4Address):
        return _is_public4(found)
    if found.ipv4_mapped is not None:
        return _is_public4(found.ipv4_mapped)
    if found in _NAT64:
        return _is_public4(IPv4Address(int(found) & 0xFFFFFFFF))
    return _is_public6(found)


def _is_public4(found: IPv4Address) -> bool:
    special = found.is_private or found.is_multicast or found.is_reserved or found.is_loopback or found.is_link_local
    return not special and not any(found in network for network in _ANY4)


def _is_public6(found: IPv6Address) -> bool:
    return found in _UNICAST6 and not found.is_private and not any(found in network for network in _ANY6)
