"""`GET /api/models[/{id}]`: what models take by device, estimated and measured, and how far off estimates were.

Owns these words. Reads the catalog, a snapshot and the kept measurements; starts nothing and changes nothing.
"""

from collections.abc import Mapping

from gridsched.control.models import added, best_instance, state_of
from gridsched.core.ids import DeviceName
from gridsched.core.model import LaunchOption
from gridsched.core.snapshot import InstanceView, Snapshot
from gridsched.library.measured import loads
from gridsched.ports import CatalogFamily, CatalogModel, CatalogVirtual, Measurement
from gridsched.runtime.runtime import Runtime
from gridsched.vram.calibrate import ArchitectureError, by_architecture

_NOTHING: Mapping[str, object] = {"state": "unavailable", "architecture": "", "devices": [], "error": None}
"""What there is to tell of a family without a single model."""


def inventory(runtime: Runtime) -> Mapping[str, object]:
    """All models, and the errors of their estimates by architecture."""
    kept = runtime.parts.store.measurements()
    now = runtime.snapshot()
    catalog = runtime.parts.catalog
    return {
        "models": [_model(model, kept, now) for model in catalog.models()]
        + [_virtual(virtual, kept, now) for virtual in catalog.virtuals()],
        "errors": [_error(each) for each in by_architecture(loads(kept.values()))],
    }


def one_model(runtime: Runtime, name: str) -> Mapping[str, object] | None:
    """The model that any of its names means, of a family the best; None where there is none."""
    parts = runtime.parts
    kept, now = parts.store.measurements(), runtime.snapshot()
    if virtual := parts.catalog.virtual(name):
        return _virtual(virtual, kept, now)
    found = parts.catalog.resolve(name)
    model = found.best if isinstance(found, CatalogFamily) else found
    return _model(model, kept, now) if model is not None else None


def _virtual(virtual: CatalogVirtual, kept: Mapping[str, Measurement], now: Snapshot) -> Mapping[str, object]:
    """A name over another model: the figures are those of its base, of a family's best."""
    base = virtual.base
    model = base.best if isinstance(base, CatalogFamily) else base
    told = _model(model, kept, now) if model is not None else _NOTHING
    return {**told, "id": virtual.name, "base": base.name, "virtual": added(virtual)}


def _model(model: CatalogModel, kept: Mapping[str, Measurement], now: Snapshot) -> Mapping[str, object]:
    instance = best_instance(now.instances, model)
    option = _option(model, instance)
    told: dict[str, object] = {
        "id": model.name,
        "state": state_of(model, now),
        "architecture": model.architecture,
        "size_bytes": model.size_bytes,
        "ctx_size": option.ctx_size if option is not None else None,
        "parallel": option.parallel if option is not None else None,
        "devices": _devices(option, kept) if option is not None else [],
        "error": _own_error(option, kept),
    }
    if model.unavailable is not None:
        told["unavailable"] = model.unavailable
    return told


def _option(model: CatalogModel, instance: InstanceView | None) -> LaunchOption | None:
    """The launch that the figures are of: the process's, else the best."""
    options = model.spec.options if model.spec is not None else ()
    running = (option for option in options if instance is not None and option.key == instance.option_key)
    return next(running, next(iter(options), None))


def _devices(option: LaunchOption, kept: Mapping[str, Measurement]) -> list[Mapping[str, object]]:
    measured: Mapping[DeviceName, int] = {}
    found = kept.get(option.key, Measurement()).measured_bytes
    if len(found) == len(option.devices):
        measured = dict(zip(option.devices, found, strict=True))
    return [
        {"name": device, "estimated_bytes": size, "measured_bytes": measured.get(device)}
        for device, size in option.estimates
    ]


def _own_error(option: LaunchOption | None, kept: Mapping[str, Measurement]) -> object:
    """Of the launch that the figures are of; None where it was not measured."""
    found = kept.get(option.key) if option is not None else None
    told = by_architecture(loads([found])) if found is not None else ()
    return _error(told[0]) if told else None


def _error(error: ArchitectureError) -> Mapping[str, object]:
    return {
        "architecture": error.architecture,
        "launches": error.launches,
        "median_ratio": round(error.median_part, 5),
        "least_ratio": round(error.least_part, 5),
        "most_ratio": round(error.most_part, 5),
        "components": {
            name: {"median_bytes": middle, "worst_bytes": worst} for name, (middle, worst) in error.components.items()
        },
    }
