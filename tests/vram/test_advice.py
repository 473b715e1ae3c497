"""What would fit where nothing does: every word of it is true."""

from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from gridsched.core.ids import DeviceName
from gridsched.vram.advice import Advice, Fit, Suggestion
from gridsched.vram.geometry import Geometry
from gridsched.vram.ladder import ladder
from gridsched.vram.launches import LadderRequest
from tests.vram.models import model, real

A, B, C = (DeviceName(name) for name in "abc")
GIB = 1 << 30
REQUEST = LadderRequest("file", overhead_bytes=512 << 20)
LLAMA, SMALL_CACHE, EXPERTS = "Llama-3.1-8B-Q4_K_M", "Gemma-4-12B-Q4_K_M", "Qwen3-30B-A3B-Q4_K_M"


def carries(geometry: Geometry, request: LadderRequest, rooms: Mapping[DeviceName, int]) -> bool:
    """Whether the ladder has a rung that these rooms carry: what a refusal, or none, follows from."""
    options = ladder(geometry, request, tuple(rooms))
    return any(all(need <= rooms[name] for name, need in option.estimates) for option in options)


def advice(name: str, request: LadderRequest, **gib: float) -> Advice:
    """The advice on a real model with so much of each card to be had."""
    rooms = {DeviceName(card): int(size * GIB) for card, size in gib.items()}
    return Advice(real(name), request, tuple(rooms), rooms)


def told(found: Advice) -> list[tuple[str, str]]:
    """Settings and values."""
    return [(each.setting, each.value) for each in found.suggestions()]


@pytest.mark.parametrize("name", [LLAMA, SMALL_CACHE, "Qwen3.5-9B-Q4_K_M"])
@pytest.mark.parametrize("room_gib", [8, 12, 20])
@pytest.mark.parametrize("slots", [None, 2])
def test_L7_what_is_said_to_fit_fits_and_the_next_step_does_not(name: str, room_gib: int, slots: int | None) -> None:
    """Asking for exactly the answer gives a rung that the room carries; one step more does not fit."""
    geometry, rooms = real(name), {A: room_gib * GIB}
    request = replace(REQUEST, parallel=slots)
    fit = Advice(geometry, request, (A,), rooms).largest()
    step = 256 * (slots or 1)
    assert fit.ctx_size % step == 0
    if fit.ctx_size:
        assert carries(geometry, replace(request, ctx_size=fit.ctx_size), rooms)
    if fit.ctx_size < (slots or 1) * geometry.context_train:
        assert not carries(geometry, replace(request, ctx_size=fit.ctx_size + 256), rooms)
    if fit.parallel:
        assert carries(geometry, replace(request, parallel=fit.parallel), rooms)
    assert fit.parallel == 256 or not carries(geometry, replace(request, parallel=fit.parallel + 1), rooms)


def test_L7_nothing_fits_where_nothing_can() -> None:
    """Less room than the weights take: nothing is promised and nothing advised."""
    for found in (advice(LLAMA, REQUEST, a=1), Advice(real(LLAMA), REQUEST, (A,), {})):
        assert found.largest() == Fit(0, 0)
        assert found.suggestions() == ()


def test_L7_the_best_placement_counts() -> None:
    """Two cards together carry more than the larger one alone; a context ends at the trained length."""
    small = "Qwen2.5-1.5B-Q4_K_M"
    both, alone = advice(small, REQUEST, a=1.8, b=1.7).largest(), advice(small, REQUEST, a=1.8).largest()
    assert both.ctx_size > alone.ctx_size > 0
    assert advice("Phi-3-mini-4k-Q4_K_M", replace(REQUEST, parallel=1), a=1000).largest().ctx_size == 4096


def test_L7_a_fixed_pool_is_kept_while_slots_are_counted() -> None:
    """More slots of the same pool cost a dense model nothing: as many as it has steps of 256 tokens."""
    assert advice(LLAMA, replace(REQUEST, ctx_size=8192, parallel=1), a=12).largest().parallel == 32


def test_L7_what_fits_needs_no_advice() -> None:
    """The ladder has a rung for it already."""
    assert advice(LLAMA, REQUEST, a=8).suggestions() == ()


def test_L7_each_setting_that_was_asked_for_may_give_way() -> None:
    """Context, slots, cache, device: by the name under which it was asked for."""
    pool = replace(REQUEST, ctx_size=131072, parallel=4, cache_types=("f16", "f16"))
    assert [setting for setting, _ in told(advice(LLAMA, pool, a=14))] == ["ctx_size", "cache_type", "cache_type"]
    assert dict(told(advice(LLAMA, replace(REQUEST, parallel=8), a=6)))["parallel"] == "2"
    assert dict(told(advice(LLAMA, replace(REQUEST, ctx_per_slot=65536), a=6)))["ctx_per_slot"].isdigit()
    assert told(advice(LLAMA, replace(REQUEST, device=A), a=3, b=12)) == [("device", "auto")]


def test_L7_what_a_persons_flags_say_is_changed_by_flags() -> None:
    """A setting would not be heard: their flags win."""
    flags = ("-c", "131072", "-np", "4", "-ctk", "f16")
    found = advice(LLAMA, replace(REQUEST, flags=flags), a=14).suggestions()
    assert {each.setting for each in found} == {"flags"}
    assert [each.value.split()[0] for each in found] == ["--ctx-size", "--cache-type-k", "--cache-type-k"]
    assert all(each.request.flags == (*flags, *each.value.split()) for each in found)


def test_L7_as_few_experts_as_will_do_go_to_host_memory() -> None:
    """With what they take there; of a dense model there are none to move."""
    geometry, rooms = real(EXPERTS), {A: 12 * GIB}
    (moved,) = (each for each in Advice(geometry, REQUEST, (A,), rooms).suggestions() if each.setting == "flags")
    layers = int(moved.value.removeprefix("--n-cpu-moe "))
    assert carries(geometry, moved.request, rooms)
    assert not carries(geometry, replace(REQUEST, flags=("--n-cpu-moe", str(layers - 1))), rooms)
    assert moved.host_bytes == pytest.approx(layers / 48 * 16.5 * GIB, rel=0.15)
    assert "flags" not in dict(told(advice(LLAMA, REQUEST, a=4)))


def followed(found: Suggestion, request: LadderRequest) -> LadderRequest:
    """What a person asks for who does what a suggestion says, read off its words alone."""
    match found.setting:
        case "flags":
            return replace(request, flags=(*request.flags, *found.value.split()))
        case "ctx_size":
            return replace(request, ctx_size=int(found.value))
        case "ctx_per_slot":
            return replace(request, ctx_per_slot=int(found.value))
        case "parallel":
            return replace(request, parallel=int(found.value))
        case "device":
            return replace(request, device=None)
        case _:
            keys, _, values = found.value.partition("/")
            return replace(request, cache_types=(keys, values or keys))


@st.composite
def geometries(draw: st.DrawFn) -> Geometry:
    """Models that nobody made: dense or of experts, full caches or windows, large and small."""
    width, blocks = draw(st.sampled_from([512, 1024, 4096])), draw(st.integers(2, 12))
    heads = draw(st.sampled_from([4, 8, 16]))
    experts = draw(st.sampled_from([0, 8, 64]))
    hidden = draw(st.sampled_from([1024, 8192]))
    kind = "gemma3" if draw(st.booleans()) and not experts else "qwen3moe" if experts else "llama"
    keys = {
        "block_count": blocks,
        "embedding_length": width,
        "feed_forward_length": hidden,
        "context_length": draw(st.sampled_from([2048, 40960, 131072])),
        "attention__head_count": heads,
        "attention__head_count_kv": draw(st.sampled_from([1, 2, heads])),
        "attention__key_length": draw(st.sampled_from([64, 80, 128, 256])),
    }
    keys["attention__value_length"] = keys["attention__key_length"]
    keys |= {"attention__sliding_window": 1024} if kind == "gemma3" else {}
    keys |= {"expert_count": experts, "expert_used_count": 4, "expert_feed_forward_length": 256} if experts else {}
    tensors = [("token_embd.weight", (width, draw(st.sampled_from([4096, 131072]))), "Q6_K")]
    for block in range(blocks):
        tensors.append((f"blk.{block}.attn_q.weight", (width, width), "Q8_0"))
        shape = (width, 256, experts) if experts else (width, hidden)
        end = "_exps.weight" if experts else ".weight"
        tensors += [(f"blk.{block}.ffn_{part}{end}", shape, "Q4_K") for part in ("up", "gate")]
    return model(kind, tensors, **keys)


@st.composite
def requests(draw: st.DrawFn) -> LadderRequest:
    """What people ask for, in settings and in flags."""
    asked = {
        "parallel": draw(st.sampled_from([None, None, 1, 2, 5, 16])),
        "cache_types": draw(st.sampled_from([None, None, ("f16", "f16")])),
        "device": draw(st.sampled_from([None, None, A])),
        "flags": draw(st.sampled_from([(), (), ("-c", "65536"), ("-np", "3"), ("-ctk", "q8_0"), ("-fa", "off")])),
    }
    context = draw(st.sampled_from(["", "ctx_size", "ctx_per_slot"]))
    asked |= {context: draw(st.sampled_from([1000, 16384, 262144]))} if context else {}
    ranks = draw(st.sampled_from([None, {A: 90, B: 61}]))
    return LadderRequest("file", device_ranks=ranks, **asked)  # type: ignore[arg-type]  # the fields' own types


MIBS = st.integers(600, 12000)


@pytest.mark.slow
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    geometry=geometries(),
    request_=requests(),
    sizes=st.lists(MIBS, min_size=1, max_size=3),
    free=st.lists(st.floats(0.2, 1), min_size=3, max_size=3),
)
def test_L7_every_suggestion_followed_makes_it_fit(
    geometry: Geometry, request_: LadderRequest, sizes: list[int], free: list[float]
) -> None:
    """Whatever the model, the cards, what of them is taken and what is asked for: each suggestion alone makes the
    ladder fit, the largest context fits, and 256 tokens more a slot do not."""
    # A quantized cache of heads that are no whole blocks is refused, with nothing to suggest.
    assume("-ctk" not in request_.flags or all(layer.key_length % 32 == 0 for layer in geometry.layers))
    devices = dict(zip((A, B, C), (size << 20 for size in sizes), strict=False))
    request_ = replace(request_, device_bytes=devices)
    rooms = {name: int(size * part) for (name, size), part in zip(devices.items(), free, strict=False)}
    found = Advice(geometry, request_, tuple(devices), rooms)
    fit = found.largest()
    asked = replace(request_, ctx_per_slot=None)
    in_flags = request_.flags == ("-c", "65536")

    def with_pool(pool: int) -> LadderRequest:
        if in_flags:
            return replace(asked, flags=(*asked.flags, "-c", str(pool)))
        return replace(asked, ctx_size=pool)

    if fit.ctx_size:
        assert carries(geometry, with_pool(fit.ctx_size), rooms)
    step = 256 * (request_.parallel or (3 if "-np" in request_.flags else 1))
    if fit.ctx_size + step <= geometry.context_train:
        assert not carries(geometry, with_pool(fit.ctx_size + step), rooms)
    for suggestion in found.suggestions():
        assert carries(geometry, followed(suggestion, request_), rooms), suggestion
    assert (found.suggestions() == ()) or not carries(geometry, request_, rooms)


@pytest.mark.slow
def test_L7_a_large_context_is_found_where_a_small_one_would_stay_on_too_few_cards() -> None:
    """The ladder of 256 tokens ends at three cards, which do not carry it with half of them free; four carry 67584."""
    sizes = {DeviceName(name): 24 * GIB for name in "abcd"}
    request = replace(REQUEST, device_bytes=sizes)
    rooms = {name: int(0.55 * size) for name, size in sizes.items()}
    name = "Llama-3.3-70B-Q4_K_M"
    fit = Advice(real(name), request, tuple(rooms), rooms).largest()
    assert not carries(real(name), replace(request, ctx_size=256), rooms)
    assert fit.ctx_size > 0
    assert carries(real(name), replace(request, ctx_size=fit.ctx_size), rooms)
    assert not carries(real(name), replace(request, ctx_size=fit.ctx_size + 256), rooms)


def test_L7_more_slots_of_the_same_pool_are_no_advice() -> None:
    """They can take less than fewer do, where the graph shrinks with the cells of a stream; who asked wants fewer."""
    for room_gib in (5, 6, 7, 8, 10, 12):
        request = replace(REQUEST, ctx_size=131072, parallel=4, cache_types=("f16", "f16"))
        for setting, value in told(advice(LLAMA, request, a=room_gib)):
            assert setting != "parallel" or int(value) < 4
