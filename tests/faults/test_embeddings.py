"""What others have met with embeddings: encodings, order, inputs that are too many or too long, vectors with holes.

With the stand-in, which errs as it is told to, and with the real engine and a real model where that shows more.
"""

import math
import os
import signal
import struct
from base64 import b64decode
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from openai import OpenAI

from gridsched.engine.find import find_engine
from loadtest.fetch import fetch_models
from tests.faults.bench import Bench, Reply, Served, serve

pytestmark = pytest.mark.slow

FAKES = ("g1", "g3", "g4", "g5", "g8", "g10")
MINILM, WIDTH = "minilm", 384


@pytest.fixture(scope="module")
def bench(benches: list[Bench], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """A gateway with embedders on the stand-in, and a chat model."""
    models = {**dict.fromkeys(FAKES, Served(embeds=True)), "talks": Served()}
    running = serve(tmp_path_factory.mktemp("embeddings"), models)
    benches.append(running)
    yield running
    assert running.gateway.stop() == 0


@pytest.fixture(scope="module")
def real(benches: list[Bench], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """A gateway with a real embedder on the real engine."""
    found = find_engine()
    if not found.info.ok:
        pytest.skip(reason=found.info.problem)
    path = str(fetch_models()[1])
    models = {MINILM: Served(settings={"path": path, "ctx_size": "auto", "flags": ["--threads", "1"]})}
    running = serve(tmp_path_factory.mktemp("minilm"), models, settings={"engine": {"path": found.info.path}})
    benches.append(running)
    yield running
    assert running.gateway.stop() == 0


def embed(bench: Bench, model: str, inputs: object, **more: object) -> Reply:
    """One request."""
    return bench.ask("/v1/embeddings", {"model": model, "input": inputs, **more})


def vectors(reply: Reply) -> list[Any]:
    """Those of an answer that is right in all else."""
    assert reply.status == 200, reply.body
    data = reply.json["data"]
    assert reply.json["object"] == "list"
    assert [item["index"] for item in data] == list(range(len(data)))
    assert {item["object"] for item in data} == {"embedding"}
    return [item["embedding"] for item in data]


def floats(text: str) -> list[float]:
    """A vector in base64."""
    data = b64decode(text, validate=True)
    return list(struct.unpack(f"<{len(data) // 4}f", data))


def sdk(bench: Bench) -> OpenAI:
    """The client that asks for base64 unless it is told otherwise."""
    return OpenAI(base_url=f"{bench.gateway.url}/v1", api_key="unused", max_retries=0)


def test_G1_every_encoding_gives_the_same_vectors_in_every_step(bench: Bench) -> None:
    """G1, 80: base64 as the SDK asks for, floats, and null, which is floats; any other word is a 400 by its name."""
    bench.tell("g1", width=768)
    texts = [f"n={number}" for number in range(70)]
    expected = [[float(number), *[1.0] * 767] for number in range(70)]
    with sdk(bench) as client:
        assert [item.embedding for item in client.embeddings.create(model="g1", input=texts).data] == expected
    assert list(map(floats, vectors(embed(bench, "g1", texts, encoding_format="base64")))) == expected
    assert vectors(embed(bench, "g1", texts, encoding_format="float")) == expected
    assert vectors(embed(bench, "g1", texts, encoding_format=None)) == expected
    assert vectors(embed(bench, "g1", texts)) == expected
    refused = embed(bench, "g1", texts, encoding_format="int8")
    assert (refused.status, refused.error["param"]) == (400, "encoding_format")


def test_G1_a_real_embedder_gives_the_same_numbers_in_both_encodings(real: Bench) -> None:
    """G1, 80: as many as it has, to the last bit of a float; a text's vector is the same alone and among others."""
    texts = [f"text number {number}" for number in range(33)]
    coded = list(map(floats, vectors(embed(real, MINILM, texts, encoding_format="base64"))))
    plain = vectors(embed(real, MINILM, texts))
    assert {len(vector) for vector in coded} == {WIDTH}
    assert [struct.pack(f"<{WIDTH}f", *vector) for vector in plain] == [
        struct.pack(f"<{WIDTH}f", *vector) for vector in coded
    ]
    with sdk(real) as client:
        (alone,) = client.embeddings.create(model=MINILM, input=texts[32]).data
    assert math.dist(alone.embedding, coded[32]) < 0.001 < math.dist(alone.embedding, coded[31])


def test_G3_seventy_inputs_keep_their_vectors_whatever_order_an_engine_gives(bench: Bench) -> None:
    """G3, 81: shuffled within each of three steps, the second of them the slowest; the usage is that of all."""
    bench.tell("g3", shuffle=True, pauses=[0.0, 0.2])
    reply = embed(bench, "g3", [f"n={number}" for number in range(70)])
    assert [vector[0] for vector in vectors(reply)] == list(range(70))
    assert reply.json["usage"] == {"prompt_tokens": 70, "total_tokens": 70}
    assert reply.json["model"] == "g3"


@pytest.mark.parametrize("status", [400, 500])
def test_G4_one_input_that_is_too_long_fails_the_request_and_is_found(bench: Bench, status: int) -> None:
    """G4, 82: a 400 that names the inputs of its step, whatever the engine calls it; no step behind it is sent."""
    bench.tell("g4", too_long="n=37", too_long_status=status)
    before = len(bench.recorded("g4", "inputs"))
    refused = embed(bench, "g4", [f"n={number}" for number in range(100)])
    assert (refused.status, refused.error["code"], refused.error["param"]) == (400, "invalid_request", "input")
    assert refused.error["message"].startswith("inputs 32 to 63: input (600 tokens) is too large to process")
    assert refused.error["gridsched"]["inputs"] == [32, 63]
    assert bench.recorded("g4", "inputs")[before:] == [32, 32]
    last = embed(bench, "g4", [f"n={number}" for number in range(40)])
    assert last.error["gridsched"]["inputs"] == [32, 39]


def test_G4_a_real_engines_refusal_of_a_long_input_is_a_400(real: Bench) -> None:
    """G4, 82: alone, as the engine says it; among others, with the inputs of its step. The next request is served."""
    long = "word " * 600
    alone = embed(real, MINILM, long)
    assert (alone.status, "too large to process" in alone.error["message"]) == (400, True)
    among = embed(real, MINILM, ["short"] * 36 + [long] + ["short"] * 63)
    assert (among.status, among.error["param"]) == (400, "input")
    assert among.error["gridsched"]["inputs"] == [32, 63]
    assert len(vectors(embed(real, MINILM, ["short"] * 2))) == 2


def test_G5_no_engine_is_given_more_than_thirty_two_inputs_at_once(bench: Bench) -> None:
    """G5, 83: from one to OpenAI's limit; one more is a 400 of which no engine hears."""
    for count in (1, 32, 33, 64, 65, 2048):
        before = len(bench.recorded("g5", "inputs"))
        assert len(vectors(embed(bench, "g5", ["a"] * count))) == count
        rest = [count % 32] if count % 32 else []
        assert bench.recorded("g5", "inputs")[before:] == [32] * (count // 32) + rest
    before = len(bench.recorded("g5", "inputs"))
    refused = embed(bench, "g5", ["a"] * 2049)
    assert (refused.status, refused.error["param"]) == (400, "input")
    assert len(bench.recorded("g5", "inputs")) == before


def test_G6_numbers_of_tokens_are_one_input_and_lists_of_them_are_many(bench: Bench) -> None:
    """G6, 84: a flat list is never cut; what is mixed, empty, or no token is a 400 of which no engine hears."""
    for tokens, steps in (([1, 2, 3], [1]), ([[1, 2], [3]], [2]), ([[n, 1] for n in range(40)], [32, 8])):
        before = len(bench.recorded("g5", "inputs"))
        assert len(vectors(embed(bench, "g5", tokens))) == sum(steps)
        assert bench.recorded("g5", "inputs")[before:] == steps
    assert vectors(embed(bench, "g5", list(range(7, 47)))) == [[7.0, 1.0]]
    before = len(bench.recorded("g5", "inputs"))
    for wrong in ([1, "a"], [[]], ["a", [1]], [[1], []], [[1], ["a"]], [], "", [""], [1.5], [-1], [2**31], {"a": 1}, 7):
        refused = embed(bench, "g5", wrong)
        assert (refused.status, refused.error["param"]) == (400, "input"), wrong
    assert len(bench.recorded("g5", "inputs")) == before


def test_G6_a_real_embedder_takes_tokens_for_what_they_mean(real: Bench) -> None:
    """G6, 84: those of a text give the text's vector; a number that is no token of it is the engine's own 400."""
    tokens = real.ask("/tokenize", {"model": MINILM, "content": "a word", "add_special": True}).json["tokens"]
    by_text, by_tokens = (vectors(embed(real, MINILM, given))[0] for given in ("a word", tokens))
    assert math.dist(by_text, by_tokens) < 0.001
    assert len(vectors(embed(real, MINILM, [tokens, tokens[:2]]))) == 2
    assert embed(real, MINILM, [999_999]).status == 400


@pytest.mark.parametrize("encoding", ["float", "base64"])
def test_G8_a_vector_with_a_hole_never_reaches_a_client(bench: Bench, encoding: str) -> None:
    """G8, 85: bare in floats, hidden in base64: a 502 that says what it is, and is counted."""
    counter = 'gridsched_nan_embeddings_total{model="g8"} '
    bench.tell("g8", holes=True, width=384)
    refused = embed(bench, "g8", ["a"] * 40, encoding_format=encoding)
    assert (refused.status, refused.error["code"]) == (502, "nan_embedding")
    assert b"NaN" not in refused.body
    page = bench.ask("/metrics").body.decode()
    assert float(page.partition(counter)[2].split("\n")[0]) >= 1
    bench.tell("g8")
    assert len(vectors(embed(bench, "g8", ["a"] * 40, encoding_format=encoding))) == 40


def test_G9_a_model_that_cannot_is_told_of_before_anything_is_loaded(bench: Bench) -> None:
    """G9, 86: embeddings of a chat model, and a chat with an embedder."""
    assert embed(bench, "talks", "a").error["code"] == "model_not_supported"
    before = bench.starts("g3")
    assert bench.chat("g3").error["code"] == "model_not_supported"
    assert (bench.starts("talks"), bench.starts("g3")) == (0, before)


def test_G9_the_real_embedder_is_no_chat(real: Bench) -> None:
    """G9, 86: known from its file alone."""
    refused = real.chat(MINILM)
    assert (refused.status, refused.error["code"]) == (400, "model_not_supported")


def test_P5_a_step_whose_engine_is_killed_is_run_again(bench: Bench) -> None:
    """P5: the steps before it are kept, and the client has one whole answer."""
    bench.tell("g10", pauses=[0.0, 60.0], bodies=True)
    with ThreadPoolExecutor() as pool:
        asked = pool.submit(embed, bench, "g10", [f"n={number}" for number in range(40)])
        bench.until(lambda: any("n=32" in body for body in bench.recorded("g10", "body")), "the second step is there")
        os.kill(bench.pid("g10"), signal.SIGKILL)
        assert [vector[0] for vector in vectors(asked.result())] == list(range(40))
    assert bench.recorded("g10", "inputs") == [32, 8]
    assert bench.starts("g10") == 2
