"""What programs build on OpenAI's SDK for Python: tools, schemas, async, limits of time, and its own retries."""

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from http import HTTPStatus
from typing import Literal

import httpx2
import pytest
from openai import APITimeoutError, AsyncOpenAI, DefaultHttpxClient, InternalServerError, NotFoundError, OpenAI
from pydantic import BaseModel

from tests.e2e.clients.conftest import until
from tests.e2e.conftest import sdk
from tests.support.gateway import Gateway

pytestmark = pytest.mark.slow

HELLO = [{"role": "user", "content": "Say hello in one short sentence."}]
ASK = [{"role": "user", "content": "What is the weather in Paris?"}]
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather in a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
TOOLS = {"model": "smollm2", "tools": [WEATHER], "max_tokens": 80, "temperature": 0}


class City(BaseModel):
    """What the model must fill in."""

    size: Literal["small", "large"]
    capital: bool


@pytest.mark.shows("openai-python", "tools")
def test_a_tool_is_called_and_its_result_understood(openai: OpenAI) -> None:
    """Two turns: the call with arguments that are JSON of the schema, then an answer to the tool's word."""
    first = openai.chat.completions.create(messages=ASK, tool_choice="required", **TOOLS)
    assert first.choices[0].finish_reason == "tool_calls"
    (call,) = first.choices[0].message.tool_calls or []
    assert call.function.name == "weather"
    assert '"city"' in call.function.arguments
    turns = [*ASK, first.choices[0].message, {"role": "tool", "tool_call_id": call.id, "content": "Sunny, 20 degrees."}]
    second = openai.chat.completions.create(messages=turns, **TOOLS)
    assert second.choices[0].message.content


@pytest.mark.shows("openai-python", "tools", "stream")
def test_a_streamed_tool_call_is_put_together_by_the_sdk(openai: OpenAI) -> None:
    """The SDK's own accumulator, with usage in the last chunk."""
    usage = {"stream_options": {"include_usage": True}}
    with openai.chat.completions.stream(messages=ASK, tool_choice="required", **TOOLS, **usage) as stream:
        kinds = {event.type for event in stream}
        whole = stream.get_final_completion()
    assert {"chunk", "tool_calls.function.arguments.delta", "tool_calls.function.arguments.done"} <= kinds
    (call,) = whole.choices[0].message.tool_calls or []
    assert call.function.name == "weather"
    assert whole.usage is not None
    assert whole.usage.completion_tokens > 1


@pytest.mark.shows("openai-python", "schema")
def test_an_answer_follows_a_schema(openai: OpenAI) -> None:
    """`parse()` with a pydantic model: `response_format` of type `json_schema`."""
    answer = openai.chat.completions.parse(
        model="smollm2", messages=ASK, response_format=City, max_tokens=80, temperature=0
    )
    assert isinstance(answer.choices[0].message.parsed, City)


def test_the_async_client_streams_too(server: Gateway) -> None:
    """`AsyncOpenAI` on asyncio, as most use it: a plain answer and a stream."""

    async def both() -> tuple[str | None, int]:
        async with AsyncOpenAI(base_url=f"{server.url}/v1", api_key="unused", max_retries=0) as client:
            plain = await client.chat.completions.create(model="smollm2", messages=HELLO, max_tokens=4)
            stream = await client.chat.completions.create(model="smollm2", messages=HELLO, max_tokens=4, stream=True)
            return plain.choices[0].message.content, len([piece async for piece in stream])

    text, pieces = asyncio.run(both())
    assert text
    assert pieces > 2


def test_S6_a_hundred_at_once_are_all_answered(server: Gateway) -> None:
    """More than there are slots, through one connection pool: nobody is refused, and nobody's answer is another's."""

    async def all_of_them() -> tuple[list[str], list[int]]:
        async with AsyncOpenAI(base_url=f"{server.url}/v1", api_key="unused", max_retries=0) as client:
            asks = [
                client.chat.completions.with_raw_response.create(
                    model="smollm2", messages=HELLO, max_tokens=1, extra_headers={"X-Request-Id": f"chat-{n}"}
                )
                for n in range(60)
            ]
            lists = [client.embeddings.create(model="minilm", input=["a cat"] * (n % 5 + 1)) for n in range(40)]
            chats, vectors = await asyncio.gather(asyncio.gather(*asks), asyncio.gather(*lists))
            return [raw.headers["x-request-id"] for raw in chats], [len(answer.data) for answer in vectors]

    ids, lengths = asyncio.run(all_of_them())
    assert ids == [f"chat-{n}" for n in range(60)]
    assert lengths == [n % 5 + 1 for n in range(40)]


def busy(server: Gateway, model: str) -> int:
    """How many slots of a model work."""
    instances = server.get("/api/status").json()["instances"]
    return sum(instance["slots"]["busy"] for instance in instances if instance["model"] == model)


def test_S8_a_client_that_waits_no_longer_frees_its_slot(server: Gateway, openai: OpenAI) -> None:
    """The SDK's own time limit: it raises, and long before those 1,500 tokens the slot is free."""
    before = int(str(server.events()[-1]["seq"]))
    with pytest.raises(APITimeoutError):
        openai.with_options(timeout=0.3).chat.completions.create(
            model="smollm2", messages=HELLO, max_tokens=1500, extra_body={"ignore_eos": True}
        )
    until(lambda: busy(server, "smollm2") == 0)
    mine = [line for line in server.events() if int(str(line["seq"])) > before and line.get("model") == "smollm2"]
    assert "cancel" in {line["event"] for line in mine}
    assert "complete" not in {line["event"] for line in mine}


def test_what_the_gateway_says_beside_an_answer_can_be_read(openai: OpenAI) -> None:
    """`with_raw_response`: job, class, model and wait; a request id of the client's is said back."""
    raw = openai.chat.completions.with_raw_response.create(
        model="gpt-4o", messages=HELLO, max_tokens=1, extra_headers={"X-Request-Id": "mine-1"}
    )
    assert raw.headers["x-request-id"] == "mine-1"
    assert raw.headers["x-gridsched-model"] == "smollm2"
    assert int(raw.headers["x-gridsched-queue-ms"]) >= 0
    assert int(raw.headers["x-gridsched-job-id"]) > 0
    assert raw.parse().choices[0].message.content


@contextmanager
def everybody_talks(client: OpenAI) -> Iterator[ExitStack]:
    """Both slots of the chat model generate until the stack is closed."""
    with ExitStack() as streams:
        for _ in range(2):
            stream = client.chat.completions.create(
                model="smollm2", messages=HELLO, max_tokens=1500, stream=True, extra_body={"ignore_eos": True}
            )
            streams.callback(stream.close)
            next(iter(stream))
        yield streams


def watching(server: Gateway, look: Callable[[httpx2.Response], None]) -> OpenAI:
    """The SDK with its retries as they come, and a look at every answer that it gets."""
    http = DefaultHttpxClient(event_hooks={"response": [look]})
    return OpenAI(base_url=f"{server.url}/v1", api_key="unused", http_client=http)


@pytest.mark.shows("openai-python", "retries")
def test_S9_the_sdk_comes_back_when_waiting_helps(server: Gateway, openai: OpenAI) -> None:
    """503 `queue_timeout` after the wait that it allowed; a slot comes free, and the SDK's second try is answered."""
    refusals: list[tuple[int, str | None]] = []
    with everybody_talks(openai) as streams:

        def look(answer: httpx2.Response) -> None:
            if answer.status_code != HTTPStatus.OK:
                refusals.append((answer.status_code, answer.headers.get("x-should-retry")))
                streams.close()

        with watching(server, look) as client:
            raw = client.chat.completions.with_raw_response.create(
                model="smollm2", messages=HELLO, max_tokens=1, extra_body={"gridsched": {"max_wait_ms": 50}}
            )
    assert refusals == [(503, "true")]
    assert raw.retries_taken == 1
    assert raw.parse().choices


@pytest.mark.shows("openai-python", "retries")
def test_S9_the_sdk_waits_as_long_as_a_full_queue_says(short_queue: Gateway) -> None:
    """429 with `Retry-After`: the SDK keeps to it, and is then served."""
    refusals: list[tuple[int, str, str | None]] = []
    with sdk(short_queue) as others, everybody_talks(others) as streams, ThreadPoolExecutor(1) as pool:
        low = {"model": "smollm2", "messages": HELLO, "max_tokens": 1, "x_class": "background"}
        waiting = pool.submit(short_queue.post, "/v1/chat/completions", low)
        until(lambda: short_queue.get("/api/status").json()["queues"]["background"]["length"] == 1)

        def look(answer: httpx2.Response) -> None:
            if answer.status_code != HTTPStatus.OK:
                headers = answer.headers
                refusals.append((answer.status_code, headers["retry-after"], headers.get("x-should-retry")))
                streams.close()

        with watching(short_queue, look) as client:
            raw = client.chat.completions.with_raw_response.create(
                model="smollm2", messages=HELLO, max_tokens=1, service_tier="flex"
            )
        assert waiting.result().status_code == HTTPStatus.OK
    assert [status for status, _, _ in refusals] == [429]
    assert 1 <= int(refusals[0][1]) <= 60
    assert refusals[0][2] != "false"
    assert raw.retries_taken == 1
    assert raw.headers["x-gridsched-class"] == "background"


@pytest.mark.shows("openai-python", "retries", "errors")
def test_the_sdk_does_not_repeat_what_will_not_help(server: Gateway) -> None:
    """`x-should-retry: false` on a 503 that time alone does not change, and on a 404: one request each."""
    seen: list[int] = []
    with watching(server, lambda answer: seen.append(answer.status_code)) as client:
        with pytest.raises(InternalServerError) as caught:
            client.chat.completions.create(
                model="smollm2-cold", messages=HELLO, max_tokens=1, extra_body={"gridsched": {"warm_only": True}}
            )
        with pytest.raises(NotFoundError):
            client.chat.completions.create(model="nobody", messages=HELLO, max_tokens=1)
    assert caught.value.code == "not_resident"
    assert seen == [503, 404]
