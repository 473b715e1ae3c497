"""What a tool takes and gives as JSON Schema (draft 2020-12), made from the verb's own types.

Each schema is whole in itself: what it refers to is under its own `$defs`. Clients hold an answer against the tool's
output schema whether it is an error or not, so that allows the answer, the plan where one may come first, and an error.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from gridsched.control.consent import Consent, Planned, asks_first
from gridsched.control.verb import Answer, Verb, schema_of_anything

Schema = dict[str, Any]

WRAPPED = "result"
"""Where an answer is that is no object: the protocol takes objects only."""


class Fault(Answer, frozen=True, kw_only=True):
    """What is wrong: the same as REST's body. `gridsched` has the figures, and what to do."""

    message: str
    type: str
    code: str
    param: str | None
    gridsched: Mapping[str, Any]


class Failure(Answer, frozen=True, kw_only=True):
    """An error."""

    error: Fault


def takes(verb: Verb) -> Schema:
    """The schema of a tool's arguments."""
    schema, defs = _whole(verb.takes)
    if asks_first(verb):
        consent, _ = _whole(Consent)
        schema["properties"] = {**schema.get("properties", {}), **consent["properties"]}
    return _with_defs(schema, defs)


def gives(verb: Verb) -> Schema:
    """The schema of a tool's structured answers."""
    kinds: list[Any] = [verb.gives, *([Planned] if asks_first(verb) else []), Failure]
    (own, *others), defs = _schemas(kinds)
    if not _is_object(own, defs):
        own = {"type": "object", "properties": {WRAPPED: own}, "required": [WRAPPED]}
    return _with_defs({"type": "object", "anyOf": [own, *others]}, defs)


def _schemas(kinds: Sequence[Any]) -> tuple[list[Schema], Schema]:
    schemas, defs = msgspec.json.schema_components(kinds, schema_hook=schema_of_anything, ref_template="#/$defs/{name}")
    return list(schemas), dict(defs)


def _whole(kind: Any) -> tuple[Schema, Schema]:
    """The schema of a struct itself, in place of a reference to it, and those that it refers to."""
    (schema,), defs = _schemas([kind])
    return dict(defs.pop(schema["$ref"].rpartition("/")[2])), defs


def _is_object(schema: Schema, defs: Schema) -> bool:
    if "$ref" in schema:
        return _is_object(defs[schema["$ref"].rpartition("/")[2]], defs)
    if "anyOf" in schema:
        return all(_is_object(each, defs) for each in schema["anyOf"])
    return schema.get("type") == "object"


def _with_defs(schema: Schema, defs: Schema) -> Schema:
    return {**schema, "$defs": defs} if defs else schema
