"""Where a request comes from and who asks, before anything of it is read (H6)."""

from hashlib import sha256
from ipaddress import ip_network

import pytest
from trio.testing import MockClock

from gridsched.api.exchange import joined
from gridsched.api.gate import Gate, is_here
from gridsched.api.settings import FrontSettings
from gridsched.control.authority import ANYBODY, NOBODY, Authority, Caller
from gridsched.control.problems import Problem
from gridsched.credentials import ApiKey, Scope
from tests.support.front import ADMIN_WORD, serving

PROXY = "10.0.0.1"
TRUSTED = ["10.0.0.0/24", "127.0.0.1", "fd00::/8"]


def admitted(peer: str | None, trusted: list[str], path: str = "/v1/models", **headers: str) -> Caller | Problem:
    """What the gate says of a request, on a server without keys. Underscores stand for dashes."""
    named = {"host": "localhost:1234"} | {name.replace("_", "-"): value for name, value in headers.items()}
    client = (peer, 4711) if peer else None
    gate = Gate(Authority("a" * 32), [ip_network(each) for each in trusted])
    said = joined((name.encode(), value.encode("latin-1")) for name, value in named.items())
    return gate.admit("GET", path, said, gate.whence(client, said), 0.0)


HERE = [
    ("127.0.0.1", [], {}),
    ("127.9.9.9", [], {}),
    ("::1", [], {}),
    ("::ffff:127.0.0.1", [], {}),
    ("127.0.0.1", TRUSTED, {}),
    ("127.0.0.1", TRUSTED, {"x_forwarded_for": "127.0.0.1"}),
    ("127.0.0.1", TRUSTED, {"x_forwarded_for": "127.0.0.5, 127.0.0.1"}),
    ("::ffff:127.0.0.1", TRUSTED, {"forwarded": 'for="[::1]:4711";proto=https'}),
    ("127.0.0.1", TRUSTED, {"x_forwarded_for": "::1", "forwarded": "For=[::1]"}),
    ("127.0.0.1", [], {"x_forwarded_for": "203.0.113.9"}),
]
ELSEWHERE = [
    ("192.0.2.7", [], {}),
    ("192.0.2.7", [], {"x_forwarded_for": "127.0.0.1"}),
    ("192.0.2.7", TRUSTED, {"x_forwarded_for": "127.0.0.1"}),
    ("192.0.2.7", TRUSTED, {"forwarded": "for=127.0.0.1"}),
    ("fe80::1%eth0", [], {}),
    (None, [], {}),
    (PROXY, TRUSTED, {}),
    (PROXY, TRUSTED, {"x_forwarded_for": "203.0.113.9"}),
    (PROXY, TRUSTED, {"x_forwarded_for": "127.0.0.1, 203.0.113.9"}),
    (PROXY, TRUSTED, {"x_forwarded_for": "127.0.0.1, 203.0.113.9, 10.0.0.7"}),
    (PROXY, TRUSTED, {"x_forwarded_for": "127.0.0.1, unknown"}),
    (PROXY, TRUSTED, {"x_forwarded_for": "localhost"}),
    (
        PROXY,
        TRUSTED,
        {"x_forwarded_for": "127.0.0.1"},
    ),  # the proxy's own machine, or made up by a client in its network
    (PROXY, TRUSTED, {"x_forwarded_for": "::1, 127.0.0.1"}),
    (PROXY, TRUSTED, {"forwarded": 'for="[::1]:4711";proto=https'}),
    ("127.0.0.1", TRUSTED, {"x_forwarded_for": "127.0.0.1, 10.0.0.7"}),
    ("127.0.0.1", TRUSTED, {"x_forwarded_for": "127.0.0.1, 10.0.0.7, 127.0.0.1"}),
    (PROXY, TRUSTED, {"forwarded": "for=127.0.0.1, for=203.0.113.9;by=10.0.0.1"}),
    (PROXY, TRUSTED, {"forwarded": "for=127.0.0.1, for=_hidden"}),
    (PROXY, TRUSTED, {"forwarded": "for=127.0.0.1, by=10.0.0.1"}),
    (PROXY, TRUSTED, {"forwarded": "for=127.0.0.1", "x_forwarded_for": "203.0.113.9"}),
    (PROXY, TRUSTED, {"forwarded": "for=203.0.113.9", "x_forwarded_for": "127.0.0.1"}),
    ("127.0.0.1", TRUSTED, {"x_forwarded_for": "203.0.113.9"}),
    ("127.0.0.1", TRUSTED, {"x_forwarded_for": "\xff\xfe"}),
]


@pytest.mark.parametrize(("peer", "trusted", "headers"), HERE)
def test_H6_without_keys_this_machine_is_let_in(peer: str, trusted: list[str], headers: dict[str, str]) -> None:
    """By its address, or by what a proxy that is trusted says; what any other says is not heard."""
    assert admitted(peer, trusted, **headers) is ANYBODY


@pytest.mark.parametrize(("peer", "trusted", "headers"), ELSEWHERE)
def test_H6_without_keys_nobody_else_is_and_hears_how_to_make_one(
    peer: str | None, trusted: list[str], headers: dict[str, str]
) -> None:
    """The last hop that is no proxy of ours counts; of two headers that differ neither is believed."""
    problem = admitted(peer, trusted, **headers)
    assert isinstance(problem, Problem)
    assert (problem.status, problem.code) == (401, "invalid_api_key")
    assert (b"www-authenticate", b"Bearer") in problem.head()
    assert "gridsched keys add" in problem.message


def test_H6_whether_the_server_lives_may_be_asked_by_all() -> None:
    """That, and nothing near it."""
    assert admitted("192.0.2.7", [], "/health") is NOBODY
    assert isinstance(admitted("192.0.2.7", [], "/health/x"), Problem)
    assert isinstance(admitted("192.0.2.7", [], "/metrics"), Problem)


async def test_H6_through_a_proxy_the_server_has_other_names_for_those_with_a_key(autojump_clock: MockClock) -> None:
    """A page that has a browser of this machine dial a foreign name has none, whatever hops it makes up."""
    figures = FrontSettings(trusted_proxies=(ip_network("127.0.0.0/8"),))
    named = {"Host": "rig.example", "X-Forwarded-For": "203.0.113.9"}
    async with serving(autojump_clock, figures) as house:
        for headers, status, code in (
            (named | {"Authorization": f"Bearer {ADMIN_WORD}"}, 200, None),
            (named, 401, "invalid_api_key"),
            (named | {"X-Forwarded-For": "127.0.0.1"}, 403, "cross_origin"),
            ({"Host": "rig.example"}, 403, "cross_origin"),
            ({"X-Forwarded-For": "127.0.0.1"}, 200, None),
            ({}, 200, None),
        ):
            answer = await house.ask("GET", "/v1/models", headers=headers)
            assert (answer.status, answer.json.get("error") and answer.error["code"]) == (status, code), headers


async def test_H6_a_name_bound_anew_gets_nothing_where_others_can_reach_the_server_too(
    autojump_clock: MockClock,
) -> None:
    """Without keys this machine is let in by where it is, so a page must not get there by a name of its own; once
    everybody must show a key, names are free."""
    page = {"Host": "evil.example:1234", "Origin": "http://evil.example:1234"}
    async with serving(autojump_clock, FrontSettings(host="0.0.0.0", names=frozenset({"rig"}))) as house:  # noqa: S104 - its name; it listens on loopback
        for named in (page, {"Host": "evil.example"}, {"Host": "rig.example"}):
            refused = await house.ask("GET", "/v1/models", headers=named)
            assert (refused.status, refused.error["code"]) == (403, "cross_origin"), named
        for host in ("rig:1234", "localhost", "192.0.2.7:1234", "[::1]"):
            assert (await house.ask("GET", "/v1/models", headers={"Host": host})).status == 200, host
        house.authority.keep([ApiKey("tom", sha256(b"tom").hexdigest(), (Scope.READ,))])
        for named, status in ((page, 401), ({"Host": "rig.example", "x-api-key": "tom"}, 200)):
            assert (await house.ask("GET", "/v1/models", headers=named)).status == status, named


async def test_H6_only_the_deep_check_of_whether_it_lives_wants_a_credential(autojump_clock: MockClock) -> None:
    """It makes models work; from elsewhere, without keys, nobody has one."""
    figures = FrontSettings(trusted_proxies=(ip_network("127.0.0.0/8"),))
    elsewhere = {"X-Forwarded-For": "203.0.113.9"}
    async with serving(autojump_clock, figures) as house:
        assert (await house.ask("GET", "/health", headers=elsewhere)).status == 200
        assert (await house.ask("GET", "/health?d%65ep=1", headers=elsewhere)).status == 401
        assert (await house.ask("GET", "/health?deep=1")).status == 200


def test_H6_a_proxy_that_is_not_trusted_is_told_of_once(caplog: pytest.LogCaptureFixture) -> None:
    """All its clients count as this machine: whoever runs the server should know."""
    gate = Gate(Authority())
    for _ in range(3):
        assert is_here(gate.whence(("127.0.0.1", 1), {b"x-forwarded-for": b"203.0.113.9"}))
    assert len(caplog.records) == 1
    assert "server.trusted_proxies" in caplog.text


async def test_H6_who_follows_the_log_is_let_go_when_his_key_is(autojump_clock: MockClock) -> None:
    """A stream has no end of its own: revoked, or made anew with less, a key reads on no longer; another's does, and
    whoever had none is asked for one. Keys that cannot be read end nothing."""
    tom, ann = (ApiKey(name, sha256(name.encode()).hexdigest(), (Scope.READ,)) for name in ("tom", "ann"))
    async with serving(autojump_clock) as house:
        for before, after, key in (((tom, ann), (ann,), "tom"), ((), (ann,), "")):
            house.authority.keep(before)
            client = await house.connect()
            async with client:
                await client.send("GET", "/api/events", headers={"x-api-key": key} if key else {})
                follows = await client.head()
                assert follows.status == 200
                house.authority.keep(after)
                await client.rest(follows)  # it ends
    authority = Authority("a" * 32, (tom, ann))
    shown = {b"x-api-key": b"ann"}
    reads = authority.identify(shown, here=True)
    assert isinstance(reads, Caller)
    lasts = authority.lasting(reads, shown)
    assert lasts()
    authority.keep(None)
    assert lasts()
    authority.keep((ApiKey("ann", ann.sha256, (Scope.INFERENCE,)),))
    assert not lasts()
