"""Verbs about the configuration: what it is, and a change of its file. Owns their words and types.

A change is checked as a start would check it before a byte is written. Nobody is shown a secret that stands in it.
"""

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from msgspec import Meta

from gridsched.control.masking import is_hidden, masked, masked_sentence
from gridsched.control.problems import Problem, RequestError, invalid
from gridsched.control.services import Services
from gridsched.control.verb import Answer, Arguments, Call, Consequences, Nothing, Rest, Verb
from gridsched.credentials import Scope
from gridsched.settings.document import dotted
from gridsched.settings.edit import leaves, with_masks
from gridsched.settings.refusals import Changed, EditError, Refused
from gridsched.threads import in_thread

if TYPE_CHECKING:  # the schema takes long to load, and the command line wants the verbs only
    from gridsched.settings.configuration import Change, Configuration
    from gridsched.settings.reload import ReloadPlan
    from gridsched.settings.schema import Settings

Key = tuple[str, ...]

MOST_CHANGES = 500

MOST_KEYS = 200
"""Keys of one change: the file is read anew for each. Whoever changes more gives the whole file."""

MOST_TRIES = 10
"""So often a change of keys is thought of anew, where others save the file at the same time."""

_PLACE = re.compile(r"^.*?:\d+:\d+: ")


class Difference(Answer, frozen=True, kw_only=True):
    """One setting that is another then. A model that comes or goes is one, as a whole."""

    key: str
    before: Any
    after: Any


class ConfigurationTold(Answer, frozen=True, kw_only=True):
    """The configuration that runs. `settings` has every setting there is as it would be written, with the defaults of
    what the file does not say. `runs_as_written`: what is on disk is what runs; else `error` says why not, or
    `needs_restart` has the settings that are as the file says only after a start of the server."""

    path: str
    exists: bool
    sha256: Annotated[str, Meta(description="Of the file; empty where there is none. Send it with a change.")]
    runs_as_written: bool
    error: str | None
    needs_restart: tuple[str, ...]
    settings: Mapping[str, Any]
    sources: Annotated[
        Mapping[str, str], Meta(description="Where a value comes from, by its key; what is not here is a default.")
    ]
    text: Annotated[str | None, Meta(description="The file, for admins; secrets are hidden.")] = None
    text_is_whole: bool = False


class SetArguments(Arguments, frozen=True, kw_only=True):
    """What is to be another in the file."""

    put: Annotated[
        Mapping[str, Any],
        Meta(
            description="Values to put in, nested as in the file: {models: {tiny: {ctx_size: 8192}}}. Keys are taken as"
            " they are, dots and slashes too. An object is put into the one that is there, a list replaces the list,"
            " null is a value."
        ),
    ] = msgspec.field(default_factory=dict, name="set")
    unset: Annotated[
        tuple[Key, ...], Meta(description="Keys to take out, each as the list of its parts: [[models, old]].")
    ] = ()
    text: Annotated[str | None, Meta(description="The whole file instead, as it should be.")] = None
    expected_sha256: Annotated[
        str | None, Meta(description="Only where the file still is this one (409 where it is not).")
    ] = None


class ConfigurationSet(Answer, frozen=True, kw_only=True):
    """What a change has done. `backup` is the copy of the file from before, `restarts` are the models that are loaded
    anew when they are idle, `needs_restart` the settings that hold after a start of the server only."""

    text: str
    path: str
    sha256: str
    written: bool
    backup: str | None
    changes: tuple[Difference, ...]
    restarts: tuple[str, ...]
    needs_restart: tuple[str, ...]


def _configuration(services: Services) -> "Configuration":
    if services.configuration is None:
        raise RequestError(Problem("not_found", "this server has no configuration file, and none can be made for it"))
    return services.configuration


# --- looking --------------------------------------------------------------------------------------------------------


async def _get(services: Services, _: Nothing, call: Call) -> ConfigurationTold:
    configuration, reloader = _configuration(services), services.reloader
    text, sha256, error = "", "", None
    settings: Settings | None = None
    try:
        contents = await configuration.read()
        text, sha256 = contents.text, contents.sha256
        settings = await in_thread(partial(configuration.settings_of, text))
    except Refused as refused:
        error = str(refused)
    needs_restart: tuple[str, ...] = ()
    if reloader is not None:
        error = error or reloader.error
        needs_restart = reloader.preview(settings).needs_restart if settings is not None else ()
        settings = reloader.settings
    shown = await in_thread(partial(_shown, text)) if Scope.ADMIN in call.asker.caller.scopes else None
    return ConfigurationTold(
        path=str(configuration.path),
        exists=bool(sha256),
        sha256=sha256,
        runs_as_written=error is None and not needs_restart,
        error=None if error is None else masked_sentence(error),
        needs_restart=needs_restart,
        settings={} if settings is None else _object(masked(await in_thread(partial(configuration.told, settings)))),
        sources={} if settings is None else configuration.sources(settings),
        text=shown,
        text_is_whole=shown is not None and shown == text,
    )


def _shown(text: str) -> str | None:
    """The file's text, without its secrets; nothing of one that is no YAML: nobody knows what in it is one."""
    try:
        return masked_sentence(with_masks(text, masked))
    except EditError:
        return None


def _object(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


# --- changing -------------------------------------------------------------------------------------------------------


async def _set(services: Services, asked: SetArguments, _: Call) -> ConfigurationSet:
    configuration = _configuration(services)
    async with configuration.changing:
        change, plan, backup = await _done(services, asked)
        changes = await in_thread(partial(_changes, configuration, change))
        text = _sentence(configuration, change, changes, "is")
        if not change.is_none and services.reloader is not None:
            plan = await services.reloader.reload("the configuration was set")
    return ConfigurationSet(
        text=_with_plan(text, plan),
        path=str(configuration.path),
        sha256=change.sha256,
        written=not change.is_none,
        backup=backup,
        changes=changes,
        restarts=plan.restarts if plan is not None else (),
        needs_restart=plan.needs_restart if plan is not None else (),
    )


async def _done(services: Services, asked: SetArguments) -> "tuple[Change, ReloadPlan | None, str | None]":
    """The change, written, what it comes to, and the copy of what was there. Whoever names keys, and not the file in
    which they are to be changed, has them changed in what somebody else has saved meanwhile. Raises RequestError."""
    configuration = _configuration(services)
    tries = MOST_TRIES if asked.text is None and asked.expected_sha256 is None else 1
    while True:
        change, plan = await _thought(services, asked)
        tries -= 1
        try:
            return change, plan, None if change.is_none else await _written(configuration, change)
        except Changed:
            if not tries:
                raise _conflict(configuration, "") from None


async def _plan(services: Services, asked: SetArguments, _: Call) -> Consequences:
    configuration = _configuration(services)
    change, plan = await _thought(services, asked)
    changes = await in_thread(partial(_changes, configuration, change))
    details: dict[str, Any] = {"changes": msgspec.to_builtins(changes)}
    if plan is not None:
        details |= {"restarts": plan.restarts, "needs_restart": plan.needs_restart}
    return Consequences(
        text=_with_plan(_sentence(configuration, change, changes, "would be"), plan),
        harms=not change.is_none,
        details=details,
        essence=f"{change.before.sha256} {change.sha256} {details.get('restarts')}",
    )


def _with_plan(text: str, plan: "ReloadPlan | None") -> str:
    return text if plan is None else f"{text}; {plan.text}"


async def _thought(services: Services, asked: SetArguments) -> "tuple[Change, ReloadPlan | None]":
    """The change that is asked for, checked as a start would check it, and what it comes to. Raises RequestError."""
    _require_sound(asked)
    configuration = _configuration(services)
    try:
        whole = None if asked.text is None else asked.text.removeprefix("\ufeff")
        change = await configuration.thought(asked.put, asked.unset, whole)
    except EditError as error:
        raise invalid(str(error)) from None
    except Refused as refused:
        raise _refused(refused.faults) from None
    if asked.expected_sha256 is not None and asked.expected_sha256 != change.before.sha256:
        raise _conflict(configuration, change.before.sha256)
    if services.reloader is None or change.is_none:
        return change, None
    try:
        plan, faults = await services.reloader.proposed(change.settings)
    except RequestError as error:
        raise _refused(error.problem.message.split("\n")) from None
    if faults and (new := await _new_faults(services, change, faults)):
        raise _refused(new)
    return change, plan


async def _new_faults(services: Services, change: "Change", faults: Sequence[str]) -> list[str]:
    """Those that the file has not already: a model whose file is missing keeps nobody from changing another."""
    configuration, known = _configuration(services), frozenset[str]()
    with suppress(Refused, RequestError):
        before = await in_thread(partial(configuration.settings_of, change.before.text))
        if services.reloader is not None:
            known = frozenset(map(_placeless, (await services.reloader.proposed(before))[1]))
    return [fault for fault in faults if _placeless(fault) not in known]


def _placeless(fault: str) -> str:
    """A fault without the line that it is on."""
    return _PLACE.sub("", fault)


def _refused(faults: Sequence[str]) -> RequestError:
    """Nothing was written, for all of these."""
    told = [masked_sentence(line) for line in faults]
    more = f" (and {len(told) - 1} more)" if len(told) > 1 else ""
    message = f"the file would be refused, so it was not written: {told[0]}{more}"
    return RequestError(Problem("config_invalid", message, detail={"faults": told}))


def _require_sound(asked: SetArguments) -> None:
    """Raises RequestError for arguments that do not go together, or that hold what is shown in a secret's place."""
    if asked.text is None and not asked.put and not asked.unset:
        raise invalid("say what is to be another: set, unset or text")
    if asked.text is not None and (asked.put or asked.unset):
        raise invalid("give either text, or set and unset, not both", "text")
    if sum(1 for _ in islice(leaves(asked.put), MOST_KEYS)) + len(asked.unset) >= MOST_KEYS:
        raise invalid(f"more than {MOST_KEYS - 1} keys in one change; give the whole file as text", "set")
    for key in asked.put:
        if "." in key:  # no section has one in its name
            raise invalid(f"set is nested as the file is, and {key!r} is no key there: write {_as_nested(key)}", "set")
    if is_hidden(asked.text):
        raise invalid("in this text secrets are hidden, and would be lost: change single keys with set", "text")
    if is_hidden(asked.put):
        raise invalid("a value here is a secret that was hidden; leave it out, and it stays", "set")
    if not all(asked.unset):
        raise invalid("unset names keys, each as the list of its parts", "unset")


def _as_nested(key: str) -> str:
    """How a key that was written with dots is meant, as far as can be told: names of models have dots, too."""
    section, _, rest = key.partition(".")
    return f"{{{section}: {{{rest}: …}}}}" + (", and so on for each dot that is not in a name" if "." in rest else "")


async def _written(configuration: "Configuration", change: "Change") -> str | None:
    """Where the copy of what was there is. Raises Changed, RequestError."""
    try:
        backup = await configuration.write(change)
    except OSError as error:
        why = f"{configuration.path} cannot be written, and is as it was: {error.strerror or error}"
        raise RequestError(Problem("storage_unavailable", why)) from None
    return None if backup is None else str(backup)


def _conflict(configuration: "Configuration", sha256: str) -> RequestError:
    message = f"{configuration.path} has been changed since it was read: get it again"
    return RequestError(Problem("conflict", message, "expected_sha256", detail={"sha256": sha256} if sha256 else {}))


def _changes(configuration: "Configuration", change: "Change") -> tuple[Difference, ...]:
    """Setting by setting, secrets hidden."""
    found = list(configuration.differences(change))[:MOST_CHANGES]
    return tuple(
        Difference(key=dotted(way), before=_one(way, before), after=_one(way, after)) for way, before, after in found
    )


def _one(way: Sequence[str | int], value: object) -> object:
    """A value as it is shown: one of a process's environment is a secret, whatever it is called."""
    name = str(way[-1])
    if "env" in way[:-1]:
        return _object(masked({name: value}, "env"))[name]
    return masked(value, name)


def _sentence(configuration: "Configuration", change: "Change", changes: Sequence[Difference], verb: str) -> str:
    if change.is_none:
        return f"{configuration.path} is like that already"
    keys = ", ".join(each.key for each in changes[:10]) or "nothing that the server knows"
    more = f" and {len(changes) - 10} more" if len(changes) > 10 else ""  # noqa: PLR2004 - those that are named
    return f"{configuration.path} {verb} changed: {keys}{more}"


async def _schema(_: Services, __: Nothing, ___: Call) -> Mapping[str, Any]:
    return await in_thread(_read_schema)


def _read_schema() -> Mapping[str, Any]:
    from gridsched.settings.reference import json_schema  # noqa: PLC0415 - slow to load, as above
    from gridsched.settings.reload import EFFECTS  # noqa: PLC0415 - slow to load, as above

    return {**json_schema(), "x-takes-effect": {key: effect.value for key, effect in EFFECTS.items()}}


VERBS = (
    Verb(
        name="get_config",
        summary="The configuration",
        description="Every setting with its value, the file it comes from, and whether what runs is what is on disk.",
        scope=Scope.READ,
        takes=Nothing,
        gives=ConfigurationTold,
        act=_get,
        rest=Rest("GET", "/api/config"),
        tool=True,
        reads=True,
    ),
    Verb(
        name="config_schema",
        summary="What a configuration may say",
        description="The JSON Schema of the file: every key with its meaning, what it takes, and its default;"
        " and under x-takes-effect what it takes for a change of each to hold.",
        scope=Scope.READ,
        takes=Nothing,
        gives=Mapping[str, Any],
        act=_schema,
        rest=Rest("GET", "/api/config/schema"),
        reads=True,
    ),
    Verb(
        name="set_config",
        summary="Change the configuration",
        description="Change single keys of the file, or the whole of it: comments stay, the old file is kept beside it,"
        " and what a start would refuse is not written. What can be applied at once is.",
        scope=Scope.ADMIN,
        takes=SetArguments,
        gives=ConfigurationSet,
        act=_set,
        rest=Rest("PATCH", "/api/config"),
        tool=True,
        destructive=True,
        idempotent=True,
        plan=_plan,
    ),
)
