"""The data plane: everything under `/v1`, and what else becomes a job, by whichever door a request came.

Owns the way of one request through it: counted as open, its body read whole or refused, answered while its client is
there, and the answer ended when it is no longer open. Must never know a server or a framework.
"""

import logging
from collections.abc import Mapping, Sequence
from contextlib import ExitStack

import msgspec
import trio

from gridsched.api import mirrors
from gridsched.api.batches import Batches, in_batches
from gridsched.api.body import BODIES_AT_ONCE, LONGEST_BESIDE_BYTES, Room
from gridsched.api.elsewhere import method_not_allowed, not_found
from gridsched.api.exchange import Asking, Exchange, refuse_unread, send_problem, send_whole
from gridsched.api.health import PATH as HEALTH
from gridsched.api.health import Health
from gridsched.api.inference import Inference
from gridsched.api.routes import MIRROR, ROUTES, listed_under
from gridsched.api.seat import House
from gridsched.api.upload import Upload
from gridsched.control import models
from gridsched.control.allowed import allowed
from gridsched.control.problems import Problem, RequestError, unknown_model
from gridsched.store.batches import BatchStore

log = logging.getLogger(__name__)


class DataPlane:
    """Answers for everything in the data plane, and for how the server is."""

    def __init__(self, house: House, store: BatchStore | None, health: Health) -> None:
        self._house = house
        self._inference = Inference(house)
        self._health = health
        self._room = Room(lambda: BODIES_AT_ONCE * house.settings.max_body_bytes)
        self.batches = Batches(house, self._inference, store)

    async def serve(self, asking: Asking) -> None:
        """Answer one request of a caller who has come through the gate."""
        figures, began = self._house.settings, trio.current_time()
        upload = None
        with ExitStack() as opened:
            try:
                if asking.method == "POST" and asking.path in ROUTES:
                    opened.enter_context(self._house.authority.opened(asking.caller))
                if self.batches.takes(asking):
                    upload = await self.batches.receive(asking, asking.incoming)
                    is_there = upload is not None
                else:
                    take = opened.enter_context(self._room.share())
                    most = LONGEST_BESIDE_BYTES if asking.path == HEALTH else figures.max_body_bytes
                    body = await asking.incoming.read(most, take)
                    is_there = body is not None
                    asking.body = body or b""
            except RequestError as error:
                opened.close()
                if asking.path in ROUTES:
                    seconds = trio.current_time() - began
                    self._house.observer.request_ended("", "", asking.path, error.problem.status, seconds)
                await refuse_unread(asking, error.problem)
                return
            if is_there:
                await self._serve(asking, upload, opened)

    async def _serve(self, asking: Asking, upload: Upload | None, opened: ExitStack) -> None:
        """Answer what has come. `opened` is closed before the client knows that its answer has ended: it may ask again
        then."""

        async def answer() -> bool:
            is_whole = await self._answer(asking, upload)
            opened.close()
            return is_whole

        try:
            if await asking.while_there(answer):
                await asking.finish()
        finally:
            if upload is not None:
                await self.batches.put_away(upload)

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
