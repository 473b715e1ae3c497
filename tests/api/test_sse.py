"""Streams (H3): what a client sees before the head, while nothing flows, and when something fails."""

import gzip
import json
import re

import pytest
import trio
from trio.testing import MockClock

from gridsched.api.settings import FrontSettings
from gridsched.ports import UpstreamFailureKind
from sim.engine import Faults
from tests.support.fakes import EVENTS, Script
from tests.support.front import Answer, House, serving

CHAT = "/v1/chat/completions"
STREAM = {"model": "sim-chat-4b", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 3, "stream": True}
BROKEN = UpstreamFailureKind.BROKEN
ONE, TWO, DONE = b'data: {"n":1}\n\n', b'data: {"n":2}\n\n', b"data: [DONE]\n\n"


async def warm(house: House) -> None:
    """Have the model loaded."""
    assert (await house.ask("POST", CHAT, STREAM)).status == 200


def comments(answer: Answer) -> list[tuple[float, str]]:
    """The comment lines with their times, to the tenth of a second."""
    return [(round(at, 1), data.decode().strip()) for at, data in answer.arrived if data.startswith(b":")]


def errors(answer: Answer) -> list[dict[str, object]]:
    """The error frames."""
    frames = answer.body.split(b"\n\n")
    return [json.loads(frame[6:])["error"] for frame in frames if frame.startswith(b'data: {"error"')]


async def test_H2_I3_I12_a_stream_passes_byte_for_byte_with_a_streams_headers(autojump_clock: MockClock) -> None:
    """Engine comments, ids, CRLF and bytes cut anywhere arrive as they were sent; nothing is added."""
    parts = [
        b": ping\n\nevent: x\r\nda",
        b"ta: {}\r\n\r\nid: 5\nretry: 1\n\n",
        *(bytes([b]) for b in "é🦙".encode()),
        DONE,
    ]
    theirs = (*EVENTS, (b"cache-control", b"max-age=9"), (b"content-length", b"77"))
    async with serving(autojump_clock) as house:
        house.upstream.scripts.append(Script(parts, headers=theirs))
        answer = await house.ask("POST", CHAT, STREAM)
        assert answer.body == b"".join(parts)
        assert answer.complete
        assert answer.headers["content-type"] == "text/event-stream"
        assert answer.headers["cache-control"] == "no-cache"
        assert answer.headers["x-accel-buffering"] == "no"
        assert answer.headers["transfer-encoding"] == "chunked"
        assert "content-length" not in answer.headers


async def test_H3_a_cold_stream_says_what_it_waits_for(autojump_clock: MockClock) -> None:
    """Nothing for 5 s, then 200 and a comment every 5 s: loading, then prefilling; then the engine's own bytes."""
    async with serving(autojump_clock) as house:
        house.world.engine.plan_faults("sim-chat-4b", Faults(load_factor=4.0))
        house.upstream.scripts.append(Script([ONE, DONE], headers=EVENTS, head_seconds=12.0))
        async with await house.connect() as client:
            await client.send("POST", CHAT, json.dumps(STREAM).encode())
            head = await client.head()
            assert (head.status, round(trio.current_time(), 1)) == (200, 5.0)
            answer = await client.rest(head)
        assert comments(answer) == [
            (5.0, ": loading sim-chat-4b (5s)"),
            (10.0, ": loading sim-chat-4b (10s)"),
            (15.0, ": prefilling sim-chat-4b (2s)"),
            (20.0, ": prefilling sim-chat-4b (7s)"),
            (25.0, ": prefilling sim-chat-4b (12s)"),
        ]
        assert answer.body.endswith(ONE + DONE)
        assert answer.complete


async def test_H3_a_queued_stream_says_its_place(autojump_clock: MockClock) -> None:
    """Behind streams that hold all four slots."""
    async with serving(autojump_clock) as house, trio.open_nursery() as nursery:
        await warm(house)
        house.upstream.scripts.extend([Script([8.0, ONE, DONE], headers=EVENTS)] * 4)
        for _ in range(4):
            nursery.start_soon(house.ask, "POST", CHAT, STREAM)
        await house.until_logged("dispatch", 5)
        answer = await house.ask("POST", CHAT, STREAM)
        assert [said for _, said in comments(answer)] == [": queued 1"]
        assert answer.body.endswith(DONE)


async def test_H3_a_refusal_within_the_hold_is_a_real_status(autojump_clock: MockClock) -> None:
    """A load that fails after 2 s is a 503 with its cause, and no stream."""
    async with serving(autojump_clock) as house:
        house.world.engine.plan_faults("sim-chat-4b", Faults(crash_in_load=True))
        answer = await house.ask("POST", CHAT, STREAM)
        assert (answer.status, answer.error["code"]) == (503, "model_failed")
        assert answer.error["gridsched"]["cause"] == "crashed"  # type: ignore[index]  # JSON
        assert answer.headers["content-type"] == "application/json"


async def test_H3_a_refusal_after_the_hold_is_one_frame_and_the_end(autojump_clock: MockClock) -> None:
    """The same load, slower: 200 was committed, so the error is an event, and no [DONE] pretends success."""
    async with serving(autojump_clock) as house:
        house.world.engine.plan_faults("sim-chat-4b", Faults(crash_in_load=True, load_factor=6.0))
        answer = await house.ask("POST", CHAT, STREAM)
        assert (answer.status, answer.complete) == (200, True)
        (error,) = errors(answer)
        assert (error["code"], error["type"]) == ("model_failed", "server_error")
        assert b"[DONE]" not in answer.body


OVERFLOW = b'{"error":{"code":400,"message":"too long","type":"exceed_context_size_error","n_ctx":8}}'


async def test_H2_an_engines_refusal_of_a_stream_keeps_its_status(autojump_clock: MockClock) -> None:
    """Byte for byte, since no head has gone."""
    async with serving(autojump_clock) as house:
        house.upstream.scripts.append(Script([OVERFLOW], status=400))
        answer = await house.ask("POST", CHAT, STREAM)
        assert (answer.status, answer.body, answer.headers["content-type"]) == (400, OVERFLOW, "application/json")
        house.upstream.scripts.append(Script([ONE, DONE], status=500, headers=EVENTS))
        answer = await house.ask("POST", CHAT, STREAM)
        assert (answer.status, answer.body) == (500, ONE + DONE)


@pytest.mark.parametrize(
    ("body", "code"),
    [(OVERFLOW, 400), (OVERFLOW.replace(b",", b",\n"), 400), (b"<html>", "upstream_error"), (b"", "upstream_error")],
)
async def test_H3_an_engines_refusal_after_the_hold_is_a_frame(
    autojump_clock: MockClock, body: bytes, code: object
) -> None:
    """Its own error where it is one, on one line."""
    async with serving(autojump_clock) as house:
        house.upstream.scripts.append(Script([body] if body else [], status=400, head_seconds=6.0))
        answer = await house.ask("POST", CHAT, STREAM)
        assert answer.status == 200
        assert [error["code"] for error in errors(answer)] == [code]


PACKED = gzip.compress(ONE + DONE)
PACKED_EVENTS = (*EVENTS, (b"content-encoding", b"gzip"))


async def test_H9_a_compressed_stream_has_nothing_of_ours_in_it(autojump_clock: MockClock) -> None:
    """Which would damage it: it passes as it came, named as what it is."""
    async with serving(autojump_clock) as house:
        await warm(house)
        half = len(PACKED) // 2
        parts = [PACKED[:half], 20.0, PACKED[half:]]
        house.upstream.scripts.append(Script(parts, headers=PACKED_EVENTS))
        answer = await house.ask("POST", CHAT, STREAM)
        assert (answer.headers["content-encoding"], gzip.decompress(answer.body)) == ("gzip", ONE + DONE)
        house.upstream.scripts.append(Script([PACKED[:half], BROKEN], headers=PACKED_EVENTS))
        broken = await house.ask("POST", CHAT, STREAM)
        assert (broken.body, broken.complete) == (PACKED[:half], False)


async def test_H9_a_compressed_stream_after_the_hold_is_an_error(autojump_clock: MockClock) -> None:
    """The head that is out promises plain text, so one frame says what is wrong; it counts as a 502."""
    async with serving(autojump_clock) as house:
        await warm(house)
        for script in (
            Script([PACKED], headers=PACKED_EVENTS, head_seconds=6.0),
            Script([b"hello"], headers=((b"content-type", b"text/plain"),), head_seconds=6.0),
        ):
            house.upstream.scripts.append(script)
            answer = await house.ask("POST", CHAT, STREAM)
            assert (answer.status, answer.complete) == (200, True)
            assert [error["code"] for error in errors(answer)] == ["upstream_error"]
            assert b"gzip" not in answer.body
            assert b"\x1f\x8b" not in answer.body
        counted = (await house.ask("GET", "/metrics")).body.decode()
        assert re.search(r'requests_total\{[^}]*code="502"[^}]*\} 2.0', counted)


async def test_P5_a_stream_whose_engine_dies_unanswered_is_run_again(autojump_clock: MockClock) -> None:
    """Comment lines are no answer: after them, and after a head, the second run is the client's only one."""
    async with serving(autojump_clock) as house:
        house.upstream.scripts += [Script(head_seconds=6.0, before_head=True), Script([ONE, DONE], headers=EVENTS)]
        answer = await house.ask("POST", CHAT, STREAM)
        assert answer.body.endswith(ONE + DONE)
        assert errors(answer) == []
        house.upstream.scripts += [Script([BROKEN], headers=EVENTS), Script([TWO, DONE], headers=EVENTS)]
        assert (await house.ask("POST", CHAT, STREAM)).body == TWO + DONE


DEVICE_FAILS = b'{"error":{"code":500,"message":"CUDA error: unspecified launch failure"}}'


async def test_D13_a_device_that_fails_is_no_answer_the_fresh_process_gives_it(autojump_clock: MockClock) -> None:
    """Whether the engine says so with a 500 or in a stream's first frame, before the head went out and after it."""
    async with serving(autojump_clock) as house:
        for fails in (
            Script([DEVICE_FAILS], status=500),
            Script([b"data: ", DEVICE_FAILS, b"\n\n"], headers=EVENTS),
            Script([DEVICE_FAILS], status=500, head_seconds=6.0),
        ):
            await warm(house)
            house.upstream.scripts += [fails, Script([ONE, DONE], headers=EVENTS)]
            answer = await house.ask("POST", CHAT, STREAM)
            assert answer.body.endswith(ONE + DONE)
            assert b"CUDA" not in answer.body
        assert len(house.logged("ready")) == 4


async def test_D13_a_device_that_fails_after_a_token_is_told_once_and_the_process_begins_anew(
    autojump_clock: MockClock,
) -> None:
    """By the engine's own frame; we add none. Who comes next is served by a fresh process."""
    frame = b"data: " + DEVICE_FAILS + b"\n\n"
    async with serving(autojump_clock) as house:
        house.upstream.scripts.append(Script([ONE, frame], headers=EVENTS))
        answer = await house.ask("POST", CHAT, STREAM)
        assert answer.body == ONE + frame
        assert answer.complete
        await warm(house)
        assert len(house.logged("ready")) == 2


async def test_D13_P7_a_device_that_fails_again_is_told_with_the_engines_last_lines(autojump_clock: MockClock) -> None:
    """The fresh process has its fault, too: a 502, and what the engine printed is in it."""
    async with serving(autojump_clock) as house:
        house.upstream.scripts += [Script([DEVICE_FAILS], status=500)] * 2
        answer = await house.ask("POST", CHAT, STREAM | {"stream": False})
        assert (answer.status, answer.error["code"]) == (502, "upstream_error")
        told = answer.error["gridsched"]
        assert (told["cause"], bool(told["log_tail"])) == ("driver_fault", True)  # type: ignore[index]  # JSON


async def test_D13_another_500_is_the_clients_own(autojump_clock: MockClock) -> None:
    """Passed on as it is, and nobody is restarted for it."""
    body = b'{"error":{"code":500,"message":"the model wrote: CUDA error"}}'
    async with serving(autojump_clock) as house:
        house.upstream.scripts.append(Script([body[:9], body[9:]], status=500))
        answer = await house.ask("POST", CHAT, STREAM)
        assert (answer.status, answer.body) == (500, body)
        await warm(house)
        assert len(house.logged("ready")) == 1


async def test_P5_an_engine_that_dies_twice_is_an_upstream_error(autojump_clock: MockClock) -> None:
    """A real status for a plain request, a frame for a stream that waited for two loads."""
    async with serving(autojump_clock) as house:
        house.upstream.scripts += [Script(before_head=True), Script([BROKEN])] * 2
        answer = await house.ask("POST", CHAT, STREAM | {"stream": False})
        assert (answer.status, answer.error["code"]) == (502, "upstream_error")
        assert answer.error["gridsched"]["log_tail"]  # type: ignore[index]  # JSON
        refused = await house.ask("POST", CHAT, STREAM)  # its model is given time before it is tried again
        assert (refused.status, refused.error["code"]) == (503, "model_failed")
        assert int(refused.headers["retry-after"]) > 0
        streamed = await house.ask("POST", CHAT, STREAM | {"model": "sim-chat-12b"})
        assert [error["code"] for error in errors(streamed)] == ["upstream_error"]


CUTS = [(ONE, ONE), (ONE + b'data: {"n"', ONE + b'data: {"n"\n\n')]


@pytest.mark.parametrize(("sent", "arrived"), CUTS, ids=["between events", "inside an event"])
async def test_H3_an_engine_that_dies_in_mid_stream_is_an_error_frame(
    autojump_clock: MockClock, sent: bytes, arrived: bytes
) -> None:
    """An event that was cut off is ended first; the frame names the log's last lines, and there is no [DONE]."""
    async with serving(autojump_clock) as house:
        house.upstream.scripts.append(Script([sent, 1.0, BROKEN], headers=EVENTS))
        answer = await house.ask("POST", CHAT, STREAM)
        assert answer.body.startswith(arrived + b'data: {"error":')
        assert answer.body.endswith(b"}\n\n")
        (error,) = errors(answer)
        assert error["code"] == "upstream_error"
        assert error["gridsched"]["log_tail"]  # type: ignore[index]  # JSON
        assert len(house.upstream.asked) == 1


async def test_S9_an_engine_that_stalls_is_an_error_frame(autojump_clock: MockClock) -> None:
    """In mid-stream, and before its head; comments show that the server lives."""
    async with serving(autojump_clock, FrontSettings(stall_seconds=12.0)) as house:
        await warm(house)
        house.upstream.scripts.append(Script([ONE, 100.0], headers=EVENTS))
        answer = await house.ask("POST", CHAT, STREAM)
        assert [said for _, said in comments(answer)] == [
            ": generating sim-chat-4b (5s)",
            ": generating sim-chat-4b (10s)",
        ]
        assert [error["code"] for error in errors(answer)] == ["upstream_error"]


async def test_S9_an_engine_that_never_answers_is_an_error(autojump_clock: MockClock) -> None:
    """The stall limit holds for the head too; a plain request gets a real status."""
    async with serving(autojump_clock, FrontSettings(stall_seconds=12.0)) as house:
        await warm(house)
        house.upstream.scripts.append(Script(head_seconds=1000.0))
        answer = await house.ask("POST", CHAT, STREAM | {"stream": False})
        assert (answer.status, answer.error["code"]) == (502, "upstream_error")


async def test_H3_no_comment_inside_an_event(autojump_clock: MockClock) -> None:
    """A silence in the middle of an event stays a silence; one behind it is spoken in."""
    async with serving(autojump_clock) as house:
        await warm(house)
        parts = [ONE, b'data: {"n"', 7.0, b":2}\n\n", 7.0, DONE]
        house.upstream.scripts.append(Script(parts, headers=EVENTS))
        answer = await house.ask("POST", CHAT, STREAM)
        expected = ONE + TWO + b": generating sim-chat-4b (12s)\n\n" + DONE
        assert answer.body == expected


async def test_H3_no_comment_while_events_flow(autojump_clock: MockClock) -> None:
    """One event in two seconds is enough of a sign of life."""
    async with serving(autojump_clock) as house:
        await warm(house)
        house.upstream.scripts.append(Script([ONE, 2.0] * 20 + [DONE], headers=EVENTS))
        assert (await house.ask("POST", CHAT, STREAM)).body == ONE * 20 + DONE


async def test_a_plain_answer_that_breaks_off_breaks_its_connection(autojump_clock: MockClock) -> None:
    """Its status is out; a clean end would pretend that it was whole."""
    async with serving(autojump_clock) as house:
        house.upstream.scripts.append(Script([b'{"choices":', BROKEN]))
        answer = await house.ask("POST", CHAT, STREAM | {"stream": False})
        assert (answer.status, answer.complete) == (200, False)
