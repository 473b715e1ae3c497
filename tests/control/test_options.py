"""The catalogue that an agent picks from: each row is what a load would really come to."""

from collections.abc import Mapping
from typing import Any

import pytest
from trio.testing import MockClock

from tests.support.front import House, serving

CHAT: Mapping[str, object] = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}


async def _catalogue(house: House, query: str = "") -> Any:
    answer = await house.ask("GET", f"/api/options{query}")
    assert answer.status == 200, answer.body
    return answer.json


def _rows(told: Any, model: str) -> list[Any]:
    return next(list(each["rows"]) for each in told["models"] if each["model"] == model)


async def test_every_model_has_a_row_for_every_context(autojump_clock: MockClock) -> None:
    """By doubling from 4096 up to the trained window, that itself and the configured one among them."""
    async with serving(autojump_clock) as house:
        told = await _catalogue(house)
        assert [each["model"] for each in told["models"]] == [model.name for model in house.world.catalog.models()]
        rows = _rows(told, "sim-chat-12b")
        assert [row["ctx"] for row in rows] == sorted({row["ctx"] for row in rows})
        assert [row["ctx"] for row in rows if row["configured"]] == [8192]
        assert [row["trained"] for row in rows].count(True) == 1


async def test_a_row_is_what_the_plan_says(autojump_clock: MockClock) -> None:
    """The same bytes and devices as `plan` gives for the pool, and who would go."""
    async with serving(autojump_clock) as house:
        for model in ("sim-chat-4b", "sim-chat-2b"):
            assert (await house.ask("POST", "/v1/chat/completions", {**CHAT, "model": model})).status == 200
        rows = _rows(await _catalogue(house, "?model=sim-chat-12b"), "sim-chat-12b")
        row = next(row for row in rows if row["evictions"])
        args = row["load_args"]
        plan: Any = (await house.ask("GET", f"/api/models/sim-chat-12b/plan?ctx={args['ctx']}")).json
        assert [one["model"] for one in row["evictions"]] == [one["model"] for one in plan["evictions"]]
        assert not row["fits_now"]
        assert row["fits_if_idle"]


async def test_what_never_fits_has_no_load_args(autojump_clock: MockClock) -> None:
    """And says the rule and the arithmetic's sentence."""
    async with serving(autojump_clock) as house:
        for row in _rows(await _catalogue(house), "sim-chat-12b"):
            assert (row["load_args"] is None) == (not row["fits_if_idle"])
            assert row["fits_if_idle"] or row["rule"] == "L7"


async def test_the_catalogue_comes_by_pages(autojump_clock: MockClock) -> None:
    """Each model once, whatever the limit; a cursor of no model is told."""
    async with serving(autojump_clock) as house:
        seen, cursor = [], ""
        while True:
            told = await _catalogue(house, f"?limit=2{cursor}")
            seen += [each["model"] for each in told["models"]]
            if told["next_cursor"] is None:
                break
            cursor = f"&cursor={told['next_cursor']}"
        assert seen == [model.name for model in house.world.catalog.models()]
        assert (await house.ask("GET", "/api/options?cursor=nobody")).status == 400


@pytest.mark.parametrize("query", ["?limit=0", "?limit=101", "?ctx=0", "?ctx=x", "?fits=maybe", "?modle=x"])
async def test_wrong_questions_are_told(autojump_clock: MockClock, query: str) -> None:
    """400, with the argument's name."""
    async with serving(autojump_clock) as house:
        answer = await house.ask("GET", f"/api/options{query}")
        assert answer.status == 400
        assert answer.error["param"]


async def test_rows_can_be_asked_for_by_need(autojump_clock: MockClock) -> None:
    """At least so much context, and only what fits now."""
    async with serving(autojump_clock) as house:
        told = await _catalogue(house, "?ctx=8192&fits=true")
        rows = [row for each in told["models"] for row in each["rows"]]
        assert rows
        assert all(row["ctx"] >= 8192 and row["fits_now"] for row in rows)
        assert (await house.ask("GET", "/api/options?model=nobody")).status == 404
