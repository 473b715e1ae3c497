"""The OpenAPI document: it is one, it has every route, and each route's answer is what it says."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import jsonschema
import pytest
from openapi_spec_validator import OpenAPIV31SpecValidator
from trio.testing import MockClock

from gridsched.api import events
from gridsched.control.openapi import PATH, document
from gridsched.control.verb import Verb
from gridsched.control.verbs import VERBS
from tests.support.front import ADMIN_WORD, Answer, House, serving

ADMIN = {"Authorization": f"Bearer {ADMIN_WORD}"}
MODEL = "sim-chat-4b"
DOCUMENT = document(VERBS)


@pytest.mark.slow
def test_the_document_is_openapi_3_1() -> None:
    """By the validator of the specification."""
    assert list(OpenAPIV31SpecValidator(DOCUMENT).iter_errors()) == []


def test_every_verb_with_a_route_is_in_it_under_its_own_name() -> None:
    """And what no verb is beside."""
    told = {
        each["operationId"]: (method.upper(), path)
        for path, methods in DOCUMENT["paths"].items()
        for method, each in methods.items()
    }
    by_hand = {
        "get_health": ("GET", "/health"),
        "get_metrics": ("GET", "/metrics"),
        "get_events": ("GET", "/api/events"),
    }
    assert told == by_hand | {verb.name: (verb.rest.method, verb.rest.path) for verb in VERBS if verb.rest is not None}


def test_what_may_be_asked_of_the_decision_log_is_what_it_takes() -> None:
    """It is written down twice."""
    (route,) = DOCUMENT["paths"]["/api/events"].values()
    assert {each["name"] for each in route["parameters"] if each["in"] == "query"} == set(events.PARAMETERS)


def test_every_argument_and_member_says_what_it_is() -> None:
    """Of arguments all; of what is answered the type at least."""
    for path, methods in DOCUMENT["paths"].items():
        for route in methods.values():
            for each in route["parameters"]:
                assert each["description"], (path, each["name"])
            body = route.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
            for name, member in body.get("properties", {}).items():
                assert "description" in str(member), (path, name)
    for name, schema in DOCUMENT["components"]["schemas"].items():
        assert schema.get("description"), name


@dataclass(frozen=True)
class Happy:
    """A request that is answered well on a simulated server, after others."""

    target: str
    body: object = None
    before: tuple[tuple[str, str], ...] = ()
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=lambda: ADMIN)


LOADED = (("POST", f"/api/models/{MODEL}/load?wait=500"),)

HAPPY: Mapping[str, tuple[Happy, ...]] = {
    "server_status": (Happy("/api/status"), Happy("/api/status", before=LOADED)),
    "list_models": (Happy("/api/models"), Happy("/api/models?limit=2", before=LOADED)),
    "get_model": (Happy(f"/api/models/{MODEL}"), Happy(f"/api/models/{MODEL}", before=LOADED)),
    "plan_load": (
        Happy(f"/api/models/{MODEL}/plan"),
        Happy(f"/api/models/{MODEL}/plan", before=LOADED),
        Happy(f"/api/models/{MODEL}/plan?ctx=2000000000"),
    ),
    "list_jobs": (Happy("/api/jobs"), Happy("/api/jobs", before=LOADED)),
    "explain": (Happy("/api/jobs/op-1", before=LOADED),),
    "connection_info": (Happy("/api/connection"),),
    "check_setup": (Happy("/api/setup"),),
    "cancel_job": (Happy("/api/jobs/op-1?dry_run=1", before=(("POST", f"/api/models/{MODEL}/load"),)),),
    "load_model": (
        Happy(f"/api/models/{MODEL}/load", status=202),
        Happy(f"/api/models/{MODEL}/load?wait=500"),
        Happy(f"/api/models/{MODEL}/load?dry_run=1"),
    ),
    "unload_model": (Happy(f"/api/models/{MODEL}/unload?wait=500", before=LOADED),),
    "pin_model": (Happy(f"/api/models/{MODEL}/pin"),),
    "unpin_model": (Happy(f"/api/models/{MODEL}/unpin"),),
    "tail_logs": (Happy(f"/api/logs/{MODEL}", before=LOADED),),
    "model_options": (Happy("/api/options"),),
    "get_openapi": (Happy(PATH),),
    "drain": (Happy("/api/drain", status=202),),
    "restart": (Happy("/api/restart", status=202),),
}


def schema_of(answer: Answer, verb: Verb) -> Mapping[str, Any]:
    """The schema of an answer's status, in the whole document so that its references are found."""
    assert verb.rest is not None
    route = DOCUMENT["paths"][verb.rest.path][verb.rest.method.lower()]
    said = route["responses"][str(answer.status)]
    if "$ref" in said:
        said = DOCUMENT["components"]["responses"][said["$ref"].rpartition("/")[2]]
    schema: Mapping[str, Any] = said["content"]["application/json"]["schema"]
    return {**schema, "components": DOCUMENT["components"]}


async def ask(house: House, verb: Verb, happy: Happy) -> Answer:
    """The answer, after what comes before."""
    assert verb.rest is not None
    for method, target in happy.before:
        assert (await house.ask(method, target, None, ADMIN)).status < 300
    return await house.ask(verb.rest.method, happy.target, happy.body, happy.headers)


@pytest.mark.parametrize(
    ("verb", "happy"),
    [(verb, happy) for verb in VERBS for happy in HAPPY.get(verb.name, ())],
    ids=lambda value: value.name if isinstance(value, Verb) else None,
)
async def test_an_answer_is_what_the_document_says(autojump_clock: MockClock, verb: Verb, happy: Happy) -> None:
    """Every member that is required is there, and nothing is of another type."""
    async with serving(autojump_clock) as house:
        answer = await ask(house, verb, happy)
        assert answer.status == happy.status, answer.body
        jsonschema.validate(answer.json, schema_of(answer, verb), jsonschema.Draft202012Validator)


@pytest.mark.parametrize("verb", [verb for verb in VERBS if verb.rest is not None], ids=lambda verb: verb.name)
async def test_a_refusal_is_what_the_document_says(autojump_clock: MockClock, verb: Verb) -> None:
    """Of every route, without the credential or with an argument that is none."""
    async with serving(autojump_clock) as house:
        assert verb.rest is not None
        path = verb.rest.path.replace("{", "none-such-").replace("}", "")
        for headers in (ADMIN, {"Authorization": "Bearer wrong", "X-Forwarded-For": "203.0.113.9"}):
            answer = await house.ask(verb.rest.method, f"{path}?no_such_argument=1", None, headers)
            assert answer.status in {400, 401, 403}
            jsonschema.validate(answer.json, schema_of(answer, verb), jsonschema.Draft202012Validator)
