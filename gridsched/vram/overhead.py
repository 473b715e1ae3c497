"""Memory of an engine's process outside of the engine's own buffers, by backend and, for CUDA, by card.

Owns these constants, each with where it was measured. They hold until a load has been measured (L2). Knows no model and
reads no device: a card is the name and the size that whoever found it gives.

On CUDA it is the context, the kernels that were loaded, cuBLAS and the pools: once for each process and device, the
more the more multiprocessors a card has. The figures are process memory less the engine's buffers in public logs, the
highest of each card, and `FIRST_PROMPT_BYTES` for what the pools take at the first prompt."""

from typing import NamedTuple

MIB = 1 << 20
GIB = 1 << 30

HOST_OVERHEAD_BYTES = 128 * MIB
"""Program, libraries, threads and request buffers in host memory: 30 to 45 MiB measured with llama-server b10068 and
two small models after requests; the rest is room for larger requests and more threads."""

FIRST_PROMPT_BYTES = 22 * MIB
"""CUDA's pools at the first prompt: 22 MiB on an 8 GB laptop card (7031 to 7053 MiB over a prompt of 31,000 tokens),
up to 125 reported once for a 5060 Ti with a 2060 SUPER, nothing visible on a 16 GB card."""


class Overhead(NamedTuple):
    """Bytes on one device, and a sentence where no measurement of that backend or card stands behind them."""

    bytes: int
    note: str | None = None


_CUDA_CARDS_MIB: tuple[tuple[str, int], ...] = (
    ("PRO 6000", 712),  # Blackwell workstation: 560 to 712 a device
    ("5090", 430),
    ("4090", 456),  # 451 to 456 on each of three
    ("3090", 263),  # 225 to 263
    ("A40", 297),  # on each of two
    ("T4", 135),
    ("5060 Ti", 137),  # 129 to 137
)
"""The highest figure of each card that was measured. The first entry whose words all stand in the name, case aside."""

_LAPTOP_MIB = 165  # Ada with 8 GB: 140 to 165
_CUDA_BY_SIZE: tuple[tuple[int, int], ...] = ((10 * GIB, 225), (17 * GIB, 330), (25 * GIB, 470), (34 * GIB, 470))
"""For other cards, MiB for cards up to that size: above every card of the size that was measured (16 GB: 305)."""
_CUDA_LARGEST_MIB = 730  # data-centre and workstation cards
_CUDA_UNKNOWN_MIB = 305
"""Where nothing is known of the card, an expectation, not a bound: half of the measured processes come out within 3 %
with it and none is under by 3 %; with the highest figure half were 9 % over. Whoever loads something knows the size."""

_OTHER_BACKENDS: dict[str, Overhead] = {
    "vulkan": Overhead(256 * MIB, "no measurement for Vulkan: 256 MiB outside of the engine's buffers are assumed"),
    "rocm": Overhead(768 * MIB, "no measurement for ROCm: 768 MiB outside of the engine's buffers are assumed"),
    "metal": Overhead(256 * MIB, "no measurement for Metal: 256 MiB outside of the engine's buffers are assumed"),
    "cpu": Overhead(HOST_OVERHEAD_BYTES),
    "simulated": Overhead(512 * MIB),
}
_UNKNOWN_BACKEND_BYTES = 768 * MIB


def overhead(backend: str, card: str = "", total_bytes: int = 0) -> Overhead:
    """What one process takes on one device of a backend (`cuda`, `vulkan`, `rocm`, `metal`, `cpu`, `simulated`).

    `card` is the device's name as the driver gives it, `total_bytes` its size; both are of use for CUDA alone. A card
    that was not measured is charged by its size and noted; where not even that is known, what is usual.
    """
    if backend != "cuda":
        unknown = f"no measurement for {backend}: {_UNKNOWN_BACKEND_BYTES // MIB} MiB outside of the engine's buffers"
        return _OTHER_BACKENDS.get(backend, Overhead(_UNKNOWN_BACKEND_BYTES, f"{unknown} are assumed"))
    words = card.casefold().split()
    if "laptop" in words and 0 < total_bytes <= _CUDA_BY_SIZE[0][0]:
        return Overhead(_LAPTOP_MIB * MIB + FIRST_PROMPT_BYTES)
    for name, mib in _CUDA_CARDS_MIB if "laptop" not in words else ():
        if all(word in words for word in name.casefold().split()):
            return Overhead(mib * MIB + FIRST_PROMPT_BYTES)
    if not card and not total_bytes:
        usual = f"{_CUDA_UNKNOWN_MIB} MiB outside of the engine's buffers are assumed, as on a card of 16 GB"
        return Overhead(_CUDA_UNKNOWN_MIB * MIB, f"{usual}: cards take 135 to 712, so say which it is, or its size")
    mib = next((mib for most, mib in _CUDA_BY_SIZE if 0 < total_bytes <= most), _CUDA_LARGEST_MIB)
    known = card or "this card"
    return Overhead(mib * MIB, f"no measurement for {known}: {mib} MiB outside of the engine's buffers are assumed")
