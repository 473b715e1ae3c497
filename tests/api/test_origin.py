"""Who a browser request comes from (H6)."""

import pytest

from gridsched.api.origin import Origins

OWN = {b"host": b"localhost:1234"}
NAMES = frozenset({"rig"})

PASS = [
    ("127.0.0.1", {}),
    ("127.0.0.1", OWN),
    ("127.0.0.1", {b"host": b"127.0.0.1"}),
    ("127.0.0.1", {b"host": b"127.9.9.9:1"}),
    ("127.0.0.1", {b"host": b"[::1]:1234"}),
    ("localhost", {b"host": b"LOCALHOST:1234"}),
    ("127.0.0.1", OWN | {b"origin": b"http://localhost:1234"}),
    ("127.0.0.1", OWN | {b"origin": b"HTTP://LocalHost:1234"}),
    ("127.0.0.1", {b"host": b"rig:1234", b"origin": b"http://rig:1234"}),
    ("0.0.0.0", {b"host": b"Rig"}),  # noqa: S104 - a name, nothing listens
    ("0.0.0.0", {b"host": b"192.0.2.7:1234", b"origin": b"http://192.0.2.7:1234"}),  # noqa: S104 - the same
    ("rig.lan", {b"host": b"rig.lan:1234"}),
    ("127.0.0.1", OWN | {b"sec-fetch-site": b"none"}),
    ("127.0.0.1", OWN | {b"sec-fetch-site": b"same-origin", b"sec-fetch-dest": b"image"}),
    ("127.0.0.1", OWN | {b"sec-fetch-site": b"cross-site", b"sec-fetch-dest": b"document"}),
]
REFUSE = [
    ("127.0.0.1", {b"host": b"evil.example"}),
    ("127.0.0.1", {b"host": b"localhost.evil.example"}),
    ("127.0.0.1", {b"host": b"evil.example:1234"}),
    ("127.0.0.1", {b"host": b"[::1"}),
    ("127.0.0.1", {b"host": b"localhost@evil.example"}),
    ("127.0.0.1", {b"host": b"127.0.0.1.evil.example:1234"}),
    ("127.0.0.1", {b"host": b"127.evil.example"}),
    ("127.0.0.1", {b"host": b"localhost, evil.example"}),
    ("127.0.0.1", OWN | {b"origin": b"http://localhost:1234, http://evil.example"}),
    ("::1", {b"host": b"rig.lan"}),
    ("127.0.0.1", OWN | {b"origin": b"http://localhost:4321"}),
    ("127.0.0.1", OWN | {b"origin": b"http://localhost"}),
    ("127.0.0.1", OWN | {b"origin": b"null"}),
    ("127.0.0.1", OWN | {b"origin": b""}),
    ("127.0.0.1", OWN | {b"origin": b"http://evil.example"}),
    ("127.0.0.1", {b"origin": b"http://localhost:1234"}),
    ("127.0.0.1", {b"host": b"192.0.2.7:1234"}),
    ("0.0.0.0", {b"host": b"rig.lan:1234"}),  # noqa: S104 - a name, nothing listens
    ("0.0.0.0", {b"host": b"evil.example:1234", b"origin": b"http://evil.example:1234"}),  # noqa: S104 - the same
    ("0.0.0.0", OWN | {b"origin": b"http://localhost:80"}),  # noqa: S104 - the same
    ("127.0.0.1", OWN | {b"sec-fetch-site": b"cross-site", b"sec-fetch-dest": b"image"}),
    ("127.0.0.1", OWN | {b"sec-fetch-site": b"Same-Site", b"sec-fetch-dest": b"iframe"}),
    ("127.0.0.1", OWN | {b"sec-fetch-site": b"cross-site"}),
]


@pytest.mark.parametrize(("listening", "headers"), PASS)
def test_H6_this_machine_and_its_own_pages_pass(listening: str, headers: dict[bytes, bytes]) -> None:
    """Programs send no origin, pages of ours send ours."""
    assert Origins(listening, names=NAMES).refuse(headers) is None


@pytest.mark.parametrize(("listening", "headers"), REFUSE)
def test_H6_a_foreign_host_or_origin_is_refused(listening: str, headers: dict[bytes, bytes]) -> None:
    """The port is part of an origin; a rebound name is no name of ours."""
    problem = Origins(listening, names=NAMES).refuse(headers)
    assert problem is not None
    assert (problem.status, problem.code) == (403, "cross_origin")


def test_H6_where_no_name_can_help_to_get_in_any_is_taken() -> None:
    """Pages of another origin are not, nor what they load."""
    named = {b"host": b"rig.lan:1234"}
    origins = Origins("0.0.0.0", names=NAMES)  # noqa: S104 - a name, nothing listens
    assert origins.refuse(named, by_any_name=True) is None
    assert origins.refuse(named | {b"origin": b"https://rig.lan:1234"}, by_any_name=True) is None
    for page in ({b"origin": b"http://rig.lan:80"}, {b"sec-fetch-site": b"same-site"}):
        assert origins.refuse(named | page, by_any_name=True) is not None
