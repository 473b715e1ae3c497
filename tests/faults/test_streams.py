"""Section I, and what of K speaks of answers: what an engine sends is what a client gets, to the byte, or an error."""

import json
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.faults.bench import Bench, Served, serve
from tests.faults.conftest import Start
from tests.faults.test_processes import held
from tests.faults.visitors import chat_request, codes, visitor
from tests.support.processes import gone, watched

pytestmark = pytest.mark.slow

ENDINGS = ("exit", "close", "garbage")


@pytest.fixture(scope="module")
def bench(benches: list[Bench], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """A gateway with a model for each test."""
    names = ("passes", "k4", "k4once", *(f"i4{ending}" for ending in ENDINGS))
    running = serve(tmp_path_factory.mktemp("streams"), dict.fromkeys(names, Served(settings={"parallel": 2})))
    benches.append(running)
    yield running
    assert running.gateway.stop() == 0


def streamed(bench: Bench, model: str, **more: object) -> bytes:
    """The body of a streamed chat, as it came."""
    answer = bench.chat(model, stream=True, **more)
    assert (answer.status, answer.complete) == (200, True)
    return answer.body


def test_I3_an_engines_own_framing_of_events_passes_as_it_is(bench: Bench) -> None:
    """I3, 100: comments, names, numbers, pauses, CRLF, data on two lines, whatever pieces they come in."""
    said = ": ping\n\nevent: x\r\ndata: {}\r\n\r\nid: 5\nretry: 10\n\ndata: {\ndata: }\n\n:\r\rdata: [DONE]\n\n"
    for pieces in ([said], [said[:9], said[9:20], said[20:]], list(said)):
        bench.tell("passes", chunks=pieces)
        assert streamed(bench, "passes").decode() == said


def test_I9_letters_that_arrive_byte_after_byte_are_the_same_at_the_end(bench: Bench) -> None:
    """I9, 104: raw or as escapes, in a stream and in an answer that is whole, and in a request that comes so itself."""
    text = "data: " + json.dumps({"choices": [{"delta": {"content": "é🦙한"}}]}, ensure_ascii=False)
    text += "\n\ndata: " + json.dumps({"choices": [{"delta": {"content": "é🦙한"}}]}) + "\n\ndata: [DONE]\n\n"
    bench.tell("passes", chunks=[text], segment_bytes=1, segment_pause_seconds=0.002)
    assert streamed(bench, "passes").decode() == text
    bench.tell("passes", tokens=0, body=text, segment_bytes=1, segment_pause_seconds=0.002)
    assert bench.chat("passes").body.decode() == text
    bench.tell("passes", chunks=["data: [DONE]\n\n"])
    content = [{"role": "user", "content": "é🦙한"}]
    request = chat_request("passes", stream=True, messages=content)
    with visitor(bench) as one:
        for byte in request:
            one.say(bytes([byte]))
        assert one.hear(b"data: [DONE]").startswith(b"HTTP/1.1 200")
    assert bench.recorded("passes", "body_bytes")[-1] == len(request.partition(b"\r\n\r\n")[2])


def test_I12_a_streams_head_keeps_proxies_from_holding_it_back(bench: Bench) -> None:
    """I12, 106: nor is there a length, or a compression, also for a client that would take one."""
    bench.tell("passes")
    body = {"model": "passes", "messages": [], "stream": True}
    head = bench.ask("/v1/chat/completions", body, {"Accept-Encoding": "gzip, br"}).headers
    assert head["content-type"].startswith("text/event-stream")
    assert (head["cache-control"], head["x-accel-buffering"]) == ("no-cache", "no")
    assert not head.keys() & {"content-length", "content-encoding"}


@pytest.mark.parametrize("ending", ENDINGS)
def test_I4_a_stream_that_breaks_off_says_so(bench: Bench, ending: str) -> None:
    """I4, 101: the engine exits behind five words, closes without the end of its framing, or breaks that: the five, one
    error frame and the end; no `[DONE]`, no invented reason, and a 502 in the metrics."""
    model = f"i4{ending}"
    bench.tell(model, token_limit=5, ending=ending, exit_status=7)
    events = streamed(bench, model, max_tokens=9).split(b"\n\n")
    assert [f"word{number} ".encode() in event for number, event in enumerate(events[:5])] == [True] * 5
    frame, end = events[5:]
    assert (frame[:7], end) == (b"data: {", b"")
    error = json.loads(frame[6:])["error"]
    assert (error["type"], error["code"]) == ("server_error", "upstream_error")
    assert b"finish_reason" not in frame
    assert codes(bench, model) == {"502": 1}


def test_K4_an_engine_that_closes_connections_costs_nobody_an_answer(bench: Bench) -> None:
    """K4, 119: behind five replies on one, without a word: a thousand chats one after the other, and fifty at once."""
    bench.tell("k4", replies=5, tokens=1)
    request = chat_request("k4", max_tokens=1)
    with visitor(bench) as one:
        for _ in range(1000):
            one.say(request)
            assert one.hear(b"\r\n\r\n").startswith(b"HTTP/1.1 200")
            one.hear(b'"word0"}}]}')
    with ThreadPoolExecutor(50) as pool:
        assert {answer.status for answer in pool.map(bench.chat, ["k4"] * 50)} == {200}
    assert bench.starts("k4") == 1
    assert codes(bench, "k4") == {"200": 1050}


def test_K4_a_connection_that_is_closed_unanswered_is_not_a_502(bench: Bench) -> None:
    """K4, 119: once, behind the request's last byte: the client is answered by the process that takes its place."""
    bench.tell("k4once", close_at_request=2)
    assert [bench.chat("k4once").status for _ in range(3)] == [200, 200, 200]
    assert codes(bench, "k4once") == {"200": 3}


def test_K6_a_gateway_that_is_told_to_end_ends_streams_in_their_order(start: Start) -> None:
    """K6, 120: a generation is finished, whoever waits and whoever comes is told, who follows the log is let go at
    once, an idle connection holds nothing up, and no process stays."""
    bench = start({"streams": Served(), "loads": Served()})
    bench.tell("streams", tokens_per_second=20)
    with (
        bench.streamed("streams", max_tokens=40) as lines,
        visitor(bench, "kept alive") as idle,
        ThreadPoolExecutor() as pool,
    ):
        next(lines)
        follower = pool.submit(bench.ask, "/api/events?since=0")
        with held(bench, "streams"):
            waiting = pool.submit(bench.chat, "streams")
            bench.until(lambda: bench.status()["waiting"], "it waits")
        with watched(bench.gateway.children()) as engines:
            bench.gateway.process.send_signal(signal.SIGTERM)
            assert (waiting.result().status, waiting.result().error["code"]) == (503, "draining")
            assert follower.result().complete
            refused = bench.chat("loads")
            assert (refused.status, refused.headers["connection"]) == (503, "close")
            assert list(lines)[-1] == b"data: [DONE]"
            assert idle.hear(b"nothing") == b""
            assert bench.gateway.process.wait(20) == 0
            assert gone(engines, 0.0)
