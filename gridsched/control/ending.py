"""Verbs about the server's own end: drain, restart (P8). Owns the exit code for who is to start it again."""

from msgspec import UNSET, UnsetType

from gridsched.control.services import Services
from gridsched.control.verb import Answer, Call, Nothing, Rest, Verb
from gridsched.credentials import Scope

RESTART = 75
"""The contract's exit code: whoever runs the server is asked to start it again."""


class Draining(Answer, frozen=True, kw_only=True):
    """The server takes nobody new. `in_flight` requests may finish; `exit_code` where it ends then."""

    draining: bool
    in_flight: int
    exit_code: int | UnsetType = UNSET


async def _drain(services: Services, _: Nothing, __: Call) -> Draining:
    services.runtime.begin_drain()
    return Draining(draining=True, in_flight=services.runtime.desk.open_tickets)


async def _restart(services: Services, _: Nothing, __: Call) -> Draining:
    services.runtime.end(RESTART)
    return Draining(draining=True, in_flight=services.runtime.desk.open_tickets, exit_code=RESTART)


VERBS = (
    Verb(
        name="drain",
        summary="Take nobody new",
        description="Whoever runs may finish. The server stays until it is told to end, and nothing undoes it.",
        scope=Scope.ADMIN,
        takes=Nothing,
        gives=Draining,
        act=_drain,
        rest=Rest("POST", "/api/drain", 202),
        destructive=True,
        idempotent=True,
    ),
    Verb(
        name="restart",
        summary="Drain, end, and be started again",
        description="Ends with exit code 75, on which whoever runs the server starts it again.",
        scope=Scope.ADMIN,
        takes=Nothing,
        gives=Draining,
        act=_restart,
        rest=Rest("POST", "/api/restart", 202),
        destructive=True,
        idempotent=True,
    ),
)
