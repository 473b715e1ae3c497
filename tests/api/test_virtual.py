"""Names over other models: one process for all, their defaults spliced into requests, what a client says wins."""

import json
import re
from dataclasses import replace

import pytest
import trio
from trio.testing import MockClock

from gridsched.api.decode import decode
from gridsched.api.routes import Route
from gridsched.api.splice import splice
from gridsched.api.virtual import shaped
from gridsched.cli import models
from gridsched.control.problems import RequestError
from gridsched.core.job import JobClass, JobKind
from gridsched.ports import VirtualEntry
from sim import build
from tests.support.front import serving

CHAT = "/v1/chat/completions"
HELLO: dict[str, object] = {"model": "reviewer", "messages": [{"role": "user", "content": "hi"}]}
REVIEWER = VirtualEntry(
    "reviewer",
    "gpt-4o-mini",
    aliases=("Critic",),
    system_prompt="Review.\n\u00e9",
    members={"temperature": b"0.20", "top_p": b"0.9"},
    max_tokens=8,
    default_class=JobClass.BACKGROUND,
    idle_ttl_seconds=120.0,
)
PLAIN = VirtualEntry("plain", "SIM-chat-4b")
SIZES = VirtualEntry("sizes", "sim-chat", system_prompt="Be brief.")
SYSTEM = '{"role":"system","content":"Review.\\n\u00e9"}'.encode()


def up(body: bytes, kind: JobKind = JobKind.CHAT, entry: VirtualEntry = REVIEWER) -> bytes:
    """The body that goes up to the base, but for its name."""
    request = decode(Route("/r", kind, None), {}, body)
    return splice(request.body, request.members, replaced=shaped(entry, request, {}), removed=())


ONLY_PROMPT = replace(REVIEWER, members={}, max_tokens=None)
PROMPTS = [
    (JobKind.CHAT, b'{"messages": [ {"a":"\\u00e9"} ], "n":1.0}', b'{"messages": [%s, {"a":"\\u00e9"} ], "n":1.0}'),
    (JobKind.CHAT, b'{"messages":[ ]}', b'{"messages":[%s ]}'),
    (JobKind.CHAT, b'{"messages":[{"role":"system","content":""}]}', None),
    (JobKind.CHAT, b'{"messages":[{"role":"user","content":"a"},{"role":"developer","content":"b"}]}', None),
    (JobKind.CHAT, b'{"messages":[5]}', b'{"messages":[%s,5]}'),
    (JobKind.TEMPLATE, b'{"messages":[{}]}', b'{"messages":[%s,{}]}'),
    (JobKind.COMPLETION, b'{"prompt":"a"}', None),
    (JobKind.INFILL, b'{"input_prefix":"a"}', None),
    (JobKind.RESPONSES, b'{"input":"a"}', b'{"instructions":"Review.\\n\xc3\xa9","input":"a"}'),
    (JobKind.RESPONSES, b'{"input":"a","instructions":null}', b'{"input":"a","instructions":"Review.\\n\xc3\xa9"}'),
    (JobKind.RESPONSES, b'{"input":"a","instructions":""}', None),
    (JobKind.RESPONSES, b'{"input":[{"role":"system","content":"b"}]}', None),
    (JobKind.MESSAGES, b'{"messages":[]}', b'{"system":"Review.\\n\xc3\xa9","messages":[]}'),
    (JobKind.MESSAGES, b'{"messages":[],"system":[{"type":"text","text":"b"}]}', None),
    (JobKind.COUNT_TOKENS, b'{"messages":[]}', b'{"system":"Review.\\n\xc3\xa9","messages":[]}'),
    (JobKind.TOKENIZE, b'{"content":"a"}', None),
    (JobKind.EMBEDDINGS, b'{"input":"a"}', None),
]


@pytest.mark.parametrize(("kind", "body", "expected"), PROMPTS)
def test_H2_the_systems_words_are_spliced_in_where_the_client_has_none(
    kind: JobKind, body: bytes, expected: bytes | None
) -> None:
    """As each protocol has them, and every other byte as it came."""
    assert up(body, kind, ONLY_PROMPT) == (expected or body).replace(b"%s", SYSTEM)


GENERATING = [JobKind.CHAT, JobKind.COMPLETION, JobKind.INFILL, JobKind.RESPONSES, JobKind.MESSAGES]


@pytest.mark.parametrize("kind", GENERATING)
def test_defaults_are_added_and_the_clients_own_values_win(kind: JobKind) -> None:
    """Digit for digit; what is null is not said."""
    entry = replace(REVIEWER, system_prompt=None, max_tokens=None)
    assert up(b'{"top_p":1.0, "temperature":null,"a":"b"}', kind, entry) == b'{"top_p":1.0, "temperature":0.20,"a":"b"}'
    assert up(b'{"a":"b"}', kind, entry) == b'{"temperature":0.20,"top_p":0.9,"a":"b"}'


@pytest.mark.parametrize("kind", sorted(set(JobKind) - set(GENERATING), key=str))
def test_defaults_are_for_what_generates(kind: JobKind) -> None:
    """Nothing else is asked for with a temperature."""
    assert up(b'{"a":"b"}', kind, replace(REVIEWER, system_prompt=None)) == b'{"a":"b"}'


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [("grammar", "response_format"), ("json_schema", "grammar"), ("stop", "stop_sequences"), ("stop", "stop")],
)
def test_a_default_yields_to_what_says_the_same_in_other_words(ours: str, theirs: str) -> None:
    """The engine refuses two grammars in one request."""
    entry = VirtualEntry("v", "b", members={ours: b'"ours"', "seed": b"1"})
    assert json.loads(up(json.dumps({theirs: "theirs"}).encode(), entry=entry)) == {"seed": 1, theirs: "theirs"}


BOUNDS = [
    (JobKind.CHAT, {}, {"max_tokens": 8}),
    (JobKind.CHAT, {"max_tokens": 8}, {"max_tokens": 8}),
    (JobKind.CHAT, {"max_tokens": 5.5}, {"max_tokens": 5.5}),
    (JobKind.CHAT, {"max_tokens": 9}, {"max_tokens": 8}),
    (JobKind.CHAT, {"max_tokens": -1}, {"max_tokens": 8}),
    (JobKind.CHAT, {"max_tokens": None}, {"max_tokens": 8}),
    (JobKind.CHAT, {"max_tokens": 10**30}, {"max_tokens": 8}),
    (JobKind.CHAT, {"max_completion_tokens": 3}, {"max_completion_tokens": 3}),
    (JobKind.CHAT, {"max_completion_tokens": 30, "n_predict": -2}, {"max_completion_tokens": 8, "n_predict": 8}),
    (JobKind.CHAT, {"max_output_tokens": 3}, {"max_output_tokens": 3, "max_tokens": 8}),
    (JobKind.COMPLETION, {"n_predict": 99, "max_tokens": 1}, {"n_predict": 8, "max_tokens": 1}),
    (JobKind.INFILL, {}, {"n_predict": 8}),
    (JobKind.RESPONSES, {}, {"max_output_tokens": 8}),
    (JobKind.RESPONSES, {"max_output_tokens": 99}, {"max_output_tokens": 8}),
    (JobKind.RESPONSES, {"max_tokens": 99}, {"max_tokens": 8}),
    (JobKind.MESSAGES, {"max_tokens": 4096}, {"max_tokens": 8}),
    (JobKind.MESSAGES, {"n_predict": 3}, {"n_predict": 3, "max_tokens": 8}),
]


@pytest.mark.parametrize(("kind", "said", "goes_up"), BOUNDS)
def test_a_bound_is_lowered_wherever_the_engine_heeds_it(
    kind: JobKind, said: dict[str, object], goes_up: dict[str, object]
) -> None:
    """And ours is there where the client names none that counts."""
    entry = VirtualEntry("v", "b", max_tokens=8)
    assert json.loads(up(json.dumps(said).encode(), kind, entry)) == goes_up


@pytest.mark.parametrize("bound", ['"5"', "true", "[]", "{}"])
def test_H1_a_bound_that_is_no_number_is_a_400(bound: str) -> None:
    """The engine would take it for none at all."""
    with pytest.raises(RequestError) as caught:
        up(b'{"max_completion_tokens":%s}' % bound.encode())
    assert (caught.value.problem.status, caught.value.problem.param) == (400, "max_completion_tokens")


def test_H2_edits_that_were_made_before_are_kept() -> None:
    """Our words go in front of messages that something else has changed."""
    body = b'{"model":"v","messages":[{"role":"user","content":"URL"}]}'
    request = decode(Route("/r", JobKind.CHAT, None), {}, body)
    before = {"messages": b'[{"role":"user","content":"DATA"}]', "n": b"1"}
    made = shaped(ONLY_PROMPT, request, before)
    assert made == {"messages": b'[%s,{"role":"user","content":"DATA"}]' % SYSTEM, "n": b"1"}


# --- through the server -----------------------------------------------------------------------------------------------


VIRTUALS = (REVIEWER, PLAIN, SIZES)


async def test_names_over_one_model_share_its_process(autojump_clock: MockClock) -> None:
    """Loaded once; the header, the answer, the log and the metrics name the base, and the engine gets the defaults."""
    async with serving(autojump_clock, world=build(virtuals=VIRTUALS)) as house:
        first = await house.ask("POST", CHAT, HELLO | {"temperature": 1, "max_tokens": 100})
        second = await house.ask("POST", CHAT, HELLO | {"model": "PLAIN", "stream": True, "max_tokens": 2})
        third = await house.ask("POST", CHAT, HELLO | {"model": "sim-chat-4b", "max_tokens": 2})
        assert [each.status for each in (first, second, third)] == [200, 200, 200]
        assert {each.headers["x-gridsched-model"] for each in (first, second, third)} == {"sim-chat-4b"}
        assert first.json["model"] == "sim-chat-4b"
        assert first.json["usage"]["completion_tokens"] == 8  # type: ignore[index]  # JSON
        assert len(house.logged("load")) == 1
        bodies = [json.loads(asked.body) for asked in house.upstream.asked]
        assert bodies[0] == {
            "top_p": 0.9,
            "model": "sim-chat-4b",
            "messages": [{"role": "system", "content": "Review.\n\u00e9"}, *HELLO["messages"]],  # type: ignore[misc]  # JSON
            "temperature": 1,
            "max_tokens": 8,
        }
        assert bodies[1] == HELLO | {"model": "sim-chat-4b", "stream": True, "max_tokens": 2}
        metrics = (await house.ask("GET", "/metrics")).body.decode()
        assert 'model="sim-chat-4b"' in metrics
        assert "reviewer" not in metrics


@pytest.mark.parametrize(
    ("said", "job_class"),
    [
        ({}, "background"),
        ({"model": "critic@batch"}, "batch"),
        ({"service_tier": "priority"}, "interactive"),
        ({"x_class": "interactive"}, "interactive"),
        ({"model": "plain"}, "interactive"),
    ],
)
async def test_its_class_stands_where_a_models_class_stands(
    autojump_clock: MockClock, said: dict[str, object], job_class: str
) -> None:
    """Behind whatever the request says."""
    async with serving(autojump_clock, world=build(virtuals=VIRTUALS)) as house:
        answer = await house.ask("POST", CHAT, HELLO | said)
        assert (answer.status, answer.headers["x-gridsched-class"]) == (200, job_class)


@pytest.mark.parametrize(
    ("said", "seconds"),
    [({}, 120.0), ({"keep_alive": "1m"}, 60.0), ({"ttl": 0}, 120.0), ({"model": "plain"}, None)],
)
async def test_R6_its_ttl_moves_the_bases_timer(
    autojump_clock: MockClock, said: dict[str, object], seconds: float | None
) -> None:
    """Unless the request says how long; without one the base's own holds, which is for ever here."""
    async with serving(autojump_clock, world=build(virtuals=VIRTUALS)) as house:
        await house.ask("POST", CHAT, HELLO | said)
        ended = trio.current_time()
        with trio.move_on_after(200):
            await house.until_logged("stop")
        gone = [line for line in house.logged("stop") if line["rule"] == "R6"]
        assert len(gone) == (seconds is not None)
        if seconds is not None:
            assert seconds <= trio.current_time() - ended < seconds + 1


async def test_a_name_over_a_family_gets_its_variants(autojump_clock: MockClock) -> None:
    """R10, with the wishes for quality, and the words for the system whichever answers."""
    async with serving(autojump_clock, world=build(virtuals=VIRTUALS)) as house:
        await house.ask("POST", CHAT, HELLO | {"model": "sim-chat-2b"})
        for wish, name in ({}, "sim-chat-2b"), ({"quality": "preferred"}, "sim-chat-12b"):
            answer = await house.ask("POST", CHAT, HELLO | {"model": "sizes", "gridsched": wish})
            assert (answer.status, answer.headers["x-gridsched-model"]) == (200, name)
            assert json.loads(house.upstream.asked[-1].body)["messages"][0]["content"] == "Be brief."


async def test_H1_what_its_base_cannot_do_is_a_400(autojump_clock: MockClock) -> None:
    """Nothing is loaded for it, nor for a bound that is no number."""
    async with serving(autojump_clock, world=build(virtuals=VIRTUALS)) as house:
        refused = await house.ask("POST", "/v1/embeddings", {"model": "plain", "input": "a"})
        assert (refused.status, refused.error["code"]) == (400, "model_not_supported")
        wrong = await house.ask("POST", CHAT, HELLO | {"max_tokens": "many"})
        assert (wrong.status, wrong.error["code"], wrong.error["param"]) == (400, "invalid_request", "max_tokens")
        assert not house.logged("enqueue")


async def test_they_are_listed_with_their_base_and_how_it_stands(autojump_clock: MockClock) -> None:
    """In OpenAI's list behind all others, alone under any name, and among the figures; the words themselves nowhere."""
    async with serving(autojump_clock, world=build(virtuals=VIRTUALS)) as house:
        listed = (await house.ask("GET", "/v1/models")).json["data"]
        assert isinstance(listed, list)
        assert [each["id"] for each in listed[-4:]] == ["sim-chat", "reviewer", "plain", "sizes"]
        facts = listed[-3]["gridsched"]
        assert (facts["base"], facts["state"], facts["aliases"]) == ("sim-chat-4b", "cold", ["Critic"])
        assert facts["capabilities"] == ["chat", "completion", "vision"]
        assert facts["virtual"] == {
            "system_prompt": True,
            "members": {"temperature": 0.2, "top_p": 0.9},
            "max_tokens": 8,
            "class": "background",
            "idle_ttl_s": 120.0,
        }
        assert listed[-1]["gridsched"]["variants"]["compact"] == "sim-chat-2b"
        await house.ask("POST", CHAT, HELLO)
        one = (await house.ask("GET", "/v1/models/CRITIC")).json
        assert (one["id"], one["gridsched"]["state"]) == ("reviewer", "ready")  # type: ignore[index]  # JSON
        told = (await house.ask("GET", "/api/models")).json["models"]
        assert isinstance(told, list)
        assert [each["id"] for each in told[-3:]] == ["reviewer", "plain", "sizes"]
        shown = "\n".join("  ".join(row) for row in models.models({"models": told}))
        assert re.search(r"reviewer +ready +served by sim-chat-4b +- +- +-", shown)
        alone = (await house.ask("GET", "/api/models/reviewer")).json
        assert (alone["id"], alone["base"], alone["state"]) == ("reviewer", "sim-chat-4b", "ready")
        planned = await house.ask("GET", "/api/models/reviewer/plan")
        assert (planned.status, planned.json["model"]) == (200, "sim-chat-4b")
        for path in ("/v1/models", "/api/models"):
            assert b"Review." not in (await house.ask("GET", path)).body


async def test_H5_a_name_like_one_of_theirs_is_told(autojump_clock: MockClock) -> None:
    """404 with the closest."""
    async with serving(autojump_clock, world=build(virtuals=VIRTUALS)) as house:
        refused = await house.ask("POST", CHAT, HELLO | {"model": "reviewers"})
        assert (refused.status, refused.error["code"]) == (404, "model_not_found")
        assert "reviewer" in json.dumps(refused.error["gridsched"])
