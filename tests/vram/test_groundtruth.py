"""The footprint against what the engine itself accounts for 38 real models in 1428 launches, one test a launch."""

from functools import cache

import pytest

from gridsched.core.ids import DeviceName
from gridsched.vram.context import plan_context
from gridsched.vram.flags import FlagError
from gridsched.vram.footprint import Footprint, footprint
from gridsched.vram.refusals import check_launch
from tests.vram.models import MIB, Row, estimate, real, rows, siglip

HOST_TOLERANCE_BYTES = 4096  # the engine's own rounding of mapped ranges
LOGGED_TOLERANCE_BYTES = 10_600  # where the log of a launch that allocated has it, in hundredths of a MiB
SIGLIP_COMPUTE_BYTES = {True: 127_139_840, False: 1_186_988_032}
"""With flash attention, and without."""

ROWS = rows()
WITHIN_MIB = {
    "plain": 2,
    "quantized cache": 10,
    "several devices": 65,
    "no flash attention": 80,
    "experts on the host": 80,
    "layers on the host": 140,
    "cache on the host": 140,
}
"""How far above the truth the compute buffer's bound may be in half of the launches of a kind."""


@cache
def ours_of(row: Row) -> Footprint:
    """Our estimate of a row."""
    if not row.launch.mmproj:
        return estimate(real(row.model), *row.flags, devices=len(row.devices))
    projector = siglip(row.projector - SIGLIP_COMPUTE_BYTES[row.launch.flash_attn != "off"] if row.projector else 0)
    return footprint(real(row.model), row.launch, (DeviceName("gpu0"),), overhead_bytes=0, projector=projector)


@pytest.mark.parametrize("row", ROWS, ids=[f"{row.model} {' '.join(row.flags)}" for row in ROWS])
def test_a_launch_is_estimated_to_the_byte_and_its_compute_buffer_from_above(row: Row) -> None:
    """Weights, cache and state of every device and of the host; the context; the bound. Or the refusal."""
    geometry = real(row.model)
    context = plan_context(geometry, row.launch)
    if row.refused is not None:
        with pytest.raises(FlagError):
            check_launch(geometry, row.launch, context, devices=1)
        return
    check_launch(geometry, row.launch, context, devices=len(row.devices))
    ours = ours_of(row)
    for device, theirs in zip(ours.devices, row.devices, strict=True):
        assert (device.weights_bytes, device.kv_bytes, device.recurrent_bytes) == theirs[:3]
        assert device.compute_bytes >= (theirs[3] or 0)
    assert sum(device.mmproj_bytes for device in ours.devices) == row.projector
    if row.allocated:  # its log says how long the mapped range is, gaps included
        assert ours.host.weights_bytes <= row.host[0] + LOGGED_TOLERANCE_BYTES
    else:
        assert abs(ours.host.weights_bytes - row.host[0]) <= HOST_TOLERANCE_BYTES
    assert (ours.host.kv_bytes, ours.host.recurrent_bytes) == row.host[1:]
    if row.context is not None:
        assert (ours.ctx_size, ours.ctx_per_slot, ours.ubatch, ours.flash_attn) == row.context


@pytest.mark.slow
@pytest.mark.parametrize("kind", WITHIN_MIB)
def test_the_compute_bound_is_close_in_half_of_the_launches_of_each_kind(kind: str) -> None:
    """The dearer the mode, the more room the bound keeps."""
    over = sorted(
        (device.compute_bytes - theirs[3]) / MIB
        for row in ROWS
        if row.refused is None and row.kind == kind
        for device, theirs in zip(ours_of(row).devices, row.devices, strict=True)
        if theirs[3] is not None
    )
    assert len(over) > 50
    assert over[len(over) // 2] <= WITHIN_MIB[kind]
