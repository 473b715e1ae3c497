"""The data plane over real sockets: answers pass through, errors have their shape, the job is named in the headers."""

import json

import pytest
from trio.testing import MockClock

from gridsched.api.settings import FrontSettings
from tests.support.fakes import Script
from tests.support.front import serving

CHAT = "/v1/chat/completions"
HELLO = {"model": "sim-chat-4b", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}


async def test_a_chat_is_answered_and_its_job_is_named(autojump_clock: MockClock) -> None:
    """The engine's answer, with the headers that say which job it was."""
    async with serving(autojump_clock) as house:
        answer = await house.ask("POST", CHAT, HELLO, {"X-Request-Id": "mine-7"})
        assert answer.status == 200
        assert answer.json["model"] == "sim-chat-4b"
        assert answer.headers["x-request-id"] == "mine-7"
        assert answer.headers["x-gridsched-job-id"] == "1"
        assert answer.headers["x-gridsched-class"] == "interactive"
        assert answer.headers["x-gridsched-model"] == "sim-chat-4b"
        assert int(answer.headers["x-gridsched-queue-ms"]) > 1000  # it was loaded for this job
        again = await house.ask("POST", CHAT, HELLO)
        assert int(again.headers["x-gridsched-queue-ms"]) == 0
        assert again.headers["x-request-id"].startswith("req-")


async def test_H2_the_engines_answer_and_errors_pass_byte_for_byte(autojump_clock: MockClock) -> None:
    """Status, body and content type are the engine's; of the client's body only ours has changed."""
    raw = b'{"error" : {"code":400,"type":"exceed_context_size_error","n_ctx":8}}'
    async with serving(autojump_clock) as house:
        house.upstream.scripts.append(Script([raw[:9], raw[9:]], status=400))
        body = b'{ "model":"GPT-4o-mini", "x_class":"batch", "messages": [1.50] }'
        answer = await house.ask("POST", CHAT, body, {"Authorization": "Bearer secret", "Cookie": "a=b"})
        assert (answer.status, answer.body) == (400, raw)
        assert answer.headers["content-type"] == "application/json"
        (asked,) = house.upstream.asked
        assert asked.body == b'{ "model":"sim-chat-4b", "messages": [1.50] }'
        assert asked.target == CHAT
        assert {name for name, _ in asked.headers} == {b"content-type", b"accept-encoding"}
        assert answer.headers["x-gridsched-class"] == "batch"


CHANNELS = [
    ({}, {"model": "sim-chat-4b@background"}, "background"),
    ({}, {"service_tier": "flex"}, "background"),
    ({}, {"model": "sim-chat-4b@batch", "service_tier": "flex"}, "batch"),
    ({"X-Class": "interactive"}, {"model": "sim-chat-4b@batch"}, "interactive"),
    ({}, {"model": "SIM-CHAT-4B@Batch"}, "batch"),
    ({}, {"model": "@batch"}, "batch"),
]


@pytest.mark.parametrize(("headers", "extra", "expected"), CHANNELS)
async def test_S1_the_class_is_found_by_every_channel(
    autojump_clock: MockClock, headers: dict[str, str], extra: dict[str, object], expected: str
) -> None:
    """Suffix and service tier stand behind header and body."""
    async with serving(autojump_clock) as house:
        answer = await house.ask("POST", CHAT, HELLO | extra, headers)
        assert (answer.status, answer.headers["x-gridsched-class"]) == (200, expected)


async def test_a_request_without_a_model_gets_the_default_one(autojump_clock: MockClock) -> None:
    """And the engine is told its name."""
    async with serving(autojump_clock) as house:
        answer = await house.ask("POST", "/v1/completions", {"prompt": "a", "max_tokens": 1})
        assert (answer.status, answer.headers["x-gridsched-model"]) == (200, "sim-chat-12b")
        assert answer.json["model"] == "sim-chat-12b"


REFUSALS = [
    ("POST", CHAT, HELLO | {"model": "sim-chat-5b"}, 404, "model_not_found", "model"),
    ("POST", CHAT, HELLO | {"model": "sim-chat-4b@fast"}, 404, "model_not_found", "model"),
    ("POST", CHAT, HELLO | {"model": "sim-embed"}, 400, "model_not_supported", "model"),
    ("POST", "/v1/embeddings", {"model": "sim-chat-4b", "input": "a"}, 400, "model_not_supported", "model"),
    ("POST", CHAT, b"{", 400, "invalid_request", None),
    ("POST", CHAT, b"", 411, "length_required", None),
    ("POST", CHAT, HELLO | {"x_class": "urgent"}, 400, "invalid_class", "x_class"),
    ("GET", CHAT, None, 405, "method_not_allowed", None),
    ("DELETE", "/v1/models", None, 405, "method_not_allowed", None),
    ("POST", "/v1/models", HELLO, 405, "method_not_allowed", None),
    ("GET", "/v1/nope", None, 404, "not_found", None),
    ("GET", "/v1", None, 404, "not_found", None),
    ("GET", "/v1/models/nobody", None, 404, "model_not_found", "model"),
    ("POST", CHAT + "/", HELLO, 404, "not_found", None),
    ("GET", "/nope", None, 404, "not_found", None),
    ("GET", "//v1/models", None, 404, "not_found", None),
    ("POST", "/health", None, 405, "method_not_allowed", None),
    ("POST", "/api/generate", HELLO, 404, "not_found", None),
]


async def test_H1_H5_what_cannot_be_served_is_a_real_4xx_in_openais_shape(autojump_clock: MockClock) -> None:
    """Every refusal has all fields, and nothing is loaded for any of them."""
    async with serving(autojump_clock) as house:
        for method, target, body, status, code, param in REFUSALS:
            answer = await house.ask(method, target, body)
            assert (answer.status, answer.error["code"], answer.error["param"]) == (status, code, param), target
            assert set(answer.error) == {"message", "type", "param", "code", "gridsched"}
            assert answer.error["type"] == "invalid_request_error"
            assert answer.headers["content-type"] == "application/json"
            assert ("allow" in answer.headers) == (status == 405)
        assert not house.logged("load")
        assert not house.logged("enqueue")


async def test_H5_an_unknown_model_names_the_closest(autojump_clock: MockClock) -> None:
    """In the sentence and as data."""
    async with serving(autojump_clock) as house:
        answer = await house.ask("POST", CHAT, HELLO | {"model": "sim-chat-5b", "stream": True})
        assert answer.status == 404
        assert "sim-chat-4b" in str(answer.error["message"])
        assert "sim-chat-4b" in json.dumps(answer.error["gridsched"])


async def test_H5_a_class_that_is_none_behind_an_at_is_told_the_classes(autojump_clock: MockClock) -> None:
    """The name in front is right, so another name is no help; where it is wrong too, the name comes first."""
    async with serving(autojump_clock) as house:
        answer = await house.ask("POST", CHAT, HELLO | {"model": "sim-chat-4b@fast"})
        assert "a class: interactive, background, batch" in str(answer.error["message"])
        answer = await house.ask("POST", CHAT, HELLO | {"model": "nobody@fast"})
        assert "a class" not in str(answer.error["message"])


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("/v1/v1/messages", "goes without /v1"),
        ("/v1/", "/v1/models"),
        ("/v1", "/health"),
        ("//v1/chat/completions", "//v1/chat/completions, which has a slash more than /v1/chat/completions"),
        ("/v1/chat/completions/", "/v1/chat/completions/, which has a slash more than /v1/chat/completions"),
        ("/api//tags", "/api//tags, which has a slash more than /api/tags"),
    ],
)
async def test_H5_the_usual_slips_with_a_base_url_are_told_what_to_change(
    autojump_clock: MockClock, path: str, said: str
) -> None:
    """Anthropic's clients add /v1 themselves; a person opens the bare base URL."""
    async with serving(autojump_clock) as house:
        answer = await house.ask("POST" if path.endswith("messages") else "GET", path, None)
        assert answer.status == 404
        assert said in str(answer.error["message"])


async def test_H5_a_base_url_without_a_path_is_told_what_to_ask(autojump_clock: MockClock) -> None:
    """A person who opens it sees the panel; a client that posts there is told what clients ask."""
    async with serving(autojump_clock) as house:
        answer = await house.ask("POST", "/", HELLO)
        assert (answer.status, answer.error["code"]) == (405, "method_not_allowed")
        assert "/v1/chat/completions" in str(answer.error["message"])


async def test_options_and_head_are_answered(autojump_clock: MockClock) -> None:
    """OPTIONS names the methods, HEAD is a GET without its body."""
    async with serving(autojump_clock) as house:
        options = await house.ask("OPTIONS", CHAT)
        assert (options.status, options.headers["allow"]) == (204, "POST, OPTIONS")
        head = await house.ask("HEAD", "/v1/models")
        whole = await house.ask("GET", "/v1/models")
        assert (head.status, head.body) == (200, b"")
        assert head.headers["content-length"] == str(len(whole.body))


async def test_the_models_are_listed_in_a_stable_order(autojump_clock: MockClock) -> None:
    """OpenAI's fields, and ours under `gridsched`; listing loads nothing."""
    async with serving(autojump_clock) as house:
        listed = (await house.ask("GET", "/v1/models")).json
        assert listed["object"] == "list"
        models = listed["data"]
        assert isinstance(models, list)
        assert [model["id"] for model in models] == [
            "sim-chat-12b",
            "sim-chat-4b",
            "sim-chat-2b",
            "sim-embed",
            "sim-rerank",
            "sim-chat",
        ]
        assert {model["object"] for model in models} == {"model"}
        facts = models[0]["gridsched"]
        assert (facts["state"], facts["fits"], facts["tier"]) == ("cold", "now", "cold")
        assert (facts["ctx_per_slot"], facts["parallel"], facts["aliases"]) == (8192, 2, ["gpt-4o"])
        assert facts["memory_bytes"]["estimated"] > 8 << 30
        assert facts["memory_bytes"]["measured"] is None
        assert not house.logged("load")
        await house.ask("POST", CHAT, HELLO)
        one = (await house.ask("GET", "/v1/models/gpt-4o-mini")).json
        assert (one["id"], one["gridsched"]["state"]) == ("sim-chat-4b", "ready")  # type: ignore[index]  # JSON


async def test_a_body_that_is_too_long_is_read_to_its_end_and_refused(autojump_clock: MockClock) -> None:
    """413 in shape, and the connection is good for the next request."""
    async with serving(autojump_clock, FrontSettings(max_body_bytes=100_000)) as house, await house.connect() as client:
        answer = await client.ask("POST", CHAT, b"x" * 1_500_000)
        assert (answer.status, answer.error["code"]) == (413, "request_too_large")
        assert (await client.ask("GET", "/v1/models")).status == 200
        assert not house.logged("enqueue")


async def test_a_chunked_body_and_expect_work_as_with_a_length(autojump_clock: MockClock) -> None:
    """One byte a chunk, and a client that waits to be told to go on."""
    body = json.dumps(HELLO).encode()
    async with serving(autojump_clock) as house, await house.connect() as client:
        head = b"POST %s HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\nExpect: 100-continue\r\n\r\n"
        await client.stream.send_all(head % CHAT.encode())
        told = await client.stream.receive_some(100)
        assert told.startswith(b"HTTP/1.1 100")
        await client.stream.send_all(b"".join(b"1\r\n%c\r\n" % byte for byte in body) + b"0\r\n\r\n")
        received = b""
        while b"\r\n\r\n" not in received:
            received += await client.stream.receive_some(65536)
        assert received.startswith(b"HTTP/1.1 200")
        assert house.upstream.asked[0].body == body


FOREIGN = [
    {"Host": "evil.example"},
    {"Host": "evil.example:1234"},
    {"Origin": "http://evil.example"},
    {"Origin": "null"},
    {"Origin": "http://127.0.0.1:1"},
]


@pytest.mark.parametrize("headers", FOREIGN)
async def test_H6_a_browser_from_elsewhere_gets_nothing(autojump_clock: MockClock, headers: dict[str, str]) -> None:
    """On the data plane and beside it."""
    async with serving(autojump_clock) as house:
        for method, target in (("POST", CHAT), ("GET", "/v1/models"), ("GET", "/health"), ("GET", "/api/events")):
            answer = await house.ask(method, target, HELLO if method == "POST" else None, headers)
            assert (answer.status, answer.error["code"]) == (403, "cross_origin")
        assert not house.logged("enqueue")


async def test_H6_this_machines_own_names_and_pages_pass(autojump_clock: MockClock) -> None:
    """Loopback by any name, and a page that this server has served."""
    async with serving(autojump_clock) as house:
        for name in ("127.0.0.1", f"localhost:{house.port}", "[::1]:9", "app.localhost"):
            assert (await house.ask("GET", "/v1/models", None, {"Host": name})).status == 200
        own = {"Host": f"localhost:{house.port}", "Origin": f"http://localhost:{house.port}"}
        assert (await house.ask("GET", "/health", None, own)).status == 200


async def test_a_bug_of_ours_is_a_500_in_shape(autojump_clock: MockClock, caplog: pytest.LogCaptureFixture) -> None:
    """And one traceback in the log."""
    async with serving(autojump_clock) as house:
        house.upstream.scripts.append(ZeroDivisionError())
        answer = await house.ask("POST", CHAT, HELLO)
        assert (answer.status, answer.error["code"]) == (500, "internal")
        assert answer.headers["x-should-retry"] == "false"
    assert [record.levelname for record in caplog.records] == ["ERROR"]


@pytest.mark.parametrize("target", [CHAT, "/v1/embeddings"])
async def test_a_refused_job_names_itself_and_its_wait(autojump_clock: MockClock, target: str) -> None:
    """The headers of every answer behind which there was a job, refusals too."""
    model = "sim-embed" if target == "/v1/embeddings" else "sim-chat-4b"
    body = HELLO | {"model": model, "input": "a"}
    async with serving(autojump_clock) as house:
        at_once = await house.ask("POST", target, body | {"gridsched": {"warm_only": True}})
        later = await house.ask("POST", target, body | {"gridsched": {"max_wait_ms": 200}})
    assert (at_once.status, at_once.error["code"], at_once.headers["x-gridsched-queue-ms"]) == (
        503,
        "not_resident",
        "0",
    )
    assert (later.status, later.error["code"]) == (503, "queue_timeout")
    assert 199 <= int(later.headers["x-gridsched-queue-ms"]) <= 201
    assert later.headers["x-gridsched-model"] == model
    assert later.headers["x-gridsched-class"] == "interactive"
    assert int(later.headers["x-gridsched-job-id"]) > int(at_once.headers["x-gridsched-job-id"])
