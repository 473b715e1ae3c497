"""Fetching one image that a client names by URL, so that no engine ever goes out for a client.

Owns the way there and its limits: each host is looked up once, its addresses are vetted and a vetted one is connected
to, so that a name that means something else a moment later is never asked; every redirect is vetted anew. What comes
is counted as it comes and must be an image. Must never go where `hosts` does not allow, never use a proxy, cookie or
credential, and never say what lies behind a name.
"""

import ssl
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final

import httpx

from gridsched.api.resolve import Resolver, look_up
from gridsched.hosts import Place, Refused, is_public, place_of
from gridsched.threads import in_thread

MOST_REDIRECTS = 3
MOST_ADDRESSES = 3
CONNECT_SECONDS = 4.0
"""Then the next of a host's addresses is tried, so long as there is time."""

REDIRECTS = frozenset((301, 302, 303, 307, 308))
HTTP_OK = 200
NOT_PUBLIC = "its host has no public address"
"""Said of a name that does not exist, too: who asks learns nothing of the names in this network."""

HEADERS: Final = {"accept": "image/*", "accept-encoding": "identity", "user-agent": "gridsched"}
_KINDS: Final = (
    ("image/png", 0, b"\x89PNG\r\n\x1a\n"),
    ("image/jpeg", 0, b"\xff\xd8\xff"),
    ("image/gif", 0, b"GIF8"),
    ("image/webp", 8, b"WEBP"),
    ("image/bmp", 0, b"BM"),
)
_OTHER_NAMES: Final = {"image/jpg": "image/jpeg", "image/pjpeg": "image/jpeg", "image/x-ms-bmp": "image/bmp"}


@cache
def _trusted() -> ssl.SSLContext:
    return httpx.create_ssl_context()


async def trusted() -> ssl.SSLContext:
    """The usual authorities; read once, and not on the loop."""
    return await in_thread(_trusted)


@dataclass(frozen=True, slots=True)
class Image:
    """One that came whole."""

    media_type: str
    data: bytes


@dataclass(slots=True)
class Allowance:
    """Bytes that may still be taken, by all who share it."""

    left: int

    def take(self, count: int) -> Refused | None:
        """Why they may not, when there are not as many left."""
        self.left -= count
        if self.left >= 0:
            return None
        return Refused("with it the request's images take more bytes than a body may have (server.max_body)")


@dataclass(frozen=True, slots=True)
class Fetcher:
    """Goes out. `named` are the hosts, with port, that may be asked wherever they are; bytes are for one image."""

    max_bytes: int
    named: frozenset[str] = frozenset()
    resolve: Resolver = look_up
    tls: Callable[[], Awaitable[ssl.SSLContext]] = trusted

    async def fetch(self, url: str, allowance: Allowance) -> Image:
        """One image. Raises Refused. How long it may take is for the caller to limit."""
        place = place_of(url, self.named)
        for _ in range(MOST_REDIRECTS + 1):
            found = await self._ask_any(place, allowance)
            if isinstance(found, Image):
                return found
            place = place_of(found, self.named)
        raise Refused(f"its host redirects more than {MOST_REDIRECTS} times")

    async def _addresses(self, place: Place) -> Sequence[str]:
        """Where the host is, looked up this once. One address that is not public spoils them all. Raises Refused."""
        try:
            found = await self.resolve(place.host, place.port)
        except (OSError, UnicodeError):
            raise Refused(NOT_PUBLIC) from None
        if not found or not (place.named or all(map(is_public, found))):
            raise Refused(NOT_PUBLIC)
        return found[:MOST_ADDRESSES]

    async def _ask_any(self, place: Place, allowance: Allowance) -> Image | str:
        """The image, or where else to go. Raises Refused."""
        addresses = await self._addresses(place)
        tls = await self.tls() if place.url.scheme == "https" else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        untrusted = False
        for address in addresses:
            try:
                return await self._ask(place, address, tls, allowance)
            except (httpx.ConnectError, httpx.ConnectTimeout) as error:
                untrusted |= _is_about_tls(error)
            except httpx.HTTPError:
                raise Refused("its host broke the answer off, or did not speak HTTP") from None
        raise Refused("its host has no certificate that is trusted" if untrusted else "its host cannot be reached")

    async def _ask(self, place: Place, address: str, tls: ssl.SSLContext, allowance: Allowance) -> Image | str:
        """One request to one vetted address, in the host's name. Raises Refused and httpx.HTTPError."""
        timeout = httpx.Timeout(None, connect=CONNECT_SECONDS)
        async with (
            httpx.AsyncClient(verify=tls, trust_env=False, timeout=timeout) as client,
            client.stream(
                "GET",
                place.url.copy_with(host=address, fragment=None),
                headers={**HEADERS, "host": place.authority},
                extensions={"sni_hostname": place.host},
            ) as response,
        ):
            if response.status_code in REDIRECTS and (target := response.headers.get("location")):
                return _joined(place.url, target)
            if response.status_code != HTTP_OK:
                raise Refused(f"its host answered {response.status_code}")
            return await self._read(response, allowance)

    async def _read(self, response: httpx.Response, allowance: Allowance) -> Image:
        """The body, counted as it comes, whatever its length was said to be. Raises Refused and httpx.HTTPError."""
        told = _media_type(response)
        if response.headers.get("content-encoding", "identity").lower() != "identity":
            raise Refused("its host sent it compressed, which was not asked for")
        data, refused = bytearray(), self._too_long(_declared(response))
        try:
            async for part in response.aiter_raw():
                refused = refused or self._too_long(len(data) + len(part)) or allowance.take(len(part))
                if refused:  # the iterators within this one are ended only by going on
                    await response.aclose()
                data += part
        except httpx.HTTPError:
            if refused is None:
                raise
        if refused:
            raise refused
        kind = next((kind for kind, at, mark in _KINDS if data.startswith(mark, at)), None)
        if kind is None:
            raise Refused(f"it is no PNG, JPEG, GIF, WebP or BMP, though its host calls it {told}")
        if kind != told:
            raise Refused(f"its host calls it {told}, and it is {kind}")
        return Image(kind, bytes(data))

    def _too_long(self, count: int) -> Refused | None:
        if count <= self.max_bytes:
            return None
        return Refused(f"it is longer than {self.max_bytes} bytes (server.image_max)")


def _media_type(response: httpx.Response) -> str:
    """What the host calls it. Raises Refused for what is no image."""
    said = str(response.headers.get("content-type", "")).partition(";")[0].strip().lower()
    if not said.startswith("image/"):
        raise Refused("its host does not call it an image")
    return _OTHER_NAMES.get(said, said)


def _declared(response: httpx.Response) -> int:
    said = response.headers.get("content-length", "")
    return int(said) if said.isascii() and said.isdigit() else 0


def _joined(base: httpx.URL, target: str) -> str:
    """Where a redirect leads. Raises Refused."""
    try:
        return str(base.join(target))
    except (httpx.InvalidURL, ValueError):
        raise Refused("its host redirects to what is no URL") from None


def _is_about_tls(error: BaseException | None) -> bool:
    """Whether a connection failed at its certificate: the libraries between keep that as the cause."""
    while error is not None:
        if isinstance(error, ssl.SSLError):
            return True
        error = error.__cause__ or error.__context__
    return False
