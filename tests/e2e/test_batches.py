"""Batches through whole processes: the OpenAI SDK on the real engine, and a gateway that is killed again and again."""

import json
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import ConflictError, NotFoundError, OpenAI
from openai.types import Batch

from tests.faults.bench import Bench, Served, begin, serve
from tests.support.gateway import PLAIN, Gateway

pytestmark = pytest.mark.slow

OVER = {"completed", "failed", "expired", "cancelled"}
KILLED_LINES, DAMAGED_EVERY, ASKED_EVERY, IN_FLIGHT = 10_000, 1_000, 10, 16


def requests(bodies: list[dict[str, Any]], url: str) -> bytes:
    """A file of them."""
    lines = [
        {"custom_id": f"r{number}", "method": "POST", "url": url, "body": body} for number, body in enumerate(bodies)
    ]
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


def until_over(server: Gateway, client: OpenAI, batch_id: str) -> Batch:
    """Ask until it is, as long as the gateway lives."""
    for _ in range(600):
        found = client.batches.retrieve(batch_id)
        if found.status in OVER:
            return found
        with suppress(subprocess.TimeoutExpired):
            server.process.wait(0.1)
    raise AssertionError(found)


def test_the_sdk_hands_in_a_file_and_reads_the_answers(server: Gateway, openai: OpenAI) -> None:
    """files.create, batches.create, poll, files.content, lists, cancel and delete, as OpenAI's guide has them."""
    bodies: list[dict[str, Any]] = [{"model": "minilm", "input": f"number {number}"} for number in range(6)]
    data = requests([*bodies, {"model": "nobody", "input": "x"}], "/v1/embeddings")
    file = openai.files.create(file=("in.jsonl", data), purpose="batch")
    assert (file.object, file.bytes, file.filename, file.status) == ("file", len(data), "in.jsonl", "processed")
    made = openai.batches.create(
        input_file_id=file.id, endpoint="/v1/embeddings", completion_window="24h", metadata={"a": "b"}
    )
    assert (made.object, made.status, made.metadata) == ("batch", "validating", {"a": "b"})
    done = until_over(server, openai, made.id)
    assert done.request_counts is not None
    assert (done.status, done.request_counts.completed, done.request_counts.failed) == ("completed", 6, 1)
    assert done.output_file_id is not None
    assert done.error_file_id is not None
    answers = [json.loads(line) for line in openai.files.content(done.output_file_id).text.splitlines()]
    assert {answer["custom_id"] for answer in answers} == {f"r{number}" for number in range(6)}
    alone = openai.embeddings.create(model="minilm", input="number 3", encoding_format="float").data[0].embedding
    (third,) = (answer for answer in answers if answer["custom_id"] == "r3")
    assert third["response"]["body"]["data"][0]["embedding"] == pytest.approx(alone, rel=1e-3, abs=1e-4)
    (failed,) = (json.loads(line) for line in openai.files.content(done.error_file_id).text.splitlines())
    assert failed["response"]["body"]["error"]["code"] == "model_not_found"
    assert next(batch.id for batch in openai.batches.list(limit=1)) == made.id
    assert {file.id, done.output_file_id} <= {one.id for one in openai.files.list()}
    with pytest.raises(ConflictError):
        openai.batches.cancel(made.id)
    assert openai.files.delete(file.id).deleted
    with pytest.raises(NotFoundError):
        openai.files.retrieve(file.id)


def test_the_sdk_cancels_a_batch_and_has_what_was_answered(server: Gateway, openai: OpenAI) -> None:
    """Each request is in one of the two files; a chat's answer is the engine's."""
    chat = {"model": "smollm2", "messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 8}
    file = openai.files.create(file=("in.jsonl", requests([chat] * 200, "/v1/chat/completions")), purpose="batch")
    made = openai.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h")
    for _ in range(600):
        counts = openai.batches.retrieve(made.id).request_counts
        if counts is not None and counts.completed:
            break
        with suppress(subprocess.TimeoutExpired):
            server.process.wait(0.1)
    assert openai.batches.cancel(made.id).status == "cancelling"
    over = until_over(server, openai, made.id)
    assert over.status == "cancelled"
    assert over.output_file_id is not None
    assert over.error_file_id is not None
    good, bad = (
        [json.loads(line) for line in openai.files.content(file_id).text.splitlines()]
        for file_id in (over.output_file_id, over.error_file_id)
    )
    assert good[0]["response"]["body"]["choices"][0]["message"]["content"]
    assert {answer["error"]["code"] for answer in bad} == {"batch_cancelled"}
    assert sorted(int(answer["custom_id"][1:]) for answer in [*good, *bad]) == list(range(200))


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    """A gateway on the stand-in engine; whichever runs at the end is stopped."""
    at = serve(
        tmp_path,
        {"embedder": Served(embeds=True, settings={"parallel": 4})},
        settings={"batches": {"in_flight": IN_FLIGHT}},
    )
    yield at
    at.gateway.stop()


def progress(bench: Bench, batch_id: str) -> int:
    """How many lines have their answer."""
    counts = bench.ask(f"/v1/batches/{batch_id}").json["request_counts"]
    return int(counts["completed"]) + int(counts["failed"])


def test_a_batch_of_ten_thousand_lines_survives_three_kills_with_every_line_once(bench: Bench, tmp_path: Path) -> None:
    """SIGKILL at a quarter, a half and three quarters: each line has one answer, its own. A tenth is the engine's, most
    are refused for their model, which costs little time and as much care; ten are damaged."""
    asked = set(range(1, KILLED_LINES, ASKED_EVERY))
    models = ["embedder" if number in asked else "nobody" for number in range(KILLED_LINES)]
    texts = [{"model": model, "input": f"text {number}"} for number, model in enumerate(models)]
    lines = requests(texts, "/v1/embeddings").splitlines(keepends=True)
    for number in range(0, KILLED_LINES, DAMAGED_EVERY):
        lines[number] = b'{"custom_id": "r%d", "method": "GET"}\n' % number
    began = time.monotonic()
    with httpx.Client(base_url=bench.gateway.url, timeout=30.0, **PLAIN) as client:
        file = client.post("/v1/files", data={"purpose": "batch"}, files={"file": ("a.jsonl", b"".join(lines))}).json()
        made = {"input_file_id": file["id"], "endpoint": "/v1/embeddings", "completion_window": "24h"}
        batch_id = str(client.post("/v1/batches", json=made).json()["id"])
    killed_at = []
    for part in (0.25, 0.5, 0.75):
        bench.until(lambda part=part: progress(bench, batch_id) >= part * KILLED_LINES, f"{part} of the batch")
        bench.gateway.process.kill()
        bench.gateway.process.wait(30)
        killed_at.append(round(time.monotonic() - began, 1))
        again = begin(tmp_path)
        bench.gateway, bench.mark = again.gateway, again.mark
    bench.until(lambda: bench.ask(f"/v1/batches/{batch_id}").json["status"] == "completed", "its end")
    seconds = time.monotonic() - began
    batch = bench.ask(f"/v1/batches/{batch_id}").json
    good, bad = (
        [json.loads(line) for line in bench.ask(f"/v1/files/{batch[name]}/content").body.splitlines()]
        for name in ("output_file_id", "error_file_id")
    )
    every = Counter(answer["custom_id"] for answer in [*good, *bad])
    assert every == Counter(f"r{number}" for number in range(KILLED_LINES))
    assert {int(answer["custom_id"][1:]) for answer in good} == asked
    for answer in good:
        assert answer["response"]["body"]["data"][0]["embedding"][0] == int(answer["custom_id"][1:])
    damaged = [int(answer["custom_id"][1:]) for answer in bad if answer["response"] is None]
    assert damaged == list(range(0, KILLED_LINES, DAMAGED_EVERY))
    refused = [answer["response"]["body"]["error"]["code"] for answer in bad if answer["response"] is not None]
    assert set(refused) == {"model_not_found"}
    assert batch["request_counts"] == {"total": KILLED_LINES, "completed": len(good), "failed": len(bad)}
    print(f"{KILLED_LINES} lines in {seconds:.1f} s, killed after {killed_at} s")
