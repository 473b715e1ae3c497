"""Which of the engine's devices is which measured card (D8)."""

from dataclasses import replace

import pytest

from gridsched.core.ids import DeviceName
from gridsched.core.model import DeviceSpec
from gridsched.engine.cards import EngineDevice, advice, match, unmeasured
from gridsched.engine.locate import _devices as read_listing
from gridsched.ports import Backend, DeviceInfo

GIB = 1 << 30
HOST = DeviceInfo(DeviceSpec(DeviceName("host"), 8 * GIB), "host", Backend.CPU)

TWO_3090 = """ggml_cuda_init: found 2 CUDA devices:
  Device 0: NVIDIA GeForce RTX 3090, compute capability 8.6, VMM: yes
  Device 1: NVIDIA GeForce RTX 3090, compute capability 8.6, VMM: yes
Available devices:
  CUDA0: NVIDIA GeForce RTX 3090 (24124 MiB, 23871 MiB free)
  CUDA1: NVIDIA GeForce RTX 3090 (24124 MiB, 20011 MiB free)
"""
LAPTOP = """Available devices:
  Vulkan0: Intel(R) UHD Graphics (16243 MiB, 15475 MiB free)
  Vulkan1: NVIDIA RTX A2000 Laptop GPU (3962 MiB, 3367 MiB free)
"""
BOTH = """Available devices:
  Vulkan0: NVIDIA GeForce RTX 3090 (24576 MiB, 24000 MiB free)
  Vulkan1: NVIDIA GeForce RTX 3090 (24576 MiB, 24000 MiB free)
  CUDA0: NVIDIA GeForce RTX 3090 (24124 MiB, 23871 MiB free)
  CUDA1: NVIDIA GeForce RTX 3090 (24124 MiB, 23871 MiB free)
"""
RENDERERS = """Available devices:
  Vulkan0: AMD Radeon Graphics (RADV RENOIR) (24576 MiB, 24000 MiB free)
  Vulkan1: NVIDIA GeForce RTX 5090 (32607 MiB, 31999 MiB free)
  Vulkan2: NVIDIA GeForce RTX 5090 (NVK GB202) (32607 MiB, 31999 MiB free)
  Vulkan3: llvmpipe (LLVM 21.1.2, 256 bits) (24105 MiB, 24105 MiB free)
"""
HALO = """Available devices:
  ROCm0: AMD Radeon(TM) Graphics (110511 MiB, 110357 MiB free)
"""


def card(name: str, label: str, gib: float = 24.0) -> DeviceInfo:
    """A card as the driver names it."""
    return DeviceInfo(DeviceSpec(DeviceName(name), int(gib * GIB)), label, Backend.CUDA)


def names(listing: str, *cards: DeviceInfo) -> dict[str, tuple[str, Backend]]:
    """What a recorded listing makes of our cards."""
    found = match((HOST, *cards), read_listing(listing))
    return {name: (found.names[name], found.backends[name]) for name in found.names}


def test_D8_a_recorded_listing_is_read_with_the_memory_it_names() -> None:
    """Labels with brackets, and banners that are no devices."""
    assert read_listing(TWO_3090)[1] == EngineDevice("CUDA1", "NVIDIA GeForce RTX 3090", 24124 << 20)
    assert read_listing(RENDERERS)[0] == EngineDevice("Vulkan0", "AMD Radeon Graphics (RADV RENOIR)", 24576 << 20)
    assert read_listing("Available devices:\n  Vulkan0: no memory told\n") == (
        EngineDevice("Vulkan0", "no memory told"),
    )
    assert read_listing("Available devices:\n  (none)\n") == ()


def test_D8_two_equal_cards_each_have_a_name() -> None:
    """The second here is the second there."""
    found = names(TWO_3090, card("gpu0", "NVIDIA GeForce RTX 3090"), card("gpu1", "NVIDIA GeForce RTX 3090"))
    assert found == {"gpu0": ("CUDA0", Backend.CUDA), "gpu1": ("CUDA1", Backend.CUDA)}


def test_D8_a_vulkan_engine_makes_an_nvidia_card_a_vulkan_device() -> None:
    """What it computes with decides about its overhead and its cache types; the integrated card is not taken for it."""
    assert names(LAPTOP, card("gpu0", "NVIDIA RTX A2000 Laptop GPU", 4)) == {"gpu0": ("Vulkan1", Backend.VULKAN)}


def test_D8_a_card_that_is_listed_twice_is_one_card() -> None:
    """By CUDA and Vulkan: CUDA's names. By two Vulkan drivers: the one with the card's own words; llvmpipe is none."""
    ours = [card(f"gpu{number}", "NVIDIA GeForce RTX 3090") for number in range(2)]
    assert names(BOTH, *ours) == {"gpu0": ("CUDA0", Backend.CUDA), "gpu1": ("CUDA1", Backend.CUDA)}
    assert names(RENDERERS, card("gpu0", "NVIDIA GeForce RTX 5090", 32)) == {"gpu0": ("Vulkan1", Backend.VULKAN)}


def test_D8_cards_of_one_name_are_told_apart_by_their_memory() -> None:
    """10 and 12 GB under one name, listed by speed: each has its own."""
    listed = [EngineDevice("CUDA0", "RTX 3080", 12 * GIB - (1 << 28)), EngineDevice("CUDA1", "RTX 3080", 10 * GIB)]
    found = match((card("gpu0", "RTX 3080", 10), card("gpu1", "RTX 3080", 12)), listed)
    assert found.names == {"gpu0": "CUDA1", "gpu1": "CUDA0"}
    assert found.notes == ()


@pytest.mark.parametrize(
    ("ours", "theirs", "found"),
    [
        (("RTX 3090",), ("Intel iGPU", "RTX 3090"), ("Vulkan1",)),
        (("A", "B", "A"), ("B", "A", "A"), ("Vulkan1", "Vulkan0", "Vulkan2")),
        (("NVIDIA X", "NVIDIA Y"), ("X (NVK)", "Y (NVK)"), ("Vulkan0", "Vulkan1")),
        (("A", "A"), ("A",), ("Vulkan0", None)),
        (("A", "A"), ("A", "X"), ("Vulkan0", None)),
        (("A",), (), (None,)),
        (("A",), ("B", "C"), (None,)),
        (("A",), ("llvmpipe (LLVM 15)",), (None,)),
    ],
)
def test_D8_our_cards_are_matched_with_the_engines(
    ours: tuple[str, ...], theirs: tuple[str, ...], found: tuple[str | None, ...]
) -> None:
    """By what both call them; a card that the engine cannot use has no name."""
    cards = [card(f"gpu{number}", label) for number, label in enumerate(ours)]
    listed = [EngineDevice(f"Vulkan{number}", label) for number, label in enumerate(theirs)]
    matched = match([HOST, *cards], listed)
    assert tuple(matched.names.get(device.spec.name) for device in cards) == found


def test_D8_a_guess_by_order_is_said() -> None:
    """Nothing but the place speaks for it."""
    matched = match([card("gpu0", "NVIDIA X")], [EngineDevice("Vulkan0", "X (NVK)")])
    (note,) = matched.notes
    assert "gpu0 (NVIDIA X) is taken for the engine's Vulkan0 (X (NVK))" in note


def test_D8_a_drivers_name_behind_a_label_is_none_of_the_cards() -> None:
    """As Mesa writes it; a card whose label goes on is another one."""
    listing = RENDERERS.replace("AMD Radeon Graphics (RADV", "AMD Radeon RX 7900 XTX (RADV")
    cards = card("gpu0", "AMD Radeon RX 7900 XTX"), card("gpu1", "NVIDIA GeForce RTX 5090", 32)
    assert names(listing, *cards) == {"gpu0": ("Vulkan0", Backend.VULKAN), "gpu1": ("Vulkan1", Backend.VULKAN)}
    assert names(listing, card("gpu0", "AMD Radeon RX 7900")) == {}
    assert list(unmeasured(read_listing(listing), cards)) == []


def test_a_card_that_is_used_under_another_name_is_not_said_to_be_unused() -> None:
    """A card that is known by its place in the list only."""
    listed = read_listing(HALO)
    assert list(unmeasured(listed, [card("gpu0", "AMD GPU", 100)])) == []


def test_a_card_that_nobody_here_can_read_is_named_and_not_used() -> None:
    """ROCm, Metal and other makers' Vulkan devices have no monitor; llvmpipe is the processor and not worth a word."""
    assert match([HOST], read_listing(HALO)).names == {}
    (told,) = unmeasured(read_listing(HALO), [HOST])
    assert "ROCm0 (AMD Radeon(TM) Graphics)" in told
    said = list(unmeasured(read_listing(RENDERERS), [card("gpu0", "NVIDIA GeForce RTX 5090", 32)]))
    assert [sentence.split()[3] for sentence in said] == ["Vulkan0"]


def test_a_build_that_leaves_a_card_unused_is_told_with_the_line_that_mends_it() -> None:
    """From source where NVIDIA's compiler is; nothing where the card is used, or where there is none."""
    idle = card("gpu0", "NVIDIA GeForce RTX 3090")
    (fetched,) = advice((), "", (idle,), compiler=False)
    assert "on the processor only, and there is a card here (NVIDIA GeForce RTX 3090)" in fetched
    assert fetched.endswith("To use it: gridsched engine install wheel")
    (built,) = advice((), "", (idle,), compiler=True)
    assert "gridsched engine install source" in built
    assert list(advice(read_listing(TWO_3090), "", (idle,), compiler=False)) == []
    assert list(advice((), "", (), compiler=True)) == []


def test_a_driver_that_is_too_old_for_a_build_is_told_with_its_version() -> None:
    """The other way out is a build without CUDA; any other trouble is told in the engine's words."""
    old = replace(card("gpu0", "NVIDIA GeForce RTX 3090"), driver="470.10")
    said = "failed to initialize CUDA: CUDA driver version is insufficient for CUDA runtime version"
    (sentence,) = advice((), said, (old,), compiler=True)
    assert sentence.startswith(
        f"The card's driver is too old for this build: {said}. Update the driver (this one is 470"
    )
    assert sentence.endswith("without CUDA: gridsched engine install wheel")
    (other,) = advice((), "no CUDA-capable device is detected", (), compiler=False)
    assert other == "The engine cannot use the card that it was built for: no CUDA-capable device is detected."
