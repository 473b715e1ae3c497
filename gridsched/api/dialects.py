"""How an error is told in each protocol: as a whole answer, and as an event of a stream that has begun. Pure.

Owns the members that clients of a protocol look for beside the contract's own shape, which stays as it is. Their SDKs
raise on these and on nothing else; a stream that merely ends looks to them like an answer. Must never change an error.
"""

from enum import Enum

import msgspec

_NULL = msgspec.Raw(b"null")


class Dialect(Enum):
    """A protocol, by the routes that speak it. Before its first byte only MESSAGES tells an error in its own way."""

    OPENAI = "openai"
    RESPONSES = "responses"
    MESSAGES = "messages"


class _Error(msgspec.Struct):
    message: msgspec.Raw = _NULL
    code: msgspec.Raw = _NULL
    param: msgspec.Raw = _NULL


class _Body(msgspec.Struct):
    error: msgspec.Raw
    type: msgspec.Raw = _NULL


_bodies = msgspec.json.Decoder(_Body)
_errors = msgspec.json.Decoder(_Error)


def whole(dialect: Dialect, body: bytes) -> bytes:
    """An answer that is an error. `body` is one in the contract's shape."""
    return _typed(body) if dialect is Dialect.MESSAGES else body


def event(dialect: Dialect, body: bytes) -> bytes:
    """One server-sent event that ends a stream. `body` is JSON on one line with an `error`, ours or an engine's."""
    match dialect:
        case Dialect.OPENAI:
            return b"data: %b\n\n" % body
        case Dialect.MESSAGES:
            return b"event: error\ndata: %b\n\n" % _typed(body)
        case Dialect.RESPONSES:
            return b"event: error\ndata: %b\n\n" % _flat(body)


def _typed(body: bytes) -> bytes:
    """`{"type":"error","error":…}`."""
    told = _bodies.decode(body)
    return body if bytes(told.type) != b"null" else b'{"type":"error","error":%b}' % bytes(told.error)


def _flat(body: bytes) -> bytes:
    """The event of the protocol has its members at the top; the SDKs raise on an `error` there, so both are told."""
    raw = bytes(_bodies.decode(body).error)
    try:
        told = _errors.decode(raw)
    except msgspec.ValidationError:
        told = _Error(message=msgspec.Raw(raw))  # an engine's error that is a mere sentence
    parts = (bytes(told.code), bytes(told.message), bytes(told.param), raw)
    return b'{"type":"error","code":%b,"message":%b,"param":%b,"error":%b}' % parts
