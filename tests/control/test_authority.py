"""Who may drain and restart the server (H6)."""

from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from gridsched import app
from gridsched.control.authority import Authority, Scope
from gridsched.control.ending import RESTART
from gridsched.control.problems import Problem
from tests.support.front import ADMIN_WORD, serving

ROUTES = ("/api/drain", "/api/restart")
CHAT = {"model": "sim-chat-4b", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}
ADMIN = {"Authorization": f"Bearer {ADMIN_WORD}"}


def refusal(authority: Authority, headers: dict[bytes, bytes]) -> Problem | None:
    """Why somebody on this machine may not change it."""
    caller = authority.identify(headers, here=True)
    return caller if isinstance(caller, Problem) else authority.refuse(caller, (Scope.ADMIN,), headers)


@pytest.mark.parametrize(
    ("headers", "status", "code"),
    [
        ({}, 403, "remote_admin_requires_credential"),
        ({"Authorization": ""}, 401, "invalid_api_key"),
        ({"Authorization": "Bearer"}, 401, "invalid_api_key"),
        ({"Authorization": f"Bearer {ADMIN_WORD}x"}, 401, "invalid_api_key"),
        ({"Authorization": f"Basic {ADMIN_WORD}"}, 401, "invalid_api_key"),
        ({"Authorization": ADMIN_WORD}, 401, "invalid_api_key"),
        (ADMIN | {"Origin": "http://elsewhere.example"}, 403, "cross_origin"),
        (ADMIN | {"Host": "elsewhere.example"}, 403, "cross_origin"),
    ],
)
async def test_H6_loopback_alone_may_not_end_the_server(
    autojump_clock: MockClock, headers: dict[str, str], status: int, code: str
) -> None:
    """Without the admin token, or from a foreign page with it, both routes are refused and nothing has begun."""
    async with serving(autojump_clock) as house:
        for route in ROUTES:
            answer = await house.ask("POST", route, headers=headers)
            assert (answer.status, answer.error["code"]) == (status, code), route
            assert ADMIN_WORD not in answer.body.decode()
        health = await house.ask("GET", "/health")
        assert health.json["draining"] is False


def test_H6_without_a_token_nobody_may() -> None:
    """An empty token does not let an empty credential in."""
    for said in (b"Bearer ", b"Bearer", b""):
        problem = refusal(Authority(""), {b"authorization": said})
        assert problem is not None
        assert problem.status == 403
    assert refusal(Authority("a" * 32), {b"authorization": b"bearer  " + b"a" * 32}) is None


def test_H6_a_token_that_cannot_be_written_does_not_stop_the_server(tmp_path: Path) -> None:
    """A full disk, or a folder that has gone: that is said, and nobody may."""
    said: list[str] = []
    authority, _ = app.access_in(tmp_path / "absent", said.append)
    assert refusal(authority, {b"authorization": b"Bearer " + b"a" * 64}) is not None
    assert len(said) == 1
    assert f"no admin token can be kept in {tmp_path / 'absent'}: No such file" in said[0]
    assert refusal(app.access_in(None, said.append)[0], {}) is not None
    assert len(said) == 1


async def test_P8_a_drain_takes_nobody_new_and_the_server_stays(autojump_clock: MockClock) -> None:
    """Whoever runs is served to the end, /health answers, and a second drain changes nothing."""
    async with serving(autojump_clock) as house, trio.open_nursery() as nursery:
        running: list[int] = []

        async def chat() -> None:
            running.append((await house.ask("POST", "/v1/chat/completions", CHAT | {"max_tokens": 200})).status)

        nursery.start_soon(chat)
        await house.until_logged("dispatch")
        for _ in range(2):
            answer = await house.ask("POST", "/api/drain", headers=ADMIN)
            assert (answer.status, answer.json) == (202, {"draining": True, "in_flight": 1})
        refused = await house.ask("POST", "/v1/chat/completions", CHAT)
        assert (refused.status, refused.error["code"]) == (503, "draining")
        await trio.sleep(3600)
        assert running == [200]
        assert not house.ended.is_set()
        assert (await house.ask("GET", "/health")).json["draining"] is True


async def test_P8_a_restart_is_a_drain_and_an_exit_code(autojump_clock: MockClock) -> None:
    """With idle processes and idle connections it takes less than 2 s; the answer arrives whole before."""
    async with serving(autojump_clock) as house, await house.connect() as idle:
        await idle.ask("POST", "/v1/chat/completions", CHAT)
        asked_at = trio.current_time()
        answer = await house.ask("POST", "/api/restart", headers=ADMIN)
        assert (answer.status, answer.complete) == (202, True)
        assert answer.json == {"draining": True, "in_flight": 0, "exit_code": RESTART}
        await house.ended.wait()
        assert trio.current_time() - asked_at < 2.0
        assert house.runtime._exit_code == RESTART
