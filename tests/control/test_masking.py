"""Secrets are known by where they stand, or by how they look; the rest is left as it is."""

import pytest

from gridsched.control.masking import is_hidden, masked, masked_argv, masked_sentence


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
