"""A catalog over entries and folders, on devices that are made up."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from gridsched.core.ids import DeviceName
from gridsched.core.model import DeviceSpec
from gridsched.library.catalog import ModelCatalog
from gridsched.library.planning import Defaults
from gridsched.library.sources import read_library
from gridsched.ports import (
    Backend,
    DeviceInfo,
    FamilyEntry,
    Measurement,
    ModelEntry,
    VirtualEntry,
)

MIB, GIB = 1 << 20, 1 << 30
HOST = DeviceInfo(DeviceSpec(DeviceName("host"), 8 * GIB, GIB), "host memory", Backend.CPU)
CARDS = tuple(
    DeviceInfo(
        DeviceSpec(DeviceName(f"gpu{index}"), 8 * GIB, GIB),
        "card",
        Backend.CUDA,
        index,
        f"GPU-{index}",
        f"0000:{index}A:00.0",
    )
    for index in range(2)
)


def catalog(
    *entries: ModelEntry,
    folders: Sequence[Path] = (),
    devices: Sequence[DeviceInfo] = (HOST,),
    measurements: Mapping[str, Measurement] | None = None,
    defaults: Defaults = Defaults(),  # noqa: B008 - frozen
    families: Sequence[FamilyEntry] = (),
    default_model: str | None = None,
    engine_build: str = "b1",
    virtuals: Sequence[VirtualEntry] = (),
) -> ModelCatalog:
    """A catalog of these entries and folders."""
    return ModelCatalog(
        read_library(entries, folders, virtuals, families),
        devices,
        measurements or {},
        defaults=defaults,
        families=families,
        default_model=default_model,
        engine_build=engine_build,
    )
