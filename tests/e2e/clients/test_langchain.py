"""LangChain's `langchain-openai`, against a running gateway with the real engine and real models."""

from typing import Any, Literal

import pytest
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from openai import NotFoundError
from pydantic import BaseModel

from tests.support.gateway import Gateway

pytestmark = pytest.mark.slow


class City(BaseModel):
    """What the model must fill in."""

    size: Literal["small", "large"]
    capital: bool


@tool
def weather(city: str) -> str:
    """The weather in a city."""
    return f"It is sunny in {city}."


def chat(server: Gateway, **more: Any) -> ChatOpenAI:
    """The chat model as LangChain's users make it."""
    given = {"model": "smollm2", "temperature": 0, "max_tokens": 80, "max_retries": 0, "stream_usage": True} | more
    return ChatOpenAI(base_url=f"{server.url}/v1", api_key="unused", **given)


@pytest.mark.shows("langchain", "chat", "stream")
def test_a_chat_is_answered_whole_and_in_pieces(server: Gateway) -> None:
    """`invoke` and `stream`; the stream says what it used."""
    model = chat(server, max_tokens=12)
    whole = model.invoke("Say hello.")
    pieces = list(model.stream("Say hello."))
    assert whole.content
    assert len([piece for piece in pieces if piece.content]) > 2
    assert sum(piece.usage_metadata["output_tokens"] for piece in pieces if piece.usage_metadata) > 0


@pytest.mark.shows("langchain", "tools")
def test_a_tool_goes_round(server: Gateway) -> None:
    """The model's call, the tool's own answer, the next turn."""
    model = chat(server)
    ask = HumanMessage("What is the weather in Paris?")
    first = model.bind_tools([weather], tool_choice="any").invoke([ask])
    (call,) = first.tool_calls
    result = weather.invoke(call)
    assert isinstance(result, ToolMessage)
    assert model.bind_tools([weather]).invoke([ask, first, result]).content


@pytest.mark.shows("langchain", "schema")
def test_an_answer_follows_a_schema(server: Gateway) -> None:
    """`with_structured_output`."""
    assert isinstance(chat(server).with_structured_output(City).invoke("Paris"), City)


@pytest.mark.shows("langchain", "embeddings")
def test_documents_are_embedded(server: Gateway) -> None:
    """Without LangChain's own tokens, which are another model's: `check_embedding_ctx_length=False`."""
    embedder = OpenAIEmbeddings(
        base_url=f"{server.url}/v1", api_key="unused", model="minilm", check_embedding_ctx_length=False
    )
    assert [len(vector) for vector in embedder.embed_documents(["a cat", "a train"])] == [384, 384]


@pytest.mark.shows("langchain", "responses", "stream")
def test_the_responses_api_is_spoken(server: Gateway) -> None:
    """`use_responses_api=True`, whole and streamed."""
    model = chat(server, use_responses_api=True, max_tokens=16)
    assert model.invoke("Say hello.").text
    assert "".join(piece.text for piece in model.stream("Say hello."))


@pytest.mark.shows("langchain", "class", "errors")
def test_S1_a_class_in_the_body_and_an_error(server: Gateway) -> None:
    """`extra_body` goes through LangChain; what the gateway refuses is raised as the SDK's own class."""
    low = chat(server, max_tokens=1, extra_body={"x_class": "background"}, include_response_headers=True)
    assert low.invoke("hi").response_metadata["headers"]["x-gridsched-class"] == "background"
    with pytest.raises(NotFoundError):
        chat(server, model="nobody").invoke("hi")
