"""The table of architectures, against what the engine really allocates and against figures from its loaders."""

from typing import Any

import pytest

from gridsched.vram.architectures import ARCHITECTURES, architecture
from gridsched.vram.geometry import Geometry, GeometryError
from tests.support.gguf_header import Value
from tests.vram.models import MIB, allocations, estimate, kv_mib, model

LLAMA: dict[str, Any] = {
    "block_count": 4,
    "embedding_length": 256,
    "attention__head_count": 4,
    "attention__head_count_kv": 2,
}  # 256 bytes of K and as many of V a token and layer, in f16
MLA: dict[str, Any] = {
    "attention__head_count_kv": 1,
    "attention__key_length": 576,
    "attention__value_length": 512,
    "attention__key_length_mla": 192,
    "attention__value_length_mla": 128,
}
MAMBA: dict[str, Any] = {"ssm__inner_size": 512, "ssm__state_size": 16, "ssm__conv_kernel": 4, "ssm__group_count": 1}
MAMBA_BYTES = 4 * (3 * (512 + 2 * 16) + 16 * 512)


def tiny(name: str, **keys: Any) -> Geometry:
    """A model of four layers, with these keys beside or instead."""
    return model(name, (), **{**LLAMA, **keys})


def cached(geometry: Geometry) -> list[int]:
    """The layers with a cache of their own."""
    return [index for index, layer in enumerate(geometry.layers) if layer.cache_source == index]


def recurrent(geometry: Geometry) -> list[int]:
    """The layers with a recurrent state in the place of attention, or beside it."""
    return [index for index, layer in enumerate(geometry.layers) if layer.recurrent]


def sliding(geometry: Geometry) -> list[int]:
    """The layers that slide over a window."""
    return [index for index, layer in enumerate(geometry.layers) if layer.window]


@pytest.mark.slow
def test_cache_and_state_are_what_the_engine_allocates_for_every_architecture() -> None:
    """To the byte: 400 models with windows, patterns, lists, states, latent and compressed keys."""
    rows = allocations()
    assert len({row.architecture for row in rows}) > 130
    wrong = []
    for row in rows:
        part = estimate(row.geometry, *row.flags).devices[0]
        if part.kv_bytes + part.recurrent_bytes != row.bytes:
            wrong.append((row.architecture, row.case, part.kv_bytes + part.recurrent_bytes, row.bytes))
    assert wrong == []


def test_an_architecture_has_one_row() -> None:
    """A name that is listed twice would have the last row without a word."""
    assert len(ARCHITECTURES) > 150
    assert all(architecture(name) is row for name, row in ARCHITECTURES.items())
    assert not architecture("newone").known


# --- windows ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pattern", [[True, False, False, True], [1, 0, 0, 1]])
@pytest.mark.parametrize("name", ["gemma4", "gemma3", "cohere2moe"])
def test_a_list_marks_the_layers_that_slide(name: str, pattern: Value) -> None:
    """As booleans or as numbers, and before any period."""
    geometry = tiny(name, attention__sliding_window=300, attention__sliding_window_pattern=pattern)
    assert sliding(geometry) == [0, 3]


@pytest.mark.parametrize(("pattern", "words"), [(6, "is one number where a list"), (None, "is missing")])
def test_a_window_without_a_rule_needs_a_list(pattern: int | None, words: str) -> None:
    """Gemma 4's loader has no period of its own."""
    keys = {} if pattern is None else {"attention__sliding_window_pattern": pattern}
    with pytest.raises(GeometryError, match=rf"gemma4\.attention\.sliding_window_pattern: {words}"):
        tiny("gemma4", attention__sliding_window=300, **keys)


def test_chunked_attention_is_a_window_of_a_chunk() -> None:
    """Llama 4: three layers of four keep 8192 tokens and a micro-batch, whatever the header calls its window."""
    geometry = tiny("llama4", context_length=131072, attention__sliding_window=1024)
    assert geometry.window == 8192
    assert sliding(geometry) == [0, 1, 2]
    assert kv_mib(geometry, "-c", "65536", "-np", "1") == (65536 + 3 * (8192 + 512)) * 512 / MIB
    assert tiny("llama4", attention__sliding_window=0).window == 0


def test_a_window_that_only_one_size_of_a_model_has() -> None:
    """EXAONE 4 slides with 64 layers, and not with 30."""
    assert len(sliding(tiny("exaone4", block_count=64))) == 48
    smaller = tiny("exaone4", block_count=30, attention__sliding_window=4096)
    assert sliding(smaller) == []
    assert "ignores the window of 4096 tokens" in smaller.notes[0]


def test_a_window_that_the_engine_ignores_is_told() -> None:
    """Phi-3's is read and not used: full cache on every layer."""
    geometry = tiny("phi3", attention__sliding_window=2047)
    assert sliding(geometry) == []
    assert "the engine ignores the window of 2047 tokens of phi3: full cache" in geometry.notes[0]


@pytest.mark.parametrize(("interval", "full"), [(2, [1, 3]), (3, [2]), (None, [3])])
def test_every_nth_layer_of_a_hybrid_attends(interval: int | None, full: list[int]) -> None:
    """By the header's interval, or the loader's own of four."""
    keys = {} if interval is None else {"full_attention_interval": interval}
    geometry = tiny("qwen35", **MAMBA, **keys)
    assert cached(geometry) == full
    assert recurrent(geometry) == [index for index in range(4) if index not in full]


# --- latent and sparse attention --------------------------------------------------------------------------------


def test_E9_latent_attention_needs_both_keys_and_a_loader_that_reads_them() -> None:
    """One of the two, or another architecture, is charged K and V: never the cheap case on a guess."""
    assert tiny("deepseek2", **MLA).mla
    assert not tiny("deepseek2", **{**MLA, "attention__value_length_mla": 0}).mla
    assert not tiny("minicpm3", **MLA).mla
    unknown = tiny("newone", **MLA)
    assert not unknown.mla
    assert kv_mib(unknown, "-c", "1024", "-np", "1") == 4 * (576 + 512) * 2 * 1024 / MIB
    assert any("latent attention is not counted on" in note for note in unknown.notes)


def test_an_indexer_has_a_cache_of_keys_of_its_own() -> None:
    """DeepSeek 3.2 on every layer, GLM on those that are marked; in K's own type."""
    keys = {**MLA, "attention__indexer__key_length": 128}
    deepseek, glm = tiny("deepseek32", **keys), tiny("glm-dsa", **keys, attention__indexer__types=[1, 0, 0, 1])
    flags = ("-c", "1024", "-np", "1")
    assert kv_mib(deepseek, *flags) == 4 * (576 + 128) * 2 * 1024 / MIB
    assert kv_mib(glm, *flags) == (4 * 576 + 2 * 128) * 2 * 1024 / MIB
    packed = estimate(deepseek, *flags, "-ctk", "q8_0", "-ctv", "q8_0", "-nkvo")
    assert packed.host.kv_bytes == 4 * (576 + 128) * 34 // 32 * 1024
    assert not tiny("deepseek32", **MLA).layers[0].side_caches
    pooling = {**keys, "attention__head_count_kv": [0, 1, 0, 1], "attention__indexer__kpool": 4}
    hybrid = tiny("glm5-next", **pooling, kda__head_dim=32)
    assert kv_mib(hybrid, *flags) == 2 * (576 + 3 * 128) * 2 * 1024 / MIB  # a key, a gate and a pooled key


def test_glm_shares_indexers_from_the_release_with_a_million_tokens() -> None:
    """Where the header does not mark them: the first two layers, then the first of every four."""
    keys = {**MLA, "attention__indexer__key_length": 128, "block_count": 12}
    older, newer = tiny("glm-dsa", **keys, context_length=202752), tiny("glm-dsa", **keys, context_length=1048576)
    assert [index for index, layer in enumerate(newer.layers) if layer.side_caches] == [0, 1, 2, 6, 10]
    assert all(layer.side_caches for layer in older.layers)


def test_a_sparse_indexer_with_values_begins_behind_the_dense_blocks() -> None:
    """MiniMax M3: one key head and one value head a token."""
    geometry = tiny("minimax-m3", attention__indexer__key_length=128, leading_dense_block_count=3)
    assert kv_mib(geometry, "-c", "1024", "-np", "1") == (4 * 2 * 128 + (128 + 64)) * 2 * 1024 / MIB


def test_compressed_keys_are_charged_with_their_compressors() -> None:
    """DeepSeek 4: a window on every layer; a cell for four tokens and an indexer, or a cell for 128; per slot."""
    keys: dict[str, Any] = {
        "attention__head_count_kv": 1,
        "attention__key_length": 512,
        "attention__value_length": 512,
        "attention__sliding_window": 128,
        "attention__indexer__key_length": 64,
        "attention__compress_ratios": [0, 4, 128, 4],
    }
    geometry = tiny("deepseek4", **keys)
    part = estimate(geometry, "-c", "65536", "-np", "2", "-kvu", "-ub", "512").devices[0]
    window, dense, sparse = 4 * 512 * 768, 2 * (512 + 64) * 16384, 512 * 512
    assert part.kv_bytes == 2 * 2 * (window + dense + sparse)
    assert part.recurrent_bytes == 2 * 4 * 2 * (2 * 16 * (512 + 64) + 128 * 512)
    with pytest.raises(GeometryError, match=r"attention\.compress_ratios: 7 is none of 0, 4, 128"):
        tiny("deepseek4", **{**keys, "attention__compress_ratios": [0, 4, 7, 4]})
    with pytest.raises(GeometryError, match="has 2 entries for 4 layers"):
        tiny("deepseek4", **{**keys, "attention__compress_ratios": [0, 4]})


# --- recurrent states -------------------------------------------------------------------------------------------


def test_a_layer_of_nemotron_is_a_mixer_attention_or_feed_forward() -> None:
    """By which of its two counts are 0."""
    heads, widths = [0, 2, 0, 2], [0, 0, 384, 384]
    geometry = tiny("nemotron_h", **MAMBA, attention__head_count_kv=heads, feed_forward_length=widths)
    assert recurrent(geometry) == [0]
    assert cached(geometry) == [1]


def test_states_of_every_kind() -> None:
    """Bytes of one layer's state for one sequence."""
    assert tiny("mamba2", **MAMBA).state_bytes == MAMBA_BYTES
    assert tiny("mamba", **MAMBA).state_bytes == 4 * (3 * 512 + 16 * 512)  # its loader reads no groups
    assert tiny("rwkv6", wkv__head_size=64, token_shift_count=1).state_bytes == 4 * 256 * (1 + 64)
    assert tiny("lfm2", attention__head_count_kv=[0, 2, 0, 2], shortconv__l_cache=3).state_bytes == 4 * 256 * 2
    kimi = tiny("kimi-linear", **{**MLA, "attention__head_count_kv": [0, 1, 0, 1]}, kda__head_dim=32)
    assert kimi.state_bytes == 4 * 4 * 32 * (3 * 3 + 32)
    lightning = tiny("minimax-01", block_count=8)
    assert (lightning.state_bytes, cached(lightning)) == (4 * 64 * 64 * 4, [7])


def test_n_gram_embeddings_remember_what_they_look_back_over() -> None:
    """Qwen 4: on the layers that the header names, in each stream."""
    keys: dict[str, Any] = {
        "ple__layers": [1],
        "ple__conv_kernel": 4,
        "ple__ngram_size": 3,
        "hyper_connection__count": 4,
    }
    sizes = [layer.state_bytes for layer in tiny("qwen4exp", **MAMBA, **keys).layers]
    assert sizes == [MAMBA_BYTES, MAMBA_BYTES + 4 * 3 * 3 * 4 * 256, MAMBA_BYTES, 0]


def test_a_state_that_the_header_does_not_size_is_refused() -> None:
    """By the key."""
    with pytest.raises(GeometryError, match=r"rwkv7\.wkv\.head_size: is missing"):
        tiny("rwkv7")
    with pytest.raises(GeometryError, match=r"lfm2\.shortconv\.l_cache: is missing"):
        tiny("lfm2")


def test_sliding_attention_of_a_hybrid() -> None:
    """LFM2 with a window: all of its attention slides."""
    geometry = tiny("lfm2", attention__head_count_kv=[0, 2, 0, 2], shortconv__l_cache=3, attention__sliding_window=300)
    assert kv_mib(geometry, "-c", "16384", "-np", "1") == 2 * 1024 * 512 / MIB


# --- shared caches, drafting blocks, loops ------------------------------------------------------------------------


def test_the_last_layers_of_gemma_reuse_the_last_of_their_own_kind() -> None:
    """Gemma 4 by a key, Gemma 3n by the loader's constant of 20."""
    pattern = [True, False, True, False, True, False]
    keys: dict[str, Any] = {
        "block_count": 6,
        "attention__sliding_window": 300,
        "attention__sliding_window_pattern": pattern,
    }
    four = tiny("gemma4", **keys, attention__shared_kv_layers=2)
    assert [layer.cache_source for layer in four.layers] == [0, 1, 2, 3, 2, 3]
    with pytest.raises(GeometryError, match="5 of 6 layers leave none to share"):
        tiny("gemma4", **keys, attention__shared_kv_layers=5)
    three = tiny("gemma3n", block_count=30, attention__sliding_window=300)
    assert cached(three) == list(range(20))


def test_E16_a_drafting_blocks_cache_is_kept_apart() -> None:
    """544 MiB at 262,144 tokens in q8_0 if it is used; nothing in the model's own context."""
    keys: dict[str, Any] = {"attention__head_count_kv": 4, "attention__key_length": 256, "attention__value_length": 256}
    tensors = [(f"blk.{index}.attn_k.weight", [256, 1024], "F16") for index in range(5)]
    with_block = model("qwen35", tensors, **{**LLAMA, **MAMBA, **keys, "block_count": 5}, nextn_predict_layers=1)
    without = model("qwen35", tensors[:4], **{**LLAMA, **MAMBA, **keys})
    flags = ("-c", "262144", "-np", "1", "-ctk", "q8_0", "-ctv", "q8_0")
    assert (with_block.blocks, with_block.draft_blocks) == (4, 1)
    one, other = estimate(with_block, *flags).devices[0], estimate(without, *flags).devices[0]
    assert (one.kv_bytes, one.weights_bytes) == (other.kv_bytes, other.weights_bytes)
    block = with_block.layers[4]
    assert (block.cache_source, block.recurrent) == (None, False)
    assert (block.key_width + block.value_width) * 34 / 32 * 262144 == 544 * MIB


@pytest.mark.parametrize("name", ["glm4moe", "deepseek2", "mimo2", "step35", "bailingmoe2", "exaone-moe", "hy_v3"])
def test_blocks_that_only_drafting_uses_are_known_by_their_key(name: str) -> None:
    """Their weights are not loaded, and they have no cache."""
    slides = {"attention__sliding_window": 300, "attention__sliding_window_pattern": [True, False, True, False]}
    geometry = tiny(name, **(slides if name in ("mimo2", "step35") else {}), nextn_predict_layers=1)
    assert (geometry.blocks, geometry.draft_blocks) == (3, 1)
    assert cached(geometry) == [0, 1, 2]
    with pytest.raises(GeometryError, match="5 of 4 blocks are too many"):
        tiny(name, nextn_predict_layers=5)


def test_a_hybrid_without_a_filter_caches_its_drafting_blocks() -> None:
    """The memory of Nemotron H and Ling 3 counts them, that of Qwen 3.5 does not."""
    heads, widths = [0, 2, 0, 2], [0, 0, 384, 0]
    nemotron = tiny("nemotron_h_moe", **MAMBA, attention__head_count_kv=heads, feed_forward_length=widths)
    drafting = tiny(
        "nemotron_h_moe",
        **{**MAMBA, "attention__head_count_kv": heads, "feed_forward_length": widths, "nextn_predict_layers": 1},
    )
    assert cached(nemotron) == cached(drafting) == [1, 3]
    assert cached(tiny("qwen35", **MAMBA, nextn_predict_layers=1)) == []


def test_a_file_of_drafting_blocks_alone_is_a_draft_model() -> None:
    """They are its ordinary layers then."""
    geometry = tiny("glm4moe", nextn_predict_layers=4)
    assert (geometry.blocks, geometry.draft_blocks, cached(geometry)) == (4, 0, [0, 1, 2, 3])


def test_a_router_keeps_the_cache_of_one_head() -> None:
    """Granite Switch: behind the blocks of the file."""
    geometry = tiny("graniteswitch")
    assert (geometry.blocks, len(geometry.layers)) == (4, 5)
    assert kv_mib(geometry, "-c", "1024", "-np", "1") == (4 * 2 + 1) * 2 * 64 * 2 * 1024 / MIB


def test_blocks_that_are_run_through_again_have_caches_again() -> None:
    """Nanbeige loops over its blocks."""
    assert cached(tiny("nanbeige", num_loops=3)) == list(range(12))


def test_a_draft_model_that_uses_its_targets_cache_has_none() -> None:
    """Gemma 4's assistant."""
    keys: dict[str, Any] = {"attention__sliding_window": 300, "attention__sliding_window_pattern": [1, 1, 1, 0]}
    assert kv_mib(tiny("gemma4-assistant", **keys, nextn_predict_layers=4), "-c", "4096") == 0


# --- what is not known --------------------------------------------------------------------------------------------


def test_the_tensors_of_an_unknown_hybrid_say_which_layers_remember_what() -> None:
    """A mixer's block has a state and no cache, unless it has K and V as well; what has no mixer has a cache."""
    tensors = [
        *(("blk.0.ssm_conv1d.weight", [4, 544], "F32"), ("blk.0.attn_qkv.weight", [256, 512], "F16")),
        *(("blk.1.attn_k.weight", [256, 128], "F16"), ("blk.1.attn_v.weight", [256, 128], "F16")),
        *(("blk.2.ssm_a", [16], "F32"), ("blk.2.attn_k.weight", [256, 128], "F16")),
        ("blk.3.ffn_up.weight", [256, 384], "F16"),
    ]
    geometry = model("newhybrid", tensors, **LLAMA, **MAMBA)
    assert recurrent(geometry) == [0, 2]
    assert cached(geometry) == [1, 2, 3]
    assert geometry.state_bytes == MAMBA_BYTES
    assert any("the largest that its keys can mean" in note for note in geometry.notes)


def test_an_unknown_state_is_the_largest_that_the_keys_can_mean() -> None:
    """Whichever of the known formulas is dearest."""
    geometry = tiny("newhybrid", **MAMBA, wkv__head_size=64, shortconv__l_cache=3, kda__head_dim=128)
    assert geometry.state_bytes == 4 * 4 * 128 * (3 * 3 + 128)
