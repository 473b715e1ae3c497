"""Families over HTTP (R10): one name is asked for, a variant answers and is named, and what cannot be is a real 4xx."""

import json

import pytest
from trio.testing import MockClock

from gridsched.api.media import media_of
from gridsched.core.job import NO_MEDIA, JobKind, Medium
from tests.api.test_decode import HELLO as BODY
from tests.api.test_decode import read
from tests.support.front import serving

CHAT = "/v1/chat/completions"
HELLO = {"model": "sim-chat", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
PICTURE = [{"role": "user", "content": [{"type": "text", "text": "what is it?"}, IMAGE]}]


async def test_R10_a_family_is_answered_by_a_variant_and_the_header_names_it(autojump_clock: MockClock) -> None:
    """The engine is told the variant's name, the rest of the body is the client's."""
    async with serving(autojump_clock) as house:
        answer = await house.ask("POST", CHAT, HELLO | {"model": "SIM-Chat", "gridsched": {"quality": "compact"}})
        assert (answer.status, answer.headers["x-gridsched-model"]) == (200, "sim-chat-12b")
        assert answer.json["model"] == "sim-chat-12b"
        (asked,) = house.upstream.asked
        assert json.loads(asked.body) == HELLO | {"model": "sim-chat-12b"}
        (line,) = house.logged("enqueue")
        assert (line["model"], line["rule"], line["family"]) == ("sim-chat-12b", "R10", "sim-chat")
        metrics = (await house.ask("GET", "/metrics")).body.decode()
        assert 'gridsched_requests_total{class="interactive",code="200"' in metrics
        assert 'model="sim-chat"' not in metrics


async def test_R10_a_streamed_answer_names_its_variant(autojump_clock: MockClock) -> None:
    """Its head waits for the grant."""
    async with serving(autojump_clock) as house:
        await house.ask("POST", CHAT, HELLO | {"model": "sim-chat-2b"})  # people are on the small one
        answer = await house.ask("POST", CHAT, HELLO | {"stream": True})
        assert (answer.status, answer.headers["x-gridsched-model"]) == (200, "sim-chat-2b")
        better = await house.ask("POST", CHAT, HELLO | {"gridsched": {"quality": "Balanced"}})
        assert better.headers["x-gridsched-model"] == "sim-chat-12b"


async def test_R10_an_image_goes_to_the_variant_that_takes_it(autojump_clock: MockClock) -> None:
    """And one for which none will do is a 400 before the first byte, streamed or not."""
    async with serving(autojump_clock) as house:
        await house.ask("POST", CHAT, HELLO)
        answer = await house.ask("POST", CHAT, HELLO | {"messages": PICTURE})
        assert (answer.status, answer.headers["x-gridsched-model"]) == (200, "sim-chat-4b")
        for stream in (False, True):
            wish = {"messages": PICTURE, "gridsched": {"quality": "preferred"}, "stream": stream}
            refused = await house.ask("POST", CHAT, HELLO | wish)
            assert (refused.status, refused.error["code"]) == (400, "model_not_supported")
            assert "sim-chat" in str(refused.error["message"])


async def test_R10_embeddings_of_a_family_are_a_400(autojump_clock: MockClock) -> None:
    """It does not embed; nothing is queued for it."""
    async with serving(autojump_clock) as house:
        refused = await house.ask("POST", "/v1/embeddings", {"model": "sim-chat", "input": "a"})
        assert (refused.status, refused.error["code"]) == (400, "model_not_supported")
        assert not house.logged("enqueue")


async def test_R10_a_family_is_listed_with_its_variants(autojump_clock: MockClock) -> None:
    """In the list behind the models, and by itself, with the state of the variant that is nearest to serving."""
    async with serving(autojump_clock) as house:
        family = (await house.ask("GET", "/v1/models")).json["data"][-1]  # type: ignore[index]  # JSON
        assert (family["id"], family["object"], family["owned_by"]) == ("sim-chat", "model", "gridsched")
        facts = family["gridsched"]
        assert facts["variants"] == {
            "preferred": "sim-chat-12b",
            "balanced": "sim-chat-4b",
            "compact": "sim-chat-2b",
        }
        assert (facts["state"], facts["fits"], facts["capabilities"]) == ("cold", "now", ["chat", "completion"])
        await house.ask("POST", CHAT, HELLO | {"model": "sim-chat-2b"})
        one = (await house.ask("GET", "/v1/models/SIM-CHAT")).json["gridsched"]
        assert isinstance(one, dict)
        assert (one["state"], one["parallel"]) == ("ready", 4)


async def test_R10_a_name_like_a_familys_is_told_the_family(autojump_clock: MockClock) -> None:
    """H5."""
    async with serving(autojump_clock) as house:
        refused = await house.ask("POST", CHAT, HELLO | {"model": "sim-chatt"})
        assert refused.status == 404
        assert "sim-chat" in str(refused.error["message"])


@pytest.mark.parametrize(
    ("messages", "found"),
    [
        (PICTURE, {Medium.IMAGE}),
        ([{"role": "user", "content": [{"type": "input_audio", "input_audio": {}}, IMAGE]}], set(Medium)),
        ([{"role": "user", "content": [{"type": "input_video", "input_video": {}}]}], {Medium.IMAGE}),
        ([{"role": "user", "content": 'say "image_url"'}], set()),
        ([{"role": "user", "content": [{"type": "text", "text": '"image_url"'}]}], set()),
        ([{"role": "user", "image_url": 1}, {"role": "user", "content": "x"}], set()),
        ([{"role": "assistant", "content": None}, *PICTURE], {Medium.IMAGE}),
        (["image_url", 5, IMAGE], set()),
        ([{"content": ["image_url", {"type": ["image_url"]}]}], set()),
    ],
)
def test_R10_what_a_chat_brings_is_read_off_its_parts(messages: list[object], found: set[Medium]) -> None:
    """Not off words in its text; what has another shape is for the engine to judge."""
    assert media_of(read(BODY | {"messages": messages})) == found


def test_R10_a_part_is_known_however_its_type_is_written() -> None:
    """With an escape too: for the engine it is the same."""
    body = json.dumps(BODY | {"messages": PICTURE}).replace("image_url", "image\\u005furl").encode()
    assert media_of(read(body)) == {Medium.IMAGE}


def test_R10_a_completion_brings_text() -> None:
    """It has no parts."""
    request = read({"model": "m", "prompt": '"image_url"'}, kind=JobKind.COMPLETION)
    assert media_of(request) == NO_MEDIA
