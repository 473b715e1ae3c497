"""`/api/jobs` and the commands that show it: who waits and why, and the whole story of one job."""

import pytest
import trio
from trio.testing import MockClock

from gridsched.cli import explain, jobs
from gridsched.control.looking import job_id
from gridsched.core.ids import DeviceName
from sim.engine import Faults
from tests.support.front import House, serving

CHAT = "/v1/chat/completions"
HELLO = {"model": "sim-chat-4b", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}


async def test_S9b_jobs_that_wait_and_run_are_listed_with_the_reason(autojump_clock: MockClock) -> None:
    """One loads its model, one waits behind it in another class; then both run."""
    async with serving(autojump_clock) as house:
        nobody = {"waiting": [], "running": [], "operations": [], "total": 0, "next_cursor": None}
        assert (await house.ask("GET", "/api/jobs")).json == nobody
        async with trio.open_nursery() as nursery:
            nursery.start_soon(house.ask, "POST", CHAT, HELLO | {"max_tokens": 400})
            await house.until_logged("load")
            told = (await house.ask("GET", "/api/jobs")).json
            (row,) = told["waiting"]  # type: ignore[misc]  # JSON
            assert (row["job"], row["rule"], row["position"]) == (1, "S6c", 1)
            assert row["text"].startswith("loading sim-chat-4b (0s), about ")
            assert row["estimate_s"] > 0
            await house.until_logged("dispatch")
            told = (await house.ask("GET", "/api/jobs")).json
            (row,) = told["running"]  # type: ignore[misc]  # JSON
            assert row["text"] == "step 1/1 on sim-chat-4b for 0.0s"
            assert list(jobs.rows(told)) == [
                ("running", "interactive", "1", "sim-chat-4b", "step 1/1 on sim-chat-4b for 0.0s")
            ]


async def test_S9b_one_job_is_explained_until_its_story_is_forgotten(autojump_clock: MockClock) -> None:
    """Waiting for a loading model, then over; the lines are the decision log's own."""
    async with serving(autojump_clock) as house:
        async with trio.open_nursery() as nursery:
            house.world.engine.plan_faults("sim-chat-4b", Faults(load_factor=4.0))
            nursery.start_soon(house.ask, "POST", CHAT, HELLO)
            await house.until_logged("load")
            told = (await house.ask("GET", "/api/jobs/1")).json
            assert (told["state"], told["running"]) == ("waiting", None)
            assert told["text"] == told["waiting"]["text"]  # type: ignore[index]  # JSON
        told = (await house.ask("GET", "/api/jobs/1")).json
        assert told["state"] == "over"
        assert told["story"] == [line for line in house.lines if line.get("job") == 1]
        past = told["history"]
        assert isinstance(past, dict)
        assert (past["outcome"], past["steps_done"], past["devices"]) == ("complete", 1, ["sim0"])
        (held,) = past["held"]
        assert (held["rule"], held["waits"], held["seconds"]) == ("S6c", 1, past["waited_s"])
        shown = list(explain.rows(told))
        assert shown[0].startswith("job 1 (interactive chat -> sim-chat-4b) over: completed; waited ")
        assert shown[1].endswith(f"waited {held['seconds']:g}s, begun by S6c: loading sim-chat-4b (0s)")
        assert [row.split()[1] for row in shown[2:]] == ["enqueue", "dispatch", "complete"]


async def test_an_unknown_job_is_a_404_with_a_sentence(autojump_clock: MockClock) -> None:
    """One that never was, and words that are no number."""
    async with serving(autojump_clock) as house:
        for name in ("7", "x", "a/b", "9" * 400):
            answer = await house.ask("GET", f"/api/jobs/{name}")
            assert (answer.status, answer.error["code"]) == (404, "not_found")
            assert str(answer.error["message"]).startswith("there is no job ")


@pytest.mark.parametrize(("text", "number"), [("7", 7), ("0", 0), ("0" * 30 + "12", 12), ("9" * 5000, int("9" * 20))])
def test_a_job_s_number_is_the_whole_of_it(text: str, number: int) -> None:
    """However many noughts are before it: another job is never meant."""
    assert job_id(text) == number


async def test_S9b_a_plan_names_who_goes(autojump_clock: MockClock) -> None:
    """The big model drains for a chat: explained with what it takes and who has to go."""

    async def ask(house: House, model: str, tokens: int) -> None:
        await house.ask("POST", CHAT, HELLO | {"model": model, "max_tokens": tokens})

    async with serving(autojump_clock) as house, trio.open_nursery() as nursery:
        for model in ("sim-chat-12b", "sim-chat-4b"):
            await ask(house, model, 3)
        house.world.monitor.set_foreign(DeviceName("sim0"), 3 * 2**30)
        await trio.sleep(3)
        for model in ("sim-chat-12b", "sim-chat-4b"):
            nursery.start_soon(ask, house, model, 400)
        await house.until_logged("dispatch", 4)
        nursery.start_soon(ask, house, "sim-chat-2b", 3)
        await house.until_logged("enqueue", 5)
        told = (await house.ask("GET", "/api/jobs/5")).json
        plan = told["plan"]
        assert isinstance(plan, dict)
        assert all(one["terms"]["price"] >= 0 for one in plan["victims"])
        assert plan["victims"]
        assert "memory: " in str(told["text"])
        assert any(" goes: " in row for row in explain.rows(told))
