"""Who a browser request comes from (H6)."""

import pytest

from gridsched.api.origin import Origins

OWN = {b"host": b"localhost:1234"}

PASS = [
    ("127.0.0.1", {}),
    ("127.0.0.1", OWN),
    ("127.0.0.1", {b"host": b"127.0.0.1"}),
    ("127.0.0.1", {b"host": b"127.9.9.9:1"}),
    ("127.0.0.1", {b"host": b"[::1]:1234"}),
    ("localhost", {b"host": b"LOCALHOST:1234"}),
    ("127.0.0.1", OWN | {b"origin": b"http://localhost:1234"}),
    ("127.0.0.1", OWN | {b"origin": b"HTTP://LocalHost:1234"}),
    ("0.0.0.0", {b"host": b"rig.lan:1234"}),  # noqa: S104 - a name, nothing listens
    ("0.0.0.0", {b"host": b"rig.lan:1234", b"origin": b"https://rig.lan:1234"}),  # noqa: S104 - the same
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
    ("0.0.0.0", {b"host": b"rig.lan:1234", b"origin": b"http://rig.lan:80"}),  # noqa: S104 - a name, nothing listens
]


@pytest.mark.parametrize(("listening", "headers"), PASS)
def test_H6_this_machine_and_its_own_pages_pass(listening: str, headers: dict[bytes, bytes]) -> None:
    """Programs send no origin, pages of ours send ours."""
    assert Origins(listening).refuse(headers) is None


@pytest.mark.parametrize(("listening", "headers"), REFUSE)
def test_H6_a_foreign_host_or_origin_is_refused(listening: str, headers: dict[bytes, bytes]) -> None:
    """The port is part of an origin; a rebound name is no name of ours."""
    problem = Origins(listening).refuse(headers)
    assert problem is not None
    assert (problem.status, problem.code) == (403, "cross_origin")
