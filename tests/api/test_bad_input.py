"""Bad input by the hundred, on every route that takes JSON: a clear 4xx, and nothing is queued, loaded or lost."""

import json
import math
import tracemalloc
from collections import Counter
from random import Random

import pytest
import trio
from trio.testing import MockClock

from gridsched.api.members import MOST_BRACKETS, MOST_ITEMS, members
from tests.api.bad_bodies import JSON_ROUTES, Bad, good, mutated, table
from tests.support.front import Answer, House, serving

TABLE = list(table())
SMALL = "sim-chat-4b"
MUTATIONS = 3000
SEED = 20_261_201


def wrong_with(answer: Answer, bad: Bad) -> list[str]:
    """What of an answer is no refusal in the contract's shape."""
    error = answer.json.get("error")
    told = error if isinstance(error, dict) else {}
    checks = {
        f"status {answer.status}": answer.status in bad.statuses,
        "not all members": {"message", "type", "param", "code", "gridsched"} <= told.keys(),
        "no message": bool(told.get("message")),
        "type": told.get("type") == "invalid_request_error",
        "to be asked again": answer.headers.get("x-should-retry") == "false",
        "no JSON": answer.headers.get("content-type") == "application/json",
    }
    return [f"{bad.how}: {word}: {answer.body[:200]!r}" for word, holds in checks.items() if not holds]


def test_every_route_has_its_bad_input() -> None:
    """As many as the README says."""
    tried = Counter(bad.target for bad in TABLE)
    assert tried.keys() == JSON_ROUTES.keys()
    assert min(tried.values()) > 180
    assert len(TABLE) > 2200


@pytest.mark.slow
@pytest.mark.parametrize("path", JSON_ROUTES)
async def test_H1_H4_bad_input_is_a_4xx_and_nothing_is_queued_or_loaded(autojump_clock: MockClock, path: str) -> None:
    """One connection takes them all, and the next request on it is served."""
    wrong: list[str] = []
    async with serving(autojump_clock) as house, await house.connect() as client:
        for bad in (bad for bad in TABLE if bad.target == path):
            asked = client.ask if bad.body else house.ask  # what has no length ends its connection
            wrong += wrong_with(await asked("POST", path, bad.body, bad.headers), bad)
        assert wrong == []
        assert not house.logged("enqueue")
        assert not house.logged("load")
        assert (await client.ask("GET", "/v1/models")).status == 200


def is_json(body: bytes) -> bool:
    """Whether a parser that allows nothing special takes it."""

    def refuse(word: str) -> float:
        raise ValueError(word)

    def finite(word: str) -> float:
        number = float(word)
        if not math.isfinite(number):
            raise ValueError(word)
        return number

    try:
        value = json.loads(body.decode(), parse_constant=refuse, parse_float=finite)
        json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        return False
    return isinstance(value, dict)


@pytest.mark.slow
async def test_H1_mutated_bodies_are_answered_and_only_valid_json_is_queued(autojump_clock: MockClock) -> None:
    """Whatever chance makes of a valid body: 4xx or an answer, the server stays as it was, and serves the next one."""
    random = Random(SEED)  # noqa: S311 - nothing here is secret
    seen: Counter[int] = Counter()
    async with serving(autojump_clock) as house, await house.connect() as client:
        for _ in range(MUTATIONS):
            route = random.choice(list(JSON_ROUTES.values()))
            fields = good(route) | {"x_class": "batch", "gridsched": {"max_wait_ms": 5}, "max_tokens": 1, "n": 1e3}
            body = mutated(random, json.dumps(fields, indent=random.choice((None, 2))).encode())
            before = len(house.logged("enqueue"))
            answer = await client.ask("POST", route.path, body)
            seen[answer.status] += 1
            queued = len(house.logged("enqueue")) - before
            assert answer.status < 500 or queued, body
            assert is_json(body) or (not queued and answer.status == 400), body
        assert seen[400] > MUTATIONS // 4
        assert (
            await client.ask("POST", "/v1/completions", {"model": SMALL, "prompt": "a", "max_tokens": 1})
        ).status == 200
        await house.runtime.desk.wait_idle()


LISTS = {
    "prompts": ("/v1/completions", b'{"prompt":[%b"a"]}'),
    "inputs": ("/v1/embeddings", b'{"input":[%b"a"]}'),
    "parts": ("/v1/chat/completions", b'{"messages":[{"role":"user","content":[%b{"type":"image_url"}]}]}'),
    "messages": ("/v1/messages", b'{"messages":[%b{"role":"user","content":[{"type":"image"}]}]}'),
}


@pytest.mark.parametrize(("path", "body"), LISTS.values(), ids=LISTS.keys())
async def test_H1_a_list_longer_than_anybody_means_is_refused(
    autojump_clock: MockClock, path: str, body: bytes
) -> None:
    """Before it is built; nothing is queued."""
    async with serving(autojump_clock) as house:
        answer = await house.ask("POST", path, body % (b'"a",' * MOST_ITEMS))
        assert (answer.status, answer.error["code"]) == (400, "invalid_request")
        assert f"more than {MOST_ITEMS} values" in str(answer.error["message"])
        assert not house.logged("enqueue")


PARTS = b'{"role":"user","content":[{"type":"image_url"}]},'
EXPENSIVE = {
    "objects": ("/v1/completions", b'"a":[', b"{},"),
    "arrays": ("/v1/completions", b'"a":[', b"[],"),
    "texts like numbers": ("/v1/completions", b'"a":[', b'"1e999",'),
    "messages": ("/v1/chat/completions", b'"messages":[', b"{},"),
    "parts": ("/v1/chat/completions", b'"messages":[', PARTS),
    "inputs": ("/v1/embeddings", b'"input":[', b"[1],"),
    "tokens": ("/v1/embeddings", b'"input":[', b"1,"),
}
LONG = 8_000_000


async def longest_gap(house: House, path: str, body: bytes) -> float:
    """For how much of the time of one request nobody else was served, at the longest."""
    gaps: list[float] = []
    done = trio.Event()

    async def tick() -> None:
        at = trio.current_time()
        while not done.is_set():
            await trio.sleep(0.001)
            gaps.append(trio.current_time() - at)
            at = trio.current_time()

    async with await house.connect() as client, trio.open_nursery() as nursery:
        nursery.start_soon(tick)
        began = trio.current_time()
        assert (await client.ask("POST", path, body)).status in {400, 503}
        done.set()
    return max(gaps) / (trio.current_time() - began)


@pytest.mark.slow
@pytest.mark.parametrize(("path", "before", "piece"), EXPENSIVE.values(), ids=EXPENSIVE.keys())
async def test_S7_a_body_that_is_expensive_to_read_holds_nobody_up(
    mock_clock: MockClock, path: str, before: bytes, piece: bytes
) -> None:
    """Eight megabytes of tiny values: the decisions of others are made meanwhile. On a loaded machine one of three
    tries is enough."""
    mock_clock.rate = 1.0
    head = b'{"prompt":"a","gridsched":{"warm_only":true},' + before
    count = min(LONG // len(piece), MOST_BRACKETS // 2 - 9)  # a body with more brackets is refused at once
    body = head + piece * count + piece[:-1] + b"]}"
    async with serving(mock_clock) as house:
        shares = []
        while not shares or (shares[-1] > 1 / 2 and len(shares) < 3):
            shares.append(await longest_gap(house, path, body))
    assert min(shares) <= 1 / 2, shares


@pytest.mark.slow
@pytest.mark.parametrize("piece", [b"{},", b"[],", b'"a",'])
def test_a_body_of_very_many_values_is_checked_without_building_them(piece: bytes) -> None:
    """It takes less memory than three of itself, whatever the values are; to build them takes ten or more."""
    body = b'{"a":[' + piece * (LONG // 4 // len(piece)) + b"0]}"
    tracemalloc.start()
    try:
        members(body)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 3 * len(body)
