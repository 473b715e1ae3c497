"""Secrets are known by where they stand, or by how they look; the rest is left as it is."""

from dataclasses import replace

import msgspec
import pytest
from trio.testing import MockClock

from gridsched.control.asker import Asker
from gridsched.control.authority import NOBODY
from gridsched.control.consent import consequences
from gridsched.control.masking import is_hidden, masked, masked_argv, masked_sentence
from gridsched.control.services import Services
from gridsched.control.verb import Call, Consequences, Nothing
from gridsched.control.verbs import BY_NAME
from gridsched.settings.api_keys import new_secret
from tests.support.front import ADMIN_WORD, serving

MARKER = "a-secret-word"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--api-key", "s", "-fa", "on"], ["--api-key", "[hidden]", "-fa", "on"]),
        (["--api-key=s"], ["--api-key=[hidden]"]),
        (["-hft", "s", "--hf-token", "s"], ["-hft", "[hidden]", "--hf-token", "[hidden]"]),
        (["--n-predict", "5", "--max-tokens", "6"], ["--n-predict", "5", "--max-tokens", "6"]),
        (["--model-url", "https://u:p@host/m"], ["--model-url", "https://[hidden]@host/m"]),
    ],
)
def test_a_command_line_is_shown_without_its_secrets(words: list[str], told: list[str]) -> None:
    """As two words or one, and in a URL; what only sounds like one is shown."""
    assert masked_argv(words) == told


def test_a_structure_is_shown_without_its_secrets() -> None:
    """Environments whole, whatever a variable is called; arguments by their names."""
    value = {
        "models": {"m": {"env": {"A": "x", "B": None}, "flags": "-fa on --api-key 'a b'", "limits": {"max_tokens": 5}}},
        "token": "x",
        "hf_token": "x",
        "name": "agent",
        "url": "http://me@host/",
        "keys": ["a"],
    }
    assert masked(value) == {
        "models": {
            "m": {
                "env": {"A": "[hidden]", "B": None},
                "flags": "-fa on --api-key [hidden]",
                "limits": {"max_tokens": 5},
            }
        },
        "token": "[hidden]",
        "hf_token": "[hidden]",
        "name": "agent",
        "url": "http://[hidden]@host/",
        "keys": ["a"],
    }
    assert is_hidden(masked(value))
    assert not is_hidden({"name": ["agent", 5, None]})


def test_a_sentence_is_left_alone() -> None:
    """Names of variables among it."""
    sentence = "HF_TOKEN_FILE: the key admin lacks the scope for this"
    assert masked_sentence(sentence) == sentence


@pytest.mark.parametrize(
    "said",
    [
        {"env": {"X": MARKER}},
        {"env": MARKER},
        {"env": [MARKER]},
        {"models": {"tiny": {"env": [{"X": MARKER}]}}},
        {"hf_token": MARKER},
        {"flags": ["--api-key", MARKER]},
        {"url": f"https://tom:{MARKER}@hub.example/x"},
    ],
)
def test_H6_a_secret_is_hidden_however_wrongly_it_is_given(said: object) -> None:
    """What is refused is in the audit log, too, as it came."""
    assert MARKER not in str(masked(said))


def test_H6_a_key_where_a_name_was_wanted_is_not_written_down() -> None:
    """As in `DELETE /api/keys/SECRET`."""
    secret = new_secret()
    assert secret not in str(masked({"name": secret}))
    assert secret not in masked_sentence(f"there is no key {secret!r}")
    assert masked_sentence("tags-and-args-of-a-model") == "tags-and-args-of-a-model"


async def test_H6_what_a_plan_must_still_find_is_not_told() -> None:
    """It may be the whole configuration with the environments of its processes."""

    async def plan(_: Services, __: Nothing, ___: Call) -> Consequences:
        return Consequences(text="It goes.", harms=True, essence=f"env: {MARKER}")

    verb = replace(BY_NAME["set_config"], plan=plan)
    told = [await consequences(None, verb, Nothing(), Call(Asker(NOBODY))) for _ in range(2)]  # type: ignore[arg-type]  # it asks nothing of the server
    assert MARKER not in msgspec.json.encode(told).decode()
    assert told[0].essence == told[1].essence != ""


async def test_H6_arguments_without_end_are_refused_before_anybody_walks_through_them(
    autojump_clock: MockClock,
) -> None:
    """By REST and as a tool; else the walk through them fails, and the answer is a 500."""
    deep: dict[str, object] = {}
    for _ in range(900):
        deep = {"a": deep}
    async with serving(autojump_clock) as house:
        who = {"Authorization": f"Bearer {ADMIN_WORD}"}
        answer = await house.ask("PATCH", "/api/config", {"set": deep}, who)
        assert (answer.status, answer.error["code"]) == (400, "invalid_request")
        assert (await house.ask("PATCH", "/api/config", {"set": deep})).status == 403
