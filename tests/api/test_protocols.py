"""Every endpoint of the data plane, whole and streamed, through the front on simulated hardware."""

import json
from collections.abc import Mapping

import pytest
from trio.testing import MockClock

from gridsched.api.routes import ROUTES
from gridsched.api.settings import FrontSettings
from gridsched.ports import UpstreamFailureKind
from tests.support.fakes import EVENTS, Script
from tests.support.front import Answer, serving

SAID = [{"role": "user", "content": "hi there"}]
PICTURE = "data:image/png;base64,AAAA"

BODIES: Mapping[str, dict[str, object]] = {
    "/v1/chat/completions": {"messages": SAID, "max_tokens": 3},
    "/v1/completions": {"prompt": "hi there", "max_tokens": 3},
    "/v1/embeddings": {"input": ["a", "b"]},
    "/v1/responses": {"input": "hi there", "max_output_tokens": 3},
    "/v1/messages": {"messages": SAID, "max_tokens": 3},
    "/v1/messages/count_tokens": {"messages": SAID},
    "/v1/rerank": {"query": "a", "documents": ["b", "a"], "top_n": 1},
    "/tokenize": {"content": "hi"},
    "/detokenize": {"tokens": [104, 105]},
    "/apply-template": {"messages": SAID},
    "/infill": {"input_prefix": "def f(", "input_suffix": "return", "n_predict": 3},
}
"""The smallest request that each route takes."""

SERVED_BY = {"/v1/embeddings": "sim-embed", "/v1/rerank": "sim-rerank"}
QUICK = {"model": "sim-chat-2b", "stream": True}  # loaded before a comment is due
STREAMED = [path for path, route in ROUTES.items() if route.streams and not route.form]


def events(answer: Answer) -> list[tuple[str, dict[str, object]]]:
    """The name and data of every event of a stream; comments are passed over."""
    found = []
    for block in answer.body.decode().split("\n\n"):
        lines = dict(line.partition(": ")[::2] for line in block.split("\n") if line and not line.startswith(":"))
        if lines.get("data", "[DONE]") != "[DONE]":
            found.append((lines.get("event", ""), json.loads(lines["data"])))
    return found


def test_every_route_has_a_body_here() -> None:
    """So that none is left out below; forms have their own file."""
    assert set(BODIES) == {path for path, route in ROUTES.items() if not route.form}


async def test_every_endpoint_is_served_as_a_job_by_a_model_that_can(autojump_clock: MockClock) -> None:
    """None of them names a model: the default one serves, or the first that can do it (embeddings, rerank)."""
    async with serving(autojump_clock) as house:
        for number, (path, body) in enumerate(BODIES.items(), 1):
            answer = await house.ask("POST", path, body)
            assert answer.status == 200, (path, answer.body)
            assert answer.headers["x-gridsched-model"] == SERVED_BY.get(path, "sim-chat-12b"), path
            assert answer.headers["x-gridsched-job-id"] == str(number)
            assert house.upstream.asked[-1].target == path


async def test_H2_bodies_of_every_endpoint_go_up_as_they_came(autojump_clock: MockClock) -> None:
    """Our own members are cut out and `model` is the engine's; spaces and numbers stay as they were written."""
    async with serving(autojump_clock) as house:
        for path, body in BODIES.items():
            sent = json.dumps(body, indent=1).encode()
            ours = b'{"x_class": "batch", "gridsched": {"ttl": 60},' + sent[1:-1] + b',"odd": 1.50}'
            house.upstream.scripts.append(Script([b"{}"]))
            answer = await house.ask("POST", path, ours)
            assert answer.headers["x-gridsched-class"] == "batch", path
            name = json.dumps(SERVED_BY.get(path, "sim-chat-12b")).encode()
            assert house.upstream.asked[-1].body == b'{"model":' + name + b"," + sent[1:-1] + b',"odd": 1.50}', path


async def test_what_each_protocol_answers_has_its_own_shape(autojump_clock: MockClock) -> None:
    """As the engine does; the same whether it is simulated or real (see the end-to-end tests)."""
    async with serving(autojump_clock) as house:
        told = {path: (await house.ask("POST", path, body)).json for path, body in BODIES.items()}
    response = told["/v1/responses"]
    assert (response["object"], response["status"]) == ("response", "completed")
    assert response["usage"] == {"input_tokens": 2, "output_tokens": 3, "total_tokens": 5}
    message = told["/v1/messages"]
    assert (message["type"], message["stop_reason"]) == ("message", "max_tokens")
    assert message["usage"] == {"input_tokens": 2, "output_tokens": 3}
    assert told["/v1/messages/count_tokens"] == {"input_tokens": 2}
    assert [one["index"] for one in told["/v1/rerank"]["results"]] == [1]  # type: ignore[attr-defined, index]  # JSON
    assert told["/tokenize"] == {"tokens": [104, 105]}
    assert told["/detokenize"] == {"content": "hi"}
    assert "hi there" in str(told["/apply-template"]["prompt"])
    assert told["/infill"]["tokens_predicted"] == 3


@pytest.mark.parametrize("path", STREAMED)
async def test_H2_a_stream_of_every_protocol_passes_byte_for_byte(autojump_clock: MockClock, path: str) -> None:
    """Events, their names and the blank lines between them; the server adds nothing to what the engine wrote."""
    raw = [b"event: one\r\ndata: {}\r\n\r\n", b"event: two\nda", b"ta: {}\n\n\n"]
    async with serving(autojump_clock) as house:
        house.upstream.scripts.append(Script(raw, headers=EVENTS))
        answer = await house.ask("POST", path, BODIES[path] | QUICK)
        assert (answer.status, answer.body) == (200, b"".join(raw))
        assert answer.headers["content-type"].startswith("text/event-stream")
        whole = await house.ask("POST", path, BODIES[path] | QUICK)
        assert len(events(whole)) >= 4
        assert whole.complete


ERROR_KEYS = {"message", "type", "param", "code", "gridsched"}


@pytest.mark.parametrize("path", STREAMED)
async def test_H3_an_error_after_the_start_is_told_in_the_protocols_own_way(
    autojump_clock: MockClock, path: str
) -> None:
    """One last event on which the official SDK raises, never `[DONE]` and never the end of an answer."""
    async with serving(autojump_clock) as house:
        parts = [b'event: begun\ndata: {"a":1}\n\ndata: {"cu', UpstreamFailureKind.BROKEN]
        house.upstream.scripts.append(Script(parts, headers=EVENTS))
        answer = await house.ask("POST", path, BODIES[path] | QUICK)
        assert answer.status == 200
        assert answer.complete
        assert b"[DONE]" not in answer.body
        name, data = events(Answer(200, {}, answer.body.replace(b'data: {"cu\n\n', b"")))[-1]
        error = data["error"]
        assert isinstance(error, dict)
        assert (set(error), error["code"]) == (ERROR_KEYS, "upstream_error")
        if path == "/v1/messages":
            assert (name, set(data), data["type"]) == ("error", {"type", "error"}, "error")
        elif path == "/v1/responses":
            assert (name, set(data)) == ("error", {"type", "code", "message", "param", "error"})
            assert (data["type"], data["code"], data["message"]) == ("error", "upstream_error", error["message"])
        else:
            assert (name, set(data)) == ("", {"error"})


ENGINES_ERRORS = [
    b'{"error" : {"code":400,"message":"no","type":"invalid_request_error"}}',
    b'{"type":"error","error":{"message":"no"}}',
    b'{"error":"no"}',
    b"no",
]


@pytest.mark.parametrize("refusal", ENGINES_ERRORS)
@pytest.mark.parametrize("path", STREAMED)
async def test_an_engines_refusal_after_200_becomes_an_event_of_the_protocol(
    autojump_clock: MockClock, path: str, refusal: bytes
) -> None:
    """Whatever it looks like: the promise of events was out before the engine's status came."""
    async with serving(autojump_clock, FrontSettings(hold_seconds=1.0)) as house:
        house.upstream.scripts.append(Script([refusal], status=400, head_seconds=20.0))
        answer = await house.ask("POST", path, BODIES[path] | QUICK)
        assert answer.status == 200
        ((name, data),) = events(answer)
        assert data["error"]
        assert name == ("error" if path in ("/v1/messages", "/v1/responses") else "")
        assert "no" in json.dumps(data["error"])
        if path == "/v1/responses":
            assert "no" in str(data["message"])


async def test_H1_a_refusal_on_messages_has_what_anthropics_clients_look_for(autojump_clock: MockClock) -> None:
    """`type` beside `error`; the rest is the contract's shape. Other routes have the contract's shape alone."""
    async with serving(autojump_clock) as house:
        for path in ("/v1/messages", "/v1/messages/count_tokens", "/v1/messages/batches", "/v1/responses"):
            for method, body in (
                ("POST", {"model": "nobody"} | BODIES["/v1/messages"]),
                ("POST", b"{"),
                ("PUT", b"{}"),
            ):
                answer = await house.ask(method, path, body)
                assert 400 <= answer.status < 500
                assert set(answer.error) == ERROR_KEYS
                typed = path.startswith("/v1/messages")
                assert answer.json.get("type") == ("error" if typed else None), path
                assert answer.headers["content-length"] == str(len(answer.body))
        assert not house.logged("enqueue")


async def test_H6_who_may_not_ask_is_told_so_in_the_protocols_way_too(autojump_clock: MockClock) -> None:
    """A refusal at the gate, before any route has looked at the request."""
    async with serving(autojump_clock) as house:
        for path, kind in (("/v1/messages", "error"), ("/v1/chat/completions", None)):
            answer = await house.ask("POST", path, BODIES[path], {"Host": "elsewhere.example"})
            assert (answer.status, answer.error["code"], answer.json.get("type")) == (403, "cross_origin", kind)


async def test_messages_is_served_with_a_query(autojump_clock: MockClock) -> None:
    """Anthropic's clients ask `?beta=true`."""
    async with serving(autojump_clock) as house:
        answer = await house.ask("POST", "/v1/messages?beta=true", BODIES["/v1/messages"])
        assert (answer.status, house.upstream.asked[-1].target) == (200, "/v1/messages")


CANNOT = [
    ("/v1/chat/completions", "sim-embed", "sim-chat-12b"),
    ("/v1/completions", "sim-rerank", "sim-chat-12b"),
    ("/v1/responses", "sim-embed", "sim-chat-12b"),
    ("/v1/messages", "sim-embed", "sim-chat-12b"),
    ("/v1/messages/count_tokens", "sim-rerank", "sim-chat-12b"),
    ("/infill", "sim-embed", "sim-chat-12b"),
    ("/v1/embeddings", "sim-chat-4b", "sim-embed"),
    ("/v1/embeddings", "sim-rerank", "sim-embed"),
    ("/v1/rerank", "sim-embed", "sim-rerank"),
    ("/v1/rerank", "gpt-4o", "sim-rerank"),
]


async def test_G9_what_a_model_cannot_do_is_refused_before_a_load_naming_who_can(autojump_clock: MockClock) -> None:
    """In the sentence and as data."""
    async with serving(autojump_clock) as house:
        for path, model, able in CANNOT:
            answer = await house.ask("POST", path, BODIES[path] | {"model": model})
            assert (answer.status, answer.error["code"], answer.error["param"]) == (400, "model_not_supported", "model")
            assert able in str(answer.error["message"]), path
            assert able in answer.error["gridsched"]["able"]  # type: ignore[index]  # JSON
        for path in ("/tokenize", "/detokenize", "/apply-template"):
            for model in ("sim-embed", "sim-rerank", "sim-chat-2b"):
                assert (await house.ask("POST", path, BODIES[path] | {"model": model})).status == 200
        assert {line["model"] for line in house.logged("load")} == {"sim-embed", "sim-rerank", "sim-chat-2b"}


IMAGE = {"type": "image_url", "image_url": {"url": PICTURE}}
SOUND = {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}
BLOCK = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}
PAGES = {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "AAAA"}}
RESULT = {"type": "tool_result", "tool_use_id": "a", "content": [{"type": "text", "text": "see"}, BLOCK]}
USER = {"role": "user"}
BRINGS = [
    ("/v1/chat/completions", {"messages": [USER | {"content": [IMAGE]}]}, "sim-chat-4b"),
    ("/v1/chat/completions", {"messages": [*SAID, USER | {"content": [SOUND]}]}, "sim-chat-2b"),
    ("/apply-template", {"messages": [USER | {"content": [IMAGE]}]}, "sim-chat-4b"),
    ("/v1/messages", {"messages": [USER | {"content": [BLOCK]}], "max_tokens": 1}, "sim-chat-4b"),
    ("/v1/messages", {"messages": [USER | {"content": [RESULT]}], "max_tokens": 1}, "sim-chat-4b"),
    ("/v1/messages", {"messages": [USER | {"content": [PAGES]}], "max_tokens": 1}, "sim-chat-4b"),
    ("/v1/messages/count_tokens", {"messages": [USER | {"content": [BLOCK]}]}, "sim-chat-4b"),
    ("/v1/responses", {"input": [USER | {"content": [{"type": "input_image", "image_url": PICTURE}]}]}, "sim-chat-4b"),
    ("/v1/responses", {"input": [USER | {"content": [{"type": "input_file", "file_data": "x"}]}]}, "sim-chat-4b"),
    ("/v1/responses", {"input": [USER | {"content": [{"type": "input_audio", "data": "x"}]}]}, "sim-chat-2b"),
    (
        "/v1/responses",
        {"input": [{"type": "function_call_output", "output": [{"type": "input_image", "image_url": PICTURE}]}]},
        "sim-chat-4b",
    ),
]


@pytest.mark.parametrize(("path", "body", "able"), BRINGS)
async def test_R10_pictures_and_sounds_go_only_to_a_model_that_takes_them(
    autojump_clock: MockClock, path: str, body: dict[str, object], able: str
) -> None:
    """Another model refuses before it is loaded, naming one that takes them; of a family only such variants serve."""
    async with serving(autojump_clock) as house:
        refused = await house.ask("POST", path, body | {"model": "sim-chat-12b"})
        assert (refused.status, refused.error["code"]) == (400, "model_not_supported")
        assert able in str(refused.error["message"])
        assert not house.logged("load")
        for model in (able, "sim-chat"):
            answer = await house.ask("POST", path, body | {"model": model})
            assert (answer.status, answer.headers["x-gridsched-model"]) == (200, able), answer.body


SHAPES = [
    ("/v1/responses", "input", (5, {}, None)),
    ("/v1/messages", "messages", ("hi", {}, None)),
    ("/v1/messages/count_tokens", "messages", ("hi", None)),
    ("/v1/rerank", "query", (5, ["a"], None)),
    ("/v1/rerank", "documents", ("a", [], {}, None)),
    ("/tokenize", "content", (5, {})),
    ("/detokenize", "tokens", ("a", 5)),
    ("/apply-template", "messages", ("hi", None)),
    ("/infill", "input_prefix", (5, None)),
    ("/infill", "input_suffix", ([], None)),
]


async def test_H1_members_that_the_engine_fails_on_are_refused_before_a_load(autojump_clock: MockClock) -> None:
    """Of another type, or missing where it cannot do without; `null` counts as missing."""
    async with serving(autojump_clock) as house:
        for path, key, wrong in SHAPES:
            for value in wrong:
                answer = await house.ask("POST", path, BODIES[path] | {key: value})
                assert (answer.status, answer.error["code"]) == (400, "invalid_request"), (path, value)
                assert answer.error["param"] == key
        assert not house.logged("enqueue")
        for path, body in (("/tokenize", {}), ("/detokenize", {})):
            assert (await house.ask("POST", path, body)).status == 200
        tei = await house.ask("POST", "/v1/rerank", {"query": "a", "texts": ["a", "b"]})
        assert [one["index"] for one in json.loads(tei.body)] == [0, 1]


@pytest.mark.parametrize("word", ["", "default", "AUTO", "@batch", "current@background"])
async def test_a_word_for_the_default_model_means_one_that_can(autojump_clock: MockClock, word: str) -> None:
    """A request that names no model of its own is not refused for what the default one is."""
    async with serving(autojump_clock) as house:
        for path in ("/v1/rerank", "/v1/embeddings", "/v1/messages"):
            answer = await house.ask("POST", path, BODIES[path] | {"model": word})
            assert (answer.status, answer.headers["x-gridsched-model"]) == (200, SERVED_BY.get(path, "sim-chat-12b"))


async def test_H4_the_deep_check_asks_a_reranker_too(autojump_clock: MockClock) -> None:
    """By a rerank of its own."""
    async with serving(autojump_clock) as house:
        await house.ask("POST", "/v1/rerank", BODIES["/v1/rerank"])
        told = await house.ask("GET", "/health?deep=1")
        assert (told.status, told.json["deep"]) == (
            200,
            {"status": "ok", "failed": {}, "passed": ["sim-rerank"]},
        )


FOREIGN = [
    ("POST", "/api/generate", "/v1/completions"),
    ("POST", "/api/chat", "/v1/chat/completions"),
    ("GET", "/api/tags", "/v1/models"),
    ("POST", "/api/embed", "/v1/embeddings"),
    ("POST", "/api/embeddings", "/v1/embeddings"),
    ("POST", "/api/show", "/v1/models"),
    ("POST", "/api/pull", "/v1/models"),
    ("HEAD", "/api/version", None),
    ("POST", "/api/blobs/sha256:0", "/v1/models"),
    ("GET", "/api/v1/models", "/v1/models"),
    ("POST", "/api/v1/chat", "/v1/chat/completions"),
    ("POST", "/api/v0/chat/completions", "/v1/chat/completions"),
    ("POST", "/chat/completions", "/v1/chat/completions"),
    ("POST", "/completion", "/v1/completions"),
    ("POST", "/v1/reranking", "/v1/rerank"),
]


async def test_H1_another_servers_own_paths_are_404_and_name_the_one_to_use(autojump_clock: MockClock) -> None:
    """Never a 200 and never a half of an imitation."""
    async with serving(autojump_clock) as house:
        for method, path, use in FOREIGN:
            answer = await house.ask(method, path, {"model": "sim-chat-4b"} if method == "POST" else None)
            assert answer.status == 404, path
            if use is not None:
                assert (answer.error["code"], answer.error["gridsched"]) == ("not_found", {"use": use})
                assert str(answer.error["message"]).endswith(f"use {use}.")
        assert not house.logged("enqueue")


async def test_metrics_name_no_endpoint_but_routes(autojump_clock: MockClock) -> None:
    """Whatever paths clients make up."""
    async with serving(autojump_clock) as house:
        for path in ("/v1/messages", "/v1/messages/batches", "/v1/nope", "/infill", "/v1/rerank/x"):
            await house.ask("POST", path, BODIES["/v1/messages"])
        page = (await house.ask("GET", "/metrics")).body.decode()
        named = {line.split('endpoint="')[1].split('"')[0] for line in page.splitlines() if 'endpoint="' in line}
        assert named == {"/v1/messages", "/infill"}
