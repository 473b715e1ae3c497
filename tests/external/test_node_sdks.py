"""The SDKs for Node of OpenAI and Anthropic, against a running gateway with the real engine and real models."""

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from loadtest.fetch import fetch_models
from tests.e2e.conftest import start_real
from tests.support.gateway import Gateway

pytestmark = pytest.mark.slow

PROGRAMS = Path(__file__).parents[2] / ".cache/external/node"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """One gateway for both."""
    running = start_real(tmp_path_factory.mktemp("node"), *fetch_models())
    yield running
    assert running.stop() == 0


def ran(server: Gateway, program: str) -> dict[str, Any]:
    """What one run of a program brought."""
    node = shutil.which("node")
    assert node is not None, "install.sh says how to get it"
    done = subprocess.run(
        [node, PROGRAMS / program, server.url], capture_output=True, text=True, check=False, timeout=240
    )
    assert done.returncode == 0, done.stderr
    said: dict[str, Any] = json.loads(done.stdout)
    return said


@pytest.fixture(scope="module")
def openai(server: Gateway) -> dict[str, Any]:
    """OpenAI's."""
    return ran(server, "openai.mjs")


@pytest.fixture(scope="module")
def anthropic(server: Gateway) -> dict[str, Any]:
    """Anthropic's."""
    return ran(server, "anthropic.mjs")


@pytest.mark.shows("openai-node", "chat", "stream", "tools", "schema")
def test_openai_s_chats(openai: dict[str, Any]) -> None:
    """Whole and in pieces; a tool called both ways; an answer of a schema."""
    assert openai["chat"]
    assert len(openai["stream"]) > 2
    for call in (openai["tool"], openai["streamedTool"]):
        assert (call["name"], list(json.loads(call["arguments"]))) == ("weather", ["city"])
    assert isinstance(json.loads(openai["schema"])["large"], bool)


@pytest.mark.shows("openai-node", "embeddings", "responses", "models", "class")
def test_openai_s_other_calls(openai: dict[str, Any]) -> None:
    """Embeddings in the SDK's own encoding, the Responses API whole and streamed, models, a class by header."""
    assert openai["embeddings"] == [384, 384]
    assert openai["response"]
    assert [openai["responseEvents"][0], openai["responseEvents"][-1]] == ["response.created", "response.completed"]
    assert {"smollm2", "minilm"} <= set(openai["models"])
    assert (openai["retrieved"], openai["class"]) == ("minilm", "batch")


@pytest.mark.shows("openai-node", "batches")
def test_openai_s_batch(openai: dict[str, Any]) -> None:
    """A file sent as Node sends forms, and what came of its lines."""
    assert openai["batch"] == ["one", "two"]


@pytest.mark.shows("openai-node", "errors", "retries")
def test_openai_s_errors(openai: dict[str, Any]) -> None:
    """Raised as what they are; what will not help is not repeated."""
    assert openai["error"] == {"name": "NotFoundError", "code": "model_not_found", "status": 404}
    assert openai["refusal"] == {"name": "InternalServerError", "code": "not_resident", "status": 503}
    assert openai["requests"] == 2


@pytest.mark.shows("anthropic-node", "chat", "stream", "tools")
def test_anthropic_s_messages(anthropic: dict[str, Any]) -> None:
    """Whole and streamed; a tool's call, and the turn with its result; the beta surface; tokens counted."""
    assert anthropic["chat"]
    assert anthropic["stream"]
    assert [anthropic["kinds"][0], anthropic["kinds"][-1]] == ["message_start", "message_stop"]
    assert anthropic["stop"] == "tool_use"
    assert isinstance(anthropic["tool"]["input"]["city"], str)
    assert anthropic["turn"] > 0
    assert anthropic["beta"] == "message"
    assert anthropic["tokens"] > 0


@pytest.mark.shows("anthropic-node", "models", "class", "errors")
def test_anthropic_s_other_calls(anthropic: dict[str, Any]) -> None:
    """Models, a class by header, an error raised as what it is."""
    assert {"smollm2", "minilm"} <= set(anthropic["models"])
    assert anthropic["class"] == "batch"
    assert anthropic["error"] == {"name": "NotFoundError", "status": 404, "type": "error"}
