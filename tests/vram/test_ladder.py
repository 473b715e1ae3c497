"""The ladder: which launches are offered, and in which order."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from gridsched.core.ids import DeviceName
from gridsched.core.model import LaunchOption
from gridsched.vram.flags import FlagError, parse_flags
from gridsched.vram.footprint import footprint
from gridsched.vram.ladder import carries, ladder, takes_cache
from gridsched.vram.launches import LadderRequest, Launches
from gridsched.vram.placement import place
from tests.vram.models import MIB, model, real, real_headers

A, B, C, D, HOST = (DeviceName(name) for name in ("a", "b", "c", "d", "host"))
GIB = 1 << 30
F16, Q8, Q8_Q4 = ("f16", "f16"), ("q8_0", "q8_0"), ("q8_0", "q4_0")
REQUEST = LadderRequest("file", engine_build="b1", overhead_bytes=512 * MIB)
PLAIN = replace(REQUEST, cache_types=F16)
LLAMA, SMALL_CACHE, ENCODER = "Llama-3.1-8B-Q4_K_M", "Gemma-4-12B-Q4_K_M", "bge-base-en-v1.5-Q8_0"
LARGE, MLA, BEFORE_MLA = "Llama-3.3-70B-Q4_K_M", "DeepSeek-V2-Lite-Q4_K_M", "DeepSeek-Coder-V2-Lite-nonMLA-Q5_K_M"


def shapes(name: str, request: LadderRequest = PLAIN) -> list[tuple[int, int]]:
    """Pool and slots of every rung on one card."""
    return [(option.ctx_size, option.parallel) for option in ladder(real(name), request, (A,))]


def told(options: Sequence[LaunchOption]) -> list[tuple[int, int, str]]:
    """Tokens a slot, slots, and the cache of each rung."""
    return [(each.ctx_size // each.parallel, each.parallel, "/".join(each.cache_types)) for each in options]


def first_fit(options: Sequence[LaunchOption], rooms: dict[DeviceName, int]) -> LaunchOption | None:
    """The rung that a ledger with nothing to evict takes."""
    return next((each for each in options if all(need <= rooms[name] for name, need in each.estimates)), None)


def placed_with(options: Sequence[LaunchOption], **gib: float) -> tuple[DeviceName, ...]:
    """Where the model lands with so much free on each card."""
    found = first_fit(options, {DeviceName(name): int(size * GIB) for name, size in gib.items()})
    assert found is not None
    return found.devices


# --- contexts, slots, caches ------------------------------------------------------------------------------------


def test_contexts_halve_from_the_target_to_the_floor() -> None:
    """Two slots throughout, where their caches are dear; at last a single one at the floor."""
    assert shapes(LLAMA) == [(2 * 32768, 2), (2 * 16384, 2), (2 * 8192, 2), (8192, 1)]


def test_a_smaller_cache_comes_before_a_shorter_context() -> None:
    """The context is what was asked for. What takes as much as a better rung is not offered: 2 x 16384 tokens in f16
    take as much as 2 x 32768 in q8_0."""
    assert told(ladder(real(LLAMA), REQUEST, (A,))) == [
        (32768, 2, "f16/f16"),
        (32768, 2, "q8_0/q8_0"),
        (32768, 2, "q8_0/q4_0"),
        (16384, 2, "q8_0/q8_0"),
        (16384, 2, "q8_0/q4_0"),
        (8192, 2, "q8_0/q8_0"),
        (8192, 2, "q8_0/q4_0"),
        (8192, 1, "q8_0/q8_0"),
        (8192, 1, "q8_0/q4_0"),
    ]


@pytest.mark.parametrize("name", sorted(real_headers()))
def test_each_rung_takes_less_than_those_before_it(name: str) -> None:
    """A rung that takes as much as a better one is never the first that fits. Never q4_0 for K and V."""
    options = ladder(real(name), REQUEST, (A,))
    needs = [option.footprint[0].total_bytes for option in options]
    assert needs == sorted(set(needs), reverse=True)
    assert {option.cache_types for option in options} <= {F16, Q8, Q8_Q4}
    assert len(options) <= 20


def test_a_quantized_cache_is_told_to_the_engine() -> None:
    """By flags, and a plain one by none."""
    plain, quantized, mixed, *_ = ladder(real(LLAMA), REQUEST, (A,))
    assert plain.flags == ()
    assert quantized.flags == ("--cache-type-k", "q8_0", "--cache-type-v", "q8_0")
    assert mixed.flags == ("--cache-type-k", "q8_0", "--cache-type-v", "q4_0")


def caches(name: str, request: LadderRequest = REQUEST) -> set[tuple[str, str]]:
    """The cache types that are offered of a real model."""
    return {option.cache_types for option in ladder(real(name), request, (A,))}


def test_what_has_one_type_for_k_and_v_gets_one() -> None:
    """MLA by its nature, other devices than CUDA's and the processor by their kernels."""
    assert caches(MLA) == {F16, Q8}
    assert caches(LLAMA, replace(REQUEST, mixed_cache=False)) == {F16, Q8}


@pytest.mark.parametrize(
    ("name", "request_"),
    [
        (BEFORE_MLA, REQUEST),  # attention over a quantized cache would run on the CPU
        ("Mamba2-Codestral-7B-Q4_K_M", REQUEST),  # there is no cache
        (ENCODER, replace(REQUEST, embeddings=True)),
        (LLAMA, replace(REQUEST, flags=("-fa", "off"))),  # a quantized V needs it
        (LLAMA, replace(REQUEST, flags=("--no-kv-offload",))),  # it takes nothing of the device
    ],
)
def test_a_quantized_cache_is_never_offered_where_it_is_refused_or_slow(name: str, request_: LadderRequest) -> None:
    """Nor where it would save nothing."""
    assert caches(name, request_) == {F16}


@pytest.mark.parametrize(("length", "offered"), [(64, True), (80, False), (96, True), (112, False), (128, True)])
def test_heads_that_are_no_whole_blocks_keep_an_f16_cache(length: int, offered: bool) -> None:
    """The engine refuses q8_0 for heads of 80: it has blocks of 32 values."""
    geometry = model(
        "llama",
        [("token_embd.weight", (1024, 4096), "Q8_0"), ("output.weight", (1024, 4096), "Q8_0")],
        block_count=8,
        embedding_length=1024,
        feed_forward_length=4096,
        context_length=131072,
        attention__head_count=16,
        attention__head_count_kv=8,
        attention__key_length=length,
        attention__value_length=length,
    )
    found = {option.cache_types for option in ladder(geometry, REQUEST, (A,))}
    assert (Q8 in found) is offered
    assert takes_cache(geometry, replace(REQUEST, cache_types=Q8)) is offered


def test_a_cache_type_that_was_asked_for_is_the_only_one() -> None:
    """By the setting or by the person's own flags, which win."""
    assert caches(LLAMA, replace(REQUEST, cache_types=("q4_0", "q4_0"))) == {("q4_0", "q4_0")}
    flags = ("-ctk", "q8_0", "--cache-type-v=q8_0")
    assert caches(LLAMA, replace(REQUEST, flags=flags)) == {Q8}
    assert caches(LLAMA, replace(REQUEST, flags=flags, cache_types=F16)) == {Q8}


@pytest.mark.parametrize(
    ("name", "slots"), [("Qwen3.5-35B-A3B-Q4_K_M", [8, 4, 2, 1]), (SMALL_CACHE, [4, 2, 1]), (LLAMA, [2, 1])]
)
def test_a_model_with_a_cheap_cache_gets_more_slots(name: str, slots: list[int]) -> None:
    """As many as take no more at the target than the weights do. They are given up before the cache's type is, a single
    one is left only where nothing else fits."""
    options = told(ladder(real(name), REQUEST, (A,)))
    assert [count for context, count, cache in options if (context, cache) == (32768, "f16/f16")] == slots[:-1]
    assert list(dict.fromkeys(count for _, count, _ in options)) == slots


def test_a_processor_gets_four_slots_at_the_most() -> None:
    """More at once are not answered any faster there."""
    request = replace(REQUEST, on_host=True, overhead_bytes=128 * MIB)
    assert ladder(real("Qwen3.5-35B-A3B-Q4_K_M"), request, (HOST,))[0].parallel == 4


def test_no_context_is_above_the_trained_one() -> None:
    """A model of 4,096 tokens is offered with 4,096, and never with the floor of 8,192."""
    assert shapes("Phi-3-mini-4k-Q4_K_M") == [(2 * 4096, 2), (4096, 1)]


def test_a_far_floor_makes_no_long_ladder() -> None:
    """From 128 Ki tokens to 1 in six contexts, the floor among them; then a single slot."""
    contexts = [pool // slots for pool, slots in shapes(LLAMA, replace(PLAIN, ctx_target=131072, ctx_floor=1))]
    assert contexts[:-1] == [131072, 65536, 32768, 16384, 8192, 256]
    assert contexts[-1] == 256


@pytest.mark.parametrize(
    ("request_", "shape"),
    [
        (replace(PLAIN, ctx_size=16384, parallel=2), (16384, 2)),
        (replace(PLAIN, ctx_size=16384), (16384, 2)),
        (replace(PLAIN, ctx_size=4096), (4096, 1)),
        (replace(PLAIN, ctx_size=65536), (65536, 4)),
        (replace(PLAIN, ctx_per_slot=4096, parallel=3), (12288, 3)),
        (replace(PLAIN, ctx_size=10000, parallel=3), (10752, 3)),
        (replace(PLAIN, ctx_size=4096, flags=("-c", "8192", "-np", "1")), (8192, 1)),
        (replace(PLAIN, flags=("-c", "0", "-np", "1")), (131072, 1)),
    ],
)
def test_what_is_asked_for_is_the_only_rung(request_: LadderRequest, shape: tuple[int, int]) -> None:
    """An explicit context is not bargained with; a person's own flags win; pools are as the engine rounds them."""
    assert shapes(LLAMA, request_) == [shape]


def test_the_cache_gives_way_where_only_the_context_was_asked_for() -> None:
    """The same pool and slots, in less memory."""
    request = replace(REQUEST, ctx_size=16384, parallel=2)
    assert told(ladder(real(LLAMA), request, (A,))) == [
        (8192, 2, "f16/f16"),
        (8192, 2, "q8_0/q8_0"),
        (8192, 2, "q8_0/q4_0"),
    ]


def test_slots_give_way_where_the_context_of_each_was_asked_for() -> None:
    """From what is cheap to one; the context of each stays."""
    assert shapes(LLAMA, replace(PLAIN, ctx_per_slot=4096)) == [(8 * 4096, 8), (4 * 4096, 4), (2 * 4096, 2), (4096, 1)]


def test_explicit_slots_stay_while_the_context_gives_way() -> None:
    """And no rung with fewer slots is offered."""
    assert shapes(LLAMA, replace(PLAIN, parallel=3)) == [(3 * 32768, 3), (3 * 16384, 3), (3 * 8192, 3)]


# --- devices ----------------------------------------------------------------------------------------------------


def cards(**gib: float) -> dict[DeviceName, int]:
    """What may be planned of each card."""
    return {DeviceName(name): int(size * GIB) for name, size in gib.items()}


def of(name: str, request: LadderRequest = REQUEST, **gib: float) -> tuple[LaunchOption, ...]:
    """The ladder of a real model on these cards."""
    sizes = cards(**gib)
    return ladder(real(name), replace(request, device_bytes=sizes), tuple(sizes))


def test_one_card_goes_before_several() -> None:
    """While it has two slots, however much more several would hold."""
    options = of(LLAMA, a=24, b=24)
    assert placed_with(options, a=6, b=24) == (B,)
    assert placed_with(options, a=6, b=5.8) == (A,)
    assert first_fit(options, cards(a=6, b=5.8)).parallel == 2  # type: ignore[union-attr]  # placed_with has found it


def test_several_cards_override_a_single_slot_that_they_at_least_double() -> None:
    """One slot of 8,192 tokens on a card, or two slots of 32,768 on both; where both hold no more, the one."""
    options = of(LLAMA, a=24, b=24)
    assert placed_with(options, a=5.6, b=5.2) == (A, B)
    assert placed_with(options, a=5.6, b=2.0) == (A,)
    single = [(option.devices, option.ctx_size) for option in options if option.parallel == 1]
    split = [option.ctx_size for option in options if len(option.devices) == 2 and option.parallel == 2]
    assert single[0] == ((A,), 8192)
    assert min(split) >= 2 * 8192


def test_several_cards_override_nothing_where_slots_were_asked_for() -> None:
    """A single slot is then what is wanted: several go behind all that one card can do."""
    options = of(LLAMA, replace(REQUEST, parallel=1), a=24, b=24)
    widths = [len(option.devices) for option in options]
    assert widths == sorted(widths)


def test_a_less_capable_card_never_joins_by_override() -> None:
    """The faster card keeps its single slot; the slower one's is overridden with the help of the faster."""
    slow_b = replace(REQUEST, device_ranks={A: 89, B: 61})
    assert placed_with(of(LLAMA, slow_b, a=24, b=24), a=5.6, b=5.2) == (A,)
    assert placed_with(of(LLAMA, slow_b, a=5, b=24), a=5, b=5.6) == (A, B)
    assert placed_with(of(LLAMA, replace(REQUEST, device_ranks={A: 89, B: 89}), a=24, b=24), a=5.6, b=5.2) == (A, B)


def test_what_fits_on_no_card_is_split_all_the_same() -> None:
    """There is nothing to override then: slots asked for, cards unlike."""
    request = replace(REQUEST, parallel=1, device_ranks={A: 89, B: 61})
    assert {option.devices for option in of(LARGE, request, a=24, b=24)} == {(A, B)}


def test_no_more_cards_than_needed() -> None:
    """Two of four where two do, any two; three where two hold one slot and three double it, but never all four."""
    options = of(LARGE, a=23, b=23, c=23, d=23)
    assert placed_with(options, a=23, b=23, c=23, d=23) == (A, B)
    assert placed_with(options, a=10, b=23, c=10, d=23) == (B, D)
    assert placed_with(options, a=21.3, b=21.3, c=21.3, d=21.3) == (A, B, C)
    assert {len(option.devices) for option in options} == {2, 3, 4}
    assert {len(option.devices) for option in of(LLAMA, a=23, b=23, c=23, d=23)} == {1, 2}


def test_what_an_empty_card_could_not_carry_is_left_out() -> None:
    """The small card gets the rungs that fit there; where none fits anywhere they are told all the same (L7)."""
    options = of(LLAMA, a=24, b=6)
    assert any(option.devices == (A,) and option.cache_types == F16 for option in options)
    assert {option.ctx_size for option in options if option.devices == (B,)} == {16384, 8192}
    assert told(of(LLAMA, a=1)) == told(of(LLAMA, a=100))


def test_a_split_fills_each_card_alike() -> None:
    """Three quarters of the layers for the card with three quarters of the room, less what the output layer takes of
    the last; and it is what the engine is told."""
    split = next(option for option in of(LLAMA, a=24, b=8) if option.devices == (A, B))
    shares = [int(share) for share in split.flags[-1].split(",")]
    assert split.flags[:3] == ("--split-mode", "layer", "--tensor-split")
    assert sum(shares) == 33
    full = [part.total_bytes / size for part, size in zip(split.footprint, (24 * GIB, 8 * GIB), strict=True)]
    assert abs(full[0] - full[1]) < 0.05
    turned = next(option for option in of(LLAMA, a=8, b=24) if option.devices == (A, B))
    assert int(turned.flags[-1].split(",")[0]) < 33 / 4


def test_a_splits_footprint_is_that_of_the_flags_it_is_launched_with() -> None:
    """Device by device, to the byte."""
    for option in of(LARGE, a=48, b=24):
        words = ("--ctx-size", str(option.ctx_size), "--parallel", str(option.parallel), *option.flags)
        assert (
            option.footprint
            == footprint(real(LARGE), parse_flags(words), option.devices, overhead_bytes=512 * MIB).devices
        )


def test_a_persons_own_split_stands() -> None:
    """Their shares, their choice of a single card."""
    shared = [o for o in of(LLAMA, replace(REQUEST, flags=("-ts", "1,3")), a=24, b=24) if len(o.devices) == 2]
    assert shared
    assert all("--tensor-split" not in option.flags for option in shared)
    assert shared[0].footprint[1].weights_bytes > 2 * shared[0].footprint[0].weights_bytes
    alone = of(LLAMA, replace(REQUEST, flags=("-sm", "none")), a=24, b=24)
    assert {len(option.devices) for option in alone} == {1}


@pytest.mark.parametrize("flags", [("-ts", "0,1"), ("-ot", "blk.1.=CUDA1")])
def test_flags_that_speak_of_two_cards_leave_rungs_on_two(flags: tuple[str, str]) -> None:
    """The engine would refuse them on one; where there is but one the reason is told."""
    assert {option.devices for option in of(LLAMA, replace(REQUEST, flags=flags), a=24, b=24)} == {(A, B)}
    with pytest.raises(FlagError):
        of(LLAMA, replace(REQUEST, flags=flags), a=24)


def test_two_slots_whose_graph_outgrows_the_engine_are_left_out() -> None:
    """Phi-4 with a quantized cache: one slot has it, two keep f16."""
    options = told(ladder(real("Phi-4-Q4_K_M"), REQUEST, (A,)))
    assert {(slots, cache) for _, slots, cache in options} == {
        (2, "f16/f16"),
        (1, "q8_0/q8_0"),
        (1, "q8_0/q4_0"),
    }


@pytest.mark.parametrize("counts", [(1, 32), (11, 22), (17, 16), (7, 13, 13), (3, 10, 9, 11)])
def test_layers_that_are_counted_are_layers_that_are_placed(counts: tuple[int, ...]) -> None:
    """As proportions they put each border where it is meant, in the engine's float32 too."""
    flags = parse_flags(("-ts", ",".join(map(str, counts))))
    placed = place(real(LLAMA), flags, len(counts)).layers
    assert tuple(placed.count(device) for device in range(len(counts))) == counts


def test_eight_unlike_cards_make_no_long_ladder() -> None:
    """Neighbours share a model there, and no rung is offered on more cards than one over what is needed."""
    sizes = {DeviceName(f"gpu{index}"): (23 - index) * GIB for index in range(8)}
    options = ladder(real(LARGE), replace(REQUEST, device_bytes=sizes), tuple(sizes))
    assert len(options) <= 300
    assert len({option.key for option in options}) == len(options)


def test_a_pinned_device_is_the_only_placement() -> None:
    """Whatever other devices there are."""
    assert {option.devices for option in ladder(real(LLAMA), replace(REQUEST, device=B), (A, B))} == {(B,)}


def test_a_rungs_footprint_is_that_of_the_flags_it_is_launched_with() -> None:
    """What is reserved is what the engine is told."""
    request = replace(REQUEST, flags=("-ctk", "q8_0", "-ctv", "q8_0"))
    best = ladder(real(LLAMA), request, (A,))[0]
    words = ("--ctx-size", str(best.ctx_size), "--parallel", str(best.parallel), *best.flags, *request.flags)
    direct = footprint(real(LLAMA), parse_flags(words), (A,), overhead_bytes=512 * MIB)
    assert best.footprint == direct.devices
    assert best.host == direct.host


def test_an_encoder_takes_its_inputs_whole_in_one_slot() -> None:
    """The trained length, whatever the target, and a micro-batch that holds the longest input."""
    request = replace(REQUEST, embeddings=True)
    (option,) = ladder(real(ENCODER), request, (A,))
    assert (option.ctx_size, option.parallel) == (512, 1)
    assert option.flags == ("--batch-size", "512", "--ubatch-size", "512")
    ranker = ladder(real("bge-reranker-v2-m3-Q8_0"), replace(REQUEST, reranking=True), (A,))[0]
    assert ranker.flags == ("--batch-size", "8192", "--ubatch-size", "8192")


def test_an_encoders_slots_divide_its_micro_batch() -> None:
    """Mean pooling aborts at start where they do not: 512 becomes 513 for three slots."""
    request = replace(REQUEST, embeddings=True, parallel=3)
    (option,) = ladder(real("nomic-embed-text-v1.5-Q8_0"), replace(request, ctx_per_slot=512), (A,))
    assert option.parallel == 3
    assert option.flags == ("--batch-size", "513", "--ubatch-size", "513")


def test_a_decoder_that_pools_its_last_token_needs_no_wide_micro_batch() -> None:
    """It can take an input in parts; another pooling cannot, and is held to 2,048 tokens."""
    request = replace(REQUEST, embeddings=True)
    decoder = real("Qwen3-Embedding-0.6B-Q8_0")
    assert ladder(decoder, request, (A,))[0].flags == ()
    assert ladder(replace(decoder, pooling="mean"), request, (A,))[0].flags == (
        *("--batch-size", "2048", "--ubatch-size", "2048"),
    )


def test_keys_tell_apart_whatever_changes_memory() -> None:
    """File, build, flags, context, device: each makes another key; the same makes the same."""
    requests = [
        REQUEST,
        replace(REQUEST, fingerprint="other"),
        replace(REQUEST, engine_build="b2"),
        replace(REQUEST, flags=("--no-mmap",)),
        replace(REQUEST, embeddings=True),
    ]
    keys = [option.key for request in requests for option in ladder(real(LLAMA), request, (A, B))]
    assert len(set(keys)) == len(keys)
    assert keys == [option.key for request in requests for option in ladder(real(LLAMA), request, (A, B))]


def test_on_the_host_the_rung_has_one_footprint() -> None:
    """Nothing is charged twice: the device is the host."""
    best = ladder(real(LLAMA), replace(REQUEST, on_host=True, overhead_bytes=128 * MIB), (HOST,))[0]
    assert best.devices == (HOST,)
    assert best.host is None
    assert best.footprint[0].weights_bytes >= real(LLAMA).file_bytes


def test_a_bad_flag_is_refused_when_the_ladder_is_made() -> None:
    """Before anything is launched with it."""
    with pytest.raises(FlagError):
        ladder(real(LLAMA), replace(REQUEST, flags=("-ctk", "q7_9")), (A,))


def test_what_a_process_takes_beside_its_buffers_is_charged_by_device() -> None:
    """Two cards of different kinds: each rung has its own card's figure, a split has both."""
    request = replace(REQUEST, overhead_bytes=700 * MIB, device_overhead_bytes={A: 200 * MIB})
    options = ladder(real(LLAMA), request, (A, B))
    charged = {part.device: part.overhead_bytes for option in options for part in option.footprint}
    assert charged == {A: 200 * MIB, B: 700 * MIB}


# --- host memory ------------------------------------------------------------------------------------------------


def test_E24_launches_that_take_more_host_memory_than_the_machine_has_are_not_offered() -> None:
    """A cache that is kept on the host: the contexts for which there is memory; where none is, all are told."""
    asked = replace(PLAIN, flags=("--no-kv-offload",))
    everything = ladder(real(LLAMA), asked, (A,))
    for gib, offered in ((40, everything), (6, everything[-2:]), (1, everything)):
        rooms = {A: 24 * GIB, HOST: gib * GIB}
        assert ladder(real(LLAMA), replace(asked, device_bytes=rooms), (A,)) == offered
    assert [each.host_need_bytes // GIB for each in everything] == [32, 16, 8, 4, 1]


@pytest.mark.parametrize("flags", [("--cpu-moe",), ("--cpu-moe", "--no-mmap"), ("--cpu-moe", "--mlock")])
def test_E24_weights_that_are_mapped_on_the_host_keep_nothing_from_being_offered(flags: tuple[str, ...]) -> None:
    """16 GiB of experts beside a card on a machine of 8: the kernel may drop them; not so where they are read or
    locked."""
    launches = Launches(real("Qwen3-30B-A3B-Q4_K_M"), replace(PLAIN, flags=flags))
    assert carries(launches, (A,), {A: 24 * GIB, HOST: 8 * GIB}) is (len(flags) == 1)
    assert carries(launches, (A,), {A: 24 * GIB, HOST: 24 * GIB})
    assert carries(launches, (A,), {A: 24 * GIB})  # nobody knows what there is of host memory
