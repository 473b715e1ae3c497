"""LiteLLM's SDK, in an environment of its own, against a running gateway with the real engine and real models."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support.gateway import Gateway

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
PYTHON = ROOT / ".cache/clients/litellm/bin/python"
PROGRAM = Path(__file__).with_name("litellm_program.py")


@pytest.fixture(scope="module")
def said(server: Gateway) -> dict[str, Any]:
    """What one run of the program brought."""
    assert PYTHON.exists(), "make .cache/clients/litellm/made"
    # LiteLLM reads its list of prices from its package and not from the network.
    env = {**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True", "PYTHONPATH": ""}
    done = subprocess.run(
        [PYTHON, PROGRAM, server.url], env=env, capture_output=True, text=True, check=False, timeout=180
    )
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


@pytest.mark.shows("litellm", "chat", "stream")
def test_a_chat_is_answered_whole_and_in_pieces(said: dict[str, Any]) -> None:
    """Text both ways."""
    assert said["chat"]
    assert len([piece for piece in said["stream"] if piece]) > 2


@pytest.mark.shows("litellm", "tools", "schema")
def test_tools_and_schemas_go_through(said: dict[str, Any]) -> None:
    """`tool_choice="required"`, and `response_format` of type `json_schema`."""
    assert said["tool"] == "weather"
    assert isinstance(json.loads(said["schema"])["large"], bool)


@pytest.mark.shows("litellm", "embeddings")
def test_inputs_are_embedded(said: dict[str, Any]) -> None:
    """`embedding()`."""
    assert said["embeddings"] == [384, 384]


@pytest.mark.shows("litellm", "responses")
def test_the_responses_api_and_anthropic_s_are_spoken(said: dict[str, Any]) -> None:
    """`responses()`, and a model behind the prefix `anthropic/`."""
    assert said["responses"]
    assert said["messages"]


@pytest.mark.shows("litellm", "class", "errors")
def test_S1_a_class_by_header_and_an_error(said: dict[str, Any]) -> None:
    """`extra_headers` goes through; an unknown model is raised as LiteLLM's own class, with our sentence."""
    assert said["class"] == "background"
    assert "there is no model 'nobody'" in said["error"]
