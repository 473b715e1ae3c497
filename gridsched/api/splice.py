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
    view = memoryview(body)  # tens of megabytes are copied once, by the join
    parts: list[bytes | memoryview] = []
    for key, value in replaced.items():
        if key not in present:
            parts += (b",", msgspec.json.encode(key) + b":" + value)
    before: Member | None = None
    for member in members:
        if member.key not in gone:
            parts.append(view[before.end : member.start] if before is not None else b",")
            parts += _piece(view, member, replaced.get(member.key))
        before = member
    first, last = (members[0].start, members[-1].end) if members else _inside(body)
    return b"".join((view[:first], *parts[1:], view[last:]))


def _piece(body: memoryview, member: Member, value: bytes | None) -> tuple[bytes | memoryview, ...]:
    if value is None:
        return (body[member.start : member.end],)
    return body[member.start : member.value_start], value


def _inside(body: bytes) -> tuple[int, int]:
    """Where the only member of an empty object would lie."""
    place = body.index(b"{") + 1
    return place, place
