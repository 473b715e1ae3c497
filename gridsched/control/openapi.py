"""The OpenAPI 3.1 document of the routes beside the data plane, and the verb that gives it.

Made from the verbs: their paths, their arguments' and answers' types, what they may be refused with; what no verb is
(`/health`, `/metrics`, `/api/events`) is written here by hand, in one place. Owns no route. It says nothing that a
reader of this code does not know, but who needs it can read the server anyway: it has the scope `read`.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from gridsched import __version__
from gridsched.control.consent import DRY_RUN, asks_first
from gridsched.control.jobs import OperationAnswer
from gridsched.control.problems import STATUS
from gridsched.control.services import Services
from gridsched.control.verb import Answer, Call, Consequences, Nothing, Rest, Verb, schema_of_anything
from gridsched.core.job import JobClass
from gridsched.credentials import Scope

Schema = dict[str, Any]

PATH: Final = "/api/openapi.json"
WAIT: Final = "wait"
LONGEST_WAIT_SECONDS: Final = 600.0
_REFS: Final = "#/components/schemas/{name}"
_JSON: Final = "application/json"
_ACCEPTED: Final = 202
_HAVE_A_BODY: Final = frozenset({"POST", "PATCH"})
_OF_A_BODY: Final = frozenset({411, 415})
_ANYWHERE: Final = frozenset(STATUS.values()) - _OF_A_BODY - {405}


class Fault(Answer, frozen=True, kw_only=True):
    """What has gone wrong."""

    message: str
    type: Annotated[str, Meta(description="OpenAI's kind of error.")]
    param: Annotated[str | None, Meta(description="Which argument is wrong.")]
    code: Annotated[str, Meta(description="One word for it.")]
    gridsched: Annotated[Mapping[str, Any], Meta(description="The arithmetic of it; `do` says what helps.")]


class ErrorAnswer(Answer, frozen=True, kw_only=True):
    """Every error has this shape."""

    error: Fault


def describing(verbs: Callable[[], Sequence[Verb]]) -> Verb:
    """The verb that describes them all, itself too."""

    @cache
    def made() -> Schema:
        return document(verbs())

    async def describe(services: Services, _: Nothing, call: Call) -> Schema:  # noqa: ARG001 - of every verb
        return made()

    return Verb(
        name="get_openapi",
        summary="This document",
        description="The OpenAPI description of these routes.",
        scope=Scope.READ,
        takes=Nothing,
        gives=dict[str, Any],
        act=describe,
        rest=Rest("GET", PATH),
        reads=True,
    )


def document(verbs: Sequence[Verb]) -> Schema:
    """The whole document."""
    routed = [verb for verb in verbs if verb.rest is not None]
    given, schemas = _schemas([verb.gives for verb in routed] + [Consequences, OperationAnswer, ErrorAnswer])
    for schema in schemas.values():
        _always_whole(schema)
    taken, inputs = _schemas([verb.takes for verb in routed])
    paths: dict[str, Schema] = _by_hand()
    for verb, takes, gives in zip(routed, taken, given, strict=False):
        rest = verb.rest
        assert rest is not None  # noqa: S101 - for the type checker
        paths.setdefault(rest.path, {})[rest.method.lower()] = _operation(verb, rest, _found(takes, inputs), gives)
    arguments = {verb.takes.__name__ for verb in routed}
    schemas |= {name: schema for name, schema in inputs.items() if name not in arguments}
    return {
        "openapi": "3.1.0",
        "info": {"title": "gridsched", "version": __version__, "description": _ABOUT},
        "servers": [{"url": "/"}],
        "tags": [{"name": name} for name in sorted({_tag(path) for path in paths})],
        "security": [{"bearer": []}, {"key": []}, {}],
        "paths": paths,
        "components": {"schemas": schemas, "responses": _refusals(), "securitySchemes": _SECURITY},
    }


_ABOUT: Final = (
    "What may be done with a running server. A name in a path may have slashes: encode them. A server without keys"
    " takes callers of its own machine without a credential; what needs the scope admin wants the admin token."
)
_SECURITY: Final[Schema] = {
    "bearer": {"type": "http", "scheme": "bearer", "description": "An API key, or the admin token."},
    "key": {"type": "apiKey", "in": "header", "name": "x-api-key", "description": "The same."},
}


# --- schemas ----------------------------------------------------------------------------------------------------------


def _schemas(kinds: Iterable[Any]) -> tuple[list[Schema], dict[str, Schema]]:
    schemas, named = msgspec.json.schema_components(kinds, schema_hook=schema_of_anything, ref_template=_REFS)
    return list(schemas), dict(named)


def _always_whole(schema: Schema) -> None:
    """An answer has all of its members, also those that code may leave out."""
    properties: Mapping[str, Schema] = schema.get("properties", {})
    required = set(schema.get("required", ()))
    schema["required"] = [name for name, each in properties.items() if name in required or "default" in each]
    for each in properties.values():
        each.pop("default", None)


def _found(schema: Schema, named: Mapping[str, Schema]) -> Schema:
    """The schema itself, in place of a reference to it."""
    reference = schema.get("$ref")
    return named[reference.rpartition("/")[2]] if reference is not None else schema


# --- one operation ----------------------------------------------------------------------------------------------------


def _operation(verb: Verb, rest: Rest, takes: Schema, gives: Schema) -> Schema:
    properties: dict[str, Schema] = takes.get("properties", {})
    required = set(takes.get("required", ()))
    in_path = [name for name in properties if f"{{{name}}}" in rest.path]
    others = {name: each for name, each in properties.items() if name not in in_path}
    has_body = rest.method in _HAVE_A_BODY
    parameters = [_parameter(name, properties[name], "path", required=True) for name in in_path]
    if not has_body:
        parameters += [_parameter(name, each, "query", required=name in required) for name, each in others.items()]
    operation: Schema = {
        "operationId": verb.name,
        "summary": verb.summary,
        "description": verb.description,
        "tags": [_tag(rest.path)],
        "parameters": parameters + _beside(verb),
        "responses": _answers(verb, rest, gives),
        "x-scopes": [scope.value for scope in verb.scopes],
    }
    if has_body and others:
        body = {"type": "object", "properties": others, "additionalProperties": False}
        wanted = [name for name in others if name in required]
        operation["requestBody"] = {
            "required": bool(wanted),
            "content": {_JSON: {"schema": body | ({"required": wanted} if wanted else {})}},
        }
    return operation


def _parameter(name: str, schema: Schema, place: str, *, required: bool) -> Schema:
    """An argument in the path or the query, where there is no null: it is left out."""
    plain = {key: each for key, each in schema.items() if key not in {"description", "default"}}
    if "anyOf" in plain:
        kinds = [each for each in plain.pop("anyOf") if each.get("type") != "null"]
        plain |= kinds[0] if len(kinds) == 1 else {"anyOf": kinds}
    description = plain.pop("description", None) or schema.get("description", "")
    if schema.get("default") is not None:
        plain["default"] = schema["default"]
    return {"name": name, "in": place, "required": required, "description": description, "schema": plain}


def _beside(verb: Verb) -> list[Schema]:
    """What is said beside the verb's own arguments."""
    found: list[Schema] = []
    if verb.long:
        seconds = {"type": "number", "minimum": 0, "maximum": LONGEST_WAIT_SECONDS}
        text = "Wait so many seconds for its end, and answer its result."
        found.append({"name": WAIT, "in": "query", "required": False, "description": text, "schema": seconds})
        text = "`wait=N`: the same, as a preference."
        found.append({"name": "Prefer", "in": "header", "required": False, "description": text, "schema": _TEXT})
    if asks_first(verb):
        text = "Only say what would come of it."
        schema = {"type": "boolean", "default": False}
        found.append({"name": DRY_RUN, "in": "query", "required": False, "description": text, "schema": schema})
    return found


_TEXT: Final[Schema] = {"type": "string"}


def _answers(verb: Verb, rest: Rest, gives: Schema) -> Schema:
    consequences = {"$ref": _REFS.format(name=Consequences.__name__)}
    answers = {str(rest.status): _content("What the verb gives.", gives)}
    if asks_first(verb):
        told = answers.setdefault("200", _content("What would come of it.", consequences))
        if rest.status == 200:  # noqa: PLR2004 - HTTP's word for success
            told["content"][_JSON]["schema"] = {"anyOf": [gives, consequences]}
    if verb.long:
        running = _content("It runs; follow it there.", {"$ref": _REFS.format(name=OperationAnswer.__name__)})
        running["headers"] = {"Location": {"description": "Where it is followed.", "schema": _TEXT}}
        answers[str(_ACCEPTED)] = running
    for status in sorted(_ANYWHERE | (_OF_A_BODY if rest.method in _HAVE_A_BODY else set())):
        answers[str(status)] = {"$ref": f"#/components/responses/{_name_of(status)}"}
    return answers


def _content(description: str, schema: Schema, media_type: str = _JSON) -> Schema:
    return {"description": description, "content": {media_type: {"schema": schema}}}


def _name_of(status: int) -> str:
    return f"Error{status}"


def _refusals() -> Schema:
    """Every error status, with its codes."""
    schema = {"$ref": _REFS.format(name=ErrorAnswer.__name__)}
    headers = {
        "Retry-After": {"description": "Seconds, where asking again helps.", "schema": {"type": "integer"}},
        "X-Should-Retry": {"description": "true or false.", "schema": {"enum": ["true", "false"]}},
    }
    found = {}
    for status in sorted(set(STATUS.values())):
        codes = ", ".join(code for code, each in STATUS.items() if each == status)
        found[_name_of(status)] = _content(f"{codes}.", schema) | {"headers": headers}
    return found


def _tag(path: str) -> str:
    """What a path is about: `models`, `jobs`; the server itself where it says nothing more."""
    parts = path.strip("/").split("/")
    return parts[1] if len(parts) > 1 and parts[0] == "api" and "." not in parts[1] else "server"


# --- what no verb is --------------------------------------------------------------------------------------------------


def _by_hand() -> dict[str, Schema]:
    """Routes that speak another language than a verb's."""
    errors = {str(status): {"$ref": f"#/components/responses/{_name_of(status)}"} for status in sorted(_ANYWHERE)}
    health = _content("Alive; whether it can serve is said inside.", _HEALTH)
    ill = _content("Asked deep: a loaded model does not answer. Or a refusal.", {"type": "object"})
    stream = _content(
        "Events: `id` is a line's number, `data` the line as JSON; `event: status` has no id, its data is /api/status.",
        _TEXT,
        "text/event-stream",
    )
    exposition = _content("The metrics.", _TEXT, "text/plain")
    exposition["content"]["application/openmetrics-text"] = {"schema": _TEXT}
    return {
        "/health": {"get": _route("get_health", "How the server is", [_DEEP], errors | {"200": health, "503": ill})},
        "/metrics": {"get": _route("get_metrics", "Prometheus metrics", [], errors | {"200": exposition})},
        "/api/events": {"get": _route("get_events", "The decision log", _OF_EVENTS, errors | {"200": stream})},
    }


def _route(name: str, summary: str, parameters: list[Schema], responses: Schema) -> Schema:
    scopes = [] if name == "get_health" else [Scope.READ.value]
    return {
        "operationId": name,
        "summary": summary,
        "tags": ["server"],
        "parameters": parameters,
        "responses": responses,
        "x-scopes": scopes,
    }


def _of_query(name: str, description: str, schema: Schema) -> Schema:
    return {"name": name, "in": "query", "required": False, "description": description, "schema": schema}


_NUMBER: Final[Schema] = {"type": "integer", "minimum": 0}
_HEALTH: Final[Schema] = {
    "type": "object",
    "required": ["status", "can_serve", "version", "uptime_s", "draining", "boot", "engine", "devices"],
    "properties": {"status": {"const": "ok"}, "can_serve": {"type": "boolean"}, "version": _TEXT},
}
_DEEP: Final = _of_query("deep", "1: run a real request against each loaded model.", {"enum": ["0", "1"]})
_OF_EVENTS: Final = [
    _of_query("since", "A line's number, 5m, a time with its zone, or start. Last-Event-ID goes before.", _TEXT),
    _of_query("follow", "0: end with the lines that are kept.", {"enum": ["0", "1"]}),
    _of_query("event", "Only these events; may be given several times.", {"type": "array", "items": _TEXT}),
    _of_query("class", "Only lines about this class.", {"enum": [each.label for each in JobClass]}),
    _of_query("model", "Only lines about this model, by any of its names.", _TEXT),
    _of_query("job", "Only lines about this job.", _NUMBER),
    _of_query("status", "1: the status too, as events of that name.", {"enum": ["0", "1"]}),
    {
        "name": "Last-Event-ID",
        "in": "header",
        "required": False,
        "description": "As a browser sends it.",
        "schema": _NUMBER,
    },
]
