"""Streams as clients of every kind meet them: comment lines and who cannot bear them, what passes unread, hours."""

import json
import traceback

import h11
import httpx
import pytest
import trio
from openai import OpenAI
from trio.testing import MockClock

from gridsched.api.settings import FrontSettings
from sim.engine import Faults
from tests.api.test_sse import CHAT, DONE, ONE, STREAM, comments, warm
from tests.support.fakes import EVENTS, Script
from tests.support.front import Answer, serving

ASKED_FOR = {
    "true": {"stream_options": {"include_usage": True}},
    "false": {"stream_options": {"include_usage": False}},
    "null": {"stream_options": None},
    "absent": {},
}
USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":1,"total_tokens":6}}\n\n'


@pytest.mark.parametrize("options", ASKED_FOR.values(), ids=ASKED_FOR.keys())
async def test_I6_usage_is_asked_for_by_the_client_alone(autojump_clock: MockClock, options: dict[str, object]) -> None:
    """I6, 102: what it says of it goes up as it is, streamed or not; the chunk without choices comes down as it is, and
    none comes that was not asked for."""
    async with serving(autojump_clock) as house:
        parts = [ONE, *([USAGE] if options == ASKED_FOR["true"] else []), DONE]
        house.upstream.scripts += [Script(parts, headers=EVENTS), Script([b'{"usage":{}}'])]
        streamed = await house.ask("POST", CHAT, STREAM | options)
        whole = await house.ask("POST", CHAT, STREAM | {"stream": False} | options)
        assert streamed.body == b"".join(parts)
        assert whole.body == b'{"usage":{}}'
        sent = [json.loads(asked.body) for asked in house.upstream.asked]
        assert [{"stream_options": body["stream_options"]} if "stream_options" in body else {} for body in sent] == [
            options,
            options,
        ]


def client_errors() -> dict[str, tuple[dict[str, object], int]]:
    """What a client can get wrong, and the status."""
    return {
        "an unknown model": ({"model": "nobody"}, 404),
        "no messages": ({"messages": "hi"}, 400),
        "a class": ({"x_class": "urgent"}, 400),
        "a wait": ({"gridsched": {"max_wait_ms": -1}}, 400),
        "what is never loaded for it": ({"gridsched": {"warm_only": True}}, 503),
    }


@pytest.mark.parametrize(("wrong", "status"), client_errors().values(), ids=client_errors().keys())
async def test_H1_I8_what_can_be_known_is_said_before_a_streams_head(
    autojump_clock: MockClock, wrong: dict[str, object], status: int
) -> None:
    """I8, 103: a real status, and nothing is loaded."""
    async with serving(autojump_clock) as house:
        answer = await house.ask("POST", CHAT, STREAM | wrong)
        assert answer.status == status
        assert answer.error["message"]
        assert not house.logged("load")


async def test_I8_no_word_of_ours_is_in_an_answer(autojump_clock: MockClock) -> None:
    """I8, 103: of a load that fails after the head has gone there are comments and the error frame: no delta of content
    or of reasoning."""
    async with serving(autojump_clock) as house:
        house.world.engine.plan_faults("sim-chat-4b", Faults(crash_in_load=True, load_factor=6.0))
        answer = await house.ask("POST", CHAT, STREAM)
        events = [event for event in answer.body.split(b"\n\n") if event and not event.startswith(b":")]
        assert len(comments(answer)) > 1
        assert [json.loads(event.removeprefix(b"data: ")).keys() for event in events] == [{"error"}]


CALL = b'data: {"choices":[{"index":0,"delta":{"tool_calls":[%b]}}]}\n\n'
CALLS = [
    CALL % b'{"index":0,"id":"a","function":{"name":"f","arguments":""}}',
    CALL % b'{"index":0,"function":{"arguments":"{"}}',
    CALL % b'{"index":1,"id":"b","function":{"name":"g","arguments":"{}"}}',
    CALL % b'{"index":0,"function":{"arguments":"}"}}',
]
NO_JINJA = b'{"error":{"code":500,"message":"tools param requires --jinja flag","type":"server_error"}}'


async def test_I11_calls_of_tools_pass_in_their_order(autojump_clock: MockClock) -> None:
    """I11, 105: their pieces as they are, for two calls in turn; an engine that was started without what they need says
    so itself, and nobody is restarted for it."""
    tools = {"tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}], "tool_choice": "auto"}
    async with serving(autojump_clock) as house:
        house.upstream.scripts += [Script([*CALLS, DONE], headers=EVENTS), Script([NO_JINJA], status=500)]
        assert (await house.ask("POST", CHAT, STREAM | tools)).body == b"".join([*CALLS, DONE])
        assert {key: json.loads(house.upstream.asked[0].body)[key] for key in tools} == tools
        refused = await house.ask("POST", CHAT, STREAM | tools)
        assert (refused.status, refused.body) == (500, NO_JINJA)
        await warm(house)
        assert len(house.logged("ready")) == 1
        assert not house.logged("exit")


def data_lines(body: bytes) -> list[str]:
    """What a client sees that splits a stream at its lines and takes each that is not empty for data."""
    return [line.removeprefix("data: ") for line in body.decode().split("\n") if line]


async def test_I1_comments_are_read_over_by_parsers_and_are_not_there_for_who_cannot(autojump_clock: MockClock) -> None:
    """I1, 99: a load of 12 s, as the OpenAI SDK reads it; and as one reads it that takes every line for JSON, and has
    them switched off."""
    bodies = []
    for headers in ({}, {"X-Gridsched-Comments": "off"}):
        async with serving(autojump_clock) as house:
            house.world.engine.plan_faults("sim-chat-4b", Faults(load_factor=5.0))
            answer = await house.ask("POST", CHAT, STREAM, headers)
            assert house.logged("ready")[0]["load_s"] > 12.0  # type: ignore[operator]  # JSON
            bodies.append(answer.body)
    commented, bare = bodies
    assert commented.count(b": loading sim-chat-4b (") > 1
    assert all(event.startswith((b": ", b"data: ")) for event in commented.split(b"\n\n")[:-1])
    words = [json.loads(line)["choices"][0]["delta"].get("content") for line in data_lines(bare)[:-1]]
    transport = httpx.MockTransport(lambda _: httpx.Response(200, headers=dict(answer.headers), content=commented))
    with httpx.Client(transport=transport) as replayed:
        sdk = OpenAI(base_url="http://replayed/v1", api_key="none", http_client=replayed, max_retries=0)
        chunks = sdk.chat.completions.create(model="m", messages=[{"role": "user", "content": "hi"}], stream=True)
        assert [chunk.choices[0].delta.content for chunk in chunks] == words


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])
async def test_K8_a_bug_of_ours_is_said_once_with_its_stack(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture, stream: bool
) -> None:
    """K8, 121: however many groups of exceptions it went through; the client has a 500, and the next is answered."""
    async with serving(autojump_clock) as house:
        house.upstream.scripts.append(RuntimeError("a bug"))
        answer = await house.ask("POST", CHAT, STREAM | {"stream": stream})
        assert (answer.status, answer.error["code"]) == (500, "internal")
        await warm(house)
    (record,) = caplog.records
    assert record.exc_info is not None
    assert "a bug" in "".join(traceback.format_exception(record.exc_info[1]))


SWITCHES = {
    "by configuration": (FrontSettings(comments=False), {}),
    "by request": (FrontSettings(), {"X-Gridsched-Comments": "Off"}),
}


@pytest.mark.parametrize(("figures", "headers"), SWITCHES.values(), ids=SWITCHES.keys())
async def test_H3_I1_comments_can_be_switched_off(
    autojump_clock: MockClock, figures: FrontSettings, headers: dict[str, str]
) -> None:
    """The head goes in its time all the same, and then the engine's bytes alone, its own comments among them."""
    async with serving(autojump_clock, figures) as house:
        house.upstream.scripts.append(Script([12.0, b": ping\n\n", ONE, 12.0, DONE], headers=EVENTS, head_seconds=12.0))
        async with await house.connect() as client:
            await client.send("POST", CHAT, json.dumps(STREAM).encode(), headers)
            head = await client.head()
            assert (head.status, round(trio.current_time(), 1)) == (200, 5.0)
            assert (await client.rest(head)).body == b": ping\n\n" + ONE + DONE


async def test_H3_I1_a_request_has_comments_that_it_asks_for_in_its_interval(autojump_clock: MockClock) -> None:
    """Where the configuration has none; another word than on and off is a 400, before anything is loaded."""
    async with serving(autojump_clock, FrontSettings(comments=False, comment_seconds=2.0)) as house:
        refused = await house.ask("POST", CHAT, STREAM, {"X-Gridsched-Comments": "some"})
        assert (refused.status, refused.error["param"]) == (400, "x-gridsched-comments")
        assert not house.logged("enqueue")
        await warm(house)
        house.upstream.scripts.append(Script([ONE, 5.0, DONE], headers=EVENTS))
        answer = await house.ask("POST", CHAT, STREAM, {"X-Gridsched-Comments": "on"})
        assert [said for _, said in comments(answer)] == [
            ": generating sim-chat-4b (2s)",
            ": generating sim-chat-4b (4s)",
        ]


async def test_H3_I1_an_answer_that_is_not_streamed_has_no_comments(autojump_clock: MockClock) -> None:
    """However long it takes, and whatever is asked; an answer of 90 s is whole."""
    async with serving(autojump_clock) as house:
        house.upstream.scripts.append(Script([b'{"choices":[]}'], head_seconds=90.0))
        answer = await house.ask("POST", CHAT, STREAM | {"stream": False}, {"X-Gridsched-Comments": "on"})
        assert (answer.status, answer.body, answer.complete) == (200, b'{"choices":[]}', True)


@pytest.mark.slow
async def test_I13_a_stream_of_hours_is_cut_off_by_no_limit(autojump_clock: MockClock) -> None:
    """I13: a token a minute for six hours, behind a silence of 75 s; frameworks end a stream after 60 s."""
    async with serving(autojump_clock) as house:
        await warm(house)
        house.upstream.scripts.append(Script([75.0, *[ONE, 60.0] * 360, DONE], headers=EVENTS))
        answer = await house.ask("POST", CHAT, STREAM)
        assert (answer.complete, answer.body.count(ONE), answer.body[-len(DONE) :]) == (True, 360, DONE)
        assert trio.current_time() > 6 * 3600


async def test_I13_a_load_of_75_seconds_is_waited_for(autojump_clock: MockClock) -> None:
    """I13: by a stream, which is told of it all the while, and by a plain answer."""
    async with serving(autojump_clock) as house, trio.open_nursery() as nursery:
        house.world.engine.plan_faults("sim-chat-4b", Faults(load_factor=30.0))
        answers: list[Answer] = []

        async def ask(stream: bool) -> None:
            answers.append(await house.ask("POST", CHAT, STREAM | {"stream": stream}))

        nursery.start_soon(ask, True)
        nursery.start_soon(ask, False)
        await house.until_logged("ready")
        assert trio.current_time() > 75.0
        await house.runtime.desk.wait_idle()
    assert [answer.status for answer in answers] == [200, 200]
    (streamed,) = [answer for answer in answers if answer.body.endswith(DONE)]
    assert len(comments(streamed)) > 14


async def test_I13_the_decision_log_is_followed_for_as_long_as_one_likes(autojump_clock: MockClock) -> None:
    """I13: five minutes in which nothing happens, and then a line."""
    async with serving(autojump_clock) as house, await house.connect() as client:
        await warm(house)
        await client.send("GET", "/api/events?since=0")
        assert (await client.head()).status == 200
        await trio.sleep(300.0)
        await house.ask("POST", CHAT, STREAM | {"user": "later"})
        said = b""
        while said.count(b'"complete"') < 2:
            event = await client.event()
            assert isinstance(event, h11.Data)
            said += bytes(event.data)
