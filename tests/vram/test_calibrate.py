"""What measured loads teach: the error by component, other models' overhead on the same card, sums by architecture."""

import pytest

from gridsched.core.ids import DeviceName
from gridsched.core.model import DeviceFootprint, LaunchOption
from gridsched.vram.calibrate import Load, believed, by_architecture, overheads
from gridsched.vram.overhead import FIRST_PROMPT_BYTES, overhead

MIB = 1 << 20
GPU, SECOND = DeviceName("gpu0"), DeviceName("gpu1")
CARD, OTHER = "cuda:GPU-1 580.1", "cuda:GPU-2 580.1"


def part(device: DeviceName = GPU, **mib: float) -> DeviceFootprint:
    """A footprint in MiB."""
    return DeviceFootprint(device, **{f"{name}_bytes": round(size * MIB) for name, size in mib.items()})


def load(
    predicted: DeviceFootprint, measured: float, allocated: DeviceFootprint | None = None, build: str = "b1"
) -> Load:
    """One card's load."""
    told = (allocated,) if allocated is not None else ()
    return Load("qwen3", build, (CARD,), (predicted,), (round(measured * MIB),), told)


# A public CUDA log: Qwen3-4B-Q4_K_M, `-c 8192`; 2375.91 + 1152.00 + 85.01 MiB in buffers.
PREDICTED = part(weights=2375.91, kv=1152, compute=86, overhead=470)
ALLOCATED = part(weights=2375.91, kv=1152, compute=85.01)


def test_L2_the_error_is_told_by_component_and_what_no_buffer_explains_is_overhead() -> None:
    """3,900 MiB measured: 287.08 outside of the buffers, where 470 were assumed."""
    found = load(PREDICTED, 3900, ALLOCATED).errors()
    assert {name: round(size / MIB, 2) for name, size in found.items()} == {
        "weights": 0.0,
        "kv": 0.0,
        "recurrent": 0.0,
        "compute": 0.99,
        "overhead": 182.92,
        "total": 183.91,
    }
    assert sum(size for name, size in found.items() if name != "total") == found["total"]


@pytest.mark.parametrize("more", [{"mmproj": 800}, {"draft": 300}])
def test_L2_what_the_engine_does_not_tell_apart_leaves_the_total_alone(more: dict[str, float]) -> None:
    """A projector's and a draft model's buffers have the same words; without a log there is nothing to compare."""
    predicted = part(weights=2000, overhead=100, **more)
    assert list(load(predicted, 3000, part(weights=2000)).errors()) == ["total"]
    assert list(load(PREDICTED, 3900).errors()) == ["total"]
    assert overheads([load(predicted, 3000, part(weights=2000)), load(PREDICTED, 3900)], "b1") == {}


def test_L2_what_the_engine_rounds_is_no_error() -> None:
    """It tells 2375.91 MiB where the bytes are a few thousand more; the parts still add up."""
    predicted = DeviceFootprint(GPU, round(2375.91 * MIB) + 5_000, overhead_bytes=300 * MIB)
    found = load(predicted, 2600, part(weights=2375.91)).errors()
    assert (found["weights"], found["overhead"]) == (0, found["total"])


def test_L2_over_two_cards_a_component_counts_where_both_tell_it() -> None:
    """One of them has the projector: only the total is known of the whole."""
    predicted = (part(weights=10, mmproj=5), part(SECOND, weights=10))
    told = (part(weights=10), part(SECOND, weights=10))
    split = Load("a", "b1", (CARD, OTHER), predicted, (20 * MIB, 15 * MIB), told)
    assert split.errors() == {"total": -10 * MIB}
    assert overheads([split], "b1") == {OTHER: 5 * MIB + FIRST_PROMPT_BYTES}


def test_L2_another_models_estimate_on_the_same_card_uses_the_overhead_that_was_measured() -> None:
    """An unmeasured 24 GB card is charged 470 MiB; after one load of another model the error of 180 is under 1 %."""
    (outside,) = overheads([load(PREDICTED, 3900, ALLOCATED)], "b1").values()
    assert outside / MIB == pytest.approx(287.08 + 22)
    weights, kv, compute, really_outside = 4455.3, 1152, 88, 290
    measured = weights + kv + compute + really_outside
    before = load(part(weights=weights, kv=kv, compute=compute, overhead=470), measured).errors()["total"]
    after = load(part(weights=weights, kv=kv, compute=compute, overhead=outside / MIB), measured).errors()["total"]
    assert before / MIB == pytest.approx(180)
    assert 0 <= after < 0.01 * measured * MIB
    assert outside < overhead("cuda", "NVIDIA X", 24 << 30).bytes


def test_L2_an_overhead_is_of_one_card_one_driver_and_one_engine_and_the_highest_counts() -> None:
    """Another build says nothing; a figure below nothing or above all reason is of something else."""
    low, high = load(PREDICTED, 3850, ALLOCATED), load(PREDICTED, 3900, ALLOCATED)
    odd = [load(PREDICTED, 3000, ALLOCATED), load(PREDICTED, 9000, ALLOCATED), load(PREDICTED, 4000, ALLOCATED, "b2")]
    assert overheads([low, high, *odd], "b1") == overheads([high], "b1")
    assert overheads([*odd], "b1") == {}
    assert list(overheads(odd, "b2")) == [CARD]


def test_L2_C12_what_disk_says_is_believed_where_it_can_be() -> None:
    """Of the same number of devices, at least a quarter of the estimate, and no more than may be planned."""
    option = LaunchOption("k", 4096, 1, (part(weights=100), part(SECOND, weights=100)))
    usable = {GPU: 300 * MIB, SECOND: 300 * MIB}
    good = (120 * MIB, 90 * MIB)
    assert believed(option, good, usable)[0].measured_bytes == good
    assert believed(option, (), usable) == (option, None)
    assert believed(option, (400 * MIB, 90 * MIB), usable)[0].measured_bytes == (300 * MIB, 90 * MIB)
    for bad, why in (((120 * MIB,), "of 1 devices"), ((120 * MIB, 24 * MIB), "under a quarter"), ((0, 0), "quarter")):
        kept, refusal = believed(option, bad, usable)
        assert kept == option
        assert refusal is not None
        assert why in refusal


def test_L2_errors_by_architecture_are_medians_and_extremes() -> None:
    """Two launches of one, one of another; a component that one does not tell is of those that do."""
    first = load(PREDICTED, 3900, ALLOCATED)
    second = load(PREDICTED, 4100)
    other = Load("gemma3", "b1", (CARD,), (part(weights=90),), (100 * MIB,))
    gemma, qwen = by_architecture([first, other, second])
    assert (gemma.architecture, gemma.launches, gemma.median_part) == ("gemma3", 1, -0.1)
    assert gemma.components == {"total": (-10 * MIB, -10 * MIB)}
    assert (qwen.launches, round(qwen.least_part, 3), round(qwen.most_part, 3)) == (2, -0.004, 0.047)
    assert qwen.components["compute"] == (round(0.99 * MIB), round(0.99 * MIB))
