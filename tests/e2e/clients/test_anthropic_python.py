"""Anthropic's SDK for Python, against a running gateway with the real engine and real models."""

from collections.abc import Iterator
from types import ModuleType
from typing import TYPE_CHECKING

import pytest

from tests.support.gateway import Gateway

if TYPE_CHECKING:
    from anthropic import Anthropic

pytestmark = pytest.mark.slow

HELLO = [{"role": "user", "content": "Say hello in one short sentence."}]
ASK = [{"role": "user", "content": "What is the weather in Paris?"}]
WEATHER = {
    "name": "weather",
    "description": "The weather in a city.",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
COOL = {"temperature": 0}


@pytest.fixture(scope="module")
def anthropic(server: Gateway, messages_sdk: ModuleType) -> Iterator["Anthropic"]:
    """The SDK as its users make it: its key goes up as `x-api-key`. No retries: a test sees what was said."""
    with messages_sdk.Anthropic(base_url=server.url, api_key="unused", max_retries=0, timeout=60.0) as client:
        yield client


@pytest.mark.shows("anthropic-python", "chat")
def test_a_message_is_answered(anthropic: "Anthropic") -> None:
    """Text, a reason to stop and usage, in Anthropic's shape."""
    answer = anthropic.messages.create(model="smollm2", max_tokens=8, messages=HELLO)
    assert answer.content[0].type == "text"
    assert answer.content[0].text
    assert answer.stop_reason in {"end_turn", "max_tokens"}
    assert 0 < answer.usage.output_tokens <= 8


@pytest.mark.shows("anthropic-python", "stream")
def test_a_streamed_message_is_put_together_by_the_sdk(anthropic: "Anthropic") -> None:
    """System blocks with `cache_control` are taken; every kind of event comes, and comment lines disturb none."""
    system = [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}]
    with anthropic.messages.stream(model="smollm2", max_tokens=8, messages=HELLO, system=system) as stream:
        kinds = [event.type for event in stream]
        whole = stream.get_final_message()
    assert kinds[0] == "message_start"
    assert kinds[-1] == "message_stop"
    assert {"content_block_start", "content_block_delta", "content_block_stop", "message_delta"} <= set(kinds)
    assert whole.content[0].text
    assert whole.usage.output_tokens > 0


def test_tokens_are_counted(anthropic: "Anthropic") -> None:
    """`count_tokens`: more words, more tokens."""
    short = anthropic.messages.count_tokens(model="smollm2", messages=HELLO)
    longer = anthropic.messages.count_tokens(model="smollm2", messages=[{"role": "user", "content": "hello " * 50}])
    assert 0 < short.input_tokens < longer.input_tokens


@pytest.mark.shows("anthropic-python", "tools")
def test_a_tool_is_used_and_its_result_understood(anthropic: "Anthropic") -> None:
    """`tool_use` with an input that is an object of the schema, then a turn with `tool_result`."""
    given = {"model": "smollm2", "max_tokens": 80, "tools": [WEATHER], "extra_body": COOL}
    first = anthropic.messages.create(messages=ASK, tool_choice={"type": "any"}, **given)
    assert first.stop_reason == "tool_use"
    (use,) = [block for block in first.content if block.type == "tool_use"]
    assert use.name == "weather"
    assert isinstance(use.input["city"], str)
    result = {"type": "tool_result", "tool_use_id": use.id, "content": [{"type": "text", "text": "Sunny."}]}
    turns = [*ASK, {"role": "assistant", "content": first.content}, {"role": "user", "content": [result]}]
    second = anthropic.messages.create(messages=turns, **given)
    assert second.usage.output_tokens > 0


@pytest.mark.shows("anthropic-python", "tools", "stream")
def test_a_streamed_tool_use_comes_in_pieces_of_json(anthropic: "Anthropic") -> None:
    """The SDK's accumulator makes an object of them."""
    with anthropic.messages.stream(
        model="smollm2",
        max_tokens=80,
        messages=ASK,
        tools=[WEATHER],
        tool_choice={"type": "any"},
        extra_body=COOL,
    ) as stream:
        kinds = {event.type for event in stream}
        whole = stream.get_final_message()
    assert "input_json" in kinds
    assert isinstance(whole.content[-1].input["city"], str)


@pytest.mark.shows("anthropic-python", "class")
@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"extra_headers": {"X-Class": "background"}}, "background"),
        ({"model": "smollm2@batch"}, "batch"),
        ({"extra_body": {"gridsched": {"class": "background"}}}, "background"),
        ({}, "interactive"),
    ],
)
def test_S1_a_class_is_heard(anthropic: "Anthropic", arguments: dict[str, object], expected: str) -> None:
    """By header, suffix or body, as for everybody else."""
    call = {"model": "smollm2", "max_tokens": 1, "messages": HELLO} | arguments
    raw = anthropic.messages.with_raw_response.create(**call)  # type: ignore[call-overload]  # a table of arguments
    assert raw.headers["x-gridsched-class"] == expected


@pytest.mark.shows("anthropic-python", "errors")
def test_errors_are_raised_as_what_they_are(anthropic: "Anthropic", messages_sdk: ModuleType) -> None:
    """404 and 400, with `type: error` around them, before any load."""
    with pytest.raises(messages_sdk.NotFoundError, match="smollm2") as unknown:
        anthropic.messages.create(model="smolm2", max_tokens=1, messages=HELLO)
    assert unknown.value.body["type"] == "error"
    with pytest.raises(messages_sdk.BadRequestError, match="minilm"):
        anthropic.messages.create(model="minilm", max_tokens=1, messages=HELLO)
    with pytest.raises(messages_sdk.BadRequestError, match="messages"):
        anthropic.messages.create(model="smollm2", max_tokens=1, messages="hello")
    with pytest.raises(messages_sdk.BadRequestError, match="messages"):
        anthropic.messages.count_tokens(model="smollm2", messages="hello")


@pytest.mark.shows("anthropic-python", "retries")
def test_the_sdk_does_not_repeat_what_will_not_help(server: Gateway, messages_sdk: ModuleType) -> None:
    """`x-should-retry: false` on a 503 that time alone does not change: one request."""
    seen: list[int] = []
    http = messages_sdk.DefaultHttpxClient(event_hooks={"response": [lambda answer: seen.append(answer.status_code)]})
    with (
        messages_sdk.Anthropic(base_url=server.url, api_key="unused", http_client=http) as client,
        pytest.raises(messages_sdk.InternalServerError, match="smollm2-cold"),
    ):
        client.messages.create(
            model="smollm2-cold", max_tokens=1, messages=HELLO, extra_body={"gridsched": {"warm_only": True}}
        )
    assert seen == [503]


@pytest.mark.shows("anthropic-python", "models")
def test_the_models_are_listed(anthropic: "Anthropic") -> None:
    """`models.list()` goes through its pages, of which there is one; `models.retrieve()`."""
    assert {"smollm2", "minilm"} <= {model.id for model in anthropic.models.list()}
    assert anthropic.models.retrieve("minilm").id == "minilm"
