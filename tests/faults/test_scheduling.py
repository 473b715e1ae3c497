"""Section C: who goes, who waits and who is asked, over HTTP; in virtual time where simulated hardware shows it."""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from gridsched.api.settings import FrontSettings
from gridsched.core.job import JobClass
from gridsched.core.policy import Policy, QueueLimits
from gridsched.ports import Capability
from sim import SimWorld, build
from sim.engine import Faults
from sim.gpu import GIB
from sim.models import SimModel
from tests.faults.bench import Bench, Served, serve
from tests.faults.cards import Card, Driver
from tests.faults.conftest import Start
from tests.support.fakes import EVENTS, JSON, Script
from tests.support.front import Answer, House, serving

CHAT, EMBEDDINGS = "/v1/chat/completions", "/v1/embeddings"
BIG, KV = 10 * GIB, GIB
STRICT = Policy(interactive_turn_seconds=0.0)


def ask(model: str, **more: object) -> dict[str, object]:
    """A short chat."""
    return {"model": model, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 3, **more}


def room_for_one() -> SimWorld:
    """Two that chat and one that embeds, of which one fits at a time."""
    chats = [SimModel(name, BIG, KV, 8192, 2) for name in ("A", "B")]
    return build(models=(*chats, SimModel("E", BIG, KV, 8192, 2, frozenset({Capability.EMBEDDING}))))


class Clients:
    """Requests that go on beside a test: their answers, and when they came."""

    def __init__(self, house: House, nursery: trio.Nursery) -> None:
        self._house = house
        self._nursery = nursery
        self.answers: dict[str, Answer] = {}
        self.times: dict[str, float] = {}

    def begin(self, name: str, body: Mapping[str, object], path: str = CHAT) -> None:
        """Ask, and do not wait."""

        async def whole() -> None:
            self.answers[name] = await self._house.ask("POST", path, body)
            self.times[name] = trio.current_time()

        self._nursery.start_soon(whole)

    async def queue(self, name: str, body: Mapping[str, object], path: str = CHAT) -> None:
        """Ask, and go on when the job is known."""
        known = len(self._house.logged("enqueue"))
        self.begin(name, body, path)
        await self._house.until_logged("enqueue", known + 1)

    @property
    def all_served(self) -> bool:
        """Whether every answer is a whole 200."""
        return all(answer.status == 200 and answer.complete for answer in self.answers.values())


def seqs(house: House, event: str, model: str) -> list[int]:
    """Where the log says so of a model."""
    return [int(str(line["seq"])) for line in house.logged(event) if line.get("model") == model]


async def test_C1_a_model_that_answers_is_not_stopped_for_another(autojump_clock: MockClock) -> None:
    """C1, 29: the stream ends whole, nothing new goes to its model meanwhile, and the other starts when it is gone."""
    async with serving(autojump_clock, policy=STRICT, world=room_for_one()) as house:
        await house.ask("POST", CHAT, ask("A"))
        async with trio.open_nursery() as nursery:
            clients = Clients(house, nursery)
            await clients.queue("stream", ask("A", stream=True, max_tokens=400))
            await trio.sleep(1)
            await clients.queue("other", ask("B"))
            await trio.sleep(1)
            await clients.queue("late", ask("A"))
        assert clients.all_served
        stream = clients.answers["stream"]
        assert stream.body.endswith(b"data: [DONE]\n\n")
        assert stream.body.count(b'"content"') >= 400
        assert clients.times["stream"] > 5
        assert clients.times["stream"] < clients.times["other"] < clients.times["late"]
        assert seqs(house, "complete", "A")[1] < seqs(house, "exit", "A")[0] < seqs(house, "load", "B")[0]


@pytest.mark.parametrize("policy", [STRICT, Policy()], ids=["strict order", "turns"])
async def test_C2_a_model_that_was_loaded_serves_before_it_goes(autojump_clock: MockClock, policy: Policy) -> None:
    """C2, 30: five of each at one moment: at most a load for each, every load serves, and each model's are in order."""
    async with serving(autojump_clock, policy=policy, world=room_for_one()) as house:
        async with trio.open_nursery() as nursery:
            clients = Clients(house, nursery)
            for number in range(5):
                for model in "AB":
                    await clients.queue(f"{model}{number}", ask(model))
        assert clients.all_served
        for model in "AB":
            loads, served = seqs(house, "load", model), seqs(house, "dispatch", model)
            assert len(loads) <= 5
            ends = [*seqs(house, "exit", model), 10**9]
            assert all(any(load < one < end for one in served) for load, end in zip(loads, ends, strict=False))
            jobs = [int(str(line["job"])) for line in house.logged("dispatch") if line["model"] == model]
            assert jobs == sorted(jobs)
            assert len(jobs) == 5


async def test_C4_a_client_that_uses_two_models_in_turn_is_answered_every_time(autojump_clock: MockClock) -> None:
    """C4, 31: a chat and a vector, twenty times without a pause: no reset, no 502, and each swap is counted."""
    async with serving(autojump_clock, world=room_for_one()) as house, await house.connect() as client:
        for _ in range(10):
            assert (await client.ask("POST", CHAT, ask("A"))).status == 200
            assert (await client.ask("POST", EMBEDDINGS, {"model": "E", "input": "a"})).status == 200
        metrics = (await client.ask("GET", "/metrics")).body.decode()
        loads = re.findall(r'gridsched_model_loads_total\{model="(.)",outcome="ready"\} (\d+)', metrics)
        assert dict(loads) == {"A": "10", "B": "0", "E": "10"}
        evictions = re.findall(r"gridsched_evictions_total\{.*\} (\d+)", metrics)
        assert sum(map(int, evictions)) == 19


async def test_C6_a_job_of_many_steps_is_not_reloaded_for_each(autojump_clock: MockClock) -> None:
    """C6, 32: ten chunks of vectors among chats of the same class that need the memory: two loads at the most."""
    async with serving(autojump_clock, world=room_for_one()) as house:
        async with trio.open_nursery() as nursery:
            clients = Clients(house, nursery)
            inputs = [f"text {number}" for number in range(320)]
            await clients.queue("vectors", {"model": "E", "input": inputs, "x_class": "background"}, EMBEDDINGS)
            for number in range(6):
                await clients.queue(f"chat{number}", ask("A", x_class="background"))
        assert clients.all_served
        data = clients.answers["vectors"].json["data"]
        assert isinstance(data, list)
        assert len(data) == 320
        assert len(seqs(house, "step", "E")) + len(seqs(house, "dispatch", "E")) >= 10
        assert len(seqs(house, "load", "E")) <= 2


async def test_C7_nobody_ages_into_a_better_class(autojump_clock: MockClock) -> None:
    """C7, 33: a batch job that has waited for ten minutes goes behind a chat that comes now, and is a batch job in
    every line and every metric."""
    policy = Policy(background_max_starvation_seconds=0.0)
    figures = FrontSettings(stall_seconds=3600.0)
    world = build(models=(SimModel("A", BIG, KV, 8192, 1),))
    async with serving(autojump_clock, figures, policy, world=world) as house:
        await house.ask("POST", CHAT, ask("A"))
        done = b'data: {"choices":[]}\n\ndata: [DONE]\n\n'
        house.upstream.scripts.append(Script([b"data: {}\n\n", 601.0, done], headers=EVENTS))
        async with trio.open_nursery() as nursery:
            clients = Clients(house, nursery)
            await clients.queue("long", ask("A", stream=True))
            await clients.queue("batch", ask("A", x_class="batch"))
            await trio.sleep(600)
            await clients.queue("chat", ask("A"))
        assert clients.all_served
        assert clients.times["chat"] < clients.times["batch"]
        job = int(clients.answers["batch"].headers["x-gridsched-job-id"])
        told = [line for line in house.lines if line.get("job") == job]
        assert {"enqueue", "dispatch", "complete"} <= {line["event"] for line in told}
        assert {line["class"] for line in told} == {"batch"}
        assert clients.answers["batch"].headers["x-gridsched-class"] == "batch"
        metrics = (await house.ask("GET", "/metrics")).body.decode()
        assert 'gridsched_queue_wait_seconds_count{class="batch"} 1' in metrics
        assert 'gridsched_queue_wait_seconds_count{class="background"} 0' in metrics


async def test_C9_the_queues_bound_holds_for_a_model_that_is_ready(autojump_clock: MockClock) -> None:
    """C9, 34: thirty at once for one slot: one runs, ten wait, nineteen are told at once when to come again."""
    policy = Policy(queues={JobClass.INTERACTIVE: QueueLimits(10, None)})
    world = build(models=(SimModel("A", BIG, KV, 8192, 1),))
    async with serving(autojump_clock, policy=policy, world=world) as house:
        await house.ask("POST", CHAT, ask("A"))
        house.upstream.scripts.extend(Script([b"{}"], headers=JSON, head_seconds=5.0) for _ in range(11))
        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            clients = Clients(house, nursery)
            for number in range(30):
                clients.begin(str(number), ask("A"))
        answers = clients.answers
        refused = [name for name, answer in answers.items() if answer.status != 200]
        assert len(refused) == 19
        assert {(answers[name].status, answers[name].error["code"]) for name in refused} == {(429, "queue_full")}
        assert all(int(answers[name].headers["retry-after"]) >= 1 for name in refused)
        assert max(clients.times[name] for name in refused) - began < 1
        assert 54 < max(clients.times.values()) - began < 57


async def test_C13_whoever_only_looks_keeps_no_model_awake(autojump_clock: MockClock) -> None:
    """C13, 36: asked all the time how it stands, by a real request too, a model cools after five minutes and goes when
    it is idle, at the time that its last client wanted; nothing is loaded for it."""
    async with serving(autojump_clock) as house, await house.connect() as client:
        await client.ask("POST", CHAT, ask("sim-chat-4b", ttl=360))

        async def look() -> tuple[str, str]:
            for path in ("/metrics", "/health?deep=false", "/health?deep=1", "/api/status", "/api/models"):
                assert (await client.ask("GET", path)).status == 200
            facts = (await client.ask("GET", "/v1/models/sim-chat-4b")).json["gridsched"]
            assert isinstance(facts, dict)
            return facts["state"], facts["tier"]

        seen: list[tuple[str, str]] = []
        for _ in range(26):
            seen.append(await look())
            await trio.sleep(15)
        assert seen[:20] == [("ready", "hot")] * 20
        assert seen[21:23] == [("ready", "cold")] * 2
        assert seen[-1] == ("cold", "cold")
        assert len(house.logged("load")) == 1


async def test_C15_the_model_that_was_asked_for_answers(autojump_clock: MockClock) -> None:
    """C15, 37: never the one that happens to be loaded; in any case of letters, and an unknown one is a 404."""
    async with serving(autojump_clock, world=room_for_one()) as house:
        for name, model in (("A", "A"), ("B", "B"), ("b", "B"), ("a", "A")):
            answer = await house.ask("POST", CHAT, ask(name))
            assert (answer.status, answer.json["model"]) == (200, model)
            assert answer.headers["x-gridsched-model"] == model
        unknown = await house.ask("POST", CHAT, ask("unknown-x"))
        assert (unknown.status, unknown.error["code"]) == (404, "model_not_found")
        assert [line["model"] for line in house.logged("load")] == ["A", "B", "A"]


async def test_C18_the_next_starts_when_the_memory_is_back(autojump_clock: MockClock) -> None:
    """C18, 39: not when the old one is told to go, nor when it is gone, but when its card shows it."""
    world = room_for_one()
    world.monitor.release_seconds = (1.0, 1.0)
    world.engine.plan_faults("A", Faults(ignore_stop=True))
    times: dict[str, float] = {}
    async with serving(autojump_clock, world=world) as house:
        await house.ask("POST", CHAT, ask("A"))
        async with trio.open_nursery() as nursery:
            clients = Clients(house, nursery)
            clients.begin("B", ask("B"))
            for event, count in (("evict", 1), ("exit", 1), ("load", 2)):
                await house.until_logged(event, count)
                times[event] = trio.current_time()
        assert clients.all_served
        assert times["exit"] - times["evict"] > 3
        assert times["load"] - times["exit"] >= 1
        assert not [line for line in house.logged("exit") if line["model"] == "B"]


async def test_C19_who_comes_during_a_swap_is_served_after_it(autojump_clock: MockClock) -> None:
    """C19, 40: ten over the whole of a stop and a start: all 200; nobody gets a 4xx for what the server is doing."""
    async with serving(autojump_clock, world=room_for_one()) as house:
        await house.ask("POST", CHAT, ask("A"))
        async with trio.open_nursery() as nursery:
            clients = Clients(house, nursery)
            for number in range(10):
                clients.begin(str(number), ask("B", stream=bool(number % 2)))
                await trio.sleep(0.7)
        assert clients.all_served
        assert len(seqs(house, "load", "B")) == 1


# --- on real processes ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def bench(benches: list[Bench], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """A pinned model of 6 GiB in 16, which two others fit beside one at a time, and one that does not at all."""
    models = {
        "pin": Served(embeds=True, weights_bytes=6 * GIB, settings={"tier": "pinned"}),
        "x": Served(weights_bytes=8 * GIB),
        "y": Served(weights_bytes=8 * GIB),
        "huge": Served(weights_bytes=12 * GIB),
        "c20": Served(settings={"parallel": "auto", "ctx_size": "auto", "aliases": ALIASES}),
        "c20lies": Served(settings={"parallel": "auto", "ctx_size": "auto"}),
    }
    settings = {"devices": {"host_budget": "16GiB"}, "scheduler": {"fit_wait": "0s"}}
    running = serve(tmp_path_factory.mktemp("scheduling"), models, settings=settings)
    benches.append(running)
    yield running
    assert running.gateway.stop() == 0


ALIASES = ["qwen3:8b", "org/m:Q4", "m:batch", "gpt-4o"]


@pytest.mark.slow
def test_C16_a_pinned_model_is_never_the_one_that_goes(bench: Bench) -> None:
    """C16, 38: used least of all, it stays while others come and go; what fits only without it is refused with who
    holds the memory."""
    bench.until(lambda: bench.is_in("pin", "ready"), "it loads by itself")
    pid = bench.pid("pin")
    assert [bench.chat(model).status for model in "xyx"] == [200] * 3
    refused = bench.chat("huge")
    assert (refused.status, refused.error["code"]) == (507, "insufficient_vram")
    assert "pin" in json.dumps(refused.error["gridsched"]["holders"])
    assert bench.pid("pin") == pid
    assert bench.events("evict", "pin") == []


@pytest.mark.slow
def test_C20_the_engine_is_told_its_slots_and_its_context(bench: Bench) -> None:
    """C20, 41: where nothing is configured, too; one that has other slots than it was told is a failed load."""
    assert bench.chat("c20").status == 200
    (argv,) = bench.recorded("c20", "argv")
    (told,) = bench.instances("c20")
    assert int(argv[argv.index("--parallel") + 1]) == told["slots"]["total"] > 0
    assert int(argv[argv.index("--ctx-size") + 1]) >= told["slots"]["total"]
    bench.tell("c20lies", total_slots=told["slots"]["total"] + 4)
    refused = bench.chat("c20lies")
    assert (refused.status, refused.error["code"]) == (503, "model_failed")
    assert "slots" in refused.error["message"]


@pytest.mark.slow
def test_H13_names_are_taken_whole_and_only_a_class_is_cut_off(bench: Bench) -> None:
    """H13, 95: slashes, colons and case are a name's own; what stands behind an @ is a class or part of no name."""
    served = ("QWEN3:8B", "org/M:q4", "m:batch", " m:batch ", "GPT-4o")
    for name in served:
        answer = bench.chat(name)
        assert (answer.status, answer.headers["x-gridsched-class"]) == (200, "interactive"), name
        assert answer.headers["x-gridsched-model"] == "c20"
    for name in ("m:batch@batch", "Qwen3:8b@BATCH"):
        assert bench.chat(name).headers["x-gridsched-class"] == "batch", name
    for name in ("qwen3:8b:background", "m:batch:batch", "qwen3:8B-background", "qwen3:8b@fast", "m:batch@batch@batch"):
        refused = bench.chat(name)
        assert (refused.status, refused.error["code"]) == (404, "model_not_found"), name
        assert "c20" in refused.error["gridsched"]["closest"], name
    for path in ("org/m:Q4", "org%2Fm%3AQ4", "ORG/m:q4"):
        assert bench.ask(f"/v1/models/{path}").json["id"] == "c20"
    assert bench.chat("c20", x_class="fast").error["code"] == "invalid_class"


@pytest.mark.slow
def test_C11_what_was_measured_counts_and_not_the_estimate(start: Start, tmp_path: Path) -> None:
    """C11, 35: a model that took 9 GiB of the 12 that were estimated leaves room for one of 5 on a card of 16."""
    driver = Driver(tmp_path, Card("GPU-one", "NVIDIA One", "01"))
    models = {"llm": Served(weights_bytes=12 * GIB), "embed": Served(embeds=True, weights_bytes=5 * GIB)}
    bench = start(models, env=driver.env)
    bench.tell("llm", card_bytes=9 * GIB)
    bench.tell("embed", card_bytes=5 * GIB)
    estimates = {item["id"]: item["devices"][0]["estimated_bytes"] for item in bench.ask("/api/models").json["models"]}
    assert sum(estimates.values()) > 16 * GIB
    assert bench.chat("llm").status == 200
    assert bench.until_event("measure", "llm")["measured_bytes"] == {"gpu0": 9 * GIB}
    assert bench.ask(EMBEDDINGS, {"model": "embed", "input": "a"}).status == 200
    assert bench.events("evict") == []
    assert bench.is_in("llm", "ready")
