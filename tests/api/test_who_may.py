"""Who may do what (H6): every route there is by every kind of caller: refused, and how, or let in.

The routes are read off the server; each must be placed in `PLACED` below, or the test fails. Whoever is let in asks for
something that is wrong in itself where the route would do something, so that nothing is done.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from ipaddress import ip_network

import pytest
import trio
from trio.testing import MockClock

from gridsched.api import admin
from gridsched.api.routes import MIRROR, MODELS, ROUTES
from gridsched.api.seat import House as Inside
from gridsched.api.settings import FrontSettings
from gridsched.control.authority import Authority
from gridsched.control.services import Services
from gridsched.core.job import JobClass
from gridsched.credentials import ApiKey, Scope
from gridsched.panel.pages import blueprint
from tests.support.front import ADMIN_WORD, Client, House, serving

INFERENCE, READ, RESIDENCY, ADMIN = Scope.INFERENCE, Scope.READ, Scope.RESIDENCY, Scope.ADMIN
EVERYBODY = frozenset[Scope]()
"""What needs no scope, and no credential."""

_DATA_PLANE = {f"POST {path}": {INFERENCE} for path in ROUTES}
_FILES = {
    "POST /v1/files": {INFERENCE},
    "GET /v1/files": {INFERENCE, READ},
    "GET /v1/files/{id}": {INFERENCE, READ},
    "DELETE /v1/files/{id}": {INFERENCE},
    "GET /v1/files/{id}/content": {INFERENCE, READ},
    "POST /v1/batches": {INFERENCE},
    "GET /v1/batches": {INFERENCE, READ},
    "GET /v1/batches/{id}": {INFERENCE, READ},
    "POST /v1/batches/{id}/cancel": {INFERENCE},
}
_AGENTS = {"POST /mcp": set(Scope)}
"""Each tool says what it needs; a key that may use none is shown none."""

_HEALTH = {"GET /health": EVERYBODY}
_LISTS = {f"GET {path}{more}": {INFERENCE, READ} for path in (MODELS, MIRROR) for more in ("", "/{id}")}

PLACED: Mapping[str, set[Scope] | frozenset[Scope]] = {
    **_DATA_PLANE,
    **_FILES,
    **_LISTS,
    **_AGENTS,
    **_HEALTH,
    "GET /": EVERYBODY,
    "GET /panel/{name}": EVERYBODY,
    "GET /metrics": {READ},
    "GET /api/events": {READ},
    "GET /api/status": {READ},
    "GET /api/models": {READ},
    "GET /api/models/{model}": {READ},
    "GET /api/models/{model}/plan": {READ},
    "GET /api/jobs": {READ},
    "GET /api/jobs/{job}": {READ},
    "DELETE /api/jobs/{job}": {INFERENCE, RESIDENCY},
    "GET /api/logs/{model}": {READ},
    "GET /api/openapi.json": {READ},
    "GET /api/connection": {READ},
    "GET /api/setup": {READ},
    "POST /api/models/{model}/load": {RESIDENCY},
    "POST /api/models/{model}/unload": {RESIDENCY},
    "POST /api/models/{model}/pin": {RESIDENCY},
    "POST /api/models/{model}/unpin": {RESIDENCY},
    "GET /api/options": {READ},
    "POST /api/models/{model}/load-recommended": {RESIDENCY},
    "POST /api/estimate": {READ},
    "POST /api/models/{model}/benchmark": {ADMIN},
    "GET /api/hub/search": {READ},
    "GET /api/hub/repos/{repo}": {READ},
    "GET /api/downloads": {READ},
    "POST /api/downloads": {ADMIN},
    "DELETE /api/downloads/{download}": {ADMIN},
    "DELETE /api/models/{model}": {ADMIN},
    "GET /api/config": {READ},
    "GET /api/config/schema": {READ},
    "PATCH /api/config": {ADMIN},
    "GET /api/keys": {ADMIN},
    "POST /api/keys": {ADMIN},
    "DELETE /api/keys/{name}": {ADMIN},
    "GET /api/audit": {ADMIN},
    "POST /api/rebalance": {RESIDENCY},
    "GET /api/leases": {READ},
    "POST /api/leases": {ADMIN},
    "DELETE /api/leases/{device}": {ADMIN},
    "POST /api/drain": {ADMIN},
    "POST /api/restart": {ADMIN},
    "POST /api/config/reload": {ADMIN},
}
"""The scopes of which a caller needs one, by route."""


@dataclass(frozen=True)
class Who:
    """A kind of caller: what it sends, what it has (None: nothing is known of it), and how it is refused: status and
    code for who lacks a scope, or for whoever it is (`always`)."""

    headers: Mapping[str, str] = field(default_factory=dict)
    scopes: frozenset[Scope] = frozenset()
    lacking: tuple[int, str] = (401, "invalid_api_key")
    always: tuple[int, str] | None = None


LOCAL = frozenset({INFERENCE, READ, RESIDENCY})
FAR = {"X-Forwarded-For": "203.0.113.9"}
TOKEN = {"Authorization": f"Bearer {ADMIN_WORD}"}
FOREIGN = (403, "cross_origin")
WITHOUT_TOKEN = (403, "remote_admin_requires_credential")
KEYS = tuple(ApiKey(scope.value, sha256(scope.value.encode()).hexdigest(), (scope,)) for scope in Scope)


def page(origin: str, **more: str) -> Who:
    """A page of this origin, with all that a credential could give it."""
    return Who(TOKEN | {"Origin": origin} | more, always=FOREIGN)


STRANGERS = {
    "a page of another site": page("https://elsewhere.example"),
    "a page without an origin": page("null"),
    "a page of another port here": page("http://127.0.0.1:1"),
    "a page of this host with another scheme's port": page("https://127.0.0.1"),
    "a rebound name": Who(TOKEN | {"Host": "elsewhere.example"}, always=FOREIGN),
    "a rebound name with its own origin": page("http://elsewhere.example", Host="elsewhere.example"),
    "a picture on another site's page": Who(
        TOKEN | {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Dest": "image"}, always=FOREIGN
    ),
}

SERVERS: Mapping[str, tuple[Authority, Mapping[str, Who]]] = {
    "without keys": (
        Authority(ADMIN_WORD),
        {
            "on this machine": Who({}, LOCAL, WITHOUT_TOKEN),
            "on this machine by its name": Who({"Host": "localhost:9"}, LOCAL, WITHOUT_TOKEN),
            "on this machine by IPv6": Who({"Host": "[::1]:9"}, LOCAL, WITHOUT_TOKEN),
            "on this machine with a made-up key": Who({"x-api-key": "sk-none"}, LOCAL),
            "with the admin token": Who(TOKEN, frozenset(Scope)),
            "elsewhere": Who(FAR),
            "elsewhere with a made-up key": Who(FAR | {"x-api-key": "sk-none"}),
            "elsewhere with the admin token": Who(FAR | TOKEN, frozenset(Scope)),
            **STRANGERS,
        },
    ),
    "with keys": (
        Authority(ADMIN_WORD, KEYS),
        {
            "on this machine": Who(),
            "on this machine with a wrong key": Who({"x-api-key": "sk-none"}),
            "elsewhere": Who(FAR),
            "with the admin token": Who(TOKEN, frozenset(Scope)),
            **{
                f"with a key for {scope.value}": Who(
                    {"Authorization": f"Bearer {scope.value}"}, frozenset({scope}), (403, "insufficient_scope")
                )
                for scope in Scope
            },
            "elsewhere with a key to look": Who(
                FAR | {"api-key": "read"}, frozenset({READ}), (403, "insufficient_scope")
            ),
            **STRANGERS,
        },
    ),
    "insecure": (
        Authority(ADMIN_WORD, insecure=True),
        {
            "on this machine": Who({}, LOCAL, WITHOUT_TOKEN),
            "elsewhere": Who(FAR, LOCAL, WITHOUT_TOKEN),
            "elsewhere with the admin token": Who(FAR | TOKEN, frozenset(Scope)),
            **STRANGERS,
            "a rebound name elsewhere": Who(FAR | {"Host": "elsewhere.example"}, always=FOREIGN),
        },
    ),
}

OTHER_METHODS = frozenset({"HEAD", "OPTIONS"})


def routes(house: House) -> Iterator[str]:
    """Every route of the server, as `METHOD /path/{part}`: those beside the data plane are read off the application."""
    inside = Inside(house.runtime, FrontSettings(), house.metrics, house.authority, trio.Event())
    for rule in admin.build(inside, Services(house.runtime, house.authority), blueprint()).url_map.iter_rules():
        path = re.sub(r"<(?:[^>]*:)?(\w+)>", r"{\1}", str(rule.rule))
        for method in sorted((rule.methods or set()) - OTHER_METHODS):
            yield f"{method} {path}"
    yield from (*_DATA_PLANE, *_FILES, *_LISTS, *_AGENTS, *_HEALTH)


async def ask(client: Client, route: str, who: Who) -> tuple[int, str]:
    """Status and code of one request that does nothing, whoever sends it."""
    method, _, path = route.partition(" ")
    for part in ("{model}", "{id}", "{job}", "{device}", "{name}", "{repo}", "{download}"):
        path = path.replace(part, "none-such")
    if method == "GET":
        answer = await client.ask(method, path + ("?follow=0" if path == "/api/events" else ""), None, who.headers)
    else:
        answer = await client.ask(method, path, {"no_such_member": 1, "model": "none-such"}, who.headers)
    refused = answer.status in {401, 403}
    return answer.status, str(answer.error["code"]) if refused else ""


def expected(route: str, who: Who) -> tuple[int, str] | None:
    """How a caller is refused at a route; None where it is let in."""
    needed = PLACED[route]
    if who.always is not None:
        return who.always
    return None if needed == EVERYBODY or not who.scopes.isdisjoint(needed) else who.lacking


@pytest.mark.parametrize(
    ("server", "name"), [(server, name) for server, (_, callers) in SERVERS.items() for name in callers]
)
async def test_H6_L5_every_route_lets_in_whom_it_should_and_nobody_else(
    autojump_clock: MockClock, server: str, name: str
) -> None:
    """Also none that is not placed, and none that is placed and not there. Nothing is queued, loaded or ended by it."""
    authority, callers = SERVERS[server]
    who = callers[name]
    figures = FrontSettings(trusted_proxies=(ip_network("127.0.0.1"),))
    async with serving(autojump_clock, figures, authority=authority) as house, await house.connect() as client:
        there = set(routes(house))
        assert there == set(PLACED), "place each route: which scope does it need?"
        wrong = {}
        for route in sorted(there):
            status, code = await ask(client, route, who)
            wanted = expected(route, who)
            if (wanted is None and status in {401, 403}) or (wanted is not None and (status, code) != wanted):
                wrong[route] = (status, code, wanted)
        assert wrong == {}
        assert not house.logged("enqueue")
        assert not house.logged("load")
        assert (await house.ask("GET", "/health")).json["draining"] is False


def test_H6_a_key_of_every_scope_is_among_the_callers() -> None:
    """A scope that is added is tried, too."""
    _, callers = SERVERS["with keys"]
    assert {f"with a key for {scope.value}" for scope in Scope} <= set(callers)
    assert all(key.highest_class in {None, *JobClass} for key in KEYS)


def disguised(route: str, port: int) -> Iterator[tuple[str, str, dict[str, str]]]:
    """The same request, as somebody would send it who wants to get round the door: method, target, headers."""
    method, _, path = route.partition(" ")
    path = re.sub(r"\{\w+\}", "none-such", path)
    head, _, last = path.rpartition("/")
    yield method, f"/{path}", {}
    yield method, f"{path}/", {}
    yield method, f"{path}?x=1", {}
    if last:
        yield method, f"{head}/%{ord(last[0]):02x}{last[1:]}", {}
        yield method, f"/%{ord(path[1]):02x}{path[2:]}", {}
    yield method, f"/health/..{path}", {}
    yield method, f"http://127.0.0.1:{port}{path}", {}
    yield "HEAD", path, {}
    yield "GET", path, {"X-HTTP-Method-Override": method}
    yield method, path, {"X-Forwarded-For": "127.0.0.1", "Forwarded": "for=127.0.0.1"}
    yield "GET", "/health", {"X-Original-URL": path, "X-Rewrite-URL": path}


@pytest.mark.slow
async def test_H6_no_disguise_gets_a_request_past_the_door(autojump_clock: MockClock) -> None:
    """Neither encoded, nor with slashes more, nor by another method, nor by what a header says."""
    authority = Authority(ADMIN_WORD, KEYS)
    async with serving(autojump_clock, FrontSettings(), authority=authority) as house, await house.connect() as client:
        let_in = []
        for route in sorted(route for route, needed in PLACED.items() if needed != EVERYBODY):
            for method, target, headers in disguised(route, house.port):
                answer = await client.ask(method, target, None, headers)
                is_health = target == "/health" and b"models_indexed" in answer.body
                if answer.status not in {401, 403, 404, 405} and not is_health:
                    let_in.append((route, method, target, answer.status))
        assert let_in == []
        assert not house.logged("load")
