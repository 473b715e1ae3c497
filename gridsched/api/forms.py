"""Where the parts of a multipart form lie in its bytes, and the form that goes up to the engine (H2). Pure.

Owns the check that a form is one that every parser reads alike: a boundary that is one, an end, no field of ours twice,
no field without a name. What only this server understands is cut out and `model` names the engine's model; every other
byte stays as it came, the upload and the boundary among them.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import msgspec
from python_multipart.multipart import parse_options_header

from gridsched.api.splice import OURS

FORM_TYPE: Final = "multipart/form-data"
MOST_PARTS: Final = 100
"""A real form has a dozen."""
LONGEST_HEAD_BYTES: Final = 8 * 1024
LONGEST_FIELD_BYTES: Final = 64 * 1024
"""Of a field that is no file: a prompt at the most."""
LONGEST_BOUNDARY: Final = 70  # RFC 2046, section 5.1.1
_CRLF, _HEAD_ENDS, _END = b"\r\n", b"\r\n\r\n", b"--"
_HEADER: Final = re.compile(rb"[\w!#$%&'*+.^`|~-]+:[^\x00-\x08\x0a-\x1f\x7f]*")
_KIND: Final = re.compile(rb"[ \t]*form-data[ \t]*", re.IGNORECASE)
_PARAMETER: Final = re.compile(rb"""[ \t]*;[ \t]*([\w*-]+)=("(?:[^"\\]|\\.)*"|[^\s";]+)[ \t]*""")
_PARAMETERS: Final = re.compile(
    rb"(?:%b)*+" % _PARAMETER.pattern
)  # possessive: blanks between two are of one in one way
_READ_AS_TEXT: Final = frozenset({"model", "x_class", "service_tier", "keep_alive"})
_READ_AS_JSON: Final = frozenset({"gridsched", "stream", "ttl"})
_BOUNDARY: Final = re.compile(rb"boundary[*0-9]*[ \t]*=", re.IGNORECASE)
_ONCE: Final = _READ_AS_TEXT | _READ_AS_JSON | {"file"}
_INNER: Final = re.compile(r"gridsched\[(.*)\]", re.DOTALL)
"""How SDKs write a member of an object in a form: a field for each, its text as it is."""


class BadForm(ValueError):
    """The bytes are not a form that can be passed on; the sentence says why. `field` is the one that is wrong, if it
    is one."""

    def __init__(self, sentence: str, field: str | None = None) -> None:
        super().__init__(sentence)
        self.field = field


@dataclass(frozen=True, slots=True)
class Part:
    """One field: where its delimiter begins, its value, and the byte after the value's line end."""

    name: str
    is_file: bool
    start: int
    value_start: int
    end: int

    @property
    def value_end(self) -> int:
        """The byte after its value."""
        return self.end - len(_CRLF)


@dataclass(frozen=True, slots=True)
class Form:
    """A form's parts in order; `content_type` is the client's own, which names the boundary."""

    content_type: bytes
    delimiter: bytes
    parts: tuple[Part, ...]

    def fields(self, body: bytes) -> dict[str, bytes]:
        """The fields that this server reads, each as JSON. Raises BadForm."""
        found = {}
        wishes = {}
        for part in self.parts:
            value = body[part.value_start : part.value_end]
            if part.name in _READ_AS_JSON:
                found[part.name] = _json(part.name, value)
            elif part.name in _READ_AS_TEXT:
                found[part.name] = _text(part.name, value)
            elif inner := _INNER.fullmatch(part.name):
                wishes[inner[1]] = _scalar(part.name, value)
        if not wishes:
            return found
        if "gridsched" in found:
            raise BadForm("gridsched is given twice: as one field, and member by member", "gridsched")
        return found | {"gridsched": msgspec.json.encode(wishes)}

    def upstream_body(self, body: bytes, model: str) -> bytes:
        """The client's form without our own fields, with the engine's name of the model."""
        head = b'%b\r\nContent-Disposition: form-data; name="model"\r\n\r\n' % self.delimiter
        named = any(part.name == "model" for part in self.parts)
        pieces = [] if named else [head, model.encode(), _CRLF]
        for part in self.parts:
            if part.name == "model":
                pieces += [body[part.start : part.value_start], model.encode(), _CRLF]
            elif not _is_ours(part.name):
                pieces.append(body[part.start : part.end])
        pieces.append(body[self.parts[-1].end :])
        return b"".join(pieces)


def read_form(content_type: bytes, body: bytes) -> Form:
    """Find the parts. Raises BadForm."""
    delimiter = _delimiter(content_type)
    if not body.startswith(delimiter):
        raise BadForm("the form does not begin with its boundary")
    parts: list[Part] = []
    seen: set[str] = set()
    position = 0
    while not body.startswith(_END, position + len(delimiter)):
        if len(parts) == MOST_PARTS:
            raise BadForm(f"the form has more than {MOST_PARTS} fields")
        part = _part(body, position, delimiter)
        if part.name in seen and (part.name in _ONCE or _is_ours(part.name)):
            raise BadForm(f"the field {part.name!r} is given twice", part.name)
        seen.add(part.name)
        parts.append(part)
        position = part.end
    if not parts:
        raise BadForm("the form has no fields")
    return Form(content_type, delimiter, tuple(parts))


def _is_ours(name: str) -> bool:
    """Whether only this server understands a field."""
    return name in OURS or _INNER.fullmatch(name) is not None


def _text(name: str, value: bytes) -> bytes:
    """A field's value where it is text, as JSON. Raises BadForm."""
    try:
        return msgspec.json.encode(value.decode())
    except UnicodeDecodeError:
        raise BadForm(f"{name} is not UTF-8", name) from None


def _scalar(name: str, value: bytes) -> msgspec.Raw:
    """A member's value, as JSON: a number or a word of JSON where it reads as one, else text. Raises BadForm."""
    try:
        msgspec.json.decode(value, type=float | bool | None)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return msgspec.Raw(_text(name, value))
    return msgspec.Raw(value)


def _json(name: str, value: bytes) -> bytes:
    """A field's value where it is JSON. Raises BadForm."""
    try:
        msgspec.json.decode(value)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise BadForm(f"{name} is not valid JSON", name) from None
    return value.strip()


def _delimiter(content_type: bytes) -> bytes:
    """What stands before each part. Raises BadForm."""
    boundary = parse_options_header(content_type)[1].get(b"boundary", b"")
    printable = boundary.isascii() and boundary.decode("latin-1").isprintable()
    once = len(_BOUNDARY.findall(content_type)) == 1  # of two an engine may take the other
    if not once or not printable or not 0 < len(boundary) <= LONGEST_BOUNDARY:
        raise BadForm("the content type names no boundary that could be one")
    return b"--" + boundary


def _part(body: bytes, start: int, delimiter: bytes) -> Part:
    """The part whose delimiter begins here. Raises BadForm."""
    head_start = start + len(delimiter) + len(_CRLF)
    if body[start + len(delimiter) : head_start] != _CRLF:
        raise BadForm("the boundary stands inside of a field, or without a line end")
    head_end = body.find(_HEAD_ENDS, head_start, head_start + LONGEST_HEAD_BYTES)
    if head_end < 0:
        raise BadForm("the head of a field has no end, or is too long")
    name, is_file = _disposition(body[head_start:head_end])
    value_start = head_end + len(_HEAD_ENDS)
    end = body.find(delimiter, value_start)
    if end < 0:
        raise BadForm("the form has no end: its last boundary is missing")
    value_end = end - len(_CRLF)
    if value_end < value_start or body[value_end:end] != _CRLF:
        raise BadForm("the boundary stands inside of a field")
    if not is_file and value_end - value_start > LONGEST_FIELD_BYTES:
        raise BadForm(f"the field {name!r} is longer than {LONGEST_FIELD_BYTES} bytes", name)
    return Part(name, is_file, start, value_start, end)


def _disposition(head: bytes) -> tuple[str, bool]:
    """A field's name, and whether it is a file. Raises BadForm."""
    lines = [line.partition(b":") for line in head.split(_CRLF) if _HEADER.fullmatch(line)]
    said = [value for key, _, value in lines if key.lower() == b"content-disposition"]
    if len(lines) != head.count(_CRLF) + 1 or len(said) != 1:
        raise BadForm("the head of a field is damaged")
    kind = _KIND.match(said[0])
    if kind is None or not _PARAMETERS.fullmatch(said[0], kind.end()):
        raise BadForm("the head of a field is damaged")
    parameters = [(each[1].lower(), each[2]) for each in _PARAMETER.finditer(said[0], kind.end())]
    keys = [key for key, _ in parameters]
    if len(keys) != len(set(keys)):
        raise BadForm("the head of a field is damaged")
    name = dict(parameters).get(b"name", b"").removeprefix(b'"').removesuffix(b'"')
    if not name or b"\\" in name:
        raise BadForm("a field has no name")
    return name.decode("utf-8", "replace"), b"filename" in keys or b"filename*" in keys


def is_form(headers: Mapping[bytes, bytes]) -> bool:
    """Whether a body says that it is a form."""
    kind = headers.get(b"content-type", b"").partition(b";")[0]
    return kind.strip().lower() == FORM_TYPE.encode()
