"""The tools: which verbs they are, what is told of each, and who is shown which. Pure.

Owns no list of its own: a tool is a row of `control.verbs` that says so.
"""

from collections.abc import Mapping
from functools import cache

from mcp_types import Tool, ToolAnnotations

from gridsched.control.authority import Caller
from gridsched.control.consent import asks_first
from gridsched.control.verb import Verb
from gridsched.control.verbs import VERBS
from gridsched.mcp.schemas import gives, takes

TOOLS: Mapping[str, Verb] = {verb.name: verb for verb in VERBS if verb.tool}

_ASKS = (
    " What would harm somebody is not done at once: the answer is the plan and a token, and the same call with the"
    " token carries it out if the plan still holds. dry_run only plans."
)


@cache
def tool(name: str) -> Tool:
    """One of them, as a client is told of it."""
    verb = TOOLS[name]
    return Tool(
        name=name,
        title=verb.summary,
        description=verb.description + (_ASKS if asks_first(verb) else ""),
        input_schema=takes(verb),
        output_schema=gives(verb),
        annotations=ToolAnnotations(
            title=verb.summary,
            read_only_hint=verb.reads,
            destructive_hint=verb.destructive,
            idempotent_hint=verb.idempotent or verb.reads,
            open_world_hint=verb.open_world,
        ),
    )


def tools_for(caller: Caller) -> list[Tool]:
    """Those that a key may use. Who has none is told of all: a refusal says which credential is wanted."""
    return [tool(name) for name, verb in TOOLS.items() if not caller.key or not caller.scopes.isdisjoint(verb.scopes)]
