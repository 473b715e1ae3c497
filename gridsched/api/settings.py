"""The figures of the front. Owns no behaviour."""

from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network

from gridsched.api.tls import Certificate
from gridsched.daytime import Window

MIB = 1024 * 1024
LARGE_BODY_BYTES = MIB // 4
"""What is done with as much of a body, or more, is done beside the loop."""


@dataclass(frozen=True, slots=True)
class BatchFigures:
    """Of files and batches. `in_flight` are the lines of one batch that are asked for at once, `window` is when the
    lines of a batch that names none may begin."""

    in_flight: int = 4
    window: Window | None = None
    max_file_bytes: int = 200 * MIB
    keep_seconds: float = 30 * 86400.0
    tidy_seconds: float = 3600.0


@dataclass(frozen=True, slots=True)
class FrontSettings:
    """Seconds and bytes. `host` is what the server listens on: on loopback, other hosts' names are foreign (H6)."""

    host: str = "127.0.0.1"
    names: frozenset[str] = frozenset()  # of this machine, in lower case
    cors_origins: frozenset[str] = frozenset()  # pages from elsewhere that may use the server
    trusted_proxies: tuple[IPv4Network | IPv6Network, ...] = ()  # they alone may say who called (H6)
    max_body_bytes: int = 64 * MIB
    embedding_chunk: int = 32  # S3
    stall_seconds: float = 600.0  # S9; a plain answer is silent until it is whole, so this bounds a whole generation
    hold_seconds: float = 5.0  # H3
    comments: bool = True  # H3; for who does not say it with a header
    comment_seconds: float = 5.0  # H3
    graceful_seconds: float = 1.0  # what open answers get after the drain's own limit (P8)
    most_connections: int = 1024  # further clients are told to come back; each may take two descriptors
    upload_stall_seconds: float = 60.0  # a slow upload is fine, one that has stopped is not
    write_stall_seconds: float = 120.0  # so is a slow reader, as long as it reads
    keep_alive_seconds: float = 75.0  # longer than the pools of common clients, so that they close first
    fetches_images: bool = True  # what requests name by URL, and within these limits
    image_max_bytes: int = 20 * MIB
    image_seconds: float = 10.0  # for all of one request's
    image_hosts: frozenset[str] = frozenset()  # host:port; asked wherever they are
    certificate: Certificate | None = None  # TLS, where there is one
    batches: BatchFigures = BatchFigures()
