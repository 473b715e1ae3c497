"""What a body says of itself in its headers, before anybody reads it (H1). Pure.

Owns the refusals of a body whose length nobody has said, that is compressed, or that is text of another encoding than
JSON's. What kind of JSON a client calls it is not judged: `curl -d` calls every body a form. Must never look into one.
"""

import re
from collections.abc import Mapping
from typing import Final

from gridsched.control.problems import LONGEST_SAID_NAME, Problem, RequestError

_CHARSETS: Final = frozenset({"utf-8", "utf8", "us-ascii", "ascii"})
_CHARSET = re.compile(r';[ \t]*charset[ \t]*=[ \t]*"?([^";,]*)', re.IGNORECASE)


def check_said(headers: Mapping[bytes, bytes], body: bytes, *, form: bool) -> None:
    """Raises RequestError where there is no body and no word of one (411), or it is not what can be read (415)."""
    if not body and not headers.keys() & {b"content-length", b"transfer-encoding"}:
        message = "a body is needed, with Content-Length or Transfer-Encoding: chunked"
        raise RequestError(Problem("length_required", message))
    if headers.get(b"content-encoding", b"").strip().lower() not in {b"", b"identity"}:
        raise _refusal("a body that is compressed is not understood; send it as it is")
    if not form:
        _check_json(headers.get(b"content-type", b"").decode("latin-1"))


def _check_json(told: str) -> None:
    if told.strip().lower().startswith("multipart/"):
        raise _refusal(f"this takes JSON, not {told[:LONGEST_SAID_NAME]!r}")
    charset = _CHARSET.search(told)
    if charset is not None and charset[1].strip().lower() not in _CHARSETS:
        raise _refusal(f"JSON is UTF-8, not {charset[1][:LONGEST_SAID_NAME]!r}")


def _refusal(message: str) -> RequestError:
    return RequestError(Problem("unsupported_media_type", message))
