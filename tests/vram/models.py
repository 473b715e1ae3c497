"""Models for tests: geometries made in memory through the real header reader, and the real ones' facts from `data`."""

import gzip
import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from gridsched.core.ids import DeviceName
from gridsched.vram.flags import LaunchFlags, parse_flags
from gridsched.vram.footprint import Footprint, footprint
from gridsched.vram.geometry import Geometry
from gridsched.vram.header import scan
from tests.support.gguf_header import Tensor, Value, build_header, data_end

DATA = Path(__file__).parent / "data"
MIB = 1 << 20
CARD = DeviceName("gpu0")


@dataclass(frozen=True, slots=True)
class Row:
    """What the engine itself accounted for one launch, or `allocated`: weights, cache, state and compute bytes.

    `projector` is what an `mmproj` file took on the first device. `context` is the pool, a slot's part, the micro-batch
    and whether flash attention is on, where that is known. `refused` is the engine's sentence if it did not start.
    """

    model: str
    flags: tuple[str, ...]
    devices: tuple[tuple[int, int, int, int | None], ...]
    host: tuple[int, int, int]
    projector: int
    context: tuple[int, int, int, bool] | None
    allocated: bool
    refused: str | None

    @property
    def launch(self) -> LaunchFlags:
        """The flags as read."""
        return parse_flags(self.flags)

    @property
    def kind(self) -> str:
        """How a launch differs from the plain one, by what the compute buffer's bound depends on."""
        flags, blocks = self.launch, len(real(self.model).layers)
        if flags.overrides:
            return "experts on the host"
        if not flags.kv_offload:
            return "cache on the host"
        if flags.gpu_layers is not None and flags.gpu_layers <= blocks:
            return "layers on the host"
        if len(self.devices) > 1:
            return "several devices"
        if not estimate(real(self.model), *self.flags).flash_attn:
            return "no flash attention"
        return "plain" if flags.cache_type_k == flags.cache_type_v == "f16" else "quantized cache"


@dataclass(frozen=True, slots=True)
class Allocation:
    """What the engine allocated for the cache and the state of a tiny model, in bytes."""

    architecture: str
    case: str
    geometry: Geometry
    flags: tuple[str, ...]
    bytes: int


def allocations() -> list[Allocation]:
    """Tiny models of every architecture that the engine could build from metadata alone."""
    with gzip.open(DATA / "allocations.jsonl.gz", "rt", encoding="utf-8") as lines:
        return [_allocation(json.loads(line)) for line in lines]


def _allocation(facts: dict[str, object]) -> Allocation:
    name, keys = str(facts["architecture"]), facts["keys"]
    assert isinstance(keys, dict)
    metadata = {"general.architecture": name} | {f"{name}.{key}": value for key, value in keys.items()}
    flags = ["-c", str(facts["ctx"]), "-np", str(facts["slots"]), "-ub", str(facts["ubatch"]), "-fa", "on"]
    return Allocation(
        architecture=name,
        case=str(facts["case"]),
        geometry=Geometry.from_header(scan(build_header(metadata))),
        flags=(*flags, "-kvu") if facts["unified"] else tuple(flags),
        bytes=int(str(facts["bytes"])),
    )


def model(architecture: str, tensors: Iterable[Tensor] = (), **keys: Value) -> Geometry:
    """A geometry by its architecture's own keys; a double underscore stands for the dot."""
    metadata: dict[str, Value] = {"general.architecture": architecture}
    metadata |= {f"{architecture}.{key.replace('__', '.')}": value for key, value in keys.items()}
    return Geometry.from_header(scan(build_header(metadata, tensors)))


def estimate(geometry: Geometry, *flags: str, devices: int = 1) -> Footprint:
    """The footprint on so many cards, nothing charged outside of the engine's buffers."""
    names = tuple(DeviceName(f"gpu{index}") for index in range(devices))
    return footprint(geometry, parse_flags(flags), names, overhead_bytes=0)


def kv_mib(geometry: Geometry, *flags: str) -> float:
    """The cache on one card, in MiB."""
    return estimate(geometry, *flags).devices[0].kv_bytes / MIB


@cache
def real_facts() -> dict[str, tuple[dict[str, Value], list[Tensor]]]:
    """Metadata and tensors of the real models, by name."""
    found = {}
    with gzip.open(DATA / "models.jsonl.gz", "rt", encoding="utf-8") as lines:
        for line in lines:
            facts = json.loads(line)
            metadata = {key: value for key, value in facts["metadata"].items() if value != []}
            found[facts["name"]] = metadata, facts["tensors"]
    return found


@cache
def real_headers() -> dict[str, bytes]:
    """Headers of the real models, by name."""
    return {name: build_header(*facts) for name, facts in real_facts().items()}


def real_file(name: str, folder: Path, *, parts: int = 1) -> Path:
    """One of the real models as a file of its true size, or split over several, with holes for data: it costs no disk.
    Gives the first."""
    metadata, tensors = real_facts()[name]
    paths = [folder / f"{name}.gguf"]
    if parts > 1:
        paths = [folder / f"{name}-{number:05}-of-{parts:05}.gguf" for number in range(1, parts + 1)]
    for number, path in enumerate(paths):
        own = tensors[number * len(tensors) // parts : (number + 1) * len(tensors) // parts]
        said: dict[str, Value] = {**metadata} if number == 0 else {}
        if parts > 1:
            said |= {"split.no": number, "split.count": parts, "split.tensors.count": len(tensors)}
        header = build_header(said, own)
        path.write_bytes(header)
        os.truncate(path, data_end(header, own))
    return paths[0]


@cache
def real(name: str) -> Geometry:
    """One of the real models."""
    return Geometry.from_header(scan(real_headers()[name]))


def siglip(weights_bytes: int = 0) -> Geometry:
    """The projector of Gemma 3: SigLIP at 896 pixels, all its weights in one tensor."""
    metadata: dict[str, Value] = {"general.architecture": "clip", "clip.projector_type": "gemma3"}
    sizes = {"image_size": 896, "patch_size": 14, "embedding_length": 1152, "feed_forward_length": 4304}
    metadata |= {f"clip.vision.{key}": value for key, value in sizes.items()}
    metadata |= {"clip.vision.attention.head_count": 16, "clip.vision.block_count": 27}
    tensors: list[Tensor] = [("v.w", [weights_bytes // 4], "F32")] if weights_bytes else []
    return Geometry.from_header(scan(build_header(metadata, tensors)))


def rows() -> list[Row]:
    """What the engine accounted for them."""
    with gzip.open(DATA / "rows.jsonl.gz", "rt", encoding="utf-8") as lines:
        return [_row(json.loads(line)) for line in lines]


def _row(facts: dict[str, Any]) -> Row:
    devices = facts.get("devices", [])
    return Row(
        model=facts["model"],
        flags=tuple(facts["flags"].split()),
        devices=tuple(tuple(device[:4]) for device in devices),
        host=tuple(facts.get("host", ())[:3]),
        projector=sum(sum(device[4:]) for device in devices),
        context=(facts["ctx"], facts["per_slot"], facts["ubatch"], facts["fa"]) if "ctx" in facts else None,
        allocated=facts["how"] == "llama-server",
        refused=facts.get("refused"),
    )
