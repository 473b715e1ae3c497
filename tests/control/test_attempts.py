"""Limits on failed attempts (H6): by address, without locking out who is known there."""

from hashlib import sha256
from ipaddress import ip_network

import pytest
from trio.testing import MockClock

from gridsched.api.settings import FrontSettings
from gridsched.control.attempts import MOST_ADDRESSES, MOST_FAILURES, WITHIN_SECONDS, Attempts
from gridsched.control.authority import Authority, Caller
from gridsched.control.problems import Problem
from gridsched.credentials import ApiKey, Scope
from tests.support.front import ADMIN_WORD, serving

RIGHT = ApiKey("tom", sha256(b"gs-tom").hexdigest(), (Scope.INFERENCE, Scope.READ))
FAR = "203.0.113.9"


def shown(secret: str) -> dict[bytes, bytes]:
    """A request's headers."""
    return {b"authorization": f"Bearer {secret}".encode()}


def asked(authority: Authority, secret: str, address: str = FAR, now: float = 0.0, *, here: bool = False) -> object:
    """Who that is: the key's name, or the error's code."""
    told = authority.identify(shown(secret), here=here, address=address, now=now)
    return told.key if isinstance(told, Caller) else told.code


def test_H6_an_address_that_keeps_failing_is_not_looked_at_for_a_while() -> None:
    """Not even with a right key, until the oldest of its failures is a minute old; and it is told when that is."""
    authority = Authority("", [RIGHT])
    for number in range(MOST_FAILURES):
        assert asked(authority, f"wrong-{number}", now=float(number)) == "invalid_api_key"
    assert asked(authority, "gs-tom", now=20.0) == "too_many_attempts"
    told = authority.identify(shown("gs-tom"), here=False, address=FAR, now=20.0)
    assert isinstance(told, Problem)
    assert (told.status, told.retry_after_seconds) == (429, WITHIN_SECONDS - 20.0)
    assert asked(authority, "gs-tom", now=WITHIN_SECONDS) == "tom"


def test_H6_nobody_else_is_hurt_by_it() -> None:
    """Another address, a key that was right from the same one before, this machine, and who shows nothing."""
    authority = Authority("", [RIGHT])
    assert asked(authority, "gs-tom", "198.51.100.1") == "tom"
    for address in (FAR, "198.51.100.1", "127.0.0.1"):
        for number in range(3 * MOST_FAILURES):
            asked(authority, f"wrong-{number}", address)
    assert asked(authority, "gs-tom", "198.51.100.2") == "tom"
    assert asked(authority, "gs-tom", "198.51.100.1") == "tom"
    assert asked(authority, "gs-tom", "127.0.0.1", here=True) == "tom"
    assert asked(authority, "wrong", "127.0.0.1", here=True) == "invalid_api_key"
    told = authority.identify({}, here=False, address=FAR)
    assert isinstance(told, Problem)
    assert told.code == "invalid_api_key"


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("2001:db8::1", "2001:db8::ffff:2", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("::ffff:203.0.113.9", FAR, True),
        ("fe80::1%eth0", "fe80::2", True),
        ("", "", True),
    ],
)
def test_H6_one_subscribers_addresses_count_as_one(one: str, other: str, *, same: bool) -> None:
    """Who has a whole network of IPv6 addresses is one caller."""
    attempts = Attempts()
    for _ in range(MOST_FAILURES):
        attempts.failed(one, 0.0)
    assert (attempts.wait_seconds(other, [b"x"], 0.0) > 0) is same


def test_what_is_kept_of_addresses_is_bounded() -> None:
    """Ten times as many as are remembered leave no more than those."""
    attempts = Attempts()
    for number in range(10 * MOST_ADDRESSES):
        attempts.failed(f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}", 0.0)
    assert len(attempts._failures) == MOST_ADDRESSES


def test_H6_the_admin_token_cannot_be_tried_without_end_either() -> None:
    """On a server without keys, where a client's made-up key is no failure."""
    authority = Authority("a" * 32, insecure=True)
    for _ in range(3 * MOST_FAILURES):
        assert asked(authority, "sk-made-up") == ""
    caller = authority.identify(shown("guess"), here=False, address=FAR)
    assert isinstance(caller, Caller)
    for _ in range(MOST_FAILURES):
        problem = authority.refuse(caller, (Scope.ADMIN,), shown("guess"), address=FAR, now=1.0)
        assert problem is not None
        assert problem.status == 401
    assert asked(authority, "a" * 32, now=2.0) == "too_many_attempts"


async def test_H6_a_client_behind_a_proxy_is_counted_by_its_own_address(autojump_clock: MockClock) -> None:
    """Over HTTP: 401 ten times, then 429 with Retry-After; the proxy's other clients go on."""
    figures = FrontSettings(trusted_proxies=(ip_network("127.0.0.1"),))
    async with serving(autojump_clock, figures) as house:
        house.authority.keep([RIGHT])
        far = {"X-Forwarded-For": FAR}
        for _ in range(MOST_FAILURES):
            answer = await house.ask("GET", "/v1/models", headers=far | {"x-api-key": "wrong"})
            assert answer.status == 401
        answer = await house.ask("GET", "/v1/models", headers=far | {"x-api-key": "gs-tom"})
        assert (answer.status, answer.error["code"], answer.headers["retry-after"]) == (429, "too_many_attempts", "60")
        near = {"X-Forwarded-For": "198.51.100.7", "x-api-key": "gs-tom"}
        assert (await house.ask("GET", "/v1/models", headers=near)).status == 200
        assert (await house.ask("GET", "/v1/models", headers={"x-api-key": ADMIN_WORD})).status == 200
