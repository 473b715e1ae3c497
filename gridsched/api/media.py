"""What a request brings beside text, found in the parts of its messages. Pure.

Every model is asked whether it takes it, and of a family only the variants that do can be meant (R10).
"""

from collections.abc import Iterator, Mapping
from typing import Final

import msgspec

from gridsched.api.decode import InferenceRequest
from gridsched.core.job import NO_MEDIA, JobKind, Medium

_CHAT: Final[Mapping[str, Medium]] = {
    "image_url": Medium.IMAGE,
    "input_audio": Medium.AUDIO,
    "input_video": Medium.IMAGE,  # a film is looked at picture by picture
}
_RESPONSES: Final[Mapping[str, Medium]] = {
    "input_image": Medium.IMAGE,
    "input_audio": Medium.AUDIO,
    "input_file": Medium.IMAGE,  # the pages of a file are looked at, if anything is done with them
}
_MESSAGES: Final[Mapping[str, Medium]] = {
    "image": Medium.IMAGE,
    "document": Medium.IMAGE,  # as `input_file`; without this the engine answers as if it had not been sent
}
_PARTS: Final[Mapping[JobKind, tuple[str, Mapping[str, Medium]]]] = {
    JobKind.CHAT: ("messages", _CHAT),
    JobKind.TEMPLATE: ("messages", _CHAT),
    JobKind.RESPONSES: ("input", _RESPONSES),
    JobKind.MESSAGES: ("messages", _MESSAGES),
    JobKind.COUNT_TOKENS: ("messages", _MESSAGES),
}
"""Where the parts of a body are, and the types of those that are no text, as each protocol names them."""

_NOTHING = msgspec.Raw(b"null")
_ESCAPE = b"\\u"  # it may hide any word
_HINTS: Final[Mapping[JobKind, tuple[bytes, ...]]] = {
    kind: (*(b'"%b"' % word.encode() for word in words), _ESCAPE) for kind, (_, words) in _PARTS.items()
}
"""No part is of interest in a body that has none of these."""


class _Item(msgspec.Struct):
    """A message, or what else stands among them: a tool's result has its parts under `output`."""

    content: msgspec.Raw = _NOTHING
    output: msgspec.Raw = _NOTHING


class _Part(msgspec.Struct):
    """A part; a tool's result has parts of its own."""

    type: object = None
    content: msgspec.Raw = _NOTHING


_items = msgspec.json.Decoder(list[_Item])
_parts = msgspec.json.Decoder(list[_Part])


def media_of(request: InferenceRequest) -> frozenset[Medium]:
    """The media of a body's messages. A body without their words is not parsed, and whatever has another form than a
    list of messages is left to the engine's judgement."""
    if request.form is not None:
        return frozenset({Medium.AUDIO})  # a transcription's upload
    hints, body = _HINTS.get(request.route.kind, ()), request.outline.text
    if not any(hint in body for hint in hints):
        return NO_MEDIA
    key, words = _PARTS[request.route.kind]
    try:
        return frozenset(_found(request.outline.value(key), words))
    except msgspec.ValidationError:
        return NO_MEDIA


def _found(items: bytes, words: Mapping[str, Medium]) -> Iterator[Medium]:
    for item in _items.decode(items):
        for parts in (bytes(item.content), bytes(item.output)):
            yield from _in_parts(parts, words, nested=True)


def _in_parts(parts: bytes, words: Mapping[str, Medium], *, nested: bool) -> Iterator[Medium]:
    if not parts.startswith(b"["):
        return
    for part in _parts.decode(parts):
        medium = words.get(part.type) if isinstance(part.type, str) else None
        if medium is not None:
            yield medium
        elif nested:
            yield from _in_parts(bytes(part.content), words, nested=False)
