"""Claude Code: the program itself, offline, and requests of the shape that it sends, against the real engine."""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from loadtest.fetch import fetch_models
from tests.e2e.conftest import TOOLS
from tests.support.gateway import Gateway, start

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
PACKAGES = ROOT / ".cache/external/node/node_modules/@anthropic-ai"
CLAUDE = next(PACKAGES.glob("claude-code-*/claude"), PACKAGES)
"""The program, from the package that npm chooses for this machine."""

CONFIG = """\
library: {{dirs: [], default_model: smollm2}}
models:
  smollm2: {{path: "{chat}", ctx_size: 16384, parallel: 1, aliases: [claude-haiku-4-5],
             flags: ["--threads", "2", "--temp", "0", "--chat-template-file", "{tools}",
                     "--chat-template-kwargs", '{{"brief": true}}']}}
"""
HEADERS = {
    "anthropic-version": "2023-06-01",
    "anthropic-beta": "claude-code-20250219,interleaved-thinking-2025-05-14,context-management-2025-06-27",
    "anthropic-dangerous-direct-browser-access": "true",
    "user-agent": "claude-cli/2.1.197 (external, sdk-cli)",
    "x-app": "cli",
    "x-api-key": "unused",
    "x-stainless-retry-count": "0",
    "x-stainless-timeout": "600",
}
READ = {
    "name": "Read",
    "description": "Reads a file.",
    "input_schema": {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "properties": {"file_path": {"type": "string"}, "limit": {"type": "integer", "exclusiveMinimum": 0}},
        "required": ["file_path"],
        "additionalProperties": False,
    },
}
ASKED = {
    "role": "user",
    "content": [
        {"type": "text", "text": "<system-reminder>\nToday is Tuesday.\n</system-reminder>\n\n"},
        {"type": "text", "text": "Read notes.txt", "cache_control": {"type": "ephemeral"}},
    ],
}
BODY: dict[str, Any] = {
    "model": "smollm2",
    "max_tokens": 64,
    "system": [
        {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1.197; cc_entrypoint=sdk-cli;"},
        {"type": "text", "text": "You are an agent.", "cache_control": {"type": "ephemeral", "ttl": "1h"}},
    ],
    "messages": [ASKED],
    "tools": [READ],
    "metadata": {"user_id": '{"device_id":"0","account_uuid":"","session_id":"0"}'},
    "thinking": {"type": "adaptive"},
    "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    "output_config": {"effort": "high"},
    "stream": True,
}
"""What version 2.1.197 sends, with shorter words."""

TURNS = [
    ASKED,
    {
        "role": "assistant",
        "content": [
            {"type": "thinking", "thinking": "I should read it.", "signature": "c2lnbmF0dXJl"},
            {"type": "text", "text": "I will read it."},
            {"type": "tool_use", "id": "toolu_1", "name": "Read", "input": {"file_path": "notes.txt"}},
        ],
    },
    {
        "role": "user",
        "content": [
            {"type": "tool_result", "tool_use_id": "toolu_1", "content": "No such file.", "is_error": True},
            {"type": "text", "text": "Go on.", "cache_control": {"type": "ephemeral"}},
        ],
    },
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """A gateway whose model has room for an agent's instructions, calls a tool when there is one, and is then brief."""
    folder = tmp_path_factory.mktemp("claude")
    config = folder / "gridsched.yaml"
    config.write_text(CONFIG.format(chat=fetch_models().chat, tools=TOOLS), encoding="utf-8")
    running = start(folder, "--config", str(config))
    yield running
    assert running.stop() == 0


def claude(server: Gateway, home: Path, prompt: str, *words: str) -> dict[str, Any]:
    """One run of the program with a home of its own and nothing of ours in its environment."""
    env = {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "ANTHROPIC_BASE_URL": server.url,
        "ANTHROPIC_API_KEY": "unused",
        "ANTHROPIC_MODEL": "smollm2",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "CLAUDE_CODE_MAX_OUTPUT_TOKENS": "256",
        "DISABLE_AUTOUPDATER": "1",
    }
    done = subprocess.run(
        [CLAUDE, "-p", prompt, "--output-format", "json", *words],
        env=env,
        cwd=home,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    said: dict[str, Any] = json.loads(done.stdout or json.dumps({"result": done.stderr}))
    return said


def test_the_program_is_there() -> None:
    """`install.sh` fetches it, and npm the package for this kind of machine."""
    assert CLAUDE.is_file()


@pytest.mark.shows("claude-code", "chat", "stream")
def test_claude_code_is_answered(server: Gateway, tmp_path: Path) -> None:
    """`claude -p`, its own instructions, no tools: streamed, and put together by the program."""
    said = claude(server, tmp_path, "Say done.", "--tools", "")
    assert said["is_error"] is False, said
    assert "Done" in said["result"]
    assert list(said["modelUsage"]) == ["smollm2"]


@pytest.mark.shows("claude-code", "tools")
def test_claude_code_uses_its_tool_and_goes_on(server: Gateway, tmp_path: Path) -> None:
    """Two turns: a call of `Read` that the program carries out, and the answer to its result."""
    before = int(str(server.events()[-1]["seq"]))
    said = claude(server, tmp_path, "Read notes.txt", "--tools", "Read", "--max-turns", "3")
    assert said["is_error"] is False, said
    assert said["num_turns"] == 2
    assert "Done" in said["result"]
    done = [line for line in server.events() if int(str(line["seq"])) > before and line["event"] == "complete"]
    assert [(line["kind"], line["status"]) for line in done] == [("messages", 200)] * 2


@pytest.mark.shows("claude-code", "class")
def test_S1_claude_code_says_a_class(server: Gateway, tmp_path: Path) -> None:
    """`--model smollm2@background`: an agent that may wait."""
    before = int(str(server.events()[-1]["seq"]))
    said = claude(server, tmp_path, "Say done.", "--tools", "", "--model", "smollm2@background")
    assert said["is_error"] is False, said
    new = [line for line in server.events() if int(str(line["seq"])) > before and line["event"] == "enqueue"]
    assert {line["class"] for line in new} == {"background"}


def events(text: str) -> list[dict[str, Any]]:
    """The events of a stream; each name is that of its data."""
    found = []
    for block in text.strip().split("\n\n"):
        lines = [line for line in block.split("\n") if not line.startswith(":")]
        if not lines:
            continue
        name, data = lines
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        found.append(event)
    return found


def test_its_first_turn_is_answered_with_a_call(server: Gateway) -> None:
    """Beta headers, `?beta=true`, cached system blocks, adaptive thinking: all taken; its input is JSON."""
    answer = httpx.post(
        f"{server.url}/v1/messages?beta=true", json=BODY, headers=HEADERS, trust_env=False, timeout=120.0
    )
    assert answer.status_code == 200, answer.text
    said = events(answer.text)
    assert [said[0]["type"], said[-1]["type"]] == ["message_start", "message_stop"]
    deltas = [event["delta"] for event in said if "delta" in event]
    pieces = [delta["partial_json"] for delta in deltas if delta.get("type") == "input_json_delta"]
    assert "file_path" in json.loads("".join(pieces))
    assert deltas[-1]["stop_reason"] == "tool_use"


@pytest.mark.parametrize("content", ["No such file.", [{"type": "text", "text": "No such file."}], []])
def test_a_turn_with_a_result_and_thoughts_is_understood(server: Gateway, content: object) -> None:
    """`thinking` blocks with their signature, `tool_result` as a string, as blocks and empty, `is_error`."""
    result = TURNS[2]["content"][0] | {"content": content}
    turns = [*TURNS[:2], {"role": "user", "content": [result, TURNS[2]["content"][1]]}]
    answer = httpx.post(
        f"{server.url}/v1/messages?beta=true",
        json=BODY | {"messages": turns, "stream": False, "max_tokens": 8},
        headers=HEADERS,
        trust_env=False,
        timeout=120.0,
    )
    assert answer.status_code == 200, answer.text
    assert answer.json()["usage"]["output_tokens"] > 0


def test_tokens_are_counted_with_everything_that_is_sent(server: Gateway) -> None:
    """`count_tokens?beta=true`, with tools and system; more words, more tokens."""
    counts = []
    for words in ("Read it.", "Read it, please, " * 50):
        sent = {name: BODY[name] for name in ("model", "system", "tools", "thinking")}
        sent["messages"] = [ASKED, TURNS[1], {"role": "user", "content": words}]
        url = f"{server.url}/v1/messages/count_tokens?beta=true"
        answer = httpx.post(url, json=sent, headers=HEADERS, trust_env=False, timeout=60.0)
        assert answer.status_code == 200, answer.text
        counts.append(answer.json()["input_tokens"])
    assert 0 < counts[0] < counts[1]


@pytest.mark.shows("claude-code", "errors")
def test_what_it_asks_beside_messages_is_no_server_error(server: Gateway, tmp_path: Path) -> None:
    """The look whether anybody is there (`HEAD /`), telemetry that stays unanswered, and a model that is not there."""
    with httpx.Client(base_url=server.url, headers=HEADERS, trust_env=False, timeout=60.0) as client:
        assert client.head("/").status_code < 500
        assert client.post("/api/event_logging/batch", json={"events": []}).status_code == 404
        unknown = client.post("/v1/messages?beta=true", json=BODY | {"model": "claude-opus-9"})
        assert unknown.status_code == 404
        assert unknown.json()["type"] == "error"
        assert "text/event-stream" not in unknown.headers["content-type"]
    said = claude(server, tmp_path, "hi", "--tools", "", "--model", "nobody")
    assert said["is_error"] is True
    assert "nobody" in said["result"]
