"""What is told of the tools: their names, schemas and hints."""

import json
from collections.abc import Iterator
from pathlib import Path

import jsonschema
import pytest

from gridsched.control.authority import ANYBODY, NOBODY, Caller
from gridsched.control.consent import asks_first
from gridsched.credentials import Scope
from gridsched.mcp.tools import TOOLS, tool, tools_for

CONTRACT = (Path(__file__).parents[1] / "golden/tools.txt").read_text(encoding="utf-8").split()


def test_the_tools_are_those_that_were_promised() -> None:
    """Nothing else is one; above all nothing that asks a model."""
    assert set(TOOLS) == set(CONTRACT)
    assert len(CONTRACT) == len(TOOLS) == 23


@pytest.mark.parametrize("name", sorted(TOOLS))
def test_a_tool_says_what_it_takes_and_gives(name: str) -> None:
    """Schemas of draft 2020-12 that are objects and refer to nothing outside themselves; no word is missing."""
    told, verb = tool(name), TOOLS[name]
    for schema in (told.input_schema, told.output_schema):
        assert schema is not None
        jsonschema.Draft202012Validator.check_schema(schema)
        assert schema["type"] == "object"
        assert all(ref.removeprefix("#/$defs/") in schema["$defs"] for ref in refs(schema)), schema
    assert told.input_schema["additionalProperties"] is False
    assert ({"dry_run", "token"} <= set(told.input_schema["properties"])) == asks_first(verb)
    hints = told.annotations
    assert hints is not None
    assert told.title
    assert told.description
    assert hints.read_only_hint is verb.reads
    assert hints.destructive_hint is verb.destructive
    assert not (hints.read_only_hint and hints.destructive_hint)
    assert hints.idempotent_hint is (verb.idempotent or verb.reads)
    assert len(json.dumps(told.model_dump(by_alias=True))) < 64 * 1024


def refs(value: object) -> Iterator[str]:
    """Every `$ref` inside."""
    if isinstance(value, dict):
        if isinstance(value.get("$ref"), str):
            yield value["$ref"]
        for each in value.values():
            yield from refs(each)
    elif isinstance(value, list):
        for each in value:
            yield from refs(each)


def test_an_error_and_a_plan_are_answers_that_a_tool_may_give() -> None:
    """A client that holds every answer against the schema takes them; where nothing asks first there is no plan."""
    error = {"message": "no", "type": "server_error", "param": None, "code": "conflict", "gridsched": {}}
    plan = {"text": "Not done", "plan": {"text": "it goes", "harms": True}, "token": "t", "expires_s": 300.0}
    for name in TOOLS:
        validator = jsonschema.Draft202012Validator(tool(name).output_schema or {})
        assert validator.is_valid({"error": error}), name
        assert validator.is_valid(plan) or not asks_first(TOOLS[name]), name


def test_H6_a_key_is_shown_what_it_may_use() -> None:
    """Whoever has shown none is told of all, because a refusal says which credential is wanted."""
    for scope in Scope:
        names = [each.name for each in tools_for(Caller(frozenset({scope}), "a-key"))]
        assert names == [name for name, verb in TOOLS.items() if scope in verb.scopes]
    assert "load_model" in {each.name for each in tools_for(Caller(frozenset({Scope.RESIDENCY}), "a-key"))}
    assert [each.name for each in tools_for(ANYBODY)] == list(TOOLS)
    assert [each.name for each in tools_for(NOBODY)] == list(TOOLS)
