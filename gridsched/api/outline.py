"""A large body without the data in it: what is left is all that anybody here looks at. Pure.

Owns which texts are cut short (`data:…`, and the values of keys called `data`), and that nothing can be told from what
is cut: it is plain characters, and none that JSON, or a reader of URLs, gives a meaning. Whatever is not surely so is
left in, and a body that has anything wrong with it is read whole, so that it is refused in the same words. Must never
be what goes up to an engine.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from gridsched.api.members import BadBody, Member, members

LEAST_BODY_BYTES = 64 * 1024
"""A shorter body is read whole sooner than it is cut."""
LEAST_CUT_BYTES = 16 * 1024
KEPT_BYTES = 64
"""Of each cut text: its beginning says what it is."""
MOST_CUTS = 1000
"""More pictures than any request has; the search for them is ours."""
WINDOW_BYTES = 64 * 1024
"""So much is checked in one call: it stays in the processor's own memory, and other threads have their turn between."""

_DATA = re.compile(rb'"data(?:"[ \t\r\n]*+:[ \t\r\n]*+"|:)')
_IS_KEY = re.compile(rb"[ \t\r\n]*+:")
_MEANT = (b"\\", b":", b"[", b"{")
_text = msgspec.json.Decoder(str)


class Outline(NamedTuple):
    """A body with its data cut short, or the body itself; `members` are the spans in `text`."""

    text: bytes
    members: tuple[Member, ...]

    def value(self, key: str) -> bytes:
        """A member's value, `null` where there is none."""
        found = next((member for member in self.members if member.key == key), None)
        return b"null" if found is None else self.text[found.value_start : found.end]


def read(body: bytes) -> tuple[tuple[Member, ...], Outline]:
    """As `members`, and the body's outline. Raises BadBody."""
    if cuts := tuple(_cuts(body)):
        view = memoryview(body)
        ends = (0, *(end for _, end in cuts)), (*(start for start, _ in cuts), len(body))
        text = b"".join(view[start:end] for start, end in zip(*ends, strict=True))
        try:
            found = members(text)
            for start, end in cuts:
                _check(view[start:end])
        except (BadBody, msgspec.DecodeError, UnicodeDecodeError):
            pass  # in the whole body the same is wrong, and its words say where
        else:
            return tuple(_placed(found, cuts)), Outline(text, found)
    found = members(body)
    return found, Outline(body, found)


def _cuts(body: bytes) -> Iterator[tuple[int, int]]:
    """Where the long middles of texts are that hold data, if this is JSON.

    A quote in front of `data` that no backslash hides begins a text: JSON has nothing but space, a comma, a colon or a
    bracket behind one that ends a text. So what lies behind it up to the next quote is inside of a text.
    """
    if len(body) < LEAST_BODY_BYTES:
        return
    position = 0
    for _ in range(MOST_CUTS):
        at = body.find(b'"data', position)
        if at < 0:
            return
        position = at + 1
        said = _DATA.match(body, at)
        if said is None or body[at - 1 : at] == b"\\":
            continue
        start = said.end() + KEPT_BYTES
        end = body.find(b'"', said.end())
        is_plain = end - start >= LEAST_CUT_BYTES and all(body.find(byte, start, end) < 0 for byte in _MEANT)
        if is_plain and _IS_KEY.match(body, end + 1) is None:
            yield start, end
            position = end


def _check(data: memoryview) -> None:
    """Raises what msgspec raises where a text could not hold these bytes, and UnicodeDecodeError where they are more
    than ASCII: then a cut may go through a character."""
    for start in range(0, len(data), WINDOW_BYTES):
        window = bytes(data[start : start + WINDOW_BYTES])
        if not window.isascii():
            window.decode("ascii")
        _text.decode(b'"%b"' % window)


def _placed(found: tuple[Member, ...], cuts: tuple[tuple[int, int], ...]) -> Iterator[Member]:
    """The members where they are in the body. A cut is inside of a value, so it moves that value's end and all behind.
    Both are in order."""
    missing, at = 0, 0
    for member in found:
        start, value_start = member.start + missing, member.value_start + missing
        while at < len(cuts) and cuts[at][0] < member.end + missing:
            missing += cuts[at][1] - cuts[at][0]
            at += 1
        yield Member(member.key, start, value_start, member.end + missing)
