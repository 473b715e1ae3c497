"""The footprint against what the engine itself accounts for 38 real models in 1411 launches."""

from functools import cache

import pytest

from gridsched.vram.flags import LaunchFlags, parse_flags
from gridsched.vram.footprint import Footprint
from tests.vram.models import MIB, Row, estimate, real, rows

pytestmark = pytest.mark.slow
HOST_TOLERANCE_BYTES = 4096  # the engine's own rounding of mapped ranges


@cache
def estimates() -> list[tuple[Row, LaunchFlags, Footprint]]:
    """Every row with our estimate of it."""
    return [
        (row, parse_flags(row.flags), estimate(real(row.model), *row.flags, devices=len(row.devices))) for row in rows()
    ]


def test_weights_cache_and_state_are_exact_on_every_device_and_on_the_host() -> None:
    """Not a byte off on any device, in any launch."""
    wrong = []
    for row, _, ours in estimates():
        for device, theirs in zip(ours.devices, row.devices, strict=True):
            if (device.weights_bytes, device.kv_bytes, device.recurrent_bytes) != theirs[:3]:
                wrong.append((row, device))
        off_host = abs(ours.host.weights_bytes - row.host[0])
        if off_host > HOST_TOLERANCE_BYTES or (ours.host.kv_bytes, ours.host.recurrent_bytes) != row.host[1:3]:
            wrong.append((row, ours.host))
    assert wrong == []


def test_context_batch_and_flash_attention_are_what_the_engine_makes_of_the_flags() -> None:
    """Padding, slots, streams, and where the device refuses flash attention."""
    wrong = [
        row
        for row, _, ours in estimates()
        if (ours.ctx_size, ours.ctx_per_slot, ours.ubatch, ours.flash_attn)
        != (row.ctx, row.per_slot, row.ubatch, row.flash_attn)
    ]
    assert wrong == []


def test_the_compute_bound_is_never_under_the_truth() -> None:
    """The bound holds in every mode; where everything is on one card with a plain cache it is close."""
    over: list[float] = []
    short = []
    for row, flags, ours in estimates():
        plain = len(row.devices) == 1 and flags.cache_type_k == "f16" and row.flash_attn
        plain = plain and flags.gpu_layers is not None and flags.gpu_layers > len(real(row.model).layers)
        plain = plain and not flags.overrides and flags.kv_offload
        for device, theirs in zip(ours.devices, row.devices, strict=True):
            if theirs[3] is None:
                continue
            if device.compute_bytes < theirs[3]:
                short.append((row, device))
            if plain:
                over.append((device.compute_bytes - theirs[3]) / MIB)
    assert short == []
    assert len(over) > 500
    assert sorted(over)[len(over) // 2] <= 2.1
    assert max(over) < 256
