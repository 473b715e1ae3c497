"""`/api/models/{id}/plan` and `gridsched plan`: what a load would do now, told before it is done."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from gridsched.cli import main as program
from gridsched.cli import plan
from gridsched.control.plans import Planner
from gridsched.control.verb import as_builtins
from gridsched.core.ids import DeviceName, ModelName
from gridsched.core.model import DeviceFootprint, LaunchOption
from gridsched.core.snapshot import LoadView
from gridsched.devices.headroom import Headroom
from gridsched.devices.host import HostBesideCards
from tests.support.front import House, serving

CHAT = "/v1/chat/completions"
HELLO = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}
GIB = 2**30


async def told(house: House, name: str, query: str = "") -> dict[str, Any]:
    """The plan of a model."""
    answer = await house.ask("GET", f"/api/models/{name}/plan{query}")
    assert answer.status == 200
    assert isinstance(answer.json, dict)
    return answer.json


async def test_R7_a_plan_says_how_a_model_would_be_launched(autojump_clock: MockClock) -> None:
    """By any of its names; nothing is loaded for the question, and afterwards it is there."""
    async with serving(autojump_clock) as house:
        found = await told(house, "gpt-4o")
        assert (found["model"], found["state"], found["loads"]) == ("sim-chat-12b", "cold", True)
        launch = found["launch"]
        assert launch["devices"] == ["sim0"]
        assert (launch["ctx_size"], launch["ctx_per_slot"], launch["parallel"]) == (16384, 8192, 2)
        assert launch["needs"] == {"sim0": launch["total_bytes"]}
        assert launch["estimate"][0]["total_bytes"] == launch["total_bytes"]
        assert (found["evictions"], found["refusal"], found["reason"]) == ([], None, None)
        assert not house.logged("load")
        await house.ask("POST", CHAT, HELLO | {"model": "sim-chat-12b"})
        found = await told(house, "sim-chat-12b")
        assert (found["state"], found["loads"], found["launch"]["parallel"]) == ("ready", True, 2)
        assert next(plan.rows(found)) == "loads    sim-chat-12b is ready"


async def test_R5_a_plan_names_who_would_go_and_why(autojump_clock: MockClock) -> None:
    """With what each holds and costs; the load then evicts just these."""
    async with serving(autojump_clock) as house:
        await house.ask("POST", CHAT, HELLO | {"model": "sim-chat-12b"})
        await house.ask("POST", CHAT, HELLO | {"model": "sim-chat-4b"})
        house.world.monitor.set_foreign(DeviceName("sim0"), 2 * GIB)
        await trio.sleep(3)
        found = await told(house, "sim-chat-2b")
        (victim,) = found["evictions"]
        assert (victim["model"], victim["steps"], victim["why"]) == ("sim-chat-4b", 0, ["hot", "idle"])
        assert victim["terms"]["price"] >= 0
        assert found["text"] == "sim-chat-2b would be loaded, once sim-chat-4b has gone"
        assert any(row.startswith("goes     sim-chat-4b: 4 GiB, hot, idle (price=") for row in plan.rows(found))
        await house.ask("POST", CHAT, HELLO | {"model": "sim-chat-2b"})
        assert [line["model"] for line in house.logged("evict")] == ["sim-chat-4b"]


REFUSAL_KEYS = {
    *("required_bytes", "available_bytes", "per_device", "estimate", "holders", "max_ctx_that_fits"),
    *("max_parallel_that_fits", "busy_models", "retry_after_s", "suggestions", "notes"),
}
"""What whoever is refused for memory can count on."""


async def test_L7_a_plan_that_cannot_be_is_the_refusal_with_its_arithmetic(autojump_clock: MockClock) -> None:
    """What is needed, what there is, who holds it, what would fit; as a chat would be refused."""
    async with serving(autojump_clock) as house:
        house.world.monitor.set_foreign(DeviceName("sim0"), 14 * GIB)
        chat = await house.ask("POST", CHAT, HELLO | {"model": "sim-chat-12b"})
        found = await told(house, "sim-chat-12b")
        refusal = found["refusal"]
        assert not found["loads"]
        assert refusal["code"] == chat.error["code"] == "insufficient_vram"
        told_then = chat.error["gridsched"]
        assert isinstance(told_then, dict)
        assert (chat.status, told_then.keys() >= REFUSAL_KEYS) == (507, True)
        for key in ("required_bytes", "available_bytes", "holders", "max_ctx_that_fits", "suggestions", "per_device"):
            assert refusal[key] == told_then[key], key
        shown = list(plan.rows(found))
        assert shown[0] == f"no       {refusal['message']}"
        assert any(row.startswith("held     programs outside: 14 GiB of sim0") for row in shown)
        assert any(row.startswith("try      ") for row in shown)


async def test_a_plan_for_another_context(autojump_clock: MockClock) -> None:
    """In place of what is loaded, or refused with what would fit."""
    async with serving(autojump_clock) as house:
        found = await told(house, "sim-chat-12b", "?ctx=32768")
        assert found["launch"]["ctx_size"] == 32768
        await house.ask("POST", CHAT, HELLO | {"model": "sim-chat-12b"})
        found = await told(house, "sim-chat-12b", "?ctx=32768")
        assert "in place of its process, which has 16384 tokens" in found["text"]
        found = await told(house, "sim-chat-12b", "?ctx=1000000")
        assert (found["loads"], found["refusal"]["max_ctx_that_fits"]) == (False, 16384)


async def test_R10_a_familys_plan_is_of_the_best_that_can_be_had(autojump_clock: MockClock) -> None:
    """The small one where the memory is taken; the best where nothing fits, with its arithmetic."""
    async with serving(autojump_clock) as house:
        assert (await told(house, "sim-chat"))["model"] == "sim-chat-12b"
        house.world.monitor.set_foreign(DeviceName("sim0"), 10 * GIB)
        await trio.sleep(3)
        assert (await told(house, "sim-chat"))["model"] == "sim-chat-4b"
        house.world.monitor.set_foreign(DeviceName("sim0"), 15 * GIB)
        await trio.sleep(3)
        found = await told(house, "sim-chat")
        assert (found["model"], found["loads"], found["refusal"]["code"]) == (
            "sim-chat-12b",
            False,
            "insufficient_vram",
        )


async def test_H5_what_cannot_be_planned_is_said(autojump_clock: MockClock) -> None:
    """An unknown name with the closest, a context that is none."""
    async with serving(autojump_clock) as house:
        answer = await house.ask("GET", "/api/models/sim-chat-12/plan")
        assert (answer.status, answer.error["code"]) == (404, "model_not_found")
        assert "sim-chat-12b" in str(answer.error["message"])
        for text in ("0", "-1", "x", "9" * 30, ""):
            answer = await house.ask("GET", f"/api/models/sim-chat-12b/plan?ctx={text}")
            assert (answer.status, answer.error["code"]) == (400, "invalid_request"), text
        answer = await house.ask("GET", "/api/models/..%2Fa%2Fb/plan")
        assert "there is no model '../a/b'" in str(answer.error["message"])
        answer = await house.ask("POST", "/api/models/sim-chat-12b/plan")
        assert answer.status == 405


def run(monkeypatch: pytest.MonkeyPatch, folder: Path, port: int, *words: str) -> int:
    """`gridsched plan` where no server answers."""
    monkeypatch.delenv("GRIDSCHED_URL", raising=False)
    monkeypatch.setattr("gridsched.cli.where.DEFAULT_URL", f"http://127.0.0.1:{port}")
    return program.main(["plan", "--data-dir", str(folder), *words])


def test_without_a_server_it_is_planned_for_one_that_had_just_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], refused_port: int
) -> None:
    """Which is said; 0 where it loads, 1 where it does not, 2 where there is no such model."""
    assert run(monkeypatch, tmp_path, refused_port, "sim-chat-12b", "--sim") == 0
    shown = capsys.readouterr().out
    assert shown.startswith("loads    sim-chat-12b would be loaded at once\n")
    nobody = f"no server answers at http://127.0.0.1:{refused_port}"
    assert f"{nobody}: this is what one would do that had just been started here" in shown
    assert run(monkeypatch, tmp_path, refused_port, "sim-chat-12b", "--sim", "--json", "--ctx", "999999") == 1
    answer = json.loads(capsys.readouterr().out)
    assert (answer["loads"], answer["server"]) == (False, None)
    assert run(monkeypatch, tmp_path, refused_port, "sim-chat-12", "--sim") == 2
    said = capsys.readouterr().err
    assert "Did you mean" in said
    assert f"{nobody}: this was about one that would be started here" in said
    assert run(monkeypatch, tmp_path, refused_port, "sim-chat-12b", "--sim", "--ctx", "0") == 2
    assert "ctx: '0' is not a number of tokens" in capsys.readouterr().err


def test_a_server_that_was_named_and_does_not_answer_is_said(
    capsys: pytest.CaptureFixture[str], refused_port: int
) -> None:
    """Nobody wants another machine's plan."""
    assert program.main(["plan", "--server", f"http://127.0.0.1:{refused_port}", "m"]) == 1
    assert f"no server answers at http://127.0.0.1:{refused_port}" in capsys.readouterr().err


async def test_E24_a_plan_notes_that_host_memory_is_scarce_now(autojump_clock: MockClock, tmp_path: Path) -> None:
    """Beside the launch, which would be made all the same."""
    (tmp_path / "meminfo").write_text(f"MemTotal: {64 << 20} kB\nMemAvailable: {16 << 20} kB\n")
    host = HostBesideCards(Headroom(), tmp_path, tmp_path)
    async with serving(autojump_clock) as house:
        runtime = house.runtime
        assert (await told(house, "sim-chat-4b"))["notes"] == []

        def outlook(name: ModelName, options: tuple[LaunchOption, ...] | None) -> LoadView | None:
            view = runtime.outlook(name, options)
            assert view is not None
            assert view.option is not None
            experts = DeviceFootprint(DeviceName("host"), weights_bytes=18 * GIB)
            return replace(view, option=replace(view.option, host=experts, host_growth_bytes=GIB))

        planner = Planner(runtime.parts.catalog, runtime.adviser, outlook, host)
        found = as_builtins(await planner.plan("sim-chat-4b", None))
        assert found["loads"]
        (note,) = found["notes"]  # type: ignore[misc]  # a list, as JSON has it
        assert note.startswith("it takes 19.00 GiB of host memory")
        assert f"note     {note}" in plan.rows(found)
        assert "  host memory: 19 GiB, beside 0 B of mapped weights" in plan.rows(found)
