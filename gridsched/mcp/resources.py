"""What can be read without calling a tool: the status, the configuration's schema, a model's log.

Owns their addresses. Each is what a verb answers, so that whoever may not use that may not read it either.
"""

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

import msgspec
from mcp.shared.exceptions import MCPError
from mcp_types import INVALID_PARAMS, Resource, ResourceTemplate, TextResourceContents

from gridsched.control.problems import RequestError, plain
from gridsched.control.services import Services
from gridsched.control.use import use
from gridsched.control.verb import Call
from gridsched.control.verbs import BY_NAME

_JSON = "application/json"
STATUS, SCHEMA = "gridsched://status", "gridsched://config/schema"
_LOG = re.compile(r"gridsched://models/(?P<model>.+)/log")

RESOURCES = [
    Resource(name="status", uri=STATUS, title="How the server stands", mime_type=_JSON),
    Resource(name="config_schema", uri=SCHEMA, title="What the configuration may say", mime_type=_JSON),
]
TEMPLATES = [
    ResourceTemplate(
        name="model_log",
        uri_template="gridsched://models/{id}/log",
        title="What a model's engine has printed last",
        mime_type="text/plain",
    )
]


async def read(services: Services, uri: str, call: Call) -> TextResourceContents:
    """What is there. Raises MCPError."""
    verb, given = _behind(uri)
    if verb not in BY_NAME:
        raise MCPError(INVALID_PARAMS, f"there is no resource {uri[:200]!r}", {"uri": uri[:200]})
    try:
        told = await use(services, BY_NAME[verb], given, call)
    except RequestError as error:
        body = msgspec.json.decode(error.problem.body())
        raise MCPError(INVALID_PARAMS, error.problem.message, body) from None
    if verb == "tail_logs":
        return TextResourceContents(uri=uri, mime_type="text/plain", text=_lines(told))
    text = msgspec.json.encode(told, enc_hook=plain).decode()
    return TextResourceContents(uri=uri, mime_type=_JSON, text=text)


def _behind(uri: str) -> tuple[str, Mapping[str, str]]:
    """The verb that answers for an address, and its arguments; no verb's name where there is none."""
    if (found := _LOG.fullmatch(uri)) is not None:
        return "tail_logs", {"model": unquote(found["model"])}
    return {STATUS: "server_status", SCHEMA: "config_schema"}.get(uri, ""), {}


def _lines(told: Any) -> str:
    fields = msgspec.to_builtins(told, enc_hook=plain)
    return "".join(f"{line['text'] if isinstance(line, dict) else line}\n" for line in fields["lines"])
