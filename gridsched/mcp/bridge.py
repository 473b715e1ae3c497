"""The bridge for clients that speak the protocol over stdio: the tools of a gateway and of its watchdog as one list.

Owns which of the two a tool is of, what a tool is called where both have one of its name, and what is said when one
does not answer. The gateway's tools are listed then too, from the table here: they are wanted most when something is
wrong. Each call is a connection of its own, so that either may go and come back. Must never write anything but the
protocol to the standard output.
"""

import ssl
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from typing import Any, Final, TypeVar

import anyio
import httpx2
import msgspec
from mcp.client.client import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.server.lowlevel.server import Server
from mcp.server.stdio import stdio_server
from mcp.shared.exceptions import MCPError
from mcp_types import (
    CONNECTION_CLOSED,
    CallToolRequest,
    CallToolRequestParams,
    CallToolResult,
    ListResourcesResult,
    ListResourceTemplatesResult,
    ListToolsResult,
    PaginatedRequestParams,
    ReadResourceRequestParams,
    ReadResourceResult,
    TextContent,
    Tool,
)

from gridsched import __version__
from gridsched.control.authority import NOBODY
from gridsched.mcp.calling import Progress
from gridsched.mcp.resources import RESOURCES, TEMPLATES
from gridsched.mcp.schemas import Failure, Fault
from gridsched.mcp.server import INSTRUCTIONS, Context, progress_of
from gridsched.mcp.tools import TOOLS, tools_for

LIST_SECONDS: Final = 5.0
"""What a list takes is no second; a client that begins must not wait for a server that hangs."""
CONNECT_SECONDS: Final = 5.0
GREETING_SECONDS: Final = 10.0
"""A process that stands takes connections, and answers nothing. The first client's SDK is imported meanwhile."""

RECOVERY: Final = "recovery_"
WATCHDOGS: Final = frozenset(
    (
        "health",
        "get_config",
        "set_config",
        "restart_server",
        "kill_model",
        "nuke_all_models",
        "reclaim_orphan_engines",
        "tail_logs",
        "gpu_status",
        "rollback_config",
    )
)
"""The watchdog's tools: a program of its own, which may be away when one of them is called."""
RENAMED: Final = frozenset({"health"}) | (WATCHDOGS & TOOLS.keys())

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Address:
    """Where one of the two answers, and what it knows us by. `ca` is the file of the authority that is believed."""

    url: str
    key: str | None = None
    ca: str | None = None


class Away(Exception):
    """It does not answer, or will not (`refuses`: it is there, and to start it is of no use); one sentence."""

    def __init__(self, sentence: str, *, refuses: bool = False) -> None:
        super().__init__(sentence)
        self.refuses = refuses


class Peer:
    """One of the two. `find` says where it is now, and raises Away where nobody knows."""

    def __init__(self, name: str, find: Callable[[], Address]) -> None:
        self._name = name
        self._find = find

    async def ask(self, what: Callable[[Client], Awaitable[T]], seconds: float | None = None) -> T:
        """Ask it once; without `seconds` what it is asked may take long, but not that it says that it is there. Raises
        Away, and MCPError for what it answers so."""
        address, refused, came, errors = self._find(), _Refused(), list[T](), list[BaseException]()
        try:
            with anyio.fail_after(GREETING_SECONDS if seconds is None else seconds) as limit:
                async with _http(address, refused) as http:
                    transport = streamable_http_client(f"{address.url}/mcp", http_client=http)
                    async with Client(transport, cache=None) as client:
                        if seconds is None:
                            limit.deadline = inf
                        came.append(await what(client))
        except* (MCPError, httpx2.HTTPError, OSError, TimeoutError) as group:
            errors.extend(_leaves(group))
        if came:
            return came[0]
        raise self._told(address, refused, errors)

    def _told(self, address: Address, refused: "_Refused", errors: list[BaseException]) -> Exception:
        if refused.sentence:
            return Away(f"the {self._name} at {address.url} refuses: {refused.sentence}", refuses=True)
        for error in errors:
            if isinstance(error, MCPError) and error.code != CONNECTION_CLOSED:
                return error
        if any(isinstance(cause, ssl.SSLCertVerificationError) for error in errors for cause in _causes(error)):
            said = "is of nobody whom this machine trusts; gridsched servers add has --ca FILE"
            return Away(f"the certificate of the {self._name} at {address.url} {said}", refuses=True)
        why = next((str(error) for error in errors if str(error)), "it sent nothing in time")
        return Away(f"the {self._name} at {address.url} does not answer now ({why})")


class _Refused:
    """What an answer that is none of the protocol says."""

    sentence = ""

    async def note(self, answer: httpx2.Response) -> None:
        """Keep why an answer is a refusal."""
        if answer.status_code not in {401, 403, 429, 503}:
            return
        self.sentence = f"status {answer.status_code}"
        with suppress(msgspec.DecodeError, KeyError, TypeError):
            self.sentence = str(msgspec.json.decode(await answer.aread())["error"]["message"])


def _http(address: Address, refused: _Refused) -> httpx2.AsyncClient:
    """Never through a proxy of the environment."""
    return httpx2.AsyncClient(
        headers={"Authorization": f"Bearer {address.key}"} if address.key else {},
        trust_env=False,
        verify=ssl.create_default_context(cafile=address.ca) if address.url.startswith("https:") else False,
        timeout=httpx2.Timeout(CONNECT_SECONDS, read=None),
        event_hooks={"response": [refused.note]},
    )


def _leaves(error: BaseException) -> list[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        return [leaf for each in error.exceptions for leaf in _leaves(each)]
    return [error]


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


class Bridge:
    """Both as one server."""

    def __init__(self, gateway: Peer, watchdog: Peer) -> None:
        self._gateway = gateway
        self._watchdog = watchdog

    async def run(self) -> None:
        """Serve on the standard streams until the client has gone."""
        server = self.server(await self._instructions())
        async with stdio_server() as (read, write):
            await server.run(read, write, server.create_initialization_options())

    def server(self, instructions: str) -> Server[Any]:
        """What answers the client."""
        return Server(
            "gridsched",
            version=__version__,
            title="gridsched",
            instructions=instructions,
            on_list_tools=self._list_tools,
            on_call_tool=self._call_tool,
            on_list_resources=_list_resources,
            on_list_resource_templates=_list_templates,
            on_read_resource=self._read_resource,
        )

    async def _instructions(self) -> str:
        said = [INSTRUCTIONS]
        try:
            await self._gateway.ask(_tools_of, LIST_SECONDS)
        except (Away, MCPError) as error:
            said.append(f"But {error}: its tools are listed and work when it does.")
        try:
            await self._watchdog.ask(_tools_of, LIST_SECONDS)
            said.append(f"If the gateway is down or wedged, {RECOVERY}health says so and restart_server mends it.")
        except (Away, MCPError) as error:
            said.append(f"There are no recovery tools: {error}.")
        return " ".join(said)

    async def _list_tools(self, _: Context, __: PaginatedRequestParams | None) -> ListToolsResult:
        return ListToolsResult(tools=[*await self._of_gateway(), *await self._of_watchdog()])

    async def _of_gateway(self) -> list[Tool]:
        try:
            return await self._gateway.ask(_tools_of, LIST_SECONDS)
        except (Away, MCPError) as error:
            note = f"(Now {error}.)"
            return [each.model_copy(update={"description": f"{each.description} {note}"}) for each in tools_for(NOBODY)]

    async def _of_watchdog(self) -> list[Tool]:
        try:
            tools = await self._watchdog.ask(_tools_of, LIST_SECONDS)
        except (Away, MCPError):
            return []
        return [each.model_copy(update={"name": merged_name(each.name)}) for each in tools]

    async def _call_tool(self, ctx: Context, params: CallToolRequestParams) -> CallToolResult:
        own = watchdogs_name(params.name)
        peer, name = (self._gateway, params.name) if own is None else (self._watchdog, own)
        try:
            return await peer.ask(_call_of(name, params.arguments, progress_of(ctx)))
        except Away as away:
            return _failed(f"{away}." if away.refuses else f"{away}. {await self._what_to_do(peer)}")

    async def _what_to_do(self, peer: Peer) -> str:
        if peer is self._watchdog:
            return "Start it on the gateway's machine: gridsched watchdog --run."
        try:
            await self._watchdog.ask(_tools_of, LIST_SECONDS)
        except (Away, MCPError):
            return "Start it on its machine: gridsched serve."
        return f"Ask {RECOVERY}health how it is; restart_server starts it anew."

    async def _read_resource(self, _: Context, params: ReadResourceRequestParams) -> ReadResourceResult:
        async def read(client: Client) -> ReadResourceResult:
            return await client.read_resource(str(params.uri))

        try:
            return await self._gateway.ask(read)
        except Away as away:
            raise MCPError(CONNECTION_CLOSED, str(away)) from None


def merged_name(name: str) -> str:
    """What a tool of the watchdog is called in the list of both."""
    return f"{RECOVERY}{name}" if name in RENAMED else name


def watchdogs_name(name: str) -> str | None:
    """What the watchdog calls a tool of the list; None for one that is not its."""
    own = name.removeprefix(RECOVERY)
    return own if own in WATCHDOGS and merged_name(own) == name else None


async def _tools_of(client: Client) -> list[Tool]:
    return (await client.list_tools()).tools


def _call_of(
    name: str, given: dict[str, Any] | None, told: Progress | None
) -> Callable[[Client], Awaitable[CallToolResult]]:
    async def tell(progress: float, total: float | None, message: str | None) -> None:
        if told is not None:
            await told(progress, total, message or "")

    async def call(client: Client) -> CallToolResult:
        # Not `call_tool`: that asks for the list first, to hold the answer against it, which is the client's to do.
        request = CallToolRequest(params=CallToolRequestParams(name=name, arguments=given))
        heard = tell if told is not None else None
        return await client.session.send_request(request, CallToolResult, progress_callback=heard)

    return call


def _failed(sentence: str) -> CallToolResult:
    fault = Fault(message=sentence, type="server_error", code="unreachable", param=None, gridsched={})
    body = msgspec.to_builtins(Failure(error=fault))
    return CallToolResult(content=[TextContent(text=sentence)], structured_content=body, is_error=True)


async def _list_resources(_: Context, __: PaginatedRequestParams | None) -> ListResourcesResult:
    return ListResourcesResult(resources=RESOURCES)


async def _list_templates(_: Context, __: PaginatedRequestParams | None) -> ListResourceTemplatesResult:
    return ListResourceTemplatesResult(resource_templates=TEMPLATES)
