"""The verbs as REST: a route of `/api` for each that has one, on Quart.

Owns how a request becomes a verb's arguments, and what of a long verb is answered when. A name in a path may have
slashes; one that ends like another route (`a/plan`) is asked for with them encoded (`a%2Fplan`). Must never know what a
verb does.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast
from urllib.parse import unquote, unquote_to_bytes

import msgspec
import trio
from hypercorn.typing import HTTPScope
from quart import Response, request
from quart_trio import QuartTrio
from werkzeug.routing import BaseConverter, Map

from gridsched.api.content import check_said
from gridsched.api.exchange import joined
from gridsched.api.gate import address_of, caller_of, request_id_in
from gridsched.api.members import BadBody, members
from gridsched.control.consent import DRY_RUN, asks_first, consequences
from gridsched.control.jobs import operation
from gridsched.control.openapi import LONGEST_WAIT_SECONDS, WAIT
from gridsched.control.operations import Operation, State
from gridsched.control.problems import RequestError, invalid, plain
from gridsched.control.services import Services
from gridsched.control.use import Texts, allow, asked_for, use
from gridsched.control.verb import Asker, Call, Rest, Verb
from gridsched.control.verbs import VERBS

ACCEPTED: Final = 202
_TRUE_FALSE: Final = {"1": True, "true": True, "0": False, "false": False}
_HAVE_A_BODY: Final = frozenset({"POST", "PATCH"})


class NameConverter(BaseConverter):
    """A name in a path, slashes included. One whose end, after a slash, is one of `words` is another route's."""

    part_isolating = False
    weight = 200

    def __init__(self, url_map: Map, *words: str) -> None:
        super().__init__(url_map)
        others = f"(?!.+/(?:{'|'.join(words)})\\Z)" if words else ""
        self.regex = rf"{others}[^/].*?"

    def to_python(self, value: str) -> str:
        """The name, of a path as `as_segments` has it."""
        return unquote(value)


def as_segments(scope: HTTPScope) -> str:
    """The path with the slashes that are part of a name still encoded, and every other character as it is meant."""
    raw = scope["raw_path"]
    if unquote_to_bytes(raw).decode("utf-8", "replace") != scope["path"]:
        return scope["path"]  # its target named a host, too
    segments = (unquote(segment) for segment in raw.decode("ascii", "replace").split("/"))
    return "/".join(segment.replace("%", "%25").replace("/", "%2F") for segment in segments)


def add_verbs(app: QuartTrio, services: Services) -> None:
    """A route for each verb."""
    app.url_map.converters["name"] = NameConverter
    paths = [verb.rest.path for verb in VERBS if verb.rest is not None]
    for verb in VERBS:
        if verb.rest is not None:
            _add(app, services, verb, verb.rest, rule_of(verb.rest.path, paths))


def rule_of(path: str, paths: Sequence[str]) -> str:
    """The path as Quart's router has it; what follows a name in another one's path does not end a name here."""
    ends = sorted({other.removeprefix(f"{path}/") for other in paths if other.startswith(f"{path}/")})
    words = ", ".join(f'"{end}"' for end in ends if "/" not in end and "{" not in end)
    head, brace, name = path.rpartition("{")
    if brace and name.endswith("}") and words:
        path = f"{head}<name({words}):{name[:-1]}>"
    return path.replace("{", "<name:").replace("}", ">")


def _add(app: QuartTrio, services: Services, verb: Verb, rest: Rest, rule: str) -> None:
    async def answer(**from_path: str) -> Response:
        call = Call(asker())
        try:
            said = await _said(verb, rest, from_path)
        except RequestError:
            allow(services, verb, call)  # who may not use it is told that, not what is wrong
            raise
        texts, given = said.texts, said.given
        if said.dry_run:
            allow(services, verb, call)
            return as_json(await consequences(services, verb, asked_for(services, verb, given, call, texts), call))
        told = await use(services, verb, given, call, texts)
        if isinstance(told, Operation):
            return await _long(told, said.wait_seconds, rest)
        return as_json(told, rest.status)

    app.add_url_rule(rule, f"verb_{verb.name}", answer, methods=[rest.method])


@dataclass(frozen=True, slots=True)
class _Said:
    """What a request says: arguments as texts and as JSON, and what is said beside them."""

    texts: Texts
    given: Mapping[str, object]
    dry_run: bool
    wait_seconds: float


async def _said(verb: Verb, rest: Rest, path: Mapping[str, str]) -> _Said:
    """Raises RequestError, also where something is said twice."""
    query = dict(request.args.lists())
    body = await _body(has_one=rest.method in _HAVE_A_BODY)
    wait = query.pop(WAIT, None) if verb.long else None
    dry_run = query.pop(DRY_RUN, ["0"]) if asks_first(verb) else ["0"]
    for name in path.keys() & (query.keys() | body.keys()):
        raise invalid(f"{name} is in the path already", name)
    for name in query.keys() & body.keys():
        raise invalid(f"{name} is in the query and in the body", name)
    texts = {**query, **{name: [value] for name, value in path.items()}}
    return _Said(texts, body, _is_true(dry_run), _wait(wait))


async def _long(told: Operation, wait_seconds: float, rest: Rest) -> Response:
    """The answer of a long verb where it ends in time, else the operation. Raises RequestError where it fails in
    time."""
    with trio.move_on_after(wait_seconds):
        await told.wait()
    if told.state is State.RUNNING:
        return as_json(operation(told), ACCEPTED, {"Location": f"/api/jobs/{told.id}"})
    return as_json(told.outcome(), rest.status)


def _wait(given: Sequence[str] | None) -> float:
    """How long is waited for the end of a long verb: as the query says, else as the client prefers. Raises
    RequestError."""
    if given is not None:
        try:
            (seconds,) = map(float, given)
        except ValueError:
            seconds = -1.0
        if not 0.0 <= seconds <= LONGEST_WAIT_SECONDS:
            raise invalid(f"wait is one number of seconds, from 0 to {LONGEST_WAIT_SECONDS:.0f}", WAIT)
        return seconds
    for preference in request.headers.get("Prefer", "").replace(";", ",").split(","):
        name, _, value = preference.partition("=")
        if name.strip().lower() == WAIT and value.strip().isascii() and value.strip().isdigit():
            return min(float(value), LONGEST_WAIT_SECONDS)
    return 0.0


def _is_true(given: Sequence[str]) -> bool:
    """Raises RequestError."""
    found = _TRUE_FALSE.get(given[0].lower()) if len(given) == 1 else None
    if found is None:
        raise invalid(f"{DRY_RUN} is given once, as true or false", DRY_RUN)
    return found


async def _body(*, has_one: bool) -> Mapping[str, Any]:
    """The JSON object of the body; nothing is one without members. Raises RequestError."""
    data = cast("bytes", await request.get_data())
    if not data.strip():
        return {}
    if not has_one:
        raise invalid(f"{request.method} takes no body here: what it is to know is in the path and the query")
    check_said(joined(cast("HTTPScope", request.scope)["headers"]), data, form=False)
    try:
        members(data)
    except BadBody as error:
        raise invalid(str(error)) from None
    told: Mapping[str, Any] = msgspec.json.decode(data)
    return told


def asker() -> Asker:
    """Who has sent this request."""
    scope = cast("HTTPScope", request.scope)
    return Asker(
        caller_of(request.scope),
        address=address_of(request.scope),
        via="rest",
        request_id=request_id_in(request.scope),
        headers=joined(scope["headers"]),
    )


def as_json(fields: object, code: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """An answer in JSON."""
    body = msgspec.json.encode(fields, enc_hook=plain)
    return Response(body, code, dict(headers or {}), content_type="application/json")
