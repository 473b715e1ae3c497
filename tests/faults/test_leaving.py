"""Section A, and what of K speaks of clients that leave: over real sockets, with real processes behind them."""

import random
import socket
import struct
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path

import pytest
import trio

from tests.faults.bench import GIB, Bench, Served, serve
from tests.faults.test_processes import held
from tests.faults.visitors import CHAT, CONNECTIONS, WAYS, ask, chat_request, codes, visitor

pytestmark = pytest.mark.slow

LEAVINGS = list(product(WAYS, CONNECTIONS))
LONG = 100_000
"""Tokens; at ten a second nobody waits for so many."""

MIB = 1 << 20
SMALL = ("before", "stages", "body", "a3", "a6", "k3", "flood")
BIG = Served(weights_bytes=10 * GIB)


@pytest.fixture(scope="module")
def bench(benches: list[Bench], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """A gateway with small models of two slots, one of one slot, and two that do not fit together; who reads nothing
    for a second and a half has left."""
    models = dict.fromkeys(SMALL, Served(settings={"parallel": 2}))
    models |= {"a11": Served()} | dict.fromkeys(("a7x", "a7y", "a2plain", "a2stream"), BIG)
    settings = {"devices": {"host_budget": "16GiB"}, "server": {"write_stall": "1.5s"}}
    running = serve(tmp_path_factory.mktemp("leaving"), models, settings=settings)
    benches.append(running)
    yield running
    assert running.gateway.stop() == 0


def idle(bench: Bench, model: str) -> bool:
    """Whether no slot of a model is counted as busy, and nobody waits."""
    status = bench.status()
    busy = [item["slots"]["busy"] for item in status["instances"] if item["model"] == model]
    return not status["waiting"] and not any(busy)


STAGES = {
    "plain": {"stream": False},
    "no token yet": {"stream": True},
    "in mid-stream": {"stream": True},
}


@pytest.mark.parametrize("stage", STAGES)
def test_A1_A4_K1_whoever_leaves_a_running_answer_ends_it(bench: Bench, stage: str) -> None:
    """A1, 1; A4, 4; K1, 117: closed, reset or half closed, on a connection that was used before or has more to say: the
    engine's connection closes while its answer would go on for hours, 499 is counted, and the slot serves the next."""
    bench.tell("stages")
    assert bench.chat("stages").status == 200
    bench.tell("stages", tokens_per_second=0.001 if stage == "no token yet" else 50)
    before = codes(bench, "stages")
    for way, connection in LEAVINGS:
        asked, left = (len(bench.recorded("stages", key)) for key in ("path", "left"))
        with visitor(bench, connection) as one:
            ask(one, connection, "stages", max_tokens=LONG, **STAGES[stage])
            bench.until(lambda count=asked: CHAT in bench.recorded("stages", "path")[count:], "it runs")
            if stage == "in mid-stream":
                one.hear(b"word1")
            one.leave(way)
            bench.until(lambda count=left: len(bench.recorded("stages", "left")) > count, f"{way} is noticed")
            bench.until(lambda: idle(bench, "stages"), "its slot is free")
    assert codes(bench, "stages") - before == {"499": len(LEAVINGS)}
    bench.tell("stages")
    assert bench.chat("stages").status == 200


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])
def test_A2_whoever_leaves_while_its_model_loads_is_counted_as_gone(bench: Bench, stream: bool) -> None:
    """A2, 2: neither as served nor as the engine's fault."""
    model = "a2stream" if stream else "a2plain"
    bench.tell(model, start_delay_seconds=15.0)
    with visitor(bench) as one:
        ask(one, "fresh", model, stream=stream)
        bench.until_event("load", model)
    bench.until(lambda: not bench.instances(model), "its load is given up")
    assert codes(bench, model) == {"499": 1}
    assert bench.until_event("cancel", model)["rule"] == "S8"


def test_A3_a_neighbour_is_told_and_who_waits_is_served_when_one_that_leaves_kills_the_engine(bench: Bench) -> None:
    """A3, 3: an error frame and the end for who was being answered, no `[DONE]` that pretends; a job that waited for
    the slot is answered by the next process."""
    bench.tell("a3", tokens_per_second=20, exit_when_left=True, exit_status=139)
    with bench.streamed("a3", max_tokens=LONG) as stays, ThreadPoolExecutor() as pool:
        next(stays)
        with bench.streamed("a3", max_tokens=LONG) as leaves:
            next(leaves)
            waits = pool.submit(bench.chat, "a3")
            bench.until(lambda: bench.status()["waiting"], "it waits")
        rest = list(stays)
        assert b"upstream_error" in rest[-1]
        assert b"data: [DONE]" not in rest
        assert waits.result().status == 200
    assert bench.starts("a3") == 2


def test_S8_a_neighbours_answer_is_whole_whoever_leaves_beside_it(bench: Bench) -> None:
    """Nine leave the other slot, in every way; each word of the one that stays arrives once, in its place."""
    bench.tell("before", tokens_per_second=40)
    with bench.streamed("before", max_tokens=40) as stays:
        heard = [next(stays)]
        for way, _ in product(WAYS, range(3)):
            with visitor(bench) as one:
                one.say(chat_request("before", stream=True, max_tokens=LONG))
                one.hear(b"word1")
                one.leave(way)
        heard += list(stays)
    assert [f"word{number} ".encode() in line for number, line in enumerate(heard[:40])] == [True] * 40
    assert heard[40:] == [b"data: [DONE]"]


def test_A6_fifty_streams_that_break_off_at_any_moment_leave_two_slots_free(bench: Bench) -> None:
    """A6, 5: within half a second, closed or reset; two ordinary chats at once are answered behind them. What else
    could be left, connections among it, is looked for behind every test here."""
    bench.tell("a6", tokens_per_second=50)
    assert bench.chat("a6").status == 200
    trio.run(leave_at_random, bench, "a6", 50, 0.5, 20)
    bench.until(lambda: idle(bench, "a6"), "nobody is left")
    with ThreadPoolExecutor() as pool:
        assert [answer.status for answer in pool.map(bench.chat, ["a6"] * 2)] == [200, 200]
    assert bench.starts("a6") == 1


def test_K3_K8_five_hundred_that_are_cancelled_cost_no_descriptor_and_no_word(bench: Bench) -> None:
    """K3, 118; K8, 121: within 50 ms: before they have asked, in mid-request, queued, in mid-answer. The next is
    served, as many files are open as before, and the log has not a line about any."""
    bench.tell("k3", tokens_per_second=200)
    assert bench.chat("k3").status == 200
    said = bench.gateway.log.read_text(encoding="utf-8")
    trio.run(leave_at_random, bench, "k3", 500, 0.05, 25)
    bench.until(lambda: idle(bench, "k3"), "nobody is left")
    assert bench.chat("k3").status == 200
    assert bench.starts("k3") == 1
    assert bench.gateway.log.read_text(encoding="utf-8") == said
    ended = codes(bench, "k3")
    assert ended.keys() == {"200", "499"}
    assert ended["200"] == 2
    assert ended["499"] > 25  # on a busy machine many have not got as far as to be one


async def leave_at_random(bench: Bench, model: str, count: int, longest_seconds: float, at_once: int) -> None:
    """So many chats, each left after a time of its own, closed or reset."""
    chance = random.Random(model)  # noqa: S311 - moments, no secret
    room = trio.CapacityLimiter(at_once)

    async def one(after_seconds: float, reset: bool, stream: bool) -> None:
        async with room:
            with trio.socket.socket() as client, trio.move_on_after(after_seconds):
                if reset:
                    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                await client.connect(("127.0.0.1", int(bench.gateway.url.rpartition(":")[2])))
                await client.send(chat_request(model, stream=stream, max_tokens=LONG))
                while await client.recv(65536):
                    pass
                raise AssertionError("it was answered to the end")

    async with trio.open_nursery() as nursery:
        for _ in range(count):
            reset, stream = chance.random() < 0.5, chance.random() < 0.5
            nursery.start_soon(one, chance.uniform(0.0, longest_seconds), reset, stream)


@pytest.mark.parametrize("way", WAYS)
def test_whoever_leaves_in_mid_request_has_asked_nothing(bench: Bench, way: str) -> None:
    """Half a body, from a client that sends it in pieces: no job, no answer, and no model is loaded for it."""
    with visitor(bench) as one:
        request = chat_request("body")
        one.say(request[:60])
        one.say(request[60:-9])
        one.leave(way)
    assert bench.ask("/v1/models").status == 200
    assert bench.starts("body") == 0
    assert not bench.events("enqueue", "body")


def test_A7_five_that_leave_the_queue_load_nothing(bench: Bench) -> None:
    """A7, 6: their model does not fit beside one that is busy; they leave at once, the busy one is let be, and when it
    is done nothing is started for anybody."""
    bench.tell("a7x", tokens_per_second=20)
    with bench.streamed("a7x", max_tokens=LONG) as lines:
        next(lines)
        visitors = [visitor(bench) for _ in range(5)]
        for one in visitors:
            ask(one.__enter__(), "fresh", "a7y", stream=True)
        bench.until(lambda: len(bench.status()["waiting"]) == 5, "they wait")
        for one in visitors:
            one.__exit__(None, None, None)
        bench.until(lambda: not bench.status()["waiting"], "they have left")
        next(lines)
    bench.until(lambda: idle(bench, "a7x"), "it is done")
    assert bench.is_in("a7x", "ready")
    assert (bench.starts("a7y"), bench.events("load", "a7y")) == (0, [])
    assert codes(bench, "a7y") == {"499": 5}


def test_A11_a_slot_is_busy_until_the_engine_says_that_it_is_not(bench: Bench) -> None:
    """A11, 8: an engine that does not notice who leaves, and for a while says nothing at all, goes on; who comes next
    waits with us, not in a queue of its."""
    bench.tell("a11", tokens_per_second=10, deaf=True)
    with visitor(bench) as one, ThreadPoolExecutor() as pool:
        ask(one, "fresh", "a11", stream=True, max_tokens=10)
        one.hear(b"word0")
        with held(bench, "a11"):
            one.leave("closed")
            bench.until_event("cancel", "a11")
            bench.tell("a11")
            asked = pool.submit(bench.chat, "a11")
            bench.until(lambda: bench.status()["waiting"], "it waits")
            assert bench.instances("a11")[0]["slots"]["busy"] == 1
            assert bench.recorded("a11", "path").count(CHAT) == 1
        assert asked.result().status == 200
    assert bench.starts("a11") == 1


def test_S8_whoever_reads_nothing_stalls_its_own_answer_and_has_left_in_the_end(bench: Bench) -> None:
    """A flood without end: the engine gets rid of what lies between the two and no more, the gateway does not grow, and
    the slot comes free, as that of one that has left."""
    assert bench.chat("flood").status == 200
    bench.tell("flood", token_bytes=1 << 16)
    before, left = resident_bytes(bench), len(bench.recorded("flood", "left"))
    with visitor(bench) as one:
        ask(one, "fresh", "flood", stream=True, max_tokens=LONG)
        bench.until(lambda: bench.recorded("flood", "left")[left:], "it is taken to have left")
        assert 0 < bench.recorded("flood", "words")[-1] << 16 < 32 * MIB
        with pytest.raises(ConnectionResetError):
            one.hear(b"data: [DONE]")
    bench.until(lambda: idle(bench, "flood"), "its slot is free")
    assert resident_bytes(bench) - before < 16 * MIB
    bench.tell("flood")
    assert bench.chat("flood").status == 200


def resident_bytes(bench: Bench) -> int:
    """The gateway's own memory."""
    words = Path(f"/proc/{bench.gateway.process.pid}/status").read_text(encoding="utf-8").split()
    return int(words[words.index("VmRSS:") + 1]) << 10
