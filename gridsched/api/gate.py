"""The door before every route: where a request comes from and who asks, before its body is read (H6).

Owns which address a request counts as coming from, and what nobody need show a credential for. Must never believe a
header about where somebody is that a proxy of ours has not written. Pure, but for one warning.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import Any, cast

from hypercorn.typing import HTTPScope

from gridsched.api.routes import in_data_plane
from gridsched.control.authority import NOBODY, Authority, Caller, Scope
from gridsched.control.problems import Problem

log = logging.getLogger(__name__)

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

LOOKING = frozenset({"GET", "HEAD", "OPTIONS"})
"""Methods that change nothing."""

KEPT_ADDRESSES = 256
"""Of so many clients it is known what their addresses are."""

PANEL = "/panel/"
"""Where its files are; the page itself is at `/`."""

_LOOKERS, _ASKERS = frozenset({Scope.INFERENCE, Scope.READ}), frozenset({Scope.INFERENCE})
"""Whose scopes open the data plane: to who looks, and to who asks a model."""

_CALLER, _ADDRESS, _REQUEST_ID = "gridsched.caller", "gridsched.address", "gridsched.request_id"


class Gate:
    """Lets requests in. `trusted` are the proxies that may say who called."""

    def __init__(self, authority: Authority, trusted: Sequence[Network] = ()) -> None:
        self._authority = authority
        self._trusted = trusted
        self._has_warned = False

    def whence(self, client: tuple[str, int] | None, headers: Mapping[bytes, bytes]) -> Address | None:
        """Where a request comes from, by its connection and what proxies of ours have written; None where nobody
        knows."""
        return self._address(_peer(client[0]) if client else None, headers)

    def admit(
        self, method: str, path: str, headers: Mapping[bytes, bytes], address: Address | None, now: float
    ) -> Caller | Problem:
        """Who asks, or why that gets nothing. In the data plane the caller may ask models."""
        caller = self._authority.identify(headers, here=is_here(address), address=_text(address), now=now)
        if isinstance(caller, Problem):
            return NOBODY if _is_open(method, path) else caller
        if not in_data_plane(path):
            return caller
        needed = _LOOKERS if method in LOOKING else _ASKERS
        return self._authority.refuse(caller, needed, headers) or caller

    def _address(self, peer: Address | None, headers: Mapping[bytes, bytes]) -> Address | None:
        """Where a request comes from; None where nobody knows."""
        if not self._is_trusted(peer):
            if peer is not None and peer.is_loopback and _is_forwarded(headers):
                self._warn_once(peer)
            return peer
        found = {self._first_foreign(peer, hops) for hops in (_forwarded_for(headers), _forwarded(headers)) if hops}
        if not found:
            return peer
        # A proxy writes one of the two headers, and passes the other on as its client wrote it.
        return found.pop() if len(found) == 1 else None

    def _is_trusted(self, address: Address | None) -> bool:
        return address is not None and any(address in network for network in self._trusted)

    def _first_foreign(self, peer: Address | None, hops: Sequence[str]) -> Address | None:
        """The last hop that is no proxy of ours; where all are ours, the first. None for what is no address, and for a
        loopback address that somebody on another machine has written: that is not this machine."""
        address, is_here = peer, True
        for hop in reversed(hops):
            is_here = is_here and address is not None and address.is_loopback
            address = _address(hop)
            if not self._is_trusted(address):
                break
        return None if address is not None and address.is_loopback and not is_here else address

    def _warn_once(self, peer: Address) -> None:
        if not self._has_warned:
            self._has_warned = True
            log.warning(
                "a proxy at %s sends requests on, and all its clients count as this machine: name it in"
                " server.trusted_proxies, and make keys (gridsched keys add NAME)",
                peer,
            )


@lru_cache(maxsize=KEPT_ADDRESSES)
def is_here(address: Address | None) -> bool:
    """Whether a request from there comes from this machine."""
    return address is not None and address.is_loopback


def stamped(scope: HTTPScope, caller: Caller, address: Address | None, request_id: str) -> HTTPScope:
    """The scope with who asks, from where, and the id that the answer will have, for an application behind the gate."""
    return cast("HTTPScope", {**scope, _CALLER: caller, _ADDRESS: str(address or ""), _REQUEST_ID: request_id})


def request_id_in(scope: Mapping[str, Any]) -> str:
    """The id of a request, of a scope that has come through the gate."""
    return str(scope[_REQUEST_ID])


def address_of(scope: Mapping[str, Any]) -> str:
    """Where a request comes from, of a scope that has come through the gate; "" where nobody knows."""
    return str(scope[_ADDRESS])


def caller_of(scope: Mapping[str, Any]) -> Caller:
    """Who asks, of a scope that has come through the gate."""
    caller = scope[_CALLER]
    assert isinstance(caller, Caller)  # noqa: S101 - for the type checker
    return caller


def _is_open(method: str, path: str) -> bool:
    """Whether the server is alive may be asked by all; the route says who may have its deep check. The panel's files
    are everybody's too: nobody could enter a key in a page that wants one."""
    return (path in {"/health", "/"} or path.startswith(PANEL)) and method in LOOKING


def _is_forwarded(headers: Mapping[bytes, bytes]) -> bool:
    return b"x-forwarded-for" in headers or b"forwarded" in headers


def _forwarded_for(headers: Mapping[bytes, bytes]) -> list[str]:
    """The hops of `X-Forwarded-For`, the client's first."""
    return [hop.strip() for hop in headers.get(b"x-forwarded-for", b"").decode("latin-1").split(",") if hop.strip()]


def _forwarded(headers: Mapping[bytes, bytes]) -> list[str]:
    """The hops of `Forwarded` (RFC 7239), the client's first; one that does not say for whom is no address."""
    elements = headers.get(b"forwarded", b"").decode("latin-1").split(",")
    return [_for(element) for element in elements if element.strip()]


def _for(element: str) -> str:
    pairs: Iterator[tuple[str, str, str]] = (pair.strip().partition("=") for pair in element.split(";"))
    return next((value.strip().strip('"') for name, _, value in pairs if name.lower() == "for"), "")


@lru_cache(maxsize=KEPT_ADDRESSES)
def _peer(text: str) -> Address | None:
    """The other end of a connection, as the kernel names it."""
    return _address(text)


@lru_cache(maxsize=KEPT_ADDRESSES)
def _text(address: Address | None) -> str:
    return str(address or "")


def _address(text: str) -> Address | None:
    """An address, with or without a port; one of IPv4 in the form of IPv6 is that of IPv4. None for anything else."""
    host = text.strip().partition("%")[0]
    if host.startswith("["):
        host = host[1:].partition("]")[0]
    elif host.count(":") == 1:
        host = host.partition(":")[0]
    try:
        address = ip_address(host)
    except ValueError:
        return None
    return address.ipv4_mapped or address if isinstance(address, IPv6Address) else address
