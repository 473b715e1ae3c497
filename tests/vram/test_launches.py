"""Launches with flags drawn at random, of the real models and of others that nothing was made on, as the engine
accounts for them: weights, cache and state to the byte, the context, and the compute buffer from above."""

import gzip
import json
from typing import Any

import pytest

from gridsched.vram.geometry import Geometry
from tests.vram.models import DATA, estimate, real
from tests.vram.test_compute import geometry_of

LEAST = 0.99
"""Of a device's total: what the estimate may not be under."""


def drawn() -> list[dict[str, Any]]:
    """Models, with the launches of each; those that are not among the real ones describe themselves."""
    with gzip.open(DATA / "launches.jsonl.gz", "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def geometry(facts: dict[str, Any]) -> Geometry:
    """One of the real models, or as described."""
    return geometry_of(facts) if "tensors" in facts else real(facts["name"])


MODELS = drawn()


@pytest.mark.slow
@pytest.mark.parametrize("facts", MODELS, ids=[facts["name"] for facts in MODELS])
def test_launches_with_any_flags_are_estimated_to_the_byte_and_from_above(facts: dict[str, Any]) -> None:
    """Types of cache, micro-batches, slots, splits, overrides, flash attention and caches on the host, mixed."""
    model = geometry(facts)
    for flags, devices, host, context in facts["launches"]:
        ours = estimate(model, *flags.split(), devices=len(devices))
        assert [ours.ctx_size, ours.ctx_per_slot, ours.ubatch, ours.flash_attn] == context, flags
        for part, (weights, cache, compute) in zip(ours.devices, devices, strict=True):
            assert (part.weights_bytes, part.kv_bytes + part.recurrent_bytes) == (weights, cache), flags
            assert part.total_bytes >= LEAST * (weights + cache + compute), flags
        assert ours.host.kv_bytes + ours.host.recurrent_bytes == host[1], flags
