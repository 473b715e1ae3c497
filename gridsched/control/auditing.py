"""How the use of verbs comes into the audit log, and the verb that shows it. Owns these words and types.

`use` comes here with every use. Must never be what a use fails by.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Any

import trio
from msgspec import Meta

from gridsched.control.operations import Operation
from gridsched.control.problems import Problem, RequestError
from gridsched.control.services import Services
from gridsched.control.verb import Answer, Arguments, Call, Rest, Verb
from gridsched.credentials import Scope
from gridsched.threads import in_thread

MOST_ROWS = 1000


@contextmanager
def audited(services: Services, verb: Verb, given: Mapping[str, object], call: Call) -> Iterator[None]:
    """Note how the use of a verb in this block ends. What only looks is not noted, nor what goes on as an operation:
    that is noted by `operated`."""
    audit = services.audit
    if audit is None or verb.reads:
        yield
        return
    try:
        yield
    except RequestError as error:
        audit.note(verb.name, given, call.asker, "refused", error.problem)
        raise
    except trio.Cancelled:
        audit.note(verb.name, given, call.asker, "cancelled")
        raise
    except Exception:
        audit.note(verb.name, given, call.asker, "failed", Problem("internal", "an error of this server"))
        raise
    if not verb.long:
        audit.note(verb.name, given, call.asker, "done")


def operated(services: Services, verb: Verb, operation: Operation, call: Call) -> None:
    """Note that an operation has begun, and have its end noted."""
    audit = services.audit
    if audit is not None and not verb.reads:
        audit.note(verb.name, operation.arguments, call.asker, "started", operation=operation.id)
        operation.at_end = lambda: audit.note_end(operation, call.asker)


# --- the verb -------------------------------------------------------------------------------------------------------


class Noted(Answer, frozen=True, kw_only=True):
    """One row. `outcome`: done, started (an operation, which has a row at its end), refused, failed, cancelled."""

    seq: int
    time: str
    verb: str
    arguments: Mapping[str, Any]
    who: str
    address: str
    via: str
    request_id: str
    outcome: str
    code: str | None = None
    message: str | None = None
    operation: str | None = None
    others_refused: int = 0


class AuditArguments(Arguments, frozen=True, kw_only=True):
    """Which rows."""

    cursor: Annotated[Annotated[int, Meta(ge=1)] | None, Meta(description="`next_cursor` of the page before.")] = None
    limit: Annotated[int, Meta(description="At most so many rows.", ge=1, le=MOST_ROWS)] = 100


class AuditTold(Answer, frozen=True, kw_only=True):
    """Rows, newest first."""

    rows: tuple[Noted, ...]
    next_cursor: Annotated[int | None, Meta(description="Ask with it for the next page; null on the last.")]


async def _audit_log(services: Services, asked: AuditArguments, _: Call) -> AuditTold:
    audit = services.audit
    if audit is None:
        raise RequestError(Problem("not_found", "this server keeps no audit log: it has no data directory"))
    rows, following = await in_thread(lambda: audit.journal.read(asked.cursor, asked.limit))
    return AuditTold(rows=tuple(map(_noted, rows)), next_cursor=following)


def _noted(row: Mapping[str, Any]) -> Noted:
    words = {
        name: str(row.get(name, "")) for name in ("time", "verb", "who", "address", "via", "request_id", "outcome")
    }
    arguments = row.get("arguments")
    return Noted(
        seq=row["seq"],
        arguments=arguments if isinstance(arguments, Mapping) else {},
        code=row.get("code"),
        message=row.get("message"),
        operation=row.get("operation"),
        others_refused=row.get("others_refused", 0),
        **words,
    )


VERBS = (
    Verb(
        name="audit_log",
        summary="Who has changed what",
        description="Every use of a verb that changes something and every refused attempt, newest first.",
        scope=Scope.ADMIN,
        takes=AuditArguments,
        gives=AuditTold,
        act=_audit_log,
        rest=Rest("GET", "/api/audit"),
        reads=True,
    ),
)
