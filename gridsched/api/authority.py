"""Who may change the machine (H6). Pure.

Being on loopback is not enough: any program, and any page in a browser, of this machine is. Whoever drains, restarts or
changes the server shows a credential. Today that is the local admin token; keys with scopes join it here.
"""

import hmac
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from gridsched.api.problems import Problem
from gridsched.core.job import JobClass


class Scope(Enum):
    """What a caller may do (H6)."""

    INFERENCE = "inference"
    READ = "read"
    RESIDENCY = "residency"
    ADMIN = "admin"


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks, and what that allows. `key` is the API key's name, "" without keys. `default_class` is for those that
    name none, `highest_class` the best that may be asked for. `models` are the names that may be asked for, empty for
    all. `concurrency` bounds the requests that are open at once, `queue_share` the part of a class's queue that may be
    taken (0 to 1); None for no bound."""

    scopes: frozenset[Scope]
    key: str = ""
    default_class: JobClass | None = None
    highest_class: JobClass | None = None
    models: tuple[str, ...] = ()
    concurrency: int | None = None
    queue_share: float | None = None


ANYBODY: Final = Caller(frozenset({Scope.INFERENCE, Scope.READ, Scope.RESIDENCY}))
"""A caller from this machine where no keys are configured."""


class Authority:
    """Knows the credentials. Without a token nobody may do what needs one."""

    def __init__(self, admin_token: str = "") -> None:
        self._admin_token = admin_token.encode()

    def refuse_admin(self, headers: Mapping[bytes, bytes]) -> Problem | None:
        """The refusal of what changes the machine, or None for a request that may."""
        if not self._admin_token:
            return Problem(
                "remote_admin_requires_credential",
                "this server has no admin token: it keeps no data directory, or could not write there",
            )
        said = headers.get(b"authorization")
        if said is None:
            return Problem(
                "remote_admin_requires_credential",
                "this needs the admin token, as Authorization: Bearer TOKEN; gridsched's own commands on the server's"
                " machine find it in the data directory (admin.token)",
            )
        scheme, _, token = said.strip().partition(b" ")
        if scheme.lower() == b"bearer" and hmac.compare_digest(token.strip(), self._admin_token):
            return None
        return Problem(
            "invalid_api_key", "this is not the server's admin token", headers=((b"www-authenticate", b"Bearer"),)
        )
