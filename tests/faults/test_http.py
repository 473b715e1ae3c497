"""What others have met with HTTP, through whole processes: bodies, headers, statuses, and clients that try again."""

import gzip
import http.client
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from openai import InternalServerError, NotFoundError, OpenAI

from tests.faults.bench import Bench, Served, chat_body, serve

pytestmark = pytest.mark.slow

CHAT = "/v1/chat/completions"
PAGE = "http://localhost:3000"
MIB = 1 << 20
MODELS = ("h2", "h6", "h7", "h9", "h10", "h15", "broken", "h16", "h18")


@pytest.fixture(scope="module")
def bench(benches: list[Bench], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """A gateway with a model for each fault, and a page that may use it."""
    models = dict.fromkeys(MODELS, Served())
    running = serve(tmp_path_factory.mktemp("http"), models, settings={"server": {"cors_origins": [PAGE]}})
    benches.append(running)
    yield running
    assert running.gateway.stop() == 0


def sent(bench: Bench, body: bytes, **headers: str) -> tuple[int, list[tuple[str, str]], bytes]:
    """A chat as bytes: the answer's status, its headers as often as they came, and its body as it came."""
    connection = bench.connect()
    try:
        connection.request("POST", CHAT, body, {name.replace("_", "-"): value for name, value in headers.items()})
        answer = connection.getresponse()
        return answer.status, [(name.lower(), value) for name, value in answer.getheaders()], answer.read()
    finally:
        connection.close()


def chat(model: str, **more: object) -> bytes:
    """The body of a chat."""
    return json.dumps(chat_body(model, **more)).encode()


def client(bench: Bench) -> OpenAI:
    """An SDK that tries again twice by itself, as it comes."""
    return OpenAI(base_url=bench.gateway.url + "/v1", api_key="x", timeout=30.0)


def asked(bench: Bench, code: int, model: str) -> int:
    """How many requests for a model the gateway has answered with a status."""
    lines = bench.ask("/metrics").body.decode().splitlines()
    found = [
        line
        for line in lines
        if line.startswith("gridsched_requests_total{") and f'code="{code}"' in line and f'model="{model}"' in line
    ]
    return round(sum(float(line.rpartition(" ")[2]) for line in found))


def test_H2_an_unknown_model_is_a_404_before_the_first_byte_of_anything(bench: Bench) -> None:
    """H2, 88: streamed or not, an embedding, a model by its name; an SDK asks once, and nothing is started."""
    for path, body in (
        (CHAT, chat_body("brokem")),
        (CHAT, chat_body("brokem", stream=True)),
        ("/v1/embeddings", {"model": "brokem", "input": "a"}),
        ("/v1/models/brokem", None),
    ):
        answer = bench.ask(path, body)
        told = {name: answer.error[name] for name in ("type", "code", "param")}
        assert answer.status == 404
        assert told == {"type": "invalid_request_error", "code": "model_not_found", "param": "model"}
        assert answer.headers["content-type"] == "application/json"
        assert answer.headers["x-should-retry"] == "false"
        assert "broken" in answer.error["gridsched"]["closest"]
    with client(bench) as sdk, pytest.raises(NotFoundError):
        sdk.chat.completions.create(model="brokem", messages=[{"role": "user", "content": "a"}])
    assert not any(bench.starts(model) for model in MODELS if model not in ("h6", "h7"))


def test_H6_a_chunked_body_goes_up_with_one_length_and_an_empty_one_is_refused(bench: Bench) -> None:
    """H6, 90: one byte a chunk as well as all of it in one."""
    body = chat("h6")
    for step in (1, len(body)):
        connection = bench.connect()
        connection.putrequest("POST", CHAT)
        connection.putheader("Transfer-Encoding", "chunked")
        connection.endheaders()
        for start in range(0, len(body), step):
            connection.send(b"%x\r\n%b\r\n" % (len(body[start : start + step]), body[start : start + step]))
        connection.send(b"0\r\n\r\n")
        assert connection.getresponse().status == 200
        connection.close()
    status, _, _ = sent(bench, b"", Content_Length="0")
    assert status == 400
    heads = [head for head in bench.recorded("h6", "headers") if "content-type" in head][-2:]
    assert [head["content-length"] for head in heads] == [str(len(body))] * 2
    assert not any("transfer-encoding" in head for head in heads)


def test_H7_each_header_is_said_once_whatever_the_engine_says(bench: Bench) -> None:
    """H7, 91: its CORS headers, server and date are dropped; a page gets ours."""
    lines = [
        "access-control-allow-origin: *",
        "Access-Control-Allow-Credentials: true",
        "DATE: Thu, 01 Jan 1970 00:00:00 GMT",
        "server: other",
        "content-TYPE: text/plain",
        "Set-Cookie: a=b",
        "X-Request-Id: theirs",
        "X-Gridsched-Job-Id: 0",
    ]
    bench.tell("h7", tokens=0, body='{"choices":[]}', headers=lines)
    for origin in ({"Origin": PAGE}, {}):
        status, headers, body = sent(bench, chat("h7"), X_Request_Id="ours", **origin)
        names = [name for name, _ in headers]
        assert (status, body) == (200, b'{"choices":[]}')
        assert len(set(names)) == len(names)
        said = dict(headers)
        assert said["content-type"] == "application/json"
        assert said["x-request-id"] == "ours"
        assert said["x-gridsched-job-id"] != "0"
        assert said.get("access-control-allow-origin") == origin.get("Origin")
        assert not {"access-control-allow-credentials", "server", "set-cookie"} & said.keys()
        assert not said["date"].endswith("1970 00:00:00 GMT")


def test_H9_hop_by_hop_headers_stay_on_their_hop_and_codings_agree_with_bodies(bench: Bench) -> None:
    """H9, 92: in both directions, those that Connection names too; credentials and cookies never reach an engine."""
    packed = gzip.compress(b'{"choices":[]}')
    lines = [
        "Connection: x-foo, keep-alive",
        "X-Foo: 1",
        "Proxy-Authenticate: Basic",
        "Content-Encoding: gzip",
        "X-Bar: 2",
    ]
    bench.tell("h9", tokens=0, body_hex=packed.hex(), headers=lines)
    status, headers, body = sent(
        bench,
        chat("h9"),
        Accept_Encoding="gzip, br, zstd",
        Authorization="Bearer secret",
        Cookie="a=b",
        Connection="x-mine",
        X_Mine="1",
        Keep_Alive="timeout=5",
        TE="trailers",
        Proxy_Authorization="Basic c2VjcmV0",
        X_Api_Key="secret",
    )
    said = dict(headers)
    assert (status, body) == (200, packed)
    assert said["content-encoding"] == "gzip"
    assert said["content-length"] == str(len(packed))
    assert said["x-bar"] == "2"
    assert not {"x-foo", "keep-alive", "proxy-authenticate", "transfer-encoding"} & said.keys()
    head = next(head for head in reversed(bench.recorded("h9", "headers")) if "accept-encoding" in head)
    assert head.keys() == {"host", "connection", "content-length", "content-type", "accept-encoding"}
    assert head["accept-encoding"] == "identity"
    assert "secret" not in json.dumps(bench.recorded("h9", "headers"))


def memory(bench: Bench, key: str) -> int:
    """Bytes that the gateway holds now (`VmRSS`), or held at most (`VmHWM`)."""
    text = Path(f"/proc/{bench.gateway.process.pid}/status").read_text(encoding="utf-8")
    (line,) = [line for line in text.splitlines() if line.startswith(key)]
    return int(line.split()[1]) * 1024


def test_H10_large_bodies_pass_and_larger_ones_are_refused_at_once(bench: Bench) -> None:
    """H10, 93: 5 and 20 MiB whole; 70 MiB are a 413 before any of it has been sent; twenty of 5 MiB at once take no
    more memory than thrice their own."""
    for size in (5 * MIB, 20 * MIB):
        status, _, _ = sent(bench, chat("h10", user="x" * size))
        assert status == 200
        assert max(bench.recorded("h10", "body_bytes")) > size
    connection = http.client.HTTPConnection(bench.gateway.url.removeprefix("http://"), timeout=30.0)
    connection.putrequest("POST", CHAT)
    connection.putheader("Content-Length", str(70 * MIB))
    connection.endheaders()
    refused = connection.getresponse()
    assert (refused.status, json.loads(refused.read())["error"]["code"]) == (413, "request_too_large")
    connection.close()
    before = memory(bench, "VmRSS")
    Path(f"/proc/{bench.gateway.process.pid}/clear_refs").write_text("5", encoding="utf-8")  # the most is from now on
    body = chat("h10", user="x" * 5 * MIB)
    with ThreadPoolExecutor(20) as pool:
        answers = list(pool.map(lambda _: sent(bench, body)[0], range(20)))
    assert answers == [200] * 20
    assert memory(bench, "VmHWM") - before < 3 * 20 * len(body)


def test_H15_a_request_for_a_model_that_loads_is_held_and_no_try_is_used_up(bench: Bench) -> None:
    """H15, 96: an SDK that tries again by itself asks once, streamed and not; of a load that fails it is told to ask no
    more, and asks once as well."""
    message = [{"role": "user", "content": "hello"}]
    bench.tell("h15", start_delay_seconds=2.0)
    bench.tell("broken", exit_at="start", print_lines=["error: invalid argument: --nope"])
    with client(bench) as sdk, ThreadPoolExecutor(2) as pool:
        whole = pool.submit(sdk.chat.completions.create, model="h15", messages=message, max_tokens=2)  # type: ignore[arg-type]  # a list of dicts
        stream = sdk.chat.completions.create(model="h15", messages=message, max_tokens=2, stream=True)  # type: ignore[call-overload]  # the same
        assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == "word0 word1 "
        assert whole.result().choices[0].message.content == "word0 word1"
        with pytest.raises(InternalServerError) as caught:
            sdk.chat.completions.create(model="broken", messages=message)  # type: ignore[arg-type]  # the same
    assert bench.starts("h15") == 1
    assert asked(bench, 200, "h15") == 2
    error = caught.value
    assert (error.status_code, error.code, error.response.headers["x-should-retry"]) == (503, "model_failed", "false")
    assert error.body["gridsched"]["cause"] == "bad_flags"  # type: ignore[index,call-overload]  # an object
    assert error.body["gridsched"]["do"]  # type: ignore[index,call-overload]  # the same
    assert asked(bench, 503, "broken") == 1


def test_H16_a_prompt_that_is_too_long_is_the_engines_own_answer(bench: Bench) -> None:
    """H16, 97: byte for byte, streamed and not, and the slot is free."""
    told = (
        '{"error":{"code":400,"message":"too long","type":"exceed_context_size_error","n_prompt_tokens":9,"n_ctx":8}}'
    )
    bench.tell("h16", tokens=0, status=400, body=told)
    for stream in (False, True):
        status, headers, body = sent(bench, chat("h16", stream=stream))
        assert (status, body) == (400, told.encode())
        assert dict(headers)["content-type"] == "application/json"
    bench.tell("h16")
    assert bench.chat("h16").status == 200
    assert bench.starts("h16") == 1


def test_H18_telling_what_there_is_starts_nothing_and_shows_one_that_is_loaded(bench: Bench) -> None:
    """H18, 98: ten times the list, the status and the health."""
    bench.tell("h18")
    assert bench.chat("h18").status == 200
    started = {model: bench.starts(model) for model in MODELS}
    used = bench.instances("h18")
    for _ in range(10):
        listed = {each["id"]: each["gridsched"]["state"] for each in bench.ask("/v1/models").json["data"]}
        assert {model for model, state in listed.items() if state == "ready"} == {
            item["model"] for item in bench.status()["instances"] if item["state"] == "ready"
        }
        assert listed["h18"] == "ready"
        assert bench.ask("/health").status == 200
        assert bench.ask("/v1/models/h18").status == 200
    assert {model: bench.starts(model) for model in MODELS} == started
    assert [item["slots"] for item in bench.instances("h18")] == [item["slots"] for item in used]
