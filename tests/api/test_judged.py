"""An engine's 500 for what is wrong with the request is a 400 (H1); any other passes as it is (H2)."""

import json

import pytest
from trio.testing import MockClock

from gridsched.api.judged import LONGEST_ERROR_BYTES, fault_of_client
from gridsched.api.settings import FrontSettings
from tests.api.test_sse import CHAT, STREAM, errors, warm
from tests.support.fakes import Script
from tests.support.front import serving

WORDS = "Failed to parse tools: Expected 'tools' to be an array, got 5; tools = 5"
PLAIN = STREAM | {"stream": False}


def said(words: str) -> bytes:
    """An engine's error."""
    return json.dumps({"error": {"code": 500, "message": words, "type": "server_error"}}).encode()


@pytest.mark.parametrize(
    "content",
    [said("Compute error."), said(f"it {WORDS}"), b"", b"oops", b"[]", b'{"error":5}', b'{"error":{"message":null}}'],
)
def test_H2_what_is_not_known_to_be_the_clients_fault_is_not_judged(content: bytes) -> None:
    """Whatever form it has."""
    assert fault_of_client(content) is None


@pytest.mark.parametrize("stream", [False, True])
async def test_H1_an_engines_500_about_the_request_is_a_400(autojump_clock: MockClock, *, stream: bool) -> None:
    """However it comes, with the engine's sentence, and clients are told not to repeat it. Another 500 passes."""
    async with serving(autojump_clock) as house:
        content = said(WORDS)
        house.upstream.scripts += [Script([content[:9], content[9:]], status=500), Script([said("Oh")], status=500)]
        answer = await house.ask("POST", CHAT, STREAM | {"stream": stream})
        assert (answer.status, answer.complete) == (400, True)
        assert (answer.error["code"], answer.error["message"]) == ("invalid_request", WORDS)
        assert answer.headers["x-should-retry"] == "false"
        other = await house.ask("POST", CHAT, STREAM | {"stream": stream})
        assert (other.status, other.body) == (500, said("Oh"))


async def test_H1_a_500_about_the_request_after_the_head_is_an_error_frame(autojump_clock: MockClock) -> None:
    """With the code of a bad request, once; another's frame is the engine's own."""
    async with serving(autojump_clock, figures=FrontSettings(hold_seconds=1.0)) as house:
        await warm(house)
        house.upstream.scripts += [Script([said(words)], status=500, head_seconds=3.0) for words in (WORDS, "Oh")]
        answer = await house.ask("POST", CHAT, STREAM)
        assert (answer.status, [error["code"] for error in errors(answer)]) == (200, ["invalid_request"])
        other = await house.ask("POST", CHAT, STREAM)
        assert [error["message"] for error in errors(other)] == ["Oh"]


async def test_H2_what_is_longer_than_an_error_is_not_held_back(autojump_clock: MockClock) -> None:
    """It passes whole."""
    async with serving(autojump_clock) as house:
        long = said(WORDS + "x" * LONGEST_ERROR_BYTES)
        house.upstream.scripts += [Script([long[:50], long[50:]], status=500)]
        answer = await house.ask("POST", CHAT, PLAIN)
        assert (answer.status, answer.body) == (500, long)
