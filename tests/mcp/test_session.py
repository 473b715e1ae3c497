"""The session of the README, call by call."""

import json
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from sim import build
from tests.mcp.clients import MODES, connected, leaves_generators_behind, url_of
from tests.support.front import ADMIN_WORD, House, serving

pytestmark = leaves_generators_behind

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
SESSION = README.partition("## A session")[2].partition("```text")[2].partition("```")[0]
CARDS = (12 * 2**30, 9 * 2**29)


def has(told: Any, wanted: Any) -> bool:
    """Whether an answer says what is wanted of it; each wanted part of a list is one of its parts."""
    if wanted == "…":
        return bool(told)
    if isinstance(wanted, dict):
        return isinstance(told, dict) and all(has(told.get(name), value) for name, value in wanted.items())
    if isinstance(wanted, list):
        return (
            isinstance(told, list)
            and (wanted != [] or told == [])
            and all(any(has(each, value) for each in told) for value in wanted)
        )
    return bool(told == wanted)


def filled(words: str, last: Any) -> Any:
    """The arguments of a call, with values of the answer before put in."""
    given = json.loads(words)
    return {
        name: last[value.removeprefix("$")] if isinstance(value, str) and value.startswith("$") else value
        for name, value in given.items()
    }


async def ask_a_model(house: House, words: str, answered: trio.Event) -> None:
    """Somebody else's request."""
    answer = await house.ask("POST", "/v1/chat/completions", json.loads(words))
    assert answer.status == 200, answer.body
    answered.set()


@pytest.mark.parametrize("mode", MODES)
async def test_the_readmes_session_is_what_happens(autojump_clock: MockClock, mode: str) -> None:
    """Every call of it, and every part of an answer that it shows."""
    last: Any = None
    calls = 0
    async with (
        serving(autojump_clock, world=build(cards=CARDS)) as house,
        connected(url_of(house), mode, ADMIN_WORD) as client,
        trio.open_nursery() as nursery,
    ):
        answered = trio.Event()
        for line in SESSION.splitlines():
            kind, _, words = line.partition(" ")
            match kind:
                case ">":
                    name, _, given = words.partition(" ")
                    told = await client.call_tool(name, filled(given, last))
                    assert not told.is_error, told
                    last, calls = told.structured_content, calls + 1
                case "<":
                    assert has(last, json.loads(words)), f"{words} is not in {last}"
                case "~" if words == "answered":
                    with trio.fail_after(60):
                        await answered.wait()
                case "~":
                    nursery.start_soon(ask_a_model, house, words, answered)
                    await house.until_logged("enqueue")
    assert calls == 13


def test_an_answer_that_lacks_something_is_seen() -> None:
    """The comparison can fail."""
    assert has({"a": [{"b": 1, "c": 2}]}, {"a": [{"b": 1}]})
    for told, wanted in (
        ({}, {"a": "…"}),
        ({"a": [1]}, {"a": []}),
        ({"a": [{"b": 1}]}, {"a": [{"b": 2}]}),
        (1, {"a": 1}),
    ):
        assert not has(told, wanted)
