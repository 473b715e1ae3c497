"""Benchmarks: what is measured, for whom they are refused, and that they give way."""

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import msgspec
import pytest
import trio
from trio.testing import MockClock

from gridsched.control.benchmarks import Results, facts_of
from gridsched.control.options import slots_worth
from gridsched.control.services import Services
from gridsched.core.ids import ModelName
from gridsched.core.job import JobClass
from gridsched.runtime.bench import LevelFound, recommended
from sim import build
from sim.engine import Faults
from tests.store.test_benchmarks import RESULT
from tests.support.front import ADMIN_WORD, Answer, House, serving

ADMIN = {"Authorization": f"Bearer {ADMIN_WORD}"}
CHAT: Mapping[str, object] = {
    "model": "sim-chat-2b",
    "messages": [{"role": "user", "content": "hello"}],
    "max_tokens": 4,
}
LONG_ENOUGH_SECONDS = 60.0


async def _begun(house: House, model: str, **asked: object) -> Answer:
    """A benchmark that has been asked for."""
    return await house.ask("POST", f"/api/models/{model}/benchmark", asked, ADMIN)


async def _options(house: House, model: str) -> Mapping[str, object]:
    told = (await house.ask("GET", f"/api/options?model={model}", None, ADMIN)).json
    models = told["models"]
    assert isinstance(models, list)
    (one,) = models
    assert isinstance(one, dict)
    return one


async def _released(house: House, count: int = 1) -> None:
    """Wait until so many leases are over."""
    await trio.sleep(LONG_ENOUGH_SECONDS)
    assert sum("why" in line for line in house.logged("lease")) == count


def _level(streams: int, each: float, total: float) -> LevelFound:
    return LevelFound(streams, each, total, 0.1)


def test_the_recommended_slots_are_the_largest_level_that_pays() -> None:
    """Each keeps 65 % of a single one's speed, and all write 15 % more in sum than the level below."""
    assert recommended([_level(1, 100, 100)]) == 1
    assert recommended([_level(1, 100, 100), _level(2, 66, 132), _level(4, 65, 260)]) == 4
    assert recommended([_level(1, 100, 100), _level(2, 80, 160), _level(4, 64, 256)]) == 2
    assert recommended([_level(1, 100, 100), _level(2, 57, 114), _level(4, 66, 264)]) == 4
    assert recommended([_level(1, 100, 100), _level(2, 57, 114), _level(4, 30, 120)]) == 1


async def test_a_benchmark_is_kept_and_is_in_the_catalogue(autojump_clock: MockClock) -> None:
    """Under a lease of its own; afterwards the device is given back, and what was found is where one chooses."""
    async with serving(autojump_clock) as house:
        before = await _options(house, "sim-chat-2b")
        assert before["slots_from"] == "rule"
        assert (await _begun(house, "sim-chat-2b")).status == 202
        await _released(house)
        after = await _options(house, "sim-chat-2b")
        assert (after["slots_worth_running"], after["slots_from"]) == (2, "benchmark")
        rows = after["rows"]
        assert isinstance(rows, list)
        assert {row["speed"]["confidence"] for row in rows} == {"measured here"}
        assert house.logged("load") == []
        assert house.runtime.snapshot().devices[0].lease is None


async def test_a_benchmark_is_no_use_of_the_model_and_no_request(autojump_clock: MockClock) -> None:
    """No job, no step, no instance of the scheduler's; the engine never has more steps than slots."""
    async with serving(autojump_clock) as house:
        assert (await _begun(house, "sim-chat-2b")).status == 202
        await _released(house)
        assert not any(house.logged(event) for event in ("enqueue", "dispatch", "step", "complete"))
        assert house.world.engine.overfilled == 0
        assert b"gridsched_requests_total{" not in (await house.ask("GET", "/metrics")).body


async def test_R8_a_benchmarks_lease_is_over_in_the_next_server(autojump_clock: MockClock) -> None:
    """A server that is killed in the middle leaves a lease that ends with its process, and keeps no card for nobody."""
    async with serving(autojump_clock) as house:
        assert (await _begun(house, "sim-chat-2b")).status == 202
        await trio.sleep(1)
        (device,) = house.runtime.snapshot().devices
        assert device.lease is not None
        assert device.lease.process is not None
        assert device.lease.process.pid == os.getpid()
        await _released(house)


async def test_R8_what_was_loaded_there_goes_for_a_benchmark_and_comes_back(autojump_clock: MockClock) -> None:
    """A cold model is displaced by the lease, and comes back by itself."""
    async with serving(autojump_clock) as house:
        low = await house.ask("POST", "/v1/chat/completions", CHAT, {"X-Class": "batch"})
        assert low.status == 200
        assert (await _begun(house, "sim-chat-2b")).status == 202
        await _released(house)
        assert [line["model"] for line in house.logged("stop")] == ["sim-chat-2b"]
        assert [view.model for view in house.runtime.snapshot().instances] == ["sim-chat-2b"]


@pytest.mark.slow
async def test_a_benchmark_is_refused_while_a_person_is_in_a_conversation(autojump_clock: MockClock) -> None:
    """A hot model on the device: 409, and nothing is leased; neither is anything beside a pin, or beside another."""
    async with serving(autojump_clock) as house:
        assert (await house.ask("POST", "/v1/chat/completions", CHAT)).status == 200
        refused = await _begun(house, "sim-chat-4b")
        assert (refused.status, refused.error["code"]) == (409, "conflict")
        assert "person" in str(refused.error["message"])
        assert house.logged("lease") == []
    async with serving(autojump_clock) as house:
        assert (await house.ask("POST", "/api/models/sim-embed/pin", {"keep": False})).status == 200
        await trio.sleep(30)
        refused = await _begun(house, "sim-chat-4b")
        assert (refused.status, "pinned" in str(refused.error["message"])) == (409, True)
    async with serving(autojump_clock) as house:
        assert (await _begun(house, "sim-chat-4b")).status == 202
        await trio.sleep(1)
        assert (await _begun(house, "sim-chat-2b")).status == 409
        await _released(house)


async def test_the_plan_of_a_benchmark_names_who_would_go(autojump_clock: MockClock) -> None:
    """And for about how long; nothing is done."""
    async with serving(autojump_clock) as house:
        assert (await house.ask("POST", "/v1/chat/completions", CHAT, {"X-Class": "batch"})).status == 200
        told: Any = (await house.ask("POST", "/api/models/sim-embed/benchmark?dry_run=1", {}, ADMIN)).json
        assert [one["model"] for one in told["evicted"]] == ["sim-chat-2b"]
        assert told["harms"]
        assert told["seconds"] > 0
        assert house.logged("lease") == []


async def test_a_result_is_shown_with_the_model_until_it_is_stale(autojump_clock: MockClock) -> None:
    """Of other files, another engine or other devices it is still shown, and said to be."""
    async with serving(autojump_clock) as house:
        answer = await house.ask("POST", "/api/models/sim-chat-2b/benchmark?wait=300", {}, ADMIN)
        done: Any = answer.json
        assert (answer.status, done["slots_worth_running"]) == (200, 2)
        told: Any = (await house.ask("GET", "/api/models/sim-chat-2b")).json
        (result,) = told["benchmarks"]
        assert result == done["results"][0]
        assert [level["streams"] for level in result["levels"]] == [1, 2, 4, 8]
        assert (result["stale"], result["parallel"]) == (False, 8)


async def test_a_benchmark_stops_at_once_when_a_chat_arrives(autojump_clock: MockClock) -> None:
    """Its process ends, the device is given back, and the chat is served; nothing is kept of it."""
    async with serving(autojump_clock) as house:
        assert (await _begun(house, "sim-chat-2b")).status == 202
        await trio.sleep(5)
        assert house.world.engine.processes()
        at = trio.current_time()
        answer = await house.ask("POST", "/v1/chat/completions", CHAT)
        assert answer.status == 200
        assert trio.current_time() - at < 6.0
        assert (await _options(house, "sim-chat-2b"))["slots_from"] == "rule"
        assert house.runtime.snapshot().queue_lengths[JobClass.INTERACTIVE] == 0


@pytest.mark.slow
async def test_an_embedder_is_measured_in_inputs(autojump_clock: MockClock) -> None:
    """One slot, whose step is a chunk; so is a reranker."""
    for model in ("sim-embed", "sim-rerank"):
        async with serving(autojump_clock) as house:
            assert (await _begun(house, model)).status == 202
            await _released(house)
            told = await _options(house, model)
            assert (told["slots_worth_running"], told["slots_from"]) == (1, "benchmark")


@pytest.mark.slow
async def test_cards_of_one_kind_are_measured_once_and_each_by_name(autojump_clock: MockClock) -> None:
    """Two equal cards, one benchmark; the other card on request; a card that is not there is a 400's code."""
    async with serving(autojump_clock, world=build(cards=(16 << 30, 16 << 30))) as house:
        assert (await _begun(house, "sim-chat-2b")).status == 202
        await _released(house)
        assert {line["device"] for line in house.logged("lease")} == {"sim0"}
        assert (await _begun(house, "sim-chat-2b", devices=["sim1"])).status == 202
        await _released(house, 2)
        assert {line["device"] for line in house.logged("lease")} == {"sim0", "sim1"}


async def test_a_benchmark_that_is_cancelled_gives_the_device_back(autojump_clock: MockClock) -> None:
    """By a person, or by the server's own end: its process is gone, and nothing is kept."""
    async with serving(autojump_clock) as house:
        begun = await _begun(house, "sim-chat-2b")
        await trio.sleep(5)
        assert house.world.engine.processes()
        assert (await house.ask("DELETE", f"/api/jobs/{begun.json['id']}", None, ADMIN)).status == 200
        await trio.sleep(5)
        assert not house.world.engine.processes()
        assert house.runtime.snapshot().devices[0].lease is None
        assert (await _options(house, "sim-chat-2b"))["slots_from"] == "rule"
        assert (await _begun(house, "sim-chat-2b")).status == 202
        await trio.sleep(5)
        assert house.world.engine.processes()  # `serving` sees that its end leaves none


async def test_an_engine_that_fails_is_told_of_and_the_device_given_back(autojump_clock: MockClock) -> None:
    """503 with the cause and the log's last lines, as for a load (P6a)."""
    async with serving(autojump_clock) as house:
        house.world.engine.plan_faults("sim-chat-2b", Faults(crash_in_load=True))
        failed = await house.ask("POST", "/api/models/sim-chat-2b/benchmark?wait=60", {}, ADMIN)
        assert (failed.status, failed.error["code"]) == (503, "model_failed")
        detail: Any = failed.error["gridsched"]
        assert detail["cause"] == "crashed"
        assert detail["log_tail"]
        assert house.runtime.snapshot().devices[0].lease is None


async def test_a_result_of_something_else_is_stale(autojump_clock: MockClock) -> None:
    """Another engine, other files, devices that are not here; and a true one goes before a newer stale one."""
    async with serving(autojump_clock) as house:
        services = Services(house.runtime, house.authority)
        model = next(each for each in house.world.catalog.models() if each.name == "sim-chat-2b")
        facts = facts_of(services, model)
        assert facts is not None
        same = msgspec.structs.replace(
            RESULT,
            model=str(model.name),
            path=facts.path,
            fingerprint=facts.fingerprint,
            engine_build=facts.engine_build,
            identities=tuple(info.identity for info in house.world.monitor.devices()),
            recommended_slots=4,
        )
        for change in ({}, {"engine_build": "old"}, {"fingerprint": "x"}, {"identities": ("simulated:SIM-9",)}):
            await services.benchmarks.keep(msgspec.structs.replace(same, **{"recommended_slots": 8, **change}))
        await services.benchmarks.keep(same)
        await services.benchmarks.keep(msgspec.structs.replace(same, engine_build="older", recommended_slots=8))
        words = [each.stale_why for each in Results(services).of(model)]
        assert [word is None for word in words] == [False, False, False, True, False]
        assert ["engine" in str(words[0]), "files" in str(words[1]), "devices" in str(words[2])] == [True] * 3
        assert slots_worth(services, model) == (4, "benchmark")


async def test_a_model_whose_files_go_while_it_is_measured_is_no_bug_of_ours(autojump_clock: MockClock) -> None:
    """Nothing would be launched of it any more: whatever was measured of it is stale."""
    async with serving(autojump_clock) as house:
        services = Services(house.runtime, house.authority)
        model = next(each for each in house.world.catalog.models() if each.spec is not None)
        assert facts_of(services, replace(model, name=ModelName("gone"))) is None
