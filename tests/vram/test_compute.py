"""The compute buffer's bound against what the engine accounts for architectures beyond the real models' own."""

import gzip
import json
from typing import Any

import pytest

from gridsched.vram.geometry import Geometry
from gridsched.vram.header import scan
from tests.support.gguf_header import Tensor, build_header
from tests.vram.models import DATA, estimate


def described() -> list[dict[str, Any]]:
    """Models by their published sizes, with what the engine accounted for launches of each."""
    with gzip.open(DATA / "compute.jsonl.gz", "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def geometry_of(facts: dict[str, Any]) -> Geometry:
    """A tensor that stands in blocks has their ranges behind its type."""
    tensors: list[Tensor] = []
    for name, shape, kind, *ranges in facts["tensors"]:
        blocks = [block for first, end in ranges[0] for block in range(first, end)] if ranges else []
        tensors += [(f"blk.{block}.{name}", shape, kind) for block in blocks] or [(name, shape, kind)]
    return Geometry.from_header(scan(build_header(facts["metadata"], tensors)))


MODELS = described()


@pytest.mark.slow
@pytest.mark.parametrize("facts", MODELS, ids=[facts["name"] for facts in MODELS])
def test_the_bound_holds_for_architectures_that_it_was_not_made_on(facts: dict[str, Any]) -> None:
    """In every mode: one card, several, quantized caches, no flash attention, layers, experts or caches on the host."""
    geometry = geometry_of(facts)
    short = []
    for flags, truths in facts["launches"]:
        ours = estimate(geometry, *flags.split(), devices=len(truths))
        if any(part.compute_bytes < theirs for part, theirs in zip(ours.devices, truths, strict=True)):
            short.append((flags, [part.compute_bytes for part in ours.devices], truths))
    assert short == []
