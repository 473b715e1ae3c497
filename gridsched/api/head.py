"""The head of a plain request, read strictly: one of the data plane's routes, asked in the one way in which nearly
every client asks. Pure.

Owns what counts as plain. It is no parser of HTTP and must never become one: whatever is not exactly of this form is
`ODD` and goes to h11 as it came, which reads it or refuses it. What is taken here h11 reads alike: the same headers,
the same length. Anything in which two readers could see two requests is therefore odd: two lengths, a length that is
not plain digits, any transfer coding, lines that end or go on otherwise, control characters, a host twice.
"""

import re
from collections.abc import Mapping
from enum import Enum
from typing import Final, NamedTuple

from gridsched.api.routes import ROUTES

LONGEST_PLAIN_HEAD_BYTES: Final = 16 * 1024
_END: Final = b"\r\n\r\n"


class Told(Enum):
    """What else the first bytes of a connection can be."""

    MORE = "more is needed to tell"
    ODD = "not for us"


class Head(NamedTuple):
    """A plain request. `headers` are as `exchange.joined` makes them, `length_bytes` are its body's, which begins at
    `end`."""

    path: str
    headers: dict[bytes, bytes]
    length_bytes: int
    end: int


_LINES: Final = {b"POST %b HTTP/1.1" % path.encode(): path for path in ROUTES}
_BEGINNINGS: Final = tuple(line + b"\r\n" for line in _LINES)
_LONGEST_LINE: Final = max(map(len, _BEGINNINGS))
_HEADERS = re.compile(rb"(?:[!#$%&'*+\-.^_`|~0-9A-Za-z]++:[\t -~\x80-\xff]*+\r\n)++\r\n")
"""No byte of a head can be matched in two ways, and none is tried twice: a head that is spoilt at its end would else
be gone through again for each way."""

_LENGTH = re.compile(rb"[1-9][0-9]{0,11}")
_ODD_NAMES: Final = frozenset((b"transfer-encoding", b"expect", b"upgrade", b"te", b"trailer", b"http2-settings"))
_ONCE: Final = frozenset((b"content-length", b"host", b"connection"))


def read_head(data: bytes) -> Head | Told:
    """What the first bytes of a request are, as many as have come."""
    size = data.find(_END, 0, LONGEST_PLAIN_HEAD_BYTES)
    if size < 0:
        return Told.MORE if _may_become_plain(data) else Told.ODD
    line = data.find(b"\r\n")
    path = _LINES.get(data[:line])
    if path is None or _HEADERS.fullmatch(data, line + 2, size + 4) is None:
        return Told.ODD
    headers: dict[bytes, bytes] = {}
    for each in data[line + 2 : size].split(b"\r\n"):
        name, _, value = each.partition(b":")
        name, value = name.lower(), value.strip(b" \t")
        if name in headers:
            if name in _ONCE:
                return Told.ODD
            value = headers[name] + b", " + value
        headers[name] = value
    if not _is_plain(headers):
        return Told.ODD
    return Head(path, headers, int(headers[b"content-length"]), size + len(_END))


def _is_plain(headers: Mapping[bytes, bytes]) -> bool:
    """Whether they ask for nothing but an answer, and say once how long the body is."""
    if not _ODD_NAMES.isdisjoint(headers) or b"host" not in headers:
        return False
    if headers.get(b"connection", b"keep-alive").lower() != b"keep-alive":
        return False
    return _LENGTH.fullmatch(headers.get(b"content-length", b"")) is not None


def _may_become_plain(data: bytes) -> bool:
    """Whether a head that has not ended may still be one. A line end of one byte is odd at once: h11 may take it for
    the end of the head, and would answer."""
    if len(data) >= LONGEST_PLAIN_HEAD_BYTES or data.count(b"\n") != data.count(b"\r\n"):
        return False
    line = data[:_LONGEST_LINE]
    return any(each.startswith(line) or line.startswith(each) for each in _BEGINNINGS)
