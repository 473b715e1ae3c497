"""What a request brings beside text (R10). Pure.

Asked only for families, whose variants differ in what they take; of a model the engine itself says what it cannot do.
"""

from collections.abc import Iterator, Mapping
from typing import Final

import msgspec

from gridsched.api.decode import InferenceRequest
from gridsched.core.job import NO_MEDIA, Medium

_PARTS: Final[Mapping[bytes, Medium]] = {b'"image_url"': Medium.IMAGE, b'"input_audio"': Medium.AUDIO}
"""The types of content parts that are no text, as OpenAI names them and as they stand in a body."""

_NOTHING = msgspec.Raw(b"null")


class _Message(msgspec.Struct):
    content: msgspec.Raw = _NOTHING


class _Part(msgspec.Struct):
    type: msgspec.Raw = _NOTHING


_messages = msgspec.json.Decoder(list[_Message])
_parts = msgspec.json.Decoder(list[_Part])


def media_of(request: InferenceRequest) -> frozenset[Medium]:
    """The media of a chat's messages. A body without their words is not parsed, and whatever has another form than a
    list of messages is left to the engine's judgement."""
    if not any(word in request.body for word in _PARTS):
        return NO_MEDIA
    span = next((member for member in request.members if member.key == "messages"), None)
    if span is None:
        return NO_MEDIA
    try:
        return frozenset(_found(request.body[span.value_start : span.end]))
    except msgspec.ValidationError:
        return NO_MEDIA


def _found(messages: bytes) -> Iterator[Medium]:
    for message in _messages.decode(messages):
        content = bytes(message.content)
        if content.startswith(b"["):
            for part in _parts.decode(content):
                medium = _PARTS.get(bytes(part.type))
                if medium is not None:
                    yield medium
