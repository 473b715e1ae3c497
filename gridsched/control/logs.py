"""The verb that shows what was printed: a model's engine, or the server itself.

Owns whose log a name means. Must never open a file by a client's word: the engine knows what its logs are called.
"""

from functools import partial
from typing import Annotated, Final

from msgspec import Meta

from gridsched.control.looking import OneModel
from gridsched.control.problems import Problem, RequestError, unknown_model
from gridsched.control.services import Services
from gridsched.control.verb import Answer, Call, Rest, Verb
from gridsched.core.ids import ModelName
from gridsched.credentials import Scope
from gridsched.ports import CatalogFamily
from gridsched.threads import in_thread

GATEWAY: Final = "gateway"
MOST_LINES: Final = 5000


class LogArguments(OneModel, frozen=True, kw_only=True):
    """Whose log, and how much of it; a `model` called gateway that is none means the server itself."""

    lines: Annotated[int, Meta(description="How many of the last lines.", ge=1, le=MOST_LINES)] = 100


class LogAnswer(Answer, frozen=True, kw_only=True):
    """The last lines of a log."""

    model: Annotated[str, Meta(description="Whose: a model, or gateway.")]
    lines: Annotated[tuple[str, ...], Meta(description="Oldest first; secrets are hidden.")]


async def _tail(services: Services, asked: LogArguments, _: Call) -> LogAnswer:
    parts = services.runtime.parts
    found = parts.catalog.resolve(asked.model)
    if found is None and asked.model == GATEWAY:
        return LogAnswer(model=GATEWAY, lines=_own(services, asked.lines))
    model = found.best if isinstance(found, CatalogFamily) else found
    name = model.name if model is not None else ModelName(asked.model)  # one that is served no more may have a log
    read = partial(parts.engine.last_log_lines, name, asked.lines)
    try:
        lines = await in_thread(read, abandon_on_cancel=True)
    except OSError as error:
        message = f"the log of {name} cannot be read: {error.strerror}"
        raise RequestError(Problem("storage_unavailable", message)) from None
    if model is None and not lines:
        raise RequestError(unknown_model(asked.model, parts.catalog.closest(asked.model)))
    return LogAnswer(model=name, lines=tuple(lines))


def _own(services: Services, count: int) -> tuple[str, ...]:
    if services.own_log is None:
        raise RequestError(Problem("not_found", "this server keeps none of its own words: look where it was started"))
    return services.own_log.last(count)


VERBS = (
    Verb(
        name="tail_logs",
        summary="The last lines of a log",
        description="What a model's engine has printed, also after its end; or, of gateway, what the server has said.",
        scope=Scope.READ,
        takes=LogArguments,
        gives=LogAnswer,
        act=_tail,
        rest=Rest("GET", "/api/logs/{model}"),
        tool=True,
        reads=True,
    ),
)
