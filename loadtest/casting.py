"""Which models do which role's work: those that the user names, else the largest that fit beside each other.

Owns that choice, and the sentence about a role that nobody can do. Must never ask the server: it is told what there is.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from loadtest.clients import readable
from loadtest.roles import ROLES, Role
from loadtest.server import Model, Told

POSTS = ("embed", "vision", "chat", "background", "batch")
"""What models are wanted for, in the order in which they are given room. A small one that nobody else can replace goes
first."""

NEEDS = {"embed": "embedding", "vision": "vision", "chat": "chat", "background": "chat", "batch": "chat"}


@dataclass(frozen=True, slots=True)
class Part:
    """A role, its clients and their model."""

    role: Role
    count: int
    model: str


@dataclass(frozen=True, slots=True)
class Cast:
    """Who plays. `left_out`: the roles that nobody can do, and why."""

    parts: Sequence[Part]
    left_out: Mapping[str, str]


def cast(told: Told, counts: Mapping[str, int], named: Mapping[str, str]) -> Cast:
    """Choose. `counts` are the clients of each role, `named` the models of posts that the user has chosen."""
    wanted = {ROLES[name].post for name, count in counts.items() if count}
    chosen = dict(_choose(told, [post for post in POSTS if post in wanted], named))
    playing = [(ROLES[name], count) for name, count in counts.items() if count]
    return Cast(
        parts=[Part(role, count, chosen[role.post]) for role, count in playing if role.post in chosen],
        left_out={role.name: _why(told, role.post) for role, _ in playing if role.post not in chosen},
    )


def _choose(told: Told, posts: Sequence[str], named: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """A model for each post that has one."""
    room = dict(told.free)
    taken: list[Model] = []
    for post in posts:
        if post in named:
            yield post, readable(named[post])
            taken += [model for model in told.models if model.id == named[post] and _takes_room(room, model)]
            continue
        able = sorted((one for one in told.models if _can(one, post)), key=lambda one: -one.bytes)
        new = next((one for one in able if one not in taken and _takes_room(room, one)), None)
        again = [one for one in taken if one in able]
        # A model more is one more in memory: eyes are borrowed where they are, and nobody is sent away for variety.
        found = new or (again[-1] if again else able[-1] if able else None)
        if found is not None:
            taken.append(found)
            yield post, found.id


def _can(model: Model, post: str) -> bool:
    """Whether it does that work. Where a server does not tell, every model chats, and what else it can is for the user
    to say."""
    needs = NEEDS[post]
    return model.is_own and (needs == "chat" if model.can is None else needs in model.can)


def _takes_room(room: dict[str, int], model: Model) -> bool:
    """Whether it fits on the emptiest device, and then it is there. Where devices are not told, everything fits."""
    if not room:
        return True
    device = max(room, key=lambda name: room[name])
    if model.bytes > room[device]:
        return False
    room[device] -= model.bytes
    return True


def _why(told: Told, post: str) -> str:
    if any(model.can is not None for model in told.models):
        return f"no model of the server can do it ({NEEDS[post]})"
    return f"the server does not say what its models can do; name one with --{post}-model"
