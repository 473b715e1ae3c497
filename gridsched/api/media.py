"""What a request brings beside text, found in the parts of its messages. Pure.

Every model is asked whether it takes it, and of a family only the variants that do can be meant (R10).
"""

from collections.abc import Iterator, Mapping
from typing import Final

import msgspec

from gridsched.api.decode import InferenceRequest
from gridsched.core.job import NO_MEDIA, JobKind, Medium

_CHAT: Final[Mapping[bytes, Medium]] = {b'"image_url"': Medium.IMAGE, b'"input_audio"': Medium.AUDIO}
_RESPONSES: Final[Mapping[bytes, Medium]] = {
    b'"input_image"': Medium.IMAGE,
    b'"input_audio"': Medium.AUDIO,
    b'"input_file"': Medium.IMAGE,  # the pages of a file are looked at, if anything is done with them
}
_MESSAGES: Final[Mapping[bytes, Medium]] = {
    b'"image"': Medium.IMAGE,
    b'"document"': Medium.IMAGE,  # as `input_file`; without this the engine answers as if it had not been sent
}
_PARTS: Final[Mapping[JobKind, tuple[str, Mapping[bytes, Medium]]]] = {
    JobKind.CHAT: ("messages", _CHAT),
    JobKind.TEMPLATE: ("messages", _CHAT),
    JobKind.RESPONSES: ("input", _RESPONSES),
    JobKind.MESSAGES: ("messages", _MESSAGES),
    JobKind.COUNT_TOKENS: ("messages", _MESSAGES),
}
"""Where the parts of a body are, and the types of those that are no text, as each protocol names them."""

_NOTHING = msgspec.Raw(b"null")


class _Item(msgspec.Struct):
    """A message, or what else stands among them: a tool's result has its parts under `output`."""

    content: msgspec.Raw = _NOTHING
    output: msgspec.Raw = _NOTHING


class _Part(msgspec.Struct):
    """A part; a tool's result has parts of its own."""

    type: msgspec.Raw = _NOTHING
    content: msgspec.Raw = _NOTHING


_items = msgspec.json.Decoder(list[_Item])
_parts = msgspec.json.Decoder(list[_Part])


def media_of(request: InferenceRequest) -> frozenset[Medium]:
    """The media of a body's messages. A body without their words is not parsed, and whatever has another form than a
    list of messages is left to the engine's judgement."""
    if request.form is not None:
        return frozenset({Medium.AUDIO})  # a transcription's upload
    key, words = _PARTS.get(request.route.kind, ("", {}))
    if not any(word in request.body for word in words):
        return NO_MEDIA
    span = next((member for member in request.members if member.key == key), None)
    if span is None:
        return NO_MEDIA
    try:
        return frozenset(_found(request.body[span.value_start : span.end], words))
    except msgspec.ValidationError:
        return NO_MEDIA


def _found(items: bytes, words: Mapping[bytes, Medium]) -> Iterator[Medium]:
    for item in _items.decode(items):
        for parts in (bytes(item.content), bytes(item.output)):
            yield from _in_parts(parts, words, nested=True)


def _in_parts(parts: bytes, words: Mapping[bytes, Medium], *, nested: bool) -> Iterator[Medium]:
    if not parts.startswith(b"["):
        return
    for part in _parts.decode(parts):
        medium = words.get(bytes(part.type))
        if medium is not None:
            yield medium
        elif nested:
            yield from _in_parts(bytes(part.content), words, nested=False)
