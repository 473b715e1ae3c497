"""Health, status, the metrics page and the decision log, over a socket."""

import json
from collections.abc import Iterable

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from gridsched import __version__
from gridsched.api.settings import FrontSettings
from gridsched.runtime import decisions
from sim.engine import Faults
from tests.support.fakes import Script
from tests.support.front import Answer, serving

CHAT = "/v1/chat/completions"
HELLO = {"model": "sim-chat-4b", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}


async def test_H4_health_tells_alive_from_able(autojump_clock: MockClock) -> None:
    """All that the contract names, before and after a load."""
    async with serving(autojump_clock) as house:
        cold = (await house.ask("GET", "/health")).json
        assert (cold["status"], cold["can_serve"], cold["version"]) == ("ok", True, __version__)
        assert (cold["loaded_models"], cold["loading"], cold["draining"]) == ([], [], False)
        assert cold["busy"] == {"requests": 0, "models": []}
        assert cold["boot"] == {"phase": "ready", "ready": True, "error": None}
        assert cold["engine"] == {"ok": True, "version": "simulated", "backend": "simulated", "problem": ""}
        assert [device["name"] for device in cold["devices"]] == ["sim0"]  # type: ignore[attr-defined]  # JSON
        assert cold["models_indexed"] == 5
        async with trio.open_nursery() as nursery:
            nursery.start_soon(house.ask, "POST", CHAT, HELLO | {"max_tokens": 200})
            await house.until_logged("load")
            assert (await house.ask("GET", "/health")).json["loading"] == ["sim-chat-4b"]
            await house.until_logged("dispatch")
            warm = (await house.ask("GET", "/health")).json
        assert warm["loaded_models"] == ["sim-chat-4b"]
        assert warm["busy"] == {"requests": 1, "models": ["sim-chat-4b"]}


async def test_H4_the_deep_check_asks_every_loaded_model(autojump_clock: MockClock) -> None:
    """None loaded is well; a chat model and an embedder answer; one that hangs or refuses is named with 503."""
    async with serving(autojump_clock) as house:
        idle = await house.ask("GET", "/health?deep=1")
        assert (idle.status, idle.json["deep"]) == (200, {"status": "no_models_loaded", "failed": {}, "passed": []})
        await house.ask("POST", CHAT, HELLO)
        await house.ask("POST", "/v1/embeddings", {"model": "sim-embed", "input": "a"})
        well = await house.ask("GET", "/health?deep=1")
        assert (well.status, well.json["deep"]) == (
            200,
            {"status": "ok", "failed": {}, "passed": ["sim-chat-4b", "sim-embed"]},
        )
        asked = {bytes(one.body) for one in house.upstream.asked[-2:]}
        assert asked == {b'{"prompt":"a","max_tokens":1}', b'{"input":"a"}'}
        house.upstream.scripts += [Script([b"{}"], status=500), Script(head_seconds=1000.0)]
        ill = await house.ask("GET", "/health?deep=1")
        assert (ill.status, ill.json["status"]) == (503, "ok")
        deep = ill.json["deep"]
        assert isinstance(deep, dict)
        assert deep["status"] == "failed"
        assert sorted(deep["failed"].values()) == ["done, status 500", "no answer in time"]


async def test_the_status_shows_devices_processes_and_queues(autojump_clock: MockClock) -> None:
    """With a job that waits, and why."""
    async with serving(autojump_clock) as house, trio.open_nursery() as nursery:
        house.world.engine.plan_faults("sim-embed", Faults(load_factor=50.0))
        await house.ask("POST", CHAT, HELLO)
        nursery.start_soon(
            house.ask, "POST", "/v1/embeddings", {"model": "sim-embed", "input": "a"}, {"X-Class": "batch"}
        )
        await house.until_logged("enqueue", 2)
        status = (await house.ask("GET", "/api/status")).json
        (device,) = status["devices"]  # type: ignore[misc]  # JSON
        assert {"total_bytes", "used_bytes", "external_bytes", "reserved_bytes", "freeing_bytes", "mode"} <= set(device)
        chat = next(one for one in status["instances"] if one["model"] == "sim-chat-4b")  # type: ignore[attr-defined]
        assert (chat["state"], chat["slots"]) == ("ready", {"total": 4, "busy": 0})
        assert chat["estimated_bytes"] > 0
        assert status["queues"]["batch"]["length"] == 1  # type: ignore[index]  # JSON
        (waiting,) = status["waiting"]  # type: ignore[misc]  # JSON
        assert (waiting["model"], waiting["class"], waiting["position"]) == ("sim-embed", "batch", 1)
        assert waiting["rule"]
        assert waiting["reason"]


def lines(answer: Answer) -> list[tuple[int, dict[str, object]]]:
    """The events of an answer: id and object."""
    found = []
    for event in answer.body.decode().split("\n\n"):
        if event:
            number, data = event.split("\n")
            found.append((int(number.removeprefix("id: ")), json.loads(data.removeprefix("data: "))))
    return found


async def test_the_decision_log_is_read_as_events(autojump_clock: MockClock) -> None:
    """All kept lines, or those after a number, by header or query; a number of an earlier run means all."""
    async with serving(autojump_clock) as house:
        await house.ask("POST", CHAT, HELLO)
        every = await house.ask("GET", "/api/events?follow=0")
        assert every.headers["content-type"].startswith("text/event-stream")
        assert every.headers["cache-control"] == "no-cache"
        numbers = [number for number, _ in lines(every)]
        assert numbers == list(range(1, len(house.lines) + 1))
        assert [line for _, line in lines(every)] == [dict(line) for line in house.lines]
        later = await house.ask("GET", "/api/events?follow=0&since=2")
        assert [number for number, _ in lines(later)] == numbers[2:]
        resumed = await house.ask("GET", "/api/events?follow=0&since=0", None, {"Last-Event-ID": "3"})
        assert [number for number, _ in lines(resumed)] == numbers[3:]
        restarted = await house.ask("GET", "/api/events?follow=0", None, {"Last-Event-ID": "99999"})
        assert [number for number, _ in lines(restarted)] == numbers


@pytest.mark.parametrize("since", ["x", "-1", "1.5", "%EF%BC%91"])
async def test_H1_a_number_that_is_none_is_a_400(autojump_clock: MockClock, since: str) -> None:
    """Never taken for the beginning."""
    async with serving(autojump_clock) as house:
        answer = await house.ask("GET", f"/api/events?since={since}")
        assert (answer.status, answer.error["code"], answer.error["param"]) == (400, "invalid_request", "since")


async def test_a_follower_sees_each_line_as_it_is_made(autojump_clock: MockClock) -> None:
    """Also after a silence that is longer than a framework's own time-out of 60 s."""
    async with serving(autojump_clock) as house, await house.connect() as client:
        await client.send("GET", f"/api/events?since={house.runtime.log.last_seq}")
        assert (await client.head()).status == 200
        await trio.sleep(100.0)
        await house.ask("POST", CHAT, HELLO)
        said = [bytes((await client.event()).data) for _ in range(8)]  # type: ignore[attr-defined]  # h11.Data
        assert said[0] == b"retry: 2000\n\n"
        assert said[1:7] == [b": nothing new\n\n"] * 6
        assert b'"event":"enqueue"' in said[7]


async def test_a_follower_asks_for_some_events_alone(autojump_clock: MockClock) -> None:
    """By word, model (any name of it) and job; the numbers are the log's own."""
    async with serving(autojump_clock) as house:
        for model in ("sim-chat-4b", "sim-chat-12b"):
            await house.ask("POST", CHAT, HELLO | {"model": model})

        async def told(query: str) -> list[dict[str, object]]:
            return [line for _, line in lines(await house.ask("GET", f"/api/events?follow=0&{query}"))]

        assert {line["event"] for line in await told("event=load&event=ready")} == {"load", "ready"}
        assert await told("model=gpt-4o") == [line for line in house.lines if line.get("model") == "sim-chat-12b"]
        assert await told("job=2&event=complete") == [line for line in house.logged("complete") if line.get("job") == 2]
        assert await told("job=77") == []


@pytest.mark.parametrize(
    ("query", "param"),
    [("event=loads", "event"), ("job=x", "job"), ("sinse=3", "sinse"), ("follow=no", "follow"), ("job=1&job=2", "job")],
)
async def test_H1_what_no_follower_can_ask_is_a_400(autojump_clock: MockClock, query: str, param: str) -> None:
    """By name."""
    async with serving(autojump_clock) as house:
        answer = await house.ask("GET", f"/api/events?{query}")
        assert (answer.status, answer.error["param"]) == (400, param)


async def test_who_comes_back_too_late_is_told_which_lines_are_lost(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As an event of its own, shaped like a line; whoever asks for all that is kept has lost nothing."""
    monkeypatch.setattr(decisions, "KEPT_LINES", 5)
    async with serving(autojump_clock) as house:
        for _ in range(3):
            await house.ask("POST", CHAT, HELLO)
        last = house.runtime.log.last_seq
        late = (await house.ask("GET", "/api/events?follow=0", None, {"Last-Event-ID": "2"})).body.decode()
        gap, first = late.split("\n\n")[:2]
        assert gap.startswith(f"event: gap\nid: {last - 5}\n")
        told = json.loads(gap.partition("data: ")[2])
        assert (told["event"], told["first"], told["lost"], told["seq"]) == ("gap", 3, last - 7, last - 5)
        assert first.startswith(f"id: {last - 4}\n")
        assert "event: gap" not in (await house.ask("GET", "/api/events?follow=0")).body.decode()
        in_time = await house.ask("GET", f"/api/events?follow=0&since={last - 5}")
        assert [number for number, _ in lines(in_time)] == list(range(last - 4, last + 1))


async def test_a_follower_that_leaves_is_let_go(autojump_clock: MockClock) -> None:
    """Its task ends with its connection."""
    async with serving(autojump_clock) as house:
        await house.ask("GET", "/health")
        await trio.testing.wait_all_tasks_blocked()
        tasks = trio.lowlevel.current_statistics().tasks_living
        client = await house.connect()
        await client.send("GET", "/api/events")
        await client.head()
        await client.stream.aclose()
        await trio.testing.wait_all_tasks_blocked()
        assert trio.lowlevel.current_statistics().tasks_living == tasks


async def test_the_metrics_page_counts_what_was_answered(autojump_clock: MockClock) -> None:
    """As text for Prometheus, as OpenMetrics for whoever asks."""
    async with serving(autojump_clock) as house:
        await house.ask("POST", CHAT, HELLO)
        page = await house.ask("GET", "/metrics")
        assert page.headers["content-type"].startswith("text/plain")
        labels = 'class="interactive",code="200",endpoint="/v1/chat/completions",model="sim-chat-4b"'
        assert f"gridsched_requests_total{{{labels}}} 1.0" in page.body.decode()
        modern = await house.ask("GET", "/metrics", None, {"Accept": "application/openmetrics-text; version=1.0.0"})
        assert modern.headers["content-type"].startswith("application/openmetrics-text")
        assert modern.body.endswith(b"# EOF\n")


async def test_an_idle_connection_is_closed_in_its_time(autojump_clock: MockClock) -> None:
    """After a request to either application, and without any."""
    async with serving(autojump_clock, FrontSettings(keep_alive_seconds=30.0)) as house:
        for target in ("/health", "/v1/models", "/api/events?follow=0", None):
            async with await house.connect() as client:
                if target:
                    assert (await client.ask("GET", target)).status == 200
                began = trio.current_time()
                with trio.fail_after(31.0):
                    assert await client.stream.receive_some(1) == b""
                assert trio.current_time() - began == pytest.approx(30.0, abs=0.1)


@pytest.mark.parametrize("requests", [200, pytest.param(2_000, marks=pytest.mark.slow)])
async def test_M5_made_up_names_make_no_series(autojump_clock: MockClock, requests: int) -> None:
    """Names, classes, programs, paths and ids that a client makes up are no labels; each family is explained once."""
    async with serving(autojump_clock) as house, await house.connect() as client:

        async def ask(numbers: Iterable[int]) -> None:
            """All of them behind each other on one connection: some are refused for the class, some for the model."""
            sent = b"".join(made_up(number) for number in numbers)
            await client.stream.send_all(sent)
            got, due = b"", sent.count(b" HTTP/1.1\r\n")
            while got.count(b"HTTP/1.1 4") < due or not got.endswith(b"}"):
                got += await client.stream.receive_some(1 << 20)

        def names(page: str) -> set[str]:
            return {line.rpartition(" ")[0] for line in page.split("\n") if not line.startswith("#")}

        await ask(range(20))
        before = (await house.ask("GET", "/metrics")).body.decode()
        for first in range(20, requests, 20):
            await ask(range(first, first + 20))
        page = (await house.ask("GET", "/metrics")).body.decode()
        assert names(page) == names(before)
        assert "made-up" not in page
        helps = [line.split(" ")[2] for line in page.split("\n") if line.startswith("# HELP")]
        assert len(helps) == len(set(helps))
        counted = [line for line in page.split("\n") if line.startswith("gridsched_requests_total{")]
        assert sum(float(line.rpartition(" ")[2]) for line in counted) == requests


def made_up(number: int) -> bytes:
    """A request of which a client has made everything up that it can."""
    body = json.dumps({"model": f"made-up-{number}@class-{number}", "messages": [{"role": "user", "content": "hi"}]})
    head = [f"POST {CHAT}?made-up={number} HTTP/1.1", "Host: 127.0.0.1", f"Content-Length: {len(body)}"]
    head += [f"User-Agent: made-up/{number}", f"X-Request-Id: made-up-{number}"]
    if number % 2:
        head.append(f"X-Class: made-up-{number}")
    return "\r\n".join([*head, "", body]).encode()
