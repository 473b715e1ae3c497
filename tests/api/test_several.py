"""Several completions in one request: each is a step of its own (S3, S6), and the client has one answer."""

import json
from collections.abc import Mapping

import pytest
import trio
from trio.testing import MockClock

from gridsched.api.decode import decode
from gridsched.api.routes import ROUTES
from gridsched.api.several import MOST_ANSWERS, MOST_PARTS, ONE, parts_of
from gridsched.control.problems import RequestError
from gridsched.ports import UpstreamFailureKind
from tests.support.fakes import EVENTS, Script
from tests.support.front import Answer, serving

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
NAME = {"model": "sim-chat-4b"}
SAID = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}


def cut(path: str, body: Mapping[str, object]) -> list[dict[str, object]]:
    """What each step's body has of its own."""
    request = decode(ROUTES[path], {}, json.dumps(body).encode())
    return [{key: json.loads(value) for key, value in part.items()} for part in parts_of(request).bodies({})]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, SAID),
        (CHAT, SAID | {"n": 1}),
        (CHAT, SAID | {"n": None, "n_cmpl": None}),
        (CHAT, SAID | {"n": 3, "n_cmpl": 1}),  # the engine's own word goes before
        (CHAT, SAID | {"n": 0}),
        (CHAT, SAID | {"n": True}),
        (CHAT, SAID | {"n": "2"}),  # the engine refuses it
        (CHAT, SAID | {"prompt": ["a", "b"]}),
        (COMPLETIONS, {"prompt": "a"}),
        (COMPLETIONS, {"prompt": ["a"]}),
        (COMPLETIONS, {"prompt": []}),
        (COMPLETIONS, {"prompt": [1, 2, 3]}),
        (COMPLETIONS, {"prompt": ["a", 7]}),  # one of mixed parts
        ("/tokenize", {"content": "a", "n": 5}),
    ],
)
def test_H2_a_request_for_one_completion_is_not_touched(path: str, body: dict[str, object]) -> None:
    """Nor one that the engine refuses."""
    assert cut(path, body) == [{}]
    assert parts_of(decode(ROUTES[path], {}, json.dumps(body).encode())) is ONE


def test_S3_each_prompt_and_each_answer_is_a_step() -> None:
    """In the order of the choices' indexes; a seed is another for each answer, because one seed gives one answer."""
    assert cut(CHAT, SAID | {"n": 2}) == [{"n": 1}, {"n": 1}]
    assert cut(CHAT, SAID | {"n_cmpl": 2.0, "n": None}) == [{"n": 1, "n_cmpl": 1}] * 2
    assert cut(COMPLETIONS, {"prompt": ["é", [1, 2], "é"]}) == [{"prompt": "é"}, {"prompt": [1, 2]}, {"prompt": "é"}]
    assert cut(COMPLETIONS, {"prompt": ["a", "b"], "n": 2, "seed": 7}) == [
        {"prompt": "a", "n": 1},
        {"prompt": "a", "n": 1, "seed": 8},
        {"prompt": "b", "n": 1},
        {"prompt": "b", "n": 1, "seed": 8},
    ]
    assert cut(CHAT, SAID | {"n": 2, "seed": -1}) == [{"n": 1}, {"n": 1}]
    assert cut(CHAT, SAID | {"n": 2, "seed": 2**32 - 1}) == [{"n": 1}, {"n": 1}]  # any
    assert cut(CHAT, SAID | {"n": 2, "seed": 2**32 - 2}) == [{"n": 1}, {"n": 1, "seed": 0}]
    virtual = parts_of(decode(ROUTES[CHAT], {}, json.dumps(SAID | {"n": 2}).encode())).bodies({"seed": b"5"})
    assert [body["seed"] for body in virtual] == [b"5", b"6"]


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (CHAT, SAID | {"n": MOST_ANSWERS + 1}, "n"),
        (CHAT, SAID | {"n": 1e300}, "n"),
        (COMPLETIONS, {"prompt": ["a"] * (MOST_PARTS // 2 + 1), "n": 2}, "prompt"),
        ("/v1/messages", SAID | {"n": 2}, "n"),
        ("/v1/responses", {"input": "a", "n_cmpl": 2}, "n_cmpl"),
        ("/infill", {"input_prefix": "a", "input_suffix": "b", "n": 2}, "n"),
    ],
)
def test_H1_more_completions_than_can_be_told_are_refused(path: str, body: dict[str, object], param: str) -> None:
    """Before any load: an engine would work for all of them, and give one."""
    with pytest.raises(RequestError) as caught:
        cut(path, body)
    assert (caught.value.problem.status, caught.value.problem.param) == (400, param)


async def test_S3_several_prompts_are_one_answer(autojump_clock: MockClock) -> None:
    """Under the first step's id, the choices by their order, and a prompt counts once for all its answers."""
    async with serving(autojump_clock) as house:
        body = NAME | {"prompt": ["a", "b c"], "n": 2, "max_tokens": 3, "gridsched": {"ttl": 60}}
        answer = await house.ask("POST", COMPLETIONS, body)
        assert (answer.status, answer.complete) == (200, True)
        assert [one["index"] for one in answer.json["choices"]] == [0, 1, 2, 3]  # type: ignore[attr-defined]  # JSON
        assert answer.json["usage"] == {"prompt_tokens": 3, "completion_tokens": 12, "total_tokens": 15}
        sent = [json.loads(asked.body) for asked in house.upstream.asked]
        assert [(one["prompt"], one["n"]) for one in sent] == [("a", 1), ("a", 1), ("b c", 1), ("b c", 1)]
        assert {(line["job"], line["steps"]) for line in house.logged("dispatch")} == {(1, 4)}


async def test_S6_a_chat_waits_for_one_prompt_of_many_at_most(autojump_clock: MockClock) -> None:
    """However many prompts a batch request has, never are more of them in the engine than it has slots for such work;
    left to itself it would have taken them all, and the chat's slot with them."""
    async with serving(autojump_clock) as house:

        async def batch() -> None:
            body = NAME | {"prompt": ["a"] * 8, "max_tokens": 60, "x_class": "batch"}
            answer = await house.ask("POST", COMPLETIONS, body)
            assert len(answer.json["choices"]) == 8  # type: ignore[arg-type]  # JSON

        async with trio.open_nursery() as nursery:
            nursery.start_soon(batch)
            await house.until_logged("dispatch", 3)
            chat = await house.ask("POST", CHAT, NAME | SAID)
            assert chat.status == 200
            assert len(house.logged("step")) < 5


def chunk(number: int, *, ends: bool = False) -> bytes:
    """An event of a stream of chat."""
    delta = {} if ends else {"content": str(number)}
    event = {"id": f"x{number}", "choices": [{"finish_reason": None, "index": 0, "delta": delta}]}
    return b"data: " + json.dumps(event).encode() + b"\n\n"


USED = b'data: {"id":"u","choices":[],"usage":{"prompt_tokens":5,"completion_tokens":2,"total_tokens":7}}\n\n'
DONE = b"data: [DONE]\n\n"


def told(answer: Answer) -> list[object]:
    """The data of a stream's events."""
    data = [event.removeprefix("data: ") for event in answer.body.decode().split("\n\n") if event.startswith("data: ")]
    return [one if one == "[DONE]" else json.loads(one) for one in data]


async def test_H3_several_streams_are_one(autojump_clock: MockClock) -> None:
    """One id, each choice under its index, one sum of what was used, and one end; events may come in pieces."""
    async with serving(autojump_clock) as house:
        whole = chunk(1) + USED + DONE
        house.upstream.scripts += [
            Script([chunk(0)[:9], chunk(0)[9:] + chunk(0, ends=True), USED, DONE], headers=EVENTS),
            Script([whole[index : index + 1] for index in range(len(whole))], headers=EVENTS),
        ]
        answer = await house.ask("POST", CHAT, NAME | SAID | {"n": 2, "stream": True})
        assert (answer.status, answer.complete) == (200, True)
        *chunks, usage, done = told(answer)
        assert done == "[DONE]"
        assert {one["id"] for one in (*chunks, usage)} == {"x0"}  # type: ignore[index]  # JSON
        assert [one["choices"][0]["index"] for one in chunks] == [0, 0, 1]  # type: ignore[index]  # JSON
        assert usage["usage"] == {"prompt_tokens": 5, "completion_tokens": 4, "total_tokens": 9}  # type: ignore[index]


ERROR = b'{"error":{"code":400,"message":"too long","type":"exceed_context_size_error","n_ctx":4096}}'
SMALL = b'{"id":"x","choices":[{"index":0,"text":"a"}],"usage":{"prompt_tokens":1,"completion_tokens":1}}'


async def test_H16_an_engines_refusal_of_one_prompt_is_the_answer(autojump_clock: MockClock) -> None:
    """H16: byte for byte and with its status, nothing partial, and no further prompt is asked; in a stream it is the
    last event."""
    async with serving(autojump_clock) as house:
        body = NAME | {"prompt": ["a", "b", "c"]}
        house.upstream.scripts += [Script([SMALL]), Script([ERROR], status=400)]
        answer = await house.ask("POST", COMPLETIONS, body)
        assert (answer.status, answer.body) == (400, ERROR)
        house.upstream.scripts += [Script([chunk(0), DONE], headers=EVENTS), Script([ERROR], status=400)]
        answer = await house.ask("POST", COMPLETIONS, body | {"stream": True})
        assert (answer.status, answer.body) == (200, chunk(0) + b"data: " + ERROR + b"\n\n")
        assert len(house.upstream.asked) == 4
        inside = b"data: " + ERROR + b"\n\n"
        house.upstream.scripts += [Script([inside], headers=EVENTS)]
        answer = await house.ask("POST", COMPLETIONS, body | {"stream": True})
        assert (answer.status, answer.body) == (200, inside)
        assert len(house.upstream.asked) == 5
        house.upstream.scripts += [Script([SMALL]), Script([b"{}"]), Script([SMALL])]
        answer = await house.ask("POST", COMPLETIONS, body)
        assert (answer.status, answer.error["code"]) == (502, "upstream_error")
        chat = await house.ask("POST", CHAT, NAME | SAID)
        assert chat.status == 200  # no slot was kept


async def test_P5_a_step_of_several_is_run_again_where_nothing_of_it_was_told(autojump_clock: MockClock) -> None:
    """P5: however much of it the engine had said, while nothing had gone down; a stream that has told of it is ended
    with an error."""
    broken = UpstreamFailureKind.BROKEN
    async with serving(autojump_clock) as house:
        body = NAME | {"prompt": ["a", "b"]}
        house.upstream.scripts += [Script([SMALL]), Script([SMALL[:20], broken]), Script([SMALL])]
        answer = await house.ask("POST", COMPLETIONS, body)
        assert (answer.status, len(answer.json["choices"])) == (200, 2)  # type: ignore[arg-type]  # JSON
        house.upstream.scripts += [Script([chunk(0), DONE], headers=EVENTS), Script([chunk(0), broken], headers=EVENTS)]
        answer = await house.ask("POST", COMPLETIONS, body | {"stream": True})
        last = told(answer)[-1]
        assert last["error"]["code"] == "upstream_error"  # type: ignore[index]  # JSON
        assert len(house.upstream.asked) == 5


async def test_what_is_kept_of_several_answers_is_bounded(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of them together: a 502, and the slot is free again. Of a stream no more is kept than an event may have."""
    monkeypatch.setattr("gridsched.api.reply.LONGEST_KEPT_BYTES", 2 * len(SMALL))
    monkeypatch.setattr("gridsched.api.several.LONGEST_EVENT_BYTES", 10)
    async with serving(autojump_clock) as house:
        body = NAME | {"prompt": ["a", "b", "c", "d"]}
        house.upstream.scripts += [Script([SMALL])] * 3
        answer = await house.ask("POST", COMPLETIONS, body)
        assert (answer.status, answer.error["code"]) == (502, "upstream_error")
        endless = [b"data: 12", b"345", b"6\n\n"]
        house.upstream.scripts += [Script(endless, headers=EVENTS)] * 4
        streamed = await house.ask("POST", COMPLETIONS, body | {"stream": True})
        assert streamed.body == b"".join(endless) * 4
        chat = await house.ask("POST", CHAT, NAME | SAID | {"n": 1})
        assert chat.status == 200
