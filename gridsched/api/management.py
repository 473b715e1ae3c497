"""The verbs as REST: a route of `/api` for each that has one, on Quart. Owns how a request becomes a verb's arguments.

Must never know what a verb does.
"""

from collections.abc import Mapping
from typing import Any, cast

import msgspec
from hypercorn.typing import HTTPScope
from quart import Response, request
from quart_trio import QuartTrio

from gridsched.api.exchange import joined
from gridsched.api.gate import address_of, caller_of
from gridsched.control.operations import Operation
from gridsched.control.problems import invalid, plain
from gridsched.control.services import Services
from gridsched.control.use import use
from gridsched.control.verb import Asker, Call, Rest, Verb
from gridsched.control.verbs import VERBS


def add_verbs(app: QuartTrio, services: Services) -> None:
    """A route for each verb."""
    for verb in VERBS:
        if verb.rest is not None:
            _add(app, services, verb, verb.rest)


def _add(app: QuartTrio, services: Services, verb: Verb, rest: Rest) -> None:
    async def answer(**from_path: str) -> Response:
        body = await _body() if rest.method in {"POST", "PATCH"} else {}
        query = dict(request.args.items())
        given: Mapping[str, object] = {**query, **body, **from_path}
        told = await use(services, verb, given, Call(asker()), from_text=not body)
        if isinstance(told, Operation):
            accepted = {"id": told.id, "state": told.state.value, "text": told.text}
            return as_json(accepted, 202, {"Location": f"/api/jobs/{told.id}"})
        return as_json(told, rest.status)

    rule = rest.path.replace("{", "<path:").replace("}", ">")
    app.add_url_rule(rule, f"verb_{verb.name}", answer, methods=[rest.method])


async def _body() -> Mapping[str, Any]:
    """The JSON object of the body; nothing is one without members. Raises RequestError."""
    data = await request.get_data()
    if not data.strip():
        return {}
    try:
        told = msgspec.json.decode(data)
    except msgspec.DecodeError as error:
        raise invalid(f"the body is no JSON: {error}") from None
    if not isinstance(told, dict):
        raise invalid("the body must be a JSON object")
    return told


def asker() -> Asker:
    """Who has sent this request."""
    scope = cast("HTTPScope", request.scope)
    return Asker(
        caller_of(request.scope),
        address=address_of(request.scope),
        via="rest",
        request_id=request.headers.get("X-Request-Id", ""),
        headers=joined(scope["headers"]),
    )


def as_json(fields: object, code: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """An answer in JSON."""
    body = msgspec.json.encode(fields, enc_hook=plain)
    return Response(body, code, dict(headers or {}), content_type="application/json")
