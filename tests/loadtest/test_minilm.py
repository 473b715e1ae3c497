import json
import os
import subprocess
from pathlib import Path

import gguf
import httpx
import numpy as np
import pytest
import trio

from gridsched.engine.find import find_engine
from gridsched.engine.locate import FoundEngine
from loadtest.clients import Client
from loadtest.minilm import ConversionError, convert
from tests.loadtest.tiny_bert import CONFIG, CONTEXT, LAYERS, WIDTH, WORDS, write_tensors, write_tiny_bert


def test_a_tiny_bert_becomes_a_gguf_with_every_tensor_and_key(tmp_path: Path) -> None:
    """The independent reader of the GGUF library finds what the source held."""
    source = write_tiny_bert(tmp_path / "source")
    convert(tmp_path / "source", tmp_path / "tiny.gguf")
    reader = gguf.GGUFReader(tmp_path / "tiny.gguf")
    keys = {name: field.contents() for name, field in reader.fields.items()}
    assert keys["general.architecture"] == "bert"
    assert keys["bert.block_count"] == LAYERS
    assert keys["bert.context_length"] == CONTEXT
    assert keys["bert.embedding_length"] == WIDTH
    assert keys["bert.attention.causal"] is False
    assert keys["bert.pooling_type"] == gguf.PoolingType.MEAN
    assert keys["tokenizer.ggml.model"] == "bert"
    assert keys["tokenizer.ggml.bos_token_id"] == WORDS.index("[CLS]")
    tensors = {one.name: one for one in reader.tensors}
    assert len(tensors) == 5 + 16 * LAYERS
    up = tensors["blk.1.ffn_up.weight"]
    assert up.data.dtype == np.float16
    np.testing.assert_allclose(up.data, source["encoder.layer.1.intermediate.dense.weight"], rtol=1e-3)
    bias = tensors["blk.0.attn_q.bias"]
    assert bias.data.dtype == np.float32
    np.testing.assert_array_equal(bias.data, source["encoder.layer.0.attention.self.query.bias"])
    assert tensors["position_embd.weight"].data.dtype == np.float32


def test_words_are_marked_where_they_begin(tmp_path: Path) -> None:
    """The source marks what continues a word, the target what begins one; special tokens stay as they are."""
    write_tiny_bert(tmp_path)
    convert(tmp_path, tmp_path / "tiny.gguf")
    tokens = gguf.GGUFReader(tmp_path / "tiny.gguf").fields["tokenizer.ggml.tokens"].contents()
    assert tokens[:6] == [*WORDS[:5], "\u2581a"]
    assert tokens[WORDS.index("##a")] == "a"
    assert tokens[WORDS.index("##")] == "\u2581##"


def test_half_precision_sources_are_taken_too(tmp_path: Path) -> None:
    """Packages carry either."""
    tensors = write_tiny_bert(tmp_path)
    halves = {name: values.astype(np.float16) for name, values in tensors.items() if values.dtype == np.float32}
    write_tensors(tmp_path / "model.safetensors", halves)
    convert(tmp_path, tmp_path / "tiny.gguf")
    assert (tmp_path / "tiny.gguf").stat().st_size > 0


def test_a_missing_tensor_is_named_and_nothing_is_written(tmp_path: Path) -> None:
    """Half a model under a final name would be taken for a model."""
    tensors = write_tiny_bert(tmp_path / "source")
    del tensors["encoder.layer.1.output.dense.bias"]
    write_tensors(tmp_path / "source" / "model.safetensors", tensors)
    with pytest.raises(ConversionError, match=r"model.safetensors: the tensor encoder.layer.1.output.dense.bias is"):
        convert(tmp_path / "source", tmp_path / "out" / "tiny.gguf")
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.parametrize(
    ("name", "values", "sentence"),
    [
        ("embeddings.LayerNorm.bias", np.zeros(7, np.float32), r"embeddings.LayerNorm.bias has shape \[7\]"),
        ("embeddings.LayerNorm.bias", np.zeros(WIDTH, np.int64), "has dtype 'I64', expected F32 or F16"),
    ],
)
def test_a_tensor_of_another_kind_is_named(tmp_path: Path, name: str, values: np.ndarray, sentence: str) -> None:
    """Shape and type are told as found and as expected."""
    tensors = write_tiny_bert(tmp_path)
    write_tensors(tmp_path / "model.safetensors", tensors | {name: values})
    with pytest.raises(ConversionError, match=sentence):
        convert(tmp_path, tmp_path / "tiny.gguf")


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"num_hidden_layers": None}, "num_hidden_layers is missing"),
        ({"hidden_size": "wide"}, "hidden_size is 'wide', expected a number"),
        ({"num_attention_heads": 5}, "hidden_size 32 is no multiple of 5"),
        ({"hidden_act": "relu"}, "hidden_act is 'relu', only 'gelu'"),
        ({"model_type": "t5"}, "model_type is 't5', only 'bert'"),
        ({"vocab_size": 9}, "22 lines, but vocab_size is 9"),
    ],
)
def test_a_configuration_that_does_not_fit_is_named(tmp_path: Path, change: dict[str, object], sentence: str) -> None:
    """The field, what it is, and what it should be."""
    write_tiny_bert(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({**CONFIG, **change}))
    with pytest.raises(ConversionError, match=sentence):
        convert(tmp_path, tmp_path / "tiny.gguf")


@pytest.mark.parametrize(
    ("file", "raw", "sentence"),
    [
        ("config.json", b"{", "config.json: not readable as JSON"),
        ("config.json", b"[]", "config.json: holds no JSON object"),
        ("vocab.txt", b"\xff\xfe", "vocab.txt: not UTF-8 at offset 0"),
        ("model.safetensors", b"", "no safetensors header"),
        ("model.safetensors", b"\xff" * 64, "no safetensors header"),
        ("model.safetensors", b"\x02\0\0\0\0\0\0\0{}", "the tensor embeddings.word_embeddings.weight is missing"),
    ],
)
def test_a_damaged_file_is_named(tmp_path: Path, file: str, raw: bytes, sentence: str) -> None:
    """Whatever is in it, it ends in a sentence."""
    write_tiny_bert(tmp_path)
    (tmp_path / file).write_bytes(raw)
    with pytest.raises(ConversionError, match=sentence):
        convert(tmp_path, tmp_path / "tiny.gguf")


def test_a_file_that_was_cut_off_is_named(tmp_path: Path) -> None:
    """The header promises more bytes than there are."""
    write_tiny_bert(tmp_path)
    path = tmp_path / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(ConversionError, match="should take"):
        convert(tmp_path, tmp_path / "tiny.gguf")


def test_a_vocabulary_without_its_special_tokens_is_refused(tmp_path: Path) -> None:
    """Every sentence begins and ends with one."""
    write_tiny_bert(tmp_path)
    (tmp_path / "vocab.txt").write_text("\n".join(["no", *WORDS[1:]]))
    with pytest.raises(ConversionError, match=r"the token \[PAD\] is missing"):
        convert(tmp_path, tmp_path / "tiny.gguf")


@pytest.fixture
def engine() -> FoundEngine:
    """The real engine, where one runs."""
    found = find_engine()
    if not found.info.ok:
        pytest.skip(reason=found.info.problem)
    return found


@pytest.mark.slow
async def test_the_real_engine_serves_what_was_converted(engine: FoundEngine, tmp_path: Path) -> None:
    """The proof that names, shapes and keys are the engine's own: it embeds two texts, each its own way."""
    write_tiny_bert(tmp_path)
    convert(tmp_path, tmp_path / "tiny.gguf")
    address = str(tmp_path / "engine.sock")
    process = _start(engine, tmp_path / "tiny.gguf", address)
    try:
        http = httpx.AsyncClient(base_url="http://engine", transport=httpx.AsyncHTTPTransport(uds=address))
        async with http:
            with trio.fail_after(30):
                while not await _is_healthy(http):
                    assert process.poll() is None
                    await trio.sleep(0.05)
            gave = await Client(http).embed("embeddings", "tiny", ["abc", "hgf"])
    finally:
        process.kill()
        process.wait()
    assert gave.measured.error == ""
    assert gave.indexes == [0, 1]
    assert [len(vector) for vector in gave.vectors] == [WIDTH, WIDTH]
    assert gave.vectors[0] != gave.vectors[1]


def _start(found: FoundEngine, model: Path, address: str) -> "subprocess.Popen[bytes]":
    options = ["--embedding", "--ctx-size", str(CONTEXT), "--host", address, "--threads", "1"]
    return subprocess.Popen(
        [found.info.path, "-m", str(model), *options],
        env={**os.environ, **found.env},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


async def _is_healthy(http: httpx.AsyncClient) -> bool:
    try:
        return (await http.get("/health")).status_code == httpx.codes.OK
    except httpx.HTTPError:
        return False
