"""Models for tests: geometries made in memory through the real header reader, and the real ones' facts from `data`."""

import gzip
import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from gridsched.core.ids import DeviceName
from gridsched.vram.flags import parse_flags
from gridsched.vram.footprint import Footprint, footprint
from gridsched.vram.geometry import Geometry
from gridsched.vram.header import scan
from tests.support.gguf_header import Tensor, Value, build_header

DATA = Path(__file__).parent / "data"
MIB = 1 << 20
CARD = DeviceName("gpu0")


@dataclass(frozen=True, slots=True)
class Row:
    """What the engine itself accounted for one launch: weights, cache, state and compute bytes."""

    model: str
    flags: tuple[str, ...]
    devices: tuple[tuple[int, int, int, int | None], ...]
    host: tuple[int, int, int, int]
    ctx: int
    per_slot: int
    ubatch: int
    flash_attn: bool


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
def real_headers() -> dict[str, bytes]:
    """Headers of the real models, by name."""
    headers = {}
    with gzip.open(DATA / "models.jsonl.gz", "rt", encoding="utf-8") as lines:
        for line in lines:
            facts = json.loads(line)
            metadata = {key: value for key, value in facts["metadata"].items() if value != []}
            headers[facts["name"]] = build_header(metadata, facts["tensors"])
    return headers


@cache
def real(name: str) -> Geometry:
    """One of the real models."""
    return Geometry.from_header(scan(real_headers()[name]))


def rows() -> list[Row]:
    """What the engine accounted for them."""
    with gzip.open(DATA / "rows.jsonl.gz", "rt", encoding="utf-8") as lines:
        return [_row(json.loads(line)) for line in lines]


def _row(facts: dict[str, object]) -> Row:
    devices, host = facts["devices"], facts["host"]
    assert isinstance(devices, list)
    assert isinstance(host, list)
    return Row(
        model=str(facts["model"]),
        flags=tuple(str(facts["flags"]).split()),
        devices=tuple(tuple(device) for device in devices),
        host=tuple(host),
        ctx=int(str(facts["ctx"])),
        per_slot=int(str(facts["per_slot"])),
        ubatch=int(str(facts["ubatch"])),
        flash_attn=bool(facts["fa"]),
    )
