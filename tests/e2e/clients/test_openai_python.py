"""OpenAI's SDK for Python, against a running gateway with the real engine and real models."""

import math
import threading
from datetime import datetime

import httpx
import pytest
from openai import BadRequestError, NotFoundError, OpenAI

from tests.e2e.conftest import sdk
from tests.support.gateway import Gateway

pytestmark = pytest.mark.slow

HELLO = [{"role": "user", "content": "Say hello in one short sentence."}]


def cosine(a: list[float], b: list[float]) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True)) / math.hypot(*a) / math.hypot(*b)


@pytest.mark.shows("openai-python", "chat")
def test_a_chat_is_answered(openai: OpenAI) -> None:
    """One non-streamed completion with real text and real usage."""
    answer = openai.chat.completions.create(model="smollm2", messages=HELLO, max_tokens=24, temperature=0)
    assert answer.choices[0].message.content
    assert answer.usage is not None
    assert 0 < answer.usage.completion_tokens <= 24


@pytest.mark.shows("openai-python", "stream")
def test_a_stream_arrives_in_pieces_and_ends_with_done(openai: OpenAI) -> None:
    """The deltas of a stream add up to the text of the same request without a stream."""
    wanted = openai.chat.completions.create(model="smollm2", messages=HELLO, max_tokens=24, temperature=0, seed=1)
    pieces = list(
        openai.chat.completions.create(
            model="smollm2", messages=HELLO, max_tokens=24, temperature=0, seed=1, stream=True
        )
    )
    text = "".join(piece.choices[0].delta.content or "" for piece in pieces if piece.choices)
    assert len(pieces) > 3
    assert text == wanted.choices[0].message.content
    assert pieces[-1].choices == [] or pieces[-1].choices[0].finish_reason in {"stop", "length"}


def test_a_plain_completion_is_answered(openai: OpenAI) -> None:
    """`/v1/completions` is a data path of its own."""
    answer = openai.completions.create(model="smollm2", prompt="Once upon a time", max_tokens=8, temperature=0)
    assert answer.choices[0].text


@pytest.mark.shows("openai-python", "embeddings")
def test_S3_seventy_inputs_make_one_answer_in_order(openai: OpenAI) -> None:
    """Three chunks, the SDK's own default encoding (base64), one usage."""
    texts = [f"document number {n} about {'cats' if n % 2 else 'trains'}" for n in range(70)]
    answer = openai.embeddings.create(model="minilm", input=texts)
    assert [item.index for item in answer.data] == list(range(70))
    assert {len(item.embedding) for item in answer.data} == {384}
    alone = openai.embeddings.create(model="minilm", input=texts[37])
    assert cosine(answer.data[37].embedding, alone.data[0].embedding) > 0.999
    assert cosine(answer.data[36].embedding, alone.data[0].embedding) < 0.99
    assert answer.usage.prompt_tokens > 70


def test_floats_and_base64_are_the_same_vector(openai: OpenAI) -> None:
    """The two encodings carry the same numbers."""
    floats = openai.embeddings.create(model="minilm", input="a cat", encoding_format="float").data[0].embedding
    coded = openai.embeddings.create(model="minilm", input="a cat").data[0].embedding
    assert floats == pytest.approx(coded, rel=1e-4, abs=1e-5)


def test_a_paraphrase_is_nearer_than_another_subject(openai: OpenAI) -> None:
    """The embedder is a real one: the vectors mean something."""
    texts = ["a cat sat on the mat", "a kitten was sitting on the rug", "quarterly tax return deadline"]
    vectors = [item.embedding for item in openai.embeddings.create(model="minilm", input=texts).data]
    assert cosine(vectors[0], vectors[1]) > cosine(vectors[0], vectors[2]) + 0.2


@pytest.mark.shows("openai-python", "models")
def test_the_models_are_listed(openai: OpenAI) -> None:
    """`models.list()` and `models.retrieve()`."""
    listed = {model.id: model for model in openai.models.list()}
    assert {"smollm2", "smollm2-batch", "minilm"} <= set(listed)
    assert openai.models.retrieve("minilm").id == "minilm"


@pytest.mark.shows("openai-python", "errors")
def test_H5_an_unknown_model_is_a_404_that_names_the_closest(openai: OpenAI) -> None:
    """Before the first byte, with the code that clients look for."""
    with pytest.raises(NotFoundError) as caught:
        openai.chat.completions.create(model="smolm2", messages=HELLO, max_tokens=1)
    assert caught.value.code == "model_not_found"
    assert "smollm2" in str(caught.value)


def test_a_model_is_found_by_its_alias(openai: OpenAI) -> None:
    """`gpt-4o` is whatever the configuration says."""
    assert openai.chat.completions.create(model="gpt-4o", messages=HELLO, max_tokens=2).choices


def test_embeddings_of_a_chat_model_are_refused_before_any_load(openai: OpenAI) -> None:
    """And chat with an embedder."""
    with pytest.raises(BadRequestError) as caught:
        openai.chat.completions.create(model="minilm", messages=HELLO, max_tokens=1)
    assert caught.value.code == "model_not_supported"


CHANNELS = [
    pytest.param({"extra_headers": {"X-Class": "background"}}, "background", id="header"),
    pytest.param({"extra_headers": {"X-GridCore-Class": "batch"}}, "batch", id="other header"),
    pytest.param({"extra_body": {"x_class": "batch"}}, "batch", id="body field"),
    pytest.param({"extra_body": {"gridsched": {"class": "background"}}}, "background", id="body object"),
    pytest.param({"model": "smollm2@background"}, "background", id="suffix"),
    pytest.param({"service_tier": "flex"}, "background", id="service tier"),
    pytest.param({"model": "smollm2-batch"}, "batch", id="the model's class"),
    pytest.param({"extra_headers": {"X-Class": "batch"}, "extra_body": {"x_class": "background"}}, "batch", id="order"),
    pytest.param({}, "interactive", id="none"),
]


@pytest.mark.shows("openai-python", "class")
@pytest.mark.parametrize(("arguments", "expected"), CHANNELS)
def test_S1_a_class_is_heard_by_every_channel(openai: OpenAI, arguments: dict[str, object], expected: str) -> None:
    """The answer's header says which class was used."""
    call = {"model": "smollm2", "messages": HELLO, "max_tokens": 1} | arguments
    raw = openai.chat.completions.with_raw_response.create(**call)  # type: ignore[call-overload]  # a table of arguments
    assert raw.headers["x-gridsched-class"] == expected


def test_an_unknown_class_is_refused(openai: OpenAI) -> None:
    """Never taken for another one."""
    with pytest.raises(BadRequestError) as caught:
        openai.chat.completions.create(
            model="smollm2", messages=HELLO, max_tokens=1, extra_headers={"X-Class": "urgent"}
        )
    assert caught.value.code == "invalid_class"


def test_S4_a_chat_goes_first_while_an_embedding_job_runs(server: Gateway, openai: OpenAI) -> None:
    """Dispatched in the millisecond it is enqueued, and no chunk starts until 2.0 s after its end, relief aside."""
    openai.chat.completions.create(model="smollm2", messages=HELLO, max_tokens=1)
    before = server.events()[-1]["seq"]
    texts = [f"a note on subject {n}, and a few more words to read about it" for n in range(320)]
    answers: list[int] = []

    def index() -> None:
        with sdk(server) as client:
            done = client.embeddings.create(model="minilm", input=texts, extra_headers={"X-Class": "background"})
            answers.append(len(done.data))

    indexer = threading.Thread(target=index)
    indexer.start()
    with (
        httpx.Client(base_url=server.url, trust_env=False, timeout=30.0) as client,
        client.stream("GET", "/api/events", params={"since": str(before), "follow": "1"}) as log,
    ):
        for line in log.iter_lines():
            if '"dispatch"' in line and '"minilm"' in line:
                break
    chat = openai.chat.completions.with_raw_response.create(model="smollm2", messages=HELLO, max_tokens=4)
    indexer.join(60)
    assert answers == [320]
    lines = [line for line in server.events() if int(str(line["seq"])) > int(str(before))]
    job = int(chat.headers["x-gridsched-job-id"])
    mine = {str(line["event"]): line for line in lines if line.get("job") == job}
    assert mine["dispatch"]["time"] == mine["enqueue"]["time"]
    low = [line for line in lines if line["event"] == "dispatch" and line["class"] == "background"]
    assert len(low) == 10
    ended = str(mine["complete"]["time"])
    after = [
        line for line in low if int(str(line["seq"])) > int(str(mine["dispatch"]["seq"])) and line.get("rule") != "S5"
    ]
    assert after, "the chat overtook the job"
    assert seconds(str(after[0]["time"])) - seconds(ended) >= 1.999


def seconds(time: str) -> float:
    """RFC 3339 to seconds."""
    return datetime.fromisoformat(time).timestamp()
