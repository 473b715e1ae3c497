"""TLS for clients of other machines: the server's certificate and key, and the beginning of a connection.

Owns the context, which is made anew when the files are others: a renewed certificate is served without a restart. What
does not leave the machine needs none, so whoever connects from here may speak plain HTTP on the same port; the commands
and the watchdog do, and no certificate of this machine would name its loopback address.
"""

import logging
import ssl
import stat
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import trio

from gridsched.api.transport import Transport
from gridsched.control.problems import Problem

log = logging.getLogger(__name__)

HANDSHAKE_SECONDS = 10.0
"""How long a client may take to agree on a cipher, from its first byte on."""

LAST_WORD_SECONDS = 1.0

SOON_SECONDS = 14 * 86400.0
"""How long before its end a certificate is spoken of."""

_WHENEVER = 0x200000  # X509_V_FLAG_NO_CHECK_TIME, for which `ssl` has no name
_HANDSHAKE = b"\x16"
"""The first byte of every TLS connection; no HTTP request begins with it."""

_STAMP = tuple[int, int, int]


class CannotSpeakTls(Exception):
    """The certificate or its key cannot be used; one sentence."""


class Certificate:
    """A server's certificate chain and its key, which may be in one file."""

    def __init__(self, certificate: Path, key: Path | None = None, now: Callable[[], float] = time.time) -> None:
        """Raises CannotSpeakTls."""
        self._files = (certificate, key or certificate)
        self._now = now
        self._ends_at: float | None = None
        self._stamps = self._stamped()
        self._context = self._made()
        self._say_when_it_ends()

    def context(self) -> ssl.SSLContext:
        """For the next connection. Files that cannot be used leave it as it was, and are said once."""
        with suppress(CannotSpeakTls):
            stamps = self._stamped()
            if stamps != self._stamps:
                self._stamps = stamps
                try:
                    self._context = self._made()
                except CannotSpeakTls as error:
                    log.warning("the certificate stays as it was: %s", error)
        self._say_when_it_ends()
        return self._context

    def _say_when_it_ends(self) -> None:
        """Once, some time before clients no longer believe it."""
        left = None if self._ends_at is None else self._ends_at - self._now()
        if left is not None and left < SOON_SECONDS:
            self._ends_at = None
            when = "is no longer valid" if left <= 0 else f"is valid for {max(1, round(left / 3600))} h more"
            log.warning(
                "the certificate %s %s: renew it; the new file is taken without a restart", self._files[0], when
            )

    def _stamped(self) -> tuple[_STAMP, ...]:
        """What tells these files from others."""
        stamps = []
        for path in self._files:
            try:
                told = path.stat()
            except OSError as error:
                raise CannotSpeakTls(f"{path} cannot be read: {error.strerror}") from None
            stamps.append((told.st_ino, told.st_size, told.st_mtime_ns))
        return tuple(stamps)

    def _made(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        certificate, key = self._files
        try:
            context.load_cert_chain(certificate, key, password=_no_password)
        except ssl.SSLError as error:
            reason = (error.reason or "not PEM").replace("_", " ").lower()
            raise CannotSpeakTls(f"{certificate} and {key} are no certificate with its key: {reason}") from None
        except OSError as error:
            raise CannotSpeakTls(f"{certificate} or {key} cannot be read: {error.strerror}") from None
        self._ends_at = _end_of(context, certificate)
        if key.stat().st_mode & stat.S_IROTH:
            log.warning("everybody on this machine may read the key %s: chmod o-r %s", key, key)
        return context


def _end_of(context: ssl.SSLContext, certificate: Path) -> float | None:
    """Until when a certificate is valid; None where nobody knows. What it says is read as a client that trusts it
    reads it: the two agree in memory."""
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN | _WHENEVER
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    try:
        client.load_verify_locations(certificate)
        asking = client.wrap_bio(to_client, to_server)
        answering = context.wrap_bio(to_server, to_client, server_side=True)
        for side in (asking, answering, asking):
            with suppress(ssl.SSLWantReadError):
                side.do_handshake()
        told = asking.getpeercert() or {}
        return float(ssl.cert_time_to_seconds(str(told["notAfter"])))
    except (OSError, ValueError, KeyError):
        return None


def _no_password() -> str:
    raise CannotSpeakTls("the key is locked with a password, and nobody is there to say it; store it without one")


async def agreed(transport: Transport, certificate: Certificate, *, here: bool) -> trio.abc.Stream | None:
    """What is spoken over: TLS, or as it is with who is on this machine (`here`); None for who speaks neither, and was
    told.

    Raises OSError and trio's errors of a connection that breaks.
    """
    if await transport.first_byte() != _HANDSHAKE:
        if here:
            return transport
        await _say_that_it_is_tls(transport)
        return None
    stream = trio.SSLStream(transport, certificate.context(), server_side=True, https_compatible=True)
    with trio.move_on_after(HANDSHAKE_SECONDS):
        await stream.do_handshake()
        return stream
    return None


async def _say_that_it_is_tls(transport: Transport) -> None:
    problem = Problem("invalid_request", "this port speaks TLS: use https:// in the address")
    body = problem.body()
    head = [b"HTTP/1.1 400 Bad Request", b"connection: close", b"content-length: %d" % len(body)]
    head += [b"%s: %s" % header for header in problem.head()]
    await transport.send_all(b"\r\n".join(head) + b"\r\n\r\n" + body)
    with trio.move_on_after(LAST_WORD_SECONDS):  # what is left unread would have the answer thrown away
        await transport.send_eof()
        while await transport.receive_some(65536):
            pass
