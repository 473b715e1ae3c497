"""A request that came through hypercorn, on bare ASGI: the body as it comes, the answer as messages.

Owns noticing that such a client has gone, and the last message of an answer. What breaks if it is changed: hypercorn
says `http.disconnect` during the last send and before it arms its idle timer again, so that send must lie outside the
watcher's scope, or idle connections never time out; and an answer that is ended before the body was read resets the
connection, so a body that is refused is read and dropped before that (`exchange.refuse_unread`).
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence

import trio
from hypercorn.typing import ASGIReceiveCallable, ASGISendCallable, HTTPScope

from gridsched.api.body import Incoming
from gridsched.api.exchange import request_id_of
from gridsched.control.authority import Caller
from gridsched.control.problems import Header


class AsgiBody(Incoming):
    """The body of a request as ASGI's messages bring it."""

    def __init__(self, scope: HTTPScope, receive: ASGIReceiveCallable, stall_seconds: float) -> None:
        super().__init__(_declared(scope), stall_seconds)
        self._receive = receive

    async def _next(self) -> bytes | None:
        """The next message's."""
        message = await self._receive()
        if message["type"] == "http.request":
            self.more = message.get("more_body", False)
            return message.get("body", b"")
        self.more = False
        return None


class AsgiExchange:
    """Implements `exchange.Asking` on an ASGI connection. `headers` are the scope's, each name once."""

    def __init__(
        self,
        scope: HTTPScope,
        headers: Mapping[bytes, bytes],
        receive: ASGIReceiveCallable,
        send: ASGISendCallable,
        caller: Caller,
        stall_seconds: float,
    ) -> None:
        self.method = scope["method"]
        self.path = scope["path"]
        self.query = scope["query_string"]
        self.incoming = AsgiBody(scope, receive, stall_seconds)
        self.body = b""
        self.headers = headers
        self.request_id = request_id_of(headers)
        self.caller = caller
        self.started = False
        self._receive = receive
        self._send = send

    async def send_start(self, status: int, headers: Sequence[Header], first: bytes = b"") -> None:
        """Send the head."""
        self.started = True
        named = [*headers, (b"x-request-id", self.request_id.encode())]
        await self._send({"type": "http.response.start", "status": status, "headers": named})
        if first:
            await self.send_body(first)

    async def send_body(self, data: bytes) -> None:
        """Send body bytes."""
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def while_there(self, answer: Callable[[], Awaitable[bool]]) -> bool:
        """What `answer` says; False where its client has left."""
        is_whole = False
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._watch, nursery.cancel_scope)
            is_whole = await answer()
            nursery.cancel_scope.cancel()
        return is_whole

    async def finish(self) -> None:
        """The last message."""
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _watch(self, scope: trio.CancelScope) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        scope.cancel()


def _declared(scope: HTTPScope) -> int:
    """What the client says that it will send; the server has seen to it that it is a number."""
    return max((int(value) for name, value in scope["headers"] if name == b"content-length"), default=0)
