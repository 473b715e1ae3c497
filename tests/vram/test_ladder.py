"""The ladder: which launches are offered, in which order, and what would fit where none does."""

from dataclasses import replace

import pytest

from gridsched.core.ids import DeviceName
from gridsched.vram.flags import FlagError, parse_flags
from gridsched.vram.footprint import footprint
from gridsched.vram.ladder import Fit, LadderRequest, ladder, largest_fit
from tests.vram.models import MIB, real

A, B, HOST = DeviceName("a"), DeviceName("b"), DeviceName("host")
REQUEST = LadderRequest("file", engine_build="b1")
LLAMA, SMALL_CACHE, ENCODER = "Llama-3.1-8B-Q4_K_M", "Gemma-4-12B-Q4_K_M", "bge-base-en-v1.5-Q8_0"


def shapes(name: str, request: LadderRequest = REQUEST) -> list[tuple[int, int]]:
    """Pool and slots of every rung on one card."""
    return [(option.ctx_size, option.parallel) for option in ladder(real(name), request, (A,))]


def test_contexts_halve_from_the_target_to_the_floor() -> None:
    """Two slots throughout, where their caches are dear; at last a single one at the floor."""
    assert shapes(LLAMA) == [(2 * 32768, 2), (2 * 16384, 2), (2 * 8192, 2), (8192, 1)]


def test_a_model_with_a_cheap_cache_gets_four_slots() -> None:
    """Four caches at the target take less than the weights do."""
    assert shapes(SMALL_CACHE)[0] == (4 * 32768, 4)


def test_no_context_is_above_the_trained_one() -> None:
    """A model of 4,096 tokens is offered with 4,096, and never with the floor of 8,192."""
    assert shapes("Phi-3-mini-4k-Q4_K_M") == [(2 * 4096, 2), (4096, 1)]


@pytest.mark.parametrize(
    ("request_", "shape"),
    [
        (replace(REQUEST, ctx_size=16384, parallel=2), (16384, 2)),
        (replace(REQUEST, ctx_size=16384), (16384, 2)),
        (replace(REQUEST, ctx_size=4096), (4096, 1)),
        (replace(REQUEST, ctx_size=65536), (65536, 4)),
        (replace(REQUEST, ctx_per_slot=4096, parallel=3), (12288, 3)),
        (replace(REQUEST, ctx_per_slot=4096), (16384, 4)),
        (replace(REQUEST, ctx_size=10000, parallel=3), (10752, 3)),
        (replace(REQUEST, ctx_size=4096, flags=("-c", "8192", "-np", "1")), (8192, 1)),
        (replace(REQUEST, flags=("-c", "0", "-np", "1")), (131072, 1)),
    ],
)
def test_what_is_asked_for_is_the_only_rung(request_: LadderRequest, shape: tuple[int, int]) -> None:
    """An explicit context is not bargained with; a person's own flags win; pools are as the engine rounds them."""
    assert shapes(LLAMA, request_) == [shape]


def test_explicit_slots_stay_while_the_context_gives_way() -> None:
    """And no rung with fewer slots is offered."""
    assert shapes(LLAMA, replace(REQUEST, parallel=3)) == [(3 * 32768, 3), (3 * 16384, 3), (3 * 8192, 3)]


def test_placements_come_single_first_then_all_together() -> None:
    """Context-major: each card in order, then the split, then the next context."""
    options = ladder(real(LLAMA), REQUEST, (A, B))
    assert [option.devices for option in options[:4]] == [(A,), (B,), (A, B), (A,)]
    assert options[2].flags == ("--split-mode", "layer", "--tensor-split", "1,1")
    assert options[0].flags == ()
    assert options[0].ctx_size == options[2].ctx_size > options[3].ctx_size
    assert [replace(part, device=B) for part in options[0].footprint] == list(options[1].footprint)


def test_a_split_shares_by_the_devices_sizes() -> None:
    """The larger card gets the larger part, by flags that the engine is given."""
    request = replace(REQUEST, device_bytes={A: 24 << 30, B: 8 << 30})
    split = next(option for option in ladder(real(LLAMA), request, (A, B)) if len(option.devices) == 2)
    assert split.flags[-2:] == ("--tensor-split", f"{24 << 10},{8 << 10}")
    assert split.footprint[0].weights_bytes > 2 * split.footprint[1].weights_bytes


def test_a_pinned_device_is_the_only_placement() -> None:
    """Whatever other devices there are."""
    assert {option.devices for option in ladder(real(LLAMA), replace(REQUEST, device=B), (A, B))} == {(B,)}


def test_a_rungs_footprint_is_that_of_the_flags_it_is_launched_with() -> None:
    """What is reserved is what the engine is told."""
    request = replace(REQUEST, flags=("-ctk", "q8_0", "-ctv", "q8_0"))
    best = ladder(real(LLAMA), request, (A,))[0]
    words = ("--ctx-size", str(best.ctx_size), "--parallel", str(best.parallel), *best.flags, *request.flags)
    direct = footprint(real(LLAMA), parse_flags(words), (A,))
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


@pytest.mark.parametrize("name", [LLAMA, SMALL_CACHE, "Qwen3.5-9B-Q4_K_M"])
@pytest.mark.parametrize("room_gib", [8, 12, 20])
def test_L7_what_is_said_to_fit_fits_and_the_next_step_does_not(name: str, room_gib: int) -> None:
    """Asking for exactly the answer gives a rung that the room carries; one step more does not fit."""
    geometry, room = real(name), room_gib << 30
    request = replace(REQUEST, parallel=2)
    fit = largest_fit(geometry, request, (A,), {A: room})
    assert fit.ctx_size % (2 * 256) == 0

    def need(ctx_size: int, slots: int) -> int:
        (option,) = ladder(geometry, replace(REQUEST, ctx_size=ctx_size, parallel=slots), (A,))
        return option.footprint[0].total_bytes

    if fit.ctx_size:
        assert need(fit.ctx_size, 2) <= room
    if fit.ctx_size < 2 * geometry.context_train:
        assert need(fit.ctx_size + 512, 2) > room
    if fit.parallel:
        assert need(fit.parallel * 32768, fit.parallel) <= room
    assert need((fit.parallel + 1) * 32768, fit.parallel + 1) > room


@pytest.mark.parametrize("room_mib", [5250, 5500, 5900, 6500, 9000, 14000, 40000])
def test_L7_a_context_that_would_fit_fits_when_it_is_asked_for(room_mib: int) -> None:
    """Also where the slots are left to us: the pool alone is set, and its only rung is carried."""
    fit = largest_fit(real(LLAMA), REQUEST, (A,), {A: room_mib * MIB})
    (option,) = ladder(real(LLAMA), replace(REQUEST, ctx_size=fit.ctx_size), (A,))
    assert fit.ctx_size > 0
    assert option.footprint[0].total_bytes <= room_mib * MIB


def test_L7_nothing_fits_is_said_as_zero() -> None:
    """Less room than the weights take."""
    assert largest_fit(real(LLAMA), REQUEST, (A,), {A: 1 << 30}) == Fit(0, 0)
    assert largest_fit(real(LLAMA), REQUEST, (A,), {}) == Fit(0, 0)


def test_L7_the_best_placement_counts() -> None:
    """Two cards together carry more than the larger one alone; a context ends at the trained length."""
    rooms = {A: 8 << 30, B: 6 << 30}
    alone = largest_fit(real(LLAMA), REQUEST, (A,), rooms)
    both = largest_fit(real(LLAMA), REQUEST, (A, B), rooms)
    assert both.ctx_size > alone.ctx_size > 0
    ample = largest_fit(real("Phi-3-mini-4k-Q4_K_M"), replace(REQUEST, parallel=1), (A,), {A: 1 << 40})
    assert ample.ctx_size == 4096


def test_L7_a_fixed_pool_is_kept_while_slots_are_counted() -> None:
    """More slots of the same pool cost a dense model nothing: as many as it has steps of 256 tokens."""
    request = replace(REQUEST, ctx_size=8192, parallel=1)
    assert largest_fit(real(LLAMA), request, (A,), {A: 12 << 30}).parallel == 32
