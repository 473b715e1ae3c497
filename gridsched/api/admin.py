"""What is beside the data plane and /health: metrics, the decision log, and the verbs of `control`. Quart on trio.

Owns these routes and the shape of their errors. Must never be on the path of an inference request.
"""

from typing import Any, cast

import trio
from hypercorn.typing import ASGIReceiveCallable, ASGISendCallable, ASGISendEvent, HTTPScope
from quart import Blueprint, Quart, Response, request
from quart.asgi import ASGIHTTPConnection
from quart.wrappers import Request
from quart_trio import QuartTrio
from quart_trio.asgi import TrioASGIHTTPConnection
from werkzeug.exceptions import HTTPException, InternalServerError, MethodNotAllowed, NotFound

from gridsched.api.elsewhere import method_not_allowed, not_found
from gridsched.api.events import events
from gridsched.api.exchange import joined
from gridsched.api.gate import caller_of
from gridsched.api.management import add_verbs, as_segments
from gridsched.api.seat import House
from gridsched.api.status_feed import StatusFeed
from gridsched.control.authority import Scope
from gridsched.control.problems import (
    Problem,
    RequestError,
)
from gridsched.control.services import Services


class Connection(TrioASGIHTTPConnection):
    """quart-trio's, with hypercorn's idle timer kept alive.

    Theirs cancels the request as soon as hypercorn says `http.disconnect`, which it does during the last send and
    before it arms the idle timer again: idle connections then never end, and each holds the server's shutdown for its
    full grace. Here a disconnect that comes after the last body message changes nothing.
    """

    def __init__(self, app: Quart, scope: HTTPScope) -> None:
        super().__init__(app, cast("HTTPScope", {**scope, "path": as_segments(scope)}))

    _last_sent = False

    async def handle_messages(self, nursery: trio.Nursery, request: Request, receive: ASGIReceiveCallable) -> None:  # type: ignore[override]  # trio's form of asyncio's method
        """Read until the client has gone, and end the request if its answer is still to come."""
        await ASGIHTTPConnection.handle_messages(self, request, receive)
        if not self._last_sent:
            nursery.cancel_scope.cancel()

    async def _send_response(self, send: ASGISendCallable, response: Any) -> None:
        async def noting(message: ASGISendEvent) -> None:
            if message["type"] == "http.response.body" and not message.get("more_body"):
                self._last_sent = True
            await send(message)

        await super()._send_response(noting, response)


def build(house: House, services: Services, panel: Blueprint | None = None) -> QuartTrio:
    """The application. Called in a thread, when the server begins to serve: it touches nothing that is under way."""
    app = QuartTrio("gridsched.api.admin", static_folder=None)
    app.asgi_http_class = Connection
    app.config["RESPONSE_TIMEOUT"] = None  # the default cuts every stream after 60 s without a word
    app.url_map.merge_slashes = False  # a redirect would turn a POST into a GET
    app.json.sort_keys = False  # type: ignore[attr-defined]  # the default provider has it
    _add_errors(app, house, panel)
    _add_routes(app, house, services)
    add_verbs(app, services)
    if panel is not None:
        app.register_blueprint(panel)
    return app


def _add_routes(app: QuartTrio, house: House, services: Services) -> None:
    feed = StatusFeed(house.runtime, services.reloader)
    one_page = trio.Lock()

    @app.get("/metrics")
    async def get_metrics() -> Response:
        async with one_page:  # a turn of the loop has one at the most, however many ask: chats come in between
            content_type, text = house.observer.exposition(request.headers.get("Accept", ""))
        return Response(text, content_type=content_type)

    @app.get("/api/events")
    async def get_events() -> Response:
        lasts = house.authority.lasting(caller_of(request.scope), _headers())
        return await events(house.runtime, feed, lasts)


def _add_errors(app: QuartTrio, house: House, panel: Blueprint | None) -> None:
    @app.before_request
    async def refuse_unallowed() -> Response | None:
        """What looks needs `read`, a verb what it says itself; that a route is not there is no secret."""
        is_open = panel is not None and request.blueprint == panel.name
        if request.routing_exception is not None or is_open:
            return None
        problem = None if str(request.endpoint).startswith("verb_") else _refusal(house, Scope.READ)
        return _problem(problem) if problem is not None else None

    @app.errorhandler(RequestError)
    async def refuse(error: RequestError) -> Response:
        return _problem(error.problem)

    @app.errorhandler(HTTPException)
    async def explain(error: HTTPException) -> Response:
        match error:
            case NotFound():
                return _problem(not_found(request.scope["path"]))  # `request.path` has lost slashes
            case MethodNotAllowed(valid_methods=methods):
                return _problem(method_not_allowed(request.method, request.path, sorted(methods or ())))
            case InternalServerError():
                return _problem(Problem("internal", "an error of this server; its log has the details"))
        return _problem(Problem("invalid_request", str(error.description), passed_status=error.code))


def _refusal(house: House, *needed: Scope) -> Problem | None:
    """Why whoever asks may not, where it has none of these scopes."""
    return house.authority.refuse(caller_of(request.scope), needed, _headers())


def _headers() -> dict[bytes, bytes]:
    return joined(cast("HTTPScope", request.scope)["headers"])


def _problem(problem: Problem) -> Response:
    headers = {name.decode(): value.decode("latin-1") for name, value in problem.head()}
    return Response(problem.body(), problem.status, headers)
