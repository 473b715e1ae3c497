"""The verbs as an MCP server: the SDK's low-level one, its handlers made from the tables here.

Owns what the server says of itself. Imported when the first client comes: the SDK takes half a second to import. Who
asks is in each request's scope, because nothing is kept between two requests.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel.server import Server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.shared.exceptions import MCPError
from mcp_types import (
    INVALID_PARAMS,
    CallToolRequestParams,
    CallToolResult,
    ListResourcesResult,
    ListResourceTemplatesResult,
    ListToolsResult,
    PaginatedRequestParams,
    ReadResourceRequestParams,
    ReadResourceResult,
)

from gridsched import __version__
from gridsched.control.services import Services
from gridsched.control.verb import Asker, Call
from gridsched.mcp.calling import Progress, called
from gridsched.mcp.resources import RESOURCES, TEMPLATES, read
from gridsched.mcp.tools import TOOLS, tool, tools_for

ASKER: Final = "gridsched.asker"
"""Where a request's scope says who asks."""

LONGEST_SAID = 100

INSTRUCTIONS = (
    "gridsched schedules one machine's graphics cards for local language models. These tools look after it: which"
    " models are loaded, who waits and why, leases of cards, the configuration. Models are not asked here: inference is"
    " the OpenAI-compatible API under /v1 of the same address (connection_info gives the URLs and headers; Anthropic's"
    " clients work too). Ask server_status or list_models first. What would harm somebody (evict a model, break off"
    " work) is answered with its plan and a token, and done when it is asked again with that token. An error says what"
    " to do about it; explain says why a job waits."
)

Context = ServerRequestContext[Any, Any]


def build(services: Services) -> StreamableHTTPSessionManager:
    """What serves the protocol over HTTP. It runs once; another server has another one."""
    server: Server[Any] = Server(
        "gridsched",
        version=__version__,
        title="gridsched",
        instructions=INSTRUCTIONS,
        get_tool_input_schema=input_schema,
        on_list_tools=_list_tools,
        on_call_tool=_call_tool(services),
        on_list_resources=_list_resources,
        on_list_resource_templates=_list_templates,
        on_read_resource=_read_resource(services),
    )
    return StreamableHTTPSessionManager(server, stateless=True)


def input_schema(name: str) -> Mapping[str, Any] | None:
    """What a tool takes; None for one that is not there."""
    return tool(name).input_schema if name in TOOLS else None


def unknown_tool(name: str) -> MCPError:
    """The protocol's own error for it."""
    return MCPError(INVALID_PARAMS, f"there is no tool {name[:LONGEST_SAID]!r}; tools/list names those there are")


def progress_of(ctx: Context) -> Progress | None:
    """How to tell the client of this call how far it has come, if it wants to know."""
    wanted = (ctx.meta or {}).get("progress_token")
    if wanted is None:
        return None
    session, request_id = ctx.session, str(ctx.request_id)

    async def tell(done: float, total: float | None, text: str) -> None:
        await session.send_progress_notification(wanted, done, total, text or None, related_request_id=request_id)

    return tell


def _asker(ctx: Context) -> Asker:
    asker = ctx.request.scope[ASKER] if ctx.request is not None else None
    assert isinstance(asker, Asker)  # noqa: S101 - for the type checker
    return asker


async def _list_tools(ctx: Context, _: PaginatedRequestParams | None) -> ListToolsResult:
    return ListToolsResult(tools=tools_for(_asker(ctx).caller))


async def _list_resources(_: Context, __: PaginatedRequestParams | None) -> ListResourcesResult:
    return ListResourcesResult(resources=RESOURCES)


async def _list_templates(_: Context, __: PaginatedRequestParams | None) -> ListResourceTemplatesResult:
    return ListResourceTemplatesResult(resource_templates=TEMPLATES)


def _call_tool(services: Services) -> Callable[[Context, CallToolRequestParams], Any]:
    async def call(ctx: Context, params: CallToolRequestParams) -> CallToolResult:
        verb = TOOLS.get(params.name)
        if verb is None:
            raise unknown_tool(params.name)
        return await called(services, verb, params.arguments or {}, Call(_asker(ctx)), progress_of(ctx))

    return call


def _read_resource(services: Services) -> Callable[[Context, ReadResourceRequestParams], Any]:
    async def answer(ctx: Context, params: ReadResourceRequestParams) -> ReadResourceResult:
        return ReadResourceResult(contents=[await read(services, str(params.uri), Call(_asker(ctx)))])

    return answer
