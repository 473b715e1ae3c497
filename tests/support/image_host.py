"""A host of images inside a test, on loopback, in the clear or under TLS: it answers byte by byte as it is told.

Server and client share one trio loop, so a jumping clock is safe.
"""

import datetime as dt
import ssl
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory

import trio
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

PNG = b"\x89PNG\r\n\x1a\n" + b"a picture" * 5
JPEG = b"\xff\xd8\xff\xe0" + b"a photograph" * 5

Part = bytes | float
"""Of an answer: bytes, or seconds of silence."""


def answer(body: bytes, kind: str = "image/png", status: int = 200, **headers: str) -> list[Part]:
    """A whole one; `headers` are put over its own, `_` standing for `-`."""
    named = {"Content-Type": kind, "Content-Length": str(len(body))}
    named |= {name.replace("_", "-"): value for name, value in headers.items()}
    lines = [f"HTTP/1.1 {status} X", *(f"{name}: {value}" for name, value in named.items()), "", ""]
    return ["\r\n".join(lines).encode() + body]


def redirect(target: str) -> list[Part]:
    """To somewhere else."""
    return answer(b"", status=302, Location=target)


@dataclass
class ImageHost:
    """One host. `asked` are the targets and `Host` headers that it was sent, `headers` those of the last request."""

    port: int
    answers: dict[str, Sequence[Part]] = field(default_factory=dict)
    asked: list[tuple[str, str]] = field(default_factory=list)
    headers: Mapping[str, str] = field(default_factory=dict)
    was_asked: trio.Event = field(default_factory=trio.Event)
    open_now: int = 0
    most_open: int = 0

    async def serve(self, stream: trio.abc.Stream) -> None:
        """One request."""
        self.open_now += 1
        self.most_open = max(self.most_open, self.open_now)
        try:
            async with stream:
                head = b""
                while b"\r\n\r\n" not in head:
                    more = await stream.receive_some()
                    if not more:
                        return
                    head += more
                request, *lines = head.decode().split("\r\n")
                self.headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
                target = request.split(" ")[1]
                self.asked.append((target, self.headers["host"]))
                self.was_asked.set()
                for part in self.answers.get(target, answer(b"no", "text/plain", 404)):
                    if isinstance(part, bytes):
                        await stream.send_all(part)
                    else:
                        await trio.sleep(part)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass  # its client has left
        finally:
            self.open_now -= 1


@asynccontextmanager
async def image_host(tls: ssl.SSLContext | None = None) -> AsyncIterator[ImageHost]:
    """One for the length of a block."""
    async with trio.open_nursery() as nursery:
        serve = partial(trio.serve_ssl_over_tcp, ssl_context=tls) if tls else trio.serve_tcp
        host = ImageHost(0)
        listeners = await nursery.start(partial(serve, host.serve, 0, host="127.0.0.1"))
        inner = listeners[0].transport_listener if tls else listeners[0]
        host.port = inner.socket.getsockname()[1]
        yield host
        nursery.cancel_scope.cancel()


@cache
def tls_pair(name: str) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """A host's side, with a certificate for `name`, and the side of a client that trusts no other."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    begin = dt.datetime.now(dt.UTC) - dt.timedelta(days=1)
    certificate = (
        x509.CertificateBuilder(subject, subject, key.public_key(), x509.random_serial_number())
        .not_valid_before(begin)
        .not_valid_after(begin + dt.timedelta(days=3))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    public = certificate.public_bytes(serialization.Encoding.PEM)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "pair.pem"
        form = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        path.write_bytes(key.private_bytes(serialization.Encoding.PEM, *form) + public)
        server.load_cert_chain(path)
    return server, ssl.create_default_context(cadata=public.decode())
