"""A load with at least so much context: exactly the best row that has it, or a refusal."""

from typing import Any

import pytest
import trio
from trio.testing import MockClock

from tests.support.front import Answer, House, serving


async def _loaded(house: House, model: str, ctx: object) -> Answer:
    """Asked for, and waited for."""
    return await house.ask("POST", f"/api/models/{model}/load-recommended?wait=120", {"ctx": ctx})


async def _row(house: House, model: str, ctx: int) -> Any:
    told: Any = (await house.ask("GET", f"/api/options?model={model}")).json
    return next(row for row in told["models"][0]["rows"] if row["ctx"] == ctx)


async def test_the_row_that_was_shown_is_what_is_loaded(autojump_clock: MockClock) -> None:
    """Its context, slots and devices; asked for again, nothing is done."""
    async with serving(autojump_clock) as house:
        row = await _row(house, "sim-chat-2b", 8192)
        answer = await _loaded(house, "sim-chat-2b", 8192)
        told: Any = answer.json
        assert answer.status == 200, answer.body
        assert (told["ctx_per_slot"], told["parallel"]) == (row["ctx"], row["parallel"])
        assert (await _row(house, "sim-chat-2b", 8192))["loaded"]
        again: Any = (await _loaded(house, "sim-chat-2b", 4096)).json
        assert (again["already"], again["ctx_per_slot"]) == (True, 8192)
        assert len(house.logged("load")) == 1


async def test_load_args_load_exactly_their_row(autojump_clock: MockClock) -> None:
    """Passed to load_model unchanged."""
    async with serving(autojump_clock) as house:
        for model, ctx in (("sim-chat-4b", 16384), ("sim-chat-12b", 4096)):
            row = await _row(house, model, ctx)
            args = dict(row["load_args"])
            answer = await house.ask("POST", f"/api/models/{args.pop('model')}/load?wait=120", args)
            told: Any = answer.json
            assert answer.status == 200, answer.body
            assert (told["ctx_size"], told["parallel"]) == (row["ctx_size"], row["parallel"])
            assert tuple(told["devices"]) == tuple(row["devices"])


async def test_L7_what_does_not_fit_is_refused_and_never_shrunk(autojump_clock: MockClock) -> None:
    """507 with the arithmetic and what would fit, while another program has the card; nothing is loaded."""
    async with serving(autojump_clock) as house:
        (card,) = (info.spec for info in house.world.monitor.devices())
        house.world.monitor.set_foreign(card.name, card.total_bytes - (4 << 30))
        await trio.sleep(2)
        answer = await _loaded(house, "sim-chat-12b", 8192)
        assert (answer.status, answer.error["code"]) == (507, "insufficient_vram")
        detail: Any = answer.error["gridsched"]
        assert detail["required_bytes"] > detail["available_bytes"]
        assert "max_ctx_that_fits" in detail
        assert not house.logged("load")


@pytest.mark.parametrize("ctx", [0, -1, "many", 2**31, 10**6])
async def test_a_context_that_no_model_has_is_told(autojump_clock: MockClock, ctx: object) -> None:
    """400; also more than the model was trained for."""
    async with serving(autojump_clock) as house:
        answer = await _loaded(house, "sim-chat-12b", ctx)
        assert (answer.status, answer.error["param"]) == (400, "ctx")


async def test_R10_of_a_family_the_best_that_loads_at_once_is_loaded(autojump_clock: MockClock) -> None:
    """Beside what is there; the better one where nothing is."""
    async with serving(autojump_clock) as house:
        told: Any = (await _loaded(house, "sim-chat", 8192)).json
        assert told["model"] == "sim-chat-12b"


async def test_a_model_that_is_there_would_go_for_another_launch_of_itself(autojump_clock: MockClock) -> None:
    """A row with more context than its process has names the process; the plan does, too."""
    async with serving(autojump_clock) as house:
        assert (await _loaded(house, "sim-chat-2b", 4096)).status == 200
        row = await _row(house, "sim-chat-2b", 16384)
        assert [one["model"] for one in row["evictions"]] == ["sim-chat-2b"]
        assert (row["fits_now"], row["fits_if_idle"], row["loaded"]) == (False, True, False)
        plan: Any = (await house.ask("POST", "/api/models/sim-chat-2b/load-recommended?dry_run=1", {"ctx": 16384})).json
        assert (plan["harms"], [one["model"] for one in plan["evicted"]]) == (True, ["sim-chat-2b"])
        told: Any = (await _loaded(house, "sim-chat-2b", 16384)).json
        assert (told["already"], told["ctx_per_slot"]) == (False, 16384)
