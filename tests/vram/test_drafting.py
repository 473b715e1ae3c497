"""Speculative decoding: what a second model, or the model's own drafting blocks, take beside the model."""

import pytest

from gridsched.core.ids import DeviceName
from gridsched.vram.flags import FlagError, parse_flags
from gridsched.vram.footprint import Footprint, footprint
from gridsched.vram.geometry import Geometry
from tests.support.gguf_header import tensor_bytes
from tests.vram.models import CARD, MIB, estimate, model, real

SECOND_CARD = DeviceName("gpu1")
BLOCK = ("attn_q.weight", [5120, 5120], "F16")


def hybrid(drafting: int = 1) -> Geometry:
    """Sixteen layers with a cache of 4 x 256, 48 with a state, and blocks that predict further tokens."""
    return model(
        "qwen35",
        [(f"blk.{index}.{BLOCK[0]}", BLOCK[1], BLOCK[2]) for index in range(64 + drafting)],
        block_count=64 + drafting,
        nextn_predict_layers=drafting,
        full_attention_interval=4,
        embedding_length=5120,
        feed_forward_length=17408,
        attention__head_count=24,
        attention__head_count_kv=4,
        attention__key_length=256,
        attention__value_length=256,
        ssm__inner_size=6144,
        ssm__state_size=128,
        ssm__conv_kernel=4,
        ssm__group_count=16,
        context_length=262144,
    )


def launch(geometry: Geometry, *words: str, draft: Geometry | None = None, cards: int = 1) -> Footprint:
    """The footprint with a drafter, nothing charged outside of the engine's buffers."""
    return footprint(geometry, parse_flags(words), (CARD, SECOND_CARD)[:cards], overhead_bytes=0, draft=draft)


def test_E16_drafting_with_the_models_own_block_takes_its_weights_and_its_own_cache() -> None:
    """544 MiB of cache at 262,144 tokens in q8_0, a compute buffer, the block's weights; nothing without the flag."""
    words = ("-c", "262144", "-np", "1", "-ctk", "q8_0", "-ctv", "q8_0")
    without, drafting = launch(hybrid(), *words), launch(hybrid(), *words, "--spec-type", "draft-mtp")
    assert without.devices[0].draft_bytes == 0
    in_f16 = drafting.devices[0].draft_bytes
    in_q8 = (
        launch(hybrid(), *words, "--spec-type", "draft-mtp", "-ctkd", "q8_0", "-ctvd", "q8_0").devices[0].draft_bytes
    )
    block = tensor_bytes(BLOCK[1], BLOCK[2])
    assert in_q8 > block + 544 * MIB
    assert in_f16 > block + 1024 * MIB  # the draft's cache is f16 whatever the model's is
    assert in_f16 < block + 1024 * MIB + 512 * MIB
    assert drafting.devices[0].kv_bytes == without.devices[0].kv_bytes
    assert drafting.devices[0].weights_bytes == without.devices[0].weights_bytes


def test_states_are_kept_for_every_drafted_token() -> None:
    """One and three more for each slot, or as many as are drafted; one where nothing has to be taken back."""
    words = ("-c", "8192", "-np", "2")
    one = launch(hybrid(), *words).devices[0].recurrent_bytes
    assert launch(hybrid(), *words, "--spec-type", "draft-mtp").devices[0].recurrent_bytes == 4 * one
    deeper = launch(hybrid(), *words, "--spec-type", "draft-mtp", "--spec-draft-n-max", "7")
    assert deeper.devices[0].recurrent_bytes == 8 * one
    assert launch(hybrid(), *words, "--spec-type", "ngram-mod").devices[0].recurrent_bytes == one


def test_the_block_lies_on_the_last_card_with_the_output() -> None:
    """And the first card has nothing of the drafting context."""
    ours = launch(hybrid(), "-c", "8192", "-np", "1", "-ts", "1,1", "--spec-type", "draft-mtp", cards=2)
    assert ours.devices[0].draft_bytes == 0
    assert ours.devices[1].draft_bytes > tensor_bytes(BLOCK[1], BLOCK[2])


def test_a_model_without_such_a_block_cannot_draft_for_itself() -> None:
    """The engine would end at start."""
    with pytest.raises(FlagError, match="--spec-type: draft-mtp needs a model with blocks that predict further tokens"):
        launch(real("Qwen3-8B-Q4_K_M"), "--spec-type", "draft-mtp")


def test_E17_a_draft_model_is_charged_beside_the_model() -> None:
    """Its weights, cache and compute as if it were alone; without the flag's file nothing, and a note."""
    small = real("Llama-3.2-1B-Q4_K_M")
    words = ("-c", "8192", "-np", "1", "-md", "small.gguf", "-ngld", "99", "-cd", "8192")
    both = launch(real("Llama-3.1-8B-Q4_K_M"), *words, draft=small)
    alone = estimate(small, "-c", "8192", "-np", "1")
    assert both.devices[0].draft_bytes == alone.total_bytes
    assert launch(real("Llama-3.1-8B-Q4_K_M"), "-c", "8192", "-np", "1").devices[0].draft_bytes == 0


def test_a_draft_model_has_the_pool_and_slots_of_the_model_and_its_own_cache_types() -> None:
    """Where its own flags do not say otherwise; its cache is f16 beside a quantized one."""
    small = real("Llama-3.2-1B-Q4_K_M")
    words = ("-c", "16384", "-np", "2", "-ctk", "q8_0", "-ctv", "q8_0", "-md", "small.gguf")
    ours = launch(real("Llama-3.1-8B-Q4_K_M"), *words, draft=small).devices[0].draft_bytes
    assert ours == estimate(small, "-c", "16384", "-np", "2").total_bytes
    quantized = launch(real("Llama-3.1-8B-Q4_K_M"), *words, "-ctkd", "q8_0", "-ctvd", "q8_0", draft=small)
    assert quantized.devices[0].draft_bytes == estimate(small, *words[:8]).total_bytes


@pytest.mark.parametrize(
    ("words", "first", "second"),
    [(("-devd", "CUDA1"), False, True), (("-devd", "CUDA0"), True, False), (("-ngld", "0"), False, False)],
)
def test_a_draft_model_goes_where_its_own_flags_say(words: tuple[str, ...], first: bool, second: bool) -> None:
    """One card, the other, or neither: then most of it is in host memory."""
    small, large = real("Llama-3.2-1B-Q4_K_M"), real("Llama-3.1-8B-Q4_K_M")
    ours = launch(large, "-c", "8192", "-np", "1", "-ts", "1,1", "-md", "s.gguf", *words, draft=small, cards=2)
    weights = 700 * MIB
    assert [part.draft_bytes > weights for part in ours.devices] == [first, second]
    assert (ours.host.draft_bytes > weights) is not (first or second)


def test_a_second_file_with_nothing_but_drafting_blocks_is_run_as_such() -> None:
    """Its cache is that of the drafting block alone, whatever its header says of the others."""
    ours = launch(hybrid(), "-c", "8192", "-np", "1", "-md", "m.gguf", "--spec-type", "draft-mtp", draft=hybrid())
    own = launch(hybrid(), "-c", "8192", "-np", "1", "--spec-type", "draft-mtp")
    others = 64 * tensor_bytes(BLOCK[1], BLOCK[2])
    assert ours.devices[0].draft_bytes == own.devices[0].draft_bytes + others
