"""The verb that has the configuration read again. Owns its words and types; `reloading` does it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from msgspec import Meta

from gridsched.control.problems import Problem, RequestError
from gridsched.control.services import Services
from gridsched.control.verb import Answer, Arguments, Call, Rest, Verb
from gridsched.credentials import Scope

if TYPE_CHECKING:
    from gridsched.settings.reload import ReloadPlan


class ReloadArguments(Arguments, frozen=True, kw_only=True):
    """Whether it is only to be said what would come of it."""

    dry_run: Annotated[bool, Meta(description="Only say what it would do.")] = False


class SettingChange(Answer, frozen=True, kw_only=True):
    """One setting that is another, as it would be written; `before` null: new, `after` null: gone. `effect` is what it
    takes: now, model restart, server restart, watchdog restart."""

    key: str
    before: str | None
    after: str | None
    effect: str


class Reloaded(Answer, frozen=True, kw_only=True):
    """What a reload did, or would do. `restarts` are the models that are loaded anew when they are idle,
    `needs_restart` the settings that stay as they were until the server is started again."""

    applied: bool
    text: str
    changes: tuple[SettingChange, ...]
    restarts: tuple[str, ...]
    needs_restart: tuple[str, ...]


def told_of(plan: ReloadPlan, *, applied: bool) -> Reloaded:
    """A plan as it is answered."""
    return Reloaded(
        applied=applied,
        text=plan.text,
        changes=tuple(
            SettingChange(key=each.key, before=each.before, after=each.after, effect=each.effect.value)
            for each in plan.changes
        ),
        restarts=plan.restarts,
        needs_restart=plan.needs_restart,
    )


async def _reload(services: Services, asked: ReloadArguments, call: Call) -> Reloaded:
    if services.reloader is None:
        raise RequestError(Problem("not_found", "this server has no configuration that could be read again"))
    plan = await services.reloader.reload(f"asked for, {call.asker.via}", dry_run=asked.dry_run)
    return told_of(plan, applied=not asked.dry_run)


VERBS = (
    Verb(
        name="reload_config",
        summary="Read the configuration again",
        description="Takes over what has changed and touches nothing else. One with a fault is refused whole.",
        scope=Scope.ADMIN,
        takes=ReloadArguments,
        gives=Reloaded,
        act=_reload,
        rest=Rest("POST", "/api/config/reload"),
        idempotent=True,
    ),
)
