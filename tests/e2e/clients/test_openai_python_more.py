"""OpenAI's SDK for Python beyond chat: the Responses API, files and batches, audio, and names with slashes."""

import json

import pytest
from openai import BadRequestError, NotFoundError, OpenAI

from tests.e2e.clients.conftest import until

pytestmark = pytest.mark.slow

CHAT = {"messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 4}
WEATHER = {
    "type": "function",
    "name": "weather",
    "description": "The weather in a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    "strict": True,
}


@pytest.mark.shows("openai-python", "responses")
def test_a_response_is_made_and_its_tool_called(openai: OpenAI) -> None:
    """Text under `output_text`, usage; then a function call with arguments of its schema."""
    plain = openai.responses.create(model="smollm2", input="Say hello.", max_output_tokens=16)
    assert plain.output_text
    assert plain.usage is not None
    assert plain.usage.output_tokens > 0
    asked = openai.responses.create(
        model="smollm2",
        input="What is the weather in Paris?",
        tools=[WEATHER],
        tool_choice="required",
        temperature=0,
        max_output_tokens=80,
    )
    (call,) = [item for item in asked.output if item.type == "function_call"]
    assert (call.name, list(json.loads(call.arguments))) == ("weather", ["city"])


@pytest.mark.shows("openai-python", "responses", "stream")
def test_a_streamed_response_comes_as_typed_events(openai: OpenAI) -> None:
    """In order and under their names; the pieces make the text. (The SDK's own accumulator, `responses.stream()`, wants
    an `output_index` that llama-server does not send.)"""
    events = list(openai.responses.create(model="smollm2", input="Say hello.", max_output_tokens=16, stream=True))
    assert [events[0].type, events[-1].type] == ["response.created", "response.completed"]
    pieces = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(pieces) == events[-1].response.output_text


def test_a_response_of_an_embedder_is_refused(openai: OpenAI) -> None:
    """Before the first byte, streamed or not."""
    for stream in (False, True):
        with pytest.raises(BadRequestError) as caught:
            openai.responses.create(model="minilm", input="hi", stream=stream)
        assert caught.value.code == "model_not_supported"


@pytest.mark.shows("openai-python", "batches")
def test_a_batch_goes_from_file_to_file(openai: OpenAI) -> None:
    """Upload, create, wait, read: two lines answered, one refused by name."""
    lines = [
        {"custom_id": name, "method": "POST", "url": "/v1/chat/completions", "body": {"model": model} | CHAT}
        for name, model in (("one", "smollm2"), ("two", "smollm2"), ("three", "nobody"))
    ]
    text = "\n".join(json.dumps(line) for line in lines).encode()
    file = openai.files.create(file=("lines.jsonl", text), purpose="batch")
    batch = openai.batches.create(
        input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h", metadata={"of": "tests"}
    )
    until(lambda: openai.batches.retrieve(batch.id).status in {"completed", "failed", "expired", "cancelled"})
    done = openai.batches.retrieve(batch.id)
    assert done.status == "completed"
    assert done.request_counts is not None
    assert (done.request_counts.total, done.request_counts.completed, done.request_counts.failed) == (3, 2, 1)
    answers = [json.loads(line) for line in openai.files.content(str(done.output_file_id)).text.splitlines()]
    assert {answer["custom_id"] for answer in answers} == {"one", "two"}
    assert all(answer["response"]["body"]["choices"][0]["message"]["content"] for answer in answers)
    (error,) = [json.loads(line) for line in openai.files.content(str(done.error_file_id)).text.splitlines()]
    assert error["custom_id"] == "three"
    assert batch.id in {item.id for item in openai.batches.list()}
    assert openai.files.delete(file.id).deleted


def test_a_file_that_is_gone_is_not_found(openai: OpenAI) -> None:
    """What was deleted cannot be read or used."""
    file = openai.files.create(file=("lines.jsonl", b"{}"), purpose="batch")
    assert file.id in {item.id for item in openai.files.list(purpose="batch")}
    openai.files.delete(file.id)
    for use in (openai.files.retrieve, openai.files.content):
        with pytest.raises(NotFoundError):
            use(file.id)


@pytest.mark.shows("openai-python", "errors")
def test_a_transcription_is_refused_by_models_that_do_not_hear(openai: OpenAI) -> None:
    """A form with a file, answered with a sentence: no model here takes audio."""
    with pytest.raises(BadRequestError) as caught:
        openai.audio.transcriptions.create(model="smollm2", file=("speech.wav", b"RIFF\0\0\0\0WAVE"))
    assert caught.value.code == "model_not_supported"


@pytest.mark.shows("openai-python", "models")
def test_a_model_is_found_by_a_name_with_slashes(openai: OpenAI) -> None:
    """The SDK sends slashes as they are, or as `%2F`: both name it."""
    found = openai.models.retrieve("people/smol")
    assert found.id == "smollm2"
