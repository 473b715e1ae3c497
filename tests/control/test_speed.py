"""How fast a launch is said to be: from what it reads, by what is known of its devices, with an honest word."""

from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from gridsched.control.speed import Speed, bandwidth_of, speed_of
from gridsched.core.ids import DeviceName
from gridsched.core.model import DeviceFootprint, DeviceSpec, LaunchOption
from gridsched.ports import Backend, Capability, CatalogModel, DeviceInfo
from gridsched.store.benchmarks import Benchmark, Level
from sim.models import SimulatedCatalog

GIB = 1 << 30
CARD = DeviceInfo(DeviceSpec(DeviceName("gpu0"), 24 * GIB), "NVIDIA GeForce RTX 3090", Backend.CUDA, 0, "GPU-0")
OPTION = LaunchOption(
    "key", 16384, 2, (DeviceFootprint(DeviceName("gpu0"), weights_bytes=8 * GIB, kv_bytes=2 * GIB, compute_bytes=GIB),)
)
MODEL: CatalogModel = SimulatedCatalog([CARD.spec]).models()[0]


def _result(**other: object) -> Benchmark:
    level = Level(streams=1, tokens_per_s=50.0, total_tokens_per_s=50.0, first_token_s=0.1)
    known = {
        "model": str(MODEL.name), "path": "/m", "fingerprint": "f", "engine_build": "b1", "devices": ("gpu0",),
        "identities": (CARD.identity,), "option_key": "k", "ctx_per_slot": 4096, "parallel": 8,
        "cache_types": ("f16", "f16"), "levels": (level,), "recommended_slots": 1, "inputs_per_s": None,
        "read_bytes": 8 * GIB, "at": 1.0,
    }  # fmt: skip
    return Benchmark(**(known | other))  # type: ignore[arg-type]  # by name


def _speed(*results: Benchmark, model: CatalogModel = MODEL, card: DeviceInfo = CARD) -> Speed:
    return speed_of(model, OPTION, {"gpu0": card}, results, "f", "b1")


def test_what_is_read_for_a_token_and_how_fast_the_card_reads_make_the_estimate() -> None:
    """8 GiB of weights and one slot's half of the cache, at two thirds of 936 GB/s; experts that are not used are not
    read."""
    told = _speed()
    assert told.estimated_tokens_per_s == round(0.65 * 936e9 / (9 * GIB), 1)
    assert (told.measured_tokens_per_s, told.confidence) == (None, "estimated")
    experts = _speed(model=replace(MODEL, active_part=0.25))
    assert experts.estimated_tokens_per_s == round(0.65 * 936e9 / (3 * GIB), 1)


def test_what_a_benchmark_reached_on_the_same_devices_goes_before_the_table() -> None:
    """Of any model."""
    told = _speed(
        _result(
            model="another", levels=(Level(streams=1, tokens_per_s=90.0, total_tokens_per_s=90.0, first_token_s=0.1),)
        )
    )
    assert told.estimated_tokens_per_s == 80.0
    assert told.confidence == "estimated"


@pytest.mark.parametrize(
    ("other", "word"),
    [
        ({}, "measured here"),
        ({"engine_build": "b2"}, "measured on a like launch"),
        ({"fingerprint": "g"}, "measured on a like launch"),
        ({"identities": ("cuda:GPU-9",)}, "measured on a like launch"),
        ({"levels": ()}, "estimated"),
    ],
)
def test_a_measured_speed_says_how_like_it_is(other: dict[str, object], word: str) -> None:
    """The same files, engine and devices, or something like it."""
    assert _speed(_result(**other)).confidence == word


def test_a_card_that_nobody_knows_has_no_estimate() -> None:
    """Nor has a notebook's, whose name a faster card has; nor what writes nothing."""
    assert _speed(card=replace(CARD, label="Some Card 1")).confidence == "unknown"
    assert bandwidth_of(replace(CARD, label="NVIDIA GeForce RTX 4090 Laptop GPU")) is None
    assert _speed(model=replace(MODEL, capabilities=frozenset((Capability.EMBEDDING,)))).confidence == "unknown"


@pytest.mark.parametrize(
    ("label", "gb_per_second"),
    [("NVIDIA GeForce RTX 3080 Ti", 912), ("NVIDIA RTX 6000 Ada Generation", 960), ("AMD Radeon RX 7900 XTX", 960)],
)
def test_the_longest_name_that_a_label_has_counts(label: str, gb_per_second: float) -> None:
    """A Ti is no card without it."""
    assert bandwidth_of(replace(CARD, label=label)) == pytest.approx(0.65 * gb_per_second * 1e9)


def test_the_active_part_counts_what_a_token_reads(tmp_path: Path) -> None:
    """No table of words beside an output of its own; of experts those that are used."""
    from gridsched.library.shards import read_model  # noqa: PLC0415
    from gridsched.vram.geometry import Geometry  # noqa: PLC0415
    from tests.library.models import CHAT, TENSORS, write_model  # noqa: PLC0415

    def part(name: str, tensors: tuple[object, ...], **more: int) -> float:
        file = read_model(write_model(tmp_path / name, {**CHAT, **more}, cast("tuple", tensors)))
        return Geometry.from_header(file.header).active_part

    q, table = 256 * 256, 256 * 512
    assert part("dense.gguf", TENSORS) == pytest.approx((2 * q + table) / (2 * q + 2 * table))
    tied = tuple(each for each in TENSORS if each[0] != "output.weight")
    assert part("tied.gguf", tied) == 1.0
    experts = (*TENSORS, ("blk.0.ffn_up_exps.weight", (256, 256, 8), "Q8_0"))
    more = {"llama.expert_count": 8, "llama.expert_used_count": 2}
    read, whole = 2 * q + table + 2 * q, 2 * q + 2 * table + 8 * q
    assert part("moe.gguf", experts, **more) == pytest.approx(read / whole)
