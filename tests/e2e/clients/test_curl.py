"""curl, with what it does by itself: bodies in chunks, `Expect`, streams as they come."""

import json
import shutil
import subprocess
from typing import Any

import pytest

from tests.e2e.clients.conftest import until
from tests.support.gateway import Gateway

pytestmark = pytest.mark.slow

CHAT = {"model": "smollm2", "messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 8}


def curl(*words: str, data: bytes | None = None) -> str:
    """What one run of the command prints."""
    program = shutil.which("curl")
    if program is None:
        pytest.skip(reason="this machine has no curl")
    done = subprocess.run(
        [program, "--silent", "--show-error", "--max-time", "60", "--noproxy", "*", *words],
        input=data,
        capture_output=True,
        check=True,
        timeout=90,
    )
    return done.stdout.decode()


def body(**more: Any) -> str:
    """A chat's body."""
    return json.dumps(CHAT | more)


@pytest.mark.shows("curl", "chat")
def test_the_readme_s_own_line_is_answered(server: Gateway) -> None:
    """`-d` alone: a POST whose type is said to be a form's."""
    answer = json.loads(curl(f"{server.url}/v1/chat/completions", "-d", body()))
    assert answer["choices"][0]["message"]["content"]


@pytest.mark.shows("curl", "stream")
def test_a_stream_comes_as_events(server: Gateway) -> None:
    """`-N`: lines of `data:`, then `[DONE]`."""
    lines = curl("-N", f"{server.url}/v1/chat/completions", "-d", body(stream=True)).split("\n")
    events = [line for line in lines if line.startswith("data: ")]
    assert len(events) > 3
    assert events[-1] == "data: [DONE]"
    assert json.loads(events[0][6:])["object"] == "chat.completion.chunk"


def test_a_body_in_chunks_is_taken(server: Gateway) -> None:
    """Chunked transfer, from a pipe of unknown length."""
    words = ("-T", "-", "-X", "POST", "-H", "Content-Type: application/json")
    answer = json.loads(curl(f"{server.url}/v1/chat/completions", *words, data=body().encode()))
    assert answer["usage"]["completion_tokens"] > 0


def test_a_large_body_that_asks_first_is_told_to_go_on(server: Gateway) -> None:
    """`Expect: 100-continue`: an interim answer, then the real one; curl would wait for longer than the limit."""
    large = body(padding="x" * 2_000_000)
    words = ("-i", "--expect100-timeout", "50", "-H", "Expect: 100-continue", "-d", "@-")
    said = curl(f"{server.url}/v1/chat/completions", *words, data=large.encode())
    assert said.startswith("HTTP/1.1 100")
    assert "\r\n\r\nHTTP/1.1 200" in said


@pytest.mark.shows("curl", "batches")
def test_a_batch_by_forms_and_bodies(server: Gateway) -> None:
    """`-F` for the file, `-d` for the batch, and the answers as a download."""
    line = {"custom_id": "one", "method": "POST", "url": "/v1/chat/completions", "body": CHAT | {"max_tokens": 1}}
    form = ("-F", "purpose=batch", "-F", "file=@-;filename=lines.jsonl")
    file = json.loads(curl(f"{server.url}/v1/files", *form, data=json.dumps(line).encode()))
    asked = {"input_file_id": file["id"], "endpoint": "/v1/chat/completions", "completion_window": "24h"}
    batch = json.loads(curl(f"{server.url}/v1/batches", "-d", json.dumps(asked)))["id"]
    until(lambda: json.loads(curl(f"{server.url}/v1/batches/{batch}"))["status"] == "completed")
    output = json.loads(curl(f"{server.url}/v1/batches/{batch}"))["output_file_id"]
    answer = json.loads(curl(f"{server.url}/v1/files/{output}/content"))
    assert (answer["custom_id"], answer["response"]["status_code"]) == ("one", 200)


@pytest.mark.shows("curl", "embeddings", "models", "class", "errors")
def test_the_rest_is_plain_http(server: Gateway) -> None:
    """Embeddings, the list, a class by header, and an error with its status."""
    vectors = json.loads(curl(f"{server.url}/v1/embeddings", "-d", '{"model": "minilm", "input": ["a", "b"]}'))
    assert [len(item["embedding"]) for item in vectors["data"]] == [384, 384]
    assert "smollm2" in {model["id"] for model in json.loads(curl(f"{server.url}/v1/models"))["data"]}
    said = curl("-i", f"{server.url}/v1/chat/completions", "-H", "X-Class: background", "-d", body(max_tokens=1))
    assert "x-gridsched-class: background" in said.lower()
    said = curl("-i", f"{server.url}/v1/chat/completions", "-d", body(model="nobody"))
    assert said.startswith("HTTP/1.1 404")
