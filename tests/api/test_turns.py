"""One key's backlog is its own: keys take turns through the whole server; without keys whoever came first goes first
(S2, B13)."""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from random import Random
from statistics import median

import pytest
import trio
from trio.testing import MockClock

from gridsched.credentials import ApiKey, Scope
from tests.support.front import House, serving

MODEL, SLOTS = "sim-chat-4b", 4
BACKLOG = 50
ASKED = 60
"""Requests of the key that is measured, one after the other: with a third of them, chance moves a p50 by a fifth."""

ASKED_FOR_CONTRAST = 10
"""Where the p50 is not compared closely."""


@dataclass
class Crowd:
    """Somebody who keeps a number of requests open, each another as soon as it is answered."""

    house: House
    name: str
    draws: Random

    async def ask(self) -> None:
        """One chat of some length."""
        messages = [{"role": "user", "content": "hi"}]
        body = {"model": MODEL, "messages": messages, "max_tokens": self.draws.randint(8, 24)}
        answer = await self.house.ask("POST", "/v1/chat/completions", body, {"x-api-key": self.name})
        assert answer.status == 200

    async def keep_asking(self) -> None:
        """Until cancelled."""
        while True:
            await self.ask()


async def seconds_of_another(house: House, many: int, asked: int) -> Sequence[float]:
    """How long each of so many requests of ann's takes while tom keeps `many` open."""
    took = []
    tom, ann = Crowd(house, "tom", Random(1)), Crowd(house, "ann", Random(2))  # noqa: S311 - repeatable, no secret
    async with trio.open_nursery() as nursery:
        for _ in range(many):
            nursery.start_soon(tom.keep_asking)
        before = len(house.logged("enqueue"))
        if many:
            await house.until_logged("enqueue", before + many)
        for _ in range(asked):
            began = trio.current_time()
            await ann.ask()
            took.append(trio.current_time() - began)
        nursery.cancel_scope.cancel()
    await trio.sleep(60)  # tom's last ones end
    return took


@pytest.mark.slow
async def test_B13_fifty_waiting_requests_of_one_key_do_not_hold_up_another(autojump_clock: MockClock) -> None:
    """Beside a key that uses every slot, the p50 of another moves by less than a fifth when fifty more of its requests
    wait; without keys the same fifty are all served first."""
    p50 = {}
    for keys in ((), tuple(ApiKey(name, sha256(name.encode()).hexdigest(), tuple(Scope)) for name in ("tom", "ann"))):
        async with serving(autojump_clock) as house:
            house.authority.keep(keys)
            await Crowd(house, "ann", Random(3)).ask()  # noqa: S311 - the same; it loads the model
            for many in (0, SLOTS, SLOTS + BACKLOG):
                asked = ASKED if keys and many else ASKED_FOR_CONTRAST
                p50[bool(keys), many] = median(await seconds_of_another(house, many, asked))
    for with_keys in (False, True):
        alone, full, behind = (p50[with_keys, many] for many in (0, SLOTS, SLOTS + BACKLOG))
        print(f"keys {with_keys}: p50 {alone:.2f} s alone, {full:.2f} s beside full slots, {behind:.2f} s behind fifty")
    assert p50[True, SLOTS + BACKLOG] < 1.2 * p50[True, SLOTS]
    assert p50[False, SLOTS + BACKLOG] > 5 * p50[False, SLOTS]


async def test_S2_without_keys_whoever_came_first_goes_first_whatever_they_show(autojump_clock: MockClock) -> None:
    """Names in a header are no keys."""
    async with serving(autojump_clock) as house, trio.open_nursery() as nursery:
        for count, name in enumerate("aaaaaabb"):
            nursery.start_soon(Crowd(house, name, Random(count)).ask)  # noqa: S311 - the same
            await house.until_logged("enqueue", count + 1)
        await house.until_logged("complete", 8)
        served = [line["job"] for line in house.logged("dispatch")]
        assert served == sorted(line["job"] for line in house.logged("enqueue"))
