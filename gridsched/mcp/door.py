"""`/mcp`: from an HTTP request to the MCP server, which is built when the first client comes.

Owns what is answered to requests that are no message of the protocol, and the last message of an answer: hypercorn says
`http.disconnect` while that is sent and before it arms its idle timer again, so it is sent when whoever watches for
that has ended. Nothing is kept between two requests, so a restart harms no client; one that names a session is told
that there is none, and begins anew. There is no stream to listen to, which would hold up the server's end.
"""

import importlib
import logging
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any

import msgspec
import trio

from gridsched.control.services import Services
from gridsched.control.verb import Asker
from gridsched.threads import imported

log = logging.getLogger(__name__)

PARSE_ERROR, INVALID_REQUEST, INTERNAL_ERROR = -32700, -32600, -32603
_SERVER = "gridsched.mcp.server"

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]
Serve = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]


class Agents:
    """The door. `run` must be running before the first request comes."""

    def __init__(self) -> None:
        self._services: Services | None = None
        self._nursery: trio.Nursery | None = None
        self._serve: Serve | None = None
        self._building = trio.Lock()

    async def run(self, services: Services, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve for as long as this does. Cancelled, it ends all that was begun."""
        self._services, self._serve = services, None
        async with trio.open_nursery() as self._nursery:
            task_status.started()
            await trio.sleep_forever()

    async def __call__(self, scope: Mapping[str, Any], receive: Receive, send: Send, body: bytes, asker: Asker) -> None:
        """Answer one request, whose body has been read whole."""
        answer = _Answer(send)
        refusal = _refusal(scope, body)
        if refusal is not None:
            await answer.say(*refusal)
        else:
            await self._pass_on(scope, receive, answer, body, asker)
        await answer.finish()

    async def _pass_on(
        self, scope: Mapping[str, Any], receive: Receive, answer: "_Answer", body: bytes, asker: Asker
    ) -> None:
        try:
            serve = await self._built()
            await serve({**scope, "gridsched.asker": asker}, _replay(body, receive), answer.send)
        except Exception:
            log.exception("a request to /mcp failed")
            await answer.say(500, INTERNAL_ERROR, "an error of this server; its log has the details")

    async def _built(self) -> Serve:
        async with self._building:
            if self._serve is None:
                assert self._nursery is not None  # noqa: S101 - for the type checker
                self._serve = await self._nursery.start(self._run_manager)
            return self._serve

    async def _run_manager(self, task_status: trio.TaskStatus[Serve] = trio.TASK_STATUS_IGNORED) -> None:
        """The SDK's part, entered and left in one task."""
        await imported(_SERVER)
        server = importlib.import_module(_SERVER)
        manager = server.build(self._services)
        async with manager.run():
            task_status.started(manager.handle_request)
            await trio.sleep_forever()


class _Answer:
    """The way out. The last message is kept back."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._last: Message | None = None
        self._begun = False

    async def send(self, message: Message) -> None:
        """Send a message, unless it is the last."""
        if message["type"] == "http.response.body" and not message.get("more_body"):
            self._last = message
            return
        self._begun = True
        await self._send(message)

    async def finish(self) -> None:
        """Send the last; an answer that has broken off has none."""
        if self._last is not None:
            await self._send(self._last)

    async def say(self, status: int, code: int, sentence: str, allow: bytes = b"") -> None:
        """An error of the protocol, unless an answer has begun."""
        if self._begun:
            return
        told = {"jsonrpc": "2.0", "id": None, "error": {"code": code, "message": sentence}}
        headers = [(b"content-type", b"application/json"), *([(b"allow", allow)] if allow else [])]
        await self.send({"type": "http.response.start", "status": status, "headers": headers})
        await self.send({"type": "http.response.body", "body": msgspec.json.encode(told), "more_body": False})


def _replay(body: bytes, receive: Receive) -> Receive:
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive_again() -> Any:
        return messages.pop() if messages else await receive()

    return receive_again


Refusal = tuple[int, int, str] | tuple[int, int, str, bytes]


def _refusal(scope: Mapping[str, Any], body: bytes) -> Refusal | None:
    """What is answered to a request that is no message of the protocol, which the SDK would say less plainly."""
    headers = dict(scope["headers"])
    if scope["method"] != "POST":
        return 405, INVALID_REQUEST, "POST a message; there is no stream to listen to, and no session to end", b"POST"
    if b"mcp-session-id" in headers:
        return 404, INVALID_REQUEST, "there is no such session: this server keeps none; initialize again"
    if headers.get(b"content-type", b"").split(b";")[0].strip().lower() != b"application/json":
        return 415, INVALID_REQUEST, "a message is application/json: say so in Content-Type"
    if not _is_accepted(headers.get(b"accept", b"*/*")):
        return 406, INVALID_REQUEST, "accept both: Accept: application/json, text/event-stream"
    return _no_message(body)


def _is_accepted(accept: bytes) -> bool:
    kinds = {kind.split(b";")[0].strip().lower() for kind in accept.split(b",")}
    has = [kinds & {b"*/*", whole, part} for whole, part in _KINDS]
    return all(has)


_KINDS = ((b"application/json", b"application/*"), (b"text/event-stream", b"text/*"))


def _no_message(body: bytes) -> Refusal | None:  # noqa: PLR0911 - a list of faults, each with its sentence
    try:
        message = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError):
        return 400, PARSE_ERROR, "the body is no JSON"
    if isinstance(message, list):
        return 400, INVALID_REQUEST, "batches are not taken: send one message a request"
    if not isinstance(message, dict) or message.get("jsonrpc") != "2.0":
        return 400, INVALID_REQUEST, 'a message is a JSON object with "jsonrpc": "2.0"'
    if "method" not in message and not message.keys() & {"result", "error"}:
        return 400, INVALID_REQUEST, "a message has a method"
    if not isinstance(message.get("params", {}), dict):
        return 400, INVALID_REQUEST, "params must be an object"
    if not isinstance(message.get("method", ""), str):
        return 400, INVALID_REQUEST, "method must be a string"
    if isinstance(message.get("id", 0), bool) or not isinstance(message.get("id", 0), str | int):
        return 400, INVALID_REQUEST, "id must be a string or a whole number"
    return None
