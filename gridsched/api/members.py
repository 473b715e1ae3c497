"""Where the members of a JSON object lie in its bytes. Pure.

Owns the check that a body is JSON that every parser reads alike (no NaN, no number out of range, no lone surrogate, no
byte that is not UTF-8, no endless nesting, no key twice), and the spans of the top-level members, or of an array's
values. Both are done by msgspec's C code; only the walk over one level is ours. Must never re-serialise anything, and
never build the values of a body that has very many: a few megabytes of `{}` would take seconds, in which nothing else
runs, and a gigabyte.
"""

import codecs
import math
import re
from collections.abc import Iterator
from functools import cache
from typing import Any

import msgspec

from gridsched.core.record import record

MOST_MEMBERS = 1000
"""A real request has a few dozen; the walk over them is ours and must not hold anybody up."""
MOST_BRACKETS = 1_000_000
"""Objects and arrays, also those that stand in texts: whole books of code have fewer."""
MOST_ITEMS = 10_000
"""Values of a list of messages, parts, prompts or inputs. Lists that nobody looks at may be as long as they like."""
MOST_BUILT = 100_000
"""Values that are built to be looked at: some ten milliseconds. A body that may have more is checked without that."""

WINDOW_BYTES = 256 * 1024
"""What is looked at in one go of those: some milliseconds, between which other threads may run."""

BOM = b"\xef\xbb\xbf"
_SPACE = re.compile(rb"[ \t\n\r]*")
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"')  # possessive: nothing is kept for a way back
SAMPLED, _DIGITS = 31, re.compile(rb"[0-9]{9}")
"""A number of 309 digits shows in every 31st byte as nine of them; few other bodies have that, and looking is cheap."""

_NUMBER = re.compile(rb"(?<![0-9.eE+-])-?([0-9](?:[0-9.]{199,}+(?:[eE]\+?[0-9]+)?|[0-9.]*+[eE]\+?[0-9]{3,}))")
"""A number that may be out of range: it is long, or its exponent is."""

_strict = msgspec.json.Decoder()
_list = msgspec.json.Decoder(list[msgspec.Raw])
_key = msgspec.json.Decoder(str)


class BadBody(ValueError):
    """The bytes are not a JSON object that can be passed on; the sentence says why."""


class _Key(str):
    """A key of an object, counted when it is made."""

    __slots__ = ()


_ByKey = dict[str, msgspec.Raw]
_OBJECT: Any = dict[_Key, msgspec.Raw]
_object = msgspec.json.Decoder(_ByKey)


class _TooManyKeys(Exception):
    """More than `MOST_MEMBERS`."""


@record
class Member:
    """One top-level member: its key's first byte, its value's first byte, and the byte after its value."""

    key: str
    start: int
    value_start: int
    end: int


def members(body: bytes) -> tuple[Member, ...]:
    """The top-level members in order. Raises BadBody."""
    return _walked(body, _values(body))


def inner_members(value: bytes) -> tuple[Member, ...]:
    """Those of an object within a body that has been checked. Raises BadBody."""
    return _walked(value, _by_key(value))


def _by_key(body: bytes) -> _ByKey:
    """The value of each key as bytes, the last of one that is given twice. Raises BadBody as soon as there are too many
    keys, and what msgspec raises."""
    if body.count(b":") <= MOST_MEMBERS:  # there cannot be more: nobody need count them
        return _object.decode(body)
    count = 0

    def made(kind: type[_Key], text: str) -> _Key:
        nonlocal count
        count += 1
        if count > MOST_MEMBERS:
            raise _TooManyKeys
        return kind(text)

    try:
        found: _ByKey = msgspec.json.decode(body, type=_OBJECT, dec_hook=made)
    except _TooManyKeys:
        raise BadBody(f"the body has more than {MOST_MEMBERS} keys at one level") from None
    return found


def _walked(body: bytes, values: _ByKey) -> tuple[Member, ...]:
    found: list[Member] = []
    seen: set[str] = set()
    position = _skip(body, _skip(body, 0) + 1)  # past the opening brace
    while body[position : position + 1] != b"}":
        member = _member(body, position, values)
        if member.key in seen:
            raise BadBody(f"the key {member.key!r} is given twice")
        seen.add(member.key)
        found.append(member)
        position = _skip(body, member.end)
        if body[position : position + 1] == b",":
            position = _skip(body, position + 1)
        elif body[position : position + 1] != b"}":
            raise BadBody(f"the key {member.key!r} is given twice")
    return tuple(found)


def elements(array: bytes) -> tuple[tuple[int, int], ...]:
    """Where the values of a JSON array lie in it: their first bytes, and the bytes after them."""
    found: list[tuple[int, int]] = []
    position = _skip(array, 1)  # past the opening bracket
    for value in items(array):
        end = position + memoryview(value).nbytes
        found.append((position, end))
        position = _skip(array, _skip(array, end) + 1)  # past the comma
    return tuple(found)


@cache
def _few() -> msgspec.json.Decoder[object]:
    """Ends at the first value too many, where a list would be built whole and then counted. Made for the first list
    that may have so many: it takes tens of milliseconds and some MiB, and hardly any server meets one."""
    fields = [(f"item_{at}", msgspec.Raw, msgspec.Raw(b"")) for at in range(MOST_ITEMS)]
    return msgspec.json.Decoder(msgspec.defstruct("Few", fields, array_like=True, forbid_unknown_fields=True, gc=False))


def items(array: bytes | msgspec.Raw) -> list[msgspec.Raw]:
    """The values of a JSON array, as bytes. Raises BadBody where they are more than anybody means."""
    if bytes(array).count(b",") >= MOST_ITEMS:
        try:
            _few().decode(array)
        except msgspec.ValidationError:
            raise BadBody(f"a list has more than {MOST_ITEMS} values, the most that are looked at") from None
    return _list.decode(array)


def _values(body: bytes) -> _ByKey:
    """As `_by_key`, of a body that is checked. Raises BadBody."""
    if not body.strip():
        raise BadBody("the body is empty")
    if body.startswith(BOM):
        raise BadBody("the body begins with a byte order mark, which JSON does not allow")
    try:
        if not (_may_have_many_values(body) or _may_have_a_long_number(body)):
            _strict.decode(body)
            return _by_key(body)
        _check_text(body)
        _check_numbers(body)
        return _by_key(body)  # which checks all else
    except RecursionError:
        raise BadBody("the body is nested too deeply") from None
    except msgspec.ValidationError as error:
        sentence = "the body is not a JSON object" if "Expected `object`" in str(error) else f"the body: {error}"
        raise BadBody(sentence) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadBody(f"the body is not valid JSON: {error}") from None


def _may_have_many_values(body: bytes) -> bool:
    """Whether it has many commas and brackets; it does not matter that some are in texts. Raises BadBody."""
    brackets = body.count(b"{") + body.count(b"[")
    if brackets > MOST_BRACKETS:
        raise BadBody(f"the body has more than {MOST_BRACKETS} brackets")
    return body.count(b",") + brackets > MOST_BUILT


def _may_have_a_long_number(body: bytes) -> bool:
    """Whether it may have an integer beyond any float: we could build one, engines cannot."""
    return _DIGITS.search(body[::SAMPLED]) is not None


def _windows(body: bytes) -> Iterator[tuple[int, int]]:
    """The body in pieces that cut no number: each but the last ends with a comma."""
    start = 0
    while start < len(body):
        comma = body.find(b",", start + WINDOW_BYTES)
        end = comma + 1 if comma >= 0 else len(body)
        yield start, end
        start = end


def _check_text(body: bytes) -> None:
    """Raises UnicodeDecodeError where it is not UTF-8."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    for start, end in _windows(body):
        decoder.decode(body[start:end], final=end == len(body))


def _check_numbers(body: bytes) -> None:
    """Raises BadBody where one is out of range; what looks like one in a text is none."""
    inside, position = False, 0
    for start, end in _windows(body):
        for found in _NUMBER.finditer(body, start, end):
            if not _is_out_of_range(found[1]):
                continue
            inside ^= _quotes(body[position : found.start()]) % 2 == 1
            position = found.start()
            if not inside:
                raise BadBody("the body is not valid JSON: a number is out of range")


def _is_out_of_range(digits: bytes) -> bool:
    """Whether no float holds it; a row of digits and dots that is no number is in a text, or refused elsewhere."""
    try:
        return not math.isfinite(float(digits))
    except ValueError:
        return False


def _quotes(piece: bytes) -> int:
    """How often a text begins or ends in a piece that does not begin behind a backslash."""
    return piece.replace(b"\\\\", b"").replace(b'\\"', b"").count(b'"')


def _member(body: bytes, position: int, values: _ByKey) -> Member:
    """The member whose key begins here. A value that is not the one expected belongs to a key that is given twice."""
    name = _STRING.match(body, position)
    if name is None:
        raise BadBody(f"a key was expected at byte {position}")
    said = name[0]
    key = _key.decode(said) if b"\\" in said else said[1:-1].decode()
    value_start = _skip(body, _skip(body, name.end()) + 1)  # past the colon
    value = bytes(values[key])
    if not body.startswith(value, value_start):
        raise BadBody(f"the key {key!r} is given twice")
    return Member(key, position, value_start, value_start + len(value))


def _skip(body: bytes, position: int) -> int:
    """The first byte from here that is not white space."""
    if body[position : position + 1] > b" ":
        return position
    space = _SPACE.match(body, position)
    return position if space is None else space.end()
