"""Who a browser request comes from (H6), and what a page of another origin may read (CORS). Pure.

Being on loopback is not being this machine: a page from elsewhere can make a browser send requests here. So a request
for a foreign host (a rebound name), or with another origin (port included, `null` too), gets nothing, unless the
configuration names that origin. Programs that are no browsers send no `Origin` and the host they dialled. A page that
has a picture or a script loaded sends no `Origin` either; there its browser says that it was another site's page.

Owns the answer to a preflight and every `Access-Control-*` header. There is no "any origin": each page that a person
opens could then use the models, and nothing in such a request tells it from one that is wanted.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import ip_address
from urllib.parse import urlsplit

from gridsched.control.problems import LONGEST_SAID_NAME, Header, Problem

METHODS = b"GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS"
"""What a preflight is told: which of them a route takes, the request itself is told in a form that a page can read."""

EXPOSED = b", ".join(
    (
        b"x-request-id",
        b"x-gridsched-job-id",
        b"x-gridsched-class",
        b"x-gridsched-class-capped",
        b"x-gridsched-model",
        b"x-gridsched-queue-ms",
        b"retry-after",
        b"x-should-retry",
    )
)
PREFLIGHT_SECONDS = 600
KEPT_NAMES = 64
"""Of so many hosts it is known what they are. Clients ask by one or two, and to find out costs more than all else that
is looked at of a request."""

_ASKED_BY_A_PREFLIGHT = b"origin, access-control-request-headers, access-control-request-private-network"
_NAMES = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z, \t]{0,4096}")


@dataclass(frozen=True, slots=True)
class Origins:
    """What a server on `host` takes: its own pages, and those of the origins in `listed`, as browsers write them."""

    host: str
    listed: frozenset[str] = frozenset()
    names: frozenset[str] = frozenset()

    @property
    def is_on_loopback(self) -> bool:
        """Whether nobody on another machine can reach the server but through a proxy."""
        return _is_loopback(self.host.lower())

    def refuse(self, headers: Mapping[bytes, bytes], *, by_any_name: bool = False) -> Problem | None:
        """The refusal, or None for a request that may pass. To those whom a name cannot help to get in the server may
        be known by any (`by_any_name`)."""
        host = _said(headers, b"host")
        if host and not by_any_name and not self._is_own(_hostname(f"//{host}")):
            message = f"this server does not answer for the host {host[:LONGEST_SAID_NAME]!r}; ask it by its address"
            return Problem("cross_origin", message)
        if b"origin" not in headers:
            return _refuse_loaded_by_a_page(headers)
        origin = _said(headers, b"origin")
        if origin in self.listed or (host and origin in {f"http://{host}", f"https://{host}"}):
            return None
        message = f"requests from the origin {origin[:LONGEST_SAID_NAME]!r} are not taken"
        return Problem("cross_origin", f"{message}; server.cors_origins lists those that are")

    def _is_own(self, name: str) -> bool:
        """Whether a name is this machine's, and nobody can have it lead here from another's page."""
        is_address = not self.is_on_loopback and _is_address(name)
        return _is_loopback(name) or name == self.host.lower() or name in self.names or is_address

    def headers(self, headers: Mapping[bytes, bytes]) -> tuple[Header, ...]:
        """What an answer to this request says to browsers."""
        if not self.listed and b"origin" not in headers:
            return ()
        if _said(headers, b"origin") not in self.listed:
            return ((b"vary", b"origin"),)
        return (
            (b"access-control-allow-origin", headers[b"origin"].strip()),
            (b"access-control-expose-headers", EXPOSED),
            (b"vary", b"origin"),
        )

    def preflight(self, method: str, headers: Mapping[bytes, bytes]) -> tuple[Header, ...] | None:
        """The headers of the answer to a browser that asks before it sends, None for any other request.

        Any header may be sent: none of them changes anything here for whom the origin is not enough.
        """
        if method != "OPTIONS" or b"access-control-request-method" not in headers:
            return None
        if _said(headers, b"origin") not in self.listed:
            return None
        answer = [
            (b"access-control-allow-origin", headers[b"origin"].strip()),
            (b"access-control-allow-methods", METHODS),
            (b"access-control-max-age", b"%d" % PREFLIGHT_SECONDS),
            (b"vary", _ASKED_BY_A_PREFLIGHT),
        ]
        names = headers.get(b"access-control-request-headers", b"").strip()
        if names and _NAMES.fullmatch(names):
            answer.append((b"access-control-allow-headers", names))
        if headers.get(b"access-control-request-private-network", b"").strip() == b"true":
            answer.append((b"access-control-allow-private-network", b"true"))
        return tuple(answer)


def _refuse_loaded_by_a_page(headers: Mapping[bytes, bytes]) -> Problem | None:
    """What a page of another site, or of another port here, has loaded without asking for leave; that a person follows
    its link is not that."""
    site, whither = _said(headers, b"sec-fetch-site"), _said(headers, b"sec-fetch-dest")
    if site not in {"cross-site", "same-site"} or whither == "document":
        return None
    return Problem("cross_origin", "what a page of another origin loads without saying so is not given to it")


def _said(headers: Mapping[bytes, bytes], name: bytes) -> str:
    return headers.get(name, b"").decode("latin-1").strip().lower()


@lru_cache(maxsize=KEPT_NAMES)
def _is_loopback(name: str) -> bool:
    """A name that no name server can hand to somebody else: an address as such, or one under `localhost`."""
    return name == "localhost" or name.endswith(".localhost") or (_is_address(name) and ip_address(name).is_loopback)


@lru_cache(maxsize=KEPT_NAMES)
def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


@lru_cache(maxsize=KEPT_NAMES)
def _hostname(url: str) -> str:
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""
