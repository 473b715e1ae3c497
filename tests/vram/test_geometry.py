"""What kind of model a header describes, and which headers cannot be planned."""

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gridsched.vram.flags import LaunchFlags
from gridsched.vram.footprint import footprint
from gridsched.vram.geometry import Geometry, GeometryError
from gridsched.vram.header import scan
from tests.support.gguf_header import Value, build_header
from tests.vram.models import CARD, model, real

MINIMAL: dict[str, Value] = {
    "general.architecture": "llama",
    "llama.block_count": 1,
    "llama.embedding_length": 64,
    "llama.attention.head_count": 1,
}


def outcome(header: bytes) -> Geometry | GeometryError:
    """What planning from a header ends in, as a value; any other exception goes through."""
    try:
        return Geometry.from_header(scan(header))
    except GeometryError as end:
        return end


def refusal(metadata: dict[str, Value]) -> GeometryError:
    """The error that planning from this metadata ends in."""
    with pytest.raises(GeometryError) as caught:
        Geometry.from_header(scan(build_header(metadata)))
    return caught.value


def test_what_a_model_is_for_is_read_from_the_header() -> None:
    """Chat, embedding, reranking: by architecture, pooling and classifier."""
    chat, encoder = real("Qwen3-8B-Q4_K_M"), real("nomic-embed-text-v1.5-F16")
    decoder, ranker = real("Qwen3-Embedding-0.6B-Q8_0"), real("bge-reranker-v2-m3-Q8_0")
    assert (chat.is_embedding, chat.is_encoder, chat.causal, chat.pooling) == (False, False, True, None)
    assert (encoder.is_embedding, encoder.is_encoder, encoder.causal, encoder.pooling) == (True, True, False, "mean")
    assert (decoder.is_embedding, decoder.is_encoder, decoder.causal, decoder.pooling) == (True, False, True, "last")
    assert (ranker.is_reranker, ranker.pooling) == (True, "rank")
    assert not any(geometry.is_reranker for geometry in (chat, encoder, decoder))


def test_a_chat_template_is_seen_not_read() -> None:
    """Its presence says that the model chats."""
    keys = {**MINIMAL, "llama.embedding_length": 8}
    assert not Geometry.from_header(scan(build_header(keys))).has_chat_template
    keys["tokenizer.chat_template"] = "{{ x }}"
    assert Geometry.from_header(scan(build_header(keys))).has_chat_template


@pytest.mark.parametrize(
    "keys", [{"general.architecture": "clip"}, {"general.architecture": "gemma3", "general.type": "mmproj"}]
)
def test_F7_a_projector_is_known_as_such(keys: dict[str, Value]) -> None:
    """It has weights and nothing else that could be planned as a model."""
    geometry = Geometry.from_header(scan(build_header(keys, [("v.blk.0.w", [64, 64], "F16")])))
    assert geometry.is_projector
    assert geometry.file_bytes == 64 * 64 * 2


def test_the_vocabulary_is_counted_from_the_token_list_first() -> None:
    """The list is what the engine counts; then the key; then the table's rows."""
    keys = {**MINIMAL, "llama.embedding_length": 32}
    table = [("token_embd.weight", [32, 500], "F16")]
    assert Geometry.from_header(scan(build_header(keys, table))).vocab_size == 500
    keys["llama.vocab_size"] = 400
    assert Geometry.from_header(scan(build_header(keys, table))).vocab_size == 400
    keys["tokenizer.ggml.tokens"] = [str(i) for i in range(300)]
    assert Geometry.from_header(scan(build_header(keys, table))).vocab_size == 300


@pytest.mark.parametrize(
    ("metadata", "field", "words"),
    [
        ({}, "general.architecture", "does not name"),
        ({"general.architecture": 3}, "general.architecture", "does not name"),
        ({"general.architecture": "llama"}, "llama.block_count", "is missing"),
        ({"general.architecture": "llama", "llama.block_count": 0}, "llama.block_count", "implausible"),
        ({"general.architecture": "llama", "llama.block_count": 2**31}, "llama.block_count", "implausible"),
        ({"general.architecture": "llama", "llama.block_count": "32"}, "llama.block_count", "'32' is not a count"),
        ({"general.architecture": "llama", "llama.block_count": 4}, "llama.embedding_length", "is missing"),
        ({**MINIMAL, "llama.attention.head_count": 0}, "llama.attention.head_count", "no layer has heads"),
        (
            {
                "general.architecture": "llama",
                "llama.block_count": 4,
                "llama.embedding_length": 64,
                "llama.attention.head_count_kv": [1, 2],
            },
            "llama.attention.head_count_kv",
            "has 2 entries for 4 layers",
        ),
        (
            {
                "general.architecture": "gemma4",
                "gemma4.block_count": 4,
                "gemma4.embedding_length": 64,
                "gemma4.attention.sliding_window": 512,
                "gemma4.attention.sliding_window_pattern": [True],
            },
            "gemma4.attention.sliding_window_pattern",
            "has 1 entries for 4 layers",
        ),
    ],
)
def test_a_header_that_cannot_be_planned_is_refused_by_key(metadata: dict[str, Value], field: str, words: str) -> None:
    """The error names the key and what is wrong with it."""
    error = refusal(metadata)
    assert error.field == field
    assert words in error.message


def test_an_unknown_architecture_with_a_window_is_charged_the_dear_way() -> None:
    """Every layer at full context, and a note that says so."""
    geometry = model("newone", block_count=4, embedding_length=64, attention__head_count=4, attention__sliding_window=8)
    assert not any(layer.window for layer in geometry.layers)
    assert "full cache on every layer" in geometry.notes[0]
    assert "newone is not known" in geometry.notes[1]


def test_an_unknown_hybrid_is_charged_a_cache_and_a_state_on_every_layer() -> None:
    """The header speaks of a recurrent state, and no table says where."""
    geometry = model(
        "newhybrid",
        block_count=4,
        embedding_length=64,
        attention__head_count=4,
        ssm__inner_size=128,
        ssm__state_size=16,
    )
    assert all(layer.recurrent and layer.cache_source == index for index, layer in enumerate(geometry.layers))


@pytest.mark.parametrize(
    ("architecture", "full"), [("olmo2", [3, 7]), ("laguna", [0, 4]), ("plamo3", [7]), ("gemma2", [1, 3, 5, 7])]
)
def test_the_full_layer_of_a_period_is_where_the_architecture_has_it(architecture: str, full: list[int]) -> None:
    """The last of each period, or the first."""
    keys: dict[str, Value] = {"block_count": 8, "embedding_length": 64, "attention__head_count": 4}
    geometry = model(architecture, (), **keys, attention__sliding_window=512)
    assert [index for index, layer in enumerate(geometry.layers) if not layer.window] == full


def test_a_list_of_recurrent_layers_beats_the_interval() -> None:
    """Where a header has both."""
    keys: dict[str, Value] = {"block_count": 4, "embedding_length": 64, "attention__head_count": 4}
    listed = [True, False, True, False]
    geometry = model("qwen35", (), **keys, full_attention_interval=4, attention__recurrent_layers=listed)
    assert [layer.recurrent for layer in geometry.layers] == listed


def test_rwkv_and_kda_states_have_their_own_sizes() -> None:
    """Four bytes a value, for one layer and one sequence."""
    rwkv = model("rwkv7", block_count=2, embedding_length=64, wkv__head_size=16, token_shift_count=2)
    assert rwkv.state_bytes == 4 * (2 * 64 + 64 * 16)
    keys: dict[str, Value] = {"block_count": 2, "embedding_length": 64, "attention__head_count": 4}
    kimi = model("kimi-linear", (), **keys, attention__head_count_kv=[0, 1], kda__head_dim=16, ssm__conv_kernel=4)
    assert kimi.state_bytes == 4 * (3 * 3 * 64 + 16 * 16 * 4)
    assert [layer.recurrent for layer in kimi.layers] == [True, False]


def test_E14_a_split_set_is_planned_whole_or_not_at_all() -> None:
    """The parts' tensors add up to the whole; a part that is missing is an error."""
    keys = {**MINIMAL, "llama.block_count": 2, "llama.embedding_length": 64}
    tensors = [(f"blk.{i // 2}.w{i % 2}.weight", [64, 64], "F16") for i in range(4)]
    whole = Geometry.from_header(scan(build_header(keys, tensors)))
    split: dict[str, Value] = {"split.count": 2, "split.tensors.count": 4}
    first = scan(build_header({**keys, **split}, tensors[:2]))
    second = scan(build_header({**split, "split.no": 1}, tensors[2:]))
    assert Geometry.from_header(first, (second,)).weights == whole.weights
    with pytest.raises(GeometryError, match="split over 2 files, 1 of them"):
        Geometry.from_header(first)
    with pytest.raises(GeometryError, match="says 4 tensors, the files have 2"):
        Geometry.from_header(first, (replace(second, tensors=()),))


KEYS = st.sampled_from(
    [
        *("attention.head_count", "attention.head_count_kv", "attention.key_length", "attention.value_length"),
        *("attention.sliding_window", "attention.sliding_window_pattern", "attention.shared_kv_layers"),
        *("expert_count", "expert_used_count", "feed_forward_length", "full_attention_interval", "context_length"),
        *("ssm.inner_size", "ssm.state_size", "ssm.conv_kernel", "nextn_predict_layers", "pooling_type"),
        *("shortconv.l_cache", "vocab_size", "altup.num_inputs", "embedding_length_per_layer_input"),
    ]
)
VALUES: st.SearchStrategy[Value] = st.one_of(
    st.integers(0, 300), st.booleans(), st.text(max_size=3), st.lists(st.integers(0, 9), min_size=1, max_size=12)
)
ARCHITECTURES = st.sampled_from(
    ["llama", "gemma3", "gemma3n", "gemma4", "qwen35moe", "lfm2", "bert", "mamba2", "falcon-h1", "nemotron_h", "rwkv7"]
)


@pytest.mark.slow
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(ARCHITECTURES, st.integers(1, 12), st.dictionaries(KEYS, VALUES, max_size=8))
def test_nonsense_metadata_is_refused_or_planned_never_worse(
    architecture: str, blocks: int, keys: dict[str, Value]
) -> None:
    """Any values under the keys that planning reads: an error by key, or a footprint without negative parts."""
    metadata: dict[str, Value] = {f"{architecture}.{key}": value for key, value in keys.items()}
    metadata |= {"general.architecture": architecture, f"{architecture}.block_count": blocks}
    metadata[f"{architecture}.embedding_length"] = 64
    tensors = [("token_embd.weight", [64, 32], "F16"), ("blk.0.w.weight", [64, 64], "Q8_0")]
    end = outcome(build_header(metadata, tensors))
    if isinstance(end, GeometryError):
        assert end.field
        return
    part = footprint(end, LaunchFlags(ctx_size=512), (CARD,)).devices[0]
    assert min(part.weights_bytes, part.kv_bytes, part.recurrent_bytes, part.compute_bytes) >= 0
