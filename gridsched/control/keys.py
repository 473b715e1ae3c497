"""Verbs about API keys: list, add, revoke (H6). Owns their words and types.

A secret is in one answer, that of `add_key`, and nowhere else: not among the arguments, so not in the audit log either.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from gridsched.control.authority import ANYBODY
from gridsched.control.keyring import Keyring
from gridsched.control.problems import Problem, RequestError, invalid
from gridsched.control.services import Services
from gridsched.control.verb import Answer, Arguments, Call, Nothing, Rest, Verb
from gridsched.core.job import JobClass
from gridsched.credentials import ApiKey, Scope
from gridsched.ports import Catalog
from gridsched.settings.api_keys import KeysError, NoSuchChange, check_key, digest_of, new_secret, no_such_model

ClassWord = Literal["interactive", "background", "batch"]

_CLASSES = {job_class.label: job_class for job_class in JobClass}


class KeyArguments(Arguments, frozen=True, kw_only=True):
    """A key to be made."""

    name: Annotated[str, Meta(description="Whose, or what for: letters, digits, dots, dashes, underscores.")]
    scopes: Annotated[tuple[Scope, ...], Meta(description="What it may.", min_length=1)] = (
        Scope.INFERENCE,
        Scope.READ,
    )
    default_class: Annotated[ClassWord | None, Meta(description="Class of its requests that name none.")] = (
        msgspec.field(default=None, name="class")
    )
    max_class: Annotated[ClassWord | None, Meta(description="The highest class that it may use.")] = None
    models: Annotated[tuple[str, ...], Meta(description="The only models that it may ask for; none for all.")] = ()
    concurrency: Annotated[
        Annotated[int, Meta(ge=1)] | None, Meta(description="Most requests to models that it may have open at once.")
    ] = None
    queue_share: Annotated[
        Annotated[float, Meta(gt=0, le=1)] | None,
        Meta(description="Most of a class's queue that it may take; 1 is all of it."),
    ] = None


class OneKey(Arguments, frozen=True, kw_only=True):
    """One key."""

    name: Annotated[str, Meta(description="Its name.", min_length=1)]


class KeyTold(Answer, frozen=True, kw_only=True):
    """A key as it is kept, without its secret."""

    name: str
    created: str
    scopes: tuple[Scope, ...]
    default_class: str | None = msgspec.field(name="class")
    max_class: str | None
    models: tuple[str, ...]
    concurrency: int | None
    queue_share: float | None


class KeysTold(Answer, frozen=True, kw_only=True):
    """All of them, in the order in which they were made."""

    keys: tuple[KeyTold, ...]


class NewKey(KeyTold, frozen=True, kw_only=True):
    """A key that was just made. The `secret` is what its clients show; it is not told again."""

    secret: str
    warnings: tuple[str, ...]


class Revoked(Answer, frozen=True, kw_only=True):
    """A key that is taken no more; its requests that run may finish. `left` are those that there still are."""

    name: str
    left: int
    warnings: tuple[str, ...]


def _keyring(services: Services) -> Keyring:
    if services.keyring is None:
        raise RequestError(Problem("not_found", "this server keeps no API keys: it has no data directory"))
    return services.keyring


async def _list(services: Services, _: Nothing, __: Call) -> KeysTold:
    try:
        return KeysTold(keys=tuple(map(_told, await _keyring(services).all())))
    except KeysError as error:
        raise _damaged(error) from None


async def _add(services: Services, asked: KeyArguments, _: Call) -> NewKey:
    keyring = _keyring(services)
    secret = new_secret()
    key = ApiKey(
        name=asked.name,
        sha256=digest_of(secret),
        scopes=asked.scopes,
        created=datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
        default_class=None if asked.default_class is None else _CLASSES[asked.default_class],
        highest_class=None if asked.max_class is None else _CLASSES[asked.max_class],
        models=asked.models,
        concurrency=asked.concurrency,
        queue_share=asked.queue_share,
    )
    try:
        check_key(key)
    except KeysError as error:
        raise invalid(str(error)) from None
    is_first = not services.authority.has_keys
    try:
        await keyring.add(key)
    except NoSuchChange as error:
        raise RequestError(Problem("conflict", str(error), "name")) from None
    except KeysError as error:
        raise _damaged(error) from None
    except OSError as error:
        raise _unwritable(keyring, error) from None
    warnings = [] if not is_first else ["from now on every request needs a key, on the server's machine too"]
    warnings += unknown_models(services.runtime.parts.catalog, asked.models)
    told = _told(key)
    return NewKey(**msgspec.structs.asdict(told), secret=secret, warnings=tuple(warnings))


async def _revoke(services: Services, asked: OneKey, _: Call) -> Revoked:
    keyring = _keyring(services)
    try:
        await keyring.revoke(asked.name)
        left = len(await keyring.all())
    except NoSuchChange as error:
        raise RequestError(Problem("not_found", str(error), "name")) from None
    except KeysError as error:
        raise _damaged(error) from None
    except OSError as error:
        raise _unwritable(keyring, error) from None
    what = ", ".join(scope.value for scope in Scope if scope in ANYBODY.scopes)
    last = f"that was the last key: whoever is on the server's machine needs none now ({what})"
    return Revoked(name=asked.name, left=left, warnings=() if left else (last,))


def unknown_models(catalog: Catalog, names: Sequence[str]) -> list[str]:
    """A sentence for each name that a key is bound to and no model has. It is no fault: the model may come yet."""
    return [no_such_model(name, catalog.closest(name)) for name in names if catalog.resolve(name) is None]


def _told(key: ApiKey) -> KeyTold:
    return KeyTold(
        name=key.name,
        created=key.created,
        scopes=key.scopes,
        default_class=None if key.default_class is None else key.default_class.label,
        max_class=None if key.highest_class is None else key.highest_class.label,
        models=key.models,
        concurrency=key.concurrency,
        queue_share=key.queue_share,
    )


def _damaged(error: KeysError) -> RequestError:
    return RequestError(Problem("storage_unavailable", f"{error}; nothing was changed"))


def _unwritable(keyring: Keyring, error: OSError) -> RequestError:
    where = error.filename or keyring.data_dir
    return RequestError(Problem("storage_unavailable", f"{where}: {error.strerror or error}; nothing was changed"))


VERBS = (
    Verb(
        name="list_keys",
        summary="The API keys",
        description="Every API key without its secret: what it may, of which models, how much.",
        scope=Scope.ADMIN,
        takes=Nothing,
        gives=KeysTold,
        act=_list,
        rest=Rest("GET", "/api/keys"),
        reads=True,
    ),
    Verb(
        name="add_key",
        summary="Make an API key",
        description="The secret is in this answer and is not told again. With the first key, everybody needs one.",
        scope=Scope.ADMIN,
        takes=KeyArguments,
        gives=NewKey,
        act=_add,
        rest=Rest("POST", "/api/keys", 201),
    ),
    Verb(
        name="revoke_key",
        summary="Take an API key away",
        description="It is taken no more from now on; its requests that run may finish.",
        scope=Scope.ADMIN,
        takes=OneKey,
        gives=Revoked,
        act=_revoke,
        rest=Rest("DELETE", "/api/keys/{name}"),
        destructive=True,
    ),
)
