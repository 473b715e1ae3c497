"""The one way to use a verb: may he, are the arguments right, do it, write it down. REST, MCP and the panel come here.

Owns the order of these, and the words about wrong arguments. Must never know a protocol.
"""

import difflib
import re
from collections.abc import Mapping
from functools import partial

import msgspec
import trio

from gridsched.control.auditing import audited, operated
from gridsched.control.masking import masked
from gridsched.control.operations import Operation
from gridsched.control.problems import RequestError, invalid
from gridsched.control.services import Services
from gridsched.control.verb import Arguments, Call, Verb

_PLACE = re.compile(r" - at `(?P<place>[^`]+)`$")
_UNKNOWN = re.compile(r"unknown field `(?P<name>.*)`")
_MISSING = re.compile(r"missing required field `(?P<name>.*)`")


async def use(
    services: Services, verb: Verb, given: Mapping[str, object], call: Call, *, from_text: bool = False
) -> object:
    """The verb's answer; of a long one the operation that has begun. `from_text`: numbers and the like may be given as
    text, as a query has them. Raises RequestError."""
    with audited(services, verb, given, call):
        allow(services, verb, call)
        arguments = checked(verb, given, from_text=from_text)
        if not verb.long:
            return await verb.act(services, arguments, call)
        work = partial(_work, services, verb, arguments, call)
        operation = services.operations.start(verb.name, shown(arguments), work)
    operated(services, verb, operation, call)
    return operation


async def _work(services: Services, verb: Verb, arguments: Arguments, call: Call, operation: Operation) -> object:
    return await verb.act(services, arguments, Call(call.asker, operation.tell, operation.id))


def shown(arguments: Arguments) -> Mapping[str, object]:
    """Arguments as an operation tells them: without secrets."""
    told = masked(msgspec.to_builtins(arguments))
    return told if isinstance(told, Mapping) else {}


def allow(services: Services, verb: Verb, call: Call) -> None:
    """Raises RequestError where the caller has not the verb's scope (H6)."""
    asker = call.asker
    problem = services.authority.refuse(
        asker.caller, (verb.scope,), asker.headers, address=asker.address, now=trio.current_time()
    )
    if problem is not None:
        raise RequestError(problem)


def checked(verb: Verb, given: Mapping[str, object], *, from_text: bool = False) -> Arguments:
    """The arguments as the verb takes them. Raises RequestError."""
    try:
        return msgspec.convert(dict(given), verb.takes, strict=not from_text)
    except msgspec.ValidationError as error:
        raise _wrong(verb, str(error)) from None


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
