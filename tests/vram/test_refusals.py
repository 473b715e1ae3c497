"""Launches that the engine refuses, or on which it aborts, are refused before they are tried, with the rule."""

import json
from dataclasses import replace

import pytest

from gridsched.vram.context import plan_context
from gridsched.vram.flags import FlagError, parse_flags
from gridsched.vram.geometry import Geometry
from gridsched.vram.refusals import check_launch
from tests.vram.models import DATA, real, rows

REFUSED = [json.loads(line) for line in (DATA / "refusals.jsonl").read_text().splitlines()]
LLAMA = "Llama-3.1-8B-Q8_0"
PHI = "Phi-4-Q4_K_M"
NOMIC = "nomic-embed-text-v1.5-Q8_0"


def check(model: str | Geometry, words: str, devices: int = 1) -> None:
    """Whether the engine would start it; raises FlagError where not."""
    geometry = real(model) if isinstance(model, str) else model
    flags = parse_flags(tuple(words.split()))
    check_launch(geometry, flags, plan_context(geometry, flags, on_gpu=devices > 0), devices=devices)


@pytest.mark.parametrize("case", REFUSED, ids=[f"{case['model']} {case['flags']}" for case in REFUSED])
def test_what_the_engine_was_seen_to_refuse_is_refused_with_its_rule(case: dict[str, object]) -> None:
    """Each was run: two abort at the start, two have no context."""
    with pytest.raises(FlagError) as caught:
        check(str(case["model"]), str(case["flags"]), int(str(case["devices"])))
    assert str(case["rule"]) in caught.value.message


@pytest.mark.slow
def test_what_the_engine_started_is_not_refused() -> None:
    """None of the launches that it accounted for."""
    for row in (row for row in rows() if row.refused is None):
        check(row.model, " ".join(row.flags), len(row.devices))


@pytest.mark.parametrize(
    "words",
    [
        "-c 16384 -np 1 -ctk q8_0 -ctv q8_0",
        "-c 16384 -np 2 -kvu -ctk q8_0 -ctv q8_0",
        "-c 16384 -ctk q8_0 -ctv q8_0",
        "-c 16384 -np 2",
        "-c 16384 -np 8 -fa off",
        "-c 16384 -np 2 -ctk q8_0",
    ],
)
def test_the_graphs_table_has_room_with_one_stream_or_a_plain_cache(words: str) -> None:
    """Phi-4 has six tensors a layer, so that its table is small; these start."""
    check(PHI, words)


def test_heads_that_are_not_rotated_need_no_room() -> None:
    """Phi-3-mini has six tensors a layer too, but heads of 96 values."""
    check("Phi-3-mini-4k-Q4_K_M", "-c 16384 -np 4 -ctk q8_0 -ctv q8_0")


@pytest.mark.parametrize(
    "words",
    [
        "-c 6144 -np 3 --embedding -b 768 -ub 768",
        "-c 6144 -np 3 -b 768 -ub 768 --reranking --pooling cls",
        "-c 6144 -np 3",
        "-c 6144 -np 3 --embedding --pooling cls",
        "-c 8192 --embedding",
        "-c 8192 -np 8 --embedding",
    ],
)
def test_mean_pooling_starts_where_the_slots_divide_the_micro_batch(words: str) -> None:
    """And other ways of pooling start with any number of slots; without --embedding nothing is pooled."""
    check(NOMIC, words)


def test_a_micro_batch_that_the_four_automatic_slots_do_not_divide_is_refused() -> None:
    """They count, though their cache is one."""
    with pytest.raises(FlagError, match="4 do not divide 510: 512 would do"):
        check(NOMIC, "-c 8192 --embedding -ub 510")


@pytest.mark.parametrize(
    ("words", "devices", "message"),
    [
        ("-c 4096 -np 257", 1, "257 slots are more than the engine has"),
        ("-c 4096 -sm none -mg 1", 1, "there is no device 1: this launch has 1 device"),
        ("-c 4096 -sm row", 2, "a split by rows cannot be planned"),
        ("-c 4096 -sm tensor", 0, "tensor needs a device"),
        ("-c 4096 -sm tensor -fa off", 2, "tensor needs flash attention"),
        ("-c 4096 -ts 0,0,1", 2, "none of this launch's 2 devices has a part"),
        ("-c 4096 -ot exps=CUDA1", 1, "there is no buffer type 'CUDA1' (there is CPU and 1 device)"),
        ("-c 4096 -ot exps=CUDA0", 0, "there is no buffer type 'CUDA0' (there is CPU alone)"),
        ("-c 4096 -md d.gguf -otd exps=CUDA2", 2, "there is no buffer type 'CUDA2' (there is CPU and 2 devices)"),
    ],
)
def test_devices_are_checked_against_what_there_is(words: str, devices: int, message: str) -> None:
    """Whatever the model's shape is."""
    with pytest.raises(FlagError) as caught:
        check(LLAMA, words, devices)
    assert message in caught.value.message


@pytest.mark.parametrize(
    ("words", "devices"),
    [
        ("-c 4096 -np 256", 1),
        ("-c 4096 -sm none -mg 1", 2),
        ("-c 4096 -mg 7", 2),
        ("-c 4096 -sm none", 0),
        ("-c 4096 -sm row", 0),
        ("-c 4096 -sm none -mg 2 -dev none", 2),
        ("-c 4096 -sm tensor", 2),
        ("-c 4096 -ts 1,1,1", 2),
        ("-c 4096 -ts 0,1", 2),
        ("-c 4096 -ot exps=CUDA1", 2),
        ("-c 4096 -b 128 -ub 4096", 1),
        ("-c 256 -np 200", 1),
        ("-c 4096 -fa off -ctk q4_0", 1),
        ("-c 4096 --embedding --reranking", 1),
    ],
)
def test_what_the_engine_ignores_or_corrects_is_no_refusal(words: str, devices: int) -> None:
    """A main card in a split by layers, more proportions than cards, a micro-batch above the batch."""
    check(LLAMA, words, devices)


def test_tensor_splits_are_for_some_architectures() -> None:
    """Latent attention has none."""
    with pytest.raises(FlagError, match="no tensor split for deepseek2"):
        check("DeepSeek-V2-Lite-Q4_K_M", "-c 4096 -sm tensor", 2)


@pytest.mark.parametrize(("kind", "length"), [("q4_0", 80), ("q5_1", 40), ("iq4_nl", 72), ("q8_0", 100)])
def test_E20_heads_that_a_quantized_cache_cannot_pack_are_refused(kind: str, length: int) -> None:
    """Blocks of 32 values must fill a head; f16 takes any, and without flash attention K is not looked at."""
    model = real(LLAMA)
    layers = tuple(replace(layer, key_length=length, value_length=length) for layer in model.layers)
    odd = replace(model, layers=layers)
    for flag, side in (("-ctk", "K"), ("-ctv", "V")):
        with pytest.raises(FlagError, match=f"packs 32 values at a time.*{length} values of {side}"):
            check(odd, f"-c 4096 {flag} {kind}")
    check(odd, "-c 4096")
    check(odd, f"-c 4096 -fa off -ctk {kind}")


def test_an_architecture_without_flash_attention_has_no_quantized_v() -> None:
    """The engine turns it off for Grok before it looks at the cache."""
    grok = replace(real(LLAMA), architecture="grok")
    with pytest.raises(FlagError, match="which this architecture does not have"):
        check(grok, "-c 4096 -ctv q8_0")
    check(grok, "-c 4096 -ctk q8_0")


def test_a_trained_length_that_the_file_does_not_give_is_no_context() -> None:
    """`-c 0` asks for it."""
    with pytest.raises(FlagError, match="which this model's file does not give"):
        check(replace(real(LLAMA), context_train=0), "-c 0")
