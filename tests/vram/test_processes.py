"""The whole process, overhead included, against what the driver said of real ones on real cards."""

import json
from dataclasses import dataclass, replace
from statistics import median

import pytest

from gridsched.core.ids import DeviceName
from gridsched.vram.flags import parse_flags
from gridsched.vram.footprint import footprint
from gridsched.vram.geometry import Geometry
from gridsched.vram.overhead import overhead
from tests.vram.models import DATA, MIB, model, real


@dataclass(frozen=True, slots=True)
class Process:
    """One figure in the data: `weights_mib` a device where the file is another quant than ours, else None."""

    model: str
    flags: str
    card: str
    card_mib: int
    weights_mib: list[float] | None
    measured_mib: list[int]
    build: str
    source: str
    projector_mib: int = 0


def described(name: str) -> Geometry:
    """A model that is not among the real ones, by its published sizes; its weights are the row's."""
    match name:
        case "Qwen2.5-7B":
            sizes = {"block_count": 28, "embedding_length": 3584, "feed_forward_length": 18944}
            return model("qwen2", **sizes, attention__head_count=28, attention__head_count_kv=4)
        case "Qwen3-1.7B":
            sizes = {"block_count": 28, "embedding_length": 2048, "feed_forward_length": 6144}
            sizes |= {"attention__key_length": 128, "attention__value_length": 128}
            return model("qwen3", **sizes, attention__head_count=16, attention__head_count_kv=8)
        case "SmolLM2-135M":
            sizes = {"block_count": 30, "embedding_length": 576, "feed_forward_length": 1536}
            return model("llama", **sizes, attention__head_count=9, attention__head_count_kv=3)
        case "Qwen3.5-4B":
            sizes = {"block_count": 33, "nextn_predict_layers": 1, "embedding_length": 2560}
            sizes |= {"feed_forward_length": 9216, "attention__key_length": 256, "attention__value_length": 256}
            sizes |= {"ssm__inner_size": 4096, "ssm__state_size": 128, "ssm__conv_kernel": 4, "ssm__group_count": 16}
            return model("qwen35", **sizes, attention__head_count=16, attention__head_count_kv=4)
    return real(name)


def errors(process: Process) -> list[float]:
    """Estimate less measurement, as a part of the measurement: for each device, or for the sum where that is known."""
    geometry = described(process.model)
    split = "-sm layer" in process.flags
    cards = tuple(DeviceName(f"gpu{index}") for index in range(2 if split else 1))
    outside = overhead("cuda", process.card, process.card_mib * MIB).bytes
    ours = footprint(geometry, parse_flags(tuple(process.flags.split())), cards, overhead_bytes=outside)
    totals = [part.total_bytes for part in ours.devices]
    if process.weights_mib is not None:
        known = zip(ours.devices, process.weights_mib, strict=True)
        totals = [part.total_bytes - part.weights_bytes + int(weights * MIB) for part, weights in known]
    totals[0] += process.projector_mib * MIB
    if len(process.measured_mib) < len(totals):
        totals = [sum(totals)]
    return [total / (theirs * MIB) - 1 for total, theirs in zip(totals, process.measured_mib, strict=True)]


PROCESSES = [Process(**json.loads(line)) for line in (DATA / "processes.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("process", PROCESSES, ids=[f"{process.model} {process.flags}" for process in PROCESSES])
def test_no_process_takes_more_than_three_per_cent_over_its_estimate(process: Process) -> None:
    """Nor is any estimate far above."""
    assert all(-0.03 <= error <= 0.15 for error in errors(process))


def test_half_of_the_processes_are_within_three_per_cent() -> None:
    """Over all cards."""
    assert median(abs(error) for process in PROCESSES for error in errors(process)) <= 0.03


def test_half_are_where_nothing_is_known_of_the_card_and_none_is_three_per_cent_over_its_estimate() -> None:
    """What `estimate --devices 1` says, which loads nothing."""
    blind = [error for process in PROCESSES for error in errors(replace(process, card="", card_mib=0))]
    assert median(map(abs, blind)) <= 0.03
    assert min(blind) >= -0.03
