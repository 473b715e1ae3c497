"""Which devices are used, and what is said about the choice."""

from pathlib import Path

import pynvml
import pytest

from gridsched.devices.choice import Wanted
from gridsched.devices.discover import NoDevice, Roots, discover

GIB = 1 << 30


@pytest.fixture(autouse=True)
def _no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine that runs the tests may have a card: here it has none."""

    def absent(flags: int) -> None:  # noqa: ARG001 - the binding's signature
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    monkeypatch.setattr(pynvml, "nvmlInitWithFlags", absent)


def test_without_a_card_half_of_the_free_memory_is_the_budget(tmp_path: Path) -> None:
    """The sentence says how much, why, and what changes it."""
    (tmp_path / "meminfo").write_text(f"MemAvailable: {6 * GIB // 1024} kB\n")
    found = discover(Wanted(), roots=Roots(tmp_path, tmp_path, tmp_path))
    assert found.monitor.devices()[0].spec.total_bytes == 3 * GIB
    (note,) = found.notes
    assert note.startswith(
        "No GPU in use: models run on the processor, in 3.0 GiB of host memory (half of what is free"
    )
    assert "devices.host_budget changes it" in note


def test_a_configured_budget_is_used_as_it_is(tmp_path: Path) -> None:
    """Even where the system tells nothing about its memory."""
    found = discover(Wanted(), 2 * GIB, roots=Roots(tmp_path, tmp_path, tmp_path))
    assert found.monitor.devices()[0].spec.total_bytes == 2 * GIB
    assert "as configured" in found.notes[0]


def test_with_nothing_to_plan_with_the_setting_is_named(tmp_path: Path) -> None:
    """No card, no /proc, no budget: what to set is said."""
    with pytest.raises(NoDevice, match=r"Set devices\.host_budget"):
        discover(Wanted(), roots=Roots(tmp_path, tmp_path, tmp_path))
