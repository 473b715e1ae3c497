"""Who a browser request comes from (H6, its simple form). Pure.

Being on loopback is not being this machine: a page from elsewhere can make a browser send requests here. So a request
for a foreign host (a rebound name), or with another origin (port included, `null` too), gets nothing. Programs that
are no browsers send no `Origin` and the host they dialled.
"""

from collections.abc import Mapping
from ipaddress import ip_address
from urllib.parse import urlsplit

from gridsched.api.problems import Problem


def foreign(headers: Mapping[bytes, bytes], listening_host: str) -> Problem | None:
    """The refusal, or None for a request that may pass. A server that others can reach has names we cannot know."""
    host = headers.get(b"host", b"").decode("latin-1").strip().lower()
    name = _hostname(f"//{host}")
    if host and _is_loopback(listening_host.lower()) and not (_is_loopback(name) or name == listening_host.lower()):
        return Problem("cross_origin", f"this server does not answer for the host {host!r}")
    origin = headers.get(b"origin")
    if origin is None:
        return None
    said = origin.decode("latin-1").strip().lower()
    if not host or said not in {f"http://{host}", f"https://{host}"}:
        return Problem("cross_origin", f"requests from the origin {said!r} are not taken")
    return None


def _is_loopback(name: str) -> bool:
    """A name that no name server can hand to somebody else: an address as such, or one under `localhost`."""
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ip_address(name).is_loopback
    except ValueError:
        return False


def _hostname(url: str) -> str:
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""
