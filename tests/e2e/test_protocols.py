"""Every endpoint on the real engine: what goes up is what it takes, and what it answers is what clients read."""

import json
import os
import signal
import textwrap
from base64 import b64encode
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType

import openai
import pytest
from openai import OpenAI

from gridsched.api.routes import ROUTES
from tests.support.gateway import Gateway, start
from tests.support.tiny_model import make_tiny_chat
from tests.support.tiny_projectors import make_tiny_ear, make_tiny_eye, picture, tone

pytestmark = pytest.mark.slow

SAID = [{"role": "user", "content": "Say hello."}]
LONG = {"max_tokens": 2000}
"""More than is read before the engine is killed."""


@pytest.fixture(scope="module")
def protocols(models: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """One gateway for this file: models that load in a moment, one for each thing that can be asked."""
    folder = tmp_path_factory.mktemp("protocols")
    tiny = make_tiny_chat(folder / "tiny.gguf", fills_in=True)
    (folder / "beside").mkdir()  # in the same folder it would be found for each of them
    ear, eye = make_tiny_ear(folder / "beside" / "ear.gguf"), make_tiny_eye(folder / "beside" / "eye.gguf")
    config = folder / "gridsched.yaml"
    one = 'ctx_size: 2048, parallel: 1, flags: ["--threads", "1"]'
    config.write_text(
        textwrap.dedent(f"""\
        library: {{dirs: []}}
        models:
          org/tiny:f32: {{path: "{tiny}", {one}}}
          hears: {{path: "{tiny}", mmproj: "{ear}", {one}}}
          sees: {{path: "{tiny}", mmproj: "{eye}", {one}}}
          minilm: {{path: "{models[1]}", parallel: 1, flags: ["--threads", "1"]}}
          ranks: {{path: "{models[1]}", parallel: 1, flags: ["--threads", "1", "--reranking"]}}
          gone: {{path: "{folder / "gone.gguf"}"}}
        """),
        encoding="utf-8",
    )
    running = start(folder, "--config", str(config))
    try:
        yield running
    finally:
        code = running.stop()
    assert code == 0


def post(server: Gateway, path: str, body: object) -> dict[str, object]:
    """The answer of a request that is served."""
    answer = server.post(path, body)
    assert answer.status_code == 200, (path, answer.text)
    told = answer.json()
    assert isinstance(told, dict)
    return told


def test_every_endpoint_answers_on_the_real_engine(protocols: Gateway) -> None:
    """Without a model's name: each goes to one that can, and answers in its protocol's shape."""
    chat = post(protocols, "/v1/chat/completions", {"messages": SAID, "max_tokens": 3})
    assert chat["usage"]["completion_tokens"] == 3  # type: ignore[index]  # JSON
    completion = post(protocols, "/v1/completions", {"prompt": "a", "max_tokens": 3})
    assert completion["object"] == "text_completion"
    response = post(protocols, "/v1/responses", {"input": "a", "max_output_tokens": 3})
    assert (response["object"], response["usage"]["output_tokens"]) == ("response", 3)  # type: ignore[index]  # JSON
    message = post(protocols, "/v1/messages", {"messages": SAID, "max_tokens": 3, "system": "Be brief."})
    assert (message["type"], message["usage"]["output_tokens"]) == ("message", 3)  # type: ignore[index]  # JSON
    counted = post(protocols, "/v1/messages/count_tokens", {"messages": SAID, "system": "Be brief."})
    used: dict[str, int] = message["usage"]  # type: ignore[assignment]  # JSON
    assert counted == {"input_tokens": used["input_tokens"] + used["cache_read_input_tokens"]}
    vectors = post(protocols, "/v1/embeddings", {"input": ["a", "b"]})
    assert len(vectors["data"]) == 2  # type: ignore[arg-type]  # JSON
    ranked = post(protocols, "/v1/rerank", {"query": "a cat", "documents": ["cats", "tax law"], "top_n": 2})
    assert {one["index"] for one in ranked["results"]} == {0, 1}  # type: ignore[attr-defined]  # JSON
    tokens = post(protocols, "/tokenize", {"content": "Hello"})
    assert post(protocols, "/detokenize", tokens) == {"content": " Hello"}
    assert "Say hello." in str(post(protocols, "/apply-template", {"messages": SAID})["prompt"])
    filled = post(protocols, "/infill", {"input_prefix": "def f(", "input_suffix": "return", "n_predict": 3})
    assert filled["tokens_predicted"] == 3
    loaded = {line["model"] for line in protocols.events() if line["event"] == "load"}
    assert loaded == {"org/tiny:f32", "minilm", "ranks"}


def test_a_transcription_is_made_by_a_model_that_hears(protocols: Gateway) -> None:
    """Its form reaches the engine whole, but for what is ours; streamed, too. In a chat the sound is a part."""
    file = ("a.wav", tone(0.5), "audio/wav")
    with OpenAI(base_url=f"{protocols.url}/v1", api_key="unused", max_retries=0, timeout=60.0) as client:
        ask = client.audio.transcriptions.with_raw_response.create
        ours = {"x_class": "batch", "gridsched": '{"ttl": 60}', "max_tokens": "4"}
        answer = ask(model="hears", file=file, language="en", temperature=0.5, extra_body=ours)
        assert answer.headers["x-gridsched-class"] == "batch"
        assert len(answer.parse().text) == 4
        stream = client.audio.transcriptions.create(
            model="hears", file=file, stream=True, extra_body={"max_tokens": "4"}
        )
        kinds = [event.type for event in stream]
        assert kinds == ["transcript.text.delta"] * 4 + ["transcript.text.done"]
        with pytest.raises(openai.BadRequestError, match="Failed to load"):
            client.audio.transcriptions.create(model="hears", file=("a.wav", b"RIFF and no more"))
        with pytest.raises(openai.BadRequestError, match="hears can"):
            client.audio.transcriptions.create(model="org/tiny:f32", file=file)
    sound = {"type": "input_audio", "input_audio": {"data": b64encode(tone(0.5)).decode(), "format": "wav"}}
    body = {"messages": [{"role": "user", "content": [sound]}], "max_tokens": 2}
    assert post(protocols, "/v1/chat/completions", body | {"model": "hears"})["object"] == "chat.completion"
    refused = protocols.post("/v1/chat/completions", body)
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "model_not_supported")


def test_R10_a_picture_is_seen_in_every_protocol_that_has_them(protocols: Gateway) -> None:
    """By a model that sees, which counts it among its tokens; another refuses it before it is asked."""
    data = b64encode(picture(32)).decode()
    url = f"data:image/png;base64,{data}"
    source = {"type": "base64", "media_type": "image/png", "data": data}
    user = {"role": "user"}
    bodies = {
        "/v1/chat/completions": {"messages": [user | {"content": [{"type": "image_url", "image_url": {"url": url}}]}]},
        "/v1/responses": {"input": [user | {"content": [{"type": "input_image", "image_url": url}]}]},
        "/v1/messages": {"messages": [user | {"content": [{"type": "image", "source": source}]}]},
        "/v1/messages/count_tokens": {"messages": [user | {"content": [{"type": "image", "source": source}]}]},
    }
    for path, body in bodies.items():
        told = post(protocols, path, body | {"model": "sees", "max_tokens": 2, "max_output_tokens": 2})
        assert "error" not in told, path
        refused = protocols.post(path, body | {"model": "hears"})
        assert (refused.status_code, refused.json()["error"]["code"]) == (400, "model_not_supported")
        assert refused.json()["error"]["gridsched"]["able"] == ["sees"]
    assert protocols.get("/api/v0/models/sees").json()["type"] == "vlm"


def test_S6_a_chat_waits_for_one_of_many_prompts_at_most(protocols: Gateway) -> None:
    """Of one batch request: the engine would have begun all of them before it. Whole and streamed, each prompt has its
    answer, in order; of one prompt several."""
    name = "org/tiny:f32"
    many = {"model": name, "prompt": ["a"] * 12, "max_tokens": 500, "ignore_eos": True, "x_class": "batch"}
    with ThreadPoolExecutor(1) as beside:
        batch = beside.submit(post, protocols, "/v1/completions", many)
        assert protocols.comes_to(lambda: any(line.get("step") == 2 for line in protocols.events()))
        post(protocols, "/v1/chat/completions", {"model": name, "messages": SAID, "max_tokens": 1})
        lines = [line for line in protocols.events() if line.get("steps") == 12]
        assert max(int(str(line["step"])) for line in lines) < 11
        choices: list[dict[str, object]] = batch.result()["choices"]  # type: ignore[assignment]  # JSON
    assert [one["index"] for one in choices] == list(range(12))
    with OpenAI(base_url=f"{protocols.url}/v1", api_key="unused", max_retries=0, timeout=60.0) as client:
        stream = client.chat.completions.create(model=name, messages=SAID, max_tokens=3, n=3, stream=True)  # type: ignore[call-overload]  # plain dicts
        told = [choice.index for part in stream for choice in part.choices if choice.delta.content]
        assert told == [0] * 3 + [1] * 3 + [2] * 3
        texts = client.completions.create(model=name, prompt=["a", "b"], max_tokens=3, stream=True)
        assert {part.choices[0].index for part in texts} == {0, 1}


STREAMED = {
    "/v1/chat/completions": {"messages": SAID, "max_tokens": 4},
    "/v1/completions": {"prompt": "a", "max_tokens": 4},
    "/v1/responses": {"input": "a", "max_output_tokens": 4},
    "/v1/messages": {"messages": SAID, "max_tokens": 4},
    "/infill": {"input_prefix": "a", "input_suffix": "b", "n_predict": 4},
}


def test_every_protocol_streams_on_the_real_engine(protocols: Gateway) -> None:
    """Events to the end, and as many of them as were asked for."""
    assert STREAMED.keys() == {path for path, route in ROUTES.items() if route.streams and not route.form}
    for path, body in STREAMED.items():
        answer = protocols.post(path, body | {"stream": True})
        assert answer.headers["content-type"].startswith("text/event-stream"), path
        data = [line[6:] for line in answer.text.splitlines() if line.startswith("data: {")]
        assert len(data) >= 4, path
        assert not any("error" in json.loads(one) for one in data), path


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/messages/count_tokens", "/v1/responses", "/tokenize", "/infill"])
def test_H1_what_the_engine_fails_on_never_gets_there(protocols: Gateway, path: str) -> None:
    """It answers 500, or something that was not asked for, to a body without the members that we look at."""
    key = {"/tokenize": "content", "/v1/responses": "input", "/infill": "input_prefix"}.get(path, "messages")
    answer = protocols.post(path, {key: 5})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, key)


UNREADABLE: dict[str, tuple[str, dict[str, object]]] = {
    "a token": ("/detokenize", {"tokens": [9_999_999]}),
    "a word for a token": ("/detokenize", {"tokens": ["a"]}),
    "a count": ("/v1/rerank", {"query": "a", "documents": ["b"], "top_n": -1}),
    "a document": ("/v1/rerank", {"query": "a", "documents": ["b", "word " * 3000]}),
    "a role": ("/v1/chat/completions", {"messages": [{"role": 5, "content": "a"}]}),
    "no role": ("/v1/messages", {"messages": [{"content": "a"}], "max_tokens": 1}),
    "tools": ("/v1/chat/completions", {"messages": SAID, "tools": 5}),
    "a tool": ("/v1/responses", {"input": "a", "tools": [{"type": "function"}]}),
    "a text": ("/v1/responses", {"input": [{"role": "user", "content": [{"type": "input_text", "text": 5}]}]}),
    "a call": ("/apply-template", {"messages": [{"role": "assistant", "tool_calls": [5]}]}),
    "data": (
        "/v1/chat/completions",
        {
            "model": "sees",
            "messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}],
        },
    ),
    "no data": (
        "/v1/chat/completions",
        {"model": "hears", "messages": [{"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]}]},
    ),
}


@pytest.mark.parametrize(("path", "body"), UNREADABLE.values(), ids=UNREADABLE.keys())
def test_H1_what_the_engine_cannot_parse_is_the_clients_fault(
    protocols: Gateway, path: str, body: dict[str, object]
) -> None:
    """Its own 500s, in its own words, streamed or not: a client that repeats by itself would send them three times."""
    for stream in (False, True):
        answer = protocols.post(path, body | {"stream": stream})
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_request"), answer.text
        assert answer.headers["x-should-retry"] == "false"


def engine_of(server: Gateway, name: str) -> int:
    """The pid of the process that serves a model, which is loaded for it if need be."""
    post(server, "/v1/completions", {"model": name, "prompt": "a", "max_tokens": 1})
    words = {pid: Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0") for pid in server.children()}
    (pid,) = (pid for pid, said in words.items() if said[said.index(b"--alias") + 1] == name.encode())
    return pid


def test_the_official_sdks_raise_where_a_stream_breaks(protocols: Gateway, messages_sdk: ModuleType) -> None:
    """For each protocol the engine is killed in mid-answer: nobody takes half an answer for a whole one."""
    client = OpenAI(base_url=f"{protocols.url}/v1", api_key="unused", max_retries=0, timeout=60.0)
    anthropic = messages_sdk.Anthropic(base_url=protocols.url, api_key="unused", max_retries=0, timeout=60.0)
    name = "org/tiny:f32"
    streams = {
        "chat": lambda: client.chat.completions.create(model=name, messages=SAID, stream=True, **LONG),  # type: ignore[call-overload]  # plain dicts
        "responses": lambda: client.responses.create(model=name, input="a", stream=True, max_output_tokens=2000),
        "messages": lambda: anthropic.messages.create(model=name, messages=SAID, stream=True, **LONG),  # type: ignore[call-overload]  # plain dicts
    }
    for protocol, ask in streams.items():
        engine = engine_of(protocols, name)
        with ask() as stream:
            next(stream)
            os.kill(engine, signal.SIGKILL)
            with pytest.raises((openai.APIError, messages_sdk.APIStatusError)) as raised:
                list(stream)
        assert "upstream_error" in str(raised.value.body), protocol
    client.close()
    anthropic.close()


def test_the_official_sdks_read_a_refusal(protocols: Gateway, messages_sdk: ModuleType) -> None:
    """Their own error classes, with our sentence."""
    with messages_sdk.Anthropic(base_url=protocols.url, api_key="unused", max_retries=0) as anthropic:
        with pytest.raises(messages_sdk.APIStatusError) as raised:
            anthropic.messages.create(model="minilm", messages=SAID, max_tokens=1)  # type: ignore[arg-type]  # plain dicts
        assert raised.value.status_code == 400
        assert "does not serve messages" in str(raised.value)
        page = anthropic.models.list()
        assert [one.id for one in page] == ["org/tiny:f32", "hears", "sees", "minilm", "ranks", "gone"]
        assert page.data[0].display_name == "org/tiny:f32"
        assert anthropic.models.retrieve("org/tiny:f32").created_at.year > 2000


def test_H12_the_openai_sdk_lists_and_finds_models(protocols: Gateway) -> None:
    """A name with a slash and a colon, one that cannot be served among them, and the order is that of the file."""
    with OpenAI(base_url=f"{protocols.url}/v1", api_key="unused", max_retries=0) as client:
        listed = [client.models.list().data for _ in range(2)]
        assert [[one.id for one in page] for page in listed] == [
            ["org/tiny:f32", "hears", "sees", "minilm", "ranks", "gone"]
        ] * 2
        assert client.models.retrieve("org/tiny:f32").object == "model"
        assert client.models.retrieve("gone").to_dict()["gridsched"]["state"] == "unavailable"  # type: ignore[index]  # JSON
        with pytest.raises(openai.NotFoundError):
            client.models.retrieve("org/other")
    mirrored = protocols.get("/api/v0/models/org/tiny:f32").json()
    assert (mirrored["type"], mirrored["quantization"], mirrored["max_context_length"]) == ("llm", "F32", 4096)
