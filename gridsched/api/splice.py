"""The body that goes up to the engine: the client's bytes, cut and joined (H2). Pure.

What only this server understands is taken out and `model` names the engine's model; every other byte stays as it came.
"""

from collections.abc import Iterable, Mapping

import msgspec

from gridsched.api.members import Member

OURS = frozenset({"x_class", "gridsched", "ttl", "keep_alive"})
"""Members that only this server understands."""


def upstream_body(body: bytes, members: tuple[Member, ...], model: str, edits: Mapping[str, bytes]) -> bytes:
    """The client's body without our own members, with the engine's name of the model and the values of `edits`."""
    return splice(body, members, replaced={"model": msgspec.json.encode(model), **edits}, removed=OURS)


def splice(body: bytes, members: tuple[Member, ...], *, replaced: Mapping[str, bytes], removed: Iterable[str]) -> bytes:
    """`body` with the values of `replaced` in place and without the members of `removed`.

    A member of `replaced` that is not there is put in front. `members` are the spans found in `body`.
    """
    gone = frozenset(removed)
    present = {member.key for member in members} - gone
    parts = [(b",", msgspec.json.encode(key) + b":" + value) for key, value in replaced.items() if key not in present]
    before: Member | None = None
    for member in members:
        if member.key not in gone:
            separator = body[before.end : member.start] if before is not None else b","
            parts.append((separator, _piece(body, member, replaced.get(member.key))))
        before = member
    first, last = (members[0].start, members[-1].end) if members else _inside(body)
    inner = b"".join(separator + piece for separator, piece in parts[1:])
    return b"".join((body[:first], parts[0][1] if parts else b"", inner, body[last:]))


def _piece(body: bytes, member: Member, value: bytes | None) -> bytes:
    if value is None:
        return body[member.start : member.end]
    return body[member.start : member.value_start] + value


def _inside(body: bytes) -> tuple[int, int]:
    """Where the only member of an empty object would lie."""
    place = body.index(b"{") + 1
    return place, place
