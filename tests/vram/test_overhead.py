"""Memory outside of the engine's buffers: constants by backend and card, and what is said where there is none."""

import pytest

from gridsched.vram.overhead import FIRST_PROMPT_BYTES, MIB, overhead

GIB = 1024 * MIB


@pytest.mark.parametrize(
    ("card", "gib", "mib"),
    [
        ("NVIDIA GeForce RTX 4060 Laptop GPU", 8, 165),
        ("Tesla T4", 15, 135),
        ("NVIDIA GeForce RTX 3090", 24, 263),
        ("NVIDIA GeForce RTX 3090 Ti", 24, 263),
        ("NVIDIA A40", 45, 297),
        ("NVIDIA GeForce RTX 4090", 24, 456),
        ("NVIDIA GeForce RTX 5090", 32, 430),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", 96, 712),
        ("NVIDIA GeForce RTX 5060 Ti", 16, 137),
    ],
)
def test_a_card_that_was_measured_has_its_own_figure(card: str, gib: int, mib: int) -> None:
    """The highest that was seen, and the pools of the first prompt."""
    assert overhead("cuda", card, gib * GIB) == (mib * MIB + FIRST_PROMPT_BYTES, None)


@pytest.mark.parametrize(
    ("card", "gib", "mib"),
    [
        ("NVIDIA GeForce RTX 4090 Laptop GPU", 16, 330),
        ("NVIDIA GeForce RTX 4060", 8, 225),
        ("NVIDIA GeForce RTX 4080", 16, 330),
        ("NVIDIA GeForce RTX 4400", 24, 470),
        ("NVIDIA H100 80GB HBM3", 80, 730),
    ],
)
def test_a_card_that_was_not_measured_is_charged_by_its_size_and_noted(card: str, gib: int, mib: int) -> None:
    """Never less than a measured card of that size."""
    size, note = overhead("cuda", card, gib * GIB)
    assert size == mib * MIB
    assert note == f"no measurement for {card}: {mib} MiB outside of the engine's buffers are assumed"


def test_where_nothing_is_known_of_the_card_what_is_usual_is_assumed_and_said() -> None:
    """With how far cards differ, so that a person says which it is."""
    size, note = overhead("cuda")
    assert size == 305 * MIB
    assert note is not None
    assert "135 to 712" in note


def test_a_backend_without_a_figure_says_so_and_keeps_a_margin() -> None:
    """Vulkan, ROCm and Metal were not measured; a backend that nobody has heard of is charged as the dearest."""
    for backend in ("vulkan", "rocm", "metal", "sycl"):
        size, note = overhead(backend, "some card", 8 * GIB)
        assert size >= 256 * MIB
        assert note is not None
        assert f"{size // MIB} MiB" in note
    assert overhead("cpu") == (128 * MIB, None)
    assert overhead("simulated") == (512 * MIB, None)
