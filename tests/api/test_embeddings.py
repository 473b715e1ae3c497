"""Embeddings (S3): cutting, checking and joining, and the whole way over a socket."""

import base64
import json
import struct

import pytest
from trio.testing import MockClock

from gridsched.api import reply
from gridsched.api.decode import decode
from gridsched.api.embeddings import MAX_INPUTS, Plan, assemble, plan, read_vectors, refused, split_inputs
from gridsched.api.routes import ROUTES
from gridsched.control.problems import RequestError
from gridsched.ports import UpstreamFailureKind
from tests.support.fakes import Script
from tests.support.front import serving

EMBED = "/v1/embeddings"
MODEL = "sim-embed"


def planned(fields: dict[str, object], chunk: int = 32) -> Plan:
    """The plan of a request."""
    return plan(decode(ROUTES["/v1/embeddings"], {}, json.dumps({"model": "m"} | fields).encode()), "M", chunk)


def sizes(count: int) -> list[int]:
    """How many inputs each step takes."""
    return [len(chunk) for chunk in planned({"input": [str(n) for n in range(count)]}).chunks]


def test_S3_inputs_are_cut_into_thirty_twos() -> None:
    """And the rest."""
    assert [sizes(count) for count in (1, 32, 33, 64, 65)] == [[1], [32], [32, 1], [32, 32], [32, 32, 1]]
    assert sizes(MAX_INPUTS) == [32] * 64


def test_S3_a_list_of_numbers_is_one_input() -> None:
    """However long; a list of lists is as many as it holds."""
    assert split_inputs(b"[1,2,3]") == (b"[1,2,3]",)
    assert len(split_inputs(json.dumps(list(range(40))).encode())) == 1
    assert split_inputs(b"[[1,2], [3]]") == (b"[1,2]", b"[3]")
    assert split_inputs(b'"a"') == (b'"a"',)
    assert split_inputs(b'[ "a" , "\\u00e9]" ]') == (b'"a"', b'"\\u00e9]"')


@pytest.mark.parametrize(
    "raw",
    [
        "[]",
        '""',
        "[[]]",
        '[""]',
        '["a",""]',
        '[1,"a"]',
        '["a",1]',
        '["a",[1]]',
        "[[1],[]]",
        "[[1.5]]",
        "[1.5]",
        '[["a"]]',
        "[-1]",
        "[2147483648]",
        "[1099511627776]",
        "[null]",
        "[[1],[-1]]",
        "[{}]",
        "[true]",
    ],
)
def test_H1_inputs_that_are_empty_or_mixed_are_refused(raw: str) -> None:
    """Before any load."""
    with pytest.raises(RequestError) as caught:
        split_inputs(raw.encode())
    assert (caught.value.problem.status, caught.value.problem.param) == (400, "input")


def test_H1_more_inputs_than_openai_takes_are_refused() -> None:
    """2,048 are taken, one more is not."""
    with pytest.raises(RequestError, match="at most 2048"):
        planned({"input": ["a"] * (MAX_INPUTS + 1)})
    with pytest.raises(RequestError, match="at most 2048"):
        split_inputs(b"[" + b"[]," * 500_000 + b"[]]")  # counted before any is looked at


@pytest.mark.parametrize("encoding", ["int8", "", 5, ["float"]])
def test_H1_an_unknown_encoding_is_refused(encoding: object) -> None:
    """By the name of its field."""
    with pytest.raises(RequestError) as caught:
        planned({"input": "a", "encoding_format": encoding})
    assert (caught.value.problem.status, caught.value.problem.param) == (400, "encoding_format")


def test_H2_a_request_of_one_step_keeps_its_own_bytes() -> None:
    """Only the model changes; a null encoding, which the engine does not know, is left out."""
    one = planned({"input": ["a"], "encoding_format": "base64", "user": "me"})
    assert one.chunk_body(one.chunks[0]) == b'{"model": "M", "input": ["a"], "encoding_format": "base64", "user": "me"}'
    null = planned({"input": "a", "encoding_format": None})
    assert null.chunk_body(null.chunks[0]) == b'{"model": "M", "input": "a"}'


def test_S3_each_step_gets_its_own_inputs_and_all_other_fields() -> None:
    """The inputs as they were written."""
    request = planned({"dimensions": 8, "input": ["é", "b", "c"], "x_class": "batch"}, chunk=2)
    bodies = [request.chunk_body(chunk) for chunk in request.chunks]
    assert bodies == [
        b'{"model": "M", "dimensions": 8, "input": ["\\u00e9","b"]}',
        b'{"model": "M", "dimensions": 8, "input": ["c"]}',
    ]


def engine_answer(vectors: dict[int, object], tokens: int = 3) -> bytes:
    """An engine's answer, in the order given."""
    data = [{"object": "embedding", "index": index, "embedding": vector} for index, vector in vectors.items()]
    return json.dumps({"data": data, "model": "x", "usage": {"prompt_tokens": tokens, "total_tokens": tokens}}).encode()


def test_S3_vectors_come_in_input_order_whatever_the_engines() -> None:
    """With the usage summed and the index running through."""
    steps = [read_vectors(engine_answer({1: [1.50], 0: [-0.0]}), 2), read_vectors(engine_answer({0: [2e-9]}, 4), 1)]
    answer = assemble("m", steps)
    assert json.loads(answer) == {
        "object": "list",
        "data": [
            {"object": "embedding", "index": 0, "embedding": [-0.0]},
            {"object": "embedding", "index": 1, "embedding": [1.5]},
            {"object": "embedding", "index": 2, "embedding": [2e-9]},
        ],
        "model": "m",
        "usage": {"prompt_tokens": 7, "total_tokens": 7},
    }


def coded(*values: float) -> str:
    """A vector in base64."""
    return base64.b64encode(struct.pack(f"<{len(values)}f", *values)).decode()


NOT_FINITE = {
    "bare NaN": b'{"data":[{"index":0,"embedding":[NaN,1]}]}',
    "null, as the engine writes it": engine_answer({0: [0.5, None]}),
    "NaN in base64": engine_answer({0: coded(1.0, float("nan"))}),
    "infinity in base64": engine_answer({0: coded(float("-inf"), 2.0)}),
    "NaN of the other sign": engine_answer({0: base64.b64encode(bytes.fromhex("0000803f0100a0ff")).decode()}),
    "cut base64": engine_answer({0: coded(1.0)[:-3]}),
    "half a number": engine_answer({0: base64.b64encode(bytes(6)).decode()}),
    "cut behind a large one": engine_answer({0: base64.b64encode(bytes.fromhex("0000007f000000")).decode()}),
    "no base64": engine_answer({0: "not at all"}),
    "a number that is none to most readers": b'{"data":[{"index":0,"embedding":[1e999]}]}',
    "bare infinity": b'{"data":[{"index":0,"embedding":[1,-Infinity]}]}',
    "text": engine_answer({0: ["0.5"]}),
    "vectors in a vector": engine_answer({0: [[0.5], [0.25]]}),
    "an object": engine_answer({0: {"a": 1}}),
}


@pytest.mark.parametrize("content", NOT_FINITE.values(), ids=NOT_FINITE.keys())
def test_a_vector_that_is_not_finite_never_reaches_a_client(content: bytes) -> None:
    """In either encoding."""
    with pytest.raises(RequestError) as caught:
        read_vectors(content, 1)
    assert (caught.value.problem.status, caught.value.problem.code) == (502, "nan_embedding")


LARGEST = 3.4028234663852886e38


@pytest.mark.parametrize("vector", [[LARGEST, -LARGEST], [1.7e38, -2.0], [0.0, 1e-45], [-0.0, 1.0]])
def test_a_vector_of_finite_numbers_passes_as_it_is(vector: list[float]) -> None:
    """The largest, the smallest, and those next to what is none."""
    for written in (vector, coded(*vector)):
        (raw,) = read_vectors(engine_answer({0: written}), 1).raw
        assert json.loads(raw) == written


UNUSABLE = {
    "an empty vector": engine_answer({0: [], 1: []}),
    "an empty vector in base64": engine_answer({0: "", 1: ""}),
    "of two lengths": engine_answer({0: [1.0], 1: [1.0, 2.0]}),
    "of two lengths in base64": engine_answer({0: coded(1.0), 1: coded(1.0, 2.0)}),
    "in two encodings": engine_answer({0: coded(1.0), 1: [1.0]}),
    "an error that says info": b'{"error":"no info"}',
    "too few": engine_answer({0: [1.0]}),
    "twice the same": b'{"data":[{"index":1,"embedding":[1]},{"index":1,"embedding":[1]}]}',
    "out of range": engine_answer({0: [1.0], 2: [1.0]}),
    "too many": engine_answer({0: [1.0], 1: [1.0], 2: [1.0]}),
    "no JSON": b"<html>",
    "another shape": b'{"embedding":[1]}',
}


@pytest.mark.parametrize("content", UNUSABLE.values(), ids=UNUSABLE.keys())
def test_an_answer_that_is_not_two_vectors_is_an_upstream_error(content: bytes) -> None:
    """Never 200 with fewer vectors than inputs."""
    with pytest.raises(RequestError) as caught:
        read_vectors(content, 2)
    assert (caught.value.problem.status, caught.value.problem.code) == (502, "upstream_error")


def test_base64_vectors_keep_their_bytes() -> None:
    """Also where the engine has escaped a slash."""
    raw = read_vectors(engine_answer({0: coded(1.0, -2.5)}).replace(b"/", b"\\/"), 1).raw
    assert json.loads(raw[0]) == coded(1.0, -2.5)


async def test_S3_seventy_inputs_make_one_answer_in_order(autojump_clock: MockClock) -> None:
    """Three steps of one job, in either encoding; each vector is the one of its own input."""
    texts = [f"n={n}" for n in range(70)]
    async with serving(autojump_clock) as house:
        answer = await house.ask("POST", EMBED, {"model": MODEL, "input": texts, "encoding_format": None})
        data = answer.json["data"]
        assert isinstance(data, list)
        assert [item["index"] for item in data] == list(range(70))
        single = (await house.ask("POST", EMBED, {"model": MODEL, "input": texts[37]})).json["data"]
        assert data[37]["embedding"] == single[0]["embedding"]  # type: ignore[index]  # JSON
        assert data[36] != data[37]
        assert answer.json["usage"] == {"prompt_tokens": 70, "total_tokens": 70}
        assert answer.json["model"] == MODEL
        assert answer.headers["content-length"] == str(len(answer.body))
        assert [line["step"] for line in house.logged("dispatch")][:3] == [1, 2, 3]
        assert [len(json.loads(asked.body)["input"]) for asked in house.upstream.asked[:3]] == [32, 32, 6]
        assert len({line["job"] for line in house.logged("dispatch")[:3]}) == 1


async def test_P5_a_step_whose_engine_dies_is_run_again(autojump_clock: MockClock) -> None:
    """Nothing has reached the client, so even half an answer is none."""
    async with serving(autojump_clock) as house:
        house.upstream.scripts.append(Script([b'{"data":[', UpstreamFailureKind.BROKEN]))
        answer = await house.ask("POST", EMBED, {"model": MODEL, "input": ["a"] * 40})
        assert (answer.status, len(answer.json["data"])) == (200, 40)  # type: ignore[arg-type]  # JSON


async def test_D13_a_step_whose_device_fails_is_run_again_by_a_fresh_process(autojump_clock: MockClock) -> None:
    """In the middle of a job: the steps before it are kept, and the client sees one whole answer."""
    async with serving(autojump_clock) as house:
        fine = engine_answer({n: [1.0] for n in range(32)})
        fails = Script([b'{"error":{"code":500,"message":"CUDA error: an illegal memory access"}}'], status=500)
        house.upstream.scripts += [Script([fine]), fails, Script([engine_answer({n: [2.0] for n in range(8)})])]
        answer = await house.ask("POST", EMBED, {"model": MODEL, "input": ["a"] * 40})
        assert answer.status == 200
        assert [item["embedding"] for item in answer.json["data"]] == [[1.0]] * 32 + [[2.0]] * 8  # type: ignore[index]  # JSON
        assert len(house.logged("ready")) == 2


TOO_LONG = b'{"error":{"code":500,"message":"input (600 tokens) is too large to process","type":"server_error"}}'


async def test_an_engines_refusal_of_one_step_names_its_inputs(autojump_clock: MockClock) -> None:
    """One error for the request, as the client's fault; the steps behind it are not sent."""
    async with serving(autojump_clock) as house:
        await house.ask("POST", EMBED, {"model": MODEL, "input": "a"})
        fine = engine_answer({n: [1.0] for n in range(32)})
        house.upstream.scripts += [Script([fine]), Script([TOO_LONG], status=500)]
        answer = await house.ask("POST", EMBED, {"model": MODEL, "input": ["a"] * 100})
        assert (answer.status, answer.error["code"], answer.error["param"]) == (400, "invalid_request", "input")
        assert answer.error["message"] == "inputs 32 to 63: input (600 tokens) is too large to process"
        assert answer.error["gridsched"] == {"inputs": [32, 63]}
        assert len(house.upstream.asked) == 3


def test_H2_an_engines_refusal_of_the_only_step_is_its_own() -> None:
    """Status and body, byte for byte; of one step among others the status."""
    for status in (400, 500, 503):
        alone = refused(status, b'{"error" : 1}', range(1), alone=True)
        assert (alone.status, alone.body()) == (status, b'{"error" : 1}')
    assert refused(503, b"x", range(2), alone=False).status == 503


@pytest.mark.parametrize(("chunk", "words"), [(range(1), "input 0"), (range(2), "inputs 0 to 1")])
def test_H1_an_input_that_is_too_long_is_the_clients_fault(chunk: range, words: str) -> None:
    """In status and body alike, also where its step was all there was."""
    problem = refused(500, TOO_LONG, chunk, alone=True)
    error = json.loads(problem.body())["error"]
    assert (problem.status, error["code"], error["type"]) == (400, "invalid_request", "invalid_request_error")
    assert error["message"] == f"{words}: input (600 tokens) is too large to process"


async def test_steps_whose_vectors_differ_in_length_make_no_answer(autojump_clock: MockClock) -> None:
    """What the second step gives must fit the first."""
    async with serving(autojump_clock) as house:
        first = Script([engine_answer({n: [1.0, 2.0] for n in range(32)})])
        house.upstream.scripts += [first, Script([engine_answer({0: [1.0]})])]
        answer = await house.ask("POST", EMBED, {"model": MODEL, "input": ["a"] * 33})
        assert (answer.status, answer.error["code"]) == (502, "upstream_error")
        assert "different lengths" in str(answer.error["message"])


async def test_P5_a_step_whose_engine_dies_again_and_again_ends_the_job(autojump_clock: MockClock) -> None:
    """It is run once more; the steps behind it are not sent."""
    async with serving(autojump_clock) as house:
        fine = Script([engine_answer({n: [1.0] for n in range(32)})])
        broken = [Script([b"{", UpstreamFailureKind.BROKEN]) for _ in range(5)]
        house.upstream.scripts += [fine, *broken]
        answer = await house.ask("POST", EMBED, {"model": MODEL, "input": ["a"] * 96})
        assert (answer.status, answer.error["code"]) == (502, "upstream_error")
        assert len(house.upstream.asked) == 3
        house.upstream.scripts.clear()


async def test_an_answer_without_an_end_is_a_502_and_not_kept(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is put together here is bounded; the engine's connection closes, and the next one is served."""
    monkeypatch.setattr(reply, "LONGEST_KEPT_BYTES", 100_000)
    async with serving(autojump_clock) as house:
        house.upstream.scripts.append(Script([b"#" * 10_000] * 1_000_000))
        answer = await house.ask("POST", EMBED, {"model": "sim-embed", "input": "a"})
        assert (answer.status, answer.error["code"]) == (502, "upstream_error")
        assert "longer than 100000 bytes" in str(answer.error["message"])
        await house.runtime.desk.wait_idle()
        assert house.upstream.asked[0].closed_at is not None
        assert not house.upstream.asked[0].read_whole
        assert (await house.ask("POST", EMBED, {"model": "sim-embed", "input": "a"})).status == 200


async def test_S8_who_leaves_between_two_steps_has_no_more_of_them(autojump_clock: MockClock) -> None:
    """Nothing of it waits, and the next one is served."""
    async with serving(autojump_clock) as house:
        async with await house.connect() as client:
            await client.send("POST", EMBED, json.dumps({"model": MODEL, "input": ["a"] * 2048}).encode())
            await house.until_logged("step", 3)
        assert (await house.ask("POST", EMBED, {"model": MODEL, "input": "b"})).status == 200
        (left,) = house.logged("cancel")
        assert 3 <= len([line for line in house.logged("dispatch") if line["job"] == left["job"]]) < 64


async def test_a_vector_with_a_hole_is_a_502_and_not_tried_again(autojump_clock: MockClock) -> None:
    """The job ends with its step; the client is told that trying again is of no use."""
    async with serving(autojump_clock) as house:
        house.upstream.scripts.append(Script([engine_answer({0: [None]})]))
        answer = await house.ask("POST", EMBED, {"model": MODEL, "input": ["a"]})
        assert (answer.status, answer.error["code"]) == (502, "nan_embedding")
        assert answer.headers["x-should-retry"] == "false"
        page = (await house.ask("GET", "/metrics")).body.decode()
        assert 'gridsched_nan_embeddings_total{model="sim-embed"} 1.0' in page
