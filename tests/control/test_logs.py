"""`GET /api/logs/{model}`: what engines and the server itself have printed."""

import logging

import pytest
from trio.testing import MockClock

from gridsched.control import own_log
from gridsched.control.own_log import OwnLog
from tests.support.front import serving

CHAT = "/v1/chat/completions"
HELLO = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}


async def test_a_models_log_is_told_by_any_name_and_after_its_end(autojump_clock: MockClock) -> None:
    """The last lines; nothing yet of one that was never started."""
    async with serving(autojump_clock) as house:
        assert (await house.ask("GET", "/api/logs/sim-embed")).json == {"model": "sim-embed", "lines": []}
        await house.ask("POST", CHAT, HELLO | {"model": "gpt-4o"})
        await house.ask("POST", "/api/models/gpt-4o/unload?wait=100")
        await house.until_logged("released")
        told = (await house.ask("GET", "/api/logs/gpt-4o")).json
        assert told == {
            "model": "sim-chat-12b",
            "lines": ["loading model sim-chat-12b", "server is listening"],
        }
        assert (await house.ask("GET", "/api/logs/gpt-4o?lines=1")).json["lines"] == ["server is listening"]


@pytest.mark.parametrize(
    ("target", "status", "param"),
    [
        ("sim-embed?lines=0", 400, "lines"),
        ("sim-embed?lines=5001", 400, "lines"),
        ("sim-embed?lines=1.5", 400, "lines"),
        ("sim-embeds", 404, "model"),
        ("..%2F..%2Fetc%2Fpasswd", 404, "model"),
        ("gateway", 404, None),
    ],
)
async def test_a_log_that_is_none_is_refused(
    autojump_clock: MockClock, target: str, status: int, param: str | None
) -> None:
    """Also that of a server which keeps none of its own words."""
    async with serving(autojump_clock) as house:
        answer = await house.ask("GET", f"/api/logs/{target}")
        assert (answer.status, answer.error["param"]) == (status, param)


def test_our_own_words_are_kept_without_secrets_and_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The newest ones; a traceback line by line; a warning that cannot be put together breaks nothing."""
    monkeypatch.setattr(logging, "raiseExceptions", False)
    kept, log = OwnLog(), logging.getLogger("gridsched.tests.own")
    log.propagate = False
    log.addHandler(kept)
    log.warning("the file %s has api_key=sk-abcdefghijklmnopqrstuvwxyz", "a.yaml")
    log.warning("%d", "no number")
    log.error("it failed", exc_info=ValueError("x" * 5000))
    lines = kept.last(own_log.KEPT_LINES)
    assert "WARNING gridsched.tests.own: the file a.yaml has api_key=" in lines[0]
    assert "sk-abc" not in lines[0]
    assert "ERROR gridsched.tests.own: it failed" in lines[1]
    assert lines[2].startswith("ValueError: xxx")
    assert max(map(len, lines)) == own_log.LONGEST_LINE
    for number in range(own_log.KEPT_LINES + 1):
        log.warning("%d", number)
    assert len(kept.last(own_log.KEPT_LINES + 1)) == own_log.KEPT_LINES
    assert kept.last(1)[0].endswith(str(own_log.KEPT_LINES))
