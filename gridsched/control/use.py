"""The one way to use a verb: may he, are the arguments right, do it, write it down. REST, MCP and the panel come here.

Owns the order of these, and the words about wrong arguments. Must never know a protocol.
"""

import difflib
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Final

import msgspec
import trio

from gridsched.control.allowed import allowed, is_there
from gridsched.control.auditing import audited, operated
from gridsched.control.masking import is_deep, masked
from gridsched.control.operations import Operation
from gridsched.control.problems import RequestError, invalid, unknown_model
from gridsched.control.services import Services
from gridsched.control.verb import Arguments, Call, Verb
from gridsched.credentials import Scope

_PLACE = re.compile(r" - at `(?P<place>[^`]+)`$")
_UNKNOWN = re.compile(r"unknown field `(?P<name>.*)`")
_MISSING = re.compile(r"missing required field `(?P<name>.*)`")

MODEL: Final = "model"
"""The argument that names a model, whichever verb takes it."""

Texts = Mapping[str, Sequence[str]]
"""Arguments as a query or a path has them: each name with its values."""

NO_TEXTS: Final[Texts] = MappingProxyType({})


async def use(
    services: Services, verb: Verb, given: Mapping[str, object], call: Call, texts: Texts = NO_TEXTS
) -> object:
    """The verb's answer; of a long one the operation that has begun, or that does the same already. `texts` are
    arguments, too. Raises RequestError."""
    with audited(services, verb, {**_plain(texts), **given}, call):
        allow(services, verb, call)
        arguments = asked_for(services, verb, given, call, texts)
        if not verb.long:
            return await verb.act(services, arguments, call)
        same = services.operations.same(verb.name, arguments) if verb.idempotent else None
        if same is not None:
            return same
        if verb.refuse is not None:
            await verb.refuse(services, arguments, call)
        work = partial(_work, services, verb, arguments, call)
        operation = services.operations.start(verb.name, arguments, shown(arguments), work, verb.scope)
    operated(services, verb, operation, call)
    return operation


def _plain(texts: Texts) -> Mapping[str, object]:
    return {name: values[0] if len(values) == 1 else list(values) for name, values in texts.items()}


async def _work(services: Services, verb: Verb, arguments: Arguments, call: Call, operation: Operation) -> object:
    return await verb.act(services, arguments, replace(call, tell=operation.tell, operation=operation.id))


def shown(arguments: Arguments) -> Mapping[str, object]:
    """Arguments as an operation tells them: without secrets."""
    told = masked(msgspec.to_builtins(arguments))
    return told if isinstance(told, Mapping) else {}


def allow(services: Services, verb: Verb, call: Call) -> None:
    """Raises RequestError where the caller has not the verb's scope (H6)."""
    need(services, verb.scopes, call)


def need(services: Services, scopes: Collection[Scope], call: Call) -> None:
    """Raises RequestError where the caller has none of these scopes (H6)."""
    asker = call.asker
    problem = services.authority.refuse(
        asker.caller, scopes, asker.headers, address=asker.address, now=trio.current_time()
    )
    if problem is not None:
        raise RequestError(problem)


def asked_for(
    services: Services, verb: Verb, given: Mapping[str, object], call: Call, texts: Texts = NO_TEXTS
) -> Arguments:
    """The arguments as the verb takes them, of a caller who may ask for their model: to a key for some, others are not
    there, as where it asks them (H5). Raises RequestError."""
    if is_deep(given):
        raise invalid("the arguments are nested too deeply")
    arguments = checked(verb, given, texts)
    model, caller = getattr(arguments, MODEL, None), call.asker.caller
    catalog = services.runtime.parts.catalog
    if isinstance(model, str) and not is_there(catalog, caller, model):
        raise RequestError(unknown_model(model, allowed(catalog, caller).closest(model)))
    return arguments


def checked(verb: Verb, given: Mapping[str, object], texts: Texts = NO_TEXTS) -> Arguments:
    """The arguments as the verb takes them. Raises RequestError."""
    try:
        return msgspec.convert({**_read(verb, texts), **given}, verb.takes)
    except msgspec.ValidationError as error:
        raise _wrong(verb, str(error)) from None


def _read(verb: Verb, texts: Texts) -> dict[str, object]:
    """What is meant by texts: a number where a number is taken. Raises RequestError."""
    fields = {field.encode_name: field.type for field in msgspec.structs.fields(verb.takes)}
    read: dict[str, object] = {}
    for name, values in texts.items():
        kind = fields.get(name)
        if kind is None:
            raise _wrong(verb, f"Object contains unknown field `{name}`")
        if len(values) > 1 and not _is_list(msgspec.inspect.type_info(kind)):
            raise invalid(f"{name} is given {len(values)} times, and taken once", name)
        meant = list(values) if _is_list(msgspec.inspect.type_info(kind)) else values[0]
        try:
            read[name] = msgspec.to_builtins(msgspec.convert(meant, kind, strict=False))
        except msgspec.ValidationError as error:
            raise invalid(f"{name}: {_PLACE.sub('', str(error))}", name) from None
    return read


def _is_list(kind: msgspec.inspect.Type) -> bool:
    if isinstance(kind, msgspec.inspect.UnionType):
        return any(map(_is_list, kind.types))
    return isinstance(kind, msgspec.inspect.CollectionType)


def _wrong(verb: Verb, said: str) -> RequestError:
    """What msgspec found, with the field's name, and the nearest there is for one that is not."""
    fields = [field.encode_name for field in msgspec.structs.fields(verb.takes)]
    if (unknown := _UNKNOWN.search(said)) is not None:
        name = unknown["name"]
        close = difflib.get_close_matches(name, fields, 1)
        hint = f"; did you mean {close[0]}?" if close else f"; it takes {', '.join(fields) or 'nothing'}"
        return invalid(f"{verb.name} takes no {name!r}{hint}", name)
    if (missing := _MISSING.search(said)) is not None:
        return invalid(f"{verb.name} needs {missing['name']!r}", missing["name"])
    place = _PLACE.search(said)
    where = place["place"].removeprefix("$").removeprefix(".") if place is not None else ""
    sentence = _PLACE.sub("", said)
    return invalid(f"{where}: {sentence}" if where else sentence, where or None)
