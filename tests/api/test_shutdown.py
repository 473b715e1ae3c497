"""The server's end (P8): clean with open streams, told to whoever waits, never held up by an idle connection."""

import json

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from tests.support.fakes import EVENTS, Script
from tests.support.front import Answer, House, serving

CHAT, EMBED = "/v1/chat/completions", "/v1/embeddings"
HELLO = {"model": "sim-chat-4b", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}
STREAM = HELLO | {"stream": True}
EMBEDDED = {"model": "sim-embed", "input": "a"}
TOKEN, DONE = b'data: {"n":1}\n\n', b"data: [DONE]\n\n"


async def ask_into(house: House, into: list[Answer], target: str, body: object = None) -> None:
    """Ask, and keep the answer."""
    into.append(await house.ask("GET" if body is None else "POST", target, body))


async def test_P8_a_stream_finishes_within_the_drain(autojump_clock: MockClock) -> None:
    """Its tokens come to the last; a follower of the log and a queued job end at once; new work is told."""
    streamed: list[Answer] = []
    followed: list[Answer] = []
    queued: list[Answer] = []
    async with serving(autojump_clock) as house, trio.open_nursery() as nursery:
        await house.ask("POST", CHAT, HELLO)
        house.upstream.scripts += [Script([TOKEN, 5.0] * 3 + [DONE], headers=EVENTS)] * 4
        for _ in range(4):
            nursery.start_soon(ask_into, house, streamed, CHAT, STREAM)
        await house.until_logged("dispatch", 5)
        nursery.start_soon(ask_into, house, queued, CHAT, HELLO)
        nursery.start_soon(ask_into, house, followed, "/api/events")
        await house.until_logged("enqueue", 6)
        idle = await house.connect()
        late = await house.connect()
        await late.ask("GET", "/v1/models")
        told_at = trio.current_time()
        house.runtime.end()
        await trio.sleep(0.1)
        assert (len(followed), len(queued)) == (1, 1)
        refused = await late.ask("POST", CHAT, HELLO)
        assert (refused.status, refused.error["code"]) == (503, "draining")
        health = await house.ask("GET", "/health")
        assert (health.json["draining"], health.json["can_serve"]) == (True, False)
        await house.ended.wait()
        assert 14.0 < trio.current_time() - told_at < 17.0
        for client in (idle, late):
            await client.stream.aclose()
    assert [(answer.complete, answer.body.count(TOKEN), answer.body.endswith(DONE)) for answer in streamed] == [
        (True, 3, True)
    ] * 4
    assert (queued[0].status, queued[0].error["code"]) == (503, "draining")
    assert followed[0].complete


async def test_P8_a_stream_that_outlives_the_drain_is_told(autojump_clock: MockClock) -> None:
    """One error frame and a clean end, after the drain's limit and the front's grace."""
    streamed: list[Answer] = []
    async with serving(autojump_clock) as house, trio.open_nursery() as nursery:
        house.upstream.scripts.append(Script([TOKEN, 1.0] * 1000, headers=EVENTS))
        nursery.start_soon(ask_into, house, streamed, CHAT, STREAM)
        await house.until_logged("dispatch")
        told_at = trio.current_time()
        house.runtime.end()
        await house.ended.wait()
        assert 30.0 < trio.current_time() - told_at < 35.0
    (answer,) = streamed
    assert answer.complete
    last = answer.body.split(b"\n\n")[-2]
    assert json.loads(last.removeprefix(b"data: "))["error"]["code"] == "draining"


async def test_P8_an_answer_in_one_piece_that_outlives_the_drain_is_told(autojump_clock: MockClock) -> None:
    """A 503 as long as nothing of it has gone out, and no client that is said to have left; else it is broken off."""
    answers: list[Answer] = []
    async with serving(autojump_clock) as house, trio.open_nursery() as nursery:
        late, begun = Script([1000.0, b"late"]), Script([b"early", 1000.0, b"late"])
        asked = ((CHAT, HELLO, late), (CHAT, HELLO, begun), (EMBED, EMBEDDED, late))
        for number, (path, body, script) in enumerate(asked, start=1):
            house.upstream.scripts.append(script)
            nursery.start_soon(ask_into, house, answers, path, body)
            await house.until_logged("dispatch", number)
            await trio.testing.wait_all_tasks_blocked()
            assert not house.upstream.scripts
        told_at = trio.current_time()
        house.runtime.end()
        await house.ended.wait()
        assert 30.0 < trio.current_time() - told_at < 35.0
    told = [answer for answer in answers if answer.status == 503]
    assert [answer.error["code"] for answer in told] == ["draining"] * 2
    assert all(answer.complete and answer.headers["x-gridsched-job-id"] for answer in told)
    assert [answer.complete for answer in answers if answer.status == 200] == [False]


@pytest.mark.parametrize("target", ["/health", "/v1/models"])
async def test_P8_an_idle_connection_holds_up_nothing(autojump_clock: MockClock, target: str) -> None:
    """Whichever application it spoke to last."""
    async with serving(autojump_clock) as house, await house.connect() as client:
        await client.ask("GET", target)
        told_at = trio.current_time()
        house.runtime.end()
        await house.ended.wait()
        assert trio.current_time() - told_at < 0.1
        assert await client.stream.receive_some(1) == b""
