"""Which launches are tried: models of each kind in the ways that people launch them, as far as they fit.

Owns the choice and its order: every model plainly first, then the ways that cost estimates most. What does not fit is
left out with its reason, never tried: a check must not push anybody's work out of memory.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from gridsched.core.ids import DeviceName
from gridsched.ports import DeviceInfo
from gridsched.vram.flags import FlagError
from gridsched.vram.geometry import Geometry
from tests.vram.check.files import Description, cut, whole
from tests.vram.check.measure import Case, predict

ON_CARDS = (
    "Qwen2.5-1.5B-Q4_K_M",  # dense
    "Llama-3.2-1B-Q4_K_M",  # tied output
    "Gemma-3-4B-Q4_K_M",  # windows
    "Gemma-4-E2B-Q4_K_M",  # per-layer embeddings, shared caches
    "Granite-4.0-H-Micro-Q4_K_M",  # states beside caches
    "nomic-embed-text-v1.5-F16",  # an encoder
    "Qwen3-4B-Q4_K_M",
    "Llama-3.1-8B-Q4_K_M",
    "Qwen3.5-9B-Q4_K_M",  # linear attention
    "gpt-oss-20b-MXFP4",  # experts, windows
    "DeepSeek-V2-Lite-Q4_K_M",  # latent attention
    "Qwen3-30B-A3B-Q4_K_M",
    "Qwen3-32B-Q4_K_M",
)
ON_HOST = (
    ("Llama-3.2-1B-Q4_K_M", 2, 4096),
    ("Gemma-3-4B-Q4_K_M", 6, 4096),
    ("Qwen3-30B-A3B-Q4_K_M", 1, 4096),
    ("Granite-4.0-H-Micro-Q4_K_M", 6, 4096),
)
"""Name, blocks, tokens: a processor computes them in a moment. Six blocks of Gemma 3 or Granite have both kinds."""


class Way(NamedTuple):
    """A way to launch. `layers`: a part of a model's blocks stays on the host."""

    flags: tuple[str, ...] = ()
    slots: int = 1
    cards: int = 1
    half_the_layers: bool = False
    with_experts: bool = False


PLAIN = Way()
WAYS = (
    PLAIN,
    Way(("--cache-type-k", "q8_0", "--cache-type-v", "q8_0")),
    Way(("--flash-attn", "off")),
    Way(slots=2),
    Way(half_the_layers=True),
    Way(("--cpu-moe",), with_experts=True),
    Way(("--split-mode", "layer", "--tensor-split", "1,1"), cards=2),
)
HOST_WAYS = (*WAYS[:4], Way(("--no-repack",)))
HOST_FLAGS = ("--ubatch-size", "128")
"""What a processor computes in a second or two."""


def descriptions(*, on_host: bool) -> Iterator[Description]:
    """The models, one at a time: a large one's facts need not lie beside the others'."""
    yield from (cut(*model) for model in ON_HOST) if on_host else map(whole, ON_CARDS)


def cases(files: Mapping[Path, Geometry], devices: Sequence[DeviceInfo], *, on_host: bool) -> Iterator[Case]:
    """Every model in every way that it can be launched at all, the ways in turn."""
    for way in HOST_WAYS if on_host else WAYS:
        for path, geometry in files.items():
            if way.cards > len(devices) or (way.with_experts and not geometry.experts.count):
                continue
            if geometry.is_embedding and way is not PLAIN:
                continue
            flags = (*HOST_FLAGS, *way.flags) if on_host else way.flags
            if way.half_the_layers:
                flags = (*flags, "--n-gpu-layers", str(geometry.blocks // 2))
            ctx_size = min(8192, geometry.context_train or 8192)
            case = Case(path, geometry, flags, way.slots, ctx_size, way.cards)
            try:
                predict(case, devices)
            except FlagError:
                continue  # the engine would refuse it
            yield case


def lack(case: Case, devices: Sequence[DeviceInfo], usable_bytes: Mapping[DeviceName, int], host_bytes: int) -> str:
    """Why a case does not fit, or nothing. `host_bytes` is what host memory has beside a card's launch."""
    predicted = predict(case, devices)
    for part in predicted.devices:
        if part.total_bytes > usable_bytes.get(part.device, 0):
            has = usable_bytes.get(part.device, 0)
            return f"it needs {part.total_bytes / 2**30:.1f} GiB on {part.device}, which has {has / 2**30:.1f} GiB"
    if predicted.host.total_bytes > host_bytes:
        return f"it needs {predicted.host.total_bytes / 2**30:.1f} GiB of host memory"
    return ""
