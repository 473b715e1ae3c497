"""Reads a model's header from a web server, a range of bytes at a time; the model itself is never fetched.

Owns what is asked of a server and what is taken from it. Nothing that it says is believed: not the range, not the
length, not where it sends us. Must never send the hub's token anywhere but to the hub, and never read more of an answer
than was asked for. Raises `Unreadable` like `read`, with a sentence fit for a person, and nothing else.

Blocks for as long as the server does, up to a limit. A person's command line may name any address; for a client of the
server each host is vetted (`only_public`) before it is asked, and asked at the address that was vetted, so that no name
leads into this machine's own network.
"""

import hashlib
import re
import socket
import ssl
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, suppress
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from pathlib import Path
from time import monotonic
from urllib.parse import SplitResult, quote, unquote, urljoin, urlsplit, urlunsplit

import httpx

from gridsched.hosts import PORTS, Refused, is_public, place_of
from gridsched.library.read import FINGERPRINT_BYTES, ReadFile, Unreadable
from gridsched.library.shards import ModelFile, read_parts
from gridsched.vram.header import HeaderError, NeedMore, scan_file

FIRST_WINDOW_BYTES = 64 << 10
LARGEST_WINDOW_BYTES = 4 << 20
"""Each range asked for is four times the one before, between these: a small header comes at once, one with a large
vocabulary (8 MB of it to be read) in six requests, of which less than half is fetched in vain."""

MAX_REDIRECTS = 5
SILENT_SECONDS = 10.0
TOTAL_SECONDS = 120.0
"""How long a server may be silent, and how long a whole model may take with all its parts: choices."""

HUB_HOSTS = ("huggingface.co", "hf.co")
_CONTENT_RANGE = re.compile(r"bytes (\d{1,18})-(\d{1,18})/(\d{1,18})")
_REDIRECTS = (301, 302, 303, 307, 308)


Vet = Callable[[SplitResult], str]
"""The address to ask a host at. Raises Unreadable for one that is not to be asked."""


def read_remote(
    url: str, environ: Mapping[str, str], *, seconds: float = TOTAL_SECONDS, vet: Vet | None = None
) -> ModelFile:
    """The model at an http or https address, with all the parts of its set. `path` of what comes back is its file name.

    Of `environ`, `HF_TOKEN` goes with requests to the hub (`HF_ENDPOINT`, else Hugging Face), and to no other host.
    Ends after `seconds`. With `vet` nobody is asked whom it does not allow, and no proxy. Raises Unreadable.
    """
    address = _checked(url)
    name = unquote(address.path.rpartition("/")[2])
    if not name or "/" in name:
        raise Unreadable("the address names no file")
    deadline = monotonic() + seconds
    plain, timeout = {"Accept-Encoding": "identity"}, min(SILENT_SECONDS, seconds)
    with httpx.Client(timeout=timeout, headers=plain, trust_env=vet is None) as client:

        def read(part: str) -> ReadFile:
            folder = address.path.rpartition("/")[0]
            where = address._replace(path=f"{folder}/{quote(part)}")
            return _RemoteFile(client, where, _token(where, environ), deadline, vet).read(part)

        return read_parts(name, read)


def only_public(environ: Mapping[str, str]) -> Vet:
    """Vets hosts for somebody who is not on this machine: none that has an address within it or its network, but for
    the hub that a person has named (`HF_ENDPOINT`)."""
    endpoint = environ.get("HF_ENDPOINT", "")

    def vet(address: SplitResult) -> str:
        named = bool(endpoint) and _origin(address) == _origin(_checked(endpoint))
        try:
            host, port = address.hostname or "", address.port or PORTS[address.scheme]
            if not named:
                place_of(urlunsplit(address), frozenset())
            found = [str(each[4][0]) for each in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]
        except Refused as error:
            raise Unreadable(f"the address is not asked: {error}") from None
        except (OSError, UnicodeError):
            found = []
        if not found or not (named or all(map(is_public, found))):
            raise Unreadable("the address is not asked: its host has no public address")
        return found[0]

    return vet


def _checked(url: str) -> SplitResult:
    """An address that may be asked. Raises Unreadable."""
    try:
        address = urlsplit(url)
        host, _ = address.hostname, address.port
    except ValueError as error:
        raise Unreadable(f"{url!r} is no address: {error}") from error
    if address.scheme not in ("http", "https"):
        raise Unreadable(f"{address.scheme or 'an address without a scheme'} is not supported (http and https are)")
    if not host:
        raise Unreadable(f"{url!r} names no host")
    if not url.isprintable() or " " in address.netloc:
        raise Unreadable(f"{url!r} is no address: it has a character that none can have")
    if address.username is not None or address.password is not None:
        raise Unreadable("an address with a name or a password in it is not taken")
    return address._replace(fragment="")


def _origin(address: SplitResult) -> tuple[str, str | None, int | None]:
    return address.scheme, address.hostname, address.port


def _token(address: SplitResult, environ: Mapping[str, str]) -> str | None:
    """The hub's token, if this is the hub: one that went to whatever host is named would soon be somebody else's."""
    token = environ.get("HF_TOKEN", "").strip()
    if not token:
        return None
    if not token.isascii() or not token.isprintable():
        raise Unreadable("HF_TOKEN has a character that no token has")
    at_hub = address.scheme == "https" and address.hostname in HUB_HOSTS
    if endpoint := environ.get("HF_ENDPOINT", ""):
        at_hub = at_hub or _origin(address) == _origin(_checked(endpoint))
    return token if at_hub else None


class _RemoteFile:
    """One file on a server: ranges of it, and that it stays the same between them."""

    def __init__(
        self, client: httpx.Client, address: SplitResult, token: str | None, deadline: float, vet: Vet | None
    ) -> None:
        self._client = client
        self._vet = vet
        self._address = address
        self._token = token
        self._deadline = deadline
        self._window_bytes = FIRST_WINDOW_BYTES
        self._version = ""
        self._file_bytes = 0
        self._modified = 0

    def read(self, name: str) -> ReadFile:
        """The file's header and identity."""
        head = self._fetch(0, FIRST_WINDOW_BYTES)

        def read_at(offset: int, least: int) -> bytes:
            if offset + least <= len(head):
                return head[offset:]
            self._window_bytes = min(4 * self._window_bytes, LARGEST_WINDOW_BYTES)
            return self._fetch(offset, max(least, self._window_bytes))

        try:
            header = scan_file(read_at, self._file_bytes)
        except HeaderError as error:
            raise Unreadable(str(error)) from error
        except NeedMore as more:
            raise Unreadable("the server gave less of the file than it has") from more
        identity = hashlib.blake2b(
            f"{self._file_bytes}:{self._version}:".encode() + head[:FINGERPRINT_BYTES], digest_size=16
        )
        return ReadFile(Path(name), self._file_bytes, self._modified * 10**9, identity.hexdigest(), header)

    def _fetch(self, start: int, length: int) -> bytes:
        """Bytes of the file from `start` on: as many as asked for, or to its end."""
        try:
            for _ in range(MAX_REDIRECTS + 1):
                self._refuse_lateness()
                headers = {"Range": f"bytes={start}-{start + length - 1}"}
                headers |= {"Authorization": f"Bearer {self._token}"} if self._token else {}
                with self._asked(headers) as response:
                    if response.status_code not in _REDIRECTS or "location" not in response.headers:
                        return self._body(response, start, length)
                    self._follow(response.headers["location"])
        except (httpx.InvalidURL, UnicodeError) as error:  # the latter of names that no host can have
            raise Unreadable(f"the address is not valid: {error}") from error
        except httpx.TimeoutException as error:
            raise Unreadable(f"{self._address.hostname} did not answer in time") from error
        except httpx.HTTPError as error:
            raise Unreadable(_explained(self._address.hostname, error)) from error
        raise Unreadable(f"the server sends from one address to another, more than {MAX_REDIRECTS} times")

    def _asked(self, headers: dict[str, str]) -> AbstractContextManager[httpx.Response]:
        """One request, at the host's vetted address where it is to be vetted, in the host's name."""
        url, extensions = httpx.URL(urlunsplit(self._address)), {}
        if self._vet is not None:
            headers = {**headers, "Host": self._address.netloc}
            extensions = {"sni_hostname": self._address.hostname or ""}
            url = url.copy_with(host=self._vet(self._address))
        return self._client.stream("GET", url, headers=headers, extensions=extensions)

    def _follow(self, location: str) -> None:
        target = _checked(urljoin(urlunsplit(self._address), location))
        if self._address.scheme == "https" and target.scheme != "https":
            raise Unreadable(f"the server sends from https to {target.scheme}, which is not followed")
        if _origin(target) != _origin(self._address):
            self._token = None  # for good: whoever is sent to has to do without, and whatever it sends back to as well
        self._address = target

    def _refuse_lateness(self) -> None:
        if monotonic() > self._deadline:
            raise Unreadable(f"{self._address.hostname} is too slow: the header did not come in time")

    def _body(self, response: httpx.Response, start: int, length: int) -> bytes:
        self._refuse_other_answers(response)
        said = response.headers.get("content-range", "")
        if not (found := _CONTENT_RANGE.fullmatch(said)):
            raise Unreadable(f"the server does not say which bytes it sends (Content-Range: {said!r})")
        first, last, total = map(int, found.groups())
        if (first, last) != (start, min(start + length, total) - 1):
            raise Unreadable(f"the server sends other bytes than asked for ({said} instead of {start} and {length} on)")
        self._remember(response, total)
        body = bytearray()
        for piece in response.iter_raw():
            body += piece
            if len(body) > last - first + 1:
                raise Unreadable(f"the server sends more bytes than it said ({said})")
            self._refuse_lateness()
        if len(body) < last - first + 1:
            raise Unreadable(f"the server broke off after {len(body)} of {last - first + 1} bytes")
        return bytes(body)

    def _refuse_other_answers(self, response: httpx.Response) -> None:
        """Raise for all but a part of a file as it is. The bodies of such answers are not read."""
        status = response.status_code
        if status == HTTPStatus.OK:
            if response.headers.get("content-type", "").startswith("text/html"):
                raise Unreadable("there is a web page, not a file (Hugging Face has files at /resolve/, not at /blob/)")
            raise Unreadable(
                "the server sends the whole file instead of a part of it, which is not waited for: download it"
            )
        if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
            also = "although HF_TOKEN was sent" if self._token else "HF_TOKEN is sent to the hub where it is set"
            raise Unreadable(f"the server gives the file to nobody without permission ({status}; {also})")
        if status in (HTTPStatus.NOT_FOUND, HTTPStatus.GONE):
            raise Unreadable("the server has no such file", missing=True)
        if status == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            raise Unreadable("the file is empty, or became shorter while it was read")
        if status != HTTPStatus.PARTIAL_CONTENT:
            raise Unreadable(f"the server answered {status} {response.reason_phrase}".rstrip())
        if (encoding := response.headers.get("content-encoding", "identity")) != "identity":
            raise Unreadable(f"the server sends the file encoded ({encoding}), not as it is")

    def _remember(self, response: httpx.Response, total: int) -> None:
        """Note which version of the file this is; it must be the one that was read before."""
        version = response.headers.get("etag", "") or response.headers.get("last-modified", "")
        if self._file_bytes and (total, version) != (self._file_bytes, self._version):
            raise Unreadable("the file changed on the server while it was read")
        self._file_bytes, self._version = total, version
        with suppress(ValueError, OverflowError):  # a date that is none says nothing
            self._modified = max(int(parsedate_to_datetime(response.headers.get("last-modified", "")).timestamp()), 0)


def _explained(host: str | None, error: httpx.HTTPError) -> str:
    """A sentence about a request that got no answer."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return f"{host} does not prove that it is {host}: {cause.verify_message}"
        if isinstance(cause, ssl.SSLError):
            return f"{host} speaks no TLS that is understood here: {cause.reason}"
        cause = cause.__cause__ or cause.__context__
    if isinstance(error, httpx.ConnectError):
        return f"{host} cannot be reached: {error}"
    return f"{host} broke off: {error}"
