"""load, unload, pin, unpin, rebalance: what each answers, tells on the way, and would come to."""

from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from gridsched.control.problems import RequestError
from gridsched.core.policy import Policy
from gridsched.store.standing import StandingFile
from sim import build
from sim.gpu import GIB
from tests.control.acting import Steps, act, plan
from tests.support.front import House, serving

CHAT = "/v1/chat/completions"
LARGE, SMALL, TINY = "sim-chat-12b", "sim-chat-4b", "sim-chat-2b"
HELLO: dict[str, object] = {"model": SMALL, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}
ONE_FITS = (10 * GIB,)
ADMIN = {"Authorization": "Bearer the admin token of every server in a test"}


# --- load -------------------------------------------------------------------------------------------------------


async def test_R7_a_load_answers_what_is_there_and_tells_how_far_it_is(autojump_clock: MockClock) -> None:
    """By an alias; once a second, against what it is expected to take."""
    async with serving(autojump_clock) as house:
        steps: Steps = []
        told = await act(house, "load_model", steps, model="gpt-4o-mini")
        assert (told["model"], told["devices"], told["parallel"]) == (SMALL, ["sim0"], told["parallel"])
        assert told["load_s"] > 1
        assert told["bytes"] > GIB
        loading = [step for step in steps if step[2].startswith(f"loading {SMALL}: ")]
        assert len(loading) >= 2
        assert [done for done, _, _ in loading] == sorted(done for done, _, _ in loading)
        assert all(total is not None and done <= total for done, total, _ in loading)
        assert (await act(house, "load_model", model=SMALL))["instance"] == told["instance"]


async def test_R10_a_family_is_loaded_as_the_best_that_would(autojump_clock: MockClock) -> None:
    """Of a virtual model its base is."""
    async with serving(autojump_clock, world=build(cards=ONE_FITS)) as house:
        assert (await act(house, "load_model", model="sim-chat"))["model"] == LARGE


async def test_a_load_with_a_context_replaces_another_and_lasts_as_long_as_its_process(
    autojump_clock: MockClock,
) -> None:
    """The model serves with it; unloaded, it comes back as configured."""
    async with serving(autojump_clock) as house:
        configured = await act(house, "load_model", model=SMALL)
        smaller = await act(house, "load_model", model=SMALL, ctx=4096)
        assert (smaller["ctx_size"], configured["ctx_size"] > 4096) == (4096, True)
        assert smaller["instance"] != configured["instance"]
        assert (await act(house, "load_model", model=SMALL))["instance"] == smaller["instance"]
        assert (await house.ask("POST", CHAT, HELLO)).status == 200
        await act(house, "unload_model", model=SMALL)
        assert (await act(house, "load_model", model=SMALL))["ctx_size"] == configured["ctx_size"]
        four = await act(house, "load_model", model=SMALL, ctx=16384, parallel=1)
        assert (four["ctx_size"], four["parallel"]) == (16384, 1)


@pytest.mark.parametrize(
    ("given", "param"),
    [({"ctx": 2**31 - 1}, "ctx"), ({"parallel": 2}, "parallel")],
)
async def test_a_context_that_cannot_be_is_refused(
    autojump_clock: MockClock, given: dict[str, object], param: str
) -> None:
    """Or is too large for the card: with the arithmetic, and what is there stays."""
    async with serving(autojump_clock) as house:
        first = await act(house, "load_model", model=SMALL)
        with pytest.raises(RequestError) as refused:
            await act(house, "load_model", model=SMALL, **given)
        problem = refused.value.problem
        assert (problem.code, problem.param) in {("invalid_request", param), ("insufficient_vram", None)}
        if problem.code == "insufficient_vram":
            assert {"required_bytes", "per_device", "holders", "max_ctx_that_fits"} <= problem.detail.keys()
        assert (await act(house, "load_model", model=SMALL))["instance"] == first["instance"]


async def test_R6_a_person_says_how_long_a_model_may_be_idle(autojump_clock: MockClock) -> None:
    """For as long as its process lives, from its last use; it is shown when that will be."""
    async with serving(autojump_clock) as house:
        await act(house, "load_model", model=SMALL, ttl_s=50)
        await trio.sleep(40)
        await house.ask("POST", CHAT, HELLO)
        (view,) = house.runtime.snapshot().instances
        assert view.expires_at_seconds == pytest.approx(trio.current_time() + 50, abs=1)
        await trio.sleep(45)
        assert house.runtime.snapshot().instances
        await trio.sleep(10)
        assert not house.runtime.snapshot().instances
        (stop,) = house.logged("stop")
        assert stop["rule"] == "R6"


async def test_R7_a_plan_of_a_load_says_who_would_go_and_who_waits_for_them(autojump_clock: MockClock) -> None:
    """Nobody goes for what is there or fits; the essence is another where somebody else would go."""
    async with serving(autojump_clock, world=build(cards=ONE_FITS), policy=Policy()) as house:
        free = await plan(house, "load_model", model=SMALL)
        assert (free.harms, free.evicted, free.seconds is not None and free.seconds > 1) == (False, (), True)
        await act(house, "load_model", model=SMALL)
        assert not (await plan(house, "load_model", model=SMALL)).harms
        told = await plan(house, "load_model", model=LARGE)
        assert told.harms
        (victim,) = told.evicted
        assert (victim.model, victim.running_steps) == (SMALL, 0)
        assert victim.bytes > GIB
        assert SMALL in told.text
        assert told.essence != free.essence
        replaced = await plan(house, "load_model", model=SMALL, ctx=4096)
        assert (replaced.harms, [one.model for one in replaced.evicted]) == (True, [SMALL])


async def test_a_load_that_nobody_waits_for_any_more_is_given_up(autojump_clock: MockClock) -> None:
    """An operator's cancel before half of it is; a later load is a new one."""
    async with serving(autojump_clock) as house:
        with trio.move_on_after(0.5):
            await act(house, "load_model", model=SMALL)
        await house.until_logged("stop")
        (stop,) = house.logged("stop")
        assert stop["rule"] == "S6c"
        assert (await act(house, "load_model", model=SMALL))["model"] == SMALL


# --- unload -----------------------------------------------------------------------------------------------------


async def test_R7_an_unload_answers_what_was_freed(autojump_clock: MockClock) -> None:
    """And that there was nothing where that is so; its plan says what it would break off."""
    async with serving(autojump_clock) as house:
        loaded = await act(house, "load_model", model=SMALL)
        assert (await plan(house, "unload_model", model=SMALL)).harms
        gone = await act(house, "unload_model", model=SMALL)
        assert gone == {
            "model": SMALL, "was": "loaded", "instance": loaded["instance"], "freed_bytes": loaded["bytes"],
        }  # fmt: skip
        assert (await act(house, "unload_model", model=SMALL))["was"] == "cold"
        assert not (await plan(house, "unload_model", model=SMALL)).harms


async def test_R7_an_unload_is_refused_while_jobs_wait_for_the_model(autojump_clock: MockClock) -> None:
    """With how many; the plan has named them."""
    async with serving(autojump_clock) as house, trio.open_nursery() as nursery:
        nursery.start_soon(house.ask, "POST", CHAT, HELLO)
        await house.until_logged("load")
        told = await plan(house, "unload_model", model=SMALL)
        assert len(told.waiting_jobs) == 1
        with pytest.raises(RequestError) as refused:
            await act(house, "unload_model", model=SMALL)
        assert refused.value.problem.code == "conflict"
        assert refused.value.problem.detail["waiting"] == 1


# --- pins -------------------------------------------------------------------------------------------------------


async def test_R7_a_pin_outlives_the_server_where_a_person_wants_that(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    """It is on the disk when it is answered; an unload of it is kept as well."""
    path = tmp_path / "standing.json"
    async with serving(autojump_clock, standing=StandingFile(path, pytest.fail)) as house:
        told = await act(house, "pin_model", model=SMALL)
        assert (told["pinned"], told["kept"], told["note"]) == (True, True, None)
        assert b'"pin":true' in path.read_bytes()
        assert not (await act(house, "pin_model", model=TINY, keep=False))["kept"]
    async with serving(autojump_clock, standing=StandingFile(path, pytest.fail)) as house:
        await house.until_logged("ready")
        await trio.sleep(20)
        assert [(view.model, view.tier.value) for view in house.runtime.snapshot().instances] == [(SMALL, "pinned")]
        await act(house, "unload_model", model=SMALL)
        assert b'"put_down":true' in path.read_bytes()
    async with serving(autojump_clock, standing=StandingFile(path, pytest.fail)) as house:
        await trio.sleep(20)
        assert not house.runtime.snapshot().instances
        await act(house, "unpin_model", model=SMALL)
        await act(house, "load_model", model=SMALL)
    async with serving(autojump_clock) as house:
        told = await act(house, "pin_model", model=SMALL)
        assert not told["kept"]
        assert told["note"]


async def test_R7_a_pin_that_cannot_be_beside_the_others_is_refused_with_the_sums(autojump_clock: MockClock) -> None:
    """409, before anything is loaded; what never fits is refused as a load is."""
    async with serving(autojump_clock, world=build(cards=ONE_FITS)) as house:
        await act(house, "pin_model", model=SMALL)
        with pytest.raises(RequestError) as refused:
            await act(house, "pin_model", model=LARGE)
        problem = refused.value.problem
        assert problem.status == 409
        assert SMALL in problem.message
        needs, usable = problem.detail["needs"], problem.detail["usable"]
        assert isinstance(needs, dict)
        assert isinstance(usable, dict)
        assert sum(needs.values()) > sum(usable.values())
        await act(house, "unpin_model", model=SMALL)
        assert (await act(house, "pin_model", model=LARGE))["pinned"]
    async with serving(autojump_clock, world=build(cards=(1 * GIB,))) as house:
        with pytest.raises(RequestError) as refused:
            await act(house, "pin_model", model=LARGE)
        assert refused.value.problem.code == "insufficient_vram"


# --- rebalancing ------------------------------------------------------------------------------------------------


async def test_R9_a_person_has_it_looked_whether_anything_had_better_be_elsewhere(autojump_clock: MockClock) -> None:
    """Two models share a card because the other was leased: one moves as soon as it is asked for, not in five minutes;
    with nothing to move the reason is told."""

    async def rebalance(house: House) -> dict[str, object]:
        return await act(house, "rebalance")

    async with serving(autojump_clock, world=build(cards=(16 * GIB, 16 * GIB))) as house:
        assert (await rebalance(house))["why"]
        await act(house, "reserve_gpus", devices="sim1", owner="somebody", ttl_s=3600)
        await act(house, "load_model", model=SMALL)
        await act(house, "load_model", model=TINY)
        assert (await rebalance(house))["model"] is None
        await act(house, "release_gpus", device="sim1")
        told = await rebalance(house)
        assert (told["from_devices"], told["to_devices"], told["why"]) == (["sim0"], ["sim1"], None)
        await trio.sleep(30)
        devices = {view.model: view.devices for view in house.runtime.snapshot().instances}
        assert sorted(devices.values()) == [("sim0",), ("sim1",)]


@pytest.mark.parametrize("verb", ["load", "unload"])
async def test_H5_a_model_that_is_not_there_is_a_404_and_no_operation(autojump_clock: MockClock, verb: str) -> None:
    """With the closest names; a context that cannot be is a 400 as early."""
    async with serving(autojump_clock) as house:
        answer = await house.ask("POST", f"/api/models/sim-chat-4/{verb}")
        assert (answer.status, answer.error["code"]) == (404, "model_not_found")
        assert "sim-chat-4b" in str(answer.error["message"])
        odd = await house.ask("POST", "/api/models/sim-chat-4b/load", {"parallel": 2})
        assert (odd.status, odd.error["param"]) == (400, "parallel")
        assert (await house.ask("GET", "/api/jobs")).json["operations"] == []
