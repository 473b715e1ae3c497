import json

import pytest
import trio

from loadtest import clients
from loadtest.clients import AnswerFault, ChatStream, refusal
from tests.loadtest.stub import Asked, Reply, as_json, delta, frames, serving

STREAM = {"Content-Type": "text/event-stream", "X-Gridsched-Queue-Ms": "12.5"}


async def test_a_streamed_chat_is_measured_from_its_first_text() -> None:
    """Comment lines and a role come before the first token and are not taken for it."""
    pieces = (b": queued 1\n\n", *frames({"choices": [{"delta": {"role": "assistant"}}]}, delta("Hel"), delta("lo")))
    async with serving(lambda _: Reply(200, STREAM, pieces)) as stub, clients.connect(stub.url) as client:
        gave = await client.chat("chat", "tiny", "Hi", tokens=3, job_class="interactive")
    assert gave.text == "Hello"
    measured = gave.measured
    assert (measured.row, measured.status, measured.error) == ("chat", 200, "")
    assert measured.queue_seconds == 0.0125
    assert measured.first_token_seconds is not None
    assert 0 < measured.first_token_seconds <= measured.latency_seconds
    asked = stub.asked[0]
    assert asked.headers["x-class"] == "interactive"
    assert (asked.fields["model"], asked.fields["max_tokens"], asked.fields["stream"]) == ("tiny", 3, True)


@pytest.mark.parametrize(
    ("pieces", "error"),
    [
        (frames(delta("a"), end=""), "the stream ended before [DONE]"),
        (frames(delta("a"), {"error": {"message": "the engine died"}}), "in the stream: the engine died"),
        ((b"data: {no json\n\n",), "not JSON: b'{no json'"),
        ((b"data: " + b"[" * 100_000 + b"\n\n",), f"not JSON: {b'[' * 100!r}"),
        (frames(), "the stream ended without an answer"),
        (frames({"choices": [], "usage": {"completion_tokens": 0}}), "the stream ended without an answer"),
        (frames({"object": "odd"}), "no choices in the answer: {'object': 'odd'}"),
    ],
)
async def test_a_stream_that_goes_wrong_is_an_error(pieces: tuple[bytes, ...], error: str) -> None:
    """A 200 is no success by itself."""
    async with serving(lambda _: Reply(200, STREAM, pieces)) as stub, clients.connect(stub.url) as client:
        gave = await client.chat("chat", "tiny", "Hi", tokens=3)
    assert gave.measured.error == error


@pytest.mark.parametrize("told", ["nan", "inf", "1e999", "-1", "soon", ""])
async def test_a_wait_that_is_no_number_is_not_known(told: str) -> None:
    """One among the others would spoil their percentiles."""
    answer = as_json({"choices": [{"text": "a"}]}, **{"X-Gridsched-Queue-Ms": told})
    async with serving(lambda _: answer) as stub, clients.connect(stub.url) as client:
        gave = await client.complete("batch", "tiny", "Write", tokens=1)
    assert (gave.measured.error, gave.measured.queue_seconds) == ("", None)


async def test_a_generation_that_nobody_watches_is_read_whole() -> None:
    """A completion has a text and no first token."""
    answer = as_json({"choices": [{"text": "once upon"}]}, **{"X-Gridsched-Queue-Ms": "0"})
    async with serving(lambda _: answer) as stub, clients.connect(stub.url) as client:
        gave = await client.complete("batch", "tiny", "Write", tokens=9, job_class="batch")
    assert (gave.text, gave.measured.error, gave.measured.first_token_seconds) == ("once upon", "", None)
    assert gave.measured.queue_seconds == 0.0
    assert stub.asked[0].path == "/v1/completions"


async def test_an_answer_with_nothing_in_it_is_an_error() -> None:
    """A 200 with fewer vectors than texts, or with no choice, is none of the answered ones."""
    told = as_json({"choices": [], "data": [{"index": 0, "embedding": [1.0]}]})
    async with serving(lambda _: told) as stub, clients.connect(stub.url) as client:
        wrote = await client.complete("batch", "tiny", "Write", tokens=1)
        vectors = await client.embed("embeddings", "tiny", ["a", "b"])
    assert wrote.measured.error.startswith("no choices in the answer")
    assert vectors.measured.error == "1 vectors for 2 texts"


async def test_a_chat_can_be_asked_for_in_one_piece() -> None:
    """Not every client streams."""
    answer = as_json({"choices": [{"message": {"role": "assistant", "content": "hello"}}]})
    async with serving(lambda _: answer) as stub, clients.connect(stub.url) as client:
        gave = await client.chat("chat", "tiny", "Hi", tokens=3, stream=False)
    assert (gave.text, gave.measured.queue_seconds) == ("hello", None)
    assert "x-class" not in stub.asked[0].headers


async def test_embeddings_keep_the_order_they_came_in() -> None:
    """Whether it is the right order is for the marks to say."""
    data = [{"index": 1, "embedding": [0.5, 1]}, {"index": 0, "embedding": [1, 0]}]
    async with serving(lambda _: as_json({"data": data})) as stub, clients.connect(stub.url) as client:
        gave = await client.embed("embeddings", "tiny", ["a", "b"], job_class="background")
    assert (gave.indexes, gave.vectors) == ([1, 0], [[0.5, 1], [1, 0]])
    assert stub.asked[0].fields["input"] == ["a", "b"]


@pytest.mark.parametrize("answer", [{"object": "list"}, {"data": [{"index": 0}]}, [1]])
async def test_an_embedding_answer_without_vectors_is_an_error(answer: object) -> None:
    """A shape that no embedding answer has is named."""
    async with serving(lambda _: as_json(answer)) as stub, clients.connect(stub.url) as client:
        gave = await client.embed("embeddings", "tiny", ["a"])
    assert gave.measured.status == 200
    assert gave.measured.error


async def test_a_refusal_is_told_with_its_status_and_sentence() -> None:
    """The server's own words travel into the report."""
    problem = as_json({"error": {"message": "no such model", "code": "model_not_found"}}, status=404)
    async with serving(lambda _: problem) as stub, clients.connect(stub.url) as client:
        gave = await client.chat("chat", "nope", "Hi", tokens=3)
    assert (gave.measured.status, gave.measured.error) == (404, "404: no such model")


async def test_a_server_that_is_not_there_is_an_error_without_a_status() -> None:
    """Nothing is raised: the run goes on and the report says it."""
    async with serving(lambda _: Reply()) as stub:
        url = stub.url
    async with clients.connect(url) as client:
        gave = await client.chat("chat", "tiny", "Hi", tokens=3)
    assert gave.measured.status == 0
    assert gave.measured.error


async def test_requests_at_the_same_time_do_not_mix() -> None:
    """Each gets its own answer and its own connection."""

    def echo(asked: Asked) -> Reply:
        text = str(asked.fields["prompt"])
        return as_json({"choices": [{"text": text}]})

    texts: dict[str, str] = {}
    async with serving(echo) as stub, clients.connect(stub.url) as client, trio.open_nursery() as nursery:

        async def ask(prompt: str) -> None:
            texts[prompt] = (await client.complete("batch", "tiny", prompt, tokens=1)).text

        for number in range(5):
            nursery.start_soon(ask, f"number {number}")
    assert texts == {f"number {number}": f"number {number}" for number in range(5)}


def test_a_stream_is_understood_however_its_bytes_are_cut() -> None:
    """One byte at a time gives the same text."""
    stream = ChatStream()
    raw = b"".join(frames(delta("grüß "), delta("dich")))
    assert "".join(stream.feed(bytes([byte])) for byte in raw) == "grüß dich"
    stream.end()


def test_a_stream_without_its_end_says_so() -> None:
    """The terminator is part of a good answer."""
    with pytest.raises(AnswerFault, match="before"):
        ChatStream().end()


@pytest.mark.parametrize(
    ("raw", "sentence"),
    [
        (json.dumps({"error": {"message": "full"}}).encode(), "429: full"),
        (json.dumps({"error": "plain"}).encode(), "429: plain"),
        (b"<html>", "429: <html>"),
        (b"", "429: no body"),
    ],
)
def test_any_refusal_becomes_one_sentence(raw: bytes, sentence: str) -> None:
    """Whatever the body is, the status is told."""
    assert refusal(429, raw) == sentence
