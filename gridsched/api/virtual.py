"""Virtual models: what their configuration adds to a client's request, as edits of its bytes (H2). Pure.

Owns what each protocol calls the system's words and the bound of an answer. What a client says itself wins: nothing is
added beside it, and only a bound is lowered. Must never change a byte of a member that it has no reason to edit.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

from gridsched.api.decode import InferenceRequest
from gridsched.control.problems import invalid
from gridsched.core.job import JobKind
from gridsched.ports import VirtualEntry

NULL = b"null"
_BOUNDS = frozenset({"n_predict", "max_completion_tokens", "max_tokens"})
_RIVALS = (frozenset({"response_format", "json_schema", "grammar"}), frozenset({"stop", "stop_sequences"}))
"""Members that say the same in other words: one of a client's keeps ours out."""

_SYSTEM_ROLES = frozenset({"system", "developer"})


@dataclass(frozen=True, slots=True)
class _Dialect:
    """How a protocol says it. `prompt` is the member with the system's words, that of the `turns` where they are a
    message among others, "" where there are none. `bound` is the member that bounds an answer, "" where nothing is
    generated, `bounds` all of those that the engine heeds there."""

    prompt: str = ""
    turns: str = ""
    bound: str = ""
    bounds: frozenset[str] = _BOUNDS


_DIALECTS: Final[Mapping[JobKind, _Dialect]] = {
    JobKind.CHAT: _Dialect("messages", "messages", "max_tokens"),
    JobKind.COMPLETION: _Dialect(bound="max_tokens"),
    JobKind.INFILL: _Dialect(bound="n_predict"),
    JobKind.RESPONSES: _Dialect("instructions", "input", "max_output_tokens", _BOUNDS | {"max_output_tokens"}),
    JobKind.MESSAGES: _Dialect("system", "messages", "max_tokens", frozenset({"max_tokens"})),
    JobKind.COUNT_TOKENS: _Dialect("system", "messages"),
    JobKind.TEMPLATE: _Dialect("messages", "messages"),
}
"""What is not here is served as the base would serve it."""


class _Turn(msgspec.Struct):
    role: str | None = None


_turns = msgspec.json.Decoder(list[_Turn])


def shaped(entry: VirtualEntry, request: InferenceRequest, edits: Mapping[str, bytes]) -> dict[str, bytes]:
    """The edits with those of a virtual model. Raises RequestError for a bound that is no number."""
    dialect = _DIALECTS.get(request.route.kind)
    if dialect is None:
        return dict(edits)
    said = {member.key: request.body[member.value_start : member.end] for member in request.members} | dict(edits)
    given = {key: value for key, value in said.items() if value != NULL}  # null is as good as not said
    shaped = dict(edits)
    if entry.system_prompt is not None and dialect.prompt:
        shaped |= _prompted(entry.system_prompt, dialect, given)
    if dialect.bound:
        shaped |= _added(entry.members, given)
        if entry.max_tokens is not None:
            shaped |= _bounded(entry.max_tokens, dialect, given)
    return shaped


def _prompted(prompt: str, dialect: _Dialect, given: Mapping[str, bytes]) -> Mapping[str, bytes]:
    """Our words, where the client has none of its own."""
    turns = given.get(dialect.turns, NULL)
    if _has_system(turns):
        return {}
    if dialect.prompt != dialect.turns:
        return {} if dialect.prompt in given else {dialect.prompt: msgspec.json.encode(prompt)}
    message = msgspec.json.encode({"role": "system", "content": prompt})
    rest = turns[1:]
    return {dialect.turns: b"[" + message + (rest if rest.strip() == b"]" else b"," + rest)}


def _has_system(turns: bytes) -> bool:
    """What has another form than a list of messages is left to the engine's judgement."""
    if not turns.startswith(b"["):
        return False
    try:
        return any(turn.role in _SYSTEM_ROLES for turn in _turns.decode(turns))
    except msgspec.ValidationError:
        return False


def _added(members: Mapping[str, bytes], given: Mapping[str, bytes]) -> Mapping[str, bytes]:
    """Members that the client gives neither by their name nor in other words."""
    taken = {*given, *(word for rivals in _RIVALS if rivals & given.keys() for word in rivals)}
    return {key: value for key, value in members.items() if key not in taken}


def _bounded(most: int, dialect: _Dialect, given: Mapping[str, bytes]) -> Mapping[str, bytes]:
    """Every bound that the client gives, lowered where it is above ours or means none; ours where it gives none.
    Raises RequestError."""
    own = {key: given[key] for key in dialect.bounds if key in given}
    if not own:
        return {dialect.bound: b"%d" % most}
    return {key: b"%d" % most for key, value in own.items() if not 0 <= _tokens(key, value) <= most}


def _tokens(key: str, value: bytes) -> float:
    try:
        return msgspec.json.decode(value, type=float)
    except msgspec.ValidationError:
        raise invalid(f"{key} must be a number of tokens", key) from None
