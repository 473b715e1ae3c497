"""The bare ASGI path for `/v1`: between hypercorn and the handlers, with no framework on it.

Owns reading a request whole, noticing that its client has gone, and the last message of an answer. What breaks if it is
changed: hypercorn says `http.disconnect` during the last send and before it arms its idle timer again, so that send
must lie outside the watcher's scope, or idle connections never time out; and an answer that is ended before the body
was read resets the connection, so a body that is refused is read and dropped before that (`body.py`).
"""

import logging
import secrets
from collections.abc import Mapping, Sequence
from contextlib import ExitStack

import msgspec
import trio
from hypercorn.typing import ASGIReceiveCallable, ASGISendCallable, HTTPScope

from gridsched.api import mirrors
from gridsched.api.batches import Batches, in_batches
from gridsched.api.body import BODIES_AT_ONCE, LONGEST_BESIDE_BYTES, Incoming, Room
from gridsched.api.elsewhere import method_not_allowed, not_found
from gridsched.api.exchange import Exchange, joined, send_problem, send_whole
from gridsched.api.health import PATH as HEALTH
from gridsched.api.health import Health
from gridsched.api.inference import Inference
from gridsched.api.routes import MIRROR, ROUTES, listed_under
from gridsched.api.seat import House
from gridsched.api.upload import Upload
from gridsched.control import models
from gridsched.control.allowed import allowed
from gridsched.control.authority import Caller
from gridsched.control.problems import Header, Problem, RequestError, unknown_model
from gridsched.store.batches import BatchStore

log = logging.getLogger(__name__)

LONGEST_REQUEST_ID = 128


class AsgiExchange:
    """Implements `exchange.Exchange` on an ASGI connection."""

    def __init__(self, scope: HTTPScope, send: ASGISendCallable, body: bytes, caller: Caller) -> None:
        self.method = scope["method"]
        self.path = scope["path"]
        self.query = scope["query_string"]
        self.body = body
        self.headers = joined(scope["headers"])
        self.request_id = request_id_of(self.headers)
        self.caller = caller
        self.started = False
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

    async def finish(self) -> None:
        """The last message."""
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})


class DataPlane:
    """The ASGI application for everything in the data plane, and for how the server is."""

    def __init__(self, house: House, store: BatchStore | None, health: Health) -> None:
        self._house = house
        self._inference = Inference(house)
        self._health = health
        self._room = Room(lambda: BODIES_AT_ONCE * house.settings.max_body_bytes)
        self.batches = Batches(house, self._inference, store)

    async def __call__(
        self, scope: HTTPScope, receive: ASGIReceiveCallable, send: ASGISendCallable, caller: Caller
    ) -> None:
        """Answer one request of a caller who has come through the gate."""
        figures, began = self._house.settings, trio.current_time()
        incoming = Incoming(scope, receive, figures.upload_stall_seconds)
        body: bytes | Upload | None
        with ExitStack() as opened:
            try:
                if scope["method"] == "POST" and scope["path"] in ROUTES:
                    opened.enter_context(self._house.authority.opened(caller))
                if self.batches.takes(scope):
                    body = await self.batches.receive(scope, incoming)
                else:
                    take = opened.enter_context(self._room.share())
                    most = LONGEST_BESIDE_BYTES if scope["path"] == HEALTH else figures.max_body_bytes
                    body = await incoming.read(most, take)
            except RequestError as error:
                opened.close()
                if scope["path"] in ROUTES:
                    seconds = trio.current_time() - began
                    self._house.observer.request_ended("", "", scope["path"], error.problem.status, seconds)
                await refuse_unread(AsgiExchange(scope, send, b"", caller), incoming, error.problem)
                return
            try:
                await self._serve(scope, receive, send, caller, body, opened)
            finally:
                if isinstance(body, Upload):
                    await self.batches.put_away(body)

    async def _serve(
        self,
        scope: HTTPScope,
        receive: ASGIReceiveCallable,
        send: ASGISendCallable,
        caller: Caller,
        body: bytes | Upload | None,
        opened: ExitStack,
    ) -> None:
        """Answer what has come; None is a client that left while it was still sending. `opened` is closed before the
        client knows that its answer has ended: it may ask again then."""
        if body is None:
            return
        exchange = AsgiExchange(scope, send, body if isinstance(body, bytes) else b"", caller)
        upload = body if isinstance(body, Upload) else None
        whole = False
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_watch, receive, nursery.cancel_scope)
            whole = await self._answer(exchange, upload)
            opened.close()
            nursery.cancel_scope.cancel()
        if whole:
            await exchange.finish()

    async def _answer(self, exchange: Exchange, upload: Upload | None) -> bool:
        """Route one request; a bug of ours is a 500 and one traceback in the log."""
        try:
            if in_batches(exchange.path):
                return await self.batches.answer(exchange, upload)
            if exchange.path == HEALTH:
                return await self._how_it_is(exchange)
            return await self._route(exchange)
        except Exception:
            log.exception("a request to %s failed", exchange.path)
            if exchange.started:
                return False
            await send_problem(exchange, Problem("internal", "an error of this server; its log has the details"))
            return True

    async def _route(self, exchange: Exchange) -> bool:
        route = ROUTES.get(exchange.path)
        if route is not None:
            if exchange.method == "POST":
                return await self._inference.serve(exchange, route)
            return await _other_method(exchange, ("POST",))
        if (listed := listed_under(exchange.path)) is not None:
            if exchange.method in {"GET", "HEAD"}:
                return await self._models(exchange, listed)
            return await _other_method(exchange, ("GET", "HEAD"))
        await send_problem(exchange, not_found(exchange.path))
        return True

    async def _how_it_is(self, exchange: Exchange) -> bool:
        if exchange.method in {"GET", "HEAD"}:
            return await self._health.answer(exchange)
        return await _other_method(exchange, ("GET", "HEAD"))

    async def _models(self, exchange: Exchange, listed: str) -> bool:
        """The list, or one model by any of its names; ids may contain slashes."""
        catalog = allowed(self._house.runtime.parts.catalog, exchange.caller)
        snapshot = self._house.runtime.snapshot()
        name = exchange.path.removeprefix(listed).removeprefix("/")
        found = (catalog.virtual(name) or catalog.resolve(name)) if name else None
        if name and found is None:
            await send_problem(exchange, unknown_model(name, catalog.closest(name)))
            return True
        page: Mapping[str, object] = {}
        told = [models.one(found, snapshot)] if found is not None else models.listing(catalog, snapshot)
        if listed == MIRROR:
            told = [mirrors.lm_studio(catalog, str(each["id"]), snapshot) for each in told]
        elif b"anthropic-version" in exchange.headers:  # its SDK reads other members, beside which ours may stand
            told = [mirrors.anthropic(each) for each in told]
            page = mirrors.anthropic_page(told)
        content = msgspec.json.encode(told[0] if found is not None else {"object": "list", "data": told, **page})
        await send_whole(exchange, 200, [(b"content-type", b"application/json")], content)
        return True


async def _other_method(exchange: Exchange, allowed: Sequence[str]) -> bool:
    """OPTIONS asks which methods there are; any other is not one of them."""
    if exchange.method == "OPTIONS":
        await exchange.send_start(204, [(b"allow", ", ".join((*allowed, "OPTIONS")).encode())])
    else:
        await send_problem(exchange, method_not_allowed(exchange.method, exchange.path, (*allowed, "OPTIONS")))
    return True


async def refuse_unread(exchange: AsgiExchange, incoming: Incoming, problem: Problem) -> None:
    """Answer before the body has come whole, and see to it that the client can read that."""
    await send_problem(exchange, problem)
    await incoming.drop()
    await exchange.finish()


async def _watch(receive: ASGIReceiveCallable, scope: trio.CancelScope) -> None:
    """End the request when its client has gone."""
    while (await receive())["type"] != "http.disconnect":
        pass
    scope.cancel()


def request_id_of(headers: Mapping[bytes, bytes]) -> str:
    """The client's own, if it is short and printable, else a new one."""
    text = headers.get(b"x-request-id", b"").decode("latin-1")
    if 0 < len(text) <= LONGEST_REQUEST_ID and text.isascii() and text.isprintable():
        return text
    return f"req-{secrets.token_hex(8)}"
